"""Numbers of the parts of the hardware database, each with its place, and parts with other numbers in these places."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from simmoe.specs.base import Quantity, Spec

S = TypeVar("S", bound=Spec)

# What names an entry of a list of fits.
_LABELS = ("collective", "dtype", "kernel", "operator", "library", "head_dim", "ranks")


class Number(NamedTuple):
    """One number of a part.

    Attributes
    ----------
    part : str
        Kind and id, such as ``link nvlink-4``.
    name : str
        Its place in the part, such as ``collectives[all_reduce 8].latency``.
    quantity : Quantity
        The number with its source.
    """

    part: str
    name: str
    quantity: Quantity

    @property
    def path(self) -> str:
        """Part and place."""
        return f"{self.part}: {self.name}"


def numbers_of(spec: Spec, part: str, prefix: str = "") -> Iterator[Number]:
    """Every number of a spec in the order of its fields, without those of the parts it names by id.

    Parameters
    ----------
    spec : Spec
    part : str
        Kind and id of the part that `spec` is, or belongs to.
    prefix : str
        Where in the part `spec` stands.
    """
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        entries = value if isinstance(value, tuple) else (value,)
        for entry in entries:
            place = f"{prefix}{name}"
            if isinstance(entry, Quantity):
                yield Number(part, place, entry)
            elif isinstance(entry, Spec) and not hasattr(entry, "id"):
                yield from numbers_of(entry, part, f"{place}{label(entry)}.")


def label(entry: Spec) -> str:
    """The names of a list's entry in brackets, empty for what is no entry of a list."""
    words = [str(getattr(entry, key)) for key in _LABELS if hasattr(entry, key)]
    return f"[{' '.join(words)}]" if words else ""


def with_numbers(spec: S, new: Mapping[str, Quantity], prefix: str = "") -> S:
    """A part with other numbers in some places; itself if nothing changes.

    Parameters
    ----------
    spec : Spec
    new : mapping of str to Quantity
        By the names that `numbers_of` gives.
    prefix : str
        Where in the part `spec` stands.
    """
    update: dict[str, Any] = {}
    touched = {re.split(r"[.\[]", name[len(prefix) :], maxsplit=1)[0] for name in new}
    for name in touched & type(spec).model_fields.keys():
        value = getattr(spec, name)
        if isinstance(value, tuple):
            entries = tuple(_changed(entry, new, f"{prefix}{name}") for entry in value)
            if any(entry is not old for entry, old in zip(entries, value, strict=True)):
                update[name] = entries
        elif (entry := _changed(value, new, f"{prefix}{name}")) is not value:
            update[name] = entry
    return spec.model_copy(update=update) if update else spec


def _changed(entry: Any, new: Mapping[str, Quantity], place: str) -> Any:
    """One value of a field, or one entry of a list, with its new numbers."""
    if isinstance(entry, Quantity):
        return new.get(place, entry)
    if isinstance(entry, Spec) and not hasattr(entry, "id"):
        inside = f"{place}{label(entry)}."
        own = {name: quantity for name, quantity in new.items() if name.startswith(inside)}
        return with_numbers(entry, own, inside) if own else entry
    return entry
