"""The systems of HAPMoE's evaluation: what each planner finds for a case, simulated."""

import math
import time
from collections.abc import Callable, Mapping
from functools import cache

from simmoe.errors import SpecError
from simmoe.explore.hapmoe_bench import AS_SHIPPED, Assumptions, Case, KeptBench, Measurement, System
from simmoe.explore.hapmoe_scenarios import scenario_of
from simmoe.pipeline import run
from simmoe.planners.equal_stages import equal_stages
from simmoe.planners.hapmoe import hapmoe
from simmoe.planners.hetermoe import plan as hetermoe
from simmoe.planners.metis import metis
from simmoe.planners.proposal import Proposal, Ranking
from simmoe.planners.step_model import predict
from simmoe.planners.uniform import hand, uniform
from simmoe.specs import throughput_scenario
from simmoe.specs.data_folders import data_root
from simmoe.specs.scenario import Scenario
from simmoe.specs.throughput_table_reader import TableRow, read_table

# Under 1F1B, the schedule of the paper: virtual stages would help equal stages most.
PLANNERS: dict[System, Callable[[Scenario], Ranking]] = {
    "hapmoe": lambda scenario: hapmoe(scenario, mode="exact", virtual=False),
    "metis": metis,
    "hetermoe": lambda scenario: hetermoe(scenario, top=3, compare=False),
    "uniform": lambda scenario: uniform(scenario, virtual=()),
    "hand": hand,
    "equal": lambda scenario: equal_stages(scenario, virtual=False),
}
FAILED = "planner failed: "


def measure(case: Case, assumptions: Assumptions = AS_SHIPPED) -> Measurement:
    """The best plan of a system for a case; where there is none, why.

    Parameters
    ----------
    case : Case
    assumptions : Assumptions
    """
    if case.system == "published":
        return _published(case.model)
    scenario = scenario_of(case, assumptions)
    found = _measured(case.system, scenario)
    if found.fits or scenario.plan.optimizer_offload_fraction:
        return found
    # A system that needs more memory than others also has the host.
    plan = scenario.plan.model_copy(update={"optimizer_offload_fraction": 1.0})
    return _measured(case.system, scenario.model_copy(update={"plan": plan}))


def _measured(system: System, scenario: Scenario) -> Measurement:
    """The best plan of a planner."""
    start = time.process_time()
    try:
        ranking = PLANNERS[system](scenario)
    except SpecError as error:
        return _nothing(error.problems[0])
    except Exception as error:  # whatever one planner meets, the others are still compared
        return _nothing(f"{FAILED}{'; '.join(str(error).splitlines()) or type(error).__name__}")
    spent = time.process_time() - start
    if not ranking.proposals:
        reasons = dict.fromkeys(one.reason for one in ranking.rejected)
        return _nothing(next(iter(reasons), "no plan"))._replace(search_s=spent)
    return _of(ranking.best)._replace(search_s=spent)


def _nothing(reason: str) -> Measurement:
    return Measurement(math.nan, math.nan, reason)


def _of(proposal: Proposal) -> Measurement:
    """What a plan amounts to; its bounds are those of its stages under 1F1B."""
    plan = proposal.scenario.plan
    tight, upper = math.nan, math.nan
    if not any(stage.experts for stage in plan.stages):
        bounds = predict(proposal.scenario)
        tight, upper = bounds.seconds, bounds.upper_s
    return Measurement(
        tokens_per_s=proposal.tokens_per_s,
        mfu=proposal.mfu,
        plan=proposal.name,
        simulated_s=proposal.simulated_s,
        predicted_s=proposal.predicted_s,
        tight_s=tight,
        upper_s=upper,
        offload=plan.optimizer_offload_fraction > 0,
    )


def _published(id: str) -> Measurement:
    """A run of the table of published runs, under the plan that was run."""
    reading = throughput_scenario.scenario_of(_table()[id])
    if reading.scenario is None:
        return _nothing(reading.reason)
    result = run(reading.scenario)
    assumed = f"; {'; '.join(reading.assumptions)}" if reading.assumptions else ""
    return Measurement(result.tokens_per_s, result.mfu, f"{id}{assumed}", result.step_time_s)


@cache
def _table() -> dict[str, TableRow]:
    return {row.id: row for row in read_table(data_root() / "scenarios" / "published" / "training.csv")}


def bench(known: Mapping[Case, Measurement] | None = None, assumptions: Assumptions = AS_SHIPPED) -> KeptBench:
    """A bench of the planners.

    Parameters
    ----------
    known : mapping of Case to Measurement
        Cases that have been measured under the same assumptions.
    assumptions : Assumptions
    """
    return KeptBench(lambda case: measure(case, assumptions), known)
