"""One training iteration of a plan with zebra stages as a task graph; plain stages may stand among them.

The order of blocks is that of `simmoe.graph.zebra_order`, their steps those of `simmoe.graph.zebra_blocks`. Devices of
one kind in one node group do the same and are simulated once; zebra groups that share the batch meet at the end of the
step alone. A pass of the pipeline is the same sequences in every stage: one micro-batch of a plain stage, R of a zebra
stage.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simmoe.graph.actions import micro_batches
from simmoe.graph.columns import assemble
from simmoe.graph.ranks import RankClass, StepGraph
from simmoe.graph.schedules import Kind
from simmoe.graph.stamp import Ids, Placed, RankPlan, edges_of, place
from simmoe.graph.template import OperationTable
from simmoe.graph.zebra import ZebraStage
from simmoe.graph.zebra_order import Part, Role
from simmoe.graph.zebra_ranks import ZebraRank, place_class, stage_edges, zebra_classes
from simmoe.specs.scenario import Scenario

PlainStages = Mapping[int, Sequence[tuple[RankClass, RankPlan]]]


class _Gate(NamedTuple):
    """Where one rank meets the neighbouring stages in one direction.

    Attributes
    ----------
    parts : int
        Micro-batches of a pass, R; 1 of a plain stage.
    sends, entries : dict of int to list of int
        For each micro-batch of the step, the tasks that send it on, and those that wait for it.
    """

    parts: int
    sends: dict[int, list[int]]
    entries: dict[int, list[int]]


def build_zebra_step(
    scenario: Scenario, plain: PlainStages, table: OperationTable, *, contention: bool = True
) -> StepGraph:
    """Build the task graph of one iteration of a plan that has zebra stages.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan.
    plain : dict of int to list of (RankClass, RankPlan)
        What the other stages do, by number.
    table : OperationTable
        That the plain stages use.
    contention : bool
        Slow computation down while exchanges hold multiprocessors.

    Returns
    -------
    StepGraph
        For each stage a class for each node group, in a zebra stage of attention devices, then of expert devices.

    Notes
    -----
    A dispatch or combine is a task on either side, with the same causes: both start when the slower side is ready.
    The paper counts exchanges as free where they are hidden; here NCCL's channels keep multiprocessors from computing
    meanwhile, see `simmoe.graph.zebra_contention`.

    Between stages the sequences of a pass leave in the order in which they come: the j-th of R' micro-batches starts
    when as many sequences have arrived as j + 1 of them hold. A plain stage waits for the whole pass, and sends it
    whole.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, sections 4.1 and 4.2.
    """
    ranks: list[RankClass] = []
    stages: list[list[Placed] | list[ZebraRank]] = []
    first = 0
    for number in range(len(scenario.plan.stages)):
        made: list[Placed] | list[ZebraRank]
        if number in plain:
            made = _placed_plain([plan for _, plan in plain[number]], first)
            ranks += [rank for rank, _ in plain[number]]
        else:
            zebra = ZebraStage(scenario, number)
            made = _placed_zebra(zebra, table, first, contention=contention)
            ranks += [rank for rank, _, _ in zebra_classes(zebra)]
        first = made[-1].end
        stages.append(made)
    source, target = _all_edges(stages, micro_batches(scenario))
    layouts = [rank.layout for made in stages for rank in made]
    return StepGraph(assemble(layouts, source, target, table.operations), tuple(ranks))


def _placed_plain(plans: Sequence[RankPlan], first: int) -> list[Placed]:
    """The classes of a plain stage one after another."""
    placed: list[Placed] = []
    for plan in plans:
        placed.append(place(plan, placed[-1].end if placed else first))
    return placed


def _placed_zebra(zebra: ZebraStage, table: OperationTable, first: int, *, contention: bool) -> list[ZebraRank]:
    """The classes of a zebra stage one after another."""
    placed: list[ZebraRank] = []
    for found in zebra_classes(zebra):
        start = placed[-1].end if placed else first
        placed.append(place_class(zebra, found, table, start, contention=contention))
    return placed


def _all_edges(stages: Sequence[list[Placed] | list[ZebraRank]], passes: int) -> tuple[Ids, Ids]:
    """Everything that waits for something else than what its own block holds."""
    plain = [rank for made in stages for rank in made if isinstance(rank, Placed)]
    zebra = [[rank for rank in made if isinstance(rank, ZebraRank)] for made in stages]
    inside = (edge for same in zebra for rank in same for edge in stage_edges(rank, same))
    between = (edge for front, behind in pairwise(stages) for edge in _transfers(front, behind, passes))
    found = np.array(list(dict.fromkeys([*inside, *between])), dtype=np.int64).reshape(-1, 2)
    source, target = edges_of(plain)
    return np.concatenate([source, found[:, 0]]), np.concatenate([target, found[:, 1]])


def _transfers(
    front: Sequence[Placed | ZebraRank], behind: Sequence[Placed | ZebraRank], passes: int
) -> Iterator[tuple[int, int]]:
    """Activations to the next stage and gradients back, micro-batch by micro-batch; between plain stages none."""
    if all(isinstance(rank, Placed) for rank in (*front, *behind)):
        return
    for senders, receivers, backward in ((front, behind, False), (behind, front, True)):
        gates = [[_gate(rank, backward=backward) for rank in side] for side in (senders, receivers)]
        # Expert devices send nothing on and take nothing.
        ways_out, ways_in = ([gate for gate in side if gate is not None] for side in gates)
        for sender in ways_out:
            for receiver in ways_in:
                yield from _crossing(sender, receiver, passes)


def _crossing(sender: _Gate, receiver: _Gate, passes: int) -> Iterator[tuple[int, int]]:
    """Which micro-batch of the receiver waits for which of the sender, counted in sequences."""
    for number in range(passes * receiver.parts):
        begun = number * sender.parts // receiver.parts
        done = -(-(number + 1) * sender.parts // receiver.parts)
        for batch in range(begun, done):
            for source in sender.sends[batch]:
                for target in receiver.entries[number]:
                    yield source, target


def _gate(rank: Placed | ZebraRank, *, backward: bool) -> _Gate | None:
    """Where a rank meets its neighbours; None for expert devices."""
    if isinstance(rank, Placed):
        return _plain_gate(rank, backward=backward)
    return _zebra_gate(rank, backward=backward) if rank.role is Role.ATTENTION else None


def _plain_gate(rank: Placed, *, backward: bool) -> _Gate:
    """The passes through the one chunk of a plain stage."""
    kind = Kind.BACKWARD if backward else Kind.FORWARD
    template, batches = rank.plan.templates[kind, 0], rank.passes[kind, 0].micro_batches.tolist()
    steps = () if template.sends is None else (template.sends,)
    sends, entries = (rank.tasks(kind, 0, chosen).tolist() for chosen in (steps, template.entry))
    return _Gate(1, dict(zip(batches, sends, strict=True)), dict(zip(batches, entries, strict=True)))


def _zebra_gate(rank: ZebraRank, *, backward: bool) -> _Gate:
    """The attention blocks at either end of a zebra stage."""
    blocks, layers = rank.zebra.order.blocks, len(rank.zebra.work.layers)
    gate = _Gate(rank.zebra.stage.together, {}, {})
    for number in rank.offset:
        block = blocks[number]
        if block.part is not Part.ATTENTION or block.backward is not backward:
            continue
        sends = rank.template[number].sends
        if sends is not None:
            gate.sends[block.micro_batch] = [rank.offset[number] + sends]
        if block.place == (layers if backward else 0):
            gate.entries[block.micro_batch] = rank.entry(number)
    return gate
