"""Where the time of a trace or a step went: unions of intervals, and sums by class, collective and stream."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.calibration.collective_calls import collective_names
from simmoe.calibration.host_kernels import Span
from simmoe.calibration.kernel_classes import COMMUNICATION, TABLE, KernelClass, class_of
from simmoe.calibration.trace import KINDS, IntArray, Trace

Rows = NDArray[np.bool_]


class Share(NamedTuple):
    """Rows of a kind: how many, and the sum of their durations [ns]; concurrent ones add up."""

    rows: int
    sum_ns: int


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The time of a window.

    Attributes
    ----------
    window_ns, busy_ns, idle_ns : int
        From the first begin to the last end (or as asked); some work is running; nothing is [ns].
    compute_ns, comm_ns, memory_ns : int
        Some kernel that computes, some that communicates, some copy or fill is running [ns].
    overlapped_ns, exposed_ns : int
        Communication beside computation, and without [ns].
    exposed_memory_ns : int
        Copies and fills beside neither [ns].
    rows : int
        Kernels, copies and fills.
    by_class, by_collective, by_stream : dict of str to Share
        Largest first.

    Notes
    -----
    ::

        window = busy + idle,  busy = compute + exposed + exposed_memory,  comm = exposed + overlapped

    as unions of intervals, so that rows of several streams, or of one whose rows overlap, are counted once.
    """

    window_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    comm_ns: int
    memory_ns: int
    overlapped_ns: int
    exposed_ns: int
    exposed_memory_ns: int
    rows: int
    by_class: dict[str, Share]
    by_collective: dict[str, Share]
    by_stream: dict[str, Share]


def union_ns(start: IntArray, end: IntArray) -> int:
    """How long at least one of some intervals is open [ns].

    Parameters
    ----------
    start, end : array of int
        [ns].

    Examples
    --------
    >>> union_ns(np.array([0, 5, 20]), np.array([10, 12, 25]))
    17
    """
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    begins, ends = start[order], np.maximum.accumulate(end[order])
    fresh = np.append(-1, np.maximum(begins[1:] - ends[:-1], 0))
    gaps = int(fresh[1:].sum())
    return int(ends[-1] - begins[0]) - gaps


@lru_cache(maxsize=64)
def row_classes(trace: Trace, table: tuple[KernelClass, ...] = TABLE) -> NDArray[np.object_]:
    """The class of every row: what it states itself, of kernels by name, of copies and fills by category.

    Parameters
    ----------
    trace : Trace
    table : tuple of KernelClass
    """
    stated = trace.stated
    by_name = np.array([stated.get(i) or class_of(name, table) for i, name in enumerate(trace.names)], dtype=object)
    found = by_name[trace.name] if len(trace) else np.array([], dtype=object)
    for kind in (1, 2):
        found[trace.kind == kind] = KINDS[kind]
    found.flags.writeable = False
    return found


def breakdown(
    trace: Trace,
    rows: Rows | None = None,
    clip: tuple[int, int] | None = None,
    table: tuple[KernelClass, ...] = TABLE,
) -> Breakdown:
    """Where the time of some rows went.

    Parameters
    ----------
    trace : Trace
    rows : array of bool or None
        Which; None = all.
    clip : (int, int) or None
        Only what lies between these times, which are the window then [ns].
    table : tuple of KernelClass

    Returns
    -------
    Breakdown
        All zero if there are no rows.
    """
    chosen = np.ones(len(trace), dtype=bool) if rows is None else rows
    start, end = trace.start_ns, trace.end_ns
    if clip is not None:
        chosen = chosen & (end >= clip[0]) & (start < clip[1])
        start, end = np.maximum(start, clip[0]), np.minimum(end, clip[1])
    classes = row_classes(trace, table)
    copies = chosen & (trace.kind > 0)
    comm = chosen & (classes == COMMUNICATION)
    compute = chosen & ~copies & ~comm

    def span(which: Rows) -> int:
        return union_ns(start[which], end[which])

    busy, working, talking, both = span(chosen), span(compute), span(comm), span(compute | comm)
    window = _window(start[chosen], end[chosen], clip)
    took = end - start

    def shares(keys: NDArray[np.object_], which: Rows) -> dict[str, Share]:
        return _shares(keys[which], took[which])

    return Breakdown(
        window_ns=window,
        busy_ns=busy,
        idle_ns=window - busy,
        compute_ns=working,
        comm_ns=talking,
        memory_ns=span(copies),
        overlapped_ns=working + talking - both,
        exposed_ns=both - working,
        exposed_memory_ns=busy - both,
        rows=int(chosen.sum()),
        by_class=shares(classes, chosen),
        by_collective=shares(collective_names(trace, comm), comm),
        by_stream=shares(_streams(trace), chosen),
    )


def _window(start: IntArray, end: IntArray, clip: tuple[int, int] | None) -> int:
    if clip is not None:
        return clip[1] - clip[0]
    return int(end.max() - start.min()) if len(start) else 0


def _streams(trace: Trace) -> NDArray[np.object_]:
    """The stream of each row; with its device where there are several."""
    several = len({device for device, _ in trace.lanes}) > 1
    words = [f"{device}:{stream}" if several else stream for device, stream in trace.lanes]
    return np.array(words, dtype=object)[trace.lane] if len(trace) else np.array([], dtype=object)


def _shares(keys: NDArray[np.object_], took: IntArray) -> dict[str, Share]:
    found: dict[str, list[int]] = {}
    for key, seconds in zip(keys.tolist(), took.tolist(), strict=True):
        share = found.setdefault(key, [0, 0])
        share[0] += 1
        share[1] += seconds
    return {key: Share(*found[key]) for key in sorted(found, key=lambda key: (-found[key][1], key))}


class Step(NamedTuple):
    """A step of the trace: the row of the host, and what was launched in it."""

    name: str
    host_ns: int
    launched: Breakdown
    clipped: Breakdown


def steps_of(trace: Trace, table: tuple[KernelClass, ...] = TABLE) -> list[Step]:
    """Each ``ProfilerStep#`` of a trace.

    Parameters
    ----------
    trace : Trace
    table : tuple of KernelClass

    Returns
    -------
    list of Step
        ``launched``: the rows whose launch begins within the row of the host, from the first begin to the last end,
        which may lie after the end of that row. ``clipped``: all rows, as far as they lie within it.
    """
    return [_step(trace, span, table) for span in trace.steps]


def _step(trace: Trace, span: Span, table: tuple[KernelClass, ...]) -> Step:
    own = (trace.launch_ns >= span.start_ns) & (trace.launch_ns < span.end_ns)
    return Step(
        span.name,
        span.end_ns - span.start_ns,
        breakdown(trace, own, table=table),
        breakdown(trace, clip=(span.start_ns, span.end_ns), table=table),
    )
