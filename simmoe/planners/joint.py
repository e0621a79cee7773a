"""HAPMoE's and HeterMoE's questions as one: pipelines any of whose stages may take attention and experts apart."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.planners.baselines import recomputations
from simmoe.planners.hapmoe import hapmoe
from simmoe.planners.hetermoe import plan as hetermoe
from simmoe.planners.joint_problems import JointProblem, carves, joint_plan, problems_of, unlike_pairs
from simmoe.planners.pipeline_candidates import shape_for, sizes_for
from simmoe.planners.pipeline_search.exact import search
from simmoe.planners.pipeline_search.limits import ALL_PRUNINGS
from simmoe.planners.pipeline_search.problem import PipelinePlan, PlacedStage
from simmoe.planners.pipeline_tables import tables_of
from simmoe.planners.proposal import Proposal, Ranking, Rejected, planned, propose, ranked
from simmoe.planners.stage_model import StageModel
from simmoe.planners.watch import tell
from simmoe.planners.ways import Way, recompute_ladder
from simmoe.planners.zebra_shapes import Shape
from simmoe.planners.zebra_stage import ZebraStages, ZebraWay
from simmoe.specs.plan import Recompute
from simmoe.specs.scenario import Scenario

NAME = "joint"

_PLANS = 24  # of a search, most of which may differ in plain stages alone
_SIMULATED = 8
_AS_ALONE = 5  # plans of either planner, as many as it tries when it is asked alone
_OF_A_KIND = 2  # of them with the same devices and layers
_NEAR = 1.02  # times the best step: bounds are that close to the simulation
_SLACK = 0.05  # how much longer than the best of a search a plan may take


class _Found(NamedTuple):
    """An answer that has a zebra stage, and the question that it answers."""

    asked: JointProblem
    plan: PipelinePlan


def joint(scenario: Scenario, *, top: int = 3) -> Ranking:
    """The fastest pipeline of plain and zebra stages.

    Parameters
    ----------
    scenario : Scenario
        As for `hapmoe` and `hetermoe`, whose proposals are among the answers.
    top : int
        Proposals to return.

    Returns
    -------
    Ranking
        Never worse than the better of the two.

    Notes
    -----
    Outside, zebra groups are cut out of two node groups: M attention and N expert devices each, z of them. What is left
    are plain devices, and zebra groups are devices of one more type, so that `pipeline_search.exact.search` finds the
    pipeline with the least bound L' over all those cuts, z = 0 being `hapmoe` and one stage of all groups `hetermoe`.
    Cuts that could not beat the best plan if nobody waited are left out. The best plans are simulated.

    Restrictions: one kind of zebra group in a plan; its stages move the same number of experts in all layers; stages of
    a type stand side by side; models whose layers are all alike.

    References
    ----------
    HAPMoE, arXiv 2609.39350v1, section 3; HeterMoE, arXiv 2504.03871v1, section 4. Neither has both.
    """
    tried = max(top, _AS_ALONE)
    plain, whole = hapmoe(scenario, top=tried), hetermoe(scenario, top=tried, compare=False)
    reason = _unfit(scenario)
    if reason:
        return _joined([plain, whole], top)._replace(remarks=(reason,))
    ladder, own = recompute_ladder(scenario), recomputations(scenario)
    freed = [hetermoe(_recomputing(scenario, rung), top=top, compare=False) for rung in ladder if rung not in own]
    limit = _least_s([plain, whole, *freed])
    mixed = ranked(_mixed(scenario, ladder, limit))
    gains = {
        "hapmoe, plain stages": [plain],
        "hetermoe, equal zebra stages": [whole],
        "the same with any recomputation": [whole, *freed],
        "plain and zebra stages": [mixed],
    }
    return _joined([plain, whole, *freed, mixed], top)._replace(remarks=tuple(_gains(gains, limit)))


def _joined(rankings: Sequence[Ranking], top: int) -> Ranking:
    """One ranking of several, each plan once."""
    found: list[Proposal] = []
    for one in (one for ranking in rankings for one in ranking.proposals):
        if all((one.plan, one.micro_batch_size) != (other.plan, other.micro_batch_size) for other in found):
            found.append(_renamed(one))
    rejected = dict.fromkeys(one for ranking in rankings for one in ranking.rejected)
    return ranked([*found, *rejected], top)


def _least_s(rankings: Sequence[Ranking]) -> float:
    """The best step of some rankings; infinite if they have none [s]."""
    return min((one.simulated_s for ranking in rankings for one in ranking.proposals), default=math.inf)


def _gains(parts: dict[str, list[Ranking]], limit_s: float) -> Iterator[str]:
    """What each part of the space reaches, a sentence each."""
    for what, rankings in parts.items():
        least = _least_s(rankings)
        if math.isfinite(least):
            yield f"{least:.3f} s: {what}."
        elif what == "plain and zebra stages" and math.isfinite(limit_s):
            yield f"No pipeline of {what} comes within {100 * (_NEAR - 1):.0f} % of the best of these by its bound."
        else:
            yield f"No plan fits: {what}."


def _recomputing(scenario: Scenario, recompute: Recompute) -> Scenario:
    """The scenario with a starting point that recomputes so: HeterMoE's planner tries that, and full recomputation."""
    plan = scenario.plan
    stages = tuple(stage.model_copy(update={"recompute": recompute}) for stage in plan.stages)
    return scenario.model_copy(update={"plan": plan.model_copy(update={"recompute": recompute, "stages": stages})})


def _renamed(one: Proposal) -> Proposal:
    """A proposal of another planner as one of this planner's."""
    if one.planner == NAME:
        return one
    return replace(one, planner=NAME, why=(f"Found by {one.planner}, whose plans are among those looked at.", *one.why))


def _unfit(scenario: Scenario) -> str:
    """Why zebra stages cannot stand among plain ones; empty if they can."""
    if scenario.model.moe is None:
        return f"{scenario.model.name} has no experts to take apart from attention: these are the plans of hapmoe."
    if len(set(scenario.model.layers)) > 1 or not scenario.model.layers[0].moe or scenario.model.mtp_layers:
        return (
            "Zebra stages beside plain ones are looked for in models whose layers are all alike: these are the plans "
            "of hapmoe and of hetermoe."
        )
    if not unlike_pairs(scenario):
        return "Zebra stages beside plain ones are looked for on unlike devices."
    return ""


def _mixed(scenario: Scenario, ladder: Sequence[Recompute], limit_s: float) -> list[Proposal | Rejected]:
    """Plans with zebra stages that may be faster than a step already found, simulated."""
    tell("cutting zebra groups out of the cluster")
    tables, stages = tables_of(scenario, None, sizes_for(scenario), StageModel(scenario)), ZebraStages(scenario)
    work = scenario.model.num_layers * scenario.training.global_batch_size
    cuts = [cut for cut in carves(tables, stages, ladder) if work / cut.rate < limit_s]
    asked = [one for cut in cuts for one in problems_of(tables, stages, cut, ladder)]
    if not asked:
        return []
    tell("searching for plain and zebra stages")
    found = _searched(scenario, asked, _NEAR * limit_s)
    tell("simulating")
    return [_simulated(scenario, one) for one in found]


def _searched(scenario: Scenario, asked: Sequence[JointProblem], below_s: float) -> list[_Found]:
    """The best plans with zebra stages over all questions."""
    numbered = [one.problem._replace(unit=number) for number, one in enumerate(asked)]
    # A step to beat is known: no start has to be guessed.
    prunings = ALL_PRUNINGS._replace(warm_start=math.isinf(below_s))
    result = search(numbered, shape_for(scenario), prunings, plans=_PLANS, slack=_SLACK, below_s=below_s)
    found = [_Found(asked[plan.unit], plan) for plan in result.plans]
    seen: Counter[tuple[tuple[int, str | Shape], ...]] = Counter()
    chosen = []
    for one in found:
        key = tuple(
            (stage.layers, way.shape if isinstance(way, ZebraWay) else _type_name(one, stage))
            for stage, way in zip(one.plan.stages, _ways(one), strict=True)
        )
        seen[key] += 1
        if seen[key] <= _OF_A_KIND and any(isinstance(part, Shape) for _, part in key):
            chosen.append(one)
    return chosen[:_SIMULATED]


def _type_name(found: _Found, stage: PlacedStage) -> str:
    """The devices of a stage."""
    problem = found.asked.problem
    return problem.types[problem.options[stage.option].device_type].name


def _ways(found: _Found) -> list[Way | ZebraWay]:
    return [found.asked.ways[stage.option] for stage in found.plan.stages]


def _simulated(scenario: Scenario, found: _Found) -> Proposal | Rejected:
    """An answer as a whole step."""
    name = _described(scenario, found)
    plan, size = joint_plan(scenario, found.asked, found.plan)
    try:
        made = planned(scenario, plan, micro_batch_size=size)
    except SpecError as error:
        return Rejected(name, error.problems[0])
    return propose(NAME, name, plan, made, found.plan.seconds, tuple(_reasons(scenario, found)))


def _reasons(scenario: Scenario, found: _Found) -> Iterator[str]:
    """What a plan rests on."""
    ways = _ways(found)
    zebra = [way for way in ways if isinstance(way, ZebraWay)]
    shape = found.asked.carve.shape
    group = shape._replace(groups=sum(way.shape.groups for way in zebra)).name(scenario.cluster)
    yield f"{len(zebra)} of {len(ways)} stages: attention and experts apart ({group}), each where it costs least."
    moved = max(way.moved for way in zebra)
    if moved:
        share = moved * shape.expert_devices / scenario.model.moe.num_experts if scenario.model.moe else 0.0
        yield f"{100 * share:.0f} % of their experts move to the attention devices, which evens out both sides."
    if len(zebra) < len(ways):
        yield "The other stages are plain: they take the devices and layers that make up no further group."
    yield f"By its bound L' the step takes {found.plan.seconds:.3f} s."


def _described(scenario: Scenario, found: _Found) -> str:
    """The stages in a few words."""
    words = []
    for stage, way in zip(found.plan.stages, _ways(found), strict=True):
        devices = way.shape.name(scenario.cluster) if isinstance(way, ZebraWay) else _type_name(found, stage)
        comma = "," if isinstance(way, ZebraWay) else ""
        words.append(f"{stage.layers} layers on {devices}{comma} {way.name}")
    return "; ".join(words)
