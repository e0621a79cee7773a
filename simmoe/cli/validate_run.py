"""Simulate the rows of a throughput table, side by side and without losing what is finished."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simmoe.report.league import Comparison
    from simmoe.report.result import Result
    from simmoe.specs.throughput_scenario import Reading
    from simmoe.specs.throughput_table_reader import TableRow


def compare_all(
    rows: "Sequence[TableRow]",
    jobs: int,
    finished: "Mapping[str, Comparison] | None" = None,
    keep: "Callable[[TableRow, Comparison], None] | None" = None,
) -> "tuple[Comparison, ...]":
    """The comparison of each row, in order, with a progress bar if the error stream is a terminal.

    Parameters
    ----------
    rows : sequence of TableRow
    jobs : int
        Processes; 1 = simulate in this one.
    finished : mapping of str to Comparison
        Rows, by id, that need not be simulated again.
    keep : callable
        Is told of every row as soon as it is finished, in any order.
    """
    from rich.progress import track

    from simmoe.cli.screen import console

    found = dict(finished or {})
    left = [row for row in rows if row.id not in found]
    screen = console(stderr=True)
    pairs = _compared(left, jobs)
    for row, comparison in track(pairs, "simulating", len(left), console=screen, disable=not screen.is_terminal):
        found[row.id] = comparison
        if keep is not None:
            keep(row, comparison)
    return tuple(found[row.id] for row in rows)


def _compared(rows: "Sequence[TableRow]", jobs: int) -> "Iterator[tuple[TableRow, Comparison]]":
    """Each row with its comparison, as they are finished."""
    if min(jobs, len(rows)) <= 1:
        yield from ((row, compare(row)) for row in rows)
        return
    with pool_of(min(jobs, len(rows))) as pool:
        waiting: dict[Future[Comparison], TableRow] = {pool.submit(compare, row): row for row in rows}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


@contextmanager
def pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Workers that share nothing with this process, so that a result cannot depend on what ran before."""
    context = get_context("forkserver")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=signal.signal, initargs=_DEAF)
    try:
        yield pool
    finally:
        # After an interrupt the workers end the row at hand, no more are begun.
        pool.shutdown(cancel_futures=True)


FAILED = "simulation failed: "
_DEAF = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; this one decides


def compare(row: "TableRow") -> "Comparison":
    """Simulate one row; a row that cannot be simulated becomes a comparison that says why."""
    from simmoe.pipeline import run
    from simmoe.report.league import Comparison
    from simmoe.specs.throughput_scenario import scenario_of

    reading, measured = scenario_of(row), row.measured_s
    reason = reading.reason
    if reading.scenario is not None and measured is not None:
        try:
            return _compared_with(row, measured, reading, run(reading.scenario))
        except Exception as error:  # whatever one row meets, the others of the table are still compared
            reason = f"{FAILED}{'; '.join(str(error).splitlines()) or type(error).__name__}"
    return Comparison(
        row.id, row.group, row.text("model"), row.text("accelerator_id"), row.whole("num_gpus"), row.moe,
        row.measured_s, None, None, None, None, "unsupported", reason, row.text("precision_norm"),
    )  # fmt: skip


def _compared_with(row: "TableRow", measured: float, reading: "Reading", result: "Result") -> "Comparison":
    from simmoe.report.league import ASSUMED, Comparison, relative_error
    from simmoe.report.league_causes import likely_cause
    from simmoe.report.league_memory import overfull
    from simmoe.report.uncertainty import step_interval

    interval, times = step_interval(result), overfull(result, reading.assumptions)
    too_large = f"needs {times:.2f} times the memory there is, by the estimate" if times is not None else ""
    assumed = ASSUMED + "; ".join(reading.assumptions) if reading.assumptions else ""
    return Comparison(
        id=row.id,
        group=row.group,
        model=row.text("model"),
        gpu=row.text("accelerator_id"),
        num_gpus=row.whole("num_gpus"),
        moe=row.moe,
        measured_s=measured,
        simulated_s=result.step_time_s,
        error=relative_error(result.step_time_s, measured),
        low_s=interval.low,
        high_s=interval.high,
        status="ok" if times is None else "infeasible",
        reason="; ".join(filter(None, (too_large, assumed))),
        precision=row.text("precision_norm"),
        software=result.scenario.training.software.id,
        cause=likely_cause(result, reading.assumptions, row.flags),
        memory_gib=max(memory.total - memory.framework for memory in result.memory) / 2**30,
        peak_mem_gib=row.real("peak_mem_gib"),
    )
