"""``simmoe db``: look into the hardware database, and check it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simmoe.cli.options import AsJson

if TYPE_CHECKING:
    from simmoe.specs.base import Spec
    from simmoe.specs.catalog import Kind

app = typer.Typer(help="Look into the hardware database: every number with its source.", no_args_is_help=True)
KINDS: "tuple[Kind, ...]" = ("accelerator", "node", "link", "cluster", "software")
CHECK_FAILED = 1


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
    screen.print(_listing(_known_kind(kind)))


def _known_kind(kind: str) -> "Kind":
    """The kind, also when written in the plural."""
    from simmoe.errors import NotFoundError

    for one in KINDS:
        if kind in (one, f"{one}s"):
            return one
    raise NotFoundError(f"{kind!r} is not a kind of part, choose one of {', '.join(KINDS)}")


def _load(kind: str, id: str) -> Any:
    from simmoe.specs import catalog

    return getattr(catalog, kind)(id)


def _listing(kind: "Kind") -> Any:
    """One line a part, with the numbers that tell parts of a kind apart."""
    from simmoe.cli.db_tables import LISTINGS
    from simmoe.cli.screen import table
    from simmoe.specs import catalog

    columns, align, cells = LISTINGS[kind]
    rows = table("id", "name", *columns, right="ll" + align, grow="name")
    for id in catalog.list_ids(kind):
        part = _load(kind, id)
        rows.add_row(id, part.name, *cells(part))
    return rows


@app.command(short_help="Show every number of a part with its source.")
def show(
    id: Annotated[str, typer.Argument(help="Id of a part, as simmoe db list prints it.", show_default=False)],
    json: AsJson = False,
) -> None:
    """Show every number of a part: value, source, how firm it is, who confirms it."""
    from simmoe.cli.db_tables import print_part
    from simmoe.report.evidence import numbers_of
    from simmoe.report.manifest import number_entry

    parts = _find(id)
    if json:
        import json as json_module

        found = [
            {
                "kind": kind,
                "id": id,
                "facts": facts_of(part),
                "numbers": [number_entry(number) for number in numbers_of(part, f"{kind} {id}")],
            }
            for kind, part in parts
        ]
        shown = found[0] if len(found) == 1 else found
        typer.echo(json_module.dumps(shown, indent=2, allow_nan=False))
        return
    for kind, part in parts:
        print_part(kind, id, facts_of(part), list(numbers_of(part, kind)))


def _find(id: str) -> "list[tuple[str, Spec]]":
    """Every part of that id, of whatever kind."""
    from simmoe.errors import NotFoundError
    from simmoe.specs import catalog
    from simmoe.specs.suggest import near

    held = {kind: catalog.list_ids(kind) for kind in KINDS}
    found: list[tuple[str, Spec]] = [(kind, _load(kind, id)) for kind in KINDS if id in held[kind]]
    if found:
        return found
    close = near(id, [one for ids in held.values() for one in ids])
    hint = f" (did you mean {', '.join(close)}?)" if close else ""
    raise NotFoundError(f"{id!r} is no part of the database{hint}, list them with: simmoe db list")


def facts_of(spec: "Spec") -> dict[str, Any]:
    """What a part says of itself besides numbers with sources; the parts it is made of by their ids."""
    from simmoe.specs.base import Quantity, Spec

    facts: dict[str, Any] = {}
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        entries = value if isinstance(value, tuple) else (value,)
        if name in {"id", "efficiency"} or any(isinstance(entry, Quantity) for entry in entries):
            continue
        if not any(isinstance(entry, Spec) for entry in entries):
            facts[name] = list(value) if isinstance(value, tuple) else value
            continue
        inner = [getattr(entry, "id", None) or facts_of(entry) for entry in entries if isinstance(entry, Spec)]
        facts[name] = inner if isinstance(value, tuple) else inner[0]
    return {name: value for name, value in facts.items() if value not in (None, "", [], {})}


@app.command(short_help="Check every file of the database.")
def check() -> None:
    """Check every file of the database, and a user's own; exits with 1 if one is wrong."""
    from simmoe.errors import SimmoeError, SpecError
    from simmoe.report.evidence import numbers_of
    from simmoe.specs import catalog

    problems: dict[str, None] = {}
    checked = 0
    known: dict[str, Any] = {}
    try:
        known = dict(catalog.sources())
    except SimmoeError as error:
        problems |= dict.fromkeys(str(error).splitlines())
    for kind in (*KINDS, "model"):
        for id in catalog.list_ids(kind):
            checked += 1
            try:
                part = _load(kind, id)
            except SpecError as error:
                problems |= dict.fromkeys(error.problems)
                continue
            for number in numbers_of(part, f"{kind} {id}"):
                problems |= dict.fromkeys(_unknown_sources(number.path, number.quantity, known))
    for problem in problems:
        typer.echo(problem, err=True)
    typer.echo(f"{checked} files checked, {len(problems)} problems.", err=bool(problems))
    if problems:
        raise typer.Exit(CHECK_FAILED)


def _unknown_sources(path: str, quantity: Any, known: dict[str, Any]) -> list[str]:
    """A sentence for each source of a number that sources.yaml does not know."""
    named = [("source", quantity.source), ("reviewed", quantity.reviewed)]
    return [
        f"{path}: {field} {name!r} is not in sources.yaml, add it there"
        for field, name in named
        if name and name not in known
    ]
