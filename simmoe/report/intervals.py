"""Lengths of unions and overlaps of time intervals, without a time step and without loops.

All end points of the intervals cut time into segments; inside a segment nothing starts or ends, so
every question about "while" becomes a sum over segments. What comes in order, as the tasks of a stream do, is merged
and not sorted.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.errors import InternalError
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


# ---------------------------------------------------------------- intervals that come in order

Labels = NDArray[np.int16]
NOTHING = -1  # the label of the time between intervals


class Lane(NamedTuple):
    """Labelled intervals one after another, as cuts and what lies before each of them.

    Attributes
    ----------
    points : array of float64
        Every distinct start and end [s], ascending.
    label : array of int16
        Of what covers the time from the cut before to this one; `NOTHING` in gaps and before the first.
    """

    points: FloatArray
    label: Labels


def lanes_of(start: FloatArray, end: FloatArray, label: Labels, bounds: NDArray[np.int64]) -> list[Lane]:
    """Turn intervals that follow each other into lanes.

    Parameters
    ----------
    start, end : arrays, shape (intervals,)
        [s]; inside a lane every interval starts at or after the end of the one before it.
    label : array of int16, shape (intervals,)
    bounds : array of int64, shape (lanes + 1,)
        Lane k holds the intervals ``bounds[k]:bounds[k + 1]``.

    Raises
    ------
    InternalError
        If intervals of a lane overlap.

    Examples
    --------
    1-2 and 2-3 touch, 4-5 stands apart:

    >>> times = np.array([1.0, 2.0, 4.0])
    >>> (lane,) = lanes_of(times, times + 1, np.array([7, 8, 9], dtype=np.int16), np.array([0, 3]))
    >>> lane.points.tolist(), lane.label.tolist()
    ([1.0, 2.0, 3.0, 4.0, 5.0], [-1, 7, 8, -1, 9])
    """
    apart, first = np.ones(len(start), dtype=np.bool_), bounds[:-1][bounds[:-1] < len(start)]
    np.less(start[1:], end[:-1], out=apart[1:])
    apart[first] = False
    if apart.any():
        raise InternalError("an interval starts before the one before it in its lane has ended")
    np.not_equal(start[1:], end[:-1], out=apart[1:])
    apart[first] = True
    opening = np.flatnonzero(apart)
    place = opening + np.arange(len(opening))
    points, found = _inserted(end, place, start[opening]), _inserted(label, place, np.int16(NOTHING))
    cuts = bounds + np.searchsorted(opening, bounds)
    new = np.ones(len(points), dtype=np.bool_)
    np.not_equal(points[1:], points[:-1], out=new[1:])
    new[cuts[:-1][cuts[:-1] < len(points)]] = True
    if not new.all():  # an interval was empty
        points, found, cuts = points[new], found[new], np.concatenate([[0], np.cumsum(new)])[cuts]
    return [Lane(points[low:high], found[low:high]) for low, high in pairwise(cuts.tolist())]


def common_segments(lanes: Sequence[Lane]) -> tuple[FloatArray, list[Labels]]:
    """All cuts of some lanes [s], ascending, and what covers each segment between them in every lane.

    Examples
    --------
    0-3 over 2-4:

    >>> none = NOTHING
    >>> upper = Lane(np.array([0.0, 3.0]), np.array([none, 1], dtype=np.int16))
    >>> lower = Lane(np.array([2.0, 4.0]), np.array([none, 2], dtype=np.int16))
    >>> edges, (above, below) = common_segments([upper, lower])
    >>> edges.tolist(), above.tolist(), below.tolist()
    ([0.0, 2.0, 3.0, 4.0], [1, 1, -1], [-1, 2, 2])
    """
    if not lanes:
        return np.zeros(0), []
    longest = max(range(len(lanes)), key=lambda number: len(lanes[number].points))
    points, label = lanes[longest]
    rest = [lane.points for number, lane in enumerate(lanes) if number != longest]
    others = np.unique(np.concatenate([points[:0], *rest]))
    at = _places(lanes[longest], others)
    new = points.take(at, mode="clip") != others if len(points) else np.ones(len(others), dtype=np.bool_)
    place = at + np.cumsum(new) - new  # where each of the others stands among all cuts
    edges = _inserted(points, place[new], others[new])
    beside = np.append(label, np.int16(NOTHING))[at[new]]  # a segment that is cut in two
    found = [
        _inserted(label, place[new], beside)
        if number == longest
        else _spread(lane, place[np.searchsorted(others, lane.points)], len(edges))
        for number, lane in enumerate(lanes)
    ]
    return edges, [labels[1:] for labels in found]


def _places(lane: Lane, points: FloatArray) -> NDArray[np.int64]:
    """`np.searchsorted` of points among the cuts of a lane, most of which are the ends of its gaps."""
    gap = lane.label == NOTHING
    gap[:-1] |= gap[1:]
    hint = np.flatnonzero(gap)
    if not len(hint):
        return np.searchsorted(lane.points, points)
    found = hint.take(np.searchsorted(lane.points[hint], points), mode="clip")
    elsewhere = np.flatnonzero(lane.points[found] != points)
    found[elsewhere] = np.searchsorted(lane.points, points[elsewhere])
    return found


def _spread(lane: Lane, place: NDArray[np.int64], edges: int) -> Labels:
    """The labels of a lane whose cuts stand at some places among more cuts, one for each of those."""
    behind = np.append(np.concatenate([[-1], place]), edges - 1)
    return np.repeat(np.append(lane.label, np.int16(NOTHING)), np.diff(behind))


def _inserted(values: Any, place: NDArray[np.int64], new: Any) -> Any:
    """Values with new ones put in between: `place` says where those stand in the result, ascending."""
    found = np.empty(len(values) + len(place), dtype=values.dtype)
    old = np.ones(len(found), dtype=np.bool_)
    old[place] = False
    found[old] = values
    found[place] = new
    return found
