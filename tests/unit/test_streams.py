"""What makes reports fast must not change them: streams, lanes and kept answers against the slow and obvious."""

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simmoe.engine.fast import simulate_fast
from simmoe.engine.record import Timeline
from simmoe.engine.simulate import simulate
from simmoe.errors import InternalError
from simmoe.graph.build import build_step
from simmoe.graph.task import TaskGraph
from simmoe.report import binding
from simmoe.report.binding import binding_predecessors, links
from simmoe.report.intervals import NOTHING, active, common_segments, lanes_of, segment_edges
from simmoe.report.metrics import COLLECTIVES, IDLE, rank_metrics
from simmoe.report.streams import before_on_stream, tasks_by_stream
from tests.graphs import Row, classes, graph_of, pipeline_rows, rows
from tests.scenarios import small


def queues(graph: TaskGraph) -> list[list[int]]:
    """The tasks of each stream, one by one."""
    found: list[list[int]] = [[] for _ in graph.streams]
    for task, stream in enumerate(graph.stream.tolist()):
        found[stream].append(task)
    return found


@given(rows())
def test_streams_hold_their_tasks_in_order_of_issue(drawn: list[Row]) -> None:
    graph = graph_of(drawn)
    assert [tasks.tolist() for tasks in tasks_by_stream(graph)] == queues(graph)
    before = {task: earlier for queue in queues(graph) for earlier, task in zip([-1, *queue], queue, strict=False)}
    assert before_on_stream(graph).tolist() == [before[task] for task in range(len(graph))]


def plain_binding(timeline: Timeline) -> list[int]:
    """Of what ended when a task started, the smallest task it waited for."""
    graph, before = timeline.graph, before_on_stream(timeline.graph).tolist()
    found = []
    for task in range(len(graph)):
        waits = [*graph.predecessors(task).tolist(), *([before[task]] if before[task] >= 0 else [])]
        found.append(min((other for other in waits if timeline.end[other] == timeline.start[task]), default=-1))
    return found


@given(rows())
def test_the_binding_predecessor_is_found_by_a_plain_search(drawn: list[Row]) -> None:
    timeline = simulate(graph_of(drawn))
    assert binding_predecessors(timeline).tolist() == plain_binding(timeline)


def test_a_kept_answer_is_not_taken_for_that_of_another_timeline() -> None:
    timeline = simulate(graph_of(pipeline_rows(2, 3)))
    first = links(timeline)
    assert links(timeline) is first
    other = Timeline(timeline.graph, np.zeros(len(timeline)), timeline.end)
    assert binding_predecessors(other).tolist() == plain_binding(other)
    nothing = replace(
        timeline.graph,
        predecessor_start=np.zeros(len(timeline) + 1, dtype=np.int32),
        predecessor=np.zeros(0, dtype=np.int32),
    )
    alone = Timeline(nothing, timeline.start, timeline.end)
    assert binding_predecessors(alone).tolist() == plain_binding(alone)


def test_a_kept_answer_does_not_outlive_its_timeline() -> None:
    timeline = simulate(graph_of(pipeline_rows(2, 2)))
    links(timeline)
    assert len(binding._latest) == 1
    del timeline
    gc.collect()
    assert binding._latest == []


# ---------------------------------------------------------------- lanes

# Gap before, and length of, each interval of a lane, with its label.
LANE = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=6)


@given(st.lists(LANE, max_size=4))
def test_every_segment_has_the_label_of_what_covers_it(drawn: list[list[tuple[int, int, int]]]) -> None:
    table = [interval for lane in drawn for interval in lane]
    start = np.array([s for lane in drawn for s in np.cumsum([g for g, _, _ in lane]) + lengths_before(lane)], float)
    end = start + np.array([length for _, length, _ in table], float)
    label = np.array([label for _, _, label in table], dtype=np.int16)
    bounds = np.cumsum([0, *map(len, drawn)])
    lanes = lanes_of(start, end, label, bounds)
    edges, labels = common_segments(lanes)
    assert edges.tolist() == segment_edges(start, end).tolist()
    for number, own in enumerate(labels):
        mine = slice(bounds[number], bounds[number + 1])
        for kind in (NOTHING, 0, 1, 2, 3):
            chosen = label[mine] == kind if kind != NOTHING else label[mine] >= 0
            covered = active(edges, start[mine][chosen], end[mine][chosen]) > 0
            assert (own == kind).tolist() == (covered if kind != NOTHING else ~covered).tolist()


def lengths_before(lane: list[tuple[int, int, int]]) -> np.ndarray:
    """How long all earlier intervals of a lane last."""
    lengths = np.array([length for _, length, _ in lane], dtype=np.int64)
    return np.cumsum(lengths) - lengths


def test_overlapping_intervals_are_no_lane() -> None:
    with pytest.raises(InternalError, match="before the one before it in its lane has ended"):
        lanes_of(np.array([0.0, 1.0]), np.array([2.0, 3.0]), np.zeros(2, dtype=np.int16), np.array([0, 2]))


# ---------------------------------------------------------------- metrics to the last bit


def swept(timeline: Timeline, rank: int) -> tuple[dict[str, float], tuple[float, ...]]:
    """Breakdown, and compute, communication, overlap, exposed and idle time of a rank, by one sweep over all edges."""
    tasks = [view for view in timeline if view.rank == rank and view.stream != "host"]
    start, end = np.array([t.start for t in tasks]), np.array([t.end for t in tasks])
    edges = segment_edges(start, end)
    length = np.diff(edges)
    running = {}
    for category in sorted({t.category for t in tasks}):
        chosen = np.array([t.category == category for t in tasks])
        running[category] = active(edges, start[chosen], end[chosen]) > 0
    kernels = sum((r for c, r in running.items() if c not in COLLECTIVES), start=np.zeros(len(length), dtype=int))
    sends = sum((r for c, r in running.items() if c in COLLECTIVES), start=np.zeros(len(length), dtype=int))
    exposed = (sends > 0) & (kernels == 0)
    of_send = np.where(exposed, length / np.maximum(sends, 1), 0.0)
    of_kernel = length / np.maximum(kernels, 1)
    breakdown = {c: float((of_send if c in COLLECTIVES else of_kernel)[r].sum()) for c, r in running.items()}
    masks = (kernels > 0, sends > 0, (kernels > 0) & (sends > 0), exposed, (kernels == 0) & (sends == 0))
    return breakdown, tuple(float(length[mask].sum()) for mask in masks)


def assert_swept(timeline: Timeline, ranks: int) -> None:
    """All ranks equal the sweep, without any tolerance."""
    for number, found in enumerate(rank_metrics(timeline, classes(*[1] * ranks))):
        breakdown, figures = swept(timeline, number)
        assert {c: s for c, s in found.breakdown_s.items() if c != IDLE} == breakdown
        assert list(found.breakdown_s) == [*breakdown, IDLE]
        assert figures == (
            found.compute_s, found.communication_s, found.overlapped_s, found.exposed_communication_s, found.idle_s
        )  # fmt: skip


@given(rows(max_tasks=24))
def test_metrics_of_drawn_graphs_are_those_of_a_sweep(drawn: list[Row]) -> None:
    assert_swept(simulate(graph_of(drawn)), 3)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("plan.schedule=dualpipe",),
        ("plan.tensor_parallel=2", "plan.expert_parallel=4", "plan.tp_comm_overlap=true"),
        ("plan.context_parallel=2", "plan.expert_parallel=2"),
    ],
)
def test_metrics_of_real_steps_are_those_of_a_sweep(overrides: tuple[str, ...]) -> None:
    step = build_step(small(*overrides))
    assert_swept(simulate_fast(step.graph), len(step.ranks))


def test_kernels_on_two_streams_share_the_time() -> None:
    found = simulate(graph_of([Row(2.0, category="gemm"), Row(3.0, "copy", category="memory")]))
    assert_swept(found, 1)
    assert rank_metrics(found, classes(1))[0].breakdown_s == {"gemm": 1.0, "memory": 2.0, IDLE: 0.0}
