"""Simulate the cases of a reproduction, side by side."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from simmoe.cli.validate_run import pool_of

if TYPE_CHECKING:
    from simmoe.explore.reproduction import Outcome
    from simmoe.explore.study import Study
    from simmoe.explore.sweeps import Sensitivity
    from simmoe.specs.paper_rows_reader import PaperRow

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Simulated(NamedTuple):
    """The runs that rows and figures need.

    Attributes
    ----------
    known : dict
        Case -> measurement, of the paper's own classes.
    bench : object
        Knows them.
    outcomes : tuple of Outcome
        The rows beside what was simulated.
    """

    known: dict[Any, Any]
    bench: Any
    outcomes: "tuple[Outcome, ...]"


def simulated(study: "Study", table: "Sequence[PaperRow]", jobs: int, *, figures: bool) -> Simulated:
    """Make the runs of rows, as shipped.

    Parameters
    ----------
    study : Study
    table : sequence of PaperRow
    jobs : int
        Processes; 1 = simulate in this one.
    figures : bool
        Also the runs of the figures.
    """
    known = measured(study, study.cases_for(table, figures=figures), jobs, study.as_shipped)
    bench = study.bench(known, study.as_shipped)
    return Simulated(known, bench, study.outcomes(table, bench))


def measured(
    study: "Study", cases: Sequence[Any], jobs: int, assumptions: Any, what: str = "simulating"
) -> dict[Any, Any]:
    """The measurement of each case, in order, with a progress bar if the error stream is a terminal.

    Parameters
    ----------
    study : Study
    cases : sequence
    jobs : int
        Processes; 1 = simulate in this one.
    assumptions : NamedTuple
    what : str
        Stands before the bar.
    """
    found = side_by_side(partial(study.measure, assumptions=assumptions), study.slowest_first(cases), jobs, what)
    return {case: found[case] for case in cases}


def swept_over(study: "Study", table: "Sequence[PaperRow]", shipped: Simulated, jobs: int) -> "tuple[Sensitivity, ...]":
    """The same rows under every other setting; runs that a setting does not touch are not repeated.

    Parameters
    ----------
    study : Study
    table : sequence of PaperRow
    shipped : Simulated
    jobs : int
    """
    from simmoe.explore.sweeps import sensitivity

    cases, swept = study.cases_for(table), []
    for _, settings in study.sweeps:
        for setting in settings:
            assumptions, found = setting.assumptions, shipped.outcomes
            if assumptions != study.as_shipped:
                kept = {case: shipped.known[case] for case in cases if study.unaffected(case, assumptions)}
                rest = [case for case in cases if case not in kept]
                known = kept | measured(study, rest, jobs, assumptions, f"{setting.name} {setting.value}")
                found = study.outcomes(table, study.bench(known, assumptions))
            swept.append(sensitivity(setting, found, shipped.outcomes))
    return tuple(swept)


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
