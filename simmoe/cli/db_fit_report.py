"""``simmoe db fit-report``: how many parameters are fitted, how firm they are, and how well they do."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from simmoe.cli.db_parts import find, load, write_out
from simmoe.cli.options import JsonFile

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from simmoe.report.fit_report import TableFit
    from simmoe.specs.residuals_file import Residual


def fit_report(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID...]",
            help="Accelerators, links or software stacks, each fit with its errors; all in short if left out.",
            show_default=False,
        ),
    ] = None,
    json: JsonFile = None,
    csv_file: Annotated[
        str | None,
        typer.Option("--csv", metavar="FILE", help="Write it as CSV, - for the output.", show_default=False),
    ] = None,
) -> None:
    """Count the fitted parameters of accelerators, links and software stacks, and say how well they do."""
    fits = _fits(ids or [])
    if json is not None:
        _write(_json_text(fits), json)
    if csv_file is not None:
        _write(_csv_text(fits), csv_file)
    if json is not None or csv_file is not None:
        return
    from simmoe.cli.screen import console

    screen = console()
    (_print_in_full if ids else _print_short)(screen, fits)
    _print_totals(screen, fits)


def _fits(ids: Sequence[str]) -> "list[TableFit]":
    from simmoe.errors import NotFoundError
    from simmoe.report.fit_report import FITTED, table_fits
    from simmoe.specs import catalog
    from simmoe.specs.residuals_file import residuals

    known = residuals()
    if not ids:
        named = [(kind, id) for kind in FITTED for id in catalog.list_ids(kind)]
        return [fit for kind, id in named for fit in table_fits(kind, load(kind, id), id, known)]
    fits = []
    for id in dict.fromkeys(ids):
        found = [fit for kind, part in find(id) for fit in table_fits(kind, part, id, known)]
        if not found:
            raise NotFoundError(f"{id!r} has no fitted parameters, name an accelerator, a link or a software stack")
        fits += found
    return fits


# ---------------------------------------------------------------- to files


def _write(text: str, file: str) -> None:
    write_out(text, file)
    if file != "-":
        typer.echo(f"Wrote {file}", err=True)


def _json_text(fits: "Sequence[TableFit]") -> str:
    import json as json_module

    from simmoe.report.fit_report import fit_entry, totals

    whole = {"tables": [fit_entry(fit) for fit in fits], "totals": totals(fits)}
    return json_module.dumps(whole, indent=2, allow_nan=False) + "\n"


def _csv_text(fits: "Sequence[TableFit]") -> str:
    from simmoe.report.fit_report import csv_rows

    rows = csv_rows(fits)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


# ---------------------------------------------------------------- to people

_TABLES = {"gemm": "gemm", "attention": "attention", "grouped_gemm": "experts", "memory_bound": "memory"}
_COLLECTIVES = {
    "wire": "wire",
    "all_reduce": "reduce",
    "all_gather": "gather",
    "reduce_scatter": "scatter",
    "all_to_all": "to all",
    "send_recv": "send",
    "exchanges": "exch.",
}
_KINDS = ("measured", "derived", "guess")
_WIDE = 100  # columns of a screen that have room for every collective
_LEAST = 14  # columns of a name, which may be broken


def _print_short(screen: "Console", fits: "Sequence[TableFit]") -> None:
    """A line for each part: its free parameters, table by table, with the held-out error where one is known."""
    from simmoe.cli.screen import heading, indented

    remark = (
        "free parameters, and the largest median error of a variant on measurements that were not fitted; "
        "m/d/g: measured, derived, guess"
    )
    for kind, title, tables in (
        ("accelerator", "Kernels of accelerators", _TABLES),
        ("link", "Wires, collectives and expert exchanges of links", _COLLECTIVES),
        ("software", "Software stacks", {}),
    ):
        mine = [fit for fit in fits if fit.kind == kind]
        shown = list(dict.fromkeys(fit.part for fit in mine if fit.free and (kind != "link" or fit.table != "wire")))
        screen.print(heading(title, remark if kind == "accelerator" else ""))
        columns = tables if kind != "link" or screen.width >= _WIDE else {}
        screen.print(indented(_rows(kind, columns, [[fit for fit in mine if fit.part == id] for id in shown])))
        screen.print(indented(_rest(kind, [fit for fit in mine if fit.part not in shown])))
        screen.print()


def _rows(kind: str, tables: dict[str, str], parts: "list[list[TableFit]]") -> "Table":
    from simmoe.cli.screen import table

    last = {"link": ("error",), "software": ("switches",)}.get(kind, ())
    headings = ("free", *tables.values(), *last, "m/d/g")
    rows = table(kind, *headings, right="l" + "r" * len(headings), grow=kind)
    rows.columns[0].min_width = _LEAST
    for fits in parts:
        by_table = {fit.table: fit for fit in fits}
        cells = [_free(by_table[name], kind) if name in by_table else "" for name in tables]
        cells += [str(fits[0].switches)] if kind == "software" else []
        cells += [_errors(by_table["all"].held_out) if "all" in by_table else ""] if kind == "link" else []
        cells.append(_firmness(fits))
        rows.add_row(fits[0].part, str(sum(fit.free for fit in fits)), *cells)
    return rows


def _firmness(fits: "Sequence[TableFit]") -> str:
    """How many of the free parameters are measured, derived and guessed."""
    return "/".join(str(sum(getattr(fit, name) for fit in fits)) for name in _KINDS)


def _free(fit: "TableFit", kind: str) -> str:
    error = _errors(fit.held_out, worst=True) if kind == "accelerator" else ""
    return f"{fit.free or '-'} {error}".rstrip()


def _rest(kind: str, fits: "Sequence[TableFit]") -> str:
    """The parts without a line of their own."""
    if kind == "link":
        free = sum(fit.free for fit in fits)
        names = ", ".join(dict.fromkeys(fit.part for fit in fits))
        return f"Latency and achievable fraction alone, {free} parameters: {names}" if fits else ""
    heirs: dict[str, list[str]] = {}
    for fit in fits:
        heirs.setdefault(fit.inherited_from, []).append(fit.part)
    lines = [f"As {parent}: {', '.join(dict.fromkeys(parts))}" for parent, parts in heirs.items()]
    return "\n".join(lines)


def _errors(residuals: "Iterable[Residual]", *, worst: bool = False) -> str:
    """Median errors of several fits, from the best to the worst; or the worst alone."""
    medians = sorted(one.median_error for one in residuals)
    if not medians:
        return ""
    low, high = f"{100 * medians[0]:.1f}", f"{100 * medians[-1]:.1f}"
    return f"{high}%" if low == high or worst else f"{low}-{high}%"


def _print_in_full(screen: "Console", fits: "Sequence[TableFit]") -> None:
    """A block for each part, a line for each of its tables, then every error that is known."""
    from simmoe.cli.screen import heading, indented, table

    for id in dict.fromkeys(fit.part for fit in fits):
        mine = [fit for fit in fits if fit.part == id]
        parents = ", ".join(dict.fromkeys(fit.inherited_from for fit in mine if fit.inherited_from))
        screen.print(heading(f"{mine[0].kind} {id}", f"as {parents} where it has none of its own" if parents else ""))
        names = ("all", "free", "m/d/g", "spread", "held out", "crossed")
        rows = table("", *names, right="l" + "r" * len(names), grow="none may be broken")
        for fit in mine:
            spread = "" if fit.spread is None else f"{fit.spread:.0%}"
            counts = (str(fit.parameters), str(fit.free), _firmness([fit]))
            rows.add_row(fit.table, *counts, spread, _errors(fit.held_out), _errors(fit.across))
        screen.print(indented(rows))
        if mine[0].switches:
            screen.print(indented(f"{mine[0].switches} switches: choices that are no numbers"))
        cited = dict.fromkeys(source for fit in mine for source in fit.sources)
        screen.print(indented(f"from {', '.join(cited)}"))
        if any(fit.across for fit in mine):
            screen.print(indented("crossed: fitted to one source, tested on another"))
        _print_residuals(screen, [one for fit in mine for one in fit.residuals])
        screen.print()


def _print_residuals(screen: "Console", residuals: "Sequence[Residual]") -> None:
    from simmoe.cli.screen import indented, table

    if not residuals:
        screen.print(indented("No held-out errors are known."))
        return
    names = ("rows", "tested", "median", "p90", "bias")
    for source in dict.fromkeys(one.source for one in residuals):
        fitted, arrow, tested = source.partition(" -> ")
        screen.print(indented(f"fitted to {fitted}, tested on {tested}:" if arrow else f"tested on {source}:"))
        rows = table("table", "variant", *names, right="ll" + "r" * len(names), grow="variant")
        for one in residuals:
            errors = (f"{100 * one.median_error:.1f}%", f"{100 * one.p90_error:.1f}%", f"{100 * one.bias:+.1f}%")
            if one.source == source:
                rows.add_row(one.table, one.variant, str(one.rows), str(one.held_out_rows), *errors)
        screen.print(indented(indented(rows)))


def _print_totals(screen: "Console", fits: "Sequence[TableFit]") -> None:
    from simmoe.cli.screen import heading, indented, table
    from simmoe.report.fit_report import totals

    remark = "free: not taken over from another part, and a value that stands for several variants once"
    screen.print(heading("In all", remark))
    names = ("parts", "numbers", "free", *_KINDS, "printed", "tested")
    rows = table("kind", *names, right="l" + "r" * len(names))
    sums_of = {kind: sums for kind, sums in totals(fits).items() if sums["parts"]}
    for kind, sums in sums_of.items():
        if kind != "all" or len(sums_of) > 2:
            rows.add_row(kind, *(f"{value:,}" for value in sums.values()))
    screen.print(indented(rows))
