"""Long comparisons: progress that can be interrupted and resumed, and never loses a finished row."""

import contextlib
import json

import pytest

from simmoe.cli import validate as command
from simmoe.cli import validate_run
from simmoe.cli.validate_kept import finished_rows, keeping, kept_beside
from simmoe.errors import OutputError, SpecError
from simmoe.report.league import Comparison
from simmoe.specs.throughput_table_reader import read_table
from tests.unit.test_throughput_table import ROW, write

ROWS = (ROW, ROW | {"id": "r2", "mbs": "2"}, ROW | {"id": "r3", "dp_sharding": "zero9"})


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "mine.csv", *ROWS)


def interrupted_after(monkeypatch, rows: int) -> list[str]:
    """Let the user press Ctrl-C when so many rows are done; the list names those that were begun."""
    begun, whole = [], validate_run.compare

    def compare(row):
        if len(begun) == rows:
            raise KeyboardInterrupt
        begun.append(row.id)
        return whole(row)

    monkeypatch.setattr(validate_run, "compare", compare)
    return begun


def test_an_interrupted_run_goes_on_where_it_stopped(table, tmp_path, monkeypatch, capsys):
    command.validate(table=table, csv=tmp_path / "whole.csv", jobs=1)
    out = tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            command.validate(table=table, csv=out, jobs=1)
    assert not out.exists()
    assert "go on with --resume" in capsys.readouterr().err
    assert set(finished_rows(kept_beside(out), read_table(table))) == {"r1", "r2"}
    with monkeypatch.context() as patch:
        begun = interrupted_after(patch, 9)
        command.validate(table=table, csv=out, resume=True, jobs=1)
    assert begun == ["r3"]
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not kept_beside(out).exists()


def test_kept_rows_are_not_overwritten_by_accident(table, tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    interrupted_after(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        command.validate(table=table, csv=out, jobs=1)
    kept = kept_beside(out).read_text(encoding="utf-8")
    with pytest.raises(OutputError, match="go on with --resume, or remove it"):
        command.validate(table=table, csv=out, jobs=1)
    assert kept_beside(out).read_text(encoding="utf-8") == kept


def keep_then_stop(path, rows) -> None:
    """Keep these rows, then interrupt."""
    with contextlib.suppress(KeyboardInterrupt), keeping(path, resume=False) as keep:
        for row in rows:
            keep(row, Comparison(row.id, "g", "m", "h", 8, True, 1.0, 1.5, 0.5, 1.0, 2.0, "ok", ""))
        raise KeyboardInterrupt


def test_only_what_would_come_out_again_is_taken_over(table, tmp_path, monkeypatch):
    path = tmp_path / "out.csv.partial"
    rows = read_table(table)
    keep_then_stop(path, rows[:2])
    with path.open("a", encoding="utf-8") as file:
        file.write('{"key": "cut off in the mid')
    assert set(finished_rows(path, rows)) == {"r1", "r2"}
    changed = read_table(write(tmp_path / "other.csv", ROWS[0] | {"gbs": "32"}, *ROWS[1:]))
    assert set(finished_rows(path, changed)) == {"r2"}
    with keeping(path, resume=True) as keep:
        keep(rows[2], Comparison("r3", "g", "m", "h", 8, True, 1.0, None, None, None, None, "unsupported", "x"))
        lines = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["comparison"]["id"] == "r3"
    monkeypatch.setattr("simmoe.__version__", "another")
    path.write_text("\n".join(lines), encoding="utf-8")
    assert finished_rows(path, rows) == {}


def test_resuming_needs_a_file(table):
    with pytest.raises(SpecError, match="write --csv FILE too"):
        command.validate(table=table, resume=True)
    with pytest.raises(SpecError, match="--by: colour is none of group, model"):
        command.validate(table=table, by="colour")


def test_a_row_that_breaks_the_simulator_is_told_and_the_others_go_on(table, monkeypatch):
    monkeypatch.setattr("simmoe.pipeline.run", lambda scenario: 1 / 0)
    found = validate_run.compare_all(read_table(table), 1)
    assert [one.status for one in found] == ["unsupported"] * 3
    assert found[0].reason == "simulation failed: division by zero"


def test_a_plan_beyond_the_doubt_of_the_estimate_is_infeasible(tmp_path):
    large = ROW | {"seq_len": "131072", "mbs": "8", "gbs": "64"}
    found = validate_run.compare(read_table(write(tmp_path / "t.csv", large))[0])
    assert (found.status, found.error is not None) == ("infeasible", True)
    assert found.reason.startswith("needs ")
    offloaded = large | {"flags": "activation-offload"}
    found = validate_run.compare(read_table(write(tmp_path / "t.csv", offloaded))[0])
    assert found.status == "ok"
    assert found.cause.startswith("offloading not modelled")
