"""One training iteration under zebra parallelism as a task graph: attention devices and expert devices.

The order of blocks is that of `simmoe.graph.zebra_order`, their steps those of `simmoe.graph.zebra_blocks`. Devices of
one kind in one node group do the same and are simulated once; zebra groups that share the batch meet at the end of the
step alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.gradients import Weights
from simmoe.cost.groups import domain_of_devices
from simmoe.cost.model import StageCost
from simmoe.cost.operators import Operator
from simmoe.cost.zebra import ZebraWork, expert_size, experts_held, moved_of, zebra_work
from simmoe.graph.actions import micro_batches, stage_actions
from simmoe.graph.columns import Layout, assemble
from simmoe.graph.host import host_times
from simmoe.graph.multiprocessors import peer_multiprocessors
from simmoe.graph.passes import Pass
from simmoe.graph.ranks import RankClass, StepGraph
from simmoe.graph.stage_settings import send_operator, stage_settings
from simmoe.graph.step_ends import Bucket, StepEnds, buckets, step_ends
from simmoe.graph.template import STREAMS, OperationTable, Template, make_template
from simmoe.graph.weave import plain
from simmoe.graph.zebra_blocks import block_pass
from simmoe.graph.zebra_contention import beside_exchanges, kernel_seconds, slowed
from simmoe.graph.zebra_order import Block, Part, Role, ZebraOrder, zebra_order
from simmoe.specs.plan import Stage
from simmoe.specs.scenario import Scenario

Ids = NDArray[np.int64]


class ZebraStage:
    """One zebra stage: its order of blocks, and the work of each.

    Parameters
    ----------
    scenario : Scenario
    number : int
        Of the stage.
    """

    def __init__(self, scenario: Scenario, number: int) -> None:
        plan = scenario.plan
        self.scenario, self.number = scenario, number
        self.stage: Stage = plan.stages[number]
        self.last = self.stage.chunks[0].head
        self.work: ZebraWork = zebra_work(scenario, self.stage)
        self.settings = stage_settings(scenario, self.stage)._replace(
            host=host_times(scenario, self.stage.roles[Role.EXPERTS])
        )
        self.order: ZebraOrder = zebra_order(
            [moved > 0 for moved in moved_of(self.stage, scenario.model)],
            self.stage.together,
            stage_actions(plan, number, micro_batches(scenario)),
            pieces=plan.a2a_ffn_overlap_degree,
            head=self.last,
        )

    @cached_property
    def live(self) -> frozenset[int]:
        """Backward blocks at the end of the model, by index, that follow their own forward block at once."""
        found, before = [], None
        for number, block in enumerate(self.order.blocks):
            if block.part is Part.ATTENTION:
                if self.last and block.backward and before == block._replace(backward=False):
                    found.append(number)
                before = block
        return frozenset(found)

    def template(self, number: int, cost: StageCost, table: OperationTable, share: float) -> Template:
        """The steps of a block of the order with their times; exchanges hold a share of the multiprocessors."""
        block = self.order.blocks[number]
        passed = self._pass(block, live=number in self.live)
        send = self._send(block)
        made = make_template(passed, send, cost.seconds, table)
        if block.part.stream == "compute" and share:
            made = beside_exchanges(made, self._hidden(block, cost, share), share)
        waits = self.settings.host.sync and block.part in {Part.EXPERTS, Part.MOVED} and not block.backward
        if waits and passed.steps[0].operator.stream == "host":  # it reads how many tokens arrived, and remembers
            return replace(made, entry=np.append(made.entry, np.int32(0)))
        return made

    def _pass(self, block: Block, *, live: bool = False) -> Pass:
        return block_pass(block, self.work, self.settings, live=live)

    def _hidden(self, block: Block, cost: StageCost, share: float) -> float:
        """Duration of the exchanges beneath a block [s]: with one micro-batch in one piece there is nothing to hide."""
        pieces = self.scenario.plan.a2a_ffn_overlap_degree
        if self.stage.together * pieces == 1:
            return 0.0
        places = [block.place, block.place]
        if block.part is Part.ATTENTION:
            places = [place for place in (block.place - 1, block.place) if 0 <= place < len(self.work.layers)]
        whole = sum(
            pieces * kernel_seconds(self._pass(block._replace(part=Part.DISPATCH, place=place)), cost)
            for place in places
        )
        if block.part is Part.MOVED:  # what the attention of the layer has not hidden
            before = kernel_seconds(self._pass(block._replace(part=Part.ATTENTION)), cost)
            whole = max(0.0, whole - slowed(before, whole, share))
        return whole if block.part is Part.ATTENTION else whole / pieces

    def _send(self, block: Block) -> Operator | None:
        """What an attention block at either end of the stage sends to its neighbour."""
        ends = 0 if block.backward else len(self.work.layers)
        if block.part is not Part.ATTENTION or block.place != ends:
            return None
        return send_operator(self.scenario, self.number, self.stage.chunks[0], backward=block.backward)


class ZebraCost:
    """Seconds of whole blocks of a zebra stage, for those who plan with them.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan.
    number : int
        A zebra stage; where one of its sides has unlike devices the first ones count.
    """

    def __init__(self, scenario: Scenario, number: int = 0) -> None:
        self.stage = ZebraStage(scenario, number)
        group = domain_of_devices(scenario.cluster)[1]
        self._costs = [
            StageCost(scenario, number, int(group[view.first_device]), role=role)
            for role, view in enumerate(self.stage.stage.roles)
        ]
        self._shares = [
            exchange_share(scenario, self.stage.stage, role, int(group[view.first_device]))
            for role, view in zip(Role, self.stage.stage.roles, strict=True)
        ]
        self._table = OperationTable()
        self._known: dict[tuple[Block, bool], float] = {}

    def seconds(self, block: Block) -> float:
        """Time that a block of the stage's order keeps its stream busy, its host never in the way [s]."""
        number = self._index[block]
        key = (block._replace(micro_batch=0, piece=0), number in self.stage.live)
        if key not in self._known:
            made = self.stage.template(number, self._costs[block.role], self._table, self._shares[block.role])
            own = made.stream == STREAMS.index(block.part.stream)
            self._known[key] = float(made.duration[own].sum())
        return self._known[key]

    @cached_property
    def _index(self) -> dict[Block, int]:
        return {block: number for number, block in enumerate(self.stage.order.blocks)}


@dataclass(frozen=True, slots=True, eq=False)
class _Rank:
    """One rank class with task ids.

    Attributes
    ----------
    zebra : ZebraStage
    role : Role
    offset : dict of int to int
        First task of each block, by its index in the order.
    template : dict of int to Template
        Of each block.
    ends : StepEnds
    before, after : Template
        What frames the passes, from the tasks `first` and `last` on.
    layout : Layout
    """

    zebra: ZebraStage
    role: Role
    offset: dict[int, int]
    template: dict[int, Template]
    ends: StepEnds
    before: Template
    after: Template
    first: int
    last: int
    layout: Layout

    def entry(self, number: int) -> list[int]:
        """The tasks of a block that wait for what the block waits for."""
        return [self.offset[number] + int(step) for step in self.template[number].entry]

    def tail(self, number: int) -> list[int]:
        """The tasks that end a block."""
        made = self.template[number]
        return [self.offset[number] + step for step in (*made.tail, *made.leftover)]

    def block_of(self, layer: int, *, backward: bool) -> int:
        """The last backward block, or the first forward block, that works with the weights of a layer."""
        part, place = self._place_of(layer)
        blocks = self.zebra.order.blocks
        numbers = reversed(self.offset) if backward else iter(self.offset)
        return next(number for number in numbers if blocks[number][1:4] == (part, backward, place))

    def _place_of(self, layer: int) -> tuple[Part, int]:
        """Kind and place of the blocks that hold the weights of a layer."""
        work = self.zebra.work
        if self.role is Role.EXPERTS:
            return Part.EXPERTS, work.layers.index(layer)
        place = next(
            place
            for place, parts in enumerate(work.attention)
            if any(one.layer == layer and one.kind != "tail" for one in parts)
        )
        return Part.ATTENTION, place


def exchange_share(scenario: Scenario, stage: Stage, role: Role, group: int) -> float:
    """The share of a device's multiprocessors that a dispatch or combine of its zebra group holds [1]."""
    apart = stage.experts
    if apart is None:
        return 0.0
    attention, experts = stage.devices // apart.groups, apart.group_devices
    peers = experts + (attention - 1 if any(apart.moved_experts) else 0) if role is Role.ATTENTION else attention
    node = scenario.cluster.groups[group].node
    return peer_multiprocessors(peers, node) / node.accelerator.sm_count.value


def build_zebra_step(scenario: Scenario, *, contention: bool = True) -> StepGraph:
    """Build the task graph of one iteration of a plan of zebra stages.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan.
    contention : bool
        Slow computation down while exchanges hold multiprocessors.

    Returns
    -------
    StepGraph
        A class of attention devices, then one of expert devices, for each stage and node group.

    Notes
    -----
    A dispatch or combine is a task on either side, with the same causes: both start when the slower side is ready.
    The paper counts exchanges as free where they are hidden; here NCCL's channels keep multiprocessors from computing
    meanwhile, see `simmoe.graph.zebra_contention`.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, sections 4.1 and 4.2.
    """
    table, ranks, placed, first = OperationTable(), [], [], 0
    group = domain_of_devices(scenario.cluster)[1]
    for number in range(len(scenario.plan.stages)):
        zebra = ZebraStage(scenario, number)
        for role, view in zip(Role, zebra.stage.roles, strict=True):
            devices = group[view.first_device : view.first_device + view.devices]
            for part in dict.fromkeys(devices.tolist()):
                device = view.first_device + int(np.argmax(devices == part))
                accelerator = scenario.cluster.groups[part].node.accelerator.id
                count = int(np.count_nonzero(devices == part))
                ranks.append(RankClass(number, accelerator, count, device, role.name.lower()))
                cost = StageCost(scenario, number, part, device, role=role)
                share = exchange_share(scenario, zebra.stage, role, part) if contention else 0.0
                placed.append(_place(zebra, role, view, cost, table, first, share))
                first = placed[-1].last + len(placed[-1].after)
    edges = np.array(list(dict.fromkeys(_edges(placed, scenario))), dtype=np.int64).reshape(-1, 2)
    graph = assemble([rank.layout for rank in placed], edges[:, 0], edges[:, 1], table.operations)
    return StepGraph(graph, tuple(ranks))


def _place(
    zebra: ZebraStage, role: Role, view: Stage, cost: StageCost, table: OperationTable, first: int, share: float
) -> _Rank:
    """Give every block of a rank class its task ids, from `first` on."""
    ends = step_ends(zebra.scenario, view, cost.shapes, _weights(zebra, role, view))
    before, after = (make_template(part, None, cost.seconds, table) for part in (ends.before, ends.after))
    slots, kinds, numbers = [plain(before), plain(after)], [0], []
    known: dict[tuple[Block, bool], int] = {}
    for number, block in enumerate(zebra.order.blocks):
        if block.role is role:
            key = (block._replace(micro_batch=0, piece=0), number in zebra.live)
            if key not in known:
                known[key] = len(slots)
                slots.append(plain(zebra.template(number, cost, table, share)))
            numbers.append(number)
            kinds.append(known[key])
    kinds.append(1)
    sizes = np.array([len(slot.part) for slot in slots])[kinds]
    offset = first + np.cumsum(sizes) - sizes
    batches = np.full((len(kinds), 2), -1, dtype=np.int32)
    batches[1:-1, 0] = [zebra.order.blocks[number].micro_batch for number in numbers]
    return _Rank(
        zebra=zebra,
        role=role,
        offset=dict(zip(numbers, offset[1:-1].tolist(), strict=True)),
        template={number: slots[kind].templates[0] for number, kind in zip(numbers, kinds[1:-1], strict=True)},
        ends=ends,
        before=before,
        after=after,
        first=first,
        last=int(offset[-1]),
        layout=Layout(tuple(slots), np.array(kinds), offset, batches),
    )


def _weights(zebra: ZebraStage, role: Role, view: Stage) -> list[Bucket]:
    """The weights of a device layer by layer: all but the experts and what moved there, or experts alone."""
    model = zebra.scenario.model
    held = dict(zip(zebra.work.layers, experts_held(zebra.scenario, zebra.stage)[role], strict=True))
    each = expert_size(model)
    found = []
    for bucket in buckets(model, view):
        dense = bucket.weights.dense if role is Role.ATTENTION else 0.0
        weights = Weights(dense, held.get(bucket.layer, 0) * each)
        if sum(weights) > 0:
            found.append(bucket._replace(weights=weights))
    return found


def _edges(placed: list[_Rank], scenario: Scenario) -> Iterator[tuple[int, int]]:
    """Everything that waits for something else than what its own block holds."""
    for rank in placed:
        same = [other for other in placed if other.zebra is rank.zebra]
        yield from _block_edges(rank, same)
        yield from _step_edges(rank, [other for other in same if other.role is rank.role], scenario)
        for other in placed:
            if rank.role is other.role is Role.ATTENTION and other.zebra.number == rank.zebra.number + 1:
                yield from _transfers(rank, other)


def _block_edges(rank: _Rank, same: list[_Rank]) -> Iterator[tuple[int, int]]:
    """What the blocks of a rank wait for; an exchange for all devices that feed it."""
    blocks = rank.zebra.order.blocks
    for cause, number in rank.zebra.order.edges:
        if number not in rank.offset:
            continue
        joint = blocks[number].part.stream != "compute"
        for other in same if joint else (rank,):
            if cause in other.offset:
                for source in other.tail(cause):
                    for target in rank.entry(number):
                        yield source, target


def _step_edges(rank: _Rank, alike: list[_Rank], scenario: Scenario) -> Iterator[tuple[int, int]]:
    """Parameters are gathered before their first use, gradients reduced after their last; the optimizer ends it all."""
    for step, bucket in rank.ends.gathered:
        for target in rank.entry(rank.block_of(bucket.layer, backward=False)):
            yield rank.first + step, target
    for step, bucket in rank.ends.reduced:
        for other in alike:
            early = scenario.plan.overlap_grad_reduce
            final = other.block_of(bucket.layer, backward=True) if early else _final(other)
            for source in other.tail(final):
                yield source, rank.last + step
    update = rank.last + rank.after.stream.tolist().index(STREAMS.index("compute"))
    for source in rank.tail(_final(rank)):
        yield source, update


def _final(rank: _Rank) -> int:
    """The last block on the compute stream."""
    blocks = rank.zebra.order.blocks
    return max(number for number in rank.offset if blocks[number].part.stream == "compute")


def _transfers(here: _Rank, there: _Rank) -> Iterator[tuple[int, int]]:
    """Activations to the attention devices of the next stage, gradients back, micro-batch by micro-batch."""
    for sender, receiver, backward in ((here, there, False), (there, here, True)):
        ends = {
            receiver.zebra.order.blocks[number].micro_batch: number
            for number in receiver.offset
            if _receives(receiver, number, backward=backward)
        }
        for number in sender.offset:
            sends = sender.template[number].sends
            block = sender.zebra.order.blocks[number]
            if sends is not None and block.backward is backward:
                for target in receiver.entry(ends[block.micro_batch]):
                    yield sender.offset[number] + sends, target


def _receives(rank: _Rank, number: int, *, backward: bool) -> bool:
    """Whether a block takes what the neighbouring stage sends."""
    block = rank.zebra.order.blocks[number]
    place = len(rank.zebra.work.layers) if backward else 0
    return block.part is Part.ATTENTION and block.backward is backward and block.place == place
