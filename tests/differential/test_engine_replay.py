"""The engine against the longest path through the same graph, found without any events."""

from graphlib import CycleError, TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simmoe.engine.simulate import simulate
from simmoe.errors import InternalError
from simmoe.graph.task import TaskGraph
from tests.graphs import Row, graph_of, pipeline_rows, renumbered, rows, shuffled


def longest_paths(graph: TaskGraph) -> tuple[list[float], list[float]]:
    """Start and end of every task by the rule alone, in any topological order."""
    before: dict[int, list[int]] = {}
    last_on_stream: dict[int, int] = {}
    for task, stream in enumerate(graph.stream.tolist()):
        before[task] = graph.predecessors(task).tolist()
        if stream in last_on_stream:
            before[task].append(last_on_stream[stream])
        last_on_stream[stream] = task
    start, end = [0.0] * len(graph), [0.0] * len(graph)
    for task in TopologicalSorter(before).static_order():
        start[task] = max((end[other] for other in before[task]), default=0.0)
        end[task] = start[task] + float(graph.duration[task])
    return start, end


def can_finish(graph: TaskGraph) -> bool:
    """Whether no task waits, through others, for itself."""
    try:
        longest_paths(graph)
    except CycleError:
        return False
    return True


def agree(graph: TaskGraph) -> bool:
    """Equal to the last bit."""
    timeline = simulate(graph)
    return (timeline.start.tolist(), timeline.end.tolist()) == longest_paths(graph)


@given(rows())
def test_random_graphs(drawn: list[Row]) -> None:
    assert agree(graph_of(drawn))


@given(rows(max_tasks=6, max_ranks=1, any_edges=True))
def test_the_engine_gives_up_exactly_on_circles(drawn: list[Row]) -> None:
    graph = graph_of(drawn)
    if can_finish(graph):
        assert agree(graph)
    else:
        with pytest.raises(InternalError, match="cannot finish"):
            simulate(graph)


def test_a_pipeline() -> None:
    assert agree(graph_of(pipeline_rows(6, 12, layers=3, forward=0.1, send=0.003)))


@given(rows(), st.randoms(use_true_random=False))
def test_ids_of_independent_streams_do_not_matter(drawn: list[Row], random) -> None:
    """Only the order within a stream counts, not how the streams are interleaved or numbered."""
    graph = graph_of(drawn)
    new, streams = shuffled(graph, random)
    timeline, other = simulate(graph), simulate(renumbered(graph, new, streams))
    assert (other.start[new] == timeline.start).all()
    assert (other.end[new] == timeline.end).all()
