"""What holds for the blocks of every zebra order, whatever their durations."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from simmoe.engine.fast import simulate_fast
from simmoe.graph.schedules import Action, Kind, one_f_one_b
from simmoe.graph.zebra_order import Block, Part, Role, ZebraOrder, block_graph, zebra_order
from tests.zebra import FORWARD, drawn

exact = settings(derandomize=True, deadline=None, max_examples=50)
MIRRORED = {Part.DISPATCH: Part.COMBINE, Part.COMBINE: Part.DISPATCH}


class Case(NamedTuple):
    """Arguments of `zebra_order`."""

    moved: tuple[bool, ...]
    micro_batches: int
    actions: tuple[Action, ...]
    pieces: int
    head: bool

    @property
    def order(self) -> ZebraOrder:
        return zebra_order(self.moved, self.micro_batches, self.actions, pieces=self.pieces, head=self.head)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A stage of a 1F1B pipeline; the head is in the last one or, with a schedule of one's own, in any."""
    stages, passes = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    return Case(
        moved=tuple(draw(st.lists(st.booleans(), min_size=1, max_size=3))),
        micro_batches=draw(st.integers(1, 3)),
        actions=one_f_one_b(draw(st.integers(0, stages - 1)), stages, passes),
        pieces=draw(st.integers(1, 3)),
        head=draw(st.booleans()),
    )


def expected_blocks(case: Case) -> Counter[Block]:
    """Every block that the passes consist of."""
    found: Counter[Block] = Counter()
    layers, pieces = len(case.moved), range(case.pieces)
    for kind, number, *_ in case.actions:
        back = kind is Kind.BACKWARD
        for batch in range(number * case.micro_batches, (number + 1) * case.micro_batches):
            found.update(Block(Role.ATTENTION, Part.ATTENTION, back, i, batch) for i in range(layers + 1))
            for layer, moved in enumerate(case.moved):
                parts = [(Role.EXPERTS, Part.EXPERTS), *[(Role.ATTENTION, Part.MOVED)] * moved]
                parts += [(role, part) for role in Role for part in MIRRORED]
                found.update(Block(*who, back, layer, batch, piece) for who in parts for piece in pieces)
    return found


@exact
@given(cases())
def test_every_block_of_every_pass_is_there_once(case: Case) -> None:
    blocks = Counter(case.order.blocks)
    assert blocks == expected_blocks(case)
    assert set(blocks.values()) == {1}


@exact
@given(cases())
def test_blocks_wait_for_earlier_ones_only(case: Case) -> None:
    """Streams issue in ascending order, too, so nothing can wait for itself."""
    order = case.order
    assert all(source < target for source, target in order.edges)
    assert len(set(order.edges)) == len(order.edges)


@exact
@given(cases(), st.integers(0, 999))
def test_streams_do_all_their_work(case: Case, seed: int) -> None:
    order, seconds = case.order, drawn(seed)
    timeline = simulate_fast(block_graph(order, seconds))
    work: defaultdict[tuple[Role, str], float] = defaultdict(float)
    for number, block in enumerate(order.blocks):
        assert timeline.end[number] == timeline.start[number] + seconds(block)
        work[block.role, block.part.stream] += seconds(block)
    assert timeline.makespan >= max(work.values()) * (1 - 1e-12)


@exact
@given(cases(), st.integers(0, 999))
def test_an_exchange_happens_on_both_sides_at_once(case: Case, seed: int) -> None:
    order = case.order
    timeline = simulate_fast(block_graph(order, drawn(seed)))
    when = dict(zip(order.blocks, zip(timeline.start, timeline.end, strict=True), strict=True))
    for block, times in when.items():
        if block.part in MIRRORED:
            assert times == when[block._replace(role=Role(1 - block.role))]


@exact
@given(cases(), st.integers(0, 999))
def test_what_a_block_needs_is_there_when_it_starts(case: Case, seed: int) -> None:
    """The way of one micro-batch through a layer and back, told a second time from the end of each step."""
    order = case.order
    timeline = simulate_fast(block_graph(order, drawn(seed)))
    start, end = (dict(zip(order.blocks, times.tolist(), strict=True)) for times in (timeline.start, timeline.end))

    def after(block: Block, *needs: Block) -> None:
        assert all(start[block] >= end[need] for need in needs)

    pieces, layers = range(case.pieces), range(len(case.moved))
    for back, batch in {(b.backward, b.micro_batch) for b in order.blocks}:
        attention = [Block(Role.ATTENTION, Part.ATTENTION, back, i, batch) for i in range(len(case.moved) + 1)]
        for layer in layers:
            before, behind = attention[layer : layer + 2][:: -1 if back else 1]
            for piece in pieces:
                rest = (back, layer, batch, piece)
                work = [Block(Role.EXPERTS, Part.EXPERTS, *rest)]
                work += [Block(Role.ATTENTION, Part.MOVED, *rest)] * case.moved[layer]
                for role in Role:
                    after(Block(role, Part.DISPATCH, *rest), before)
                    after(Block(role, Part.COMBINE, *rest), *work)
                    after(behind, Block(role, Part.COMBINE, *rest))
                for one in work:
                    after(one, Block(one.role, Part.DISPATCH, *rest))


@exact
@given(cases())
def test_moved_experts_run_after_the_attention_of_all_micro_batches_of_their_layer(case: Case) -> None:
    """In backward before it, and after the gradients of all have left the attention above."""
    place = {block: number for number, block in enumerate(case.order.blocks)}
    for block, number in place.items():
        if block.part is not Part.MOVED:
            continue
        first = block.micro_batch // case.micro_batches * case.micro_batches
        for batch in range(first, first + case.micro_batches):
            below, above = (
                place[Block(Role.ATTENTION, Part.ATTENTION, block.backward, block.place + step, batch)]
                for step in (0, 1)
            )
            assert above < number < below if block.backward else below < number < above


@exact
@given(cases())
def test_the_head_turns_every_micro_batch_around_at_once(case: Case) -> None:
    """Where the model ends and a pass goes backward right after forward; elsewhere a pass ends before the next."""
    compute = [b for b in case.order.blocks if b.role is Role.ATTENTION and b.part.stream == "compute"]
    follows = dict(pairwise(compute))
    for number, action in enumerate(case.actions[:-1]):
        if action.kind is Kind.BACKWARD:
            continue
        joined = case.head and case.actions[number + 1] == action._replace(kind=Kind.BACKWARD)
        batches = range(action.micro_batch * case.micro_batches, (action.micro_batch + 1) * case.micro_batches)
        for batch in batches:
            last = Block(Role.ATTENTION, Part.ATTENTION, False, len(case.moved), batch)
            turned = follows[last] == last._replace(backward=True)
            assert turned == joined or (not joined and case.micro_batches == 1)


def edges_of(order: ZebraOrder, *, of_sides: bool) -> set[tuple[Block, Block]]:
    """Waits between blocks; an exchange counts once, or its sides apart."""

    def named(block: Block) -> Block:
        return block._replace(role=Role.EXPERTS) if block.part in MIRRORED and not of_sides else block

    return {(named(order.blocks[source]), named(order.blocks[target])) for source, target in order.edges}


def mirrored(block: Block) -> Block:
    return block._replace(part=MIRRORED.get(block.part, block.part), backward=not block.backward)


@exact
@given(cases())
def test_backward_is_forward_in_a_mirror(case: Case) -> None:
    """Gradients go back along every wait; what was dispatched comes back as a combination, and the reverse."""
    alone = case._replace(head=False)
    forward, backward = (alone._replace(actions=(Action(kind, 0),)).order for kind in (Kind.FORWARD, Kind.BACKWARD))
    assert {mirrored(block) for block in forward.blocks} == set(backward.blocks)
    assert edges_of(backward, of_sides=False) == {
        (mirrored(target), mirrored(source)) for source, target in edges_of(forward, of_sides=False)
    }


@exact
@given(cases(), st.tuples(*[st.integers(0, 9)] * 5))
def test_backward_takes_as_long_as_forward_with_dispatch_and_combine_exchanged(
    case: Case, times: Sequence[int]
) -> None:
    def makespan(kind: Kind, seconds: dict[Part, int]) -> float:
        order = case._replace(actions=(Action(kind, 0),), head=False).order
        return simulate_fast(block_graph(order, lambda block: float(seconds[block.part]))).makespan

    forward = dict(zip(Part, times, strict=True))
    backward = {MIRRORED.get(part, part): seconds for part, seconds in forward.items()}
    assert makespan(Kind.FORWARD, forward) == makespan(Kind.BACKWARD, backward)


def test_a_model_of_no_moe_layer_is_attention_alone() -> None:
    order = zebra_order([], 2, FORWARD, head=False)
    assert [block[1:5] for block in order.blocks] == [(Part.ATTENTION, False, 0, 0), (Part.ATTENTION, False, 0, 1)]
    assert simulate_fast(block_graph(order, lambda _: 2.0)).makespan == 4.0
