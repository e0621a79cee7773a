"""The results of a sweep: sorted, filtered, the best and those that no other beats."""

from collections.abc import Iterable, Sequence

from simmoe.errors import SpecError
from simmoe.explore.sweep import OK
from simmoe.report.ledger import Entry
from simmoe.specs.suggest import did_you_mean

SMALLER_IS_BETTER = frozenset(
    {
        "step_time_s",
        "bubble_fraction",
        "exposed_communication_s",
        "peak_memory_bytes",
        "devices",
        "cost_usd_per_million_tokens",
        "energy_kwh_per_million_tokens",
    }
)


def usable(entries: Iterable[Entry], names: Sequence[str]) -> list[Entry]:
    """Results that are ok and have a number for every figure.

    Parameters
    ----------
    entries : iterable of Entry
    names : sequence of str
        Of figures.

    Raises
    ------
    SpecError
        If there is no such figure in any of them.
    """
    found = [entry for entry in entries if entry.status == OK]
    known = dict.fromkeys(name for entry in found for name in entry.figures)
    for name in names:
        if found and name not in known:
            raise SpecError([f"{name}: no figure of these results, {did_you_mean(name, known)}"])
    return [entry for entry in found if all(isinstance(entry.figures.get(name), int | float) for name in names)]


def best(entries: Iterable[Entry], name: str, top: int) -> list[Entry]:
    """The best results by a figure, equal ones by hash.

    Parameters
    ----------
    entries : iterable of Entry
    name : str
    top : int
    """
    return sorted(usable(entries, [name]), key=lambda entry: (_cost(entry, name), entry.hash))[:top]


def pareto(entries: Iterable[Entry], names: Sequence[str]) -> list[Entry]:
    """Results of which no other is at least as good in all figures and better in one, best in the first figure first.

    Parameters
    ----------
    entries : iterable of Entry
    names : sequence of str
        At least one figure.
    """
    ordered = sorted(usable(entries, names), key=lambda entry: (*(_cost(entry, name) for name in names), entry.hash))
    kept: list[Entry] = []
    for entry in ordered:
        own = [_cost(entry, name) for name in names]
        if not any(_beats([_cost(other, name) for name in names], own) for other in kept):
            kept.append(entry)
    return kept


def _beats(other: Sequence[float], own: Sequence[float]) -> bool:
    """At least as good in all, and better in one."""
    return all(a <= b for a, b in zip(other, own, strict=True)) and any(a < b for a, b in zip(other, own, strict=True))


def _cost(entry: Entry, name: str) -> float:
    """The figure so that less is better."""
    value = float(entry.figures[name])
    return value if name in SMALLER_IS_BETTER else -value


def varied(entries: Sequence[Entry]) -> list[str]:
    """Keys whose values differ between results, or are missing in some.

    Parameters
    ----------
    entries : sequence of Entry
    """
    keys = dict.fromkeys(key for entry in entries for key in entry.point)
    return [key for key in keys if len({repr(entry.point.get(key)) for entry in entries}) > 1]
