"""Which operators of a host do the work, where the host itself trains: those that stand for kernels."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Span(NamedTuple):
    """Something on a thread of the host [ns]."""

    name: str
    start_ns: int
    end_ns: int
    thread: tuple[str, str]
    args: dict[str, Any]


DISPATCH_NS = 10**6
"""The longest time between two operators that counts as the dispatch of the second [ns]."""
_CALLS = "c10d::"
_OWN = 0.5


def working(operators: Sequence[Span]) -> list[Span]:
    """The outermost operators that do more than half of their work themselves, each with the time before it.

    Parameters
    ----------
    operators : sequence of Span
        Nested, of any threads.

    Returns
    -------
    list of Span
        None of them lies in another one, by thread and time. What calls a collective is none: it waits. An operator
        begins where the one before it on its thread ended, if that is less than `DISPATCH_NS` ago and no collective was
        called in between: the processor that trains is the one that dispatches.

    Examples
    --------
    >>> me = ("1", "1")
    >>> found = working([Span("aten::linear", 0, 100, me, {}), Span("aten::mm", 5, 99, me, {}),
    ...                  Span("aten::view", 6, 7, me, {}), Span("c10d::allreduce_", 100, 120, me, {})])
    >>> [(one.name, one.start_ns, one.end_ns) for one in found]
    [('aten::mm', 5, 99)]
    """
    ordered = sorted(operators, key=lambda one: (one.thread, one.start_ns, -one.end_ns))
    parents = _parents(ordered)
    inside = [0] * len(ordered)
    waits = [False] * len(ordered)
    for number, one in enumerate(ordered):
        if parents[number] >= 0:
            inside[parents[number]] += one.end_ns - one.start_ns
        above = number if one.name.startswith(_CALLS) else -1
        while above >= 0 and not waits[above]:
            waits[above], above = True, parents[above]
    taken = [False] * len(ordered)
    found = []
    for number, one in enumerate(ordered):
        if parents[number] >= 0 and taken[parents[number]]:
            taken[number] = True
        elif not waits[number] and inside[number] <= _OWN * (one.end_ns - one.start_ns):
            taken[number] = True
            found.append(one)
    calls = [one for one in ordered if one.name.startswith(_CALLS)]
    return _with_dispatch(found, calls)


def _with_dispatch(found: Sequence[Span], calls: Sequence[Span]) -> list[Span]:
    """Operators that begin where the one before them ended."""
    marked = sorted([*((one, False) for one in found), *((one, True) for one in calls)], key=_place)
    result = list[Span]()
    ended, thread = -1, ("", "")
    for one, waits in marked:
        if not waits:
            gap = one.start_ns - ended
            near = thread == one.thread and ended >= 0 and 0 < gap < DISPATCH_NS
            result.append(one._replace(start_ns=ended) if near else one)
        thread, ended = one.thread, -1 if waits else one.end_ns
    return result


def _place(marked: tuple[Span, bool]) -> tuple[tuple[str, str], int]:
    return marked[0].thread, marked[0].start_ns


def _parents(ordered: Sequence[Span]) -> list[int]:
    """The innermost operator around each one; -1 = none."""
    parents, around = [], list[int]()
    for number, one in enumerate(ordered):
        while around and (ordered[around[-1]].thread != one.thread or ordered[around[-1]].end_ns <= one.start_ns):
            around.pop()
        parents.append(around[-1] if around else -1)
        around.append(number)
    return parents
