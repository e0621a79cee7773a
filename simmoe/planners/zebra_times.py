"""How long a step under zebra parallelism takes, block by block: what the planner judges all candidates by."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.gradients import Weights, gather_parameters, optimizer_step, reduce_gradients
from simmoe.cost.groups import domain_of_devices
from simmoe.cost.model import StageCost
from simmoe.cost.operators import Operator
from simmoe.cost.parameters import rank_parameters
from simmoe.cost.zebra import expert_size, experts_held
from simmoe.engine.fast import simulate_fast
from simmoe.graph.schedules import Action, Kind
from simmoe.graph.step_ends import between_ranks
from simmoe.graph.task import TaskGraph
from simmoe.graph.zebra import ZebraCost
from simmoe.graph.zebra_order import Block, Part, Role, block_graph, zebra_order
from simmoe.specs.expand import moe_layers
from simmoe.specs.model import Model
from simmoe.specs.plan import Chunk, Stage
from simmoe.specs.scenario import Scenario

_MOST_LAYERS = 16  # of a shortened model

Times = NDArray[np.float64]


class Sides(NamedTuple):
    """Seconds of one micro-batch on an attention and on an expert device, forward and backward [s]."""

    attention: float
    experts: float


def block_kinds(chunk: Chunk, model: Model) -> list[tuple[Hashable, ...]]:
    """What each attention block of a zebra stage is made of: equal ones do the same.

    Parameters
    ----------
    chunk : Chunk
    model : Model

    Returns
    -------
    list of tuple
        Block i stands before MoE layer i of the chunk, the last behind the last.
    """
    blocks: list[list[Hashable]] = [["embedding"] if chunk.embedding else []]
    count = model.num_layers
    extra = range(count, count + chunk.mtp_layers)
    for index in (*range(chunk.first_layer, chunk.first_layer + chunk.layers), *extra):
        kind = (model.layer(min(index, count - 1)), index >= count)
        blocks[-1].append(kind)
        if kind[0].moe:
            blocks.append([("behind", *kind)])
    if chunk.head:
        blocks[-1].append("head")
    return [tuple(block) for block in blocks]


def few_layers(model: Model, mtp_layers: int) -> Model:
    """The model with as few of its first layers as have every kind of attention block; times are read off it.

    Parameters
    ----------
    model : Model
    mtp_layers : int
        That are trained.
    """
    if model.encoder_layers:
        return model
    whole = Chunk(first_layer=0, layers=model.num_layers, embedding=True, head=True, mtp_layers=mtp_layers)
    wanted = set(block_kinds(whole, model))
    for count in range(1, min(model.num_layers, _MOST_LAYERS)):
        short = model.model_copy(update={"num_layers": count})
        if set(block_kinds(whole.model_copy(update={"layers": count}), short)) == wanted:
            return short
    return model


class StageTimes:
    """Seconds of the blocks of one zebra stage in which every expert device gives up the same number of experts.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan of one pass of a few micro-batches.
    short : Scenario
        The same with a model of fewer layers, all of which it has, as `few_layers` finds them; may be the same.
    number : int
        The stage.
    """

    def __init__(self, scenario: Scenario, short: Scenario, number: int) -> None:
        self._cost = ZebraCost(short, number)
        self._scenario, self._number = scenario, number
        chunk = scenario.plan.stages[number].chunks[0]
        self.head: bool = chunk.head
        self.layers: int = len(moe_layers(scenario.model, chunk))
        known = block_kinds(short.plan.stages[number].chunks[0], short.model)
        self._alike = [known.index(kind) for kind in block_kinds(chunk, scenario.model)]
        self.pieces: int = scenario.plan.a2a_ffn_overlap_degree
        self._known: dict[Block, float] = {}

    def seconds(self, block: Block) -> float:
        """Time that a block keeps its stream busy [s]."""
        place = self._alike[block.place] if block.part is Part.ATTENTION else 0
        like = block._replace(place=place, micro_batch=0, piece=0)
        if like not in self._known:
            self._known[like] = max(self._cost.seconds(like), self._host(like))
        return self._known[like]

    def _host(self, block: Block) -> float:
        """Time in which the host launches a block, again where it is recomputed [s]."""
        zebra = self._cost.stage
        host, parts = zebra.settings.host, zebra.work.attention[block.place]
        if block.part in {Part.EXPERTS, Part.MOVED}:
            once = host.experts
        elif block.part is Part.ATTENTION:
            halves = {"head": host.attention + host.router, "whole": host.attention + host.mlp}
            once = sum(halves.get(part.kind, 0.0) for part in parts)
        else:
            return 0.0
        return 2.0 * once if block.backward and zebra.stage.recompute.granularity == "full" else once

    def both_ways(self, role: Role, part: Part, place: int = 0) -> float:
        """A block and its backward block [s]."""
        return sum(self.seconds(Block(role, part, backward, place, 0)) for backward in (False, True))

    @cached_property
    def module(self) -> Sides:
        """Attention with its gate, a mean over the layers, and a layer's experts, which may come in pieces [s]."""
        places = range(1, self.layers) if self.layers > 1 else range(1)
        attention = sum(self.both_ways(Role.ATTENTION, Part.ATTENTION, place) for place in places)
        return Sides(attention / len(places), self.pieces * self.both_ways(Role.EXPERTS, Part.EXPERTS))

    @cached_property
    def moved(self) -> float:
        """A layer's moved experts on an attention device [s]."""
        return self.pieces * self.both_ways(Role.ATTENTION, Part.MOVED)

    @cached_property
    def whole(self) -> Sides:
        """All blocks of the stage [s]."""
        attention = sum(self.both_ways(Role.ATTENTION, Part.ATTENTION, place) for place in range(self.layers + 1))
        return Sides(attention, self.module.experts * self.layers)

    @cached_property
    def exchanges(self) -> float:
        """All dispatches of the stage, or all combines, which take as long [s]."""
        return self.pieces * self.layers * self.both_ways(Role.ATTENTION, Part.DISPATCH)

    def frame(self, pass_s: float, moved: Sequence[int]) -> tuple[Sides, Sides]:
        """What the gathers of parameters add before a step, and gradients and optimizer after it, on either side [s].

        Parameters
        ----------
        pass_s : float
            One pass, forward and backward; two thirds of it can hide a reduction, a third a gather [s].
        moved : sequence of int
            Experts that each expert device gives up in the layers of the stage.
        """
        model, plan = self._scenario.model, self._scenario.plan
        stage = self._scenario.plan.stages[self._number]
        if stage.experts is not None:
            apart = stage.experts.model_copy(update={"moved_experts": tuple(moved)})
            stage = stage.model_copy(update={"experts": apart})
        held = [sum(counts) * expert_size(model) for counts in experts_held(self._scenario, stage)]
        dense = rank_parameters(model, stage.roles[0], pad_vocabulary=True).dense
        before, after = [], []
        for role, view in zip(Role, stage.roles, strict=True):
            cost, weights = self._frame_cost(role, view), Weights((1 - role) * dense, held[role])
            gather = _sum(cost, between_ranks(gather_parameters(weights, plan), cost.shapes))
            reduction = reduce_gradients(weights, plan, self._scenario.training)
            reduce = _sum(cost, between_ranks(reduction, cost.shapes))
            updates = optimizer_step(weights, plan, self._scenario.training, view.shards, cost.shapes["edp"].size)
            hidden = 2 * pass_s / 3 if plan.overlap_grad_reduce else 0.0
            after.append(_sum(cost, updates) + _exposed(reduce, hidden, self.layers))
            before.append(_exposed(gather, pass_s / 3, self.layers) if plan.overlap_param_gather else gather)
        return Sides(*before), Sides(*after)

    def _frame_cost(self, role: Role, view: Stage) -> StageCost:
        """What operators cost on one side."""
        group = int(domain_of_devices(self._scenario.cluster)[1][view.first_device])
        return StageCost(self._scenario, self._number, group, role=role)


def _sum(cost: StageCost, operators: Sequence[Operator]) -> float:
    return sum(cost.seconds(operator) for operator in operators)


def _exposed(communication: float, hidden: float, layers: int) -> float:
    """Communication that goes layer by layer beneath a pass: the last layer's, or what the pass is too short for."""
    return max(communication / layers, communication - hidden)


class _Frame(NamedTuple):
    """The graph of one pass without durations: which kind of block each task is."""

    graph: TaskGraph
    kinds: tuple[Block, ...]
    kind: NDArray[np.int32]


@lru_cache(maxsize=64)
def _frame(moved: tuple[bool, ...], micro_batches: int, pieces: int, head: bool) -> _Frame:
    """The blocks of a pass through one stage, forward and backward."""
    actions = [Action(Kind.FORWARD, 0), Action(Kind.BACKWARD, 0)]
    order = zebra_order(moved, micro_batches, actions, pieces=pieces, head=head)
    like = [block._replace(micro_batch=0, piece=0) for block in order.blocks]
    number = {block: index for index, block in enumerate(dict.fromkeys(like))}
    kind = np.array([number[block] for block in like], dtype=np.int32)
    return _Frame(block_graph(order, lambda _: 0.0), tuple(number), kind)


class PassTimes(NamedTuple):
    """A pass, and when the kernels of either side begin and end in it [s]."""

    seconds: float
    first: Sides
    last: Sides

    def framed(self, before: Sides, after: Sides) -> float:
        """What gathers before it and the optimizer after it add to a pass; a side may have it behind it early [s]."""
        late = max(end + more for end, more in zip(self.last, after, strict=True))
        early = max(more - start for start, more in zip(self.first, before, strict=True))
        return max(0.0, early) + late - self.seconds


class StepTimes:
    """A pass of R micro-batches through one stage, with any experts moved.

    Parameters
    ----------
    times : dict of int to StageTimes
        Of the stage, by how many experts every expert device gives up.
    pieces : int
        Of an exchange.
    """

    def __init__(self, times: dict[int, StageTimes], pieces: int) -> None:
        self._times, self._pieces = times, pieces

    def bound(self, moved: Sequence[int], micro_batches: int) -> float:
        """The busiest stream of a pass: no pass is shorter [s]."""
        each = [self._times[count] for count in moved]
        attention = self._times[0].whole.attention + sum(
            one.moved for one, count in zip(each, moved, strict=True) if count
        )
        experts = sum(one.module.experts for one in each)
        return micro_batches * max(attention, experts, sum(one.exchanges for one in each) / len(each))

    def run(self, moved: Sequence[int], micro_batches: int) -> PassTimes:
        """A pass, forward and backward."""
        graph, duration = self._filled(moved, micro_batches)
        timeline = simulate_fast(replace(graph, duration=duration))
        role = np.array([stream.rank for stream in graph.streams])[graph.stream]
        kernels = np.array([stream.name == "compute" for stream in graph.streams])[graph.stream]
        own = [kernels & (role == side) for side in Role]
        first, last = (
            Sides(*(float(pick(times[mask])) for mask in own))
            for pick, times in ((np.min, timeline.start), (np.max, timeline.end))
        )
        return PassTimes(timeline.makespan, first, last)

    def _filled(self, moved: Sequence[int], micro_batches: int) -> tuple[TaskGraph, Times]:
        flags = tuple(count > 0 for count in moved)
        frame = _frame(flags, micro_batches, self._pieces, self._times[0].head)
        each = np.array([self._times[self._moved(block, moved)].seconds(block) for block in frame.kinds])
        return frame.graph, each[frame.kind]

    @staticmethod
    def _moved(block: Block, moved: Sequence[int]) -> int:
        """How many experts have moved in the layer of a block; an attention block does not care."""
        return 0 if block.part is Part.ATTENTION else moved[block.place]
