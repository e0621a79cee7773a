"""From a scenario to a result on one screen: cost -> graph -> engine -> report."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from simmoe.cost.memory import RankMemory, chunk_activations, rank_memory
from simmoe.cost.shard import shard_of
from simmoe.cost.zebra_memory import zebra_memory
from simmoe.engine.fast import simulate_fast, simulate_reference
from simmoe.engine.fluid import simulate_fluid
from simmoe.engine.record import Timeline
from simmoe.errors import SpecError
from simmoe.graph.actions import micro_batches, stage_actions
from simmoe.graph.build import build_step
from simmoe.graph.ranks import RankClass, StepGraph
from simmoe.graph.routes import fluid_of
from simmoe.graph.schedules import in_flight
from simmoe.report.critical_path import critical_path
from simmoe.report.metrics import step_metrics
from simmoe.report.result import Result
from simmoe.specs.scenario import Scenario

Engine = Literal["fast", "simpy"]
Contention = Literal["analytic", "fluid"]


def run(scenario: Scenario, engine: Engine = "fast", network: Contention = "analytic") -> Result:
    """Simulate one training iteration.

    Parameters
    ----------
    scenario : Scenario
        As `simmoe.specs.reader.load_scenario` returns it.
    engine : str
        ``fast``, or ``simpy``, the readable reference; they agree to the last bit (fluid: to 1e-9).
    network : str
        ``analytic``: every task takes the time it takes alone. ``fluid``: what shares links, multiprocessors or memory
        bandwidth slows each other.

    Returns
    -------
    Result
        Also for a plan that does not fit: `Result.fits` says so.

    Raises
    ------
    SpecError
        If a fluid network is asked for together with faults.
    """
    step = build_step(scenario, contention=network == "analytic")
    timeline = _fluid(step, scenario, engine) if network == "fluid" else _analytic(step, engine)
    return Result(
        scenario=scenario,
        ranks=step.ranks,
        timeline=timeline,
        metrics=step_metrics(timeline, step.ranks),
        critical_path=critical_path(timeline),
        memory=rank_memories(scenario, step.ranks),
        engine=engine,
        network=network,
    )


def _analytic(step: StepGraph, engine: Engine) -> Timeline:
    return (simulate_reference if engine == "simpy" else simulate_fast)(step.graph)


def _fluid(step: StepGraph, scenario: Scenario, engine: Engine) -> Timeline:
    """The timeline under contention; its graph has the times that tasks really took, for whoever reads it."""
    if scenario.cluster.faults:
        raise SpecError(["cluster.faults: a fluid network does not know faults, use --network analytic"])
    if any(stage.experts is not None for stage in scenario.plan.stages):
        raise SpecError(["plan: a fluid network does not know zebra parallelism, use --network analytic"])
    found = simulate_fluid(step.graph, fluid_of(step, scenario), engine)
    return Timeline(replace(step.graph, duration=found.end - found.start), found.start, found.end)


def rank_memories(scenario: Scenario, ranks: Sequence[RankClass]) -> tuple[RankMemory, ...]:
    """Peak memory of one device of each rank class."""
    memory = role_memory(scenario)
    return tuple(memory[rank.stage][rank.role == "experts"] for rank in ranks)


def stage_memory(scenario: Scenario) -> tuple[RankMemory, ...]:
    """Peak memory of the fullest device of each pipeline stage."""
    return tuple(max(roles, key=lambda memory: memory.total) for roles in role_memory(scenario))


def role_memory(scenario: Scenario) -> tuple[tuple[RankMemory, ...], ...]:
    """Peak memory of one device of each of `Stage.roles`, for each pipeline stage."""
    count = micro_batches(scenario)
    found: list[tuple[RankMemory, ...]] = []
    for number, stage in enumerate(scenario.plan.stages):
        actions = stage_actions(scenario.plan, number, count)
        if stage.experts is not None:
            found.append(zebra_memory(scenario, stage, sum(in_flight(actions, 1, [1.0]))))
            continue
        shard = shard_of(stage, scenario.plan, scenario.training, scenario.routing)
        kept = [chunk_activations(scenario, chunk, shard, stage.recompute)[0] for chunk in stage.chunks]
        found.append((rank_memory(scenario, stage, in_flight(actions, len(kept), kept)),))
    return tuple(found)
