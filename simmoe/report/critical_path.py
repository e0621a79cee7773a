"""The chain of tasks that sets the step time: the step cannot get shorter unless this chain does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simmoe.engine.record import Timeline
from simmoe.errors import InternalError
from simmoe.graph.task import FloatArray, IntArray, spread_runs
from simmoe.report.binding import binding_predecessors

_Key = TypeVar("_Key", str, int)


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Tasks that follow each other without a gap from time 0 to the end of the step.

    Attributes
    ----------
    tasks : tuple of int
        In the order of time.
    by_category_s : dict
        Category -> seconds on the path, the largest first; sums to the step time.
    by_rank_s : dict
        Index of the rank class -> seconds on the path, in the order of the classes.
    """

    tasks: tuple[int, ...]
    by_category_s: dict[str, float]
    by_rank_s: dict[int, float]


def critical_path(timeline: Timeline) -> CriticalPath:
    """The chain of tasks behind the step time.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    CriticalPath
        Empty for a timeline without tasks.

    Raises
    ------
    InternalError
        If a task started later than it had to, which the engine never lets happen.

    Notes
    -----
    Walks back from the task that ends last. Before it comes the predecessor, or the task before it
    on its stream, that ended exactly when it started: a start is the maximum of those ends, so there
    is always one, and no waiting is left over. Among equals the smallest task id is taken, also for
    the last task; other paths of the same length may exist.

    Examples
    --------
    The receiver's 1 s of work waits for a 2 s send, which waits for 3 s of work:

    >>> from simmoe.graph.task import Operation, Stream, TaskGraph, compressed_rows
    >>> rows, none = np.arange(3, dtype=np.int32), np.full(3, -1, dtype=np.int32)
    >>> graph = TaskGraph(
    ...     np.array([0, 1, 0], dtype=np.int32), rows, np.array([3.0, 2.0, 1.0]), none, none,
    ...     *compressed_rows(np.array([0, 1]), np.array([1, 2]), 3),
    ...     (Operation("mlp", "forward", "gemm"), Operation("send", "forward", "send_recv")),
    ...     (Stream(0, "compute"), Stream(0, "pp_forward"), Stream(1, "compute")),
    ... )
    >>> timeline = Timeline(graph, np.array([0.0, 3.0, 5.0]), np.array([3.0, 5.0, 6.0]))
    >>> critical_path(timeline)  # doctest: +NORMALIZE_WHITESPACE
    CriticalPath(tasks=(0, 1, 2), by_category_s={'gemm': 4.0, 'send_recv': 2.0},
                 by_rank_s={0: 5.0, 1: 1.0})
    """
    tasks = _walk_back(timeline)
    graph = timeline.graph
    seconds = graph.duration[tasks]
    by_category = _sums([operation.category for operation in graph.operations], graph.operation[tasks], seconds)
    by_rank = _sums([stream.rank for stream in graph.streams], graph.stream[tasks], seconds)
    return CriticalPath(
        tasks=tuple(tasks.tolist()),
        by_category_s=dict(sorted(by_category.items(), key=lambda item: (-item[1], item[0]))),
        by_rank_s=dict(sorted(by_rank.items())),
    )


def _walk_back(timeline: Timeline) -> NDArray[np.int64]:
    """Task ids of the path, in the order of time."""
    if not len(timeline):
        return np.empty(0, dtype=np.int64)
    binding = binding_predecessors(timeline)
    # Most tasks are let start by the one numbered one less: such runs are taken in one go.
    chained = ((binding >= 0) & (binding == np.arange(-1, len(timeline) - 1, dtype=np.int32))).tobytes()
    before = binding.data  # a memory view hands out Python numbers one by one, without a list of all of them
    first, last = [], []
    task = int(np.argmax(timeline.end))  # the first of equal maxima
    while task >= 0:
        last.append(task)
        first.append(chained.rfind(0, 0, task + 1))
        task = before[first[-1]]
    if timeline.start[first[-1]] != 0.0:
        moment = timeline.start[first[-1]]
        raise InternalError(f"task {first[-1]} starts at {moment:g} s, when nothing before it ended")
    begins, ends = np.array(first[::-1]), np.array(last[::-1])
    return spread_runs(begins, ends - begins + 1)


def _sums(keys: Sequence[_Key], numbers: IntArray, seconds: FloatArray) -> dict[_Key, float]:
    """Seconds summed by key, one after another; `numbers` index `keys`, which may repeat."""
    distinct = list(dict.fromkeys(keys))
    place = np.array([distinct.index(key) for key in keys], dtype=np.int64)[numbers]
    sums, used = np.bincount(place, weights=seconds), np.bincount(place)
    return {distinct[number]: float(sums[number]) for number in np.flatnonzero(used).tolist()}
