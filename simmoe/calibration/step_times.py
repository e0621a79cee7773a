"""From the steps of a log to one measured step time: warm-up and outliers left out, in the open."""

from collections.abc import Sequence
from statistics import median, quantiles
from typing import NamedTuple

from simmoe.calibration.log_file import LoggedStep
from simmoe.errors import SpecError
from simmoe.specs.scenario import Scenario

WARM_UP = 3
"""Steps at the beginning that are left out: compilation, caches, the first allocations."""
OUTLIER = 1.5
"""A step that takes so many times the median is left out: checkpoints, evaluation, a stalled file system."""


class MeasuredStep(NamedTuple):
    """A step as a log tells it.

    Attributes
    ----------
    framework : str
    median_s, low_s, high_s : float
        The median, the first and the ninth decile of what was kept [s].
    kept, warm_up, outliers : int
        Steps behind these figures, and steps that were left out.
    tflops_per_gpu : float or None
        The median of what the framework prints [TFLOP/s].
    """

    framework: str
    median_s: float
    low_s: float
    high_s: float
    kept: int
    warm_up: int
    outliers: int
    tflops_per_gpu: float | None


def measured_step(steps: Sequence[LoggedStep], scenario: Scenario, *, warm_up: int = WARM_UP) -> MeasuredStep:
    """One step time from the lines of a log.

    Parameters
    ----------
    steps : sequence of LoggedStep
    scenario : Scenario
        Turns rates into times: its batch and its devices.
    warm_up : int
        Steps at the beginning that are left out, of a log with more than twice as many.

    Returns
    -------
    MeasuredStep

    Raises
    ------
    SpecError
        If the log says a batch that is not the scenario's.
    """
    _check_batch(steps, scenario)
    times = [took for step in _once(steps) if (took := _seconds(step, scenario)) is not None]
    left = warm_up if len(times) > 2 * warm_up else 0
    warm = times[left:]
    middle = median(warm)
    kept = [took for took in warm if took <= OUTLIER * middle]
    deciles = quantiles(kept, n=10, method="inclusive") if len(kept) > 1 else [kept[0]] * 9
    rates = [step.tflops_per_gpu for step in steps if step.tflops_per_gpu is not None]
    return MeasuredStep(
        framework=steps[0].framework,
        median_s=median(kept),
        low_s=deciles[0],
        high_s=deciles[-1],
        kept=len(kept),
        warm_up=left,
        outliers=len(warm) - len(kept),
        tflops_per_gpu=median(rates) if rates else None,
    )


def _once(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    """A step that several ranks report counts once."""
    numbered = {step.step: step for step in steps if step.step is not None}
    return list(numbered.values()) if len(numbered) > 1 else list(steps)


def _seconds(step: LoggedStep, scenario: Scenario) -> float | None:
    """How long a step took [s]."""
    training = scenario.training
    if step.seconds:
        return step.seconds
    if step.samples_per_s:
        return training.global_batch_size / step.samples_per_s
    if step.tokens_per_s_per_gpu:
        return training.tokens_per_step / (step.tokens_per_s_per_gpu * scenario.cluster.devices)
    return None


def _check_batch(steps: Sequence[LoggedStep], scenario: Scenario) -> None:
    batches = {step.batch for step in steps if step.batch is not None}
    own = scenario.training.global_batch_size
    if batches and own not in batches:
        logged = ", ".join(map(str, sorted(batches)))
        raise SpecError([f"training.global_batch_size: the log says {logged} (got {own}), change the scenario"])
