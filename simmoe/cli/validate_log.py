"""``simmoe validate SCENARIO --log FILE``: the step of a scenario beside the one that a training log tells."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from simmoe.calibration.step_times import MeasuredStep
    from simmoe.report.result import Result
    from simmoe.specs.scenario import Scenario

OUT_OF_TOLERANCE = 1


def validate_log(scenario: "Scenario", log: Path, tolerance: float) -> None:
    """Simulate a scenario and compare it with a log; exit status 1 if it is farther off than the tolerance.

    Parameters
    ----------
    scenario : Scenario
    log : Path
    tolerance : float
        Of the step time [1].

    Raises
    ------
    SpecError
        If the log does not belong to the scenario.
    """
    from simmoe.calibration.log_file import logged_steps
    from simmoe.calibration.step_times import measured_step
    from simmoe.pipeline import run

    measured = measured_step(logged_steps(log), scenario)
    result = run(scenario)
    error = result.step_time_s / measured.median_s - 1
    _print(result, measured, error, tolerance)
    if abs(error) > tolerance:
        raise typer.Exit(OUT_OF_TOLERANCE)


def _print(result: "Result", measured: "MeasuredStep", error: float, tolerance: float) -> None:
    """Both steps, and how far they are apart."""
    from simmoe.cli.screen import console, heading, indented, percent, seconds, table

    screen = console()
    screen.print(heading(result.scenario.name, f"against a log of {measured.framework}"))
    rows = table("", "simulated", "measured", "difference", right="lrrr")
    both = (seconds(result.step_time_s), seconds(measured.median_s, like=result.step_time_s))
    rows.add_row("step time", *both, f"{100 * error:+.1f} %")
    if measured.tflops_per_gpu is not None:
        own = result.model_tflops_per_gpu
        difference = f"{100 * (own / measured.tflops_per_gpu - 1):+.1f} %"
        rows.add_row("model TFLOP/s per GPU", f"{own:.1f}", f"{measured.tflops_per_gpu:.1f}", difference)
    screen.print(indented(rows))
    spread = f"{seconds(measured.low_s)} to {seconds(measured.high_s)} in eight of ten"
    left = f"{measured.warm_up} at the beginning and {measured.outliers} outliers left out"
    screen.print(indented(f"Measured on {measured.kept} steps ({left}), {spread}."))
    if measured.kept < 2:
        screen.print(indented("Note: one step tells nothing of how much steps vary."))
    if not result.fits:
        screen.print(indented("Note: by the estimate of memory the plan does not fit."))
    verdict = "within" if abs(error) <= tolerance else "beyond"
    screen.print(indented(f"The step time is {verdict} the tolerance of {percent(tolerance)}."))
