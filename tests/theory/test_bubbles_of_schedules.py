"""Bubbles by cause against closed forms; times are dyadic fractions, so every comparison is exact."""

from itertools import product

import pytest

from simmoe.engine.simulate import simulate
from simmoe.graph.ranks import RankClass
from simmoe.graph.schedules import gpipe, interleaved, one_f_one_b
from simmoe.report.bubbles import bubbles
from tests.pipelines import pipeline

FORWARD, BACKWARD = 0.375, 0.75


def causes(schedule, forward, backward, micro_batches, send=0.0):
    """The causes that occur on each stage."""
    timeline = simulate(pipeline(schedule, forward, backward, micro_batches, send))
    ranks = [RankClass(stage, "any", 1, stage) for stage in range(len(forward))]
    return [{cause: s for cause, s in table.items() if s} for table in bubbles(timeline, ranks).ranks]


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8])
def test_equal_stages_only_fill_and_drain(schedule, stages):
    """Expectation: warm_up + drain = (p - 1)(f + b) on every stage; Actual: the simulated intervals."""
    for micro_batches in (1, 2, stages, 3 * stages + 1):
        for table in causes(schedule, [FORWARD] * stages, [BACKWARD] * stages, micro_batches):
            assert set(table) <= {"warm_up", "drain"}
            assert sum(table.values()) == (stages - 1) * (FORWARD + BACKWARD)


@pytest.mark.parametrize(("stages", "micro_batches"), list(product([2, 4, 8], [8, 32])))
def test_1f1b_fills_before_it_drains(stages, micro_batches):
    """Expectation: stage s waits for s forwards, then for p-1-s backwards; s backwards follow its own last one.

    While it drains, it does the last p-1-s backwards at the pace of f + b.
    """
    for stage, table in enumerate(causes(one_f_one_b, [FORWARD] * stages, [BACKWARD] * stages, micro_batches)):
        after = stages - 1 - stage
        assert table.get("warm_up", 0.0) == stage * FORWARD + after * BACKWARD
        assert table.get("drain", 0.0) == after * FORWARD + stage * BACKWARD


def test_interleaving_shrinks_fill_and_drain():
    """Expectation: (p - 1)(f + b) of a chunk, whatever the number of chunks.

    The first stage waits for one of these f before its last forward pass, when the last stage has begun to drain.
    """
    for chunks in (2, 4):
        tables = causes(
            lambda stage, stages, count, chunks=chunks: interleaved(stage, stages, count, chunks),
            [FORWARD] * 4,
            [BACKWARD] * 4,
            16,
        )
        assert [sum(table.values()) for table in tables] == [3 * (FORWARD + BACKWARD)] * 4
        assert [table.get("imbalance", 0.0) for table in tables] == [FORWARD, 0.0, 0.0, 0.0]
        assert set().union(*tables) == {"warm_up", "drain", "imbalance"}


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_a_slow_stage_is_the_imbalance_of_the_others(slow):
    """Expectation: the slow stage never waits in the steady state, the others for m - p times its excess or more."""
    stages, micro_batches = 4, 32
    forward, backward = [FORWARD] * stages, [BACKWARD] * stages
    forward[slow], backward[slow] = 2 * FORWARD, 2 * BACKWARD
    tables = causes(one_f_one_b, forward, backward, micro_batches)
    for stage, table in enumerate(tables):
        if stage == slow:
            assert table.get("imbalance", 0.0) <= stages * (FORWARD + BACKWARD)
        else:
            assert table["imbalance"] >= (micro_batches - 2 * stages) * (FORWARD + BACKWARD)


def test_transfers_are_told_apart_from_the_work_behind_them():
    """Expectation: two stages, one micro-batch: each waits for one transfer, the rest is the other's work."""
    assert causes(one_f_one_b, [1.0, 1.0], [2.0, 2.0], 1, send=0.5) == [
        {"warm_up": 3.5, "pipeline_transfer": 0.5},
        {"warm_up": 1.0, "pipeline_transfer": 1.0, "drain": 2.0},
    ]
