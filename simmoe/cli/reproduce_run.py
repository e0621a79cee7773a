"""Simulate the cases of a reproduction, side by side."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from typing import TYPE_CHECKING

from simmoe.cli.validate_run import pool_of

if TYPE_CHECKING:
    from simmoe.explore.hetermoe_bench import Assumptions, Case, Measurement

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
    from rich.progress import track

    from simmoe.cli.screen import console

    screen = console(stderr=True)
    pairs = _each(sorted(cases, key=lambda case: _SLOWEST_FIRST.index(case.system)), jobs, assumptions)
    found = dict(track(pairs, what, len(cases), console=screen, disable=not screen.is_terminal))
    return {case: found[case] for case in cases}


def _each(cases: "Sequence[Case]", jobs: int, assumptions: "Assumptions") -> "Iterator[tuple[Case, Measurement]]":
    """Each case with its measurement, as they are finished."""
    from simmoe.explore.hetermoe_systems import measure

    work = partial(measure, assumptions=assumptions)
    if min(jobs, len(cases)) <= 1:
        yield from ((case, work(case)) for case in cases)
        return
    with pool_of(min(jobs, len(cases))) as pool:
        waiting: dict[Future[Measurement], Case] = {pool.submit(work, case): case for case in cases}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
