"""``simmoe db fit-report`` and the held-out errors it shows."""

import csv
import io
import json
from pathlib import Path

import pytest

from simmoe.report.fit_report import csv_rows, table_fits, totals
from simmoe.specs import catalog
from simmoe.specs.numbers import numbers_of
from simmoe.specs.residuals_file import Residual
from tests.command_line import Simmoe

HEADER = "part,table,variant,source,rows,held_out_rows,median_error,p90_error,bias\n"


def test_free_parameters_are_counted_once_and_not_those_of_others() -> None:
    parent = catalog.accelerator("a100-sxm4-80gb")
    fits = {fit.table: fit for fit in table_fits("accelerator", parent, "a100-sxm4-80gb")}
    assert list(fits) == ["gemm", "attention", "grouped_gemm", "memory_bound"]
    for fit in fits.values():
        assert fit.free <= fit.parameters
        assert fit.measured + fit.derived + fit.guess + fit.other == fit.free
    gemm = [n for n in numbers_of(parent, "") if n.name.startswith("efficiency.gemm[")]
    assert fits["gemm"].parameters == len(gemm)
    heir = table_fits("accelerator", catalog.accelerator("a100-pcie-80gb"), "a100-pcie-80gb")
    assert sum(fit.free for fit in heir) == 0
    assert {fit.inherited_from for fit in heir} == {"a100-sxm4-80gb"}


def test_links_and_stacks_have_their_own_tables() -> None:
    link = catalog.link("nvlink-4")
    fits = {fit.table: fit for fit in table_fits("link", link, "nvlink-4")}
    assert {"wire", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"} <= set(fits)
    assert fits["wire"].parameters == 2  # latency and achievable fraction; the bandwidth is printed
    assert sum(fit.parameters for fit in fits.values()) == len(list(numbers_of(link, ""))) - 1
    (stack,) = table_fits("software", catalog.software("megatron-core-2025"), "megatron-core-2025")
    assert stack.switches >= 3
    assert stack.parameters == len(list(numbers_of(catalog.software("megatron-core-2025"), "")))
    assert table_fits("node", catalog.node("dgx-h100"), "dgx-h100") == []


def residual(part: str, table: str, variant: str, source: str, median: float) -> Residual:
    return Residual(part, table, variant, source, 100, 20, median, 2 * median, -median)


RESIDUALS = (
    residual("nvlink-4", "collectives", "all_reduce:8", "a", 0.03),
    residual("nvlink-4", "collectives", "all_reduce:8", "a -> b (late)", 0.09),
    residual("nvlink-4", "collectives", "all", "a", 0.05),
    residual("nvlink-5", "collectives", "all_reduce:8", "a", 0.5),
)


def test_errors_are_shown_with_the_table_they_are_of() -> None:
    fits = {fit.table: fit for fit in table_fits("link", catalog.link("nvlink-4"), "nvlink-4", RESIDUALS)}
    assert fits["all_reduce"].held_out == RESIDUALS[:1]
    assert fits["all_reduce"].across == RESIDUALS[1:2]
    assert RESIDUALS[1].sources == ("a", "b")
    assert fits["all"].held_out == RESIDUALS[2:3]
    assert fits["all"].parameters == 0
    assert fits["all_gather"].residuals == ()
    assert totals(fits.values())["all"]["held_out_rows"] == 20  # the errors over all collectives are not counted again
    rows = csv_rows(fits.values())
    assert len(rows) == len(fits) + 1
    assert len({tuple(row) for row in rows}) == 1


def test_fit_report_in_short_in_full_and_as_files(own: Path, few: Simmoe) -> None:
    (own / "efficiency").mkdir()
    table = own / "efficiency" / "residuals.csv"
    table.write_text(HEADER + "a100-sxm4-80gb,gemm,bf16,vidur-profiling,900,180,0.0421,0.11,-0.01\n")
    out = few("db", "fit-report").out
    (row,) = (line for line in out.splitlines() if line.strip().startswith("a100-sxm4-80gb "))
    assert " 4.2%" in row
    for id in (*catalog.list_ids("accelerator"), *catalog.list_ids("link"), *catalog.list_ids("software")):
        assert id in out, id
    full = few("db", "fit-report", "a100-sxm4-80gb").out
    assert "11.0%" in full
    assert "180" in full
    found = json.loads(few("db", "fit-report", "--json", "-").out)
    gemm = next(one for one in found["tables"] if (one["part"], one["table"]) == ("a100-sxm4-80gb", "gemm"))
    assert 0.0421 in {one["median_error"] for one in gemm["residuals"]}
    assert found["totals"]["all"]["free"] == sum(one["free"] for one in found["tables"])
    written = few("db", "fit-report", "a100-sxm4-80gb", "--csv", "fits.csv")
    assert (written.out, written.err) == ("", "Wrote fits.csv\n")
    rows = list(csv.DictReader(io.StringIO(Path("fits.csv").read_text())))
    assert {row["part"] for row in rows} == {"a100-sxm4-80gb"}
    assert "0.0421" in {row["median_error"] for row in rows}


@pytest.mark.parametrize("width", ["80", "100"])
def test_fit_report_fits_the_screen(few: Simmoe, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for arguments in ((), ("nvlink-4", "h100-sxm5-80gb")):
        out = few("db", "fit-report", *arguments).out
        assert all(len(line) <= int(width) for line in out.splitlines())
        assert "…" not in out


def test_fit_report_of_what_has_no_fit(few: Simmoe) -> None:
    message = "'dgx-h100' has no fitted parameters, name an accelerator, a link or a software stack\n"
    assert few("db", "fit-report", "dgx-h100") == (2, "", message)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("a,b\n", ["1: not the header part,table,variant,source,rows,held_out_rows,median_error,p90_error,bias"]),
        (HEADER + "x,gemm\n", ["2:1: 9 columns are expected (got 2), correct the row"]),
        (
            HEADER + ",gemm,bf16,me,1e3,-1,nan,-0.1,-2\n",
            [
                "2:1: part: is empty, name it",
                "2:1: rows: a whole number is expected (got '1e3'), write for example 8",
                "2:1: held_out_rows: a whole number is expected (got '-1'), write for example 8",
                "2:1: median_error: a number of at least 0 is expected (got 'nan'), write for example 0.05",
                "2:1: p90_error: a number of at least 0 is expected (got '-0.1'), write for example 0.05",
                "2:1: bias: a number of at least -1 is expected (got '-2'), write for example 0.05",
            ],
        ),
        (HEADER + "x,gemm,bf16,me,8,9,0.1,0.2,0\n", ["held_out_rows: more than the 8 rows (got 9), correct one"]),
        (
            HEADER + 2 * "x,gemm,bf16,me,8,8,0.1,0.2,0\n",
            ["3:1: x: the fit is given twice, remove one of the two"],
        ),
        (HEADER + 'x,"gemm\n', ["not valid CSV (unexpected end of data), correct the quotes"]),
    ],
)
def test_a_wrong_file_of_errors_is_answered_by_line(own: Path, few: Simmoe, text: str, sentences: list[str]) -> None:
    (own / "efficiency").mkdir()
    path = own / "efficiency" / "residuals.csv"
    path.write_text(text)
    found = few("db", "fit-report")
    assert (found.status, found.out) == (2, "")
    lines = found.err.splitlines()
    assert len(lines) == len(sentences)
    for line, sentence in zip(lines, sentences, strict=True):
        assert line.startswith(f"{path}:")
        assert sentence in line
