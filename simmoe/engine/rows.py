"""A task graph's structure in the form that the fast passes work on: rows in stream order, one wait each.

Lay the streams one after another, each in its order of issue; then the row before a task's row is the task before it
on its stream. A task gets one row for each task of another stream that it waits for (at least one row): all but the
last take no time and only collect a wait, because max(a, b, c) = max(max(a, b), c) holds exactly in floating point.
So every row obeys the same rule, with two operands::

    end[row] = max(end[row - 1], end[awaited[row]]) + seconds[row]

A barrier row closes each stream: it never ends, so a pass needs no test for a stream's last row.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.graph.task import FloatArray, IntArray, TaskGraph

Index = NDArray[np.intp]


class Rows(NamedTuple):
    """The structure of a graph, without durations: it serves any durations of the same graph.

    Attributes
    ----------
    task : array of intp, shape (tasks,)
        The (last) row of each task.
    awaited : array of intp, shape (rows,)
        The row of another stream that a row waits for; the number of rows where there is none.
    first, barrier : array of intp, shape (streams that have tasks,)
        First row and barrier row of each stream.
    """

    task: Index
    awaited: Index
    first: Index
    barrier: Index

    def spread(self, duration: FloatArray) -> FloatArray:
        """Durations of tasks as durations of rows [s]; a barrier lasts for ever."""
        seconds = np.zeros(len(self.awaited))
        seconds[self.task] = duration
        seconds[self.barrier] = np.inf
        return seconds

    def starts(self, ends: FloatArray) -> FloatArray:
        """Starts of tasks [s] from the ends of all rows as `simmoe.engine.lockstep.row_ends` returns them."""
        start = ends[self.awaited]
        np.maximum(start[1:], ends[:-2], out=start[1:])
        return start[self.task]


def rows_of(graph: TaskGraph) -> Rows:
    """Lay out the rows of a graph.

    Parameters
    ----------
    graph : TaskGraph
        With at least one task. Durations are not looked at.

    Returns
    -------
    Rows

    Notes
    -----
    Linear in tasks and edges for fewer than 65,536 streams (numpy sorts keys of 8 and 16 bits by radix).

    Examples
    --------
    Stream 0 holds tasks 0 and 2, stream 1 holds task 1, which waits for task 0; rows 2 and 4 are barriers:

    >>> from simmoe.graph.task import compressed_rows
    >>> start, predecessor = compressed_rows(np.array([0]), np.array([1]), 3)
    >>> stream, none = np.array([0, 1, 0], dtype=np.int32), np.zeros(3, dtype=np.int32)
    >>> graph = TaskGraph(none, stream, np.ones(3), none, none, start, predecessor, (), (None, None))
    >>> rows = rows_of(graph)
    >>> rows.task.tolist(), rows.awaited.tolist(), rows.first.tolist(), rows.barrier.tolist()
    ([0, 3, 1], [5, 5, 5, 0, 5], [0, 3], [2, 4])
    """
    stream = graph.stream.astype(np.min_scalar_type(len(graph.streams)))
    order = np.argsort(stream, kind="stable")
    sorted_stream = stream[order]
    opens = np.ones(len(graph), dtype=bool)
    np.not_equal(sorted_stream[1:], sorted_stream[:-1], out=opens[1:])
    target, source = _cross_edges(graph, stream)
    waits = np.bincount(target, minlength=len(graph))
    single = waits.max() <= 1

    size = 1 if single else np.maximum(waits[order], 1)
    last_row = np.cumsum(opens + size) - 2  # one barrier before every stream but the first
    barrier = last_row[np.append(np.flatnonzero(opens)[1:] - 1, -1)] + 1
    task = np.empty(len(graph), dtype=np.intp)
    task[order] = last_row
    total = int(barrier[-1]) + 1
    awaited = np.full(total, total, dtype=np.intp)
    at = task[target]
    if not single:
        before = np.cumsum(waits) - waits
        at += 1 - waits[target] + np.arange(len(target)) - before[target]
    awaited[at] = task[source]
    return Rows(task, awaited, np.append(0, barrier[:-1] + 1), barrier)


def _cross_edges(graph: TaskGraph, stream: NDArray[np.integer]) -> tuple[NDArray[np.integer], IntArray]:
    """Target and source of the edges that the order of a stream does not already ensure, by ascending target."""
    source, degree = graph.predecessor, np.diff(graph.predecessor_start)
    # Most tasks of a bare pipeline wait for one other; finding these is quicker than repeating.
    single = degree.max(initial=0) <= 1
    target = np.flatnonzero(degree) if single else np.repeat(np.arange(len(graph)), degree)
    kept = (stream[source] != stream[target]) | (source >= target)
    return (target, source) if kept.all() else (target[kept], source[kept])
