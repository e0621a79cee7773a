"""Errors of many rows as one table: medians, order, reasons, CSV and Markdown."""

import pytest

from simmoe.errors import OutputError
from simmoe.report.league import (
    CSV_COLUMNS,
    Comparison,
    assumptions,
    by,
    csv_text,
    inside,
    markdown_table,
    quantile,
    refusals,
    summarise,
    totals,
    worst,
)
from simmoe.report.league_orderings import Pair, pairs, scores
from simmoe.report.league_plot import write_scatter
from simmoe.specs.throughput_table_reader import TableRow


def comparison(id: str, error: float | None, **changes: object) -> Comparison:
    simulated = None if error is None else 10 * (1 + error)
    values = {
        "id": id, "group": "g", "model": "m", "gpu": "H100", "num_gpus": 8, "moe": True, "measured_s": 10.0,
        "simulated_s": simulated, "error": error, "low_s": None if error is None else 8.0,
        "high_s": None if error is None else 9.9 + error, "status": "ok", "reason": "", "precision": "bf16",
    }  # fmt: skip
    return Comparison(**{**values, **changes})


RUNS = (
    comparison("a", 0.1),
    comparison("b", -0.3, reason="assumed: x; y"),
    comparison("c", None, status="unsupported", reason="z"),
    comparison("d", 0.2, group="h", gpu="B200", moe=False, status="infeasible", reason="too large; assumed: x"),
)


def test_summaries_by_group():
    first, second = by(RUNS)
    assert (first.name, first.rows, second.name, second.rows) == ("g", 2, "h", 1)
    assert first.median == pytest.approx(0.2)
    assert first.bias == pytest.approx(-0.1)
    assert first.p90 == pytest.approx(0.28)
    assert first.worst == pytest.approx(0.3)
    assert first.inside == 0.5
    assert summarise("none", RUNS[2:3]) is None
    assert [summary.name for summary in by(RUNS, "gpu")] == ["H100", "B200"]
    assert [summary.name for summary in by(RUNS, "software")] == ["not stated"]


def test_totals_tell_dense_from_moe():
    assert [(summary.name, summary.rows) for summary in totals(RUNS)] == [("dense", 1), ("MoE", 2), ("all", 3)]
    assert [summary.name for summary in totals(RUNS[:1])] == ["MoE", "all"]


def test_quantiles_of_one_value():
    assert quantile([7.0], 0.9) == 7.0


def test_the_worst_come_first():
    assert [one.id for one in worst(RUNS, 2)] == ["b", "d"]


def test_assumptions_are_counted_one_by_one():
    assert assumptions(RUNS) == (("x", 2), ("y", 1))
    assert [one.assumed for one in RUNS] == [False, True, False, True]


def test_every_row_left_out_is_named():
    more = comparison("e", None, status="unsupported", reason="z"), comparison("f", None, reason="a")
    assert refusals([*RUNS, *more]) == (("z", ("c", "e")), ("a", ("f",)))


def test_share_inside_the_interval():
    assert inside(RUNS) == pytest.approx(2 / 3)
    assert inside(RUNS[2:3]) is None


def test_csv_has_the_columns_and_one_line_a_row():
    lines = csv_text(RUNS).splitlines()
    assert lines[0] == "id,group,model,gpu,num_gpus,moe,measured_s,simulated_s,error,low_s,high_s,status,reason"
    assert lines[0] == ",".join(CSV_COLUMNS)
    assert lines[1] == "a,g,m,H100,8,1,10,11,0.1,8,10,ok,"
    assert lines[3] == "c,g,m,H100,8,1,10,,,,,unsupported,z"
    assert len(lines) == 5


def test_markdown_has_a_line_a_group_and_the_totals():
    lines = markdown_table(RUNS).splitlines()
    assert lines[0] == "| group | rows | median | mean | P90 | max | bias | inside |"
    assert lines[2] == "| g | 2 | 20.0 % | 20.0 % | 28.0 % | 30.0 % | -10.0 % | 50 % |"
    assert [line.split(" | ")[0] for line in lines[3:]] == ["| h", "| **dense**", "| **MoE**", "| **all**"]
    assert markdown_table(RUNS, "gpu").startswith("| gpu | rows |")


# ---------------------------------------------------------------- orderings


def run(id: str, seconds: float, simulated: float, **cells: str) -> tuple[TableRow, Comparison]:
    """A row that took so long, and its comparison."""
    base = {"model": "m", "gbs": "8", "tp": "1", "mbs": "1", "precision_norm": "bf16"}
    row = TableRow(id, "g", id, {**base, **cells})
    return row, comparison(id, simulated / seconds - 1, measured_s=seconds, simulated_s=simulated)


def compared(*runs: tuple[TableRow, Comparison]) -> tuple[Pair, ...]:
    return pairs([row for row, _ in runs], [one for _, one in runs])


def test_pairs_differ_in_one_choice_and_by_more_than_noise():
    base = run("a", 10, 10)
    found = compared(
        base,
        run("b", 12, 11, tp="2", pp="4"),  # one choice, several sizes
        run("c", 8, 11, mbs="2"),  # the wrong way
        run("d", 9.6, 20, precision_norm="fp8"),  # too near to tell
        run("e", 20, 20, mbs="4", precision_norm="fp8"),  # two choices
        run("f", 20, 20, mbs="8", gbs="16"),  # another job
    )
    assert [(p.choice, p.first, p.second, p.right) for p in found] == [
        ("layout", "a", "b", True),
        ("micro-batch", "a", "c", False),
        ("micro-batch", "d", "e", False),
    ]
    assert (found[0].before, found[0].after) == ("tp=1 pp=-", "tp=2 pp=4")
    assert (found[1].before, found[1].after) == ("1", "2")
    assert found[0].measured == pytest.approx(0.2)
    assert found[0].simulated == pytest.approx(0.1)
    assert [(score.choice, score.pairs, score.right) for score in scores(found)] == [
        ("layout", 1, 1), ("micro-batch", 2, 0), ("all", 3, 1),
    ]  # fmt: skip


def test_remarks_of_the_schedule_belong_to_their_choice():
    (pair,) = compared(
        run("a", 10, 10, schedule_overlap_flags="1F1B;pp_layout=Et|tL"),
        run("b", 12, 11, schedule_overlap_flags="some words;pp_layout=Ett|L"),
    )
    assert (pair.choice, pair.before, pair.after) == ("layout", "pp_layout=Et|tL", "pp_layout=Ett|L")
    assert compared(run("a", 10, 10, schedule_overlap_flags="x"), run("b", 12, 11, schedule_overlap_flags="y")) == ()


def test_rows_that_were_not_simulated_make_no_pairs():
    row, one = run("b", 12, 11, tp="2")
    blank = comparison("b", None, measured_s=12.0, simulated_s=None)
    assert compared(run("a", 10, 10), (row, blank)) == ()
    assert scores(()) == ()
    assert len(compared(run("a", 10, 10), (row, one))) == 1


# ---------------------------------------------------------------- the picture


def test_the_scatter_is_the_same_twice_and_refuses_other_formats(tmp_path):
    pytest.importorskip("matplotlib")
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    write_scatter(RUNS, first)
    write_scatter(RUNS, second)
    assert first.read_bytes() == second.read_bytes()
    text = first.read_text(encoding="utf-8")
    assert "3 published runs: median error 20.0%" in text
    assert "h  20% of 1" in text
    with pytest.raises(OutputError, match="suffix is none of"):
        write_scatter(RUNS, tmp_path / "a.jpg")
