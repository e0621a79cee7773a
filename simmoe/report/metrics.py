"""What a timeline amounts to: compute, communication and idle time of each rank and the step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.engine.record import Timeline
from simmoe.graph.ranks import RankClass
from simmoe.graph.task import FloatArray, Operation, Stream
from simmoe.report.intervals import Labels, Lane, common_segments, lanes_of
from simmoe.report.streams import tasks_by_stream

# NCCL's collectives, the categories of `Operation` that are communication.
COLLECTIVES = frozenset({"all_to_all", "all_gather", "reduce_scatter", "all_reduce", "send_recv"})
IDLE = "idle"

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RankMetrics:
    """One rank class; all times are of one of its devices [s].

    Attributes
    ----------
    rank, stage, accelerator, count
        `RankClass.first_rank`, and its other fields.
    window_s : float
        From the first start to the last end of device work.
    compute_s, communication_s : float
        Time with at least one kernel, or at least one collective, running.
    overlapped_s : float
        Time with both.
    exposed_communication_s : float
        Communication that no computation hides.
    idle_s : float
        Time inside the window with neither.
    bubble_fraction : float
        Share of the step with neither [1].
    breakdown_s : dict
        Category -> seconds, sums to the step: computation, exposed communication, ``idle``.
        Where several run at once they share the time equally.
    communication_by_collective_s : dict
        Collective -> time with at least one running, hidden or not.
    role : str
        As in `RankClass`.
    """

    rank: int
    stage: int
    accelerator: str
    count: int
    window_s: float
    compute_s: float
    communication_s: float
    overlapped_s: float
    exposed_communication_s: float
    idle_s: float
    bubble_fraction: float
    breakdown_s: dict[str, float]
    communication_by_collective_s: dict[str, float]
    role: str = ""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The whole step; times are means over devices [s], unless said otherwise.

    Attributes
    ----------
    step_time_s : float
        From 0 to the end of the last task.
    bubble_fraction : float
        ``1 - (compute + exposed communication) / step`` [1].
    compute_s, communication_s, overlapped_s, exposed_communication_s : float
        As in `RankMetrics`.
    exposed_by_collective_s : dict
        Collective -> its part of `exposed_communication_s`.
    breakdown_s : dict
        Category -> seconds, sums to `step_time_s`; the largest first, ``idle`` last.
    utilization : dict
        Accelerator type -> share of the step that its devices compute [1].
    ranks : tuple of RankMetrics
        In the order of the rank classes.
    """

    step_time_s: float
    bubble_fraction: float
    compute_s: float
    communication_s: float
    overlapped_s: float
    exposed_communication_s: float
    exposed_by_collective_s: dict[str, float]
    breakdown_s: dict[str, float]
    utilization: dict[str, float]
    ranks: tuple[RankMetrics, ...]


def is_communication(operation: Operation) -> bool:
    """Whether tasks of this kind are collectives or sends."""
    return operation.category in COLLECTIVES


def on_device(stream: Stream) -> bool:
    """Whether the stream is a queue of the accelerator, not of its host."""
    return stream.name != "host"


def step_metrics(timeline: Timeline, ranks: Sequence[RankClass]) -> StepMetrics:
    """Everything that is reported about the times of one step.

    Parameters
    ----------
    timeline : Timeline
    ranks : sequence of RankClass
        Indexed by ``Stream.rank``.

    Returns
    -------
    StepMetrics
        Host work counts only through the time its device waits for it.

    Notes
    -----
    Of one device: step = compute + exposed communication + idle, where exposed communication is
    communication time without simultaneous computation. Means weigh a rank class by its `count`.

    Examples
    --------
    A 3 s kernel; a 2 s all-to-all starts 2 s into it; the step is 4 s:

    >>> from simmoe.graph.task import TaskGraph
    >>> pair, none = np.arange(2, dtype=np.int32), np.full(2, -1, dtype=np.int32)
    >>> graph = TaskGraph(
    ...     pair, pair, np.array([3.0, 2.0]), none, none, np.zeros(3, dtype=np.int32), none[:0],
    ...     (Operation("mlp", "forward", "gemm"), Operation("dispatch", "forward", "all_to_all")),
    ...     (Stream(0, "compute"), Stream(0, "ep")),
    ... )
    >>> timeline = Timeline(graph, np.array([0.0, 2.0]), np.array([3.0, 4.0]))
    >>> metrics = step_metrics(timeline, [RankClass(0, "h100-sxm", 8, 0)])
    >>> metrics.breakdown_s
    {'gemm': 3.0, 'all_to_all': 1.0, 'idle': 0.0}
    >>> metrics.ranks[0].overlapped_s, metrics.utilization
    (1.0, {'h100-sxm': 0.75})
    """
    each = rank_metrics(timeline, ranks)
    mean = _mean_over_devices(each)
    breakdown = _mean_by_key((m.breakdown_s for m in each), mean)
    step = timeline.makespan
    return StepMetrics(
        step_time_s=step,
        bubble_fraction=mean([m.bubble_fraction for m in each]),
        compute_s=mean([m.compute_s for m in each]),
        communication_s=mean([m.communication_s for m in each]),
        overlapped_s=mean([m.overlapped_s for m in each]),
        exposed_communication_s=mean([m.exposed_communication_s for m in each]),
        exposed_by_collective_s={c: s for c, s in breakdown.items() if c in COLLECTIVES},
        breakdown_s=breakdown,
        utilization=_utilization(each, step),
        ranks=each,
    )


def rank_metrics(timeline: Timeline, ranks: Sequence[RankClass]) -> tuple[RankMetrics, ...]:
    """The metrics of every rank class, in their order; see `step_metrics`."""
    graph, step = timeline.graph, timeline.makespan
    names = sorted({operation.category for operation in graph.operations})
    category = np.array([names.index(operation.category) for operation in graph.operations], dtype=np.int16)
    queues: list[list[NDArray[np.int64]]] = [[] for _ in ranks]
    for stream, tasks in zip(graph.streams, tasks_by_stream(graph), strict=True):
        if on_device(stream) and len(tasks):
            queues[stream.rank].append(tasks)
    return tuple(
        _one_rank(rank, _work(timeline, own, category), names, step) for rank, own in zip(ranks, queues, strict=True)
    )


class _Work(NamedTuple):
    """What the streams of one rank run when, labelled with the numbers of the categories, and which those are."""

    lanes: list[Lane]
    categories: list[list[int]]


def _work(timeline: Timeline, queues: Sequence[NDArray[np.int64]], category: Labels) -> _Work:
    if not queues:
        return _Work([], [])
    tasks, bounds = np.concatenate(queues), np.cumsum([0, *map(len, queues)])
    label = category.take(timeline.graph.operation.take(tasks))
    lanes = lanes_of(timeline.start.take(tasks), timeline.end.take(tasks), label, bounds)
    numbers = range(int(category.max()) + 1)
    used = [
        [number for number in numbers if (label[low:high] == number).any()] for low, high in pairwise(bounds.tolist())
    ]
    return _Work(lanes, used)


def _one_rank(rank: RankClass, work: _Work, names: Sequence[str], step: float) -> RankMetrics:
    edges, labels = common_segments(work.lanes)
    length = np.diff(edges)
    running = _running(labels, work.categories, names)
    kernels = {c: r for c, r in running.items() if c not in COLLECTIVES}
    computes = _any(kernels.values(), len(length))
    compute_s, share = _total(length, computes), _shared(length, kernels.values())
    breakdown = {c: _total(share, r) for c, r in kernels.items()}
    # From here on only what no kernel or a collective runs in; of both there is little.
    rest = np.flatnonzero(~computes | _any((r for c, r in running.items() if c in COLLECTIVES), len(length)))
    length, computes = length[rest], computes[rest]
    sends = {c: r[rest] for c, r in running.items() if c in COLLECTIVES}
    communicates = _any(sends.values(), len(length))
    exposed = communicates & ~computes
    exposed_s = _total(length, exposed)
    share = np.where(exposed, _shared(length, sends.values()), 0.0)
    breakdown |= {c: float(share[r].sum()) for c, r in sends.items()}
    outside = max(step - compute_s - exposed_s, 0.0)  # rounding alone can make it negative
    return RankMetrics(
        rank=rank.first_rank,
        stage=rank.stage,
        accelerator=rank.accelerator,
        count=rank.count,
        window_s=float(edges[-1] - edges[0]) if len(edges) else 0.0,
        compute_s=compute_s,
        communication_s=_total(length, communicates),
        overlapped_s=_total(length, communicates & computes),
        exposed_communication_s=exposed_s,
        idle_s=_total(length, ~(communicates | computes)),
        bubble_fraction=outside / step if step else 0.0,
        breakdown_s={c: breakdown[c] for c in running} | {IDLE: outside},
        communication_by_collective_s={c: _total(length, r) for c, r in sends.items()},
        role=rank.role,
    )


def _any(masks: Iterable[Mask], size: int) -> Mask:
    """The segments in which at least one mask is set."""
    found = np.zeros(size, dtype=np.bool_)
    for mask in masks:
        found |= mask
    return found


def _shared(length: FloatArray, masks: Iterable[Mask]) -> FloatArray:
    """The part of each segment that goes to each of the masks that are set in it."""
    running = np.zeros(len(length), dtype=np.uint8)
    for mask in masks:
        running += mask.view(np.uint8)
    return length / np.maximum(running, 1) if running.max(initial=0) > 1 else length


def _total(length: FloatArray, chosen: Mask) -> float:
    """Summed length of the chosen segments."""
    return float(length.take(np.flatnonzero(chosen)).sum())


def _running(labels: Sequence[Labels], categories: Sequence[Sequence[int]], names: Sequence[str]) -> dict[str, Mask]:
    """For every category of the streams, the segments in which it runs."""
    running: dict[int, Mask] = {}
    for own, used in zip(labels, categories, strict=True):
        for number in used:
            found = own == number
            running[number] = running[number] | found if number in running else found
    return {names[number]: running[number] for number in sorted(running)}


def _mean_over_devices(each: Sequence[RankMetrics]) -> Callable[[Sequence[float]], float]:
    """The mean of one value a rank class, weighted by the devices of the class."""
    counts = np.array([m.count for m in each], dtype=np.float64)

    def mean(values: Sequence[float]) -> float:
        return float(counts @ np.array(values) / counts.sum()) if len(values) else 0.0

    return mean


def _mean_by_key(tables: Iterable[dict[str, float]], mean: Callable[[Sequence[float]], float]) -> dict[str, float]:
    """Mean of each key, absent = 0; the largest first (equal ones by name), idle last."""
    held = list(tables)
    means = {key: mean([table.get(key, 0.0) for table in held]) for key in set().union(*held)}
    return dict(sorted(means.items(), key=lambda item: (item[0] == IDLE, -item[1], item[0])))


def _utilization(each: Sequence[RankMetrics], step: float) -> dict[str, float]:
    """Share of the step in which the devices of each type compute [1]."""
    types = dict.fromkeys(m.accelerator for m in each)
    found = {}
    for accelerator in types:
        own = [m for m in each if m.accelerator == accelerator]
        computed = _mean_over_devices(own)([m.compute_s for m in own])
        found[accelerator] = computed / step if step else 0.0
    return found
