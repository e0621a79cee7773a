"""Zebra orders with durations for the tests: one number a part, or one a block."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from simmoe.engine.fast import simulate_fast
from simmoe.engine.record import Timeline
from simmoe.graph.schedules import Action, Kind
from simmoe.graph.zebra_order import Block, Part, Role, ZebraOrder, block_graph, zebra_order

FORWARD = (Action(Kind.FORWARD, 0),)
STEP = (Action(Kind.FORWARD, 0), Action(Kind.BACKWARD, 0))


class Times(NamedTuple):
    """Durations of one micro-batch [s]; backward takes `ratio` times as long as forward."""

    attention: float
    experts: float
    dispatch: float = 0.0
    combine: float = 0.0
    ratio: float = 1.0
    head: float | None = None  # the block behind the last layer; None: as any attention

    @property
    def slower(self) -> float:
        return max(self.attention, self.experts)

    @property
    def side(self) -> Role:
        """The slower side; attention if both are as fast."""
        return Role.ATTENTION if self.attention >= self.experts else Role.EXPERTS

    @property
    def round_trip(self) -> float:
        """From the start of an attention block to the start of the next one of the micro-batch, if nothing waits."""
        return self.attention + self.dispatch + self.experts + self.combine

    def of(self, layers: int, pieces: int = 1) -> Callable[[Block], float]:
        """The duration of every block where no experts moved."""
        last = self.attention if self.head is None else self.head

        def seconds(block: Block) -> float:
            whole = {
                Part.ATTENTION: last if block.place == layers else self.attention,
                Part.EXPERTS: self.experts / pieces,
                Part.DISPATCH: self.dispatch / pieces,
                Part.COMBINE: self.combine / pieces,
            }[block.part]
            return whole * (self.ratio if block.backward else 1.0)

        return seconds


class Run(NamedTuple):
    """An order and when its blocks ran."""

    order: ZebraOrder
    timeline: Timeline

    def blocks(self, role: Role, stream: str = "compute") -> list[int]:
        """Blocks of a stream in order of issue."""
        return [i for i, b in enumerate(self.order.blocks) if b.role is role and b.part.stream == stream]

    def forward(self, role: Role) -> list[int]:
        """The compute stream from its first to its last forward block."""
        blocks = self.blocks(role)
        last = max(at for at, i in enumerate(blocks) if not self.order.blocks[i].backward)
        return blocks[: last + 1]

    def waits(self, blocks: Sequence[int]) -> float:
        """Idle time between the first and the last of some blocks that follow one another on a stream."""
        start, end = self.timeline.start, self.timeline.end
        return float(sum(start[later] - end[earlier] for earlier, later in pairwise(blocks)))

    def busy(self, role: Role) -> float:
        return float(self.timeline.graph.duration[self.blocks(role)].sum())


def run(times: Times, layers: int, micro_batches: int, actions: Sequence[Action] = STEP, pieces: int = 1) -> Run:
    """Simulate the order of theorem 1."""
    order = zebra_order([False] * layers, micro_batches, actions, pieces=pieces)
    return Run(order, simulate_fast(block_graph(order, times.of(layers, pieces))))


def reordered(order: ZebraOrder, blocks: Sequence[Block]) -> ZebraOrder:
    """The same blocks and waits in another order of issue."""
    place = {block: number for number, block in enumerate(blocks)}
    new = [place[block] for block in order.blocks]
    return ZebraOrder(tuple(blocks), tuple((new[source], new[target]) for source, target in order.edges))


def drawn(seed: int) -> Callable[[Block], float]:
    """A random duration for every block, the same on both sides of an exchange; a third of them tie."""
    random, known = Random(seed), dict[Block, float]()

    def seconds(block: Block) -> float:
        key = block if block.part.stream == "compute" else block._replace(role=Role.ATTENTION)
        return known.setdefault(key, random.choice([random.random(), random.random(), float(random.randrange(4))]))

    return seconds


class Link(NamedTuple):
    """A compute block of a micro-batch and the exchange that it feeds, if any."""

    block: Block
    seconds: float
    exchange: str
    exchange_seconds: float


def chain(order: ZebraOrder, seconds: Callable[[Block], float]) -> tuple[Link, ...]:
    """What micro-batch 0 goes through, first to last, where no experts moved and nothing is cut."""
    links: list[Link] = []
    for block in order.blocks:
        if block.micro_batch:
            continue
        if block.part.stream == "compute":
            links.append(Link(block, seconds(block), "", 0.0))
        elif block.role is Role.ATTENTION:
            links[-1] = links[-1]._replace(exchange=block.part.stream, exchange_seconds=seconds(block))
    return tuple(links)


class _State(NamedTuple):
    """When streams are free and, for each micro-batch, how far it is and when it can go on."""

    free: tuple[float, ...]  # attention, experts, dispatch, combine
    progress: tuple[tuple[int, float], ...]

    @property
    def times(self) -> tuple[float, ...]:
        return (*self.free, *(ready for _, ready in self.progress))


def least_makespan(links: Sequence[Link], micro_batches: int) -> float:
    """The least makespan of all orders of both compute streams [s]; exchanges go in the order of their producers.

    Equal micro-batches. Of all states with equal progress those stay that are not later in everything than another one.
    """
    level = [_State((0.0,) * 4, ((0, 0.0),) * micro_batches)]
    for _ in range(len(links) * micro_batches):
        fronts: dict[tuple[int, ...], list[_State]] = {}
        for state in {after for before in level for after in _continued(before, links)}:
            fronts.setdefault(tuple(at for at, _ in state.progress), []).append(state)
        level = [state for states in fronts.values() for state in _not_later(states)]
    return min(max(state.times) for state in level)


def _continued(state: _State, links: Sequence[Link]) -> Iterator[_State]:
    """The states after the next block of any micro-batch."""
    for which, (at, ready) in enumerate(state.progress):
        if at == len(links) or (at, ready) in state.progress[:which]:
            continue
        block, seconds, exchange, exchange_seconds = links[at]
        free = list(state.free)
        free[block.role] = done = max(free[block.role], ready) + seconds
        if exchange:
            lane = 2 if exchange == "dispatch" else 3
            free[lane] = done = max(free[lane], done) + exchange_seconds
        moved = (*state.progress[:which], (at + 1, done), *state.progress[which + 1 :])
        # Nobody goes on before its stream is free. Said here, more states turn out no better than others.
        after = [(n, max(t, free[links[n].block.role]) if n < len(links) else t) for n, t in moved]
        yield _State(tuple(free), tuple(sorted(after)))


def _not_later(states: list[_State]) -> list[_State]:
    """States that no other state beats or equals in every time."""
    kept: list[_State] = []
    for state in sorted(states, key=lambda one: one.times):
        if not any(all(a <= b for a, b in zip(one.times, state.times, strict=True)) for one in kept):
            kept.append(state)
    return kept
