"""A scenario with the plan that a planner makes for it, simulated."""

from simmoe.errors import SpecError
from simmoe.pipeline import run
from simmoe.planners.registry import Planner, Request, ask
from simmoe.report.result import Result
from simmoe.specs.expand import expand
from simmoe.specs.scenario import Scenario


def planned(scenario: Scenario, planner: Planner) -> Result:
    """The simulated step of the best plan.

    Parameters
    ----------
    scenario : Scenario
        Its plan is kept for sharding, overlaps and the like alone.
    planner : Planner

    Returns
    -------
    Result
        Of the scenario with that plan and its micro-batch.

    Raises
    ------
    SpecError
        If no plan fits, with what is missing.
    """
    ranking = ask(planner, scenario, Request(top=1))
    if not ranking.proposals:
        raise SpecError(list(ranking.remarks) or [f"{planner.value}: no plan fits, take more or larger devices"])
    best = ranking.best
    training = scenario.training.model_copy(update={"micro_batch_size": best.micro_batch_size})
    plan = expand(best.plan, scenario.model, scenario.cluster, training)
    return run(scenario.model_copy(update={"plan": plan, "training": training}))
