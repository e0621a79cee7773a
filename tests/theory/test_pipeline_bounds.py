"""Bounds, closed forms and the replay of 1F1B with unlike stages (simmoe/planners/pipeline_search/bounds.py)."""

import random

import pytest

from simmoe.engine.fast import simulate_fast
from simmoe.graph.schedules import gpipe, one_f_one_b
from simmoe.planners.pipeline_search.bounds import (
    Stages,
    equal_stages_s,
    gpipe_s,
    lower_bound,
    replay,
    tight_bound,
    upper_estimate,
)
from simmoe.planners.pipeline_search.paper import equation_4_and_5
from tests.pipelines import pipeline
from tests.pipelines import replay as relaxed

ROUNDING = 1.0 + 1e-12


def random_stages(draw: random.Random, most: int = 7, transfer: float | None = None) -> tuple[Stages, int]:
    """Up to `most` stages, up to 32 micro-batches, transfers of none to about two forwards."""
    count = draw.randint(1, most)
    slow = draw.choice([0.0, 0.3, 0.9, 2.0]) if transfer is None else transfer
    forward = [draw.uniform(0.3, 1.5) for _ in range(count)]
    twice = draw.random() < 0.5
    backward = [2 * f if twice else draw.uniform(0.3, 3.0) for f in forward]
    return Stages(forward, backward, [draw.uniform(0.0, slow) for _ in range(count - 1)]), draw.randint(1, 32)


def test_the_replay_is_the_engine_to_the_last_bit():
    """Expectation: the makespan that the engine finds for the 1F1B order; Actual: `replay`."""
    draw = random.Random(5)
    for _ in range(40):
        stages, many = random_stages(draw)
        send = draw.choice([0.0, 0.25, 1.5])
        graph = pipeline(one_f_one_b, stages.forward_s, stages.backward_s, many, send)
        same = stages._replace(transfer_s=[send] * (len(stages.forward_s) - 1))
        assert replay(same, many) == simulate_fast(graph).makespan


@pytest.mark.parametrize("seed", range(5))
def test_no_bound_is_above_the_replay(seed):
    """Expectation: L <= L' <= T of 500 random pipelines; Actual: all three."""
    draw = random.Random(seed)
    tighter = 0
    for _ in range(500):
        stages, many = random_stages(draw)
        least, tight, exact = lower_bound(stages, many), tight_bound(stages, many), replay(stages, many)
        assert least <= tight * ROUNDING
        assert tight <= exact * ROUNDING
        tighter += tight > least * ROUNDING
    assert tighter > 50, "L' must differ from L somewhere"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_no_bound_is_above_the_replay_at_length(seed):
    draw = random.Random(seed)
    for _ in range(1000):
        stages, many = random_stages(draw, 9)
        assert lower_bound(stages, many) <= tight_bound(stages, many) * ROUNDING <= replay(stages, many) * ROUNDING**2


def test_without_transfers_the_familiar_estimate_is_an_upper_bound_if_backward_is_twice_forward():
    draw = random.Random(11)
    for _ in range(300):
        stages, many = random_stages(draw, transfer=0.0)
        stages = stages._replace(backward_s=[2 * f for f in stages.forward_s])
        assert replay(stages, many) <= upper_estimate(stages, many) * ROUNDING


def test_with_transfers_the_familiar_estimate_is_no_upper_bound():
    """Two stages of 1 + 1 s, a transfer of 1 s, five micro-batches: three round trips of 6 s, not 4 + 2 + 4 * 2 s."""
    stages = Stages([1.0, 1.0], [1.0, 1.0], [1.0])
    assert upper_estimate(stages, 5) == 14.0
    assert tight_bound(stages, 5) == replay(stages, 5) == 18.0


@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize("many", [1, 3, 8, 20])
def test_equal_stages_are_exact_in_every_form(count, many):
    stages = Stages([0.375] * count, [0.75] * count)
    expected = equal_stages_s(1.125, count, many)
    assert tight_bound(stages, many) == upper_estimate(stages, many) == replay(stages, many) == expected
    assert gpipe_s(stages, many) == expected


def test_the_closed_form_of_gpipe_is_exact():
    """Expectation: a replay by relaxation that shares no code; Actual: `gpipe_s`."""
    draw = random.Random(3)
    for _ in range(30):
        stages, many = random_stages(draw, transfer=0.0)
        expected = relaxed(gpipe, stages.forward_s, stages.backward_s, many)
        assert gpipe_s(stages, many) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("many", "short"), [(64, 0.075), (32, 0.137)])
def test_equation_5_is_below_the_step_of_equal_stages(many, short):
    """Eight equal stages, the last one called the slowest: 16 and 8 of M + 7 stage times are missing by Eq 4 and 5."""
    stages = Stages([1.0] * 8, [2.0] * 7 + [2.0 + 1e-9])
    printed, exact = equation_4_and_5(stages, many), replay(stages, many)
    assert 1.0 - printed / exact == pytest.approx(short, abs=5e-4)
    assert printed < lower_bound(stages, many)


def test_equation_5_leaves_out_what_is_not_there():
    """Two micro-batches, the slowest of three stages last: M - s - 1 = -2 is taken as 0."""
    assert equation_4_and_5(Stages([1.0, 1.0, 2.0], [1.0, 1.0, 2.0]), 2) == 8.0 + 4.0
