"""``simmoe validate SCENARIO --runs CSV``: many runs of a scenario, each predicted and compared with its traces."""

from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import typer

from simmoe.cli.validate_log import OUT_OF_TOLERANCE

if TYPE_CHECKING:
    from simmoe.calibration.kernel_classes import KernelClass
    from simmoe.calibration.runs_file import TracedRun
    from simmoe.calibration.step_comparison import Figures

_LEAST_SHARE = 0.02


def validate_runs(
    scenario: Path,
    runs: Path,
    changes: tuple[list[str], Path | None],
    tolerance: float,
    classes: Path | None,
) -> None:
    """Predict every run and compare it with its traces; exit status 1 if the median step is off too far.

    Parameters
    ----------
    scenario, runs : Path
    changes : (list of str, Path or None)
        Overrides of every run, and an overlay.
    tolerance : float
        Of the step time [1].
    classes : Path or None
        Kernel classes of one's own.

    Raises
    ------
    SpecError
        If the list is wrong, or traces do not belong to their run.
    """
    from simmoe.calibration.classes_file import read_classes
    from simmoe.calibration.kernel_classes import TABLE
    from simmoe.calibration.runs_file import read_runs
    from simmoe.cli.screen import console, percent

    table = read_classes(classes) if classes is not None else TABLE
    listed = read_runs(runs)
    found = [(run, *_both(scenario, run, changes, table)) for run in listed]
    screen = console()
    judged = [one for one in found if one[0].held_out] or found
    _print(found)
    errors = [abs(simulated.step_s / measured.step_s - 1) for _, simulated, measured in judged]
    what = "held-out runs" if any(run.held_out for run in listed) else "runs"
    verdict = "within" if median(errors) <= tolerance else "beyond"
    screen.print(
        f"The steps of {len(judged)} {what} are off by {percent(median(errors))} in the median, {percent(max(errors))} "
        f"at most: {verdict} the tolerance of {percent(tolerance)}.",
        soft_wrap=True,
    )
    if median(errors) > tolerance:
        raise typer.Exit(OUT_OF_TOLERANCE)


def _both(
    scenario: Path, run: "TracedRun", changes: tuple[list[str], Path | None], table: "tuple[KernelClass, ...]"
) -> "tuple[Figures, Figures]":
    """The simulated and the measured step of a run; of several ranks the mean."""
    from simmoe.calibration.matched_steps import rank_class_of, traces_of, transfers_of
    from simmoe.calibration.simulated import simulated_rank
    from simmoe.calibration.step_comparison import combined, measured_figures, simulated_figures
    from simmoe.pipeline import run as simulate
    from simmoe.specs.overlay_file import load_overlaid

    loaded = load_overlaid(scenario, [*changes[0], *run.overrides], changes[1])
    result = simulate(loaded)
    simulated, measured = [], []
    traces = traces_of(loaded, run.traces)
    for trace, transfers in zip(traces, transfers_of(traces, table), strict=True):
        number = rank_class_of(result, trace.rank)
        simulated.append(simulated_figures(simulated_rank(result, number), result.step_time_s))
        measured.append(combined(measured_figures(trace, table, transfers), median))
    return combined(simulated, fmean), combined(measured, fmean)


def _print(found: "list[tuple[TracedRun, Figures, Figures]]") -> None:
    """A line for each run, then the medians."""
    from simmoe.cli.screen import console, heading, indented, percent, seconds, table

    screen = console()
    screen.print(heading("Runs", "simulated / measured - 1, of the step and of the sums of each class"))
    names = [
        name
        for name in dict.fromkeys(name for _, _, measured in found for name in measured.by_class)
        if any(measured.by_class.get(name, 0.0) > _LEAST_SHARE * measured.step_s for _, _, measured in found)
    ]
    rows = table("run", "", "measured", "step", *names, right="llrr" + "r" * len(names))
    for run, simulated, measured in found:
        errors = _errors(simulated, measured, names)
        cells = ("" if one is None else f"{100 * one:+.1f} %" for one in errors)
        rows.add_row(run.name, "held out" if run.held_out else "", seconds(measured.step_s), *cells)
    for held_out in (False, True):
        errors_of = [_errors(s, m, names) for run, s, m in found if run.held_out is held_out]
        if errors_of:
            columns = [[abs(one) for one in column if one is not None] for column in zip(*errors_of, strict=True)]
            cells = (percent(median(column)) if column else "" for column in columns)
            rows.add_row("median size", "held out" if held_out else "", "", *cells, style="bold")
    screen.print(indented(rows))


def _errors(simulated: "Figures", measured: "Figures", names: list[str]) -> list[float | None]:
    """Of the step, then of each class."""
    found: list[float | None] = [simulated.step_s / measured.step_s - 1]
    for name in names:
        took = measured.by_class.get(name, 0.0)
        found.append(simulated.by_class.get(name, 0.0) / took - 1 if took > 0 else None)
    return found
