"""``simmoe results``: look at what a sweep found."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from simmoe.report.ledger import Entry

app = typer.Typer(help="Look at the results of a sweep.", no_args_is_help=True)
_MOST_ROWS = 40
_SHOWN = ("step_time_s", "tokens_per_s", "mfu", "cost_usd_per_million_tokens", "peak_memory_bytes")
_Results = Annotated[Path, typer.Argument(metavar="RESULTS", help="What simmoe sweep wrote.", show_default=False)]


@app.command()
def show(results: _Results, status: Annotated[str, typer.Option(help="Only those.")] = "") -> None:
    """A line for each point, with the reasons of those that are not ok."""
    found = [entry for entry in _read(results) if not status or entry.status == status]
    _table(found[:_MOST_ROWS])
    if len(found) > _MOST_ROWS:
        typer.echo(
            f"{len(found) - _MOST_ROWS:,} more; see all of them with: simmoe results export {results} --csv FILE"
        )


@app.command()
def best(
    results: _Results,
    by: Annotated[str, typer.Option(help="Figure.")] = "tokens_per_s",
    top: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
) -> None:
    """The best points by a figure."""
    from simmoe.explore import results as explored

    _table(explored.best(_read(results), by, top), (by,))


@app.command()
def pareto(
    results: _Results,
    by: Annotated[list[str] | None, typer.Option("--by", help="Figure; at least two.", show_default=False)] = None,
) -> None:
    """The points that no other beats in all of some figures."""
    from simmoe.explore import results as explored

    names = by or ["step_time_s", "cost_usd_per_million_tokens"]
    _table(explored.pareto(_read(results), names), tuple(names))


@app.command()
def export(
    results: _Results,
    csv: Annotated[Path, typer.Option(metavar="FILE", help="Where to; - for the screen.", show_default=False)],
) -> None:
    """All points as a table, sorted by hash; equal results give equal bytes."""
    from simmoe.cli.output_check import check_writable
    from simmoe.cli.write_texts import write_texts
    from simmoe.report.ledger import ledger_csv
    from simmoe.report.output import csv_table

    if str(csv) != "-":
        check_writable(csv)
    header, rows = ledger_csv(_read(results))
    if not write_texts({str(csv): csv_table(header, rows)}):
        typer.echo(f"Wrote {len(rows):,} points to {csv}")


def _read(results: Path) -> "list[Entry]":
    from simmoe.report.ledger import Ledger

    with Ledger(results) as ledger:
        return list(ledger.entries())


def _table(entries: "Sequence[Entry]", first: tuple[str, ...] = ()) -> None:
    """Points by the keys that differ, and their figures."""
    from simmoe.cli.screen import console, indented, table
    from simmoe.explore.results import varied

    screen = console()
    if not entries:
        screen.print("No such points.")
        return
    keys = varied(entries)
    names = dict.fromkeys((*first, *_SHOWN))
    rows = table(*(key.rpartition(".")[2] for key in keys), *(_HEADS.get(name, name) for name in names), "", right="")
    for entry in entries:
        cells = [_text(entry.point.get(key)) for key in keys]
        cells += [_shown(name, entry.figures.get(name)) for name in names]
        rows.add_row(*cells, "" if entry.status == "ok" else f"{entry.status}: {entry.reason}")
    screen.print(indented(rows))


_HEADS = {
    "step_time_s": "step",
    "tokens_per_s": "tokens/s",
    "mfu": "MFU",
    "cost_usd_per_million_tokens": "USD/M tokens",
    "peak_memory_bytes": "GiB",
    "model_tflops_per_gpu": "TFLOP/s/GPU",
}


def _shown(name: str, value: object) -> str:
    from simmoe.cli.screen import count, gib, percent, seconds

    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    if name.endswith("_s") and name in {"step_time_s", "exposed_communication_s"}:
        return seconds(float(value))
    if name == "peak_memory_bytes":
        return gib(float(value))
    if name in {"mfu", "bubble_fraction"}:
        return percent(float(value))
    return count(float(value)) if abs(value) >= 1000 else f"{value:.4g}"


def _text(value: object) -> str:
    return "" if value is None else str(value)
