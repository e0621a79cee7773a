"""Idle intervals named by cause: small hand-made steps, whole scenarios, and laws over drawn graphs."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from simmoe.engine.record import Timeline
from simmoe.engine.simulate import simulate
from simmoe.errors import InternalError
from simmoe.graph.ranks import RankClass
from simmoe.pipeline import run
from simmoe.report.bubbles import CAUSES, binding_predecessors, bubbles, busy_fractions
from tests.graphs import Row, classes, graph_of, rows
from tests.scenarios import small

TWO = (RankClass(0, "any", 1, 0), RankClass(1, "any", 3, 1))
PEERS = (RankClass(0, "any", 1, 0), RankClass(0, "any", 1, 1))


def causes(given_rows, ranks=TWO):
    """The causes that occur, a rank."""
    found = bubbles(simulate(graph_of(given_rows)), ranks).ranks
    return [{cause: seconds for cause, seconds in table.items() if seconds} for table in found]


def waits_for(stream, category, group):
    """1 s of work, 2 s on another stream that it waits for, 1 s of work: the idle time of rank 0."""
    graph = graph_of([Row(1.0), Row(2.0, stream, (0,), category=category), Row(1.0, after=(1,))])
    operations = tuple(
        operation._replace(group="" if operation.category == "gemm" else group) for operation in graph.operations
    )
    found = bubbles(simulate(replace(graph, operations=operations)), TWO[:1]).ranks[0]
    return {cause: seconds for cause, seconds in found.items() if seconds}


@pytest.mark.parametrize(
    ("stream", "category", "group", "cause"),
    [
        ("ep", "all_to_all", "ep", "all_to_all"),
        ("tp", "all_gather", "tp", "tensor_parallel"),
        ("ep", "all_gather", "etp", "tensor_parallel"),
        ("cp", "all_gather", "cp", "context_parallel"),
        ("dp", "reduce_scatter", "dp", "data_parallel"),
        ("dp", "all_gather", "edp", "data_parallel"),
        ("host", "host", "", "host"),
        ("copy", "memory", "", "dependency"),
    ],
)
def test_a_wait_bears_the_name_of_what_it_waits_for(stream, category, group, cause):
    assert waits_for(stream, category, group) == {cause: 2.0}


def test_a_hidden_collective_is_no_reason():
    rows = [Row(1.0), Row(2.0, "ep", (0,), category="all_to_all"), Row(2.0), Row(1.0, after=(1,))]
    assert causes(rows, TWO[:1]) == [{}]


def test_an_interval_is_divided_between_what_covers_it():
    """The host launches at 3, 2 s after the kernel before; the exchange behind it takes 1 s: idle 1-4."""
    rows = [Row(1.0), Row(3.0, "host"), Row(1.0, "ep", (0, 1), category="all_to_all"), Row(1.0, after=(2,))]
    assert causes(rows, TWO[:1]) == [{"all_to_all": 1.0, "host": 2.0}]


def send(seconds, after, phase="forward", rank=0):
    return Row(seconds, f"pp_{phase}", (after,), rank, name="send", phase=phase)


def piped(rows):
    """The causes of two stages, with the sends in the pipeline's group."""
    graph = graph_of(rows)
    operations = tuple(
        operation._replace(group="pp" if operation.category == "send_recv" else "") for operation in graph.operations
    )
    found = bubbles(simulate(replace(graph, operations=operations)), TWO).ranks
    return [{cause: seconds for cause, seconds in table.items() if seconds} for table in found]


def test_one_micro_batch_fills_and_drains_the_pipeline():
    """F 0-1, send 1-1.5, F 1.5-3.5, B 3.5-6.5, send 6.5-7, B 7-9."""
    rows = [
        Row(1.0),
        send(0.5, 0),
        Row(2.0, after=(1,), rank=1),
        Row(3.0, phase="backward", rank=1),
        send(0.5, 3, "backward", rank=1),
        Row(2.0, phase="backward", after=(4,)),
    ]
    assert piped(rows) == [
        {"warm_up": 5.5, "pipeline_transfer": 0.5},  # the transfer to the other stage is the other stage's time
        {"warm_up": 1.0, "drain": 2.0 + 0.5 - 0.5, "pipeline_transfer": 0.5 + 0.5},
    ]


def test_a_queue_of_sends_is_transfer_time():
    """Both forwards are ready at 1 and 2, the wire is free at 4 and 7: the second stage waits for the wire alone."""
    rows = [Row(1.0), send(3.0, 0), Row(1.0), send(3.0, 2), Row(1.0, after=(1,), rank=1), Row(1.0, after=(3,), rank=1)]
    assert piped(rows)[1] == {"warm_up": 1.0, "pipeline_transfer": 3.0 + 2.0}


def test_a_slow_stage_is_an_imbalance_in_the_steady_state():
    """Stage 0 takes 2 s for its second forward, between the first backward and the last forward of stage 1."""
    rows = [
        Row(1.0),
        send(0.0, 0),
        Row(4.0),
        send(0.0, 2),
        Row(1.0, after=(1,), rank=1),
        Row(1.0, phase="backward", rank=1),
        Row(1.0, after=(3,), rank=1),
    ]
    assert piped(rows)[1] == {"warm_up": 1.0, "imbalance": 2.0}


def test_a_slow_peer_of_the_stage_is_an_imbalance_at_any_time():
    """Both exchanges start when the slower rank is ready; only their own time is the all-to-all's."""
    rows = [
        Row(1.0),
        Row(1.0, "ep", (0, 3), category="all_to_all"),
        Row(1.0, after=(1,)),
        Row(3.0, rank=1),
        Row(1.0, "ep", (0, 3), rank=1, category="all_to_all"),
        Row(1.0, after=(4,), rank=1),
    ]
    assert causes(rows, PEERS) == [{"imbalance": 2.0, "all_to_all": 1.0}, {"all_to_all": 1.0}]


def test_what_follows_the_last_kernel_is_named_too():
    rows = [Row(1.0), Row(2.0, "dp", (0,), category="all_gather"), Row(4.0, rank=1)]
    (first, second) = causes(rows)
    assert first == {"all_to_all": 2.0, "drain": 1.0}  # the group of these rows is ep
    assert second == {}


def test_the_mean_weighs_devices():
    found = bubbles(simulate(graph_of([Row(1.0), Row(5.0, rank=1)])), TWO)
    assert found.ranks[0]["drain"] == 4.0
    assert found.mean["drain"] == 1.0  # one of four devices
    assert list(found.mean) == list(CAUSES)


def test_nothing_is_no_bubble():
    assert bubbles(simulate(graph_of([])), ()).mean == dict.fromkeys(CAUSES, 0.0)
    assert bubbles(simulate(graph_of([])), TWO).ranks[0] == dict.fromkeys(CAUSES, 0.0)


def test_a_timeline_with_a_hole_is_a_defect():
    graph = graph_of([Row(1.0), Row(1.0)])
    with pytest.raises(InternalError, match="rank class 0 ends when nothing before it ended"):
        bubbles(Timeline(graph, np.array([0.0, 2.0]), np.array([1.0, 3.0])), TWO[:1])


@given(rows())
def test_causes_add_up_to_the_idle_time(drawn):
    timeline = simulate(graph_of(drawn))
    found = bubbles(timeline, classes(1, 1, 1)).ranks
    for rank, table in enumerate(found):
        own = [view for view in timeline if view.rank == rank and view.stream == "compute"]
        busy = sum(view.end - view.start for view in own)
        assert min(table.values()) >= 0.0
        assert sum(table.values()) == pytest.approx(timeline.makespan - busy, abs=1e-9)


@given(rows())
def test_binding_predecessors_are_those_of_a_plain_search(drawn):
    timeline = simulate(graph_of(drawn))
    graph, found = timeline.graph, binding_predecessors(timeline).tolist()
    queue: dict[int, int] = {}
    for task in range(len(graph)):
        before = queue.get(int(graph.stream[task]))
        queue[int(graph.stream[task])] = task
        waits = [*graph.predecessors(task).tolist(), *([] if before is None else [before])]
        binding = [other for other in waits if timeline.end[other] == timeline.start[task]]
        assert found[task] == min(binding, default=-1)


PLANS = [
    (),
    ("plan.virtual_pipeline=2", "plan.schedule=interleaved"),
    ("plan.tensor_parallel=2", "plan.expert_tensor_parallel=2", "plan.expert_parallel=4"),
    ("plan.schedule=zb-v",),
    ("plan.schedule=dualpipe", "plan.pipeline_parallel=4", "plan.expert_parallel=4"),
]


@pytest.mark.parametrize("overrides", PLANS)
def test_causes_of_a_real_step_add_up_to_step_minus_compute(overrides):
    result = run(small(*overrides))
    for rank, table in zip(result.metrics.ranks, result.bubbles.ranks, strict=True):
        assert sum(table.values()) == pytest.approx(result.step_time_s - rank.compute_s, rel=1e-9)
        assert table["dependency"] == 0.0
        assert table["all_to_all"] <= rank.communication_by_collective_s["all_to_all"] + 1e-12


def test_streams_are_busy_for_the_sum_of_their_tasks():
    rows = [Row(1.0), Row(2.0, "ep", (0,)), Row(1.0, after=(1,)), Row(2.0, rank=1)]
    assert busy_fractions(simulate(graph_of(rows)), TWO) == ({"compute": 0.5, "ep": 0.5}, {"compute": 0.5})
    assert busy_fractions(simulate(graph_of([])), TWO) == ({}, {})


def test_idle_intervals_are_found_one_by_one():
    """The sum over the gaps of a real step, gap by gap in plain Python."""
    result = run(small())
    timeline = result.timeline
    for rank, table in enumerate(result.bubbles.ranks):
        own = [view for view in timeline if view.rank == rank and view.stream == "compute"]
        gaps = own[0].start + sum(b.start - a.end for a, b in pairwise(own)) + timeline.makespan - own[-1].end
        assert sum(table.values()) == pytest.approx(gaps, rel=1e-12)
