"""Lengths of unions and overlaps of time intervals, without a time step and without loops.

All end points of the intervals cut time into segments; inside a segment nothing starts or ends, so
every question about "while" becomes a sum over segments.
"""

import numpy as np
from numpy.typing import NDArray

from simmoe.graph.task import FloatArray


def segment_edges(*points: FloatArray) -> FloatArray:
    """Every distinct start and end, ascending: the cuts between segments [s].

    Examples
    --------
    >>> segment_edges(np.array([0.0, 2.0]), np.array([2.0, 3.0])).tolist()
    [0.0, 2.0, 3.0]
    """
    return np.unique(np.concatenate(points))


def active(edges: FloatArray, start: FloatArray, end: FloatArray) -> NDArray[np.int64]:
    """How many of the intervals cover each segment.

    Parameters
    ----------
    edges : array, shape (segments + 1,)
        Cuts [s], ascending, with every start and end among them.
    start, end : arrays, shape (intervals,)
        Intervals [s]; an empty one (start = end) covers nothing.

    Returns
    -------
    array of int64, shape (segments,)

    Examples
    --------
    >>> active(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0]), np.array([2.0, 3.0])).tolist()
    [1, 2, 1]
    """
    size = len(edges)
    begun = np.bincount(np.searchsorted(edges, start), minlength=size)
    ended = np.bincount(np.searchsorted(edges, end), minlength=size)
    return np.cumsum(begun - ended)[:-1]


def union_length(start: FloatArray, end: FloatArray) -> float:
    """Time covered by at least one of the intervals [s].

    Parameters
    ----------
    start, end : arrays, shape (intervals,)
        Intervals [s], in any order, overlapping or not.

    Examples
    --------
    0-2, 1-3 and 5-6 cover 3 + 1:

    >>> union_length(np.array([5.0, 0.0, 1.0]), np.array([6.0, 2.0, 3.0]))
    4.0
    """
    edges = segment_edges(start, end)
    return float(np.diff(edges)[active(edges, start, end) > 0].sum())


def overlap_length(start: FloatArray, end: FloatArray, other_start: FloatArray, other_end: FloatArray) -> float:
    """Time covered by an interval of both sets [s].

    Parameters
    ----------
    start, end, other_start, other_end : arrays
        The two sets of intervals [s].

    Examples
    --------
    0-2 and 3-6 against 1-4: 1-2 and 3-4.

    >>> overlap_length(np.array([0.0, 3.0]), np.array([2.0, 6.0]), np.array([1.0]), np.array([4.0]))
    2.0
    """
    edges = segment_edges(start, end, other_start, other_end)
    both = (active(edges, start, end) > 0) & (active(edges, other_start, other_end) > 0)
    return float(np.diff(edges)[both].sum())
