"""The report of `simmoe trace`."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from rich.console import Console

from simmoe.calibration.breakdown import Breakdown, Step
from simmoe.calibration.kernel_classes import KernelClass
from simmoe.calibration.ranks import Matched, Matching, match_ranks
from simmoe.calibration.trace import Trace
from simmoe.cli.screen import bar, console, heading, indented, percent, seconds, table

Read = tuple[Trace, Breakdown, list[Step]]
_MOST_SHARES = 16


def print_traces(found: Sequence[Read], classes: tuple[KernelClass, ...], by: str, *, steps: bool) -> None:
    """Print where the time of each trace went, then collectives over ranks.

    Parameters
    ----------
    found : sequence of (Trace, Breakdown, list of Step)
    classes : tuple of KernelClass
    by : str
        ``class``, ``stream`` or ``collective``.
    steps : bool
        A line for each step.
    """
    screen = console()
    for trace, whole, own in found:
        rank = (
            "" if trace.rank is None else f"rank {trace.rank}" + (f" of {trace.world_size}" if trace.world_size else "")
        )
        screen.print(heading(trace.path.name, rank))
        _window(screen, whole)
        if steps and own:
            _steps(screen, own)
        _shares(screen, whole, by)
        _warnings(screen, trace, own)
        screen.print()
    if len(found) > 1:
        _matching(screen, match_ranks([trace for trace, *_ in found], classes))


def _window(screen: Console, whole: Breakdown) -> None:
    """The parts of the window as bars."""
    rows = table("", "", "", "", right="lrr")
    parts = (
        ("compute", whole.compute_ns),
        ("communication, exposed", whole.exposed_ns),
        ("communication, overlapped", whole.overlapped_ns),
        ("copies, exposed", whole.exposed_memory_ns),
        ("idle", whole.idle_ns),
    )
    for name, took in parts:
        share = took / whole.window_ns if whole.window_ns else 0.0
        rows.add_row(name, seconds(took * 1e-9), percent(share), bar(share))
    screen.print(indented(rows))
    screen.print(indented(f"{seconds(whole.window_ns * 1e-9)} in all, {whole.rows:,} kernels and copies"))


def _steps(screen: Console, steps: Sequence[Step]) -> None:
    """What was launched in each step; the first and the last one are often not whole."""
    rows = table("step", "window", "compute", "exposed", "overlapped", "copies", "idle", "kernels", right="lrrrrrrr")
    for step in steps:
        part = step.launched
        times = (
            part.window_ns,
            part.compute_ns,
            part.exposed_ns,
            part.overlapped_ns,
            part.exposed_memory_ns,
            part.idle_ns,
        )
        rows.add_row(step.name, *(seconds(took * 1e-9) for took in times), f"{part.rows:,}")
    screen.print()
    screen.print(indented(rows))


def _shares(screen: Console, whole: Breakdown, by: str) -> None:
    """Sums by class, stream or collective."""
    shares = {"class": whole.by_class, "stream": whole.by_stream, "collective": whole.by_collective}[by]
    if not shares:
        return
    total = sum(share.sum_ns for share in shares.values())
    rows = table(by, "kernels", "sum", "", right="lrrr")
    for name, share in list(shares.items())[:_MOST_SHARES]:
        rows.add_row(
            name, f"{share.rows:,}", seconds(share.sum_ns * 1e-9), percent(share.sum_ns / total if total else 0.0)
        )
    screen.print()
    screen.print(indented(rows))


def _warnings(screen: Console, trace: Trace, steps: Sequence[Step]) -> None:
    """What is to be doubted."""
    said = list(trace.warnings)
    if not len(trace):
        said.append("the capture holds no kernels")
    elif not steps:
        said.append("there are no ProfilerStep rows: the whole trace is one window")
    elif len(steps) == 1:
        said.append("there is one step: nothing tells how much steps vary")
    for text in said:
        screen.print(indented(f"Note: {text}."))


def _matching(screen: Console, matching: Matching) -> None:
    """Collectives of all ranks, those of one kind and size together."""
    screen.print(heading("Collectives over ranks", _clocks(matching)))
    groups: dict[tuple[str, int | None, int], list[Matched]] = defaultdict(list)
    for one in matching.matched:
        groups[one.kind, one.bytes, one.ranks].append(one)
    rows = table("collective", "size", "ranks", "calls", "transfer", "waiting", "bus bandwidth", right="lrrrrrr")
    for (kind, size, ranks), calls in sorted(groups.items(), key=lambda item: -sum(c.transfer_ns for c in item[1])):
        rates = [one.bus_bandwidth for one in calls if one.bus_bandwidth is not None]
        waited = sum(sum(one.waiting_ns) / len(one.waiting_ns) for one in calls)
        rows.add_row(
            kind,
            "?" if size is None else f"{size / 2**20:.2f} MiB",
            str(ranks or "?"),
            str(len(calls)),
            seconds(sum(one.transfer_ns for one in calls) * 1e-9),
            seconds(waited * 1e-9),
            f"{median(rates) / 1e9:.1f} GB/s" if rates else "?",
        )
    screen.print(indented(rows))
    if matching.unmatched:
        screen.print(indented(f"Note: {matching.unmatched:,} kernels have no counterpart on all ranks."))


def _clocks(matching: Matching) -> str:
    if not matching.matched:
        return "none was found on all ranks"
    if matching.aligned:
        return "transfer from the last arrival on, mean waiting of a rank, median bandwidth"
    return "clocks differ: transfer is the shortest kernel of a rank"
