"""SimPy and the fast engine agree on every start and end of random zebra orders."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simmoe.engine.fast import simulate_fast
from simmoe.engine.simulate import simulate
from simmoe.graph.schedules import one_f_one_b
from simmoe.graph.zebra_order import Block, Part, Role, ZebraOrder, block_graph, zebra_order
from tests.zebra import drawn


@st.composite
def orders(draw: st.DrawFn) -> ZebraOrder:
    """Passes of a stage of 1F1B, with and without the head, moved experts and pieces."""
    stages, passes = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    return zebra_order(
        draw(st.lists(st.booleans(), min_size=1, max_size=3)),
        draw(st.integers(1, 4)),
        one_f_one_b(draw(st.integers(0, stages - 1)), stages, passes),
        pieces=draw(st.integers(1, 3)),
        head=draw(st.booleans()),
    )


@settings(derandomize=True, deadline=None, max_examples=30)
@given(orders(), st.integers(0, 999))
def test_both_engines_agree_to_the_last_bit(order: ZebraOrder, seed: int) -> None:
    graph = block_graph(order, drawn(seed))
    reference = simulate(graph)
    fast = simulate_fast(graph, use_numba=False)
    assert (fast.start == reference.start).all()
    assert (fast.end == reference.end).all()


def by_rule(order: ZebraOrder, seconds: dict[Block, float]) -> dict[Block, float]:
    """Ends of blocks, in the words of HeterMoE: a task starts when its data and all before it on its stream are done.

    Straight from the paper's description of a layer, without the edges of the order.
    """
    ends: dict[Block, float] = {}
    free: dict[tuple[Role, str], float] = {}
    pieces = 1 + max(block.piece for block in order.blocks)
    layers = max(block.place for block in order.blocks)
    for block in order.blocks:
        role, part, back, place, batch, piece = block
        rest = (back, place, batch, piece)
        if part is Part.DISPATCH:
            needs = [Block(Role.ATTENTION, Part.ATTENTION, back, place + 1 if back else place, batch)]
        elif part is Part.COMBINE:
            needs = [Block(Role.EXPERTS, Part.EXPERTS, *rest), Block(Role.ATTENTION, Part.MOVED, *rest)]
        elif part is Part.ATTENTION and back and place == layers:
            needs = [block._replace(backward=False)]
        elif part is Part.ATTENTION:
            source = (Role.ATTENTION, Part.COMBINE, back, place if back else place - 1, batch)
            needs = [Block(*source, one) for one in range(pieces)]
        else:
            needs = [Block(role, Part.DISPATCH, *rest)]
        stream = (role, part.stream)
        start = max([free.get(stream, 0.0), *(ends.get(need, 0.0) for need in needs)])
        ends[block] = free[stream] = start + seconds[block]
    return ends


@settings(derandomize=True, deadline=None, max_examples=30)
@given(orders(), st.integers(0, 999))
def test_the_order_equals_the_rule_of_the_paper_to_the_last_bit(order: ZebraOrder, seed: int) -> None:
    graph = block_graph(order, drawn(seed))
    ends = by_rule(order, dict(zip(order.blocks, graph.duration.tolist(), strict=True)))
    assert simulate_fast(graph).end.tolist() == [ends[block] for block in order.blocks]
