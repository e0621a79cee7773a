"""Simulate the cases of a reproduction, side by side."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from simmoe.cli.validate_run import pool_of

if TYPE_CHECKING:
    from simmoe.explore.hetermoe_bench import Assumptions, Case, Measurement

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_SLOWEST_FIRST = ("hetero-pp", "zebra", "distep", "ep-ideal", "ep")


def measured(
    cases: "Sequence[Case]", jobs: int, assumptions: "Assumptions", what: str = "simulating"
) -> "dict[Case, Measurement]":
    """The measurement of each case, in order, with a progress bar if the error stream is a terminal.

    Parameters
    ----------
    cases : sequence of Case
    jobs : int
        Processes; 1 = simulate in this one.
    assumptions : Assumptions
    what : str
        Stands before the bar.
    """
    from simmoe.explore.hetermoe_systems import measure

    order = sorted(cases, key=lambda case: _SLOWEST_FIRST.index(case.system))
    found = side_by_side(partial(measure, assumptions=assumptions), order, jobs, what)
    return {case: found[case] for case in cases}


def side_by_side(work: Callable[[Item], Answer], items: Sequence[Item], jobs: int, what: str) -> dict[Item, Answer]:
    """What `work` makes of each item, in order, with a progress bar if the error stream is a terminal.

    Parameters
    ----------
    work : callable
        A function of a module, or a partial one: it goes to other processes.
    items : sequence
        Hashable.
    jobs : int
        Processes; 1 = in this one.
    what : str
        Stands before the bar.
    """
    from rich.progress import track

    from simmoe.cli.screen import console

    screen = console(stderr=True)
    pairs = _each(work, items, jobs)
    found = dict(track(pairs, what, len(items), console=screen, disable=not screen.is_terminal))
    return {item: found[item] for item in items}


def _each(work: Callable[[Item], Answer], items: Sequence[Item], jobs: int) -> Iterator[tuple[Item, Answer]]:
    """Each item with its answer, as they are finished."""
    if min(jobs, len(items)) <= 1:
        yield from ((item, work(item)) for item in items)
        return
    with pool_of(min(jobs, len(items))) as pool:
        waiting: dict[Future[Answer], Item] = {pool.submit(work, item): item for item in items}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
