"""Which numbers of the hardware database may be fitted to what, and scenarios with other values in their places."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from simmoe.calibration.bench_rows import CollectiveRow, ProductRow
from simmoe.report.evidence import numbers_used
from simmoe.report.result import Result
from simmoe.specs.base import Quantity
from simmoe.specs.numbers import Number, numbers_of
from simmoe.specs.overlay import with_quantities
from simmoe.specs.scenario import Scenario

# Rates, then latencies and launches.
_RATES = (
    r"efficiency\.(?:gemm|grouped_gemm|attention)\[.*\]\.{rate}$",
    r"efficiency\.memory_bound\[.*\]\.memory$",
    r"collectives\[.*\]\.bus_bandwidth$",
    r"achievable$",
    r"exchanges\[.*\]\.(?:dispatch|combine)$",
    r"host_(?:dense_layer|moe_layer|attention)$",
    r"efficiency\.(?:attention\[.*\]\.backward|grouped_gemm\[.*\]\.wgrad)$",
    r"host_(?:router|preprocess|fp8_layer|fp8_experts|overlap_factor)$",
    r"collectives\[.*\]\.(?:peak_bus_bandwidth|small\.bus_bandwidth)$",
    r"collectives\[.*\]\.latency$",
    r"(?:exchanges\[.*\]\.(?:dispatch|combine)_)?latency$",
    r"efficiency\..*\.expert_launch$",
    r"efficiency\..*\.launch$",
    r"collectives\[.*\]\.small\.latency$",
    r"collectives\[.*\]\.(?:small\.)?sqrt_term$",
)
# What shapes the rates over sizes: told by runs of several sizes, or by products on their own.
_OF_SIZES = (r"efficiency\..*\.(?:k_fill|length_fill|token_fill|width_fill)$",)
_OF_PRODUCTS = (
    r"efficiency\.gemm\[.*\]\.k_fill$",
    r"efficiency\.gemm\[.*\]\.compute$",
    r"efficiency\.gemm\[.*\]\.memory$",
    r"efficiency\.gemm\[.*\]\.launch$",
)


def candidates(
    results: Sequence[Result], products: Sequence[ProductRow] = (), collectives: Sequence[CollectiveRow] = ()
) -> tuple[Number, ...]:
    """The numbers that the kernels and collectives of scenarios rest on and that may be fitted.

    Parameters
    ----------
    results : sequence of Result
    products : sequence of ProductRow
        Measured on their own: their rates are told from those inside a step.
    collectives : sequence of CollectiveRow
        Measured on their own: of the first node's links, which a step need not use for them.

    Returns
    -------
    tuple of Number
        Rates first, then latencies and launches. A rate inside a long step is its ``sustained`` share; of a short run
        (``training.sustained: false``) it is ``compute`` itself. What shapes a rate over sizes is a candidate only if
        there are several runs, or products on their own.
    """
    used = [number for result in results for number in numbers_used(result)]
    used += _of_links(results[0].scenario, collectives)
    rate = "sustained" if results[0].scenario.training.sustained else "compute"
    patterns = [pattern.replace("{rate}", rate) for pattern in _RATES]
    patterns += [*(_OF_PRODUCTS if products else ()), *(_OF_SIZES if len(results) > 1 else ())]
    found: dict[str, Number] = {}
    for pattern in patterns:
        found |= {n.path: n for n in used if n.path not in found and re.match(pattern, n.name) and n.quantity.value > 0}
    return tuple(found.values())


def _of_links(scenario: Scenario, rows: Sequence[CollectiveRow]) -> Iterator[Number]:
    """Fits of collectives that were measured on their own."""
    cluster = scenario.cluster
    inside, between = cluster.groups[0].node.scale_up.link, cluster.fabric.link
    for link, measured in ((inside, rows), (between, [row for row in rows if row.nodes > 1])):
        words = tuple(f"collectives[{name} " for name in dict.fromkeys(row.collective for row in measured))
        plain = {"achievable", "latency"} if words else set()
        for number in numbers_of(link, f"link {link.id}"):
            if number.name.startswith(words) or number.name in plain:
                yield number


def with_values(scenario: Scenario, numbers: Sequence[Number], values: Sequence[float]) -> Scenario:
    """A scenario with other values of some numbers.

    Parameters
    ----------
    scenario : Scenario
    numbers : sequence of Number
    values : sequence of float
        [SI]
    """
    new = defaultdict[str, dict[str, Quantity]](dict)
    for number, value in zip(numbers, values, strict=True):
        new[number.part][number.name] = number.quantity.model_copy(update={"value": value})
    return with_quantities(scenario, new)
