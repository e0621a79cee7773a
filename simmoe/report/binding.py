"""Which task let each task of a timeline start: the link that critical paths and idle times are followed along."""

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simmoe.engine.record import Timeline
from simmoe.graph.task import IntArray, spread_runs
from simmoe.report.streams import before_on_stream


def binding_predecessors(timeline: Timeline) -> IntArray:
    """For every task the one whose end let it start, -1 where it waited for none.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    array of int32, shape (tasks,)
        Of the predecessors and the task before it on its stream that ended exactly at its start, the smallest id.

    Notes
    -----
    Linear in tasks and edges.

    Examples
    --------
    Two streams; task 2 waits for task 1, which ends when task 0 does:

    >>> from simmoe.graph.task import Stream, TaskGraph, compressed_rows
    >>> stream, none = np.array([0, 1, 0], dtype=np.int32), np.zeros(3, dtype=np.int32)
    >>> rows, streams = compressed_rows(np.array([1]), np.array([2]), 3), (Stream(0, "compute"), Stream(0, "ep"))
    >>> graph = TaskGraph(none, stream, np.ones(3), none, none, *rows, (), streams)
    >>> binding_predecessors(Timeline(graph, np.array([0.0, 0.0, 1.0]), np.array([1.0, 1.0, 2.0]))).tolist()
    [-1, -1, 0]
    """
    return links(timeline)[1]


def links(timeline: Timeline) -> tuple[IntArray, IntArray]:
    """For every task the one before it on its stream, and `binding_predecessors`; -1 for none.

    The last answer is kept while its timeline lives: critical path and idle times ask for the same.
    """
    graph = timeline.graph
    arrays = (timeline.start, timeline.end, graph.stream, graph.predecessor_start, graph.predecessor)
    for sources, answer in _latest:
        if all(source() is array for source, array in zip(sources, arrays, strict=True)):
            return answer
    found = _links(timeline)
    for array in found:
        array.setflags(write=False)
    _latest[:] = [(tuple(weakref.ref(array, _forget) for array in arrays), found)]
    return found


_latest: list[tuple[tuple["weakref.ref[NDArray[Any]]", ...], tuple[IntArray, IntArray]]] = []


def _forget(source: "weakref.ref[NDArray[Any]]") -> None:
    """Drop the kept answer when an array that it was worked out from is gone."""
    _latest[:] = [entry for entry in _latest if all(source is not other for other in entry[0])]


def _links(timeline: Timeline) -> tuple[IntArray, IntArray]:
    graph, start, end = timeline.graph, timeline.start, timeline.end
    before = before_on_stream(graph)
    found = before.copy()
    rest = np.flatnonzero(~chained(timeline))
    mine, nobody = before[rest], np.int32(len(graph))
    first_edge = graph.predecessor_start[rest]
    degree = graph.predecessor_start[rest + 1] - first_edge
    source = graph.predecessor[spread_runs(first_edge, degree)]
    row = np.repeat(np.arange(len(rest), dtype=np.int32), degree)
    ready = np.flatnonzero(end[source] == start[rest][row])[::-1]
    smallest = np.full(len(rest), nobody)
    smallest[row[ready]] = source[ready]  # of a row the first, and smallest, is written last
    waited = (mine >= 0) & (end[mine] == start[rest])
    smallest = np.minimum(smallest, np.where(waited, mine, nobody))
    found[rest] = np.where(smallest == nobody, np.int32(-1), smallest)
    return before, found


def chained(timeline: Timeline) -> NDArray[np.bool_]:
    """Where a task waited for the task numbered one less and could not have waited for another.

    That one stands before it on its stream and ended exactly at its start, and it has no further predecessor: so it is
    for kernel after kernel of a pass, and for most tasks.
    """
    graph = timeline.graph
    found = np.zeros(len(graph), dtype=np.bool_)
    first_edge, behind = graph.predecessor_start[1:-1], graph.predecessor_start[2:]
    found[1:] = timeline.start[1:] == timeline.end[:-1]
    found[1:] &= graph.stream[1:] == graph.stream[:-1]
    found[1:] &= behind - first_edge <= 1
    if len(graph.predecessor):
        only = graph.predecessor.take(first_edge, mode="clip")  # of another task, where a task has none
        found[1:] &= (only == np.arange(len(graph) - 1, dtype=np.int32)) | (first_edge == behind)
    return found
