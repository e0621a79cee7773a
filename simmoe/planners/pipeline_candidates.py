"""From the answers of a pipeline search to plans that are simulated; what all planners on its tables share."""

from collections.abc import Sequence
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.planners.pipeline_search.problem import ONE_BLOCK, PipelinePlan, Shape
from simmoe.planners.pipeline_tables import Sizes, Tables, plan_of
from simmoe.planners.proposal import Proposal, Rejected, planned, propose
from simmoe.planners.stage_model import StageModel
from simmoe.planners.step_model import Prediction, predict
from simmoe.specs.plan import Plan
from simmoe.specs.scenario import Scenario

SIMULATED = 10
"""Plans of a search that are simulated."""
_MANY_DEVICES = 64  # beyond, every type has one stage size, and no device stays idle
_WHOLE = Shape(one_block=True, one_size=True, all_devices=True)


class Candidate(NamedTuple):
    """A plan before it is simulated.

    Attributes
    ----------
    predicted_s : float
        By the objective of its planner [s].
    name : str
    plan : Plan
    scenario : Scenario
        With the plan expanded.
    prediction : Prediction
        By the model that all planners share.
    """

    predicted_s: float
    name: str
    plan: Plan
    scenario: Scenario
    prediction: Prediction


def sizes_for(scenario: Scenario) -> Sizes:
    """What stages of a cluster may have; few sizes where there are many devices."""
    if scenario.cluster.devices <= _MANY_DEVICES:
        return Sizes()
    node = max(group.node.accelerators for group in scenario.cluster.groups)
    largest = max(group.devices for group in scenario.cluster.groups)
    return Sizes(stages=tuple(node * 2**power for power in range(largest.bit_length()) if node * 2**power <= largest))


def shape_for(scenario: Scenario) -> Shape:
    """What plans are looked for on a cluster."""
    return ONE_BLOCK if scenario.cluster.devices <= _MANY_DEVICES else _WHOLE


def candidates(
    tables: Tables, plans: Sequence[PipelinePlan], model: StageModel, *, own: bool = False
) -> tuple[list[Candidate], list[Rejected]]:
    """The plans of a search, most promising first.

    Parameters
    ----------
    tables : Tables
    plans : sequence of PipelinePlan
    model : StageModel
    own : bool
        Keep the seconds of the search, a formula of its own; otherwise the shared model's, with the true transfers.

    Returns
    -------
    list of Candidate, list of Rejected
        The second: what a rule forbids after all.
    """
    found: list[Candidate] = []
    rejected: list[Rejected] = []
    for one in plans:
        name = described(tables, one)
        plan, size = plan_of(tables, one)
        try:
            made = planned(tables.scenario, plan, micro_batch_size=size)
        except SpecError as error:
            rejected.append(Rejected(name, error.problems[0]))
            continue
        prediction = predict(made, model)
        found.append(Candidate(one.seconds if own else prediction.seconds, name, plan, made, prediction))
    return sorted(found, key=lambda one: one.predicted_s), rejected


def described(tables: Tables, found: PipelinePlan) -> str:
    """A plan in a few words: layers of each stage and how it is run; neighbours that are run alike stand together."""
    problem, chosen = tables.problem(found.unit)
    words: list[tuple[str, list[int]]] = []
    for stage in found.stages:
        name = f"{problem.types[problem.options[stage.option].device_type].name} {chosen[stage.option].name}"
        if not words or words[-1][0] != name:
            words.append((name, []))
        words[-1][1].append(stage.layers)
    return ", ".join(f"{'+'.join(map(str, layers))} layers on {name}" for name, layers in words)


def simulated(planner: str, one: Candidate, why: Sequence[str] = ()) -> Proposal | Rejected:
    """A candidate as a whole step."""
    tight, lower, upper = one.prediction
    bounds = f"Bounds of its 1F1B step: L {lower:.3f} s, L' {tight:.3f} s; the familiar estimate U {upper:.3f} s."
    return propose(planner, one.name, one.plan, one.scenario, one.predicted_s, (*why, bounds))


def nothing_fits(planner: str, tables: Tables) -> Rejected:
    """Why there is no plan: memory, or sizes that do not divide."""
    if tables.problems:
        return Rejected(planner, "does not fit: the layers are too many for the memory of all devices together")
    return Rejected(planner, "does not fit: no device can hold a single layer in any way, or nothing divides the batch")
