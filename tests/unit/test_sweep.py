"""``simmoe sweep`` and ``simmoe results``: points, hashes, shards, interruption, formats."""

import csv
import io
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simmoe.errors import SpecError
from simmoe.explore.results import best, pareto
from simmoe.explore.sweep import simulate_task, tasks_of
from simmoe.pipeline import run
from simmoe.report.ledger import Entry, Ledger
from simmoe.specs.sweep_file import read_sweep
from tests.command_line import Simmoe, in_folder
from tests.scenarios import SMALL, small

GRID = """\
scenario: base.yaml
set: {training.global_batch_size: 64}
grid:
  plan.pipeline_parallel: [1, 2, 4]
  plan.tensor_parallel: [1, 2]
zip:
  training.sequence_length: [2048, 4096]
  training.micro_batch_size: [2, 1]
derive: {plan.expert_parallel: "min(8, 16 // (plan.pipeline_parallel))"}
where: ["plan.pipeline_parallel * plan.tensor_parallel <= 4"]
"""


@pytest.fixture
def simmoe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simmoe:
    (tmp_path / "base.yaml").write_text(SMALL.read_text())
    (tmp_path / "grid.yaml").write_text(GRID)
    return in_folder(tmp_path, monkeypatch, capsys)


def exported(simmoe: Simmoe, name: str = "r.db") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(simmoe("results", "export", name, "--csv", "-").out)))


def test_points_multiply_and_conditions_leave_some_out(simmoe: Simmoe, tmp_path: Path):
    points = read_sweep(tmp_path / "grid.yaml").points
    assert len(points) == 5 * 2  # (4, 2) is left out
    assert points[0] == {
        "training.global_batch_size": 64,
        "plan.pipeline_parallel": 1,
        "plan.tensor_parallel": 1,
        "training.sequence_length": 2048,
        "training.micro_batch_size": 2,
        "plan.expert_parallel": 8,
    }


def test_draws_are_even_in_every_key_and_the_same_each_time(tmp_path: Path):
    (tmp_path / "base.yaml").write_text(SMALL.read_text())
    drawn = "samples: 50, seed: 3, of: {training.sequence_length: {low: 1000, high: 9000, whole: true}, x: [1, 2]}"
    path = tmp_path / "s.yaml"
    path.write_text(f"scenario: base.yaml\nlatin_hypercube: {{{drawn}}}\n")
    points = read_sweep(path).points
    assert points == read_sweep(path).points
    lengths = sorted(point["training.sequence_length"] for point in points)
    assert all(1000 + 160 * n - 1 <= length <= 1000 + 160 * (n + 1) + 1 for n, length in enumerate(lengths))
    assert sorted(point["x"] for point in points) == [1] * 25 + [2] * 25
    path.write_text(f"scenario: base.yaml\nrandom: {{{drawn.replace('samples: 50', 'samples: 400')}}}\n")
    assert len({point["training.sequence_length"] for point in read_sweep(path).points}) > 350


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {a: [1]}\n", "s.yaml:1:1: scenario:"),
        ("scenario: none.yaml\ngrid: {a: [1]}\n", "none.yaml"),
        ("scenario: base.yaml\nzip: {a: [1], b: [1, 2]}\n", "zip: lists of one length are expected"),
        ("scenario: base.yaml\ngrid: {a: [1]}\nlist: [{a: 2}]\n", "a: is given by two of grid, zip, list and draws"),
        ("scenario: base.yaml\ngrid: {a: [1]}\nwhere: ['b > 1']\n", "b is no key of this sweep"),
        ("scenario: base.yaml\ngrid: {a: [1]}\nwhere: ['a > 1']\n", "no point is left"),
        ("scenario: base.yaml\ngrid: {a: [1]}\nwhere: ['a >']\n", "no formula"),
        ("scenario: base.yaml\nrandom: {samples: 3, of: {a: {low: 2, high: 1}}}\n", "low <= high is expected"),
        ("scenario: base.yaml\nplanner: best\ngrid: {a: [1]}\n", "planner: best is none of"),
        ("scenario: base.yaml\ngrids: {a: [1]}\n", "grids"),
    ],
)
def test_wrong_sweeps_are_refused_in_a_sentence(simmoe: Simmoe, tmp_path: Path, text: str, message: str):
    (tmp_path / "s.yaml").write_text(text)
    outcome = simmoe("sweep", "s.yaml", "-o", "r.db")
    assert outcome.status == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_every_point_is_what_simulate_says_and_infeasible_ones_say_why(simmoe: Simmoe, tmp_path: Path):
    outcome = simmoe("sweep", "grid.yaml", "-o", "r.db", "--jobs", "1")
    assert (outcome.status, outcome.err) == (0, "")
    rows = exported(simmoe)
    assert [row["hash"] for row in rows] == sorted(row["hash"] for row in rows)
    assert len(rows) == 10
    (row,) = (r for r in rows if r["plan.pipeline_parallel"] == "2" and r["plan.tensor_parallel"] == "1"
              and r["training.sequence_length"] == "4096")  # fmt: skip
    assert float(row["step_time_s"]) == run(small()).step_time_s
    bad = [row for row in rows if row["status"] == "infeasible"]
    assert all(row["reason"] and not row["step_time_s"] for row in bad)


def test_starting_again_repeats_nothing_and_shards_add_up(simmoe: Simmoe):
    simmoe("sweep", "grid.yaml", "-o", "whole.db", "--jobs", "1")
    whole = simmoe("results", "export", "whole.db", "--csv", "-").out
    assert "10 points, 10 of them finished before" in simmoe("sweep", "grid.yaml", "-o", "whole.db").out
    for shard in (1, 2, 3):
        assert simmoe("sweep", "grid.yaml", "-o", f"part{shard}.db", "--shard", f"{shard}/3", "--jobs", "1").status == 0
    assert simmoe("merge", "all.db", "part1.db", "part2.db", "part3.db").status == 0
    assert simmoe("results", "export", "all.db", "--csv", "-").out == whole


def test_killed_at_any_moment_it_goes_on_where_it_was(simmoe: Simmoe, tmp_path: Path):
    simmoe("sweep", "grid.yaml", "-o", "whole.db", "--jobs", "1")
    command = [sys.executable, "-c", "from simmoe.cli.main import main; main()", "sweep", "grid.yaml", "-o", "r.db"]
    for delay in (0.8, 1.1, 1.4):
        process = subprocess.Popen([*command, "--jobs", "1"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert simmoe("sweep", "grid.yaml", "-o", "r.db").status == 0
    assert (
        simmoe("results", "export", "r.db", "--csv", "-").out
        == simmoe("results", "export", "whole.db", "--csv", "-").out
    )


def test_planners_plan_each_point_anew(simmoe: Simmoe, tmp_path: Path):
    text = "scenario: base.yaml\nplanner: uniform\ngrid: {training.sequence_length: [2048, 4096]}\n"
    (tmp_path / "p.yaml").write_text(text)
    assert simmoe("sweep", "p.yaml", "-o", "p.db", "--jobs", "1").status == 0
    rows = exported(simmoe, "p.db")
    assert {row["status"] for row in rows} == {"ok"}
    assert all("parallel" in row["planner_plan"] for row in rows)
    assert all(float(row["step_time_s"]) > 0 for row in rows)


def test_a_result_depends_on_files_values_and_version_alone(simmoe: Simmoe, tmp_path: Path):
    read = read_sweep(tmp_path / "grid.yaml")
    hashes = [task.hash for task in tasks_of(read)]
    assert len(set(hashes)) == len(hashes)
    shards = [task.hash for part in (1, 2) for task in tasks_of(read, (part, 2))]
    assert sorted(shards) == sorted(hashes)
    (tmp_path / "base.yaml").write_text(SMALL.read_text().replace("count: 2", "count: 4"))
    assert not set(hashes) & {task.hash for task in tasks_of(read_sweep(tmp_path / "grid.yaml"))}


def test_files_that_are_no_results(simmoe: Simmoe, tmp_path: Path):
    (tmp_path / "text.db").write_text("hello, this is no database at all, but long enough to look like one" * 20)
    outcome = simmoe("sweep", "grid.yaml", "-o", "text.db")
    assert (outcome.status, outcome.err) == (2, "text.db: is no file of results, choose another name\n")
    assert simmoe("results", "show", "none.db").status == 2
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE x (y)")
    other.commit()
    assert "is no file of results" in simmoe("results", "show", "other.db").err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_cannot_be_written(simmoe: Simmoe, tmp_path: Path):
    simmoe("sweep", "grid.yaml", "-o", "r.db", "--jobs", "1", "--shard", "1/2")
    (tmp_path / "r.db").chmod(0o400)
    outcome = simmoe("sweep", "grid.yaml", "-o", "r.db", "--jobs", "1")
    assert outcome.status == 2
    assert "cannot be written" in outcome.err


def test_a_full_disk_is_told_and_keeps_what_is_there(simmoe: Simmoe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    simmoe("sweep", "grid.yaml", "-o", "r.db", "--jobs", "1", "--shard", "1/2")
    before = simmoe("results", "export", "r.db", "--csv", "-").out
    prepare = Ledger._prepare

    def small_disk(self: Ledger) -> None:
        prepare(self)
        pages = self._database.execute("PRAGMA page_count").fetchone()[0]
        self._database.execute(f"PRAGMA max_page_count={pages}")

    monkeypatch.setattr(Ledger, "_prepare", small_disk)
    entries = [Entry(f"{n:064x}", {"a": n}, "ok", "", {"x": "y" * 500}) for n in range(200)]
    with Ledger(tmp_path / "r.db", writing=True) as ledger, pytest.raises(Exception, match="the disk is full"):
        ledger.add(entries)
    assert simmoe("results", "export", "r.db", "--csv", "-").out == before


def test_best_and_pareto(simmoe: Simmoe):
    def entry(name: str, step: float, cost: float | None, status: str = "ok") -> Entry:
        return Entry(name, {"n": name}, status, "", {"step_time_s": step, "cost_usd_per_million_tokens": cost})

    found = [
        entry("a", 1, 9),
        entry("b", 2, 5),
        entry("c", 3, 6),
        entry("d", 4, 1),
        entry("e", 0.1, 0.1, "does not fit"),
    ]
    assert [one.hash for one in best(found, "step_time_s", 2)] == ["a", "b"]
    assert [one.hash for one in pareto(found, ["step_time_s", "cost_usd_per_million_tokens"])] == ["a", "b", "d"]
    assert [one.hash for one in pareto([*found, entry("f", 0.5, None)], ["step_time_s"])] == ["f"]
    with pytest.raises(SpecError, match="did you mean step_time_s"):
        best(found, "step_time", 1)


def test_tables_show_what_differs(simmoe: Simmoe):
    simmoe("sweep", "grid.yaml", "-o", "r.db", "--jobs", "1")
    shown, top = simmoe("results", "show", "r.db"), simmoe("results", "best", "r.db", "--top", "3")
    assert (shown.status, top.status) == (0, 0)
    assert "tensor_parallel" in top.out
    assert "global_batch_size" not in top.out, "it is the same everywhere"
    assert simmoe("results", "pareto", "r.db").status == 0


def test_a_task_is_simulated_the_same_in_any_process(simmoe: Simmoe, tmp_path: Path):
    tasks = tasks_of(read_sweep(tmp_path / "grid.yaml"))
    assert simulate_task(tasks[0]) == simulate_task(tasks[0])
    simmoe("sweep", "grid.yaml", "-o", "two.db", "--jobs", "2")
    with Ledger(tmp_path / "two.db") as ledger:
        found = {entry.hash: entry for entry in ledger.entries()}
    assert found[tasks[0].hash].figures == simulate_task(tasks[0]).figures
