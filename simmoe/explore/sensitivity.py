"""How much each resource matters: what a little more of it, half, and twice as much do to the step."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from simmoe.engine.fast import makespans
from simmoe.engine.levels import Levels, levels_of
from simmoe.explore.resources import Resource, resources_of, with_more
from simmoe.graph.build import build_step
from simmoe.graph.task import FloatArray, TaskGraph
from simmoe.pipeline import run
from simmoe.specs.scenario import Scenario

STEP = 0.01
"""Of the central differences, relative [1]."""
FACTORS = (1.0 - STEP, 1.0 + STEP, 0.5, 2.0)


class Sensitivity(NamedTuple):
    """What a resource does to the step.

    Attributes
    ----------
    resource : str
    elasticity : float
        Relative change of the step time for one of the resource, negative where more of it helps [1].
    half_s, twice_s : float
        The step with half and with twice as much of it [s].
    """

    resource: str
    elasticity: float
    half_s: float
    twice_s: float


class Sensitivities(NamedTuple):
    """Of all resources of a scenario, those that matter most first; and the step as it is [s]."""

    step_s: float
    of: tuple[Sensitivity, ...]


def sensitivities(scenario: Scenario) -> Sensitivities:
    """What every resource does to the step time.

    Parameters
    ----------
    scenario : Scenario

    Returns
    -------
    Sensitivities

    Notes
    -----
    Central differences of the logarithms, (ln T(1+h) - ln T(1-h)) / (ln(1+h) - ln(1-h)), h = `STEP`. The tasks are
    those of one step; only their durations change, and the fast engine runs all of them as one batch. A resource that
    changes what tasks there are (a host faster than its parts) is simulated on its own. Valid around the present plan:
    planners may answer other machines with other plans.
    """
    graph = build_step(scenario).graph
    levels = levels_of(graph)
    step = float(makespans(graph, iter([graph.duration]), levels=levels)[0])
    resources = resources_of(scenario)
    times = iter(_times(scenario, resources, graph, levels))
    found = []
    for resource in resources:
        less, more, half, twice = (next(times) for _ in FACTORS)
        slope = (math.log(more) - math.log(less)) / (math.log1p(STEP) - math.log1p(-STEP))
        found.append(Sensitivity(resource.name, slope, half, twice))
    return Sensitivities(step, tuple(sorted(found, key=lambda one: (-abs(one.elasticity), one.resource))))


def _times(scenario: Scenario, resources: tuple[Resource, ...], graph: TaskGraph, levels: Levels | None) -> list[float]:
    """The step for each resource and factor [s]."""
    cases = [(resource, factor) for resource in resources for factor in FACTORS]
    alone: dict[int, float] = {}

    def durations() -> Iterator[FloatArray]:
        for number, (resource, factor) in enumerate(cases):
            changed = with_more(scenario, resource, factor)
            other = build_step(changed).graph
            if len(other) != len(graph):
                alone[number] = run(changed).step_time_s
                yield graph.duration
            else:
                yield other.duration

    found = makespans(graph, durations(), levels=levels).tolist()
    return [alone.get(number, time) for number, time in enumerate(found)]
