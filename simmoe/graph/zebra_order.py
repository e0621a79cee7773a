"""The order of work of zebra parallelism: attention devices and expert devices take turns, layer by layer.

Pure: blocks and what they wait for, no times. `simmoe.graph.zebra` fills the blocks with operators; `block_graph` gives
each block one task, for planners and for theory.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from simmoe.graph.schedules import Action, Kind
from simmoe.graph.task import Operation, Stream, TaskGraph, compressed_rows


class Role(IntEnum):
    """Which devices of a zebra group."""

    ATTENTION = 0
    EXPERTS = 1


class Part(IntEnum):
    """What a block does.

    ``DISPATCH`` carries tokens, or gradients of the experts' results, to the experts; ``COMBINE`` carries results, or
    gradients of tokens, back. ``MOVED`` are the experts that attention devices took over.
    """

    ATTENTION = 0
    EXPERTS = 1
    MOVED = 2
    DISPATCH = 3
    COMBINE = 4

    @property
    def stream(self) -> str:
        """The stream that a block of this part sits on."""
        return {Part.DISPATCH: "dispatch", Part.COMBINE: "combine"}.get(self, "compute")


class Block(NamedTuple):
    """Work of one micro-batch that nothing interrupts.

    Attributes
    ----------
    role : Role
        An exchange is a block of both sides.
    part : Part
    backward : bool
    place : int
        MoE layer of the stage; attention block i stands before layer i, the last one behind the last layer.
    micro_batch : int
        Counted over the whole step.
    piece : int
        Of `Plan.a2a_ffn_overlap_degree`.
    """

    role: Role
    part: Part
    backward: bool
    place: int
    micro_batch: int
    piece: int = 0


class ZebraOrder(NamedTuple):
    """Blocks in order of issue on every stream, and which waits for which.

    Attributes
    ----------
    blocks : tuple of Block
    edges : tuple of (int, int)
        Indices into `blocks`: the second waits for the first.
    """

    blocks: tuple[Block, ...]
    edges: tuple[tuple[int, int], ...]


class _Sizes(NamedTuple):
    """Layers with moved experts, micro-batches of a pass, pieces of an exchange."""

    moved: tuple[bool, ...]
    micro_batches: int
    pieces: int

    @property
    def layers(self) -> int:
        return len(self.moved)


def zebra_order(
    moved: Sequence[bool], micro_batches: int, actions: Sequence[Action], *, pieces: int = 1, head: bool = True
) -> ZebraOrder:
    """The blocks of one pipeline stage under zebra parallelism.

    Parameters
    ----------
    moved : sequence of bool
        For each MoE layer of the stage, whether attention devices hold some of its experts.
    micro_batches : int
        R, that pass a layer one after another.
    actions : sequence of Action
        Order of passes of the stage; a pass is R micro-batches.
    pieces : int
        Parts that each exchange and the experts' work are cut into.
    head : bool
        The model ends in the stage: each micro-batch's last forward block is followed at once by its first backward.

    Returns
    -------
    ZebraOrder

    Notes
    -----
    Theorem 1 of HeterMoE: attention devices compute A(1,1..R) ... A(L,1..R), at the last block forward and backward of
    each micro-batch in turn, then backward from layer L to 1; expert devices the same for the layers between; an
    exchange is issued with the block that feeds it. Experts that moved to attention devices run after the attention of
    all R micro-batches of their layer, for tokens of the other attention devices have to arrive first (section 4.2),
    and in backward after the gradients of all R have left the layer above.

    The theorem writes A_L for the last block of both sides; with L MoE layers that block is number L + 1, the one that
    holds the head.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, sections 4.1 and 4.2, theorem 1.

    Examples
    --------
    >>> order = zebra_order([False], 2, [Action(Kind.FORWARD, 0), Action(Kind.BACKWARD, 0)])
    >>> names = ["AEXDC"[b.part] + "fb"[b.backward] + str(b.place) + str(b.micro_batch) for b in order.blocks]
    >>> [name for name, b in zip(names, order.blocks) if b.role is Role.ATTENTION and b.part.stream == "compute"]
    ['Af00', 'Af01', 'Af10', 'Ab10', 'Af11', 'Ab11', 'Ab00', 'Ab01']
    """
    sizes = _Sizes(tuple(moved), micro_batches, pieces)
    blocks: list[Block] = []
    for number, action in enumerate(actions):
        turns = head and number + 1 < len(actions) and actions[number + 1].micro_batch == action.micro_batch
        batches = range(action.micro_batch * micro_batches, (action.micro_batch + 1) * micro_batches)
        if action.kind is Kind.FORWARD:
            blocks += _forward(sizes, batches, turns=turns)
        else:
            joined = head and number > 0 and actions[number - 1] == (Kind.FORWARD, *action[1:])
            blocks += _backward(sizes, batches, joined=joined)
    index = {block: number for number, block in enumerate(blocks)}
    edges = [(index[cause], number) for number, block in enumerate(blocks) for cause in _causes(block, sizes, index)]
    return ZebraOrder(tuple(blocks), tuple(edges))


def _attention(sizes: _Sizes, place: int, batch: int, *, backward: bool) -> Iterator[Block]:
    """An attention block and the exchange it feeds, on both sides."""
    yield Block(Role.ATTENTION, Part.ATTENTION, backward, place, batch)
    target = place - 1 if backward else place
    if 0 <= target < sizes.layers:
        for piece in range(sizes.pieces):
            for role in Role:
                yield Block(role, Part.DISPATCH, backward, target, batch, piece)


def _experts(sizes: _Sizes, place: int, batches: range, *, backward: bool) -> Iterator[Block]:
    """A layer's experts on both sides for all micro-batches, and the exchanges they feed."""
    for batch in batches:
        for piece in range(sizes.pieces):
            yield Block(Role.EXPERTS, Part.EXPERTS, backward, place, batch, piece)
            if sizes.moved[place]:
                yield Block(Role.ATTENTION, Part.MOVED, backward, place, batch, piece)
            for role in Role:
                yield Block(role, Part.COMBINE, backward, place, batch, piece)


def _forward(sizes: _Sizes, batches: range, *, turns: bool) -> Iterator[Block]:
    """A forward pass; where the model ends, the last block is followed by its gradient."""
    for place in range(sizes.layers):
        for batch in batches:
            yield from _attention(sizes, place, batch, backward=False)
        yield from _experts(sizes, place, batches, backward=False)
    for batch in batches:
        yield from _attention(sizes, sizes.layers, batch, backward=False)
        if turns:
            yield from _attention(sizes, sizes.layers, batch, backward=True)


def _backward(sizes: _Sizes, batches: range, *, joined: bool) -> Iterator[Block]:
    """A backward pass, without the block that the forward pass already turned around at."""
    if not joined:
        for batch in batches:
            yield from _attention(sizes, sizes.layers, batch, backward=True)
    for place in reversed(range(sizes.layers)):
        yield from _experts(sizes, place, batches, backward=True)
        for batch in batches:
            yield from _attention(sizes, place, batch, backward=True)


def _causes(block: Block, sizes: _Sizes, known: dict[Block, int]) -> Iterator[Block]:
    """The blocks that a block waits for, besides the one before it on its stream."""
    _, part, backward, place, batch, piece = block
    if part is Part.ATTENTION:
        source = place if backward else place - 1
        if 0 <= source < sizes.layers:
            for one in range(sizes.pieces):
                yield Block(Role.ATTENTION, Part.COMBINE, backward, source, batch, one)
        elif backward and Block(Role.ATTENTION, part, False, place, batch) in known:
            yield Block(Role.ATTENTION, part, False, place, batch)
    elif part is Part.DISPATCH:
        yield Block(Role.ATTENTION, Part.ATTENTION, backward, place + backward, batch)
    elif part is Part.COMBINE:
        yield Block(Role.EXPERTS, Part.EXPERTS, backward, place, batch, piece)
        if sizes.moved[place]:
            yield Block(Role.ATTENTION, Part.MOVED, backward, place, batch, piece)
    else:
        yield Block(block.role, Part.DISPATCH, backward, place, batch, piece)


def block_graph(order: ZebraOrder, seconds: Callable[[Block], float]) -> TaskGraph:
    """One task for each block.

    Parameters
    ----------
    order : ZebraOrder
    seconds : callable
        Duration of a block [s]; an exchange takes as long on both sides.

    Returns
    -------
    TaskGraph
        Task i is block i; rank 0 are the attention devices, rank 1 the expert devices.

    Examples
    --------
    Two layers of attention 1 s and experts 1 s, exchanges that take no time, forward alone: attention, experts,
    attention, experts, and the block behind the last layer.

    >>> order = zebra_order([False, False], 1, [Action(Kind.FORWARD, 0)], head=False)
    >>> graph = block_graph(order, lambda block: float(block.part.stream == "compute"))
    >>> from simmoe.engine.fast import simulate_fast
    >>> simulate_fast(graph).makespan
    5.0
    """
    streams = sorted({(int(block.role), block.part.stream) for block in order.blocks})
    kinds = sorted({(block.part, block.backward) for block in order.blocks})
    edges = np.array(order.edges, dtype=np.int64).reshape(-1, 2)
    start, predecessor = compressed_rows(edges[:, 0].astype(np.int32), edges[:, 1].astype(np.int32), len(order.blocks))
    return TaskGraph(
        operation=np.array([kinds.index((b.part, b.backward)) for b in order.blocks], dtype=np.int32),
        stream=np.array([streams.index((int(b.role), b.part.stream)) for b in order.blocks], dtype=np.int32),
        duration=np.array([seconds(block) for block in order.blocks], dtype=np.float64),
        layer=np.array([block.place for block in order.blocks], dtype=np.int32),
        micro_batch=np.array([block.micro_batch for block in order.blocks], dtype=np.int32),
        predecessor_start=start,
        predecessor=predecessor,
        operations=tuple(_operation(part, backward=backward) for part, backward in kinds),
        streams=tuple(Stream(rank, name) for rank, name in streams),
    )


def _operation(part: Part, *, backward: bool) -> Operation:
    """What tasks of a kind of block are called."""
    phase = "backward" if backward else "forward"
    if part.stream == "compute":
        category = "grouped_gemm" if part in {Part.EXPERTS, Part.MOVED} else "attention"
        return Operation(f"zebra.{part.name.lower()}", phase, category)
    return Operation(f"zebra.{part.name.lower()}", phase, "all_to_all", "ep")
