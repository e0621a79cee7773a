"""How firm the numbers of the hardware database are."""

from typing import Any

from simmoe.specs.base import Kind
from simmoe.specs.numbers import Number

# What every estimate starts from; a second public source exists for nearly all of them.
NOMINAL = ("peak", "memory size", "memory bandwidth", "link bandwidth")


def nominal_class(number: Number) -> str | None:
    """The one of `NOMINAL` that a number is, None for any other.

    Examples
    --------
    >>> from simmoe.specs.base import Quantity
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
