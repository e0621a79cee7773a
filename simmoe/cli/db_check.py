"""``simmoe db check``: every file of the hardware database, and how many of its numbers are confirmed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simmoe.cli.db_parts import KINDS, load

if TYPE_CHECKING:
    from simmoe.specs.catalog import Kind
    from simmoe.specs.numbers import Number

CHECK_FAILED = 1


def check(
    unreviewed: Annotated[
        bool, typer.Option("--unreviewed", help="List the peaks, sizes and bandwidths that no second source confirms.")
    ] = False,
) -> None:
    """Check every file of the database, and a user's own; exits with 1 if one is wrong.

    Looked at: keys, units, kinds, spreads, fractions and sizes; sources and second sources; ids; files that nothing
    reads; the held-out errors of the fits.
    """
    problems, numbers, checked = examine()
    for problem in problems:
        typer.echo(problem, err=True)
    typer.echo(f"{checked} files checked, {len(problems)} problems.", err=bool(problems))
    if problems:
        raise typer.Exit(CHECK_FAILED)
    _print_reviews(numbers, unreviewed)


def examine() -> "tuple[list[str], list[Number], int]":
    """Every problem once, every number, and how many files were read."""
    problems: dict[str, None] = {}
    numbers: list[Number] = []
    checked = 0
    for found, read in _parts():
        checked += 1
        problems |= dict.fromkeys(found)
        numbers += read
    problems |= dict.fromkeys(_other_problems(numbers))
    return list(problems), numbers, checked


def _parts() -> "Iterator[tuple[list[str], list[Number]]]":
    """Problems and numbers of every part; on a terminal, a line on the error stream says which one is read."""
    from simmoe.cli.screen import console
    from simmoe.errors import SimmoeError, SpecError
    from simmoe.specs import catalog
    from simmoe.specs.numbers import numbers_of

    kinds: tuple[Kind, ...] = (*KINDS, "model")
    screen = console(stderr=True)
    with screen.status("Reading ...") as status:
        for kind in kinds:
            for id in catalog.list_ids(kind):
                status.update(f"Reading {kind} {id}")
                try:
                    part = load(kind, id)
                except SimmoeError as error:
                    yield list(error.problems) if isinstance(error, SpecError) else [str(error)], []
                    continue
                yield [], list(numbers_of(part, f"{kind} {id}"))


def _other_problems(numbers: "list[Number]") -> Iterator[str]:
    """What is wrong with numbers, sources, held-out errors and files that nothing reads."""
    from simmoe.errors import SimmoeError
    from simmoe.report.database import number_problems, source_problems
    from simmoe.specs import catalog
    from simmoe.specs.data_folders import hardware_roots
    from simmoe.specs.stray_files import stray_files

    known: dict[str, Any] = {}
    try:
        known = dict(catalog.sources())
    except SimmoeError as error:
        yield from str(error).splitlines()
    else:
        yield from source_problems(known)
        for number in numbers:
            yield from number_problems(number, known)
    yield from _residual_problems(known)
    accelerators = catalog.list_ids("accelerator")
    for root in hardware_roots():
        yield from stray_files(root, accelerators)


def _residual_problems(sources: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the held-out errors."""
    from simmoe.errors import SimmoeError
    from simmoe.specs import catalog
    from simmoe.specs.residuals_file import residuals
    from simmoe.specs.suggest import did_you_mean

    ids = [*catalog.list_ids("accelerator"), *catalog.list_ids("link"), *catalog.list_ids("software")]
    try:
        found = residuals()
    except SimmoeError as error:
        yield from str(error).splitlines()
        return
    for one in found:
        place = f"efficiency/residuals.csv: {one.part} {one.table} {one.variant}".rstrip()
        if one.part not in ids:
            yield f"{place}: no part has this id, {did_you_mean(one.part, ids)}"
        for name in one.sources:
            if name not in sources and name not in ids:
                yield f"{place}: {name!r} is neither in sources.yaml nor a part, correct it"


def _print_reviews(numbers: "list[Number]", listed: bool) -> None:
    """How many numbers of each class are confirmed, then those that are not."""
    from simmoe.cli.screen import console, heading, indented, table
    from simmoe.report.database import reviews
    from simmoe.report.numbers import nominal_class

    screen = console()
    screen.print()
    screen.print(heading("Confirmed by a second source", "a guess has none to confirm"))
    rows = table("", "all", "reviewed", "unreviewed", "guesses", right="lrrrr", grow="")
    for one in reviews(numbers):
        name = "all others" if one.name == "others" else f"{one.name}s"
        rows.add_row(name, *map(str, (one.total, one.reviewed, one.unreviewed, one.guesses)))
    screen.print(indented(rows))
    weak = [number for number in numbers if nominal_class(number) and not number.quantity.reviewed]
    if not listed:
        if weak:
            screen.print("simmoe db check --unreviewed lists the peaks, sizes and bandwidths among them.")
        return
    screen.print()
    screen.print(heading(f"Unreviewed peaks, sizes and bandwidths ({len(weak)})"))
    rows = table("part", "number", "value", "kind", "source", right="llrll", grow="source")
    for number in weak:
        quantity = number.quantity
        rows.add_row(number.part, number.name, quantity.text, quantity.kind.value, quantity.source)
    screen.print(indented(rows))
