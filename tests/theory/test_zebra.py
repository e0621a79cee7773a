"""Zebra parallelism against closed forms; times are dyadic fractions or integers, so every comparison is exact.

Sources: HeterMoE (arXiv 2504.03871v1), figure 6 and theorem 1; MegaScale-Infer (arXiv 2504.02263) for the inequality
and the total time of balanced sides.
"""

from collections.abc import Iterator
from itertools import permutations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from simmoe.engine.fast import simulate_fast
from simmoe.errors import InternalError
from simmoe.graph.schedules import Action
from simmoe.graph.zebra_order import Block, Part, Role, ZebraOrder, block_graph, zebra_order
from tests.zebra import FORWARD, STEP, Run, Times, chain, least_makespan, reordered, run

exact = settings(derandomize=True, deadline=None, max_examples=50)
few = settings(derandomize=True, deadline=None, max_examples=15)


@st.composite
def times(draw: st.DrawFn, longest: int = 12, head: bool = False) -> Times:
    """Exchanges are no longer than the slower side's work."""
    attention, experts = draw(st.integers(1, longest)), draw(st.integers(1, longest))
    exchange = st.one_of(st.just(0), st.integers(0, max(attention, experts)))
    behind = float(draw(st.integers(0, 3 * longest))) if head else None
    ratio = draw(st.sampled_from([0.5, 1.0, 2.0, 3.0]))
    return Times(float(attention), float(experts), float(draw(exchange)), float(draw(exchange)), ratio, behind)


def sizes(layers: int = 4, micro_batches: int = 6) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(1, layers), st.integers(1, micro_batches))


# ---------------------------------------------------------------- figure 6

PER_SECOND = 30  # the figure's 3 s, 4 s and 3.2 s / 6 experts are whole numbers of thirtieths


def figure_6(moved: tuple[int, int, int]) -> Run:
    """3 layers, 3 micro-batches, 6 experts on one device; a moved expert takes its sixth of the work along."""
    order = zebra_order([count > 0 for count in moved], 3, FORWARD, head=False)

    def thirtieths(block: Block) -> float:
        if block.part is Part.ATTENTION:
            return 3.0 * PER_SECOND if block.place < 3 else 0.0
        if block.part is Part.EXPERTS:
            return 4.0 * PER_SECOND * (6 - moved[block.place]) / 6
        return 3.2 * PER_SECOND / 6 * moved[block.place] if block.part is Part.MOVED else 0.0

    return Run(order, simulate_fast(block_graph(order, thirtieths)))


@pytest.mark.parametrize(
    ("moved", "makespan", "attention_idle", "experts_idle"),
    [((0, 0, 0), 39.0, 12.0, 3.0), ((0, 1, 1), 35.0, 4.8, 3.0), ((1, 1, 1), 34.2, 2.4, 4.2)],
)
def test_figure_6(moved, makespan, attention_idle, experts_idle):
    """Expectation: 39 s; moving an expert of layers 2 and 3 saves 10 %, and 60 % of the time attention devices idle.

    Idle is what is not busy of the whole forward pass.
    """
    found = figure_6(moved)
    assert found.timeline.makespan == makespan * PER_SECOND
    assert found.timeline.makespan - found.busy(Role.ATTENTION) == attention_idle * PER_SECOND
    assert found.timeline.makespan - found.busy(Role.EXPERTS) == experts_idle * PER_SECOND


def test_figure_6_attention_devices_work_three_quarters_of_the_time():
    """Expectation: 27 s of attention for 36 s in which experts never wait."""
    found = figure_6((0, 0, 0))
    assert found.waits(found.blocks(Role.EXPERTS)) == 0.0
    assert (found.busy(Role.ATTENTION), found.busy(Role.EXPERTS)) == (27 * PER_SECOND, 36 * PER_SECOND)


def test_figure_6_moving_an_expert_of_every_layer_leaves_experts_waiting():
    """Expectation: from the end of layer 1 to the end 1.2 s of 21.2 s, twice 0.6 s between two layers."""
    found = figure_6((1, 1, 1))
    experts = found.blocks(Role.EXPERTS)
    first = experts[2]  # the last block of layer 1
    assert found.timeline.makespan - found.timeline.end[first] == 21.2 * PER_SECOND
    assert found.waits(experts[2:]) == found.waits(experts) == 1.2 * PER_SECOND


# ---------------------------------------------------------------- no bubbles


def keeps_busy(one: Times, layers: int, micro_batches: int) -> bool:
    """Whether the slower side never waits for the first micro-batch of the next layer.

    R max(T_A, T_E) >= T_A + T_D + T_E + T_C. Experts of a single layer have no next one to wait for.
    """
    alone = one.side is Role.EXPERTS and layers == 1
    return alone or micro_batches * one.slower >= one.round_trip


@exact
@given(times(), sizes(), st.sampled_from([FORWARD, STEP]))
@example(Times(4.0, 3.0, 2.0, 3.0), (2, 3), STEP)  # 12 = 12
@example(Times(4.0, 3.0, 2.0, 4.0), (2, 3), STEP)  # 12 < 13
@example(Times(3.0, 4.0, 4.0, 1.0), (2, 3), STEP)  # 12 = 12
@example(Times(3.0, 4.0, 4.0, 2.0), (2, 3), STEP)  # 12 < 13
def test_the_slower_side_never_waits_in_forward_exactly_if_micro_batches_cover_the_round_trip(one, size, actions):
    """Expectation: the inequality, alone and with a backward pass of any ratio behind it; Actual: gaps of the stream.

    With the backward pass, the stream of attention devices holds the first gradients between its forward blocks.
    """
    found = run(one, *size, actions)
    assert (found.waits(found.forward(one.side)) == 0.0) == keeps_busy(one, *size)


@exact
@given(times(), sizes())
def test_slower_attention_never_waits_in_backward_either(one, size):
    """Expectation: the same inequality, for the whole step."""
    assume(one.side is Role.ATTENTION)
    found = run(one, *size)
    assert (found.waits(found.blocks(Role.ATTENTION)) == 0.0) == keeps_busy(one, *size)


@exact
@given(times(), sizes())
def test_slower_experts_also_wait_for_the_first_gradients(one, size):
    """Expectation, without exchanges: no wait exactly if gradients come back in time, from the first to the last.

    Micro-batch r of L R forward blocks of experts is back at attention devices after T_A + ((L - 1) R + r) T_E, takes
    (1 + b) T_A there, or queues behind others that did; b T_E per micro-batch later experts want it.
    """
    one = one._replace(dispatch=0.0, combine=0.0)
    assume(one.side is Role.EXPERTS)
    layers, count = size
    attention, experts, ratio = one.attention, one.experts, one.ratio
    turn = (1 + ratio) * attention
    in_time = all(
        start + (last - first + 1) * turn <= attention + layers * count * experts + (last - 1) * ratio * experts
        for last in range(1, count + 1)
        for first in range(1, last + 1)
        for start in (
            attention + ((layers - 1) * count + first) * experts,
            layers * count * attention if first == 1 else 0.0,  # attention devices are still at the layer before
        )
    )
    found = run(one, layers, count)
    assert (found.waits(found.blocks(Role.EXPERTS)) == 0.0) == (keeps_busy(one, *size) and in_time)


@exact
@given(times(), sizes())
def test_total_time_of_a_forward_pass(one, size):
    """Expectation: T_A + T_D + T_E + T_C + T_f (m L - 1), T_f = max(T_A, T_E), or L round trips if those take longer.

    The first is what MegaScale-Infer gives, for T_A = T_E and T_D = T_C; nothing follows its last layer.
    """
    layers, count = size
    pipelined = one.round_trip + one.slower * (count * layers - 1)
    found = run(one._replace(head=0.0), layers, count, FORWARD).timeline.makespan
    assert found == max(pipelined, layers * one.round_trip + (count - 1) * one.slower)
    assert (found == pipelined) == (layers == 1 or count * one.slower >= one.round_trip)


@pytest.mark.parametrize(("exchange", "least"), [(0.0, 2), (0.25, 3), (2.0, 3), (2.25, 4), (4.0, 4)])
def test_how_many_micro_batches_balanced_sides_need(exchange, least):
    """Expectation: m >= 2 (1 + T_c / T_f): 3 if exchanges take at most half as long as the work, else 4."""
    for count in range(1, 7):
        found = run(Times(4.0, 4.0, exchange, exchange, ratio=2.0), 3, count)
        assert (found.waits(found.blocks(Role.ATTENTION)) == 0.0) == (count >= least)


@exact
@given(times(), st.integers(1, 4), st.sampled_from([1, 2, 4, 8]))
def test_one_micro_batch_in_pieces_hides_all_but_one_piece_of_its_exchanges(one, layers, pieces):
    """Expectation: a layer exposes (T_D + T_C) / d if neither is longer than the experts' work.

    Else the longest of the three sets the pace of the other d - 1 pieces. Backward takes `ratio` times as long.
    """
    work = one.dispatch + one.experts + one.combine
    exposed = work / pieces + (pieces - 1) / pieces * max(one.dispatch, one.experts, one.combine) - one.experts
    if max(one.dispatch, one.combine) <= one.experts:
        assert exposed == (one.dispatch + one.combine) / pieces
    forward = layers * (one.attention + one.experts + exposed) + one.attention
    assert run(one, layers, 1, FORWARD, pieces).timeline.makespan == forward
    assert run(one, layers, 1, STEP, pieces).timeline.makespan == (1 + one.ratio) * forward


# ---------------------------------------------------------------- theorem 1


def test_order_of_theorem_1():
    """Expectation: the theorem written out for L = 3, R = 2; its blocks count from 1."""
    order = run(Times(1.0, 1.0), 2, 2).order
    names = [
        (b.role, f"{'FB'[b.backward]}{b.place + 1},{b.micro_batch + 1}")
        for b in order.blocks
        if b.part.stream == "compute"
    ]
    assert " ".join(name for role, name in names if role is Role.ATTENTION) == (
        "F1,1 F1,2 F2,1 F2,2 F3,1 B3,1 F3,2 B3,2 B2,1 B2,2 B1,1 B1,2"
    )
    assert " ".join(name for role, name in names if role is Role.EXPERTS) == "F1,1 F1,2 F2,1 F2,2 B2,1 B2,2 B1,1 B1,2"


def interleavings(lengths: tuple[int, ...]) -> set[tuple[int, ...]]:
    """All ways to take turns, as who is next."""
    return set(permutations([who for who, length in enumerate(lengths) for _ in range(length)]))


def with_turns(order: ZebraOrder, turns: dict[Role, tuple[int, ...]]) -> ZebraOrder:
    """The order in which micro-batches take such turns on the compute streams."""
    blocks: list[Block] = []
    for role, sequence in turns.items():
        own = [b for b in order.blocks if b.role is role and b.part.stream == "compute"]
        queues = [iter([b for b in own if b.micro_batch == batch]) for batch in sorted(set(sequence))]
        blocks += [next(queues[batch]) for batch in sequence]
    issued = {block: number for number, block in enumerate(blocks)}
    producer = {
        target: source
        for source, target in ((order.blocks[s], order.blocks[t]) for s, t in order.edges)
        if target.part.stream != "compute"
    }
    exchanges = [b for b in order.blocks if b.part.stream != "compute"]
    return reordered(order, blocks + sorted(exchanges, key=lambda block: issued[producer[block]]))


@pytest.mark.parametrize(
    "one", [Times(3.0, 2.0, ratio=2.0), Times(2.0, 5.0, 1.0, 2.0), Times(4.0, 2.0, ratio=2.0, head=0.0)]
)
def test_the_search_for_the_best_order_equals_a_trial_of_all(one):
    """Expectation: the least makespan of 70 x 6 pairs of streams, run by the engine; Actual: the search below."""
    order = run(one, 1, 2).order
    found = []
    for attention in interleavings((4, 4)):
        for experts in interleavings((2, 2)) if attention[0] == 0 else ():  # micro-batches are equal
            other = with_turns(order, {Role.ATTENTION: attention, Role.EXPERTS: experts})
            found.append(makespan_of(other, one, layers=1))
    assert len(found) == 35 * 6
    assert min(found) == least_makespan(chain(order, one.of(1)), 2)


def best(one: Times, layers: int, micro_batches: int, actions: tuple[Action, ...] = STEP) -> tuple[float, float]:
    """Makespan of the theorem's order, and the least of all orders."""
    found = run(one, layers, micro_batches, actions)
    return found.timeline.makespan, least_makespan(chain(found.order, one.of(layers)), micro_batches)


@few
@given(times(), st.sampled_from([(1, 2), (1, 3), (2, 2), (2, 3), (3, 2)]))
def test_no_order_of_a_forward_pass_is_better(one, size):
    theorem, least = best(one, *size, FORWARD)
    assert theorem == least


@few
@given(times(), st.sampled_from([(1, 2), (1, 3), (1, 4), (2, 2), (3, 2)]))
def test_no_order_of_a_step_is_better_for_two_micro_batches_or_one_layer(one, size):
    theorem, least = best(one, *size)
    assert theorem == least


@few
@given(times())
@example(Times(3.0, 5.0))  # experts are slower, and never wait
@example(Times(3.0, 5.0, 0.0, 1.0, ratio=2.0))
def test_no_order_of_a_step_is_better_where_attention_is_slower_or_experts_never_wait(one):
    found = run(one, 2, 3)
    assume(one.side is Role.ATTENTION or found.waits(found.blocks(Role.EXPERTS)) == 0.0)
    theorem, least = best(one, 2, 3)
    assert theorem == least


@exact
@given(times(), sizes(), st.sampled_from([FORWARD, STEP]))
@example(Times(1.0, 8.0, 2.0, 3.0, ratio=2.0), (3, 5), STEP)
def test_no_order_is_better_where_one_side_is_always_busy(one, size, actions):
    """Expectation: all work of that side, after the shortest way to it and before the shortest way from it.

    No order does with less, whatever the numbers of layers and micro-batches. With slower experts the shortest way
    from them is free where attention devices keep up with them while both ways alternate.
    """
    found = run(one, *size, actions)
    makespan, ratio = found.timeline.makespan, one.ratio
    if found.waits(found.blocks(Role.ATTENTION)) == 0.0:
        assert makespan == found.busy(Role.ATTENTION)
    keeps_up = (1 + ratio) * one.attention <= min(1.0, ratio) * one.experts and one.combine <= ratio * one.experts
    if actions is STEP and keeps_up and found.waits(found.blocks(Role.EXPERTS)) == 0.0:
        before, after = one.attention + one.dispatch, ratio * (one.combine + one.attention)
        assert makespan == before + found.busy(Role.EXPERTS) + after


def issued(attention: str, experts: str) -> dict[Role, tuple[int, ...]]:
    return {Role.ATTENTION: tuple(map(int, attention)), Role.EXPERTS: tuple(map(int, experts))}


@pytest.mark.parametrize(
    ("one", "actions", "turns", "theorem", "least"),
    [
        # Experts are slower, but at the turn attention devices are.
        (Times(2.0, 3.0, 0.0, 1.0), STEP, issued("012010012102210212", "010120210212"), 42.0, 41.0),
        # The block behind the last layer is longer than attention: the first micro-batch should hurry there.
        (Times(2.0, 3.0, head=4.0), FORWARD, issued("012010212", "010212"), 26.0, 25.0),
    ],
)
def test_where_theorem_1_fails(one, actions, turns, theorem, least):
    """Expectation: with three micro-batches and two MoE layers an order that lets the first one run ahead is better.

    What it takes: experts are slower and wait for the first gradients, or the block behind the last layer is longer
    than attention. Swapping two neighbours, as the proof does, does not find it: both streams have to change.
    """
    assert best(one, 2, 3, actions) == (theorem, least)
    order = run(one, 2, 3, actions).order
    assert makespan_of(with_turns(order, turns), one) == least
    assert min(makespan_of(other, one) for other in with_neighbours_swapped(order)) >= theorem


def makespan_of(order: ZebraOrder, one: Times, layers: int = 2) -> float:
    """Makespan of any order; infinite if the two sides wait for each other."""
    try:
        return simulate_fast(block_graph(order, one.of(layers))).makespan
    except InternalError:
        return float("inf")


def with_neighbours_swapped(order: ZebraOrder) -> Iterator[ZebraOrder]:
    """All orders in which one compute stream takes one pair of its blocks the other way round."""
    compute = [b for b in order.blocks if b.part.stream == "compute"]
    turns = {role: tuple(b.micro_batch for b in compute if b.role is role) for role in Role}
    for role, sequence in turns.items():
        for at in range(len(sequence) - 1):
            swapped = (*sequence[:at], sequence[at + 1], sequence[at], *sequence[at + 2 :])
            yield with_turns(order, turns | {role: swapped})
