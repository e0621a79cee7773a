"""How parts of the hardware database look on screen."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from simmoe.cli.screen import console, heading, indented, table
from simmoe.specs.base import Kind
from simmoe.specs.hardware import Accelerator, Cluster, Link, Node
from simmoe.specs.numbers import Number
from simmoe.specs.software import SoftwareStack

_WIDE = 120  # columns


def _accelerator(part: Accelerator) -> tuple[str, ...]:
    best = part.peak_flops.bf16 or part.peak_flops.fp16 or part.peak_flops.fp32
    dtype = next((name for name in ("bf16", "fp16", "fp32") if getattr(part.peak_flops, name) is best), "")
    peak = f"{best.text} {dtype}" if best is not None else ""
    return peak, part.memory.text, part.memory_bandwidth.text, part.tdp.text


def _link(part: Link) -> tuple[str, ...]:
    return part.kind.replace("_", "-"), part.bandwidth.text, part.latency.text, f"{part.achievable.value:.0%}"


def _node(part: Node) -> tuple[str, ...]:
    scale_up = part.scale_up
    return f"{part.accelerators} x {part.accelerator.id}", scale_up.link.id, str(scale_up.domain)


def _cluster(part: Cluster) -> tuple[str, ...]:
    groups = " + ".join(f"{group.count} x {group.node.id}" for group in part.groups)
    return groups, part.fabric.link.id, str(part.devices)


def _software(part: SoftwareStack) -> tuple[str, ...]:
    return part.date, part.attention


# Kind -> headings, alignment, cells.
LISTINGS: dict[str, tuple[tuple[str, ...], str, Callable[[Any], tuple[str, ...]]]] = {
    "accelerator": (("peak", "memory", "bandwidth", "power"), "rrrr", _accelerator),
    "link": (("kind", "bandwidth", "latency", "reached"), "lrrr", _link),
    "node": (("accelerators", "joined by", "domain"), "llr", _node),
    "cluster": (("nodes", "fabric", "GPUs"), "llr", _cluster),
    "software": (("date", "attention"), "ll", _software),
}


def print_part(kind: str, id: str, facts: dict[str, Any], numbers: Sequence[Number]) -> dict[str, int]:
    """Print the facts of a part, then each of its numbers with its source as a number in brackets.

    Parameters
    ----------
    kind, id : str
    facts : dict
        What is no number with a source.
    numbers : sequence of Number

    Returns
    -------
    dict
        Key of ``sources.yaml`` -> its number in brackets, for `print_sources`.
    """
    screen = console()
    screen.print(heading(f"{kind} {id}", facts.get("name", "")))
    for name, value in facts.items():
        if name != "name":
            screen.print(indented(f"{name}: {plain(value)}"))
    keys: dict[str, int] = {}
    for number in numbers:
        for source in (number.quantity.source, number.quantity.reviewed):
            if source:
                keys.setdefault(source, len(keys) + 1)
    if numbers:
        screen.print()
        (_print_wide if screen.width >= _WIDE else _print_narrow)(screen, numbers, keys)
    return keys


def _cells(number: Number) -> tuple[str, str, str, str]:
    """Name, value, kind and spread."""
    quantity = number.quantity
    spread = "" if quantity.spread is None else f"{quantity.spread:.1%}".replace(".0%", "%")
    name = number.name.removeprefix("efficiency.").removeprefix("collectives")
    return name, quantity.text, quantity.kind.value, spread


def _print_wide(screen: Console, numbers: Sequence[Number], keys: dict[str, int]) -> None:
    """Numbers with what supports them in the last column."""
    rows = table("number", "value", "kind", "spread", "source, place, second source", right="lrlrl")
    for number in numbers:
        rows.add_row(*_cells(number), _origin(number, keys))
    screen.print(indented(rows))


def _print_narrow(screen: Console, numbers: Sequence[Number], keys: dict[str, int]) -> None:
    """Numbers with what supports them in a line below, in grey."""
    cells = [_cells(number) for number in numbers]
    wide = [max(len(row[column]) for row in cells) for column in range(4)]
    for number, (name, value, kind, spread) in zip(numbers, cells, strict=True):
        line = f"{name:<{wide[0]}}  {value:>{wide[1]}}  {kind:<{wide[2]}}  {spread:>{wide[3]}}"
        screen.print(indented(line.rstrip()))
        screen.print(Padding(Text(_origin(number, keys), style="dim"), (0, 0, 0, 6), expand=False))


def _origin(number: Number, keys: dict[str, int]) -> str:
    """Source, place in it, who else says so or says otherwise."""
    quantity = number.quantity
    words = [f"[{keys[quantity.source]}] {quantity.locator}".rstrip()]
    if quantity.reviewed:
        words.append(f"confirmed by [{keys[quantity.reviewed]}]")
    elif quantity.kind is not Kind.GUESS:
        words.append("unreviewed")
    if quantity.alternatives:
        words.append(f"others: {'; '.join(quantity.alternatives)}")
    if quantity.note:
        words.append(quantity.note)
    return "; ".join(words)


def print_sources(keys: Mapping[str, int], sources: Mapping[str, Any]) -> None:
    """Print what the numbers in brackets stand for: key, title, publisher, year and address.

    Parameters
    ----------
    keys : mapping of str to int
        From `print_part`.
    sources : mapping of str to Source
        `simmoe.specs.catalog.sources`.
    """
    if not keys:
        return
    screen = console()
    screen.print()
    screen.print(heading("Sources"))
    for name, number in keys.items():
        source = sources.get(name)
        if source is None:
            screen.print(indented(f"[{number}] {name}: not in sources.yaml"))
            continue
        byline = ", ".join(str(word) for word in (source.title, source.publisher, source.year) if word)
        screen.print(indented(f"[{number}] {name}: {byline}"))
        if source.url:
            screen.print(f"      {source.url}", soft_wrap=True)


def plain(value: object) -> str:
    """A fact as words.

    Examples
    --------
    >>> plain({"link": "nvlink-4", "domain": 8}), plain(["fa3", "fa2"])
    ('link nvlink-4, domain 8', 'fa3, fa2')
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(inner)}" for name, inner in value.items() if inner not in (None, ""))
    if isinstance(value, list):
        return ("; " if any(isinstance(inner, dict) for inner in value) else ", ").join(map(plain, value))
    return str(value)
