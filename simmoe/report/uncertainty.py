"""How far the predicted step may be off, from the spreads that the used numbers carry."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from simmoe.report.evidence import used_accelerators, used_fits
from simmoe.report.metrics import COLLECTIVES
from simmoe.report.result import Result
from simmoe.report.wires import used_wires
from simmoe.specs.base import DEFAULT_SPREAD, Kind, Spec, spread_of
from simmoe.specs.hardware import Accelerator

# For a software stack that was never compared with published steps: their scatter around the simulation [1].
UNKNOWN_STACK = 0.2
LEVEL = 0.8
DEVIATIONS = 1.2816  # a normal distribution holds 80 % within so many standard deviations
# The parameters of a fit that its time is inversely proportional to, for large work. The rate of a GEMM inside a step
# is compute x sustained, and the second was read off steps with the first as it stands: the product is as sure as it.
_RATES = {
    "gemm": ("sustained",),
    "grouped_gemm": ("sustained",),
    "attention": ("compute", "backward"),
}
# Operators behind the category `memory`; the optimizer has its own.
_OPTIMIZER = "optimizer"


class Interval(NamedTuple):
    """Where the step time lies with probability `level`, as far as the spreads tell [s]."""

    low: float
    high: float
    level: float


def step_interval(result: Result) -> Interval:
    """The interval of the step time.

    Parameters
    ----------
    result : Result

    Returns
    -------
    Interval
        ``step * exp(-z sigma)`` to ``step * exp(z sigma)`` [s] with sigma of `step_spread`.

    Notes
    -----
    Says what doubt in the numbers does to the step, not what the model leaves out; no more is claimed than that the
    spreads are standard deviations of a log-normal error. Valid while the critical path stays the same.
    """
    factor = math.exp(DEVIATIONS * step_spread(result))
    return Interval(result.step_time_s / factor, result.step_time_s * factor, LEVEL)


def step_spread(result: Result) -> float:
    """Relative standard uncertainty of the step time [1].

    Parameters
    ----------
    result : Result

    Returns
    -------
    float
        ``sqrt(sum over classes (share x spread)^2 + stack^2)``

    Notes
    -----
    The share of a class is its part of the critical path. Everything in a class rests on the same fit and is off
    together (shares of unlike accelerators add); classes are independent of each other. `stack_spread` is added once.
    First-order error propagation, GUM (JCGM 100:2008), equations 10 and 16.
    """
    spreads = class_spreads(result)
    off = [sum(share * spreads[category, part] for part, share in parts.items()) / result.step_time_s
           for category, parts in path_seconds(result).items()]  # fmt: skip
    return math.hypot(stack_spread(result), *off)


def stack_spread(result: Result) -> float:
    """How far published steps of the software stack and kind of model scatter around simulated ones [1]."""
    software = result.scenario.training.software
    spread = software.moe_spread if result.scenario.model.moe else software.dense_spread
    return spread.value if spread is not None else UNKNOWN_STACK


def path_seconds(result: Result) -> dict[str, dict[str, float]]:
    """Seconds on the critical path by class, then by accelerator type."""
    graph = result.timeline.graph
    tasks = np.array(result.critical_path.tasks, dtype=np.int64)
    types = list(dict.fromkeys(rank.accelerator for rank in result.ranks))
    categories = list(dict.fromkeys(operation.category for operation in graph.operations))
    category = np.array([categories.index(operation.category) for operation in graph.operations], dtype=np.int64)
    owner = np.array([types.index(result.ranks[stream.rank].accelerator) for stream in graph.streams], dtype=np.int64)
    keys = category[graph.operation[tasks]] * len(types) + owner[graph.stream[tasks]]
    sums = np.bincount(keys, weights=graph.duration[tasks]).tolist()
    found: dict[str, dict[str, float]] = {}
    for key in sorted(set(keys.tolist()), key=lambda key: int(np.argmax(keys == key))):  # in order of appearance
        found.setdefault(categories[key // len(types)], {})[types[key % len(types)]] = sums[key]
    return found


def class_spreads(result: Result) -> dict[tuple[str, str], float]:
    """Relative standard uncertainty of the time of every class on every accelerator type [1].

    Parameters
    ----------
    result : Result

    Returns
    -------
    dict
        (class, accelerator id) -> spread, for every class an operation of the graph belongs to.

    Notes
    -----
    Matrix products: their compute and sustained fractions, independent. Attention: compute and backward. Memory-bound
    operators: the mean spread of those used, and of the stack's traffic. Collectives: the least certain of the wires
    they use. What has no spread takes `DEFAULT_SPREAD`.
    """
    software = result.scenario.training.software
    host = software.host_moe_layer if result.scenario.model.moe is not None else software.host_dense_layer
    wires = used_wires(result).spreads
    shared = {c: max((spread_of(q) for q in wires.get(c, ())), default=0.0) for c in sorted(COLLECTIVES)}
    shared["host"] = spread_of(host)
    traffic = spread_of(software.elementwise_traffic)
    found: dict[tuple[str, str], float] = {}
    for accelerator in used_accelerators(result):
        own = shared | _kernel_spreads(accelerator, result, traffic)
        found |= {(category, accelerator.id): spread for category, spread in own.items()}
    return found


def _kernel_spreads(accelerator: Accelerator, result: Result, traffic: float) -> dict[str, float]:
    """Spreads of the classes that run on the accelerator itself."""
    tables = used_fits(accelerator, result.scenario)
    found = {
        table: math.hypot(*(spread_of(getattr(tables[table][0], name)) for name in names))
        for table, names in _RATES.items()
        if table in tables
    }
    rows = tables["memory_bound"]
    found["memory"] = math.hypot(_mean_memory(r for r in rows if getattr(r, "operator", "") != _OPTIMIZER), traffic)
    found["optimizer"] = _mean_memory(r for r in rows if getattr(r, "operator", "") == _OPTIMIZER)
    return found


def _mean_memory(rows: Iterable[Spec]) -> float:
    spreads = [spread_of(row.memory) for row in rows if hasattr(row, "memory")]
    return sum(spreads) / len(spreads) if spreads else DEFAULT_SPREAD[Kind.GUESS]
