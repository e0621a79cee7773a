"""Pipelines against their closed forms; times are dyadic fractions, so every comparison is exact.

Sources: GPipe (arXiv 1811.06965), PipeDream-flush (arXiv 2104.04473, section 2.2.1); unequal stages: the lower and
upper bound derived below, checked here against a replay that shares no code with graph and engine.
"""

import random
from itertools import product

import pytest

from simmoe.engine.simulate import simulate
from simmoe.graph.ranks import RankClass
from simmoe.graph.schedules import gpipe, in_flight, interleaved, one_f_one_b
from simmoe.report.metrics import step_metrics
from tests.pipelines import pipeline, replay

SIZES = range(1, 33)
# Every pair of p and m up to 32 in the slow suite, an eighth of them otherwise.
SHARES = pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.slow, id="every pair")])


def counts(stages: int, share: int) -> list[int]:
    """Numbers of micro-batches to try with so many stages: one of `share`, and those where something turns."""
    return [m for m in SIZES if (m + stages) % share == 0 or m in {1, stages, max(SIZES)}]


FORWARD, BACKWARD = 0.375, 0.75


def makespan(schedule, forward, backward, micro_batches, send=0.0):
    return simulate(pipeline(schedule, forward, backward, micro_batches, send)).makespan


@pytest.mark.parametrize("stages", SIZES)
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
@SHARES
def test_equal_stages_show_the_classical_bubble(schedule, stages, share):
    """Expectation: (m + p - 1)(f + b) for every m; Actual: the simulated step."""
    for micro_batches in counts(stages, share):
        step = makespan(schedule, [FORWARD] * stages, [BACKWARD] * stages, micro_batches)
        assert step == (micro_batches + stages - 1) * (FORWARD + BACKWARD)


def test_the_reported_bubble_is_the_classical_one():
    for stages, micro_batches in product((1, 2, 5, 8), (1, 3, 8, 32)):
        timeline = simulate(pipeline(one_f_one_b, [1.0] * stages, [2.0] * stages, micro_batches))
        metrics = step_metrics(timeline, [RankClass(stage, "any", 1, stage) for stage in range(stages)])
        assert metrics.bubble_fraction == pytest.approx((stages - 1) / (micro_batches + stages - 1), abs=1e-12)


def test_one_micro_batch_shows_the_whole_bubble():
    for schedule in (gpipe, one_f_one_b):
        assert makespan(schedule, [1.0] * 8, [2.0] * 8, 1) == 8 * 3.0


def random_times(stages, generator):
    return [generator.randint(1, 64) / 64 for _ in range(stages)]


@pytest.mark.parametrize("stages", SIZES)
@SHARES
def test_unequal_stages_under_gpipe(stages, share):
    """Expectation: sum f + (m-1) max f + sum b + (m-1) max b."""
    generator = random.Random(stages)
    for micro_batches in counts(stages, share):
        forward, backward = random_times(stages, generator), random_times(stages, generator)
        expected = sum(forward) + (micro_batches - 1) * max(forward)
        expected += sum(backward) + (micro_batches - 1) * max(backward)
        assert makespan(gpipe, forward, backward, micro_batches) == expected


def bounds(forward, backward, micro_batches):
    """The lower and upper bound of 1F1B without transfers.

    Stage s is busy for m t_s, waits for the forwards above it once, and at the end for the backwards above it; while
    the first micro-batch runs through the stages below, its min(m-1, p-1-s) warm-up forwards hide that much of it.
    """
    times = [f + b for f, b in zip(forward, backward, strict=True)]
    stages = len(times)
    lower = max(
        sum(times[:s])
        + micro_batches * times[s]
        + max(0.0, sum(times[s + 1 :]) - min(micro_batches - 1, stages - 1 - s) * forward[s])
        for s in range(stages)
    )
    return lower, sum(times) + (micro_batches - 1) * max(times)


@pytest.mark.parametrize("stages", SIZES)
@SHARES
def test_unequal_stages_under_1f1b_lie_between_the_bounds_and_equal_the_replay(stages, share):
    """With b = 2f the bounds hold strictly; the replay of the same order is equal bit for bit."""
    generator = random.Random(100 + stages)
    for micro_batches in counts(stages, share):
        forward = random_times(stages, generator)
        backward = [2 * f for f in forward]
        step = makespan(one_f_one_b, forward, backward, micro_batches)
        lower, upper = bounds(forward, backward, micro_batches)
        assert lower <= step <= upper
        assert step == replay(one_f_one_b, forward, backward, micro_batches)


@pytest.mark.parametrize("send", [0.0, 0.125, 0.5])
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_transfers_equal_the_replay(schedule, send):
    generator = random.Random(7)
    for stages, micro_batches in product((2, 3, 7), (1, 4, 9)):
        forward, backward = random_times(stages, generator), random_times(stages, generator)
        step = makespan(schedule, forward, backward, micro_batches, send)
        assert step == replay(schedule, forward, backward, micro_batches, send)


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_interleaving_divides_the_bubble_by_the_chunks(stages, chunks):
    """Expectation: v m (f + b) of work and (p - 1)(f + b) of bubble, f and b the times of one chunk."""
    for groups in (1, 2, 4):
        micro_batches = groups * stages
        step = makespan(
            lambda s, p, m: interleaved(s, p, m, chunks), [FORWARD] * stages, [BACKWARD] * stages, micro_batches
        )
        assert step == (chunks * micro_batches + stages - 1) * (FORWARD + BACKWARD)


def test_micro_batches_in_flight():
    """GPipe keeps all; 1F1B p - s; interleaved 1F1B its warm-up and one more, spread over its chunks."""
    assert in_flight(gpipe(1, 4, 8), 1) == (8,)
    assert [in_flight(one_f_one_b(s, 4, 8), 1) for s in range(4)] == [(4,), (3,), (2,), (1,)]
    assert sum(in_flight(interleaved(0, 4, 8, 2), 2)) == 2 * 3 + 4 + 1
