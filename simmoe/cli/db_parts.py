"""Find parts of the hardware database by kind and id, and write results, for the commands of `simmoe db`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simmoe.specs.base import Spec
    from simmoe.specs.catalog import Kind

KINDS: "tuple[Kind, ...]" = ("accelerator", "node", "link", "cluster", "software")


def known_kind(kind: str) -> "Kind":
    """The kind that a word means, also in the plural; `NotFoundError` if it means none."""
    from simmoe.errors import NotFoundError
    from simmoe.specs.suggest import near
    from simmoe.specs.text_file import one_line

    for one in KINDS:
        if kind in (one, f"{one}s"):
            return one
    close = near(kind, KINDS, most=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise NotFoundError(f"{one_line(repr(kind), 60)} is not a kind of part{hint}, choose one of {', '.join(KINDS)}")


def load(kind: str, id: str) -> Any:
    """The part of a kind and id."""
    from simmoe.specs import catalog

    return getattr(catalog, kind)(id)


def find(id: str) -> "list[tuple[str, Spec]]":
    """Every part of that id, of whatever kind; `NotFoundError` with the nearest ids if there is none."""
    from simmoe.errors import NotFoundError
    from simmoe.specs import catalog
    from simmoe.specs.suggest import near
    from simmoe.specs.text_file import one_line

    held = {kind: catalog.list_ids(kind) for kind in KINDS}
    found: list[tuple[str, Spec]] = [(kind, load(kind, id)) for kind in KINDS if id in held[kind]]
    if found:
        return found
    close = near(id, [one for ids in held.values() for one in ids])
    hint = f" (did you mean {', '.join(close)}?)" if close else ""
    shown = one_line(repr(id), 60)
    raise NotFoundError(f"{shown} is no part of the database{hint}, list them with: simmoe db list")


def facts_of(spec: "Spec") -> dict[str, Any]:
    """What a part says of itself besides numbers with sources; the parts it is made of by their ids."""
    from simmoe.specs.base import Spec

    facts: dict[str, Any] = {}
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        entries = value if isinstance(value, tuple) else (value,)
        if name in {"id", "efficiency"} or any(_has_numbers(entry) for entry in entries):
            continue
        if not any(isinstance(entry, Spec) for entry in entries):
            facts[name] = list(value) if isinstance(value, tuple) else value
            continue
        inner = [getattr(entry, "id", None) or facts_of(entry) for entry in entries if isinstance(entry, Spec)]
        facts[name] = inner if isinstance(value, tuple) else inner[0]
    return {name: value for name, value in facts.items() if value not in (None, "", [], {})}


def _has_numbers(entry: object) -> bool:
    """Whether something is a number with a source or a fit made of such, which are listed apart."""
    from simmoe.specs.base import Quantity, Spec

    if isinstance(entry, Quantity):
        return True
    inner = [getattr(entry, name) for name in type(entry).model_fields] if isinstance(entry, Spec) else []
    return not hasattr(entry, "id") and any(isinstance(value, Quantity) for value in inner)


def write_out(text: str, file: str) -> None:
    """Write a result whole to a file, or to the output where the file is ``-``."""
    if file == "-":
        sys.stdout.write(text)
        return
    from simmoe.report.output import replacing

    with replacing(Path(file)) as temporary:
        temporary.write_text(text, encoding="utf-8")
