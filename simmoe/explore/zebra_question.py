"""What asymmetric expert assignment is asked about a zebra plan: read off its own operators."""

from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.graph.zebra import ZebraCost
from simmoe.graph.zebra_order import Block, Part, Role
from simmoe.planners.assignment_problem import AssignmentProblem, chunk_sizes
from simmoe.planners.zebra_recursion import Step
from simmoe.specs.plan import ExpertDevices
from simmoe.specs.scenario import Scenario


class Question(NamedTuple):
    """A zebra group with the times of its modules, and what surrounds them in a step."""

    problem: AssignmentProblem
    step: Step


def question_of(scenario: Scenario) -> Question:
    """The question of which experts should move, for the plan of a scenario.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan, whose first stage is a zebra stage. What it has moved itself does not matter.

    Returns
    -------
    Question
        Times are those of a forward pass of one micro-batch [s]. Nothing bounds what moves; memory may.

    Raises
    ------
    SpecError
        If the plan is another one, or no chunk of experts can move in it.

    Notes
    -----
    T_A is that of the second layer, or of the only one: the first one has the embedding before it. T_E^Attn is what
    one chunk takes on an attention device, times n/(N n1). One ratio of backward to forward, that of the experts,
    serves all modules, as in the paper.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, sections 4.1 and 4.2.

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
    attention, experts = stage.devices // stage.experts.groups, stage.experts.group_devices
    acquired, given = chunk_sizes(attention, experts)
    if given >= moe.num_experts // experts:
        raise SpecError([f"a chunk of {given} experts leaves none on an expert device, use fewer expert devices"])
    bare, moving = (_Seconds(scenario, stage.experts, moved) for moved in (0, given))
    chunk_s = moving.of(Role.ATTENTION, Part.MOVED)
    problem = AssignmentProblem(
        experts=moe.num_experts,
        layers=bare.layers,
        attention_devices=attention,
        expert_devices=experts,
        attention_s=bare.of(Role.ATTENTION, Part.ATTENTION, min(1, bare.layers - 1)),
        expert_s=bare.of(Role.EXPERTS, Part.EXPERTS),
        expert_on_attention_s=chunk_s * moe.num_experts / (acquired * experts),
    )
    step = Step(
        micro_batches=stage.experts.micro_batches,
        dispatch_s=bare.of(Role.ATTENTION, Part.DISPATCH),
        combine_s=bare.of(Role.ATTENTION, Part.COMBINE),
        head_forward_s=bare.of(Role.ATTENTION, Part.ATTENTION, bare.layers),
        head_backward_s=bare.of(Role.ATTENTION, Part.ATTENTION, bare.layers, backward=True),
        backward=bare.of(Role.EXPERTS, Part.EXPERTS, backward=True) / problem.expert_s,
    )
    return Question(problem, step)


class _Seconds:
    """Seconds of the blocks of the first stage, in all layers of which every expert device gives up `moved` experts."""

    def __init__(self, scenario: Scenario, experts: ExpertDevices, moved: int) -> None:
        layers = len(ZebraCost(scenario).stage.work.layers)
        apart = experts.model_copy(update={"moved_experts": (moved,) * layers if moved else ()})
        first, *others = scenario.plan.stages
        stages = (first.model_copy(update={"experts": apart}), *others)
        plan = scenario.plan.model_copy(update={"stages": stages})
        self._cost = ZebraCost(scenario.model_copy(update={"plan": plan}))
        self._pieces: int = scenario.plan.a2a_ffn_overlap_degree
        self.layers = layers

    def of(self, role: Role, part: Part, place: int = 0, *, backward: bool = False) -> float:
        """All pieces of the block of one micro-batch [s]."""
        pieces = 1 if part is Part.ATTENTION else self._pieces
        return pieces * self._cost.seconds(Block(role, part, backward, place, 0))
