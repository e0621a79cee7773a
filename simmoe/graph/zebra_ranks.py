"""The devices of a zebra stage with task ids, and what their tasks wait for inside the stage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simmoe.cost.gradients import Weights
from simmoe.cost.groups import domain_of_devices
from simmoe.cost.model import StageCost
from simmoe.cost.zebra import expert_size, experts_held
from simmoe.graph.columns import Layout
from simmoe.graph.ranks import RankClass
from simmoe.graph.step_ends import Bucket, StepEnds, buckets, step_ends
from simmoe.graph.template import STREAMS, OperationTable, Template, make_template
from simmoe.graph.weave import plain
from simmoe.graph.zebra import ZebraStage
from simmoe.graph.zebra_order import Block, Part, Role
from simmoe.specs.plan import Stage
from simmoe.specs.scenario import Scenario


@dataclass(frozen=True, slots=True, eq=False)
class ZebraRank:
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

    @property
    def end(self) -> int:
        """The task id after its last task."""
        return self.last + len(self.after)

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


def zebra_classes(zebra: ZebraStage) -> Iterator[tuple[RankClass, Role, int]]:
    """The rank classes of a zebra stage with their node groups: those of attention devices, then those of experts."""
    scenario = zebra.scenario
    group = domain_of_devices(scenario.cluster)[1]
    for role, view in zip(Role, zebra.stage.roles, strict=True):
        devices = group[view.first_device : view.first_device + view.devices]
        for part in dict.fromkeys(devices.tolist()):
            first = view.first_device + int(np.argmax(devices == part))
            accelerator = scenario.cluster.groups[part].node.accelerator.id
            count = int(np.count_nonzero(devices == part))
            yield RankClass(zebra.number, accelerator, count, first, role.name.lower()), role, part


def place_class(
    zebra: ZebraStage, found: tuple[RankClass, Role, int], table: OperationTable, first: int, *, contention: bool
) -> ZebraRank:
    """Give every block of a rank class its task ids, from `first` on.

    Parameters
    ----------
    zebra : ZebraStage
    found : RankClass, Role, int
        As `zebra_classes` yields them.
    table : OperationTable
    first : int
    contention : bool
        Exchanges hold multiprocessors.
    """
    rank, role, group = found
    cost = StageCost(zebra.scenario, zebra.number, group, rank.first_rank, role=role)
    share = zebra.exchange_share(role, group) if contention else 0.0
    return _place(zebra, role, cost, table, first, share)


def _place(
    zebra: ZebraStage, role: Role, cost: StageCost, table: OperationTable, first: int, share: float
) -> ZebraRank:
    """A rank class from its costs and the share of its multiprocessors that exchanges hold."""
    view = zebra.stage.roles[role]
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
    return ZebraRank(
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


def stage_edges(rank: ZebraRank, same: Sequence[ZebraRank]) -> Iterator[tuple[int, int]]:
    """What the tasks of a rank wait for inside their stage, besides what their own block holds.

    Parameters
    ----------
    rank : ZebraRank
    same : sequence of ZebraRank
        All of its stage, itself included.
    """
    yield from _block_edges(rank, same)
    yield from _step_edges(rank, [other for other in same if other.role is rank.role], rank.zebra.scenario)


def _block_edges(rank: ZebraRank, same: Sequence[ZebraRank]) -> Iterator[tuple[int, int]]:
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


def _step_edges(rank: ZebraRank, alike: Sequence[ZebraRank], scenario: Scenario) -> Iterator[tuple[int, int]]:
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


def _final(rank: ZebraRank) -> int:
    """The last block on the compute stream."""
    blocks = rank.zebra.order.blocks
    return max(number for number in rank.offset if blocks[number].part.stream == "compute")
