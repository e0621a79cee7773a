"""What a zebra stage takes, as a stage of a pipeline: seconds and bytes of a layer, and of what it does beside them."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.zebra_memory import zebra_memory
from simmoe.engine.fast import simulate_fast
from simmoe.errors import SpecError
from simmoe.graph.schedules import Action, Kind
from simmoe.graph.task import TaskGraph
from simmoe.graph.zebra_order import Block, Part, Role, block_graph, zebra_order
from simmoe.planners.pipeline_search.problem import Extra, StageOption
from simmoe.planners.proposal import divisors, planned
from simmoe.planners.ways import recomputed_words
from simmoe.planners.zebra_bench import Bench
from simmoe.planners.zebra_ends import LayerEnds, layer_ends
from simmoe.planners.zebra_shapes import Limits, Shape
from simmoe.planners.zebra_times import StageTimes
from simmoe.specs.plan import Chunk, ExpertDevices, Recompute, Stage
from simmoe.specs.scenario import Scenario

_FEW, _MORE = 3, 6  # layers of the passes from which a layer and what surrounds the layers are read off
_SIZES = (1, 2, 4)  # of micro-batches by which devices are compared
_BOTH = (Kind.FORWARD, Kind.BACKWARD)
_FULL = 10**12  # a device's memory, whichever its type
_ENDS = {"": (False, False), "embedding": (True, False), "head": (False, True)}


class ZebraWay(NamedTuple):
    """One way to run a zebra stage.

    Attributes
    ----------
    shape : Shape
        Its groups; one stage.
    together, size : int
        R, and sequences of a micro-batch of a rank.
    moved : int
        Experts that each expert device gives up, in every layer.
    recompute : Recompute
    """

    shape: Shape
    together: int
    size: int
    moved: int
    recompute: Recompute

    @property
    def unit(self) -> int:
        """Sequences of a pass."""
        return self.shape.replicas * self.together * self.size

    @property
    def name(self) -> str:
        """In a few words, without the devices.

        Examples
        --------
        >>> ZebraWay(Shape(0, 1, 2, 4, 2), 4, 1, 1, Recompute(granularity="full")).name
        'R 4 x 1, 1 moved, full'
        """
        moved = [f"{self.moved} moved"] if self.moved else []
        return ", ".join([f"R {self.together} x {self.size}", *moved, *recomputed_words(self.recompute)])

    def stage(self, attention: int, experts: int, chunk: Chunk) -> Stage:
        """A stage that is run this way, from its first attention and its first expert device on."""
        apart = ExpertDevices(
            first_device=experts,
            devices=self.shape.expert_devices * self.shape.groups,
            groups=self.shape.groups,
            micro_batches=self.together,
            moved_experts=(self.moved,) * (chunk.layers + chunk.mtp_layers) if self.moved else (),
        )
        count = self.shape.replicas
        return Stage(
            first_device=attention,
            devices=count,
            data_parallel=count,
            chunks=(chunk,),
            recompute=self.recompute,
            experts=apart,
        )


class _Seconds(NamedTuple):
    """Of one pass [s]: a layer forward and backward, and the same of what surrounds the layers."""

    forward: float
    backward: float
    around_forward: float
    around_backward: float


class _Bytes(NamedTuple):
    """Of a layer, or of an end of the model, on both kinds of devices [bytes]."""

    held: NDArray[np.float64]
    kept: NDArray[np.float64]


class ZebraStages:
    """Zebra stages of one scenario, of models whose layers are all alike; answers are kept.

    Parameters
    ----------
    scenario : Scenario

    Notes
    -----
    Seconds are those of passes of a few layers, simulated block by block, forward and backward apart: what each more
    layer adds, and what the first exchanges and the last ones add once. A device's memory is counted in parts of what
    it has; a layer counts as much as on the side that it fills more, so that what fits here fits.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._scenarios: dict[ZebraWay, Scenario] = {}
        self._times: dict[tuple[ZebraWay, str], StageTimes] = {}
        self._passes: dict[ZebraWay, _Seconds] = {}
        self._ends: dict[ZebraWay, LayerEnds] = {}
        self._heads: dict[ZebraWay, tuple[float, float]] = {}
        self._memories: dict[ZebraWay, _Memory] = {}
        self._benches: dict[Recompute, Bench] = {}

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        moe = self.scenario.model.moe
        return moe.num_experts if moe is not None else 0

    def bench(self, recompute: Recompute) -> Bench:
        """What is asked about zebra plans that recompute so."""
        if recompute not in self._benches:
            self._benches[recompute] = Bench(self.scenario, Limits(), recompute)
        return self._benches[recompute]

    def balanced(self, way: ZebraWay) -> list[int]:
        """Numbers of experts to move: none, and those that bring both sides of a layer closest to each other."""
        given = self.bench(way.recompute).chunk(way.shape)
        if not given:
            return [0]
        most = self.bench(way.recompute).most(way.shape)
        bare = self._blocks(way._replace(moved=0))
        attention, experts = bare.module
        extra = self._blocks(way._replace(moved=given)).moved / given
        each = experts * way.shape.expert_devices / self.experts
        even = (experts - attention) / (extra + each)
        steps = {math.floor(even / given) * given, math.ceil(even / given) * given}
        return sorted({0, *(min(most, max(0, step)) for step in steps)})

    def layer_s(self, way: ZebraWay) -> float:
        """A layer forward and backward, of a micro-batch among many that hide what can be hidden [s]."""
        blocks = self._blocks(way)
        attention, experts = blocks.module
        exchanges = blocks.exchanges / blocks.layers
        return max(attention + (blocks.moved if way.moved else 0.0), experts, exchanges)

    def device_seconds(self, attention_group: int, expert_group: int, recompute: Recompute) -> tuple[float, ...]:
        """A layer of a sequence, forward and backward, at the best micro-batch: what groups of any size share out.

        Returns
        -------
        tuple of float
            Attention on one attention device; all experts on one expert device, and on one attention device, infinite
            where no experts can move [s].
        """
        groups = self.scenario.cluster.groups
        most = min(groups[attention_group].devices, groups[expert_group].devices)
        count = max(size for size in divisors(self.experts, most) if size == 1 or 2 * size <= self.experts)
        shape, best = Shape(attention_group, expert_group, count, count, 1), [math.inf] * 3
        given = self.bench(recompute).chunk(shape)
        for size in _SIZES:
            way = ZebraWay(shape, 2, size, 0, recompute)
            attention, experts = self._blocks(way).module
            share = given * count / self.experts
            moved = self._blocks(way._replace(moved=given)).moved / share if given else math.inf
            best = [min(old, new / size) for old, new in zip(best, (attention, experts, moved), strict=True)]
        return tuple(best)

    def guess_s(self, way: ZebraWay) -> float:
        """A layer of a pass, forward and backward: the busiest stream, or the way of one micro-batch [s]."""
        blocks = self._blocks(way)
        attention, experts = blocks.module
        once = attention + experts + 2.0 * blocks.exchanges / blocks.layers
        return max(way.together * self.layer_s(way), once)

    def option(self, kind: int, way: ZebraWay) -> StageOption | None:
        """A way as figures; None if a rule forbids it or not even one layer fits."""
        try:
            memory = self._memory(way)
        except SpecError:
            return None
        layers, seconds = self.scenario.model.num_layers, self._seconds(way)
        kept, (each, once) = way.together * memory.layer.kept, self._ends_s(way)
        if memory.around + float(np.max(memory.layer.held + kept)) > 1.0:
            return None
        first, last = (
            Extra(
                *seconds_of_end,
                held_bytes=_parts(memory.ends[end].held),
                kept_bytes=_parts(way.together * memory.ends[end].kept),
            )
            for end, seconds_of_end in (("embedding", self._embedding_s(way)), ("head", self._head_s(way)))
        )
        return StageOption(
            device_type=kind,
            devices=way.shape.groups,
            name=way.name,
            forward_s=(seconds.forward,) * layers,
            backward_s=(seconds.backward,) * layers,
            update_s=(each,) * layers,
            held_bytes=(_parts(memory.layer.held),) * layers,
            kept_bytes=(_parts(kept),) * layers,
            capacity_bytes=_FULL,
            every=Extra(
                seconds.around_forward, seconds.around_backward, once, held_bytes=math.ceil(memory.around * _FULL)
            ),
            first=first,
            last=last,
        )

    def _made(self, way: ZebraWay) -> Scenario:
        """The scenario with one pass of a plan of one such stage."""
        if way not in self._scenarios:
            bench = self.bench(way.recompute)
            plan = bench.plan_of(way.shape, way.together, (way.moved,) * bench.layers)
            made = planned(self.scenario, plan, micro_batch_size=way.size, global_batch_size=way.unit)
            self._scenarios[way] = made
        return self._scenarios[way]

    def _probe(self, way: ZebraWay, end: str = "") -> StageTimes:
        """The blocks of a stage of a few layers, with or without an end of the model; groups do not matter."""
        alone = way._replace(shape=way.shape._replace(groups=1), together=min(way.together, 2))
        if (alone, end) not in self._times:
            short = _with_layers(self._made(alone), _FEW, end)
            self._times[alone, end] = StageTimes(short, short, 0)
        return self._times[alone, end]

    def _blocks(self, way: ZebraWay) -> StageTimes:
        return self._probe(way)

    def _seconds(self, way: ZebraWay) -> _Seconds:
        """A layer, and what surrounds the layers; groups do not matter."""
        alone = way._replace(shape=way.shape._replace(groups=1))
        if alone not in self._passes:
            blocks, found = self._blocks(way), []
            for kind in _BOTH:
                few, more = (_pass_s(blocks, way, layers, (kind,)) for layers in (_FEW, _MORE))
                each = (more - few) / (_MORE - _FEW)
                found += [each, max(0.0, few - _FEW * each)]
            self._passes[alone] = _Seconds(found[0], found[2], found[1], found[3])
        return self._passes[alone]

    def _ends_s(self, way: ZebraWay) -> tuple[float, float]:
        """What a layer adds to the end of a step, and what the stage adds once [s]."""
        like = way._replace(together=1, size=1, recompute=Recompute())
        if like not in self._ends:
            short = _with_layers(self._made(like), _FEW)
            self._ends[like] = layer_ends(StageTimes(short, short, 0), (way.moved,) * _FEW)
        seconds = self._seconds(way)
        return self._ends[like].seen(seconds.forward, seconds.backward)

    def _embedding_s(self, way: ZebraWay) -> tuple[float, float]:
        """What the embedding adds to a pass, forward and backward [s]."""
        bare = way._replace(moved=0, recompute=Recompute())
        return self._more_s(bare, "embedding")

    def _head_s(self, way: ZebraWay) -> tuple[float, float]:
        """What the end of the model adds to a pass, forward and backward [s].

        There each micro-batch turns around at once, while others are still under way: less is waited for.
        """
        alone = way._replace(shape=way.shape._replace(groups=1))
        if alone not in self._heads:
            middle, (forward, backward) = self._seconds(way), self._more_s(way, "head")
            whole = _pass_s(self._probe(way, "head"), way, _FEW, _BOTH)
            less = _FEW * (middle.forward + middle.backward) + middle.around_forward + middle.around_backward
            more = max(0.0, whole - less)
            self._heads[alone] = (more * forward / (forward + backward), more * backward / (forward + backward))
        return self._heads[alone]

    def _more_s(self, way: ZebraWay, end: str) -> tuple[float, float]:
        """The kernels of an end of the model for all micro-batches of a pass, forward and backward [s]."""
        place = 0 if end == "embedding" else _FEW
        more, less = self._probe(way, end), self._probe(way)
        blocks = [Block(Role.ATTENTION, Part.ATTENTION, backward, place, 0) for backward in (False, True)]
        forward, backward = (max(0.0, more.seconds(block) - less.seconds(block)) for block in blocks)
        return way.together * forward, way.together * backward

    def _memory(self, way: ZebraWay) -> "_Memory":
        """A layer, what surrounds the layers, and the ends of the model, of one micro-batch, in parts of the memory."""
        single = way._replace(together=1)
        if single not in self._memories:
            one, two = self._filled(single, 1), self._filled(single, 2)
            layer = _Bytes(two[:, 0] - one[:, 0], two[:, 1] - one[:, 1])
            rest = one - np.stack([layer.held, layer.kept, np.zeros(2)], axis=1)
            ends = {}
            for end in ("embedding", "head"):
                more = np.maximum(self._filled(single, 1, end) - one, 0.0)
                ends[end] = _Bytes(more[:, 0] + more[:, 2], more[:, 1])
            self._memories[single] = _Memory(layer, float(np.max(np.maximum(rest, 0.0).sum(axis=1))), ends)
        return self._memories[single]

    def _filled(self, way: ZebraWay, layers: int, end: str = "") -> NDArray[np.float64]:
        """What stays, what a pass keeps, and transients, in parts of the memory; a row for each side."""
        groups = (way.shape.attention_group, way.shape.expert_group)
        capacity = [self.scenario.cluster.groups[group].node.accelerator.memory.value for group in groups]
        software = self.scenario.training.software
        wasted, framework = 1.0 + software.allocator_waste.value, software.framework_memory.value
        made = self._made(way)
        stage = _with_layers(made, layers, end).plan.stages[0]
        rows = [
            (one.weights + one.gradients + one.optimizer, wasted * one.activations, wasted * one.working + framework)
            for one in zebra_memory(made, stage, 1)
        ]
        shares: NDArray[np.float64] = np.array(rows) / np.array(capacity)[:, None]
        return shares


class _Memory(NamedTuple):
    """Of one micro-batch in flight, in parts of the devices' memory.

    Attributes
    ----------
    layer : _Bytes
    around : float
        What a stage needs whatever its layers, on the fuller side.
    ends : dict of str to _Bytes
        Of embedding and head.
    """

    layer: _Bytes
    around: float
    ends: dict[str, _Bytes]


def _parts(shares: NDArray[np.float64]) -> int:
    """Shares of the memory of both sides as bytes of a device of which the fuller side decides [bytes]."""
    return math.ceil(max(0.0, float(shares.max())) * _FULL)


def _with_layers(made: Scenario, layers: int, end: str = "") -> Scenario:
    """The scenario with a stage of a few layers, which may hold an end of the model."""
    stage = made.plan.stages[0]
    embedding, head = _ENDS[end]
    chunk = Chunk(first_layer=0, layers=layers, embedding=embedding, head=head)
    apart = stage.experts
    if apart is not None and apart.moved_experts:
        apart = apart.model_copy(update={"moved_experts": apart.moved_experts[:1] * layers})
    short = stage.model_copy(update={"chunks": (chunk,), "experts": apart})
    return made.model_copy(update={"plan": made.plan.model_copy(update={"stages": (short,)})})


class _Frame(NamedTuple):
    """The graph of a pass without durations: which kind of block each task is."""

    graph: TaskGraph
    kinds: tuple[Block, ...]
    kind: NDArray[np.int32]


@lru_cache(maxsize=256)
def _frame(moved: bool, layers: int, micro_batches: int, kinds: tuple[Kind, ...]) -> _Frame:
    """A pass through a stage: one way, in the middle of a model; or both at once, where the model ends."""
    actions = [Action(kind, 0) for kind in kinds]
    order = zebra_order([moved] * layers, micro_batches, actions, head=kinds == _BOTH)
    like = [block._replace(place=_like(block.place, layers), micro_batch=0) for block in order.blocks]
    number = {block: index for index, block in enumerate(dict.fromkeys(like))}
    kind = np.array([number[block] for block in like], dtype=np.int32)
    return _Frame(block_graph(order, lambda _: 0.0), tuple(number), kind)


def _like(place: int, layers: int) -> int:
    """Where a block of a stage of `_FEW` layers stands that is like one of more layers."""
    return place if place == 0 else _FEW if place == layers else 1


def _pass_s(blocks: StageTimes, way: ZebraWay, layers: int, kinds: tuple[Kind, ...]) -> float:
    """A pass of R micro-batches through some layers [s]."""
    frame = _frame(way.moved > 0, layers, way.together, kinds)
    each = np.array([blocks.seconds(block) for block in frame.kinds])
    return simulate_fast(replace(frame.graph, duration=each[frame.kind])).makespan
