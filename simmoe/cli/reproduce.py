"""``simmoe reproduce``: simulate what a paper measured and print both side by side."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simmoe.cli import reproduce_report
from simmoe.cli.options import JsonFile
from simmoe.cli.write_texts import check_outputs, write_texts

if TYPE_CHECKING:
    from simmoe.cli.reproduce_run import Simulated
    from simmoe.explore.study import Study
    from simmoe.explore.sweeps import Sensitivity
    from simmoe.specs.paper_rows_reader import PaperRow


class Paper(StrEnum):
    """Papers whose results can be reproduced."""

    HETERMOE = "hetermoe"
    HAPMOE = "hapmoe"


class Picture(StrEnum):
    """Formats of figures."""

    SVG = "svg"
    PNG = "png"
    PDF = "pdf"


PaperName = Annotated[
    Paper, typer.Argument(help="hetermoe (arXiv 2504.03871) or hapmoe (arXiv 2609.39350).", show_default=False)
]


def reproduce(
    paper: PaperName,
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
    from simmoe.cli.reproduce_run import simulated, swept_over
    from simmoe.explore.reproduction import missed

    if assignment:
        _compare_assignments(paper, csv, json, jobs, row=row, plot=plot, sensitivity=sensitivity)
        return
    table = _rows(paper, row or [])
    check_outputs(csv, json, plot)
    study = _study(paper)
    found = simulated(study, table, jobs, figures=plot is not None)
    drawn = _draw(study, table, found.bench, plot, plot_format)
    swept = swept_over(study, table, found, jobs) if sensitivity else ()
    if not _write(study, found, swept, csv, json):
        files = [*drawn, *(Path(file) for file in (csv, json) if file is not None)]
        reproduce_report.print_all(study, found, swept, files)
    if missed(found.outcomes):
        raise typer.Exit(1)


def _study(paper: Paper) -> "Study":
    """What is known of a paper."""
    if paper is Paper.HAPMOE:
        from simmoe.explore import hapmoe

        return hapmoe.STUDY
    from simmoe.explore import hetermoe

    return hetermoe.STUDY


def _compare_assignments(paper: Paper, csv: Path | None, json: str | None, jobs: int, **options: object) -> None:
    """The other table, of a paper that assigns experts; refuses what does not go with it."""
    from simmoe.cli.reproduce_assignment import compare_assignments
    from simmoe.errors import SpecError

    if paper is not Paper.HETERMOE:
        raise SpecError([f"--assignment: {paper} moves no experts, write simmoe reproduce hetermoe --assignment"])
    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        raise SpecError([f"--assignment: has a table of its own, remove {' and '.join(given)}"])
    compare_assignments(paper, csv, json, jobs)


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


def _draw(
    study: "Study", table: "Sequence[PaperRow]", bench: object, folder: Path | None, picture: Picture
) -> list[Path]:
    """Draw the figures of the rows; the files."""
    if folder is None:
        return []
    from simmoe.report.charts import write_chart

    drawn = []
    for chart in study.charts(table, bench):
        drawn.append(folder / f"{chart.name}.{picture.value}")
        write_chart(chart, drawn[-1])
    return drawn


def _write(
    study: "Study", found: "Simulated", swept: "Sequence[Sensitivity]", csv: Path | None, json: str | None
) -> bool:
    """Write the files asked for; whether one of them went to the screen, instead of the report."""
    from simmoe.explore.reproduction import csv_text, json_text
    from simmoe.explore.sweeps import sweep_entries

    steady = [one for one in found.outcomes if one.row.row not in study.unsteady]
    texts = {}
    if csv is not None:
        texts[str(csv)] = csv_text(steady)
    if json is not None:
        extra = {"headlines": study.headlines(steady), **study.entries(found.known)}
        texts[json] = json_text(study.paper, steady, extra | ({"sensitivity": sweep_entries(swept)} if swept else {}))
    return write_texts(texts)
