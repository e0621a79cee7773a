"""The same collective on several ranks: how long it took once all had come, and how long each waited."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from simmoe.calibration.breakdown import row_classes
from simmoe.calibration.collective_calls import CollectiveCall, collectives
from simmoe.calibration.kernel_classes import COMMUNICATION, TABLE, KernelClass
from simmoe.calibration.trace import Trace

MOST_SKEW_NS = 10**6
"""Of the ends of a collective: more, and the clocks of the ranks are not the same [ns]."""
_TRAFFIC = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


class Matched(NamedTuple):
    """One collective that several ranks took part in.

    Attributes
    ----------
    kind, name : str
        In NCCL's words, and as the traces call it.
    bytes : int or None
        The larger buffer of a rank [B].
    ranks : int
        Of its group.
    transfer_ns : int
        From the last arrival to the last end where clocks agree, else the shortest kernel [ns].
    waiting_ns : tuple of int
        Of each trace that took part, what its kernel lasted longer than that [ns].
    end_skew_ns : int
        Between the first end and the last [ns].
    rows : tuple of int
        Of each trace.
    """

    kind: str
    name: str
    bytes: int | None
    ranks: int
    transfer_ns: int
    waiting_ns: tuple[int, ...]
    end_skew_ns: int
    rows: tuple[int, ...]

    @property
    def bus_bandwidth(self) -> float | None:
        """As nccl-tests counts it [B/s]; None where size or time is not known.

        ``bytes / t`` times ``2 (n-1)/n`` for an all-reduce, ``(n-1)/n`` for an all-gather, a reduce-scatter and an
        all-to-all, 1 for the others.
        """
        if self.bytes is None or self.transfer_ns <= 0 or self.ranks < 2:
            return None
        share = _TRAFFIC.get(self.kind)
        factor = 1.0 if share is None else share * (self.ranks - 1) / self.ranks
        return factor * self.bytes / (self.transfer_ns * 1e-9)


class Matching(NamedTuple):
    """Collectives that were found on all ranks of a group.

    Attributes
    ----------
    matched : tuple of Matched
        In the order of the first trace.
    aligned : bool
        The clocks agree: ends of a collective differ by less than `MOST_SKEW_NS`, in the median.
    unmatched : int
        Communication kernels whose counterparts were not found.
    """

    matched: tuple[Matched, ...]
    aligned: bool
    unmatched: int


def match_ranks(traces: Sequence[Trace], table: tuple[KernelClass, ...] = TABLE) -> Matching:
    """Match the collectives of several ranks of one job.

    Parameters
    ----------
    traces : sequence of Trace
        One a rank.
    table : tuple of KernelClass

    Returns
    -------
    Matching

    Notes
    -----
    The n-th collective of a process group on one rank is the n-th of that group on the others; identifiers of ranks
    differ. A group whose kinds are not the same in that order is left out. The size of a group is what the traces say,
    else the number of traces if those are all ranks of the job.
    """
    by_group: dict[str, list[list[CollectiveCall]]] = defaultdict(lambda: [[] for _ in traces])
    total = 0
    for number, trace in enumerate(traces):
        for call in collectives(trace, row_classes(trace, table) == COMMUNICATION):
            by_group[call.group][number].append(call)
            total += 1
    together: list[tuple[CollectiveCall, ...]] = []
    for lists in by_group.values():
        there = [calls for calls in lists if calls]
        kinds = {tuple(call.kind for call in calls) for calls in there}
        if len(there) == len(traces) and len(kinds) == 1:
            together += zip(*there, strict=True)
    found = [_ends(traces, calls) for calls in together]
    aligned = median([skew for _, skew in found]) <= MOST_SKEW_NS if found else False
    matched = [
        _matched(traces, calls, after, skew, aligned=aligned)
        for calls, (after, skew) in zip(together, found, strict=True)
    ]
    return Matching(tuple(matched), aligned, total - sum(map(len, together)))


def _ends(traces: Sequence[Trace], calls: Sequence[CollectiveCall]) -> tuple[int, int]:
    """From the last arrival to the last end, and how far the ends lie apart [ns]."""
    starts = [int(trace.start_ns[call.row]) for trace, call in zip(traces, calls, strict=True)]
    ends = [int(trace.end_ns[call.row]) for trace, call in zip(traces, calls, strict=True)]
    return max(ends) - max(starts), max(ends) - min(ends)


def _matched(
    traces: Sequence[Trace], calls: Sequence[CollectiveCall], after: int, skew: int, *, aligned: bool
) -> Matched:
    took = [int(trace.end_ns[call.row] - trace.start_ns[call.row]) for trace, call in zip(traces, calls, strict=True)]
    transfer = max(0, after) if aligned else min(took)
    sizes = [call.bytes for call in calls if call.bytes is not None]
    named = [call.ranks for call in calls if call.ranks is not None]
    whole = all(trace.world_size == len(traces) for trace in traces)
    ranks = named[0] if named else len(traces) if whole else 0
    first = calls[0]
    waited = tuple(max(0, own - transfer) for own in took)
    return Matched(
        first.kind,
        first.name,
        max(sizes, default=None),
        ranks,
        transfer,
        waited,
        skew,
        tuple(call.row for call in calls),
    )
