"""``simmoe reproduce``: simulate what a paper measured and print both side by side."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simmoe.cli.options import JsonFile
from simmoe.cli.reproduce_write import check_outputs, write_texts

if TYPE_CHECKING:
    from simmoe.explore.hetermoe import Sensitivity
    from simmoe.explore.hetermoe_bench import Case, KeptBench, Measurement
    from simmoe.explore.reproduction import Outcome
    from simmoe.specs.paper_rows_reader import PaperRow


class Paper(StrEnum):
    """Papers whose results can be reproduced."""

    HETERMOE = "hetermoe"


class Picture(StrEnum):
    """Formats of figures."""

    SVG = "svg"
    PNG = "png"
    PDF = "pdf"


def reproduce(
    paper: Annotated[Paper, typer.Argument(help="The paper: hetermoe (arXiv 2504.03871).", show_default=False)],
    row: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Only this row of the table. May be given several times.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw the paper's figures from the simulation into this folder."),
    ] = None,
    plot_format: Annotated[Picture, typer.Option(help="Of the figures.")] = Picture.SVG,
    csv: Annotated[
        Path | None, typer.Option(help="Write one line a value to this file; - for the screen.", metavar="FILE")
    ] = None,
    json: JsonFile = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Also under other assumptions, one at a time; ten times as long.")
    ] = False,
    assignment: Annotated[
        bool,
        typer.Option("--assignment", help="Not the rows, but how far gather and squeeze is from the best assignment."),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that simulate.")] = 2,
) -> None:
    """Simulate what a paper measured; exit status 1 if a test misses its tolerance.

    Rows marked C were used to choose numbers of the model, rows marked T were not.
    """
    from simmoe.cli.reproduce_assignment import compare_assignments
    from simmoe.explore.hetermoe import overfull
    from simmoe.explore.reproduction import missed

    if assignment:
        _alone(row=row, plot=plot, sensitivity=sensitivity)
        compare_assignments(paper, csv, json, jobs)
        return
    table = _rows(paper, row or [])
    check_outputs(csv, json, plot)
    known, simulator, found = _simulated(table, jobs, figures=plot is not None)
    drawn = _draw(table, simulator, plot, plot_format)
    swept = _sweep(table, found, jobs) if sensitivity else ()
    if not _write(paper, found, swept, csv, json):
        _report(found, swept, overfull(known), [*drawn, *(Path(file) for file in (csv, json) if file is not None)])
    if missed(found):
        raise typer.Exit(1)


def _alone(**options: object) -> None:
    """Refuse what does not go with the comparison of assignments."""
    from simmoe.errors import SpecError

    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        raise SpecError([f"--assignment: has a table of its own, remove {' and '.join(given)}"])


def _rows(paper: str, wanted: Sequence[int]) -> "tuple[PaperRow, ...]":
    """The rows asked for, in the order of the table."""
    from simmoe.errors import SpecError
    from simmoe.specs.paper_rows_reader import paper_rows

    table = paper_rows(paper)
    known = sorted({one.row for one in table})
    for number in wanted:
        if number not in known:
            raise SpecError([f"--row: {paper} has no row {number}, write one from {known[0]} to {known[-1]}"])
    return tuple(one for one in table if not wanted or one.row in wanted)


def _simulated(
    table: "Sequence[PaperRow]", jobs: int, *, figures: bool
) -> "tuple[dict[Case, Measurement], KeptBench, tuple[Outcome, ...]]":
    """The runs that rows and figures need, a bench that knows them, and the rows beside what was simulated."""
    from simmoe.cli.reproduce_run import measured
    from simmoe.explore.hetermoe import cases_for, outcomes
    from simmoe.explore.hetermoe_bench import AS_SHIPPED
    from simmoe.explore.hetermoe_systems import bench

    known = measured(cases_for(table, figures=figures), jobs, AS_SHIPPED)
    simulator = bench(known)
    return known, simulator, outcomes(table, simulator)


def _draw(table: "Sequence[PaperRow]", simulator: "KeptBench", folder: Path | None, picture: Picture) -> list[Path]:
    """Draw the figures of the rows; the files."""
    if folder is None:
        return []
    from simmoe.explore.hetermoe import charts
    from simmoe.report.charts import write_chart

    drawn = []
    for chart in charts(table, simulator):
        drawn.append(folder / f"{chart.name}.{picture.value}")
        write_chart(chart, drawn[-1])
    return drawn


def _sweep(table: "Sequence[PaperRow]", shipped: "Sequence[Outcome]", jobs: int) -> "tuple[Sensitivity, ...]":
    """The same rows under every other setting."""
    from simmoe.cli.reproduce_run import measured
    from simmoe.explore.hetermoe import SWEEPS, cases_for, outcomes, sensitivity
    from simmoe.explore.hetermoe_bench import AS_SHIPPED
    from simmoe.explore.hetermoe_systems import bench

    cases, swept = cases_for(table), []
    for _, settings in SWEEPS:
        for setting in settings:
            found = shipped
            if setting.assumptions != AS_SHIPPED:
                known = measured(cases, jobs, setting.assumptions, f"{setting.name} {setting.value}")
                found = outcomes(table, bench(known, setting.assumptions))
            swept.append(sensitivity(setting, found, shipped))
    return tuple(swept)


def _write(
    paper: str, found: "Sequence[Outcome]", swept: "Sequence[Sensitivity]", csv: Path | None, json: str | None
) -> bool:
    """Write the files asked for; whether one of them went to the screen, instead of the report."""
    from simmoe.explore.hetermoe import headlines, sweep_entries
    from simmoe.explore.reproduction import csv_text, json_text

    texts = {}
    if csv is not None:
        texts[str(csv)] = csv_text(found)
    if json is not None:
        extra = {"headlines": headlines(found)} | ({"sensitivity": sweep_entries(swept)} if swept else {})
        texts[json] = json_text(paper, found, extra)
    return write_texts(texts)


def _report(found: "Sequence[Outcome]", swept: "Sequence[Sensitivity]", large: str, written: Sequence[Path]) -> None:
    """Print the tables."""
    from simmoe.cli import reproduce_report

    reproduce_report.print_rows(found)
    reproduce_report.print_headlines(found)
    reproduce_report.print_misses(found)
    if swept:
        reproduce_report.print_sensitivity(swept)
    reproduce_report.print_memory(large)
    reproduce_report.print_score(found)
    reproduce_report.print_written(written)
