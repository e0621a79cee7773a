"""``simmoe sweep``: simulate many points of a scenario into a file of results, and go on where it stopped."""

import re
from collections.abc import Iterator
from concurrent.futures import Executor, as_completed
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from simmoe.explore.sweep import Task
    from simmoe.report.ledger import Entry, Ledger

INTERRUPTED = 130
_CHUNK = 8
_SHARD = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")
_Sweep = Annotated[
    Path, typer.Argument(metavar="SWEEP", help="A file of points (YAML), see the README.", show_default=False)
]
_Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="The file of results (SQLite).", show_default=False)
]


def sweep(
    file: _Sweep,
    output: _Output,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that simulate.")] = 2,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Only the i-th of n parts, for several machines.")] = "1/1",
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Simulate on a cluster of dask.distributed.", show_default=False),
    ] = None,
) -> None:
    """Simulate every point of a sweep; finished points are kept at once: after an interruption start it again."""
    from simmoe.explore.sweep import tasks_of
    from simmoe.report.ledger import Ledger
    from simmoe.specs.sweep_file import read_sweep

    part = _shard(shard)
    read = read_sweep(file)
    _check_planner(read.sweep.planner)
    tasks = tasks_of(read, part)
    with Ledger(output, writing=True) as ledger:
        done = ledger.hashes()
        left = [task for task in tasks if task.hash not in done]
        typer.echo(f"{len(tasks):,} points, {len(tasks) - len(left):,} of them finished before")
        start = perf_counter()
        try:
            _simulate(left, jobs, dask, ledger)
        except KeyboardInterrupt:
            typer.echo(f"Interrupted; what is finished is in {output}: start the same command again to go on")
            raise typer.Exit(INTERRUPTED) from None
        _report(ledger, tasks, len(left), perf_counter() - start, output)


def _shard(text: str) -> tuple[int, int]:
    from simmoe.errors import SpecError

    found = _SHARD.fullmatch(text)
    if found is None or int(found[1]) > int(found[2]):
        raise SpecError([f"--shard: {text} is no part, write for example 1/4"])
    return int(found[1]), int(found[2])


def _check_planner(name: str) -> None:
    from simmoe.errors import SpecError
    from simmoe.planners.registry import Planner

    if name and name not in list(Planner):
        raise SpecError([f"planner: {name} is none of {', '.join(Planner)}, write one of them"])


def _simulate(tasks: "list[Task]", jobs: int, dask: str | None, ledger: "Ledger") -> None:
    """Every task's result into the ledger, with a progress bar if the error stream is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from simmoe.cli.screen import console

    screen = console(stderr=True)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.speed} points/s"))
    with Progress(*columns, TimeRemainingColumn(), console=screen, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("simulating", total=len(tasks))
        for entries in _results(tasks, jobs, dask):
            ledger.add(entries)
            progress.advance(bar, len(entries))


def _results(tasks: "list[Task]", jobs: int, dask: str | None) -> "Iterator[list[Entry]]":
    """Results a few at a time, as they are finished."""
    from simmoe.explore.sweep import simulate_task, simulate_tasks

    if dask is None and min(jobs, len(tasks)) <= 1:
        yield from ([simulate_task(task)] for task in tasks)
        return
    chunks = [tasks[first : first + _CHUNK] for first in range(0, len(tasks), _CHUNK)]
    with _pool(jobs, dask) as pool:
        for future in as_completed([pool.submit(simulate_tasks, chunk) for chunk in chunks]):
            yield future.result()


def _pool(jobs: int, dask: str | None) -> AbstractContextManager[Executor]:
    from simmoe.cli.validate_run import pool_of
    from simmoe.errors import SimmoeError, SpecError

    if dask is None:
        return pool_of(jobs)
    try:
        from distributed import Client
    except ImportError as error:
        raise SimmoeError('--dask needs dask, install it with: pip install "simmoe[dask]"') from error
    try:
        executor: AbstractContextManager[Executor] = Client(dask, timeout="20s").get_executor()
    except (OSError, ValueError) as error:
        raise SpecError([f"--dask: no scheduler at {dask} ({error}), start one or correct the address"]) from error
    return executor


def _report(ledger: "Ledger", tasks: "list[Task]", simulated: int, seconds: float, output: Path) -> None:
    """How many came out how, and how fast."""
    wanted = {task.hash for task in tasks}
    counts: dict[str, int] = {}
    for entry in ledger.entries():
        if entry.hash in wanted:
            counts[entry.status] = counts.get(entry.status, 0) + 1
    if simulated:
        typer.echo(f"{simulated:,} simulated in {seconds:.1f} s, {simulated / max(seconds, 1e-9):.0f} points/s")
    typer.echo(", ".join(f"{number:,} {status}" for status, number in sorted(counts.items(), key=lambda one: -one[1])))
    typer.echo(f"See them with: simmoe results show {output}")


def merge(
    output: Annotated[Path, typer.Argument(metavar="RESULTS", help="Where all results go.", show_default=False)],
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", help="Results of shards.", show_default=False)],
) -> None:
    """Put the results of several shards into one file; equal points are kept once."""
    from simmoe.report.ledger import Ledger

    with Ledger(output, writing=True) as ledger:
        for part in parts:
            with Ledger(part) as own:
                ledger.add(own.entries())
        typer.echo(f"{len(ledger.hashes()):,} points in {output}")
