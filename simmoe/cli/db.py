"""``simmoe db``: look into the hardware database, check it, add to it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simmoe.cli.db_check import check
from simmoe.cli.db_fit_report import fit_report
from simmoe.cli.db_new import new
from simmoe.cli.db_parts import KINDS, facts_of, find, known_kind, load
from simmoe.cli.db_roofline import roofline
from simmoe.cli.options import AsJson

if TYPE_CHECKING:
    from simmoe.specs.base import Spec
    from simmoe.specs.catalog import Kind

_WIDE = 100  # columns: below that a list leaves out names

app = typer.Typer(help="Look into the hardware database: every number with its source.", no_args_is_help=True)


@app.command("list")
def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}; all if left out.", show_default=False),
    ] = None,
) -> None:
    """List what the database holds."""
    from simmoe.cli.screen import console, heading, indented
    from simmoe.specs import catalog

    screen = console()
    if kind is None:
        for one in KINDS:
            ids = catalog.list_ids(one)
            screen.print(heading(one, f"{len(ids)}"))
            screen.print(indented(", ".join(ids)))
        screen.print("simmoe db list KIND says more, simmoe db show ID everything.")
        return
    screen.print(_listing(known_kind(kind), with_names=screen.width >= _WIDE))


def _listing(kind: "Kind", *, with_names: bool) -> Any:
    """One line a part, with the numbers that tell parts of a kind apart."""
    from simmoe.cli.db_tables import LISTINGS
    from simmoe.cli.screen import table
    from simmoe.specs import catalog

    columns, align, cells = LISTINGS[kind]
    names = ("name",) if with_names else ()
    rows = table("id", *names, *columns, right="l" * (1 + len(names)) + align, grow="name" if names else "id")
    for id in catalog.list_ids(kind):
        part = load(kind, id)
        rows.add_row(id, *(part.name for _ in names), *cells(part))
    return rows


@app.command(short_help="Show every number of a part with its source.")
def show(
    id: Annotated[str, typer.Argument(help="Id of a part, as simmoe db list prints it.", show_default=False)],
    json: AsJson = False,
) -> None:
    """Show every number of a part: value, source, how firm it is, who confirms it or says otherwise."""
    from simmoe.cli.db_tables import print_part, print_sources
    from simmoe.specs import catalog
    from simmoe.specs.numbers import numbers_of

    parts = find(id)
    if json:
        import json as json_module

        found = [_entry(kind, id, part) for kind, part in parts]
        shown = found[0] if len(found) == 1 else found
        typer.echo(json_module.dumps(shown, indent=2, allow_nan=False))
        return
    for kind, part in parts:
        numbers = list(numbers_of(part, f"{kind} {id}"))
        keys = print_part(kind, id, facts_of(part), numbers)
        print_sources(keys, catalog.sources())


def _entry(kind: str, id: str, part: "Spec") -> dict[str, Any]:
    """A part as plain data."""
    from simmoe.report.numbers import number_entry
    from simmoe.specs import catalog
    from simmoe.specs.numbers import numbers_of

    sources = catalog.sources()
    numbers = list(numbers_of(part, f"{kind} {id}"))
    named = dict.fromkeys(name for number in numbers for name in (number.quantity.source, number.quantity.reviewed))
    return {
        "kind": kind,
        "id": id,
        "facts": facts_of(part),
        "numbers": [number_entry(number) for number in numbers],
        "sources": {name: sources[name].model_dump() for name in named if name in sources},
    }


app.command(short_help="Check every file of the database.")(check)
app.command(short_help="Write a commented template for a part of your own.")(new)
app.command(short_help="Compare accelerators: attainable FLOP/s against arithmetic intensity.")(roofline)
app.command("fit-report", short_help="Count the fitted parameters, and say how well they do.")(fit_report)
