"""The ends of all rows without compiled code: many streams a step in numpy, or one stream at a time in Python.

Both apply the rule of `simmoe.engine.rows` to every row once, in another order, and so give the same bits. Which one
is quicker depends only on how many streams can advance at once.
"""

from typing import NamedTuple

import numpy as np

from simmoe.engine.rows import Rows
from simmoe.graph.task import FloatArray

# Seconds on a 2.3 GHz core, measured; only their ratios matter, and only for speed.
_ROUND, _ROUND_STREAM = 2e-6, 20e-9
_WALK_SEGMENT, _WALK_ROW = 900e-9, 100e-9
_CHECK = 64  # rounds between looks at the progress


def row_ends(rows: Rows, seconds: FloatArray) -> FloatArray:
    """End of every row by the quicker pass.

    Parameters
    ----------
    rows : Rows
    seconds : array of float64, shape (rows,)
        Duration of every row [s], from `Rows.spread`.

    Returns
    -------
    array of float64, shape (rows + 1,)
        [s]; infinite for a row in or behind a circle. Barriers have 0, so that the row before the first of a stream
        has ended at 0, and so has the last entry, what a row waits for that waits for nothing.

    Notes
    -----
    How deep the graph is shows only on the way. The lockstep is stopped when it has cost as much as the walk would, or
    is clearly going to; so the choice is at most about twice as slow as the better one.
    """
    segments = np.count_nonzero(rows.awaited < len(rows.awaited)) + len(rows.first)
    walk_cost = _WALK_SEGMENT * segments + _WALK_ROW * len(rows.awaited)
    limit = int(walk_cost / (_ROUND + _ROUND_STREAM * len(rows.first)))
    # A stream advances by one row a round at most, and pipelines take some rounds more than their longest stream.
    shallow = 1.3 * int((rows.barrier - rows.first).max()) <= limit
    ends = lockstep(rows, seconds, limit) if shallow else None
    if ends is None:
        ends = walk(rows, seconds)
    ends[rows.barrier] = 0.0
    return ends


def lockstep(rows: Rows, seconds: FloatArray, limit: int | None = None) -> FloatArray | None:
    """Advance all streams by at most one row a round; parameters and result as in `row_ends`, but barriers never end.

    `limit` is the number of rounds after which to give up and return None.
    """
    ends = np.full(len(seconds) + 1, np.inf)  # "has not ended yet"
    ends[-1] = 0.0
    head = rows.first.copy()
    streams = len(head)
    free, end, step = np.zeros(streams), np.empty(streams), np.empty(streams)
    awaited, ready = np.empty(streams, dtype=np.intp), np.empty(streams, dtype=bool)
    take_awaited, take_end, take_step = rows.awaited.take, ends.take, seconds.take  # a look-up costs in this loop
    maximum, add, isfinite, copyto = np.maximum, np.add, np.isfinite, np.copyto
    begin, goal, reached, rounds = int(head.sum()), int(rows.barrier.sum()), -1, 0
    while reached < (reached := int(head.sum())) < goal:
        if limit is not None and _too_slow(rounds, limit, (reached - begin) / (goal - begin)):
            return None
        rounds += _CHECK
        for _ in range(_CHECK):
            # All heads are tried; one whose wait has not ended gets the end "infinite" and stays.
            take_awaited(head, None, awaited, "clip")
            take_end(awaited, None, end, "clip")
            maximum(end, free, out=end)
            take_step(head, None, step, "clip")
            add(end, step, end)
            ends[head] = end
            isfinite(end, ready)
            copyto(free, end, where=ready)
            add(head, ready, head)
    return ends


def _too_slow(rounds: int, limit: int, done: float) -> bool:
    """Whether the limit is passed, or a part of it was enough to see that it will be passed by far."""
    return rounds > limit or (8 * rounds > limit and rounds > 2 * limit * done)


def walk(rows: Rows, seconds: FloatArray) -> FloatArray:
    """Run one stream until it must wait, then another; parameters and result as in `row_ends`.

    A segment is a row that waits for another stream and the rows after it that do not; it runs in one go. A stream
    that must wait for a segment is parked behind it and goes on when that has run.
    """
    begin, awaited, waits_for, barrier = _segments(rows)
    lengths, never = seconds.tolist(), np.inf
    ends = [never] * len(lengths) + [0.0]
    parked, behind, clock = [-1] * len(awaited), [-1] * len(awaited), [0.0] * len(awaited)
    ready = [segment + 1 for segment, closes in enumerate(barrier[:-1]) if closes] + [0]
    while ready:
        segment = ready.pop()
        free = clock[segment]
        while not barrier[segment]:
            end = ends[awaited[segment]]
            if end == never:
                other = waits_for[segment]
                behind[segment], parked[other], clock[segment] = parked[other], segment, free
                break
            free = max(free, end)
            for row in range(begin[segment], begin[segment + 1]):
                free += lengths[row]
                ends[row] = free
            woken = parked[segment]
            while woken >= 0:
                ready.append(woken)
                woken = behind[woken]
            segment += 1
    return np.array(ends)


class _Segments(NamedTuple):
    """Lists for `walk`, one entry a segment (`begin`: one more); a barrier is a segment of its own."""

    begin: list[int]
    awaited: list[int]
    waits_for: list[int]
    barrier: list[bool]


def _segments(rows: Rows) -> _Segments:
    """Cut the rows into segments."""
    total = len(rows.awaited)
    opens = rows.awaited < total
    opens[rows.first] = True
    opens[rows.barrier] = True
    begin = np.flatnonzero(opens)
    segment_of = np.append(np.cumsum(opens) - 1, -1)
    awaited = rows.awaited[begin]
    barrier = np.zeros(len(begin), dtype=bool)
    barrier[segment_of[rows.barrier]] = True
    return _Segments([*begin.tolist(), total], awaited.tolist(), segment_of[awaited].tolist(), barrier.tolist())
