"""``simmoe validate``: simulate published runs and print how far off the simulation is."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from simmoe.report.league import Comparison
    from simmoe.specs.throughput_table_reader import TableRow

_MOST_WORST = 10


def validate(
    published: Annotated[bool, typer.Option("--published", help="Compare with the published runs shipped.")] = False,
    table: Annotated[
        Path | None,
        typer.Option(help="Compare with a CSV file of your own, see scenarios/published/README.md.", metavar="FILE"),
    ] = None,
    group: Annotated[str, typer.Option(help="Only rows whose source has this in its name.", metavar="TEXT")] = "",
    model: Annotated[str, typer.Option(help="Only rows whose model has this in its name.", metavar="TEXT")] = "",
    gpu: Annotated[str, typer.Option(help="Only rows whose accelerator has this in its name.", metavar="TEXT")] = "",
    csv: Annotated[
        Path | None, typer.Option(help="Write one line a row to this file; - for the screen.", metavar="FILE")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table in Markdown instead.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that simulate.")] = 2,
) -> None:
    """Simulate published training runs and report the error of each source."""
    from simmoe.report.league import csv_text, markdown_table, representative
    from simmoe.report.output import replacing

    rows = _rows(published, table, group.lower(), model.lower(), gpu.lower())
    to_screen = str(csv) == "-"
    # Opened before the minutes of simulation: a name that cannot be written is told at once.
    with nullcontext() if csv is None or to_screen else replacing(csv) as temporary:
        found = tuple(compare_all(rows, jobs))
        if temporary is not None:
            temporary.write_text(csv_text(found), encoding="utf-8")
    if to_screen:
        sys.stdout.write(csv_text(found))
    elif markdown:
        sys.stdout.write(markdown_table(representative(found)))
    else:
        _report(found)


def _rows(published: bool, table: Path | None, group: str, model: str, gpu: str) -> "tuple[TableRow, ...]":
    """The rows asked for, in the order of their table."""
    from simmoe.errors import SpecError
    from simmoe.specs.data_folders import data_root
    from simmoe.specs.throughput_table_reader import read_table

    if published == (table is not None):
        raise SpecError(["validate compares with one table, write either --published or --table FILE"])
    shipped = data_root() / "scenarios" / "published" / "moe_training.csv"
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


def compare_all(rows: "Sequence[TableRow]", jobs: int) -> "Iterator[Comparison]":
    """The comparison of each row, in order, with a progress bar if the error stream is a terminal.

    Parameters
    ----------
    rows : sequence of TableRow
    jobs : int
        Processes; 1 = simulate in this one.
    """
    from rich.progress import track

    from simmoe.cli.screen import console

    screen = console(stderr=True)
    with nullcontext() if min(jobs, len(rows)) == 1 else _pool(min(jobs, len(rows))) as pool:
        found = map(compare, rows) if pool is None else pool.map(compare, rows)
        yield from track(found, "simulating", len(rows), console=screen, disable=not screen.is_terminal)


def _pool(processes: int) -> ProcessPoolExecutor:
    """Workers that share nothing with this process, so that a result cannot depend on what ran before."""
    return ProcessPoolExecutor(processes, mp_context=get_context("forkserver"))


def compare(row: "TableRow") -> "Comparison":
    """Simulate one row; a row that cannot be simulated becomes a comparison that says why."""
    from simmoe.errors import SimmoeError
    from simmoe.pipeline import run
    from simmoe.report.league import Comparison, relative_error
    from simmoe.report.uncertainty import step_interval
    from simmoe.specs.throughput_scenario import scenario_of

    blank = Comparison(
        row.id, row.group, row.text("model"), row.text("accelerator_id"), row.whole("num_gpus"), row.moe,
        row.measured_s, None, None, None, None, "unsupported", "", row.text("precision_norm"),
    )  # fmt: skip
    reading = scenario_of(row)
    if reading.scenario is None or row.measured_s is None:
        return replace(blank, reason=reading.reason)
    try:
        result = run(reading.scenario)
    except SimmoeError as error:
        return replace(blank, status="failed", reason=str(error))
    notes = [*reading.assumptions, *([] if result.fits else ["does not fit by the memory estimate"])]
    interval = step_interval(result)
    return replace(
        blank,
        simulated_s=result.step_time_s,
        error=relative_error(result.step_time_s, row.measured_s),
        low_s=interval.low,
        high_s=interval.high,
        status="approximate" if notes else "ok",
        reason="; ".join(notes),
    )


def _report(found: "Sequence[Comparison]") -> None:
    """Print the errors by source, the worst rows, and what was assumed or left out."""
    from simmoe.cli.screen import console, percent
    from simmoe.report.league import inside, summarise, worst

    screen = console()
    simulated = [one for one in found if one.error is not None]
    accelerators = {one.gpu for one in simulated}
    screen.print(
        f"{len(simulated)} of {len(found)} published runs simulated: {len({one.model for one in simulated})} models, "
        f"{len(accelerators)} accelerators, {sum(one.status == 'ok' for one in found)} exactly as published.",
        soft_wrap=True,
    )
    _print_groups(found)
    total = summarise("all", found)
    if total is not None:
        held = inside(found)
        screen.print(f"Measured inside the predicted interval: {percent(held or 0.0, 0)} of the rows.")
    _print_worst(worst(found, _MOST_WORST))
    _print_reasons(found)


def _print_worst(found: "Sequence[Comparison]") -> None:
    from simmoe.cli.screen import console, heading, indented, table

    screen = console()
    screen.print(heading("Worst rows", "seconds a step; positive = simulated slower than measured"))
    rows = table("row", "group", "model", "GPUs", "measured", "simulated", "error", right="llllrrr")
    for one in found:
        gpus = f"{one.num_gpus} {one.gpu.split('-SXM')[0]}"
        rows.add_row(
            one.id, one.group, one.model, gpus, f"{one.measured_s:.2f}", f"{one.simulated_s:.2f}", f"{one.error:+.1%}"
        )
    screen.print(indented(rows))


def _print_groups(found: "Sequence[Comparison]") -> None:
    from simmoe.cli.screen import console, heading, indented, percent, table
    from simmoe.report.league import by_group, summarise

    screen = console()
    screen.print(heading("Error by source", "simulated / measured - 1; median to max of its size"))
    rows = table("group", "rows", "median", "mean", "P90", "max", "bias", right="lrrrrrr")
    summaries = [*by_group(found), summarise("all", found)]
    for summary in summaries:
        if summary is not None:
            sizes = (summary.median, summary.mean, summary.p90, summary.worst)
            rows.add_row(summary.name, str(summary.rows), *map(percent, sizes), f"{100 * summary.bias:+.1f} %")
    screen.print(indented(rows))


def _print_reasons(found: "Sequence[Comparison]") -> None:
    from simmoe.cli.screen import console, heading, indented, table
    from simmoe.report.league import reasons

    screen = console()
    titles = {"approximate": "Assumed or left out", "unsupported": "Not simulated", "failed": "Failed"}
    for status, title in titles.items():
        counted = reasons(found, status)  # type: ignore[arg-type]  # the keys above are statuses
        if counted:
            screen.print(heading(title, "rows"))
            rows = table("", "", right="rl")
            for reason, count in counted:
                rows.add_row(str(count), reason)
            screen.print(indented(rows))
