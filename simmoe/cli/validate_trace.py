"""``simmoe validate SCENARIO --trace FILE``: a simulated step beside measured ones, class by class."""

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import typer

from simmoe.cli.validate_log import OUT_OF_TOLERANCE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from simmoe.calibration.kernel_classes import KernelClass
    from simmoe.calibration.step_comparison import Figures
    from simmoe.calibration.trace import Trace
    from simmoe.report.result import Result
    from simmoe.specs.scenario import Scenario

_LEAST_SHARE = 0.001


def validate_trace(
    scenario: "Scenario", traces: list[Path], tolerance: float, plot: Path | None, classes: Path | None
) -> None:
    """Simulate a scenario and compare its ranks with traces; exit status 1 if a step is off by more than the tolerance.

    Parameters
    ----------
    scenario : Scenario
    traces : list of Path
    tolerance : float
        Of the step time [1].
    plot : Path or None
        Both sides as a picture.
    classes : Path or None
        Kernel classes of one's own.

    Raises
    ------
    SpecError
        If a trace does not belong to the scenario.
    """
    from simmoe.calibration.classes_file import read_classes
    from simmoe.calibration.kernel_classes import TABLE
    from simmoe.calibration.matched_steps import matched_steps, traces_of, transfers_of
    from simmoe.calibration.step_comparison import combined, measured_figures
    from simmoe.cli.calibrate_report import print_coverage
    from simmoe.cli.screen import console
    from simmoe.pipeline import run

    table = read_classes(classes) if classes is not None else TABLE
    read = traces_of(scenario, traces)
    result = run(scenario)
    steps = matched_steps(result, read, table)
    screen = console()
    worst = 0.0
    for trace, transfers in zip(read, transfers_of(read, table), strict=True):
        measured = combined(measured_figures(trace, table, transfers), median)
        worst = max(worst, abs(_print(screen, result, trace, measured)))
    print_coverage(screen, steps, table)
    if plot is not None:
        _draw(result, read, table, plot)
        screen.print(f"Wrote {plot}")
    _verdict(screen, worst, tolerance)
    if worst > tolerance:
        raise typer.Exit(OUT_OF_TOLERANCE)


def _print(screen: "Console", result: "Result", trace: "Trace", measured: "Figures") -> float:
    """One rank; how far its step is off."""
    from simmoe.calibration.matched_steps import rank_class_of
    from simmoe.calibration.simulated import simulated_rank
    from simmoe.calibration.step_comparison import simulated_figures
    from simmoe.cli.screen import heading, indented, percent, seconds, table
    from simmoe.report.uncertainty import step_interval

    number = rank_class_of(result, trace.rank)
    own = simulated_figures(simulated_rank(result, number), result.step_time_s)
    rank = "rank not named" if trace.rank is None else f"rank {trace.rank}"
    screen.print(heading(trace.path.name, f"{rank}, beside the simulated stage {result.ranks[number].place}"))
    rows = table("", "simulated", "measured", "difference", "of the step", right="lrrrr")
    step = measured.step_s
    _row(rows, "step", own.step_s, step, step)
    for name, key in (
        ("computing", "compute_s"),
        ("communicating, exposed", "exposed_s"),
        ("communicating, overlapped", "overlapped_s"),
        ("idle", "idle_s"),
    ):
        _row(rows, f"  {name}", getattr(own, key), getattr(measured, key), step)
    rows.add_section()
    names = dict.fromkeys((*own.by_class, *measured.by_class))
    for name in sorted(names, key=lambda name: -max(own.by_class.get(name, 0.0), measured.by_class.get(name, 0.0))):
        _row(rows, name, own.by_class.get(name, 0.0), measured.by_class.get(name, 0.0), step)
    screen.print(indented(rows))
    interval = step_interval(result)
    inside = "inside" if interval.low <= step <= interval.high else "outside"
    words = f"{seconds(interval.low)} to {seconds(interval.high)}"
    screen.print(
        indented(f"The measured step is {inside} the predicted {percent(interval.level, 0)} interval, {words}.")
    )
    screen.print()
    return own.step_s / step - 1


def _row(rows: "Table", name: str, simulated: float, measured: float, step: float) -> None:
    from simmoe.cli.screen import percent, seconds

    if max(simulated, measured) < _LEAST_SHARE * step:
        return
    difference = f"{100 * (simulated / measured - 1):+.1f} %" if measured > 0 else "not measured"
    cells = (seconds(simulated, like=step), seconds(measured, like=step), difference, percent(measured / step))
    rows.add_row(name, *cells)


def _draw(result: "Result", traces: "list[Trace]", table: "tuple[KernelClass, ...]", plot: Path) -> None:
    """The first step of each rank above its simulation."""
    import numpy as np

    from simmoe.calibration.matched_steps import rank_class_of
    from simmoe.calibration.observations import step_rows
    from simmoe.calibration.simulated import simulated_rank
    from simmoe.calibration.step_comparison import as_trace
    from simmoe.calibration.step_picture import trace_panel
    from simmoe.report.lanes_picture import write_lanes

    panels = []
    for trace in traces:
        rank = "" if trace.rank is None else f" {trace.rank}"
        panels.append(trace_panel(trace, step_rows(trace)[0].rows, f"measured: rank{rank} of {trace.path.name}", table))
        own = as_trace(simulated_rank(result, rank_class_of(result, trace.rank)))
        panels.append(trace_panel(own, np.arange(len(own)), f"simulated: {result.scenario.name}"))
    write_lanes(panels, plot)


def _verdict(screen: "Console", worst: float, tolerance: float) -> None:
    from simmoe.cli.screen import percent

    verdict = "within" if worst <= tolerance else "beyond"
    screen.print(f"The step time is off by {percent(worst)} at most: {verdict} the tolerance of {percent(tolerance)}.")
