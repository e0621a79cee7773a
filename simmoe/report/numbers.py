"""Numbers of the hardware database, each with its place, and how firm they are."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from simmoe.specs.base import Kind, Quantity, Spec

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


# What every estimate starts from; a second public source exists for nearly all of them.
NOMINAL = ("peak", "memory size", "memory bandwidth", "link bandwidth")


def nominal_class(number: Number) -> str | None:
    """The one of `NOMINAL` that a number is, None for any other.

    Examples
    --------
    >>> quantity = Quantity(value=1e12, unit="FLOP/s", text="1 TFLOP/s", source="doctest", kind="guess")
    >>> nominal_class(Number("accelerator x", "peak_flops.bf16", quantity))
    'peak'
    >>> nominal_class(Number("accelerator x", "tdp", quantity)) is None
    True
    """
    kind = number.part.split(" ", 1)[0]
    if kind == "accelerator" and number.name.startswith("peak_flops."):
        return "peak"
    known = {
        ("accelerator", "memory"): "memory size",
        ("accelerator", "memory_bandwidth"): "memory bandwidth",
        ("link", "bandwidth"): "link bandwidth",
    }
    return known.get((kind, number.name))


def guesses(numbers: tuple[Number, ...]) -> tuple[Number, ...]:
    """The numbers that somebody made up for want of a source."""
    return tuple(number for number in numbers if number.quantity.kind is Kind.GUESS)


def unreviewed(numbers: tuple[Number, ...]) -> tuple[Number, ...]:
    """The numbers with a source that no second source confirms; a guess is not among them."""
    return tuple(n for n in numbers if n.quantity.kind is not Kind.GUESS and not n.quantity.reviewed)


def number_entry(number: Number) -> dict[str, Any]:
    """One number with everything its file says of it."""
    quantity = number.quantity
    return {
        "part": number.part,
        "name": number.name,
        "value": quantity.value,
        "unit": quantity.unit,
        "text": quantity.text,
        "kind": quantity.kind.value,
        "source": quantity.source,
        "locator": quantity.locator,
        "spread": quantity.spread,
        "reviewed": quantity.reviewed,
        "note": quantity.note,
        "alternatives": list(quantity.alternatives),
    }
