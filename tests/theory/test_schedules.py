"""Schedules against their papers: bubble, memory and order; times are dyadic fractions, so comparisons are exact.

Sources: zero bubble (arXiv 2401.10241), controllable memory and ZB-V (arXiv 2405.15362), DualPipe (arXiv 2412.19437,
table 2 and figure 5), interleaving (arXiv 2104.04473), Megatron-Core for groups and overlap. Any times at all: a replay
that shares no code with graph and engine.
"""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simmoe.engine.simulate import simulate
from simmoe.errors import InternalError
from simmoe.graph.custom_schedule import check_schedule
from simmoe.graph.dualpipe import dualpipe, dualpipe_v
from simmoe.graph.overlapped import overlapped
from simmoe.graph.schedules import Kind, gpipe, in_flight, interleaved, one_f_one_b, written
from simmoe.graph.zero_bubble import numbered, zb_h1, zb_v
from tests.pipelines import Times, bare, looped, replay_bare, two_ways, v_shape

EQUAL = Times(1.0, 1.0, 1.0)


def makespan(schedule, placement, times, stages, micro_batches):
    return simulate(bare(schedule, placement, [times] * stages, micro_batches)).makespan


def busy(actions, times):
    """Time of a stage's passes, a joined pair as long as its work [s]."""
    joined = [first for first, action in enumerate(actions) if action.with_next]
    inside = {*joined, *(first + 1 for first in joined)}
    return sum(times.of(a.kind) if i in inside else times.alone(a.kind) for i, a in enumerate(actions))


def with_groups(size, chunks):
    return lambda stage, stages, micro_batches: interleaved(stage, stages, micro_batches, chunks, size)


def with_overlap(chunks):
    return lambda stage, stages, micro_batches: overlapped(interleaved(stage, stages, micro_batches, chunks))


# ---------------------------------------------------------------- bubbles


@pytest.mark.parametrize("stages", range(1, 13))
@pytest.mark.parametrize("times", [EQUAL, Times(0.375, 0.5, 0.25)])
def test_zero_bubble_h1(stages, times):
    """Expectation: (m + p - 1)(F + I) + max(m - p + 1, 1) W, which is m (F + I + W) + (p - 1)(F + I - W) from m = p on.

    Actual: the simulated step. Equal passes: 3m + p - 1.
    """
    forward, gradient, weight = times[:3]
    for micro_batches in range(1, 25):
        step = makespan(zb_h1, looped(1), times, stages, micro_batches)
        assert step == (micro_batches + stages - 1) * (forward + gradient) + max(micro_batches - stages + 1, 1) * weight
        if times is EQUAL and micro_batches >= stages:
            assert step == 3 * micro_batches + stages - 1


@pytest.mark.parametrize("stages", range(1, 11))
def test_zero_bubble_v(stages):
    """Expectation: 6m + p - 1 passes, and 4m + 4p - 2 where the micro-batches do not fill the pipeline."""
    for micro_batches in range(1, 2 * stages + 2):
        step = makespan(zb_v, v_shape, EQUAL, stages, micro_batches)
        assert step == max(6 * micro_batches + stages - 1, 4 * micro_batches + 4 * stages - 2)


@pytest.mark.parametrize("stages", range(1, 9))
def test_zero_bubble_v_has_no_bubble(stages):
    """From the first pass to the last, a stage of a full pipeline does not pause."""
    timeline = simulate(bare(zb_v, v_shape, [EQUAL] * stages, 2 * stages - 1))
    for stage in range(stages):
        own = timeline.start[[s.rank == stage and s.name == "compute" for s in stream_of_tasks(timeline)]]
        assert own.tolist() == [stage + passed for passed in range(6 * (2 * stages - 1) + 1)]


def stream_of_tasks(timeline):
    return [timeline.graph.streams[stream] for stream in timeline.graph.stream]


# f and i are equal, as in the figure of the report; an exchange makes F&B shorter than F + B.
DUALPIPE_TIMES = [Times(1.0, 1.0, 1.0), Times(0.75, 1.0, 0.5, 0.25), Times(0.5, 0.75, 0.75, 0.25)]


@pytest.mark.parametrize("stages", range(2, 13, 2))
@pytest.mark.parametrize("times", DUALPIPE_TIMES)
def test_dualpipe(stages, times):
    """Expectation: the stages where both directions meet idle for (p/2 - 1)(F&B + B - 3W).

    Where nothing is hidden a pair is a forward, then a backward pass: (p/2 - 1)(F + B - 2W).
    """
    bubble = (stages // 2 - 1) * dualpipe_bubble(times)
    for micro_batches in (2 * stages, 2 * stages + 2, 3 * stages, 5 * stages + 2):
        step = makespan(dualpipe, two_ways, times, stages, micro_batches)
        assert step == busy(dualpipe(stages // 2 - 1, stages, micro_batches), times) + bubble


@pytest.mark.parametrize("stages", range(1, 8))
@pytest.mark.parametrize("times", DUALPIPE_TIMES)
def test_dualpipe_v(stages, times):
    """Expectation: that of DualPipe on twice the stages, times of a chunk."""
    bubble = (stages - 1) * dualpipe_bubble(times)
    for micro_batches in (2 * stages, 2 * stages + 1, 4 * stages + 1):
        step = makespan(dualpipe_v, v_shape, times, stages, micro_batches)
        assert step == busy(dualpipe_v(stages - 1, stages, micro_batches), times) + bubble


def dualpipe_bubble(times):
    forward, backward, weight = times.alone(Kind.FORWARD), times.of(Kind.BACKWARD), times.weight_gradient
    if times.exchange:
        return times.forward + backward + backward - 3 * weight
    return forward + backward - 2 * weight


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("stages", range(1, 7))
def test_groups_of_micro_batches_cost_memory_not_time(stages, chunks):
    """Expectation: (v m + p - 1)(f + b) whatever the group, one pass more in flight than Megatron warms up with."""
    for micro_batches in range(stages, 3 * stages + 2):
        for size in range(stages, micro_batches + 1):
            if 0 < micro_batches % size < stages:
                continue
            schedule = with_groups(size, chunks)
            step = makespan(schedule, looped(chunks), Times(0.375, 0.75, 0.0), stages, micro_batches)
            assert step == (chunks * micro_batches + stages - 1) * 1.125
            for stage in range(stages):
                held = sum(in_flight(schedule(stage, stages, micro_batches), chunks))
                assert held == min(2 * (stages - 1 - stage) + (chunks - 1) * size + 1, chunks * micro_batches)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("stages", range(1, 7))
def test_overlap_saves_what_the_pairs_of_the_last_stage_hide(stages, chunks):
    """Expectation: (v m + p - 1)(f + b) - (v m - (v - 1) p - 1)(f + b - f&b); on one stage f + (m - 1) f&b + b."""
    times = Times(1.0, 2.0, 0.0, 0.5)
    for micro_batches in (stages, 2 * stages, 4 * stages):
        step = makespan(with_overlap(chunks), looped(chunks), times, stages, micro_batches)
        pairs = chunks * micro_batches - (chunks - 1) * stages - 1
        assert step == (chunks * micro_batches + stages - 1) * 3.5 - pairs * 0.5
        if stages == chunks == 1:
            assert step == 1.5 + (micro_batches - 1) * 3.0 + 2.0


@pytest.mark.parametrize("stages", range(2, 6))
def test_overlap_of_plain_1f1b_is_slower_than_none(stages):
    """Expectation: its warm-up is too short for pairs, so neighbours work in turn: 2 f&b a micro-batch.

    Actual: what 8 more micro-batches cost.
    """

    def schedule(stage, stages, micro_batches):
        return overlapped(one_f_one_b(stage, stages, micro_batches))

    times = Times(1.0, 2.0, 0.0, 0.5)
    few, many = (makespan(schedule, looped(1), times, stages, micro_batches) for micro_batches in (12, 20))
    assert many - few == 8 * 2 * 3.0 > 8 * (1.5 + 2.0)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("stages", range(1, 13))
def test_micro_batches_in_flight(stages):
    """ZB-H1: p on every stage; ZB-V: 2p chunks, which is p stages; DualPipe: p + 1; DualPipeV: 2p + 1 chunks."""
    for micro_batches, stage in product((2 * stages, 2 * stages + 2, 6 * stages), range(stages)):
        assert in_flight(zb_h1(stage, stages, micro_batches), 1) == (stages,)
        assert sum(in_flight(zb_v(stage, stages, micro_batches), 2)) == 2 * stages
        assert sum(in_flight(dualpipe_v(stage, stages, micro_batches), 2)) == 2 * stages + 1
        if stages % 2 == 0:
            assert sum(in_flight(dualpipe(stage, stages, micro_batches), 2)) == stages + 1


def test_few_micro_batches_are_all_in_flight():
    for micro_batches in (1, 2, 3):
        assert in_flight(zb_h1(1, 4, micro_batches), 1) == (micro_batches,)
        assert sum(in_flight(zb_v(0, 4, micro_batches), 2)) <= 2 * micro_batches


def test_overlap_holds_one_pass_more():
    for stage, (stages, chunks) in product(range(2), [(2, 1), (2, 3)]):
        plain = interleaved(stage, stages, 8, chunks)
        assert sum(in_flight(overlapped(plain), chunks)) == sum(in_flight(plain, chunks)) + 1
    assert in_flight(overlapped(one_f_one_b(0, 1, 8)), 1) == (2,)


# ---------------------------------------------------------------- orders


def test_order_of_zero_bubble_h1():
    """Figure 3 of arXiv 2401.10241, top: 4 stages, the first and the last."""
    assert written(zb_h1(0, 4, 5)) == ("F0.0 F1.0 F2.0 F3.0 I0.0 W0.0 F4.0 I1.0 W1.0 I2.0 W2.0 I3.0 W3.0 I4.0 W4.0")
    assert written(zb_h1(3, 4, 5)) == ("F0.0 I0.0 F1.0 I1.0 F2.0 I2.0 F3.0 I3.0 W0.0 F4.0 I4.0 W1.0 W2.0 W3.0 W4.0")


def test_order_of_zero_bubble_v():
    """The V of arXiv 2405.15362, figure 1, as torch.distributed.pipelining has it."""
    assert written(zb_v(0, 2, 4)) == (
        "F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 "
        "F3.0 I0.0 W0.0 F2.1 I2.1 W2.1 I1.0 W1.0 F3.1 I3.1 W3.1 I2.0 W2.0 I3.0 W3.0"
    )
    assert written(zb_v(1, 2, 4)) == (
        "F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 F2.0 I0.0 W0.0 F2.1 I1.1 W1.1 "
        "F3.0 I1.0 W1.0 F3.1 I2.1 W2.1 I2.0 I3.1 I3.0 W2.0 W3.1 W3.0"
    )


def test_order_of_dualpipe():
    """4 stages, 10 micro-batches: chunk 0 goes down with 0 to 4, chunk 1 up with 5 to 9; the halves mirror each other.

    Step by step: 2 F, F F, I W F, two rounds of pairs, B and a pair, the drain, W I, W.
    """
    assert written(dualpipe(0, 4, 10)) == (
        "F0.0 F1.0 F2.0 F5.1 I5.1 W5.1 F6.1 F3.0+ B6.1 F7.1+ B0.0 F4.0+ B7.1 F8.1+ B1.0 "
        "B8.1 F9.1+ B2.0 B9.1 I3.0 W3.0 I4.0 W4.0"
    )
    assert written(dualpipe(1, 4, 10)) == (
        "F0.0 F5.1 F1.0 F6.1 F2.0 B5.1 F7.1+ B0.0 F3.0+ B6.1 F8.1+ B1.0 F4.0+ B7.1 F9.1+ B2.0 "
        "B8.1 B3.0 I9.1 I4.0 W9.1 W4.0"
    )


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_dualpipe_mirrors_its_directions(stages):
    half = stages + 1
    for stage in range(stages):
        mirrored = tuple(
            action._replace(chunk=1 - action.chunk, micro_batch=(action.micro_batch + half) % (2 * half))
            for action in dualpipe(stage, stages, 2 * half)
        )
        assert mirrored == dualpipe(stages - 1 - stage, stages, 2 * half)


def test_figure_5_of_the_deepseek_report():
    """8 stages, 20 micro-batches, the first device up to its first pair."""
    assert written(dualpipe(0, 8, 20)[:19]) == (
        "F0.0 F1.0 F2.0 F3.0 F4.0 F5.0 F6.0 F10.1 I10.1 W10.1 F11.1 I11.1 W11.1 F12.1 I12.1 W12.1 F13.1 F7.0+ B13.1"
    )


def test_order_of_dualpipe_v():
    assert written(dualpipe_v(0, 2, 4)) == (
        "F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 F3.0+ B1.1 F2.1+ B0.0 B2.1 F3.1+ B1.0 B3.1 I2.0 W2.0 I3.0 W3.0"
    )


def test_order_of_groups_is_megatrons_table():
    """The example of ``get_schedule_table``: 5 micro-batches in groups of 3, 2 chunks."""
    forward = [action for action in interleaved(1, 2, 5, 2, 3) if action.kind is Kind.FORWARD]
    assert [action.micro_batch for action in forward] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [action.chunk for action in forward] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


def test_order_of_overlap():
    assert written(overlapped(one_f_one_b(0, 1, 4))) == "F0.0 F1.0+ B0.0 F2.0+ B1.0 F3.0+ B2.0 B3.0"
    assert written(overlapped(interleaved(1, 2, 4, 2))) == (
        "F0.0 F1.0 F0.1 F1.1+ B0.1 F2.0+ B1.1 F3.0+ B0.0 F2.1+ B1.0 F3.1+ B2.1 B3.1 B2.0 B3.0"
    )


def test_what_cannot_be_ordered():
    for schedule, stages, micro_batches in ((dualpipe, 3, 8), (dualpipe, 2, 5), (dualpipe, 4, 6), (dualpipe_v, 2, 3)):
        with pytest.raises(InternalError, match=f"{micro_batches} micro-batches"):
            schedule(0, stages, micro_batches)
    for actions in ((), zb_h1(0, 2, 4), one_f_one_b(0, 2, 4)[1:], one_f_one_b(0, 2, 4)[5:]):
        with pytest.raises(InternalError, match="overlapped"):
            overlapped(actions)
    with pytest.raises(InternalError, match="W0 finds no input gradient"):
        numbered(["F0", "F1", "I1", "W0"], (0, 0))


# ---------------------------------------------------------------- every schedule

# Name: schedule, placement, the stages and micro-batches it takes.
SCHEDULES = {
    "gpipe": (gpipe, looped(1), lambda p, m: True),
    "1f1b": (one_f_one_b, looped(1), lambda p, m: True),
    "interleaved": (with_groups(None, 2), looped(2), lambda p, m: m % p == 0),
    "groups": (with_groups(7, 3), looped(3), lambda p, m: p <= 7 and (m % 7 == 0 or m % 7 >= p)),
    "zb-h1": (zb_h1, looped(1), lambda p, m: True),
    "zb-v": (zb_v, v_shape, lambda p, m: True),
    "dualpipe": (dualpipe, two_ways, lambda p, m: p % 2 == 0 and m % 2 == 0 and m >= 2 * p),
    "dualpipe-v": (dualpipe_v, v_shape, lambda p, m: m >= 2 * p),
    "overlap": (with_overlap(2), looped(2), lambda p, m: m % p == 0),
    "overlap-1f1b": (lambda s, p, m: overlapped(one_f_one_b(s, p, m)), looped(1), lambda p, m: True),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_micro_batch_goes_once_through_every_chunk_and_nothing_deadlocks(name):
    schedule, placement, takes = SCHEDULES[name]
    sizes = [(p, m) for p in range(1, 10) for m in range(1, 25) if takes(p, m)]
    assert len(sizes) > 20
    for stages, micro_batches in sizes:
        actions = [schedule(stage, stages, micro_batches) for stage in range(stages)]
        check_schedule(actions, [placement(stage, stages) for stage in range(stages)], micro_batches)


@st.composite
def pipelines(draw):
    """A schedule, its sizes, the times of every stage in 64ths of a second, and of a transfer."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    stages = draw(st.integers(1, 6))
    counts = [m for m in range(1, 19) if SCHEDULES[name][2](stages, m)]
    if not counts:
        stages, counts = 2, [m for m in range(1, 19) if SCHEDULES[name][2](2, m)]
    length = st.integers(0, 64).map(lambda ticks: ticks / 64)
    times = st.builds(Times, length, length, length, st.just(0.0) | length)
    each = draw(st.lists(times, min_size=stages, max_size=stages))
    return name, each, draw(st.sampled_from(counts)), draw(length)


@given(pipelines())
def test_any_times_equal_the_replay_and_keep_the_busiest_stage_busy(case):
    name, times, micro_batches, send = case
    schedule, placement, _ = SCHEDULES[name]
    step = simulate(bare(schedule, placement, times, micro_batches, send)).makespan
    for stage, own in enumerate(times):
        assert step >= sum(own.of(action.kind) for action in schedule(stage, len(times), micro_batches))
    assert step == replay_bare(schedule, placement, times, micro_batches, send)
