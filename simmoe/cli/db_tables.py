"""How parts of the hardware database look on screen."""

from collections.abc import Callable, Sequence
from typing import Any

from simmoe.cli.screen import console, heading, indented, table
from simmoe.report.evidence import Number
from simmoe.specs.hardware import Accelerator, Cluster, Link, Node
from simmoe.specs.software import SoftwareStack


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


def print_part(kind: str, id: str, facts: dict[str, Any], numbers: Sequence[Number]) -> None:
    """Print the facts of a part, then each of its numbers with its source.

    Parameters
    ----------
    kind, id : str
    facts : dict
        What is no number with a source.
    numbers : sequence of Number
    """
    screen = console()
    screen.print(heading(f"{kind} {id}", facts.get("name", "")))
    for name, value in facts.items():
        if name != "name":
            screen.print(indented(f"{name}: {plain(value)}"))
    if not numbers:
        return
    screen.print()
    rows = table("number", "value", "kind", "spread", "source, place", right="lrlrl", grow="source, place")
    for number in numbers:
        quantity = number.quantity
        spread = "" if quantity.spread is None else f"{quantity.spread:.0%}"
        name = number.name.removeprefix("efficiency.")
        rows.add_row(name, quantity.text, quantity.kind.value, spread, _origin(number))
    screen.print(indented(rows))


def _origin(number: Number) -> str:
    """Source, place in it, and who else says so or says otherwise."""
    quantity = number.quantity
    words = [quantity.source + (f" ({quantity.locator})" if quantity.locator else "")]
    if quantity.reviewed:
        words.append(f"confirmed by {quantity.reviewed}")
    if quantity.alternatives:
        words.append(f"others: {'; '.join(quantity.alternatives)}")
    if quantity.note:
        words.append(quantity.note)
    return "; ".join(words)


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
