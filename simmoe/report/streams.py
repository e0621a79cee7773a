"""The tasks of a graph stream by stream, without sorting what is in order already."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simmoe.graph.task import IntArray, TaskGraph, spread_runs

Ids = NDArray[np.int64]


def tasks_by_stream(graph: TaskGraph) -> Iterator[Ids]:
    """The tasks of each stream in order of issue, stream after stream.

    Examples
    --------
    >>> stream, none = np.array([1, 0, 0, 1], dtype=np.int32), np.zeros(4, dtype=np.int32)
    >>> graph = TaskGraph(none, stream, np.ones(4), none, none, np.zeros(5, np.int32), none[:0], (), (None, None))
    >>> [tasks.tolist() for tasks in tasks_by_stream(graph)]
    [[1, 2], [0, 3]]
    """
    first, length, stream = _runs(graph)
    bounds = np.searchsorted(stream, np.arange(len(graph.streams) + 1)).tolist()
    return (spread_runs(first[low:high], length[low:high]) for low, high in pairwise(bounds))


def before_on_stream(graph: TaskGraph) -> IntArray:
    """For every task the one before it on its stream, -1 for the first.

    Examples
    --------
    >>> stream, none = np.array([1, 0, 0, 1], dtype=np.int32), np.zeros(4, dtype=np.int32)
    >>> graph = TaskGraph(none, stream, np.ones(4), none, none, np.zeros(5, np.int32), none[:0], (), (None, None))
    >>> before_on_stream(graph).tolist()
    [-1, -1, 1, 0]
    """
    before = np.arange(-1, len(graph) - 1, dtype=np.int32)
    first, length, stream = _runs(graph)
    before[first[1:]] = np.where(stream[1:] == stream[:-1], (first + length - 1)[:-1], -1)
    before[first[:1]] = -1
    return before


def _runs(graph: TaskGraph) -> tuple[Ids, Ids, NDArray[np.integer]]:
    """Runs of consecutive tasks on one stream: first task, length and stream; by stream, then by issue.

    Streams take turns in such runs, which are fewer than tasks.
    """
    opens = np.ones(len(graph), dtype=np.bool_)
    np.not_equal(graph.stream[1:], graph.stream[:-1], out=opens[1:])
    first = np.flatnonzero(opens)
    length = np.diff(first, append=len(graph))
    stream = graph.stream[first].astype(np.min_scalar_type(len(graph.streams)))  # 8 and 16 bits are sorted by radix
    order = np.argsort(stream, kind="stable")
    return first[order], length[order], stream[order]
