"""One training iteration under zebra parallelism as a task graph: attention devices and expert devices.

The order of blocks is that of `simmoe.graph.zebra_order`, their steps those of `simmoe.graph.zebra_blocks`. Devices of
one kind in one node group do the same and are simulated once; zebra groups that share the batch meet at the end of the
step alone.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.groups import domain_of_devices
from simmoe.cost.model import StageCost
from simmoe.cost.operators import Operator
from simmoe.cost.zebra import ZebraWork, moved_of, zebra_work
from simmoe.graph.actions import micro_batches, stage_actions
from simmoe.graph.host import host_times
from simmoe.graph.multiprocessors import peer_multiprocessors
from simmoe.graph.passes import Pass
from simmoe.graph.stage_settings import send_operator, stage_settings
from simmoe.graph.template import STREAMS, OperationTable, Template, make_template
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

    def exchange_share(self, role: Role, group: int) -> float:
        """The share of the multiprocessors of a device of a node group that an exchange of its zebra group holds."""
        return exchange_share(self.scenario, self.stage, role, group)

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
            self.stage.exchange_share(role, int(group[view.first_device]))
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


def exchange_share(scenario: Scenario, stage: Stage, role: Role, group: int) -> float:
    """The share of a device's multiprocessors that a dispatch or combine of its zebra group holds [1]."""
    apart = stage.experts
    if apart is None:
        return 0.0
    attention, experts = stage.devices // apart.groups, apart.group_devices
    peers = experts + (attention - 1 if any(apart.moved_experts) else 0) if role is Role.ATTENTION else attention
    node = scenario.cluster.groups[group].node
    return peer_multiprocessors(peers, node) / node.accelerator.sm_count.value
