"""HAPMoE's question with equal stages: what unequal layers, devices and data-parallel sizes are worth."""

from collections.abc import Iterator
from math import inf

from simmoe.planners.interleaving import interleaved
from simmoe.planners.pipeline_candidates import SIMULATED, candidates, simulated
from simmoe.planners.pipeline_search.exact import search
from simmoe.planners.pipeline_search.problem import (
    PipelinePlan,
    PipelineProblem,
    PlacedStage,
    Shape,
    StageOption,
)
from simmoe.planners.pipeline_tables import Sizes, Tables, tables_of
from simmoe.planners.proposal import Ranking, Rejected, divisors, ranked
from simmoe.planners.stage_model import StageModel
from simmoe.planners.watch import tell
from simmoe.planners.ways import Way
from simmoe.specs.scenario import Scenario

NAME = "equal-stages"
_SLACK = 0.02  # as HAPMoE's planner: how much longer other simulated plans may take [1]
_TOO_LARGE = "does not fit: the least able device has too little memory for an equal share of the layers"
_NOTHING_DIVIDES = "no number of equal stages divides both the layers and the devices of every node group"
_EQUAL = Shape(one_block=True, one_size=True, all_devices=True)


def equal_stages(scenario: Scenario, *, top: int = 1, virtual: bool = True) -> Ranking:
    """The fastest pipeline whose stages have equally many layers, devices and data-parallel ranks.

    Parameters
    ----------
    scenario : Scenario
        Its plan says how to shard and overlap; its sizes do not matter.
    top : int
        Proposals to return.
    virtual : bool
        Also try virtual stages.

    Returns
    -------
    Ranking
        Of the best by the planner's own model, as of `simmoe.planners.hapmoe`.

    Notes
    -----
    One rule for all clusters: every stage has N / PP layers, devices / PP devices and the same data-parallel size; no
    device is idle and no stage straddles node groups. Free are PP and these sizes, which type of device comes first,
    and for each stage how it shares experts and what it computes again. That is HAPMoE's search less what its ablation
    takes away, "uniform PP/DP"; `simmoe.planners.uniform` has all stages alike in everything.

    References
    ----------
    HAPMoE, arXiv 2609.39350v1, section 5.4 and table 3.
    """
    model, layers = StageModel(scenario), scenario.model.num_layers
    found, refused = [], list[Rejected]()
    counts = _counts(scenario)
    for stages in counts:
        devices = scenario.cluster.devices // stages
        tell(f"{stages} equal stages")
        tables = tables_of(scenario, sizes=Sizes(stages=(devices,)), model=model)
        for alike in _by_data(tables):
            joined = [_joined(problem, layers // stages) for problem in alike.problems]
            plans = [_parted(plan, layers // stages) for plan in search(joined, _EQUAL, plans=SIMULATED).plans]
            allowed, forbidden = candidates(alike, plans, model)
            found += allowed
            refused += forbidden
    if not found:
        reason = _TOO_LARGE if counts else _NOTHING_DIVIDES
        return Ranking((), (*refused, Rejected(NAME, reason)))
    tell("simulating")
    found.sort(key=lambda one: one.predicted_s)
    most = found[0].predicted_s * (1 + _SLACK)
    proposals = [simulated(NAME, one) for one in found[:SIMULATED] if one.predicted_s <= most]
    if virtual:
        best_s = min((one.simulated_s for one in ranked(proposals).proposals), default=inf)
        proposals += interleaved(NAME, found[:SIMULATED], best_s, model)
    return ranked(proposals, top)


def _counts(scenario: Scenario) -> list[int]:
    """Numbers of stages that divide the layers, and whose devices divide those of every node group."""
    layers, devices = scenario.model.num_layers, scenario.cluster.devices
    return [
        stages
        for stages in divisors(devices, layers)
        if layers % stages == 0 and all(group.devices % (devices // stages) == 0 for group in scenario.cluster.groups)
    ]


def _by_data(tables: Tables) -> Iterator[Tables]:
    """The tables with the options of one data-parallel size, for each size that every type of device has."""
    for data in sorted({way.data for ways in tables.ways for way in ways}):
        parts = [_only(problem, ways, data) for problem, ways in zip(tables.problems, tables.ways, strict=True)]
        whole = [part for part in parts if _all_types(part[0])]
        if whole:
            yield Tables(tables.scenario, tuple(one for one, _ in whole), tuple(ways for _, ways in whole))


def _only(problem: PipelineProblem, ways: tuple[Way, ...], data: int) -> tuple[PipelineProblem, tuple[Way, ...]]:
    kept = [number for number, way in enumerate(ways) if way.data == data]
    options = tuple(problem.options[number] for number in kept)
    return problem._replace(options=options), tuple(ways[number] for number in kept)


def _all_types(problem: PipelineProblem) -> bool:
    return {option.device_type for option in problem.options} == set(range(len(problem.types)))


def _joined(problem: PipelineProblem, layers: int) -> PipelineProblem:
    """The problem with so many neighbouring layers as one: where all devices are used, a stage has one of these."""
    options = tuple(_joined_option(option, layers) for option in problem.options)
    return problem._replace(layers=problem.layers // layers, options=options)


def _joined_option(option: StageOption, layers: int) -> StageOption:
    def seconds(column: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sum(column[first : first + layers]) for first in range(0, len(column), layers))

    def sizes(column: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sum(column[first : first + layers]) for first in range(0, len(column), layers))

    return option._replace(
        forward_s=seconds(option.forward_s),
        backward_s=seconds(option.backward_s),
        update_s=seconds(option.update_s),
        held_bytes=sizes(option.held_bytes),
        kept_bytes=sizes(option.kept_bytes),
    )


def _parted(plan: PipelinePlan, layers: int) -> PipelinePlan:
    """The plan of the problem before its layers were joined."""
    stages = (PlacedStage(one.option, one.first_layer * layers, one.layers * layers) for one in plan.stages)
    return plan._replace(stages=tuple(stages))
