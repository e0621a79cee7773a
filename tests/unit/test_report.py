"""Interval arithmetic, the metrics of a step and its critical path."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simmoe.engine.record import Timeline
from simmoe.engine.simulate import simulate
from simmoe.errors import InternalError
from simmoe.graph.ranks import RankClass
from simmoe.report.critical_path import critical_path
from simmoe.report.intervals import overlap_length, union_length
from simmoe.report.metrics import COLLECTIVES, RankMetrics, rank_metrics, step_metrics
from tests.graphs import Row, classes, graph_of, pipeline_rows, rows

# ---------------------------------------------------------------- intervals

INTERVALS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=8)


def arrays(intervals: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of (start, length) pairs."""
    table = np.array(intervals, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table.sum(axis=1)


def seconds_covered(intervals: list[tuple[int, int]]) -> set[int]:
    """The whole seconds inside the intervals: slow and obvious."""
    return {second for start, length in intervals for second in range(start, start + length)}


@given(INTERVALS)
def test_a_union_is_what_counting_seconds_gives(intervals: list[tuple[int, int]]) -> None:
    assert union_length(*arrays(intervals)) == len(seconds_covered(intervals))


@given(INTERVALS, INTERVALS)
def test_an_overlap_is_what_counting_seconds_gives(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    both = seconds_covered(left) & seconds_covered(right)
    assert overlap_length(*arrays(left), *arrays(right)) == len(both)


# ---------------------------------------------------------------- metrics

# rank 0: compute 0-4, all-to-all 3-6 (hidden for 1 s), all-reduce 5-7 (5-6 shared), idle from 7
# rank 1: waits for the send 4-5 of rank 0, computes 5-9
STEP = [
    Row(3.0, category="attention"),
    Row(1.0),
    Row(3.0, "ep", after=(0,), category="all_to_all"),
    Row(5.0, "host"),
    Row(2.0, "dp", after=(3,), category="all_reduce"),
    Row(1.0, "pp_forward", after=(1,)),
    Row(4.0, after=(5,), rank=1),
]
RANKS = (RankClass(0, "h100-sxm", 3, 0), RankClass(1, "a100-sxm-80gb", 1, 3))


def first_rank() -> RankMetrics:
    return rank_metrics(simulate(graph_of(STEP)), RANKS)[0]


def test_the_times_of_a_rank() -> None:
    rank = first_rank()
    assert (rank.rank, rank.stage, rank.accelerator, rank.count) == (0, 0, "h100-sxm", 3)
    assert (rank.window_s, rank.compute_s, rank.communication_s) == (7.0, 4.0, 4.0)
    assert (rank.overlapped_s, rank.exposed_communication_s, rank.idle_s) == (1.0, 3.0, 0.0)
    assert rank.bubble_fraction == pytest.approx(2 / 9)


def test_collectives_share_the_time_in_which_several_are_exposed() -> None:
    """4-5 all-to-all and send, 5-6 all-to-all and all-reduce, 6-7 all-reduce alone."""
    assert first_rank().breakdown_s == {
        "attention": 3.0, "gemm": 1.0, "all_to_all": 1.0, "send_recv": 0.5, "all_reduce": 1.5,
        "idle": 2.0,
    }  # fmt: skip


def test_communication_counts_whether_hidden_or_not() -> None:
    expected = {"all_to_all": 3.0, "send_recv": 1.0, "all_reduce": 2.0}
    assert first_rank().communication_by_collective_s == expected


def test_host_work_is_no_device_work() -> None:
    timeline = simulate(graph_of([Row(5.0, "host"), Row(1.0, after=(0,))]))
    (rank,) = rank_metrics(timeline, classes(1))
    assert (rank.window_s, rank.compute_s, rank.bubble_fraction) == (1.0, 1.0, 5 / 6)
    assert rank.breakdown_s == {"gemm": 1.0, "idle": 5.0}


def test_a_collective_on_the_compute_stream_is_exposed() -> None:
    timeline = simulate(graph_of([Row(3.0), Row(1.0, category="all_reduce")]))
    (rank,) = rank_metrics(timeline, classes(1))
    assert (rank.compute_s, rank.exposed_communication_s) == (3.0, 1.0)


def test_the_step_is_the_mean_over_devices() -> None:
    """Three devices as rank 0 above and one that computes 4 s of 9."""
    step = step_metrics(simulate(graph_of(STEP)), RANKS)
    assert step.step_time_s == 9.0
    assert step.compute_s == 4.0
    assert step.communication_s == 3.0
    assert step.overlapped_s == 0.75
    assert step.exposed_communication_s == 2.25
    assert step.bubble_fraction == pytest.approx((3 * 2 / 9 + 5 / 9) / 4)
    assert step.exposed_by_collective_s == {
        "all_reduce": 1.125, "all_to_all": 0.75, "send_recv": 0.375
    }  # fmt: skip
    assert step.breakdown_s["gemm"] == (3 * 1.0 + 4.0) / 4
    assert step.utilization == {"h100-sxm": 4 / 9, "a100-sxm-80gb": 4 / 9}


def test_the_breakdown_begins_with_the_largest_and_ends_with_idle() -> None:
    breakdown = step_metrics(simulate(graph_of(STEP)), RANKS).breakdown_s
    first, *_, last = breakdown
    assert (first, last) == ("attention", "idle")
    work = list(breakdown.values())[:-1]
    assert work == sorted(work, reverse=True)


def test_a_rank_without_work_is_one_bubble() -> None:
    idle = rank_metrics(simulate(graph_of([Row(1.0)])), classes(1, 1))[1]
    assert (idle.window_s, idle.idle_s, idle.bubble_fraction) == (0.0, 0.0, 1.0)
    assert idle.breakdown_s == {"idle": 1.0}


@pytest.mark.parametrize("tasks", [[], [Row(0.0)]], ids=["no task", "no time"])
def test_a_step_without_time_divides_by_nothing(tasks: list[Row]) -> None:
    step = step_metrics(simulate(graph_of(tasks)), classes(4))
    assert (step.step_time_s, step.bubble_fraction, step.compute_s) == (0.0, 0.0, 0.0)
    assert step.utilization == {"h100-sxm": 0.0}


@given(rows())
def test_the_parts_make_up_the_whole(drawn: list[Row]) -> None:
    timeline = simulate(graph_of(drawn))
    step = step_metrics(timeline, classes(3, 1, 2, accelerators=("h100-sxm", "a40")))
    about = {"rel": 1e-9, "abs": 1e-12}
    for rank in step.ranks:
        busy = rank.compute_s + rank.exposed_communication_s
        assert busy + rank.idle_s == pytest.approx(rank.window_s, **about)
        hidden = rank.overlapped_s + rank.exposed_communication_s
        assert hidden == pytest.approx(rank.communication_s, **about)
        assert sum(rank.breakdown_s.values()) == pytest.approx(step.step_time_s, **about)
        exposed = sum(s for c, s in rank.breakdown_s.items() if c in COLLECTIVES)
        assert exposed == pytest.approx(rank.exposed_communication_s, **about)
    assert sum(step.breakdown_s.values()) == pytest.approx(step.step_time_s, **about)
    assert 0.0 <= step.bubble_fraction <= 1.0


@given(rows())
def test_metrics_agree_with_the_intervals_themselves(drawn: list[Row]) -> None:
    """The same quantities by way of `union_length` and `overlap_length`."""
    timeline = simulate(graph_of(drawn))
    for number, rank in enumerate(rank_metrics(timeline, classes(1, 1, 1))):
        mine = [t for t in timeline if t.rank == number and t.stream != "host"]
        kernels, sends = (
            (np.array([t.start for t in part]), np.array([t.end for t in part]))
            for part in (
                [t for t in mine if t.category not in COLLECTIVES],
                [t for t in mine if t.category in COLLECTIVES],
            )
        )
        assert rank.compute_s == pytest.approx(union_length(*kernels))
        assert rank.communication_s == pytest.approx(union_length(*sends))
        assert rank.overlapped_s == pytest.approx(overlap_length(*kernels, *sends))


def test_splitting_a_class_changes_no_mean() -> None:
    """Symmetry: one class of four devices or two classes of two that do the same."""
    work = [Row(2.0), Row(1.0, "ep", after=(0,), category="all_to_all")]
    whole = step_metrics(simulate(graph_of(work)), classes(4))
    twin = [row._replace(rank=1, after=tuple(i + 2 for i in row.after)) for row in work]
    split = step_metrics(simulate(graph_of(work + twin)), classes(2, 2))
    assert replace(split, ranks=()) == replace(whole, ranks=())


# ---------------------------------------------------------------- critical path


def test_the_critical_path_of_the_step() -> None:
    path = critical_path(simulate(graph_of(STEP)))
    assert path.tasks == (0, 1, 5, 6)
    assert path.by_category_s == {"gemm": 5.0, "attention": 3.0, "send_recv": 1.0}
    assert path.by_rank_s == {0: 5.0, 1: 4.0}


def test_ties_go_to_the_smallest_task() -> None:
    """Both streams end at 3, and both first tasks at 2."""
    tasks = [Row(2.0, "ep"), Row(2.0), Row(1.0, after=(0,)), Row(1.0, "ep", after=(1,))]
    assert critical_path(simulate(graph_of(tasks))).tasks == (0, 2)


def test_no_tasks_have_no_critical_path() -> None:
    path = critical_path(simulate(graph_of([])))
    assert (path.tasks, path.by_category_s) == ((), {})


def test_a_start_without_a_reason_is_a_defect() -> None:
    late = Timeline(graph_of([Row(1.0)]), np.array([0.5]), np.array([1.5]))
    with pytest.raises(InternalError, match=r"task 0 starts at 0.5 s"):
        critical_path(late)


@given(rows())
def test_the_critical_path_leads_from_start_to_end_without_a_gap(drawn: list[Row]) -> None:
    timeline = simulate(graph_of(drawn))
    path = critical_path(timeline)
    views = [timeline[task] for task in path.tasks]
    ends = [0.0, *(view.end for view in views)]
    assert [*(view.start for view in views), timeline.makespan] == ends
    assert sum(path.by_category_s.values()) == pytest.approx(timeline.makespan, abs=1e-12)
    assert sum(path.by_rank_s.values()) == pytest.approx(timeline.makespan, abs=1e-12)


@pytest.mark.benchmark
def test_speed() -> None:
    """The metrics of 100,000 tasks within 0.1 s."""
    timeline = simulate(graph_of(pipeline_rows(16, 64, layers=16, send=0.01)))
    begun = time.perf_counter()
    step_metrics(timeline, classes(*[4] * 16))
    assert time.perf_counter() - begun < 0.1
