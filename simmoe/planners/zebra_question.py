"""What asymmetric expert assignment is asked about a zebra plan: read off its own operators."""

from collections.abc import Sequence
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.graph.zebra_order import Block, Part, Role
from simmoe.planners.assignment_problem import AssignmentProblem, chunk_sizes
from simmoe.planners.zebra_recursion import Step
from simmoe.planners.zebra_times import StageTimes
from simmoe.specs.expand import moe_layers
from simmoe.specs.plan import Stage
from simmoe.specs.scenario import Scenario


class Question(NamedTuple):
    """A zebra group with the times of its modules, and what surrounds them in a step."""

    problem: AssignmentProblem
    step: Step


class Group(NamedTuple):
    """Experts of a layer, and the devices of a zebra group, M and N."""

    experts: int
    attention_devices: int
    expert_devices: int


def problem_of(group: Group, bare: Sequence[StageTimes], moving: Sequence[StageTimes] = ()) -> AssignmentProblem:
    """The group with the times of its modules.

    Parameters
    ----------
    group : Group
    bare : sequence of StageTimes
        Of every stage, nothing moved.
    moving : sequence of StageTimes
        Of every stage, a chunk moved in every layer; empty if no chunk can move.

    Returns
    -------
    AssignmentProblem
        Times are those of forward and backward together, means over the layers [s]. Nothing bounds what moves but that
        an expert stays on every device; memory may.

    Notes
    -----
    The first layer's attention, which has the embedding before it, does not count if there are others. T_E^Attn is what
    one chunk takes on an attention device, times n/(N n1).

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 4.2.
    """
    weights = [one.layers for one in bare]
    on_attention = 0.0
    if moving:
        acquired = chunk_sizes(group.attention_devices, group.expert_devices)[0]
        took = _mean([one.moved for one in moving], weights)
        on_attention = took * group.experts / (acquired * group.expert_devices)
    return AssignmentProblem(
        experts=group.experts,
        layers=sum(weights),
        attention_devices=group.attention_devices,
        expert_devices=group.expert_devices,
        attention_s=_mean([one.module.attention for one in bare], weights),
        expert_s=_mean([one.module.experts for one in bare], weights),
        expert_on_attention_s=on_attention,
    )


def question(
    problem: AssignmentProblem, micro_batches: int, bare: Sequence[StageTimes], moving: Sequence[StageTimes] = ()
) -> Question:
    """A problem with what surrounds its modules in a step.

    Parameters
    ----------
    problem : AssignmentProblem
        As `problem_of` gives it, its bounds changed at will.
    micro_batches : int
        R.
    bare, moving : sequence of StageTimes
        As in `problem_of`.

    Returns
    -------
    Question
        Times of its problem are those of both passes over 1 + `Step.backward`, as `Step` wants them. Of a pipeline the
        exchanges are those of the first stage, the head that of the last.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, sections 4.1 and 4.2.
    """
    first, last = bare[0], bare[-1]
    backward = _ratio(first, Role.EXPERTS, Part.EXPERTS)
    step = Step(
        micro_batches=micro_batches,
        dispatch_s=first.pieces * first.seconds(Block(Role.ATTENTION, Part.DISPATCH, False, 0, 0)),
        combine_s=first.pieces * first.seconds(Block(Role.ATTENTION, Part.COMBINE, False, 0, 0)),
        head_forward_s=last.seconds(Block(Role.ATTENTION, Part.ATTENTION, False, last.layers, 0)),
        head_backward_s=last.seconds(Block(Role.ATTENTION, Part.ATTENTION, True, last.layers, 0)),
        backward=backward,
        attention_backward=_ratio(first, Role.ATTENTION, Part.ATTENTION, min(1, first.layers - 1)),
        moved_backward=_ratio(moving[0], Role.ATTENTION, Part.MOVED) if moving else -1.0,
    )
    parts = ("attention_s", "expert_s", "expert_on_attention_s")
    return Question(problem._replace(**{part: getattr(problem, part) / (1.0 + backward) for part in parts}), step)


def question_of(scenario: Scenario) -> Question:
    """The question of which experts should move, for the plan of a scenario.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan of zebra stages. What it has moved itself does not matter.

    Returns
    -------
    Question
        See `question`.

    Raises
    ------
    SpecError
        If the plan is another one, or no chunk of experts can move in it.

    Examples
    --------
    Experts on V100 take longer than attention on A40 at 4,096 tokens, and would take less on A40.

    >>> from simmoe.specs.data_folders import data_root
    >>> from simmoe.specs.reader import load_scenario
    >>> mixed = load_scenario(data_root() / "scenarios" / "papers" / "hetermoe" / "o1-d1.yaml")
    >>> problem, step = question_of(mixed)
    >>> problem.attention_s < problem.expert_on_attention_s < problem.expert_s, step.micro_batches
    (True, 4)
    """
    stage, moe = scenario.plan.stages[0], scenario.model.moe
    if stage.experts is None or moe is None:
        raise SpecError(["plan.zebra: the plan takes attention and experts not apart, write one that does"])
    group = Group(moe.num_experts, stage.devices // stage.experts.groups, stage.experts.group_devices)
    given = chunk_sizes(group.attention_devices, group.expert_devices)[1]
    if given >= group.experts // group.expert_devices:
        raise SpecError([f"a chunk of {given} experts leaves none on an expert device, use fewer expert devices"])
    bare, moving = (_times(scenario, moved) for moved in (0, given))
    return question(problem_of(group, bare, moving), stage.experts.micro_batches, bare, moving)


def _times(scenario: Scenario, moved: int) -> list[StageTimes]:
    """Seconds of every stage, in all layers of which every expert device gives up `moved` experts."""
    stages = tuple(_giving_up(stage, moved, scenario) for stage in scenario.plan.stages)
    made = scenario.model_copy(update={"plan": scenario.plan.model_copy(update={"stages": stages})})
    return [StageTimes(made, made, number) for number in range(len(stages))]


def _giving_up(stage: Stage, moved: int, scenario: Scenario) -> Stage:
    """The stage with other experts moved."""
    if stage.experts is None:
        return stage
    layers = sum(len(moe_layers(scenario.model, chunk)) for chunk in stage.chunks)
    apart = stage.experts.model_copy(update={"moved_experts": (moved,) * layers if moved else ()})
    return stage.model_copy(update={"experts": apart})


def _ratio(times: StageTimes, role: Role, part: Part, place: int = 0) -> float:
    """Backward over forward of one block [1]."""
    forward, backward = (times.seconds(Block(role, part, back, place, 0)) for back in (False, True))
    return backward / forward


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
