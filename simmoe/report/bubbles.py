"""Why the compute stream of a GPU stands still, second by second.

An idle interval ends when a task of the compute stream starts, and that start is the end of some predecessor. Walking
back from there along the tasks that ended exactly when the next one started, every moment of the interval is covered by
one task, and its kind is the cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.engine.record import Timeline
from simmoe.errors import InternalError
from simmoe.graph.ranks import RankClass
from simmoe.graph.task import FloatArray, IntArray, Operation, TaskGraph
from simmoe.report.binding import binding_predecessors, links

__all__ = ["CAUSES", "Bubbles", "binding_predecessors", "bubbles", "busy_fractions"]

CAUSES = (
    "warm_up",
    "drain",
    "imbalance",
    "attention",
    "experts",
    "all_to_all",
    "tensor_parallel",
    "context_parallel",
    "pipeline_transfer",
    "data_parallel",
    "host",
    "dependency",
)
_WARM_UP, _DRAIN, _IMBALANCE = (CAUSES.index(name) for name in ("warm_up", "drain", "imbalance"))
_TRANSFER, _HOST, _REST = (CAUSES.index(name) for name in ("pipeline_transfer", "host", "dependency"))
_EXCHANGE = CAUSES.index("all_to_all")
_OF_GROUP = {
    "ep": "all_to_all",
    "tp": "tensor_parallel",
    "etp": "tensor_parallel",
    "cp": "context_parallel",
    "dp": "data_parallel",
    "edp": "data_parallel",
    "shard": "data_parallel",
    "replica": "data_parallel",
    "pp": "pipeline_transfer",
}

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bubbles:
    """Idle time of the compute streams by cause [s]; every table holds all of `CAUSES`.

    Attributes
    ----------
    ranks : tuple of dict
        One a rank class, in their order; each sums to the step time minus the busy time of its compute stream.
    mean : dict
        Over all devices.
    """

    ranks: tuple[dict[str, float], ...]
    mean: dict[str, float]


def bubbles(timeline: Timeline, ranks: Sequence[RankClass]) -> Bubbles:
    """Idle time of the compute stream of every rank class, named by cause.

    Parameters
    ----------
    timeline : Timeline
    ranks : sequence of RankClass
        Indexed by ``Stream.rank``.

    Returns
    -------
    Bubbles
        ``all_to_all``, ``tensor_parallel``, ``context_parallel``, ``data_parallel``: a collective of the own rank is
        under way and nothing else can run; ``pipeline_transfer``: what another stage has sent is under way; ``host``:
        the host has yet to launch. The others are waits for the work of other ranks: ``warm_up`` for other stages
        before the first backward pass, ``drain`` for other stages after the last forward pass, and for the end of the
        step; ``imbalance`` for other stages in between, and at any time for the other ranks of the own stage;
        ``attention`` and ``experts`` for the other side of a zebra stage, where no exchange between them is under way.
        ``dependency`` is the rest.

    Raises
    ------
    InternalError
        If a task starts when nothing before it ended.

    Notes
    -----
    Among several predecessors that end at the same moment the one with the smallest task id is the cause. Where a
    collective waits for slower members of its group, that part is ``imbalance``, not the collective. Of equal stages
    under 1F1B without communication warm_up + drain is (p - 1)(f + b) on every stage, and nothing else is idle.

    Examples
    --------
    1 s of work, a 2 s all-to-all it waits for, 1 s of work; the other stage works for 1 s more after its 1 s transfer:

    >>> from simmoe.graph.task import Stream, compressed_rows
    >>> graph = TaskGraph(
    ...     np.array([0, 1, 0, 2, 0], np.int32), np.array([0, 1, 0, 2, 3], np.int32),
    ...     np.array([1.0, 2.0, 1.0, 1.0, 1.0]), *[np.full(5, -1, dtype=np.int32)] * 2,
    ...     *compressed_rows(np.array([0, 1, 2, 3]), np.array([1, 2, 3, 4]), 5),
    ...     (Operation("mlp", "forward", "gemm"), Operation("moe.dispatch", "forward", "all_to_all", "ep"),
    ...      Operation("pipeline.send", "forward", "send_recv", "pp")),
    ...     (Stream(0, "compute"), Stream(0, "ep"), Stream(0, "pp_forward"), Stream(1, "compute")),
    ... )
    >>> ends = np.array([1.0, 3.0, 4.0, 5.0, 6.0])
    >>> ranks = [RankClass(0, "a", 1, 0), RankClass(1, "a", 1, 1)]
    >>> found = bubbles(Timeline(graph, ends - graph.duration, ends), ranks)
    >>> [{cause: s for cause, s in table.items() if s} for table in found.ranks]
    [{'drain': 1.0, 'all_to_all': 2.0, 'pipeline_transfer': 1.0}, {'warm_up': 4.0, 'pipeline_transfer': 1.0}]
    """
    seconds = np.zeros((len(ranks), len(CAUSES)))
    if len(timeline):
        before, binding = links(timeline)
        gaps, ending = _gaps(timeline, before, binding, len(ranks))
        _attribute(timeline, binding, ranks, gaps, seconds)
        seconds[:, _DRAIN] += ending
    counts = np.array([rank.count for rank in ranks], dtype=np.float64)
    mean = counts @ seconds / counts.sum() if len(ranks) else np.zeros(len(CAUSES))
    tables = [dict(zip(CAUSES, row, strict=True)) for row in [*seconds.tolist(), mean.tolist()]]
    return Bubbles(tuple(tables[:-1]), tables[-1])


def busy_fractions(timeline: Timeline, ranks: Sequence[RankClass]) -> tuple[dict[str, float], ...]:
    """Share of the step in which each stream of each rank class runs a task [1], by name of the stream.

    Parameters
    ----------
    timeline : Timeline
    ranks : sequence of RankClass
        Indexed by ``Stream.rank``.
    """
    graph = timeline.graph
    busy = np.bincount(graph.stream, weights=timeline.end - timeline.start, minlength=len(graph.streams))
    tables: tuple[dict[str, float], ...] = tuple({} for _ in ranks)
    step = timeline.makespan
    for stream, seconds in zip(graph.streams, busy.tolist(), strict=True):
        tables[stream.rank][stream.name] = seconds / step if step else 0.0
    return tables


class _Gaps(NamedTuple):
    """Idle intervals: when, whose, what a wait for another stage is called in them, and the task that fills the end."""

    low: FloatArray
    high: FloatArray
    rank: Ids
    waiting: Ids
    task: Ids


def _gaps(timeline: Timeline, before: IntArray, binding: IntArray, ranks: int) -> tuple[_Gaps, FloatArray]:
    """The idle intervals of all compute streams, and how long each rank has nothing at all to do at the end [s]."""
    graph, start, end = timeline.graph, timeline.start, timeline.end
    computes = np.array([stream.name == "compute" for stream in graph.streams], dtype=np.bool_)
    tasks = np.flatnonzero(binding != before)  # a task that starts when the one before it ends follows no gap
    tasks = tasks[computes[graph.stream[tasks]]]
    free = np.where(before[tasks] >= 0, end[before[tasks]], 0.0)
    idle = np.flatnonzero(start[tasks] > free)
    idle = idle[np.argsort(graph.stream[tasks[idle]], kind="stable")]
    tasks, free = tasks[idle], free[idle]
    owner = np.array([stream.rank for stream in graph.streams], dtype=np.int64)
    last_end, last_compute, last_task = _last(timeline, owner, computes, ranks)
    late = np.flatnonzero(last_end > last_compute)
    low, high = np.concatenate([free, last_compute[late]]), np.concatenate([start[tasks], last_end[late]])
    rank = np.concatenate([owner[graph.stream[tasks]], late])
    filling = np.concatenate([binding[tasks], last_task[late]])
    return _Gaps(low, high, rank, _waiting(timeline, owner, low, high, rank), filling), timeline.makespan - last_end


def _last(
    timeline: Timeline, owner: Ids, computes: NDArray[np.bool_], ranks: int
) -> tuple[FloatArray, FloatArray, Ids]:
    """When the last task and the last kernel of each rank end [s], and the first of those that end last."""
    graph, end = timeline.graph, timeline.end
    final, streams = _ends_of_streams(graph, np.arange(len(graph)))
    last_end, last_compute, last_task = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks, dtype=np.int64)
    np.maximum.at(last_end, owner[streams], end[final])
    kernels = computes[streams]
    np.maximum.at(last_compute, owner[streams[kernels]], end[final[kernels]])
    near = np.flatnonzero(end >= last_end[owner[streams]].min())[::-1]
    rank = owner[graph.stream[near]]
    chosen = end[near] == last_end[rank]
    last_task[rank[chosen]] = near[chosen]  # the first of several stands last
    return last_end, last_compute, last_task


def _ends_of_streams(graph: TaskGraph, tasks: Ids) -> tuple[Ids, Ids]:
    """The last of some tasks, given in some order, on every stream that has any, and those streams."""
    final = np.full(len(graph.streams), -1, dtype=np.int64)
    final[graph.stream[tasks]] = tasks  # a later one overwrites an earlier one
    streams = np.flatnonzero(final >= 0)
    return final[streams], streams


def _waiting(timeline: Timeline, owner: Ids, low: FloatArray, high: FloatArray, rank: Ids) -> Ids:
    """What waiting for another stage is called in each interval: the pipeline fills, drains, or is uneven."""
    graph = timeline.graph
    phases = np.array([_direction(operation) for operation in graph.operations], dtype=np.int8).take(graph.operation)
    ranks = int(owner.max()) + 1
    first_backward, last_forward = np.full(ranks, np.inf), np.full(ranks, -np.inf)
    backward, streams = _ends_of_streams(graph, np.flatnonzero(phases == -1)[::-1])
    np.minimum.at(first_backward, owner[streams], timeline.start[backward])
    forward, streams = _ends_of_streams(graph, np.flatnonzero(phases == 1))
    np.maximum.at(last_forward, owner[streams], timeline.end[forward])
    drains = np.where(low >= last_forward[rank], _DRAIN, _IMBALANCE)
    return np.where(high <= first_backward[rank], _WARM_UP, drains)


def _direction(operation: Operation) -> int:
    """1 for kernels of a forward pass, -1 of a backward pass, 0 for anything else."""
    if operation.group or operation.category == "host":
        return 0
    return {"forward": 1, "backward": -1, "recompute": -1}.get(operation.phase, 0)


def _attribute(
    timeline: Timeline, binding: IntArray, ranks: Sequence[RankClass], gaps: _Gaps, seconds: FloatArray
) -> None:
    """Add every moment of the gaps to the cause of the task that covers it."""
    graph, start = timeline.graph, timeline.start
    stage = np.array([rank.stage for rank in ranks])
    side = np.array([CAUSES.index(rank.role) if rank.role else -1 for rank in ranks])
    owner = np.array([stream.rank for stream in graph.streams], dtype=np.int64)
    cause = np.array([_cause(operation) for operation in graph.operations], dtype=np.int64)
    low, high, rank, waiting, task = gaps
    while len(task):
        if task.min() < 0:
            raise InternalError(f"a gap of rank class {rank[np.argmin(task)]} ends when nothing before it ended")
        here = owner[graph.stream[task]]
        kind = cause[graph.operation[task]]
        opposite = (stage[here] == stage[rank]) & (side[here] != side[rank])
        others = (here != rank) & (kind != _TRANSFER) & ~opposite
        cut = np.where(others, low, np.maximum(start[task], low))
        elsewhere = np.where(stage[here] == stage[rank], _IMBALANCE, waiting)
        # The other side of a zebra stage may itself wait for the own side, for another stage, or for an exchange.
        across = np.where(opposite & (kind != _EXCHANGE), side[here], kind)
        np.add.at(seconds, (rank, np.where(others, elsewhere, across)), high - cut)
        left = cut > low
        low, high, rank, waiting = low[left], cut[left], rank[left], waiting[left]
        task = binding[task[left]].astype(np.int64)


def _cause(operation: Operation) -> int:
    """What a wait for a task of the own rank is called."""
    if operation.category == "host":
        return _HOST
    return CAUSES.index(_OF_GROUP[operation.group]) if operation.group in _OF_GROUP else _REST
