"""Times that vary: seeded draws of the durations of a step.

A rank class stands for many devices, of which one is simulated. Jitter makes them differ, so whoever waits for a group
waits for its slowest member: the members that are not simulated are drawn where a collective meets them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.groups import stage_groups
from simmoe.graph.ranks import StepGraph
from simmoe.graph.task import FloatArray, Operation, TaskGraph
from simmoe.specs.faults import Jitter
from simmoe.specs.plan import Plan

Ids = NDArray[np.int64]
_QUANTILES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Collectives in which a simulated device meets members of its class that are not simulated.

    Attributes
    ----------
    task : array of int64
        The collectives, ascending.
    others : array of int64
        How many such members.
    low, high : array of int64
        The kernels since the last meeting with as many, as a range of `kernels`.
    kernels : array of int64
        The tasks of the compute streams, rank by rank in the order of issue.
    """

    task: Ids
    others: Ids
    low: Ids
    high: Ids
    kernels: Ids


def draw_durations(
    graph: TaskGraph, jitter: Jitter, seed: int, draws: int, meetings: Meetings | None = None
) -> Iterator[FloatArray]:
    """Durations of a graph under jitter, drawn one set after another.

    Parameters
    ----------
    graph : TaskGraph
    jitter : Jitter
        Standard deviations of the logarithm of kernels, collectives and launches.
    seed : int
        Of numpy's PCG64; the same seed gives the same bytes, and the first draws of many are those of few.
    draws : int
        How many.
    meetings : Meetings, optional
        Where devices that are not simulated have to be waited for; none if not given.

    Yields
    ------
    array of float64, shape (tasks,)
        [s], for `simmoe.engine.fast.makespans` or `simulate_batch`.

    Notes
    -----
    Every task takes exp(sigma z - sigma^2/2) times its duration, z standard normal and independent, so that its mean
    stays. In a meeting n other devices have run the same kernels since the last one, a sum of independent times: normal
    with variance v = (exp(sigma^2) - 1) sum d^2 by the central limit theorem. The collective takes longer by
    max(0, sqrt(v) M - D), where M is the maximum of n standard normals, drawn by its quantiles, and D how late the
    simulated device itself is. Valid for sigma up to about 0.3; that members have met others in between, and that their
    hosts vary, is left out.

    Examples
    --------
    >>> from simmoe.graph.task import Stream
    >>> none = np.zeros(1, dtype=np.int32)
    >>> graph = TaskGraph(none, none, np.array([3.0]), none, none, np.zeros(2, np.int32), none[:0],
    ...     (Operation("mlp", "forward", "gemm"),), (Stream(0, "compute"),))
    >>> [duration.tolist() for duration in draw_durations(graph, Jitter(sigma=0.0), 1, 2)]
    [[3.0], [3.0]]
    """
    sigmas = np.array([_sigma(operation, jitter) for operation in graph.operations], dtype=np.float64)[graph.operation]
    waits = _Waits(graph, meetings, sigmas) if meetings is not None and len(meetings.task) else None
    generator = np.random.Generator(np.random.PCG64(seed))
    for _ in range(draws):
        factor = np.exp(sigmas * generator.standard_normal(len(graph)) - sigmas**2 / 2)
        duration = graph.duration * factor
        if waits is not None:
            waits.add(duration, generator)
        yield duration


def meetings_of(step: StepGraph, plan: Plan) -> Meetings:
    """Where the simulated devices of a step meet members of their classes that are not simulated.

    Parameters
    ----------
    step : StepGraph
        Folded; without folding there is no such member.
    plan : Plan
        Expanded; gives the sizes of the groups.

    Returns
    -------
    Meetings
    """
    graph = step.graph
    owner = np.array([stream.rank for stream in graph.streams], dtype=np.int64)[graph.stream]
    computes = np.array([stream.name == "compute" for stream in graph.streams], dtype=np.bool_)[graph.stream]
    others = _others(step, plan)[owner, graph.operation]
    kernels = np.flatnonzero(computes)
    kernels = kernels[np.argsort(owner[kernels], kind="stable")]
    begins = np.searchsorted(owner[kernels], np.arange(len(step.ranks) + 1))
    issued = np.zeros(len(graph), dtype=np.int64)  # kernels that precede a task: those issued, or those it waits for
    issued[kernels] = np.arange(1, len(kernels) + 1)
    task = np.flatnonzero(others > 0)
    high = _preceding(graph, task, owner, issued, begins)
    low = np.empty_like(high)
    for rank in range(len(step.ranks)):
        for size in np.unique(others[task[owner[task] == rank]]).tolist():
            known = np.flatnonzero((owner[task] == rank) & (others[task] >= size))
            before = np.concatenate([[begins[rank]], high[known[:-1]]])
            own = others[task[known]] == size
            low[known[own]] = np.minimum(before, high[known])[own]
    return Meetings(task, others[task], low, high, kernels)


def _sigma(operation: Operation, jitter: Jitter) -> float:
    if operation.category == "host":
        return jitter.host_sigma
    return jitter.network_sigma if operation.group else jitter.sigma


def _others(step: StepGraph, plan: Plan) -> Ids:
    """For each rank class and operation, the members of the group that the simulated device of the class stands for."""
    found = np.zeros((len(step.ranks), len(step.graph.operations)), dtype=np.int64)
    for number, rank in enumerate(step.ranks):
        groups = stage_groups(plan.stages[rank.stage])
        sizes = [groups.get(operation.group, (1, 1))[0] for operation in step.graph.operations]
        found[number] = np.minimum(sizes, rank.count) - 1
    return found


def _preceding(graph: TaskGraph, task: Ids, owner: Ids, issued: Ids, begins: Ids) -> Ids:
    """How far the compute stream has come when a task may start: to the kernels it waits for, else to those issued."""
    latest = np.zeros(len(graph), dtype=np.int64)
    target = np.repeat(np.arange(len(graph)), np.diff(graph.predecessor_start))
    same = owner[graph.predecessor] == owner[target]
    np.maximum.at(latest, target[same], issued[graph.predecessor[same]])
    running = np.maximum.accumulate(issued)  # task ids of a rank are consecutive
    return np.where(latest[task] > 0, latest[task], np.maximum(running[task], begins[owner[task]]))


class _Waits:
    """The time that collectives take longer because of members that are not simulated."""

    def __init__(self, graph: TaskGraph, meetings: Meetings, sigmas: FloatArray) -> None:
        self.meetings, self.planned = meetings, graph.duration
        variance = np.expm1(sigmas[meetings.kernels] ** 2) * graph.duration[meetings.kernels] ** 2
        total = np.concatenate([np.zeros(1), np.cumsum(variance)])
        self.spread = np.sqrt(np.maximum(total[meetings.high] - total[meetings.low], 0.0))
        sizes, self.row = np.unique(meetings.others, return_inverse=True)
        self.latest = np.stack([_quantiles(size) for size in sizes.tolist()])

    def add(self, duration: FloatArray, generator: np.random.Generator) -> None:
        """Add the waits of one draw to its durations."""
        part = self.meetings
        late = duration[part.kernels] - self.planned[part.kernels]
        total = np.concatenate([np.zeros(1), np.cumsum(late)])
        own = total[part.high] - total[part.low]
        chosen = self.latest[self.row, generator.integers(0, _QUANTILES, len(part.task))]
        duration[part.task] += np.maximum(self.spread * chosen - own, 0.0) * (self.spread > 0)


def _quantiles(number: int) -> FloatArray:
    """Equally likely values of the maximum of some standard normals."""
    normal = NormalDist()
    return np.array([normal.inv_cdf(math.pow((i + 0.5) / _QUANTILES, 1.0 / number)) for i in range(_QUANTILES)])
