"""What holds for every timeline, whatever the graph."""

from dataclasses import replace

import numpy as np
from hypothesis import given

from simmoe.engine.simulate import simulate
from tests.graphs import Row, graph_of, rows


@given(rows())
def test_every_task_takes_its_duration(drawn: list[Row]) -> None:
    timeline = simulate(graph_of(drawn))
    assert (timeline.end == timeline.start + timeline.graph.duration).all()


@given(rows())
def test_a_stream_serves_one_task_at_a_time_in_order_of_issue(drawn: list[Row]) -> None:
    timeline = simulate(graph_of(drawn))
    for stream in range(len(timeline.graph.streams)):
        tasks = np.flatnonzero(timeline.graph.stream == stream)
        assert (timeline.start[tasks[1:]] >= timeline.end[tasks[:-1]]).all()


@given(rows())
def test_no_task_starts_before_its_predecessors_end(drawn: list[Row]) -> None:
    timeline = simulate(graph_of(drawn))
    for task in range(len(timeline)):
        assert (timeline.end[timeline.graph.predecessors(task)] <= timeline.start[task]).all()


@given(rows())
def test_no_task_starts_later_than_it_must(drawn: list[Row]) -> None:
    """Every start is 0 or the end of something the task had to wait for."""
    graph = graph_of(drawn)
    timeline = simulate(graph)
    for task in range(len(graph)):
        queue = np.flatnonzero(graph.stream[:task] == graph.stream[task])
        reasons = [0.0, *timeline.end[queue], *timeline.end[graph.predecessors(task)]]
        assert timeline.start[task] == max(reasons)


@given(rows())
def test_the_step_is_at_least_the_work_of_the_busiest_stream(drawn: list[Row]) -> None:
    graph = graph_of(drawn)
    busiest = np.bincount(graph.stream, graph.duration).max(initial=0.0)
    assert simulate(graph).makespan >= busiest * (1 - 1e-12)


@given(rows())
def test_the_same_graph_gives_the_same_bytes(drawn: list[Row]) -> None:
    assert simulate(graph_of(drawn)).digest() == simulate(graph_of(drawn)).digest()


@given(rows())
def test_time_has_no_scale(drawn: list[Row]) -> None:
    """Doubling every duration doubles every time, exactly: a power of two rounds nothing."""
    graph = graph_of(drawn)
    once, twice = simulate(graph), simulate(replace(graph, duration=graph.duration * 2))
    assert (twice.start == 2 * once.start).all()
    assert (twice.end == 2 * once.end).all()


@given(rows(max_ranks=2), rows(max_ranks=2))
def test_what_is_independent_does_not_interfere(left: list[Row], right: list[Row]) -> None:
    moved = [row._replace(rank=row.rank + 2, after=tuple(i + len(left) for i in row.after)) for row in right]
    both = simulate(graph_of(left + moved))
    assert (both.start[: len(left)] == simulate(graph_of(left)).start).all()
    assert (both.start[len(left) :] == simulate(graph_of(right)).start).all()
