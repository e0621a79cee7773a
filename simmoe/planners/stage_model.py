"""What a pipeline stage takes, in seconds and bytes, as a sum over what it is made of: the planners' own cost model.

It asks the same cost functions as the simulator, once for each different layer, and leaves out only how stages wait for
each other.
"""

import math
from collections.abc import Callable, Hashable
from copy import copy
from typing import Any, NamedTuple

from simmoe.cost.backward import backward
from simmoe.cost.gradients import Weights, move_gradients
from simmoe.cost.groups import GroupShape, stage_groups
from simmoe.cost.layers import layer_operators
from simmoe.cost.loads import group_loads
from simmoe.cost.memory import chunk_activations, optimizer_bytes, state_bytes
from simmoe.cost.model import StageCost
from simmoe.cost.operators import Collective, Operator, TokenExchange
from simmoe.cost.parameters import rank_parameters
from simmoe.graph.blocking import with_blocking_launches
from simmoe.graph.moved_gradients import with_moved_gradients
from simmoe.graph.passes import Pass, Settings, backward_pass, forward_pass, second_half
from simmoe.graph.stage_settings import stage_settings
from simmoe.graph.step_ends import Bucket, step_ends
from simmoe.planners.pass_times import pass_seconds
from simmoe.specs.model import Model
from simmoe.specs.plan import Chunk, Recompute, Stage
from simmoe.specs.scenario import Scenario

_NOTHING = Recompute()
_DRAWS = 8  # micro-batches over which skewed loads are averaged


class PartCost(NamedTuple):
    """What a layer, the embedding, the head or an MTP layer takes on one device of a stage.

    Attributes
    ----------
    forward_s, backward_s : float
        One micro-batch; recomputation is backward [s].
    gather_s, reduce_s, update_s : float
        Once a step: parameters gathered, gradients reduced, optimizer and what else nothing can hide [s].
    held_bytes : int
        Weights, gradients, optimizer states [bytes].
    kept_bytes : int
        Activations of one micro-batch in flight, with what the allocator wastes of them [bytes].
    working_bytes : int
        The largest transient, likewise [bytes].
    """

    forward_s: float
    backward_s: float
    gather_s: float
    reduce_s: float
    update_s: float
    held_bytes: int
    kept_bytes: int
    working_bytes: int


def parts_of(chunk: Chunk, model: Model) -> list[Chunk]:
    """What a chunk is made of, each as a chunk of its own; equal ones cost the same.

    Parameters
    ----------
    chunk : Chunk
    model : Model

    Returns
    -------
    list of Chunk
        In model order; a layer is stood for by the first one like it.
    """
    parts = [Chunk(first_layer=0, layers=0, embedding=True)] if chunk.embedding else []
    parts += [layer_part(model, index) for index in range(chunk.first_layer, chunk.first_layer + chunk.layers)]
    parts += [Chunk(first_layer=0, layers=0, mtp_layers=1)] * chunk.mtp_layers
    return [*parts, Chunk(first_layer=0, layers=0, head=True)] if chunk.head else parts


def layer_part(model: Model, index: int) -> Chunk:
    """The first layer that is like a layer, as a chunk."""
    kind = model.layer(index)
    return Chunk(first_layer=next(i for i in range(index + 1) if model.layer(i) == kind), layers=1)


class StageModel:
    """Costs of the parts of stages of one model in one training on one cluster; answers are kept.

    Parameters
    ----------
    scenario : Scenario
        Only its plan and its micro-batch size may differ in what is asked later.

    Notes
    -----
    Valid for plain stages under balanced or skewed routing (of which the mean of the busiest rank is taken), without
    faults and without FSDP. Layers are taken to follow layers: what the host does ahead of the first one is left out.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._known: dict[Hashable, Any] = {}
        self._loads: dict[Hashable, float] = {}

    def bench(self, scenario: Scenario, number: int, group: int) -> "StageBench":
        """A stage of an expanded plan on the devices of one node group."""
        return self._bench(scenario, scenario.plan.stages[number], StageCost(scenario, number, group), group)

    def lone_bench(self, scenario: Scenario, group: int) -> "StageBench":
        """The same of a plan of one stage, which sends nothing: many plans have stages that stand alike."""
        (stage,) = scenario.plan.stages
        key = (group, stage.first_device, tuple(stage_groups(stage).items()))
        if key not in self._known:
            self._known[key] = StageCost(scenario, 0, group)
        return self._bench(scenario, stage, self._known[key], group)

    def _bench(self, scenario: Scenario, stage: Stage, cost: StageCost, group: int) -> "StageBench":
        settings = self._loaded(stage_settings(scenario, stage))
        return StageBench(scenario, stage, StageCosts(cost, group, settings), self._known)

    def _loaded(self, settings: Settings) -> Settings:
        """Settings with the load of the busiest rank, where routing is skewed."""
        scenario, shard = self._scenario, settings.shard
        if not scenario.routing.skewed or scenario.model.moe is None:
            return settings
        key = (shard.expert, shard.expert_tensor, shard.local_tokens)
        if key not in self._loads:
            loads = group_loads(scenario.routing, scenario.model, shard, _DRAWS)
            self._loads[key] = float((loads.sent[:, :, None] * loads.ranks).max(axis=2).mean())
        load = self._loads[key]
        return settings._replace(shard=shard._replace(capacity_factor=1.0, load=load, exchange_load=load))


class StageCosts(NamedTuple):
    """The cost of operators of a stage on the devices of a node group, and what shapes its passes."""

    cost: StageCost
    group: int
    settings: Settings

    def shapes(self, *kinds: str) -> tuple[GroupShape, ...]:
        """Placement of some of its groups."""
        return tuple(self.cost.shapes[kind] for kind in kinds)


class StageBench:
    """The parts of one stage, asked one by one; `StageModel.bench` makes it.

    Parameters
    ----------
    scenario : Scenario
    stage : Stage
    costs : StageCosts
    known : dict
        Answers, also of other stages.
    """

    def __init__(self, scenario: Scenario, stage: Stage, costs: StageCosts, known: dict[Hashable, Any]) -> None:
        self.cost = costs.cost
        self._scenario, self._stage, self._group, self._known = scenario, stage, costs.group, known
        self._settings = costs.settings
        group, sizes = costs.group, (stage.tensor_parallel, stage.expert_parallel, stage.expert_tensor_parallel)
        # What forward passes depend on; backward passes also on what is computed again; the ends on replicas.
        forward = costs.settings._replace(recompute=_NOTHING)[1:]
        self._forward = self._number(("forward", group, forward, costs.shapes("tp", "cp", "ep", "etp")))
        self._backward = self._number(("backward", self._forward, stage.recompute))
        self._sizes = self._number(("sizes", sizes))
        self._ranks = self._number(("ranks", group, sizes, costs.shapes("dp", "edp", "shard", "replica"), stage.shards))
        # Embedding and head know no experts.
        shard = costs.settings.shard._replace(expert=1, expert_tensor=1)
        self._outer = self._number(("outer", group, shard, costs.shapes("tp", "cp")))
        shard = shard._replace(batch=0, sequence=0, context=0)
        local = (group, shard, costs.settings.shard.local_tokens, costs.shapes("tp", "ep", "etp"))
        self._experts = self._number(("experts", sizes, local))

    def _number(self, key: Hashable) -> int:
        """A number for a key, which is looked up faster."""
        number: int = self._known.setdefault(key, len(self._known))
        return number

    def recomputing(self, recompute: Recompute) -> "StageBench":
        """The same stage with other recomputation."""
        other = copy(self)
        other._stage = self._stage.model_copy(update={"recompute": recompute})
        other._settings = self._settings._replace(recompute=recompute)
        other._backward = self._number(("backward", self._forward, recompute))
        return other

    def part(self, part: Chunk) -> PartCost:
        """What one of `parts_of` costs."""
        forward_s, backward_s = self._passes(part)
        gather_s, reduce_s, update_s, state, kept, working = self._rest(part)
        return PartCost(forward_s, backward_s, gather_s, reduce_s, update_s, state, kept, working)

    def _rest(self, part: Chunk) -> tuple[float, float, float, int, int, int]:
        """What a part takes besides its passes."""
        gather_s, reduce_s, update_s = self._kept("ends", self._ranks, part, self._ends)
        state = self._kept("state", self._ranks, part, self._state)
        kept, working = self._kept("activations", self._backward, part, self._activations)
        return gather_s, reduce_s, update_s, state, kept, working

    def _kept(self, what: str, key: int, part: Chunk, made: Callable[[Chunk], Any]) -> Any:
        """An answer, worked out once."""
        whole = (what, key, part.first_layer, part.layers, part.embedding, part.head, part.mtp_layers)
        if whole not in self._known:
            self._known[whole] = made(part)
        return self._known[whole]

    def experts(self, part: Chunk) -> tuple[float, ...]:
        """What the expert half of a layer takes: work forward and backward, its ends, and its memory.

        Of two ways that differ only in how they share experts, one that is better in all of these is better.
        """
        return (*self._kept("half", self._experts, part, self._half), *self._rest(part))

    def _half(self, part: Chunk) -> tuple[float, float]:
        """The work of the expert half of a layer, forward and backward [s]."""
        operators = layer_operators(self._scenario.model, self._settings.shard, part.first_layer)
        half = operators[second_half(operators) :]
        forward_s = sum(self._seconds(operator) for operator in half)
        return forward_s, sum(self._seconds(gradient) for operator in half for gradient in backward(operator))

    def _passes(self, part: Chunk) -> tuple[float, float]:
        """Forward and backward of a part, which know nothing of replicas [s]."""
        keys = (self._forward, self._backward) if part.layers or part.mtp_layers else (self._outer,) * 2
        forward_s: float = self._kept("forward", keys[0], part, self._ahead)
        backward_s: float = self._kept("backward", keys[1], part, self._back)
        return forward_s, backward_s

    def _ahead(self, part: Chunk) -> float:
        return self._pace(forward_pass(part, self._settings))

    def _back(self, part: Chunk) -> float:
        training, passed = self._scenario.training, backward_pass(part, self._settings)
        if training.software.weight_gradients != "fused":
            moved = move_gradients(self._weights(part), training)
            passed = with_moved_gradients(passed, dict.fromkeys(passed.layer_exit, moved))
        return self._pace(passed)

    def _pace(self, passed: Pass) -> float:
        """The seconds of a pass."""
        blocking = self._scenario.training.software.blocking_launches
        return pass_seconds(with_blocking_launches(passed) if blocking else passed, self._seconds)

    def _seconds(self, operator: Operator) -> float:
        """An operator on a device of the stage; kernels take as long in every stage [s]."""
        if isinstance(operator.work, Collective | TokenExchange):
            return self.cost.seconds(operator)
        key = (self._group, operator.work)
        if key not in self._known:
            self._known[key] = self.cost.seconds(operator)
        seconds: float = self._known[key]
        return seconds

    def _weights(self, part: Chunk) -> Weights:
        parameters = rank_parameters(self._scenario.model, self._alone(part), pad_vocabulary=True)
        return Weights(parameters.dense, parameters.expert)

    def _alone(self, part: Chunk) -> Stage:
        """The stage with nothing but a part."""
        return self._stage.model_copy(update={"chunks": (part,)})

    def _ends(self, part: Chunk) -> tuple[float, float, float]:
        """Gather, reduction, and what nothing hides [s]."""
        weights = self._kept("weights", self._sizes, part, self._weights)
        ends = step_ends(self._scenario, self._alone(part), self.cost.shapes, [Bucket(0, -1, weights)])
        reduced = {step for step, _ in ends.reduced}
        after = [self._seconds(step.operator) for step in ends.after.steps]
        gather = sum(self._seconds(step.operator) for step in ends.before.steps)
        reduce = sum(taken for number, taken in enumerate(after) if number in reduced)
        return gather, reduce, sum(after) - reduce

    def _state(self, part: Chunk) -> int:
        """Weights, gradients and optimizer [bytes]."""
        scenario, stage = self._scenario, self._alone(part)
        parameters = rank_parameters(scenario.model, stage, pad_vocabulary=True)
        moe, copies = scenario.model.moe, scenario.routing.expert_replicas
        more = 1.0 + copies * stage.expert_parallel / moe.num_experts if moe is not None else 1.0
        state = state_bytes(parameters._replace(expert=parameters.expert * more), scenario.training)
        return math.ceil(sum(state) + optimizer_bytes(parameters, stage, scenario))

    def _activations(self, part: Chunk) -> tuple[int, int]:
        """Kept for each micro-batch in flight, and the largest transient [bytes]."""
        kept, working = chunk_activations(self._scenario, part, self._settings.shard, self._stage.recompute)
        waste = 1.0 + self._scenario.training.software.allocator_waste.value
        return math.ceil(waste * kept), math.ceil(waste * working)
