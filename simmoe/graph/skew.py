"""Skewed routing on a finished task graph: expert work and exchanges take the time of the most loaded rank.

Ranks of one expert-parallel group do unequal expert work, but all of them wait in the next exchange for the slowest,
so one rank class still stands for all: in each layer and micro-batch it does what the most loaded rank does. Its
utilisation is therefore that of the most loaded ranks; on the others the difference is waiting.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.backward import backward
from simmoe.cost.groups import domain_of_devices
from simmoe.cost.loads import Busiest, Loads, busiest_ports, group_loads
from simmoe.cost.model import StageCost
from simmoe.cost.moe import moe_layer
from simmoe.cost.operators import Collective, GroupedGemm, MemoryBound, Operator, TokenExchange, Work
from simmoe.cost.shard import Shard, shard_of
from simmoe.errors import InternalError
from simmoe.graph.pieces import one_piece, pieces_of
from simmoe.graph.ranks import RankClass, StepGraph
from simmoe.graph.task import FloatArray, TaskGraph
from simmoe.specs.model import Model
from simmoe.specs.scenario import Scenario

STRAIGHT = 1e-12  # relative distance from the chord at which a piece of a cost function counts as a straight line
MOST_NODES = 4096
LEAST_ROWS = 0.5  # fewer expected rows of an expert are none

Name = tuple[str, bool]  # an operator's name, and whether it is of a backward pass
Times = dict[Name, FloatArray]  # of every layer and micro-batch
Known = dict[tuple[object, ...], Times]


def with_skew(step: StepGraph, scenario: Scenario) -> StepGraph:
    """The same graph with the times of skewed routing.

    Parameters
    ----------
    step : StepGraph
        Built with balanced routing.
    scenario : Scenario
        Whose routing is skewed.

    Returns
    -------
    StepGraph
        Only the durations of expert kernels, of the sorting around them, and of dispatches and combines differ: each
        is what the same cost functions give for the rows of the most loaded rank of that layer and micro-batch.

    Notes
    -----
    Exact for whole backward passes, where each layer ends in an exchange. A weight gradient that is put off
    (zero-bubble schedules, delayed weight gradients) is not followed by one: different ranks are slowest in different
    layers, and the sum of their times is an upper bound. So it is where the devices of a stage are unlike: each class
    is taken to hold the most loaded rank. The replicas of a group draw alike, see `simmoe.cost.loads.group_loads`.
    Pieces of an exchange have even shares of the loads, so one rank is slowest in all of them: folding stays exact.
    """
    if not scenario.routing.skewed or scenario.model.moe is None:
        return step
    duration = step.graph.duration.copy()
    known: Known = {}
    for number, rank in enumerate(step.ranks):
        times = _rank_times(scenario, rank, _micro_batches(step.graph), known)
        for tasks, seconds in _tasks(step.graph, number, times):
            duration[tasks] = seconds[step.graph.layer[tasks], step.graph.micro_batch[tasks]]
    return step._replace(graph=replace(step.graph, duration=duration))


def _micro_batches(graph: TaskGraph) -> int:
    return int(graph.micro_batch.max(initial=0)) + 1


def _tasks(graph: TaskGraph, rank: int, times: Times) -> Iterator[tuple[NDArray[np.int64], FloatArray]]:
    """The tasks of a rank that skew changes, operation by operation, with the times of their operation."""
    own = np.array([stream.rank == rank for stream in graph.streams], dtype=bool)
    changed = np.zeros(len(graph.operations), dtype=bool)
    names: list[Name] = [(operation.name, operation.phase == "backward") for operation in graph.operations]
    for number, name in enumerate(names):
        changed[number] = name in times
    chosen = np.flatnonzero(changed[graph.operation] & own[graph.stream])
    order = chosen[np.argsort(graph.operation[chosen], kind="stable")]
    used, first = np.unique(graph.operation[order], return_index=True)
    for operation, tasks in zip(used, np.split(order, first[1:]), strict=True):
        yield tasks, times[names[operation]]


def _rank_times(scenario: Scenario, rank: RankClass, micro_batches: int, known: Known) -> Times:
    """Times of the operators that skew changes."""
    stage = scenario.plan.stages[rank.stage]
    group = int(domain_of_devices(scenario.cluster)[1][rank.first_rank])
    cost = StageCost(scenario, rank.stage, group, rank.first_rank)
    shard = shard_of(stage, scenario.plan, scenario.training, scenario.routing)
    key = (group, shard, cost.shapes["ep"], cost.shapes["etp"], cost.effects)
    if key not in known:
        loads = group_loads(scenario.routing, scenario.model, shard, micro_batches)
        known[key] = slowest_times(scenario.model, shard, loads, cost, pieces_of(scenario.plan, stage))
    return known[key]


def rank_times(model: Model, shard: Shard, loads: Loads, cost: StageCost, pieces: int = 1) -> tuple[Times, Times]:
    """The times of every operator of a MoE layer that depends on the load.

    Parameters
    ----------
    model : Model
    shard : Shard
        Of a balanced rank.
    loads : Loads
        Of its expert-parallel group.
    cost : StageCost
    pieces : int
        Into which its exchanges are cut; each has an even share of the loads.

    Returns
    -------
    own, common : dict of (name, backward) to array
        Kernels between two exchanges, of each rank: shape (layers, micro-batches, ranks). What all ranks do alike, and
        exchanges, which end together: shape (layers, micro-batches).

    Notes
    -----
    Experts on a rank have rooflines of their own, t = t0 + sum over experts of max(compute, memory): few rows wait for
    weights, many for arithmetic. Evenly loaded they add up to that of the group. On one H100 aiconfigurator@095f58a
    (``moe_perf``) measured 1.10 and 1.12 times the balanced time for its two skews; this gives 1.07 and 1.09, and
    between 1 and 128 ranks the measured cost of imbalance within 5 % in the median.
    """
    whole = shard._replace(capacity_factor=1.0)
    balanced, halved = (_operators(model, whole._replace(capacity_factor=one), pieces) for one in (1.0, 0.5))
    loaded = _operators(model, whole._replace(load=3.0, exchange_load=3.0, domain_load=3.0), pieces)
    ports = busiest_ports(loads, cost.shapes["ep"])
    own: Times = {}
    common: Times = {}
    for name, operator in balanced.items():
        work, full = operator.work, loads.sent[..., None] * loads.ranks
        if isinstance(work, TokenExchange):
            common[name] = _exchange_times(operator, work.tokens * loads.sent, ports, cost)
        elif isinstance(work, GroupedGemm):
            rows = work.groups * work.tokens * loads.sent[..., None, None] * loads.slots
            own[name] = _grouped_times(operator, work, rows, cost)
        elif work != loaded[name].work:
            own[name] = along_curve(_by_size(operator, cost), _size(work) * full)
        elif work != halved[name].work:
            fixed = 2.0 * _size(halved[name].work) - _size(work)
            common[name] = along_curve(_by_size(operator, cost), fixed + (_size(work) - fixed) * loads.sent)
    return own, common


def slowest_times(model: Model, shard: Shard, loads: Loads, cost: StageCost, pieces: int = 1) -> Times:
    """The times of `rank_times`, shape (layers, micro-batches), of the rank that is slowest between two exchanges."""
    own, found = rank_times(model, shard, loads, cost, pieces)
    for backwards in (False, True):
        part = {name: times for name, times in own.items() if name[1] is backwards}
        slowest = np.argmax(sum(part.values(), start=np.zeros(loads.ranks.shape)), axis=-1)[..., None]
        found.update({name: np.take_along_axis(times, slowest, axis=-1)[..., 0] for name, times in part.items()})
    return found


def _grouped_times(operator: Operator, work: GroupedGemm, rows: FloatArray, cost: StageCost) -> FloatArray:
    """Times of a grouped GEMM whose experts have unequal rows; an expert without a row costs nothing."""
    one, two = (cost.seconds(operator._replace(work=work._replace(groups=groups))) for groups in (1, 2))
    launch = 2.0 * one - two

    def alone(tokens: float) -> float:
        return cost.seconds(operator._replace(work=work._replace(groups=1, tokens=tokens))) - launch

    busy = rows >= LEAST_ROWS
    each = np.where(busy, along_curve(alone, np.where(busy, rows, LEAST_ROWS)), 0.0)
    return np.asarray(launch + each.sum(axis=-1), dtype=np.float64)


def _exchange_times(operator: Operator, tokens: FloatArray, ports: Busiest, cost: StageCost) -> FloatArray:
    """Times of a dispatch or combine; equal ones are looked up once."""
    columns = np.stack([part.ravel() for part in (tokens, ports.rank, ports.domain)], axis=1)
    distinct, cell = np.unique(columns, axis=0, return_inverse=True)
    seconds = []
    for sent, load, domain_load in distinct.tolist():
        work = operator.work
        if isinstance(work, TokenExchange):
            work = work._replace(tokens=sent, load=load, domain_load=domain_load)
        seconds.append(cost.seconds(operator._replace(work=work)))
    return np.array(seconds)[cell.reshape(tokens.shape)]


def _by_size(operator: Operator, cost: StageCost) -> Callable[[float], float]:
    """The cost of an operator by its bytes."""
    work = operator.work

    def seconds(size: float) -> float:
        resized = work._replace(bytes=size) if isinstance(work, MemoryBound | Collective) else work
        return cost.seconds(operator._replace(work=resized))

    return seconds


def _size(work: Work) -> float:
    """The number of a work that grows with its tokens [B]."""
    if isinstance(work, MemoryBound | Collective):
        return work.bytes
    raise InternalError(f"skewed routing does not know how {type(work).__name__} grows with its tokens")


def along_curve(seconds: Callable[[float], float], sizes: FloatArray) -> FloatArray:
    """A convex or concave function at many places from few of its values.

    Parameters
    ----------
    seconds : callable
        Kernel times are the larger of two straight lines in their tokens.
    sizes : array
        Of any shape.

    Returns
    -------
    array
        Interpolated between nodes that are halved until the middle lies on the chord to 1e-12: exact for straight
        pieces. At most 4096 nodes, which leave less than 1e-6 on a smooth curve.

    Examples
    --------
    >>> calls = []
    >>> def roof(size):
    ...     calls.append(size)
    ...     return max(1.0, 2.0 * size)
    >>> along_curve(roof, np.linspace(0.0, 1.0, 1001))[[0, 500, 1000]].tolist(), len(calls) < 100
    ([1.0, 1.0, 2.0], True)
    """
    ends = (float(sizes.min()), float(sizes.max()))
    nodes = {end: seconds(end) for end in ends}
    parts = deque([ends] if ends[0] < ends[1] else [])
    while parts and len(nodes) < MOST_NODES:
        low, high = parts.popleft()
        if high - low <= STRAIGHT * (ends[1] - ends[0]):
            continue  # a jump, as between no work and a little
        middle = 0.5 * (low + high)
        nodes[middle] = seconds(middle)
        if abs(nodes[middle] - 0.5 * (nodes[low] + nodes[high])) > STRAIGHT * abs(nodes[middle]):
            parts += [(low, middle), (middle, high)]
        else:
            del nodes[middle]  # the fewer nodes, the faster the look-up
    places = sorted(nodes)
    return np.interp(sizes, places, [nodes[place] for place in places])


def _operators(model: Model, shard: Shard, pieces: int) -> dict[Name, Operator]:
    """The operators of a MoE layer by name, forward and backward; of those in pieces one piece."""
    forward = one_piece(moe_layer(model, shard), pieces)
    found = {(operator.name, False): operator for operator in forward}
    found.update({(gradient.name, True): gradient for operator in forward for gradient in backward(operator)})
    return found
