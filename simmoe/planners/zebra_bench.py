"""One scenario under zebra plans: their plans, their memory, the seconds of their modules."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from simmoe.cost.groups import domain_of_devices
from simmoe.cost.model import StageCost
from simmoe.cost.operators import BipartiteExchange, Operator
from simmoe.errors import SpecError
from simmoe.pipeline import role_memory
from simmoe.planners.assignment_problem import AssignmentProblem, chunk_sizes
from simmoe.planners.proposal import plan_like, planned
from simmoe.planners.zebra_question import Group, Question, problem_of, question
from simmoe.planners.zebra_shapes import Limits, Shape
from simmoe.planners.zebra_times import StageTimes, few_layers
from simmoe.specs.plan import Plan, Recompute, Zebra
from simmoe.specs.scenario import Scenario

_GIB = 2.0**30


class Batch(NamedTuple):
    """Sequences of a micro-batch of a rank, and R, the micro-batches that pass a layer together."""

    size: int
    together: int


class Room(NamedTuple):
    """Memory left on the fullest attention device and on the fullest expert device; negative = it lacks [B]."""

    attention: float
    experts: float

    @property
    def enough(self) -> bool:
        """Nothing is missing on either."""
        return min(self) >= 0

    @property
    def lack(self) -> str:
        """What is missing, as a sentence."""
        side = "attention" if self.attention < 0 else "expert"
        return f"an {side} device lacks {-min(self) / _GIB:.1f} GiB"


def room(scenario: Scenario) -> Room:
    """Memory that a zebra plan leaves, over all its stages [B]."""
    group, groups = domain_of_devices(scenario.cluster)[1], scenario.cluster.groups
    left: list[list[float]] = [[], []]
    for stage, memories in zip(scenario.plan.stages, role_memory(scenario), strict=True):
        for role, (view, memory) in enumerate(zip(stage.roles, memories, strict=True)):
            size = groups[int(group[view.first_device])].node.accelerator.memory.value
            left[role].append(size - memory.total)
    return Room(min(left[0]), min(left[1]))


class Bench:
    """What a planner asks about zebra plans of one scenario; answers are kept.

    Parameters
    ----------
    scenario : Scenario
    limits : Limits
    recompute : Recompute
        Of all plans.
    """

    def __init__(self, scenario: Scenario, limits: Limits, recompute: Recompute) -> None:
        self.scenario, self.limits, self.recompute = scenario, limits, recompute
        self._times: dict[tuple[Shape, Batch, int], list[StageTimes]] = {}
        self._problems: dict[tuple[Shape, Batch], AssignmentProblem] = {}

    @cached_property
    def layers(self) -> int:
        """MoE layers, with those of multi-token prediction."""
        return trained_moe_layers(self.scenario)

    @cached_property
    def _short(self) -> Scenario:
        """The scenario with a model of few layers."""
        model, training = self.scenario.model, self.scenario.training
        short = few_layers(model, model.mtp_layers if training.mtp else 0)
        return self.scenario.model_copy(update={"model": short})

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        moe = self.scenario.model.moe
        return moe.num_experts if moe is not None else 0

    def name(self, shape: Shape) -> str:
        """A shape with its recomputation."""
        again = self.recompute.granularity
        return shape.name(self.scenario.cluster) + ("" if again == "none" else f", {again} recomputation")

    def chunk(self, shape: Shape) -> int:
        """Experts of the smallest group that moves, from each expert device; 0 if none can."""
        if not shape.chunked or self.limits.assignment == "none":
            return 0
        given = chunk_sizes(shape.attention_devices, shape.expert_devices)[1]
        return given if given < self.experts // shape.expert_devices else 0

    def most(self, shape: Shape) -> int:
        """Experts of one layer that an expert device can give up in whole chunks and keep one."""
        given = self.chunk(shape)
        return (self.experts // shape.expert_devices - 1) // given * given if given else 0

    def plan_of(self, shape: Shape, micro_batches: int, moved: Sequence[int] = ()) -> Plan:
        """The plan in its uniform form."""
        zebra = Zebra(
            attention_devices=shape.attention_devices,
            expert_devices=shape.expert_devices,
            groups=shape.groups,
            micro_batches=micro_batches,
            moved_experts=tuple(moved) if any(moved) else (),
            attention_group=shape.attention_group,
            expert_group=shape.expert_group,
        )
        return plan_like(
            self.scenario,
            zebra=zebra,
            pipeline_parallel=shape.stages,
            dispatcher="alltoall",
            sharding="none" if self.scenario.plan.sharding == "none" else "zero1",
            a2a_ffn_overlap_degree=self.limits.degree,
            recompute=self.recompute,
        )

    def made(self, shape: Shape, batch: Batch, moved: Sequence[int] = ()) -> Scenario:
        """The scenario under a plan.

        Raises
        ------
        SpecError
            If a rule forbids it.
        """
        return planned(self.scenario, self.plan_of(shape, batch.together, moved), micro_batch_size=batch.size)

    def refusal(self, shape: Shape) -> str:
        """The rule that forbids a shape, whatever its memory; empty if none does."""
        try:
            self.made(shape, Batch(1, 1))
        except SpecError as error:
            return error.problems[0]
        return ""

    def times(self, shape: Shape, batch: Batch, moved: int = 0) -> list[StageTimes]:
        """Seconds of the blocks of every stage, all layers of which move the same.

        A micro-batch that is alone in a layer, in one piece, has no exchange beneath its kernels to slow them down;
        one of two is like one of many.
        """
        together = min(batch.together, 2)
        key = (shape, Batch(batch.size, together), moved)
        if key not in self._times:
            made = self._probe(self.scenario, shape, key[1], moved)
            short = made if shape.stages > 1 else self._probe(self._short, shape, key[1], moved)
            self._times[key] = [StageTimes(made, short, number) for number in range(shape.stages)]
        return self._times[key]

    def _probe(self, scenario: Scenario, shape: Shape, batch: Batch, moved: int) -> Scenario:
        """One pass of a step, with the same number of experts moved in all layers."""
        plan = self.plan_of(shape, batch.together, (moved,) * trained_moe_layers(scenario))
        sequences = batch.size * shape.replicas * batch.together
        return planned(scenario, plan, micro_batch_size=batch.size, global_batch_size=sequences)

    def exchange_s(self, shape: Shape, size: int) -> float:
        """All dispatches of a sequence of each attention rank, forward and backward, at most experts moved [s]."""
        moe = self.scenario.model.moe
        if moe is None:
            return 0.0
        training, model = self.scenario.training, self.scenario.model
        made = self.made(shape, Batch(size, 1))
        cost = StageCost(made, 0, shape.attention_group, role=0)
        share = self.most(shape) * shape.expert_devices / self.experts
        work = BipartiteExchange(
            tokens=float(size * training.sequence_length),
            bytes_per_token=float(training.precision.activation_bytes * model.hidden_size),
            top_k=moe.top_k,
            attention=shape.attention_devices,
            experts=shape.expert_devices,
        )
        least = min(
            cost.seconds(Operator("moe.dispatch", "all_to_all", work._replace(moved=moved))) for moved in (0.0, share)
        )
        return 2.0 * self.layers * least / size

    def problem(self, shape: Shape, batch: Batch) -> AssignmentProblem:
        """The question of what to move; times are those of forward and backward together [s]."""
        key = (shape, Batch(batch.size, min(batch.together, 2)))
        if key not in self._problems:
            self._problems[key] = self._problem(*key)
        return self._problems[key]

    def _problem(self, shape: Shape, batch: Batch) -> AssignmentProblem:
        """`problem`, worked out."""
        group = Group(self.experts, shape.attention_devices, shape.expert_devices)
        problem = problem_of(group, self.times(shape, batch), self._moving(shape, batch))
        return problem._replace(most_in_layer=self.most(shape))

    def _moving(self, shape: Shape, batch: Batch) -> list[StageTimes]:
        """Seconds where every layer moves a chunk; empty if none can."""
        given = self.chunk(shape)
        return self.times(shape, batch, given) if given else []

    def question(self, shape: Shape, batch: Batch) -> Question:
        """The same question with what surrounds the modules in a step."""
        times, moving = self.times(shape, batch), self._moving(shape, batch)
        return question(self.problem(shape, batch), batch.together, times, moving)


def trained_moe_layers(scenario: Scenario) -> int:
    """MoE layers of a run, with those of multi-token prediction."""
    model = scenario.model
    extra = model.mtp_layers if scenario.training.mtp and model.layer(model.num_layers - 1).moe else 0
    return sum(layer.moe for layer in model.layers) + extra
