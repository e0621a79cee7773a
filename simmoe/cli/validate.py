"""``simmoe validate``: simulate published runs and print how far off the simulation is."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from simmoe.cli.options import OverlayFile, Overrides
from simmoe.cli.validate_kept import finished_rows, keeping, kept_beside
from simmoe.cli.validate_run import FAILED, compare_all

if TYPE_CHECKING:
    from simmoe.report.league import Comparison, Key
    from simmoe.specs.throughput_table_reader import TableRow

_ONE_OF = "validate compares a scenario with its run, write validate SCENARIO --log FILE, --trace FILE or --runs CSV"
_KEYS = ("group", "model", "gpu", "software", "precision")


_Scenario = Annotated[
    Path | None,
    typer.Argument(metavar="SCENARIO", help="A scenario that was run; with --log.", show_default=False),
]
_Log = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Compare the scenario with the training log of its run.", show_default=False),
]
_Trace = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Compare the scenario with a trace of its run; one a rank.", show_default=False),
]
_Runs = Annotated[
    Path | None,
    typer.Option(metavar="CSV", help="Compare several runs, a list as calibrate takes it.", show_default=False),
]
_Classes = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="With --trace: 'class pattern' lines for kernels of your own.", show_default=False
    ),
]
_Tolerance = Annotated[
    float, typer.Option(min=0.0, help="With --log or --trace: of the step time; more is exit status 1.")
]
_Published = Annotated[bool, typer.Option("--published", help="Compare with the published runs shipped.")]
_Table = Annotated[
    Path | None,
    typer.Option(help="Compare with a CSV file of your own, see scenarios/published/README.md.", metavar="FILE"),
]
_Orderings = Annotated[
    bool, typer.Option("--orderings", help="Also tell whether changes of one choice have the right sign.")
]
_Csv = Annotated[Path | None, typer.Option(help="Write one line a row to this file; - for the screen.", metavar="FILE")]
_Plot = Annotated[
    Path | None, typer.Option(help="Draw simulated against measured: .svg, .png or .pdf.", metavar="FILE")
]
_Resume = Annotated[
    bool, typer.Option("--resume", help="With --csv: go on where an interrupted run of the same file stopped.")
]


def validate(
    scenario: _Scenario = None,
    log: _Log = None,
    trace: _Trace = None,
    runs: _Runs = None,
    classes: _Classes = None,
    overrides: Overrides = None,
    overlay: OverlayFile = None,
    tolerance: _Tolerance = 0.1,
    published: _Published = False,
    table: _Table = None,
    group: Annotated[str, typer.Option(help="Only rows whose source has this in its name.", metavar="TEXT")] = "",
    model: Annotated[str, typer.Option(help="Only rows whose model has this in its name.", metavar="TEXT")] = "",
    gpu: Annotated[str, typer.Option(help="Only rows whose accelerator has this in its name.", metavar="TEXT")] = "",
    by: Annotated[str, typer.Option(help=f"Summarise by {', '.join(_KEYS)}.", metavar="KEY")] = "group",
    worst: Annotated[int, typer.Option(min=0, help="Worst rows to print of each group.")] = 2,
    orderings: _Orderings = False,
    csv: _Csv = None,
    plot: _Plot = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the errors in Markdown instead.")] = False,
    resume: _Resume = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that simulate.")] = 2,
) -> None:
    """Simulate training runs that were measured and report the errors: published ones, or your own.

    Exit status 1 if SimMoE failed on a row, or if your own run is farther off than the tolerance.
    """
    if scenario is not None or log is not None or trace or runs is not None:
        _own_run(scenario, (log, trace or [], runs), (overrides or [], overlay), tolerance, (plot, classes))
        return
    from simmoe.report.league import csv_text, markdown_table

    _check_words(by, csv, resume)
    rows = _rows(published, table, group.lower(), model.lower(), gpu.lower())
    found = _found(rows, jobs, csv, plot, resume=resume)
    if str(csv) == "-":
        sys.stdout.write(csv_text(found))
    elif markdown:
        sys.stdout.write(markdown_table(found, cast("Key", by)))
    else:
        _report(rows, found, by, worst, orderings=orderings)
    if any(one.reason.startswith(FAILED) for one in found):
        raise typer.Exit(1)


def _own_run(
    scenario: Path | None,
    measured: tuple[Path | None, list[Path], Path | None],
    changes: tuple[list[str], Path | None],
    tolerance: float,
    extras: tuple[Path | None, Path | None],
) -> None:
    """Compare a scenario with what one's own run left behind: a log, traces (with a picture and classes), many runs."""
    from simmoe.cli.output_check import check_files
    from simmoe.errors import SpecError
    from simmoe.specs.overlay_file import load_overlaid

    log, traces, runs = measured
    if scenario is None or [log is not None, bool(traces), runs is not None].count(True) != 1:
        raise SpecError([_ONE_OF])
    plot, classes = extras
    check_files(plot, None)
    if runs is not None:
        from simmoe.cli.validate_runs import validate_runs

        validate_runs(scenario, runs, changes, tolerance, classes)
        return
    loaded = load_overlaid(scenario, changes[0], changes[1])
    if log is not None:
        from simmoe.cli.validate_log import validate_log

        validate_log(loaded, log, tolerance)
        return
    from simmoe.cli.validate_trace import validate_trace

    validate_trace(loaded, traces, tolerance, plot, classes)


def _check_words(by: str, csv: Path | None, resume: bool) -> None:
    """Refuse options that do not go together."""
    from simmoe.errors import SpecError

    if by not in _KEYS:
        raise SpecError([f"--by: {by} is none of {', '.join(_KEYS)}, write one of them"])
    if resume and (csv is None or str(csv) == "-"):
        raise SpecError(["--resume: finished rows are kept beside a file, write --csv FILE too"])


def _rows(published: bool, table: Path | None, group: str, model: str, gpu: str) -> "tuple[TableRow, ...]":
    """The rows asked for, in the order of their table."""
    from simmoe.errors import SpecError
    from simmoe.specs.data_folders import data_root
    from simmoe.specs.throughput_table_reader import read_table

    if published == (table is not None):
        raise SpecError(["validate compares with one table, write either --published or --table FILE"])
    shipped = data_root() / "scenarios" / "published" / "training.csv"
    rows = tuple(
        row
        for row in read_table(table or shipped)
        if group in row.group.lower()
        and model in row.text("model").lower()
        and gpu in row.text("accelerator_id").lower()
    )
    if not rows:
        raise SpecError(["no row is left, write another --group, --model or --gpu"])
    return rows


def _found(
    rows: "Sequence[TableRow]", jobs: int, csv: Path | None, plot: Path | None, *, resume: bool
) -> "tuple[Comparison, ...]":
    """The comparisons; files are written only when all are there, and tried before the first is simulated."""
    from simmoe.report.figures import check_suffix
    from simmoe.report.league import csv_text
    from simmoe.report.league_plot import write_scatter
    from simmoe.report.output import replacing

    if plot is not None:
        check_suffix(plot)
    with ExitStack() as stack:
        picture = stack.enter_context(replacing(plot)) if plot is not None else None
        if csv is None or str(csv) == "-":
            found = compare_all(rows, jobs)
        else:
            kept = kept_beside(csv)
            keep = stack.enter_context(keeping(kept, resume=resume))
            text = stack.enter_context(replacing(csv))
            found = compare_all(rows, jobs, finished_rows(kept, rows), keep)
            text.write_text(csv_text(found), encoding="utf-8")
        if picture is not None:
            write_scatter(found, picture)
    return found


def _report(rows: "Sequence[TableRow]", found: "Sequence[Comparison]", by: str, worst: int, *, orderings: bool) -> None:
    """Print the tables."""
    from simmoe.cli import validate_report

    validate_report.print_summary(found)
    validate_report.print_errors(found, by)
    if worst:
        validate_report.print_worst(found, worst)
    if orderings:
        validate_report.print_orderings(rows, found)
    validate_report.print_memory(found)
    validate_report.print_assumptions(found)
    validate_report.print_refusals(found)
