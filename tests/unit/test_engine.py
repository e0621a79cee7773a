"""The engine on graphs small enough to solve by hand, and what it refuses."""

import time
from dataclasses import replace

import numpy as np
import pytest

from simmoe.engine.record import Timeline
from simmoe.engine.simulate import simulate
from simmoe.errors import InternalError
from simmoe.report.metrics import step_metrics
from tests.graphs import Row, classes, graph_of, pipeline_rows


def times(rows: list[Row]) -> list[tuple[float, float]]:
    timeline = simulate(graph_of(rows))
    return list(zip(timeline.start.tolist(), timeline.end.tolist(), strict=True))


# ---------------------------------------------------------------- the rule


def test_a_stream_runs_its_tasks_in_order_without_gaps() -> None:
    assert times([Row(2.0), Row(1.0), Row(0.5)]) == [(0.0, 2.0), (2.0, 3.0), (3.0, 3.5)]


def test_streams_run_side_by_side() -> None:
    assert times([Row(2.0), Row(3.0, "ep")]) == [(0.0, 2.0), (0.0, 3.0)]


def test_a_task_waits_for_its_last_predecessor() -> None:
    rows = [Row(2.0), Row(3.0, "ep"), Row(1.0, "dp", after=(0, 1))]
    assert times(rows)[2] == (3.0, 4.0)


def test_a_waiting_task_holds_up_those_behind_it() -> None:
    """In-order issue: the second task of `ep` could start at 0 but is behind one that cannot."""
    rows = [Row(2.0), Row(1.0, "ep", after=(0,)), Row(1.0, "ep")]
    assert times(rows)[1:] == [(2.0, 3.0), (3.0, 4.0)]


def test_several_tasks_may_wait_for_one() -> None:
    rows = [Row(2.0), *(Row(1.0, stream, after=(0,)) for stream in ("ep", "dp", "tp"))]
    assert times(rows)[1:] == [(2.0, 3.0)] * 3


def test_a_predecessor_may_have_a_higher_id() -> None:
    assert times([Row(1.0, "ep", after=(1,)), Row(2.0)]) == [(2.0, 3.0), (0.0, 2.0)]


def test_tasks_without_duration_take_their_turn() -> None:
    rows = [Row(0.0), Row(0.0, "ep", after=(0,)), Row(1.0, after=(1,)), Row(0.0)]
    assert times(rows) == [(0.0, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]


def test_times_are_the_plain_sums() -> None:
    """0.1 + 0.2 + 0.3 in this order, not what another order of adding would give."""
    assert times([Row(0.1), Row(0.2), Row(0.3)])[2] == (0.1 + 0.2, 0.1 + 0.2 + 0.3)
    assert 0.1 + 0.2 + 0.3 != 0.1 + (0.2 + 0.3)


def test_no_tasks_end_at_once() -> None:
    timeline = simulate(graph_of([]))
    assert len(timeline) == 0
    assert timeline.makespan == 0.0
    assert list(timeline) == []


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (4, 1), (4, 8), (8, 32)])
def test_gpipe_bubble(stages: int, micro_batches: int) -> None:
    """Equal stages and free sends idle (p - 1) of every (m + p - 1) slots.

    Huang et al., "GPipe", NeurIPS 2019, section 2.3.
    """
    timeline = simulate(graph_of(pipeline_rows(stages, micro_batches, layers=2)))
    actual = step_metrics(timeline, classes(*[2] * stages)).bubble_fraction
    assert actual == pytest.approx((stages - 1) / (micro_batches + stages - 1), rel=1e-12)


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_duration_that_is_none_is_refused(seconds: float) -> None:
    rows = [Row(1.0), Row(seconds, "ep", name="moe.dispatch", layer=3, micro_batch=2)]
    with pytest.raises(InternalError, match=r"task 1 \(moe.dispatch forward, layer 3, micro-batch 2"):
        simulate(graph_of(rows))


def test_a_circle_names_who_waits_for_whom() -> None:
    rows = [Row(1.0), Row(1.0, "ep", after=(2,)), Row(1.0, "dp", after=(1,))]
    with pytest.raises(InternalError, match=r"2 of 3 tasks never start: task 1 .* waits for task 2"):
        simulate(graph_of(rows))


@pytest.mark.parametrize("after", [(1,), (0,)], ids=["the one behind it", "itself"])
def test_a_stream_that_contradicts_its_dependencies_is_refused(after: tuple[int, ...]) -> None:
    rows = [Row(1.0, after=after), Row(1.0)]
    with pytest.raises(InternalError, match="2 of 2 tasks never start: task 0 "):
        simulate(graph_of(rows))


def test_crossed_streams_are_refused() -> None:
    """Neither circle nor contradiction on one stream: the two orders together lock up."""
    rows = [Row(1.0, after=(3,)), Row(1.0), Row(1.0, "ep", after=(1,)), Row(1.0, "ep")]
    with pytest.raises(InternalError, match=r"4 of 4 tasks never start: task 0 .*; task 2 "):
        simulate(graph_of(rows))


def test_a_long_list_of_stuck_tasks_is_cut() -> None:
    rows = [Row(1.0, after=(0,))] + [Row(1.0, after=(0,), rank=i) for i in range(1, 9)]
    with pytest.raises(InternalError, match="and 4 more streams stand"):
        simulate(graph_of(rows))


def test_an_unknown_stream_is_refused() -> None:
    graph = graph_of([Row(1.0), Row(1.0, "ep")])
    with pytest.raises(InternalError, match="outside the 1 that exist"):
        simulate(replace(graph, streams=graph.streams[:1]))


# ---------------------------------------------------------------- the record


ROWS = [
    Row(2.0, name="attention", category="attention", layer=1, micro_batch=0),
    Row(1.0, "ep", after=(0,), rank=1, name="dispatch", category="all_to_all", bytes=8.0),
]


def test_a_task_can_be_looked_at() -> None:
    timeline = simulate(graph_of(ROWS))
    first, last = timeline
    assert first == timeline[0]
    assert last == timeline[-1]
    assert first[:7] == (0, "attention", "forward", "attention", "", 0, "compute")
    assert last[5:] == (1, "ep", -1, -1, 2.0, 3.0)
    with pytest.raises(IndexError):
        timeline[2]


def test_a_timeline_does_not_change() -> None:
    timeline = simulate(graph_of(ROWS))
    with pytest.raises(ValueError, match="read-only"):
        timeline.start[0] = 1.0


def test_a_timeline_has_one_start_and_end_a_task() -> None:
    with pytest.raises(InternalError, match="2 tasks has 1 starts and 2 ends"):
        Timeline(graph_of(ROWS), np.zeros(1), np.zeros(2))


def test_equal_timelines_have_equal_digests() -> None:
    assert simulate(graph_of(ROWS)).digest() == simulate(graph_of(ROWS)).digest()


def test_the_digest_is_the_same_on_every_machine() -> None:
    """Changes only with the vocabulary of `graph.task` or with what a digest covers."""
    digest = simulate(graph_of(ROWS)).digest()
    assert digest == "a06d97332ffb3d46e8848d5717abd62ef31aad9fcaab7572beac703720188c20"


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 1.5}, {"name": "combine"}, {"phase": "backward"}, {"category": "all_gather"},
        {"stream": "dp"}, {"rank": 0}, {"after": ()}, {"layer": 0}, {"micro_batch": 0}, {"bytes": 9.0},
    ],
    ids=str,
)  # fmt: skip
def test_every_detail_is_in_the_digest(change: dict[str, object]) -> None:
    changed = simulate(graph_of([ROWS[0], ROWS[1]._replace(**change)]))
    assert changed.digest() != simulate(graph_of(ROWS)).digest()


@pytest.mark.benchmark
def test_speed() -> None:
    """At least 0.1 million tasks a second, the budget of the reference engine."""
    graph = graph_of(pipeline_rows(16, 64, layers=16, send=0.01))
    begun = time.perf_counter()
    simulate(graph)
    assert len(graph) / (time.perf_counter() - begun) > 1e5
