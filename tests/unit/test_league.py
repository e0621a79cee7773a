"""Errors of many rows as one table: medians, order, reasons, CSV and Markdown."""

import pytest

from simmoe.report.league import (
    CSV_COLUMNS,
    Comparison,
    by_group,
    csv_text,
    inside,
    markdown_table,
    quantile,
    reasons,
    representative,
    summarise,
    worst,
)


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
    comparison("b", -0.3, status="approximate", reason="x; y"),
    comparison("c", None, status="unsupported", reason="x"),
    comparison("d", 0.2, group="h", gpu="B200"),
)


def test_summaries_by_group():
    first, second = by_group(RUNS)
    assert (first.name, first.rows, second.name, second.rows) == ("g", 2, "h", 1)
    assert first.median == pytest.approx(0.2)
    assert first.bias == pytest.approx(-0.1)
    assert first.p90 == pytest.approx(0.28)
    assert first.worst == pytest.approx(0.3)
    assert summarise("none", RUNS[2:3]) is None


def test_quantiles_of_one_value():
    assert quantile([7.0], 0.9) == 7.0


def test_the_worst_come_first():
    assert [one.id for one in worst(RUNS, 2)] == ["b", "d"]


def test_reasons_are_counted_one_by_one():
    assert reasons(RUNS, "approximate") == (("x", 1), ("y", 1))
    assert reasons(RUNS, "failed") == ()


def test_representative_rows_do_not_depend_on_errors():
    assert [one.id for one in representative(RUNS)] == ["d", "a"]


def test_share_inside_the_interval():
    assert inside(RUNS) == pytest.approx(2 / 3)
    assert inside(RUNS[2:3]) is None


def test_csv_has_the_columns_and_one_line_a_row():
    lines = csv_text(RUNS).splitlines()
    assert lines[0] == "id,group,model,gpu,num_gpus,moe,measured_s,simulated_s,error,low_s,high_s,status,reason"
    assert lines[0] == ",".join(CSV_COLUMNS)
    assert lines[1] == "a,g,m,H100,8,1,10,11,0.1,8,10,ok,"
    assert lines[3] == "c,g,m,H100,8,1,10,,,,,unsupported,x"
    assert len(lines) == 5


def test_markdown_marks_what_was_assumed():
    lines = markdown_table(RUNS[:2]).splitlines()
    assert lines[2] == "| m | 8 H100 | bf16 | 10 | 11 | +10.0% | a |"
    assert lines[3].endswith("| b * |")
