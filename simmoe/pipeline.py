"""From a scenario to a result on one screen: cost -> graph -> engine -> report."""

from typing import Literal

from simmoe.cost.memory import RankMemory, rank_memory
from simmoe.engine.fast import simulate_fast, simulate_reference
from simmoe.graph.build import build_step, micro_batches, stage_actions
from simmoe.graph.schedules import in_flight
from simmoe.report.critical_path import critical_path
from simmoe.report.metrics import step_metrics
from simmoe.report.result import Result
from simmoe.specs.scenario import Scenario

Engine = Literal["fast", "simpy"]


def run(scenario: Scenario, engine: Engine = "fast") -> Result:
    """Simulate one training iteration.

    Parameters
    ----------
    scenario : Scenario
        As `simmoe.specs.reader.load_scenario` returns it.
    engine : str
        ``fast``, or ``simpy``, the readable reference; they agree to the last bit.

    Returns
    -------
    Result
        Also for a plan that does not fit: `Result.fits` says so.
    """
    step = build_step(scenario)
    timeline = (simulate_reference if engine == "simpy" else simulate_fast)(step.graph)
    memory = stage_memory(scenario)
    return Result(
        scenario=scenario,
        ranks=step.ranks,
        timeline=timeline,
        metrics=step_metrics(timeline, step.ranks),
        critical_path=critical_path(timeline),
        memory=tuple(memory[rank.stage] for rank in step.ranks),
        engine=engine,
    )


def stage_memory(scenario: Scenario) -> tuple[RankMemory, ...]:
    """Peak memory of one rank of each pipeline stage."""
    count = micro_batches(scenario)
    return tuple(
        rank_memory(scenario, stage, in_flight(stage_actions(scenario.plan, number, count), len(stage.chunks)))
        for number, stage in enumerate(scenario.plan.stages)
    )
