"""How much the step time varies: many draws of all durations, and their percentiles."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simmoe.engine.fast import makespans
from simmoe.errors import SpecError
from simmoe.graph.noise import draw_durations, meetings_of
from simmoe.graph.ranks import StepGraph
from simmoe.graph.task import FloatArray
from simmoe.specs.faults import Jitter
from simmoe.specs.scenario import Scenario

if TYPE_CHECKING:
    from simmoe.report.result import Result

PERCENTILES = (5, 50, 95, 99)


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Step times under jitter.

    Attributes
    ----------
    step_time_s : array of float64, shape (draws,)
        In the order drawn [s].
    seed : int
    jitter : Jitter
        What they were drawn from.
    """

    step_time_s: FloatArray
    seed: int
    jitter: Jitter

    @property
    def mean_s(self) -> float:
        """Mean step time [s]."""
        return float(self.step_time_s.mean())

    def percentile(self, percent: float) -> float:
        """The step time that so many percent of the draws stay below [s], linear between draws."""
        return float(np.percentile(self.step_time_s, percent))

    def summary(self) -> dict[str, Any]:
        """For the JSON summary: how many, from what, mean and percentiles."""
        return {
            "draws": len(self.step_time_s),
            "seed": self.seed,
            "jitter": self.jitter.model_dump(),
            "mean_s": self.mean_s,
            **{f"p{percent}_s": self.percentile(percent) for percent in PERCENTILES},
        }


def check_drawable(scenario: Scenario) -> None:
    """Refuse what no draws are made of.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan.

    Raises
    ------
    SpecError
        If the plan has zebra stages: either side would have to wait for the slowest device of the other one, of which
        only one is simulated.
    """
    if any(stage.experts is not None for stage in scenario.plan.stages):
        raise SpecError(["plan: draws do not know zebra parallelism, leave --draws out"])


def draw_steps(result: "Result", draws: int, seed: int = 0) -> Draws:
    """Simulate the step of a result again with times that vary.

    Parameters
    ----------
    result : Result
    draws : int
        How many times, at least 1.
    seed : int
        The same seed gives the same draws.

    Returns
    -------
    Draws
        By `training.jitter` of the scenario. Each device varies for itself, see `simmoe.graph.noise.draw_durations`.

    Raises
    ------
    SpecError
        See `check_drawable`.
    """
    check_drawable(result.scenario)
    scenario, step = result.scenario, StepGraph(result.timeline.graph, result.ranks)
    jitter, meetings = scenario.training.jitter, meetings_of(step, scenario.plan)
    durations = draw_durations(step.graph, jitter, seed, draws, meetings)
    return Draws(makespans(step.graph, durations), seed, jitter)
