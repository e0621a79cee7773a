"""The levels of a task graph: what can be worked out at the same time, and many durations in one pass over them."""

from typing import NamedTuple

import numpy as np

from simmoe.engine.lockstep import row_ends
from simmoe.engine.rows import Index, rows_of
from simmoe.graph.task import FloatArray, TaskGraph


class Levels(NamedTuple):
    """The rows of a graph (see `simmoe.engine.rows`) by level; every row waits for lower levels only.

    It holds structure only: computed once, it serves any durations of the same graph. Indices below are places in
    level order; the number of rows stands for "nothing", which ends at time 0.

    Attributes
    ----------
    bounds : array of intp, shape (levels + 1,)
        Level k is ``bounds[k]:bounds[k + 1]``.
    before : array of intp, shape (rows,)
        The row before on the same stream.
    awaited : array of intp, shape (rows,)
        The row of another stream that a row waits for.
    task : array of intp, shape (tasks,)
        The row of each task.
    """

    bounds: Index
    before: Index
    awaited: Index
    task: Index

    @property
    def nbytes(self) -> int:
        """Memory of the arrays [B]."""
        return sum(array.nbytes for array in self)

    def relax(self, work: FloatArray) -> None:
        """Turn durations into ends, in place.

        Parameters
        ----------
        work : array of float64, shape (rows + 1, draws)
            Durations by row [s]; the last row is 0.

        Notes
        -----
        A level is read only after it was written, and its durations are read when its ends are written, so that one
        array serves as both.
        """
        widest = int(np.diff(self.bounds).max(initial=0))
        start, other = (np.empty((widest, work.shape[1])) for _ in range(2))
        low = 0
        for high in self.bounds[1:].tolist():
            level, mine, theirs = work[low:high], start[: high - low], other[: high - low]
            work.take(self.before[low:high], axis=0, out=mine, mode="clip")
            work.take(self.awaited[low:high], axis=0, out=theirs, mode="clip")
            np.maximum(mine, theirs, out=mine)
            np.add(mine, level, out=level)
            low = high


def levels_of(graph: TaskGraph) -> Levels | None:
    """The levels of a graph, or None if tasks wait for each other in a circle.

    Parameters
    ----------
    graph : TaskGraph
        Durations are not looked at.

    Returns
    -------
    Levels or None

    Notes
    -----
    A row's level is its end when every row lasts 1 s, less one. Linear in tasks and edges.

    Examples
    --------
    Tasks 0 and 1 can run at once, task 2 waits for both:

    >>> from simmoe.graph.task import compressed_rows
    >>> start, predecessor = compressed_rows(np.array([1]), np.array([2]), 3)
    >>> stream, none = np.array([0, 1, 0], dtype=np.int32), np.zeros(3, dtype=np.int32)
    >>> graph = TaskGraph(none, stream, np.ones(3), none, none, start, predecessor, (), (None, None))
    >>> levels = levels_of(graph)
    >>> levels.bounds.tolist(), levels.task.tolist()
    ([0, 2, 3], [0, 1, 2])
    """
    if not len(graph):
        nothing = np.zeros(0, dtype=np.intp)
        return Levels(np.zeros(1, dtype=np.intp), nothing, nothing, nothing)
    rows = rows_of(graph)
    total, count = len(rows.awaited), len(rows.awaited) - len(rows.barrier)
    seconds = np.ones(total)
    seconds[rows.barrier] = np.inf
    ends = row_ends(rows, seconds)
    depth = ends.max()
    if depth == np.inf:
        return None
    ends[rows.barrier] = depth + 1  # behind all others
    level = ends[:-1].astype(np.uint16 if depth + 1 < 1 << 16 else np.int32)  # 16-bit keys are sorted by radix
    order = np.argsort(level, kind="stable")[:count]
    place = np.empty(total + 1, dtype=np.intp)
    place[order] = np.arange(count)
    place[rows.barrier] = place[total] = count
    bounds = np.cumsum(np.bincount(level)[: int(depth) + 1])  # no row is on level 0
    # The row before a stream's first is a barrier or the last entry, both "nothing".
    return Levels(bounds, place[order - 1], place[rows.awaited[order]], place[rows.task])
