"""What a cluster could have more of: resources as groups of numbers of the hardware database that scale together."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from simmoe.specs.base import Quantity, Spec
from simmoe.specs.numbers import numbers_of
from simmoe.specs.overlay import with_quantities
from simmoe.specs.scenario import Scenario
from simmoe.specs.scenario_parts import parts_of

# Of an accelerator: what a factor on the resource does to which numbers (the exponent).
_OF_ACCELERATOR: tuple[tuple[str, str, float], ...] = (
    ("dense matrix products", r"efficiency\.gemm\[.*\]\.compute$", 1.0),
    ("expert matrix products", r"efficiency\.grouped_gemm\[.*\]\.compute$", 1.0),
    ("attention kernels", r"efficiency\.attention\[.*\]\.compute$", 1.0),
    ("memory bandwidth", r"memory_bandwidth$", 1.0),
    ("kernel launches", r"efficiency\..*\.(?:launch|expert_launch)$", -1.0),
)
_OF_LINK: tuple[tuple[str, str, float], ...] = (
    ("bandwidth", r"bandwidth$|collectives\[.*\]\.(?:small\.)?(?:peak_)?bus_bandwidth$", 1.0),
    ("bandwidth", r"collectives\[.*\]\.(?:small\.)?sqrt_term$|exchanges\[.*\]\..*_message$", -1.0),
    ("latency", r"latency$|collectives\[.*\]\.(?:small\.)?latency$|exchanges\[.*\]\..*_latency$", -1.0),
)
_OF_HOST: tuple[tuple[str, str, float], ...] = (("host", r"host_(?!overlap_factor)", -1.0),)


class Resource(NamedTuple):
    """Something that a cluster may have more of.

    Attributes
    ----------
    name : str
        For people, such as ``memory bandwidth of h100-sxm5-80gb``.
    exponents : dict of part to dict of number to float
        What twice as much of it does to each number: times 2 to this power.
    """

    name: str
    exponents: dict[str, dict[str, float]]


def resources_of(scenario: Scenario) -> tuple[Resource, ...]:
    """The resources of a scenario's machines.

    Parameters
    ----------
    scenario : Scenario

    Returns
    -------
    tuple of Resource
        Of each accelerator: rates of products, experts and attention, memory bandwidth, launches; all of it at once,
        where there are several. Of each link: bandwidth and latency. Of the software: the host. Twice as much of a
        latency or a launch is half of its time.
    """
    parts = parts_of(scenario)
    found: dict[str, Resource] = {}
    accelerators = [name for name in parts if name.startswith("accelerator ")]
    for part, spec in parts.items():
        kind, _, id_ = part.partition(" ")
        for name, number, exponent in _scaled(kind, part, spec):
            _add(found, f"{name} of {id_}", part, number, exponent)
            if kind == "accelerator" and len(accelerators) > 1:
                _add(found, f"everything of {id_}", part, number, exponent)
    return tuple(found.values())


def _scaled(kind: str, part: str, spec: Spec) -> Iterator[tuple[str, str, float]]:
    """Resource, number and exponent of every number of a part that belongs to one."""
    patterns = {"accelerator": _OF_ACCELERATOR, "link": _OF_LINK, "software": _OF_HOST}.get(kind, ())
    for number in numbers_of(spec, part):
        for name, pattern, exponent in patterns:
            if re.match(pattern, number.name):
                yield name, number.name, exponent


def _add(found: dict[str, Resource], name: str, part: str, number: str, exponent: float) -> None:
    resource = found.setdefault(name, Resource(name, {}))
    resource.exponents.setdefault(part, {})[number] = exponent


def with_more(scenario: Scenario, resource: Resource, factor: float) -> Scenario:
    """A scenario with more, or less, of a resource.

    Parameters
    ----------
    scenario : Scenario
    resource : Resource
        One of `resources_of` it.
    factor : float
        How many times as much; above 0.
    """
    parts = parts_of(scenario)
    new: dict[str, dict[str, Quantity]] = {}
    for part, exponents in resource.exponents.items():
        known = {number.name: number.quantity for number in numbers_of(parts[part], part)}
        new[part] = {
            name: known[name].model_copy(update={"value": known[name].value * factor**exponent})
            for name, exponent in exponents.items()
        }
    return with_quantities(scenario, new)
