"""The hardware database looked at as a whole: what a number must satisfy, and how many a second source confirms."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from simmoe.report.numbers import NOMINAL, nominal_class
from simmoe.specs.base import Kind, Quantity
from simmoe.specs.numbers import Number
from simmoe.specs.suggest import did_you_mean
from simmoe.specs.text_file import one_line
from simmoe.units import format_si

JUDGEMENT = "simmoe-judgement"
INHERITED = "taken from "  # how the note of a number begins that `efficiency_of` took over
# Last word of a number's name and its unit -> the bounds beyond which it is a slip: bits for bytes, percent for a
# fraction, ms for us. Wide enough for any part sold or announced by 2026.
_BOUNDS: dict[tuple[str, str], tuple[float, float]] = {
    ("peak_flops", "FLOP/s"): (1e11, 1e17),
    ("memory", "B"): (2.0**28, 2.0**42),
    ("memory_bandwidth", "B/s"): (1e10, 1e14),
    ("l2_cache", "B"): (2.0**14, 2.0**33),
    ("sm_count", "1"): (1, 4096),
    ("tdp", "W"): (5, 1e4),
    ("price_per_hour", "USD/h"): (0.01, 1000),
    ("bandwidth", "B/s"): (1e7, 2e13),
    ("bus_bandwidth", "B/s"): (1e6, 4e13),
    ("peak_bus_bandwidth", "B/s"): (1e6, 4e13),
    ("latency", "s"): (0, 0.1),
    ("launch", "s"): (0, 0.01),
    ("sustained_clock", "1"): (0.2, 2),
    ("network_ports", "1"): (0, 256),
    ("elementwise_traffic", "1"): (0.1, 20),
    ("allocator_waste", "1"): (0, 1),
}
# Fractions without a unit and the most they can be: rates at boost clocks pass the printed peak by a little, a backward
# kernel may be better than the forward one it is measured by.
_FRACTIONS = {"compute": 1.1, "memory": 1.1, "sustained": 1.1, "achievable": 1.0, "backward": 1.5, "wgrad": 1.5}


def number_problems(number: Number, sources: Mapping[str, Any]) -> list[str]:
    """A sentence for everything that is wrong with one number.

    Parameters
    ----------
    number : Number
    sources : mapping of str to Source
        `simmoe.specs.catalog.sources`.

    Returns
    -------
    list of str
        Each ``part: place: what is wrong, what to do``; empty if nothing is.
    """
    quantity = number.quantity
    if quantity.note.startswith(INHERITED):  # told of the part that has it
        return []
    found = [*_source_problems(quantity, sources), *_spread_problems(quantity), *_range_problems(number)]
    return [f"{number.path}: {sentence}" for sentence in found]


def _source_problems(quantity: Quantity, sources: Mapping[str, Any]) -> Iterator[str]:
    for field in ("source", "reviewed"):
        name = getattr(quantity, field)
        if name and name not in sources:
            yield f"{field} {one_line(name)!r} is not in sources.yaml, add it there"
    if not quantity.source:
        yield f"source is empty, name one; a guess without any basis cites {JUDGEMENT}"
    if quantity.reviewed and quantity.reviewed == quantity.source:
        yield f"reviewed is the source itself ({quantity.source}), name a second source or remove it"
    if JUDGEMENT in {quantity.source, quantity.reviewed} and quantity.kind is not Kind.GUESS:
        yield f"a number of kind {quantity.kind} cites {JUDGEMENT}, name its source or call it a guess"


def _spread_problems(quantity: Quantity) -> Iterator[str]:
    spread = quantity.spread
    if spread is not None and not 0 < spread <= 1:
        yield f"spread must be above 0 and at most 1 (got {spread:g}), write 0.05 for 5 %"


def _range_problems(number: Number) -> Iterator[str]:
    quantity = number.quantity
    words = number.name.split(".")
    name = "peak_flops" if words[0] == "peak_flops" else words[-1]
    most = _FRACTIONS.get(name) if quantity.unit == "1" else None
    if most is not None and not 0 < quantity.value <= most:
        yield f"must be above 0 and at most {most:g} (got {quantity.text}), write 0.8 for 80 %"
    low, high = _BOUNDS.get((name, quantity.unit), (0.0, float("inf")))
    if not low <= quantity.value <= high:
        limits = " to ".join(
            format_si(bound, quantity.unit) if quantity.unit != "1" else f"{bound:g}" for bound in (low, high)
        )
        yield f"{quantity.text} is outside {limits}, check the value and its unit"


def source_problems(sources: Mapping[str, Any]) -> list[str]:
    """A sentence for each entry of ``sources.yaml`` that a reader could not follow.

    Parameters
    ----------
    sources : mapping of str to Source
    """
    kinds = [kind.value for kind in Kind]
    found = []
    for name, source in sources.items():
        if not source.title.strip():
            found.append(f"sources.yaml: {name}: title is empty, write one")
        if source.kind and source.kind not in kinds:
            found.append(f"sources.yaml: {name}: kind {source.kind!r} is not known, {did_you_mean(source.kind, kinds)}")
        if source.url and not source.url.startswith(("https://", "http://")):
            found.append(f"sources.yaml: {name}: url {one_line(source.url)!r} is no address, begin it with https://")
    return found


class Reviews(NamedTuple):
    """How many numbers of a class a second source confirms.

    Attributes
    ----------
    name : str
        One of `simmoe.report.evidence.NOMINAL`, or ``others``.
    reviewed, unreviewed, guesses : int
        They add up to all: confirmed by a second source, by one source only, by none.
    """

    name: str
    reviewed: int
    unreviewed: int
    guesses: int

    @property
    def total(self) -> int:
        """All numbers of the class."""
        return self.reviewed + self.unreviewed + self.guesses


def reviews(numbers: Iterable[Number]) -> list[Reviews]:
    """How many numbers are confirmed, class by class.

    Parameters
    ----------
    numbers : iterable of Number
        What an accelerator takes over from another one is not counted again.

    Returns
    -------
    list of Reviews
        In the order of `NOMINAL`, then ``others``.
    """
    counts = {name: [0, 0, 0] for name in (*NOMINAL, "others")}
    for number in numbers:
        if not number.quantity.note.startswith(INHERITED):
            counts[nominal_class(number) or "others"][_state(number.quantity)] += 1
    return [Reviews(name, *count) for name, count in counts.items()]


def _state(quantity: Quantity) -> int:
    """0 reviewed, 1 unreviewed, 2 a guess."""
    if quantity.kind is Kind.GUESS:
        return 2
    return 0 if quantity.reviewed else 1
