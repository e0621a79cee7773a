"""The chain of tasks that sets the step time: the step cannot get shorter unless this chain does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simmoe.engine.record import TaskView, Timeline
from simmoe.errors import InternalError
from simmoe.graph.task import TaskGraph

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

    >>> from simmoe.graph.task import Operation, Stream, compressed_rows
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
    categories = [graph.operations[i].category for i in graph.operation[tasks]]
    ranks = [graph.streams[i].rank for i in graph.stream[tasks]]
    by_category, by_rank = _sums(categories, seconds), _sums(ranks, seconds)
    return CriticalPath(
        tasks=tuple(tasks.tolist()),
        by_category_s=dict(sorted(by_category.items(), key=lambda item: (-item[1], item[0]))),
        by_rank_s=dict(sorted(by_rank.items())),
    )


def longest_tasks(timeline: Timeline, path: CriticalPath, limit: int = 10) -> tuple[TaskView, ...]:
    """The tasks of the path that last longest, for people; equal ones by task id.

    Parameters
    ----------
    timeline : Timeline
    path : CriticalPath
        Of this timeline.
    limit : int
        Most tasks returned.
    """
    duration = timeline.graph.duration
    longest = sorted(path.tasks, key=lambda task: (-float(duration[task]), task))
    return tuple(timeline[task] for task in longest[:limit])


def _walk_back(timeline: Timeline) -> NDArray[np.int64]:
    """Task ids of the path, in the order of time."""
    graph, start, end = timeline.graph, timeline.start, timeline.end
    if not len(graph):
        return np.empty(0, dtype=np.int64)
    before = _before_on_stream(graph)
    task = int(np.argmax(end))  # the first of equal maxima
    path = [task]
    while True:
        candidates = [before[task]] if before[task] >= 0 else []
        candidates += graph.predecessors(task).tolist()
        ready = [other for other in candidates if end[other] == start[task]]
        if not ready:
            break
        task = min(ready)
        path.append(task)
    if start[task] != 0.0:
        raise InternalError(f"task {task} starts at {start[task]:g} s, when nothing before it ended")
    return np.array(path[::-1], dtype=np.int64)


def _before_on_stream(graph: TaskGraph) -> list[int]:
    """For every task the one before it on its stream, -1 for the first."""
    order = np.argsort(graph.stream, kind="stable")
    same = graph.stream[order[1:]] == graph.stream[order[:-1]]
    before = np.full(len(graph), -1, dtype=np.int64)
    before[order[1:][same]] = order[:-1][same]
    found: list[int] = before.tolist()
    return found


def _sums(keys: Sequence[_Key], seconds: NDArray[np.float64]) -> dict[_Key, float]:
    """Seconds summed by key."""
    sums: dict[_Key, float] = {}
    for key, value in zip(keys, seconds.tolist(), strict=True):
        sums[key] = sums.get(key, 0.0) + value
    return sums
