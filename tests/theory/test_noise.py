"""Stragglers, degraded ports and jitter against what they must amount to."""

import math

import numpy as np
import pytest

from simmoe.engine.fast import makespans, simulate_fast
from simmoe.graph.build import build_step
from simmoe.graph.classes import device_classes
from simmoe.graph.noise import draw_durations, meetings_of
from simmoe.graph.ranks import RankClass, StepGraph
from simmoe.pipeline import run
from simmoe.specs.faults import Jitter
from simmoe.specs.plan import Chunk, Plan, Stage
from tests.graphs import Row, graph_of
from tests.scenarios import small

SLOW = "cluster.faults=[{device: 3, slowdown: 1.2}]"
ALL_SLOW = "cluster.faults=[{node: 0, slowdown: 1.2}, {node: 1, slowdown: 1.2}]"
EXPOSED = (
    "plan.cuda_graph_scope=[full_iteration]",
    "plan.overlap_grad_reduce=false",
    "plan.overlap_param_gather=false",
)
DATA_PARALLEL = ("model=llama-3-8b", "plan.pipeline_parallel=1", "plan.expert_parallel=1")


def step(*overrides, fold=True):
    return simulate_fast(build_step(small(*overrides), fold=fold).graph).makespan


# ---------------------------------------------------------------- stragglers


def test_one_slow_device_slows_data_parallel_training_by_its_share_of_computing():
    """Expectation: + 20 % of the time a device computes, as nothing is hidden; Actual: the two steps."""
    healthy = run(small(*DATA_PARALLEL, *EXPOSED))
    computing = healthy.metrics.ranks[0].compute_s
    assert step(*DATA_PARALLEL, *EXPOSED, SLOW) == pytest.approx(healthy.step_time_s + 0.2 * computing, rel=1e-12)


SKEWED = ("plan.pipeline_parallel=1", "routing={kind: zipf, exponent: 0.5}")


@pytest.mark.parametrize("more", [DATA_PARALLEL, SKEWED, ("plan.pipeline_parallel=1",), ("plan.expert_parallel=4",)])
def test_one_slow_device_costs_as_much_as_all_of_its_stage(more):
    """Expectation: equal to the last bit; collectives wait for their slowest member, as does the end of the step."""
    stage = "cluster.faults=[{node: 0, slowdown: 1.2}]" if "plan.pipeline_parallel=1" not in more else ALL_SLOW
    assert step(*more, SLOW) == step(*more, stage)


def test_a_straggler_in_the_slowest_stage_paces_the_pipeline():
    """Expectation: its excess of m - 1 micro-batches at least; its peers and the other stage wait for it."""
    micro_batches, slow = 8, "cluster.faults=[{device: 11, slowdown: 1.2}]"
    healthy, result = (
        run(small("plan.cuda_graph_scope=[full_iteration]")),
        run(small("plan.cuda_graph_scope=[full_iteration]", slow)),
    )
    excess = 0.2 * healthy.metrics.ranks[1].compute_s
    number = next(i for i, rank in enumerate(result.ranks) if rank.first_rank == 11)
    assert result.ranks[number].count == 1
    assert result.metrics.ranks[number].compute_s == pytest.approx(healthy.metrics.ranks[1].compute_s + excess)
    assert excess * (micro_batches - 1) / micro_batches <= result.step_time_s - healthy.step_time_s <= 1.01 * excess
    for other, found in enumerate(result.bubbles.ranks):
        if other != number:
            assert found["imbalance"] > 0.5 * excess > result.bubbles.ranks[number]["imbalance"]


FAULTS = [
    SLOW,
    "cluster.faults=[{node: 1, network: 0.5}]",
    "cluster.faults=[{device: 3, slowdown: 1.2}, {device: 10, slowdown: 1.3}, {node: 0, network: 0.7}]",
]
PLANS = [
    (),
    ("plan.pipeline_parallel=1",),
    ("plan.pipeline_parallel=1", "plan.expert_parallel=4"),
    ("plan.tensor_parallel=2", "plan.expert_tensor_parallel=2", "plan.expert_parallel=4"),
    ("plan.pipeline_parallel=4", "plan.expert_parallel=2", "training.global_batch_size=32", "plan.schedule=dualpipe"),
    ("plan.context_parallel=2", "plan.expert_parallel=2", "plan.overlap_grad_reduce=false"),
]


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("plan", PLANS)
def test_every_device_runs_as_the_class_that_stands_for_it(plan, faults):
    """Expectation: all starts and ends of all devices, simulated one by one, are those of their classes."""
    scenario = small(*plan, faults)
    folded, single = build_step(scenario), build_step(scenario, fold=False)
    one, all_of_them = simulate_fast(folded.graph), simulate_fast(single.graph)
    position = {}
    for number, part in enumerate(c for stage in device_classes(scenario.plan, scenario.cluster) for c in stage):
        stage = scenario.plan.stages[folded.ranks[number].stage]
        for low, high in part.spans:
            for place in range(round(low * stage.devices), round(high * stage.devices)):
                position[stage.first_device + place] = number
    starts, ends = times_by_rank(folded, one), times_by_rank(single, all_of_them)
    for number, rank in enumerate(single.ranks):
        assert ends[number] == starts[position[rank.first_rank]]


def times_by_rank(built, timeline):
    """All starts and ends of each rank, in the order of tasks."""
    owner = np.array([stream.rank for stream in built.graph.streams])[built.graph.stream]
    return [
        (timeline.start[owner == rank].tolist(), timeline.end[owner == rank].tolist())
        for rank in range(len(built.ranks))
    ]


# ---------------------------------------------------------------- ports


def test_a_degraded_node_slows_all_that_reach_it_as_if_all_were_degraded():
    plan = ("plan.pipeline_parallel=1", "plan.expert_parallel=16", "model.moe.num_experts=16")
    degraded = step(*plan, "cluster.faults=[{node: 1, network: 0.5}]")
    assert degraded == pytest.approx(step(*plan, "cluster.fabric.bandwidth=200 Gb/s"), rel=1e-12)
    assert degraded > 1.02 * step(*plan)


def test_ports_do_not_matter_inside_a_node():
    alone = ("cluster.groups.0.count=1", "plan.pipeline_parallel=1")
    assert step(*alone, "cluster.faults=[{node: 0, network: 0.1}]") == step(*alone)


# ---------------------------------------------------------------- jitter


@pytest.fixture(scope="module")
def built():
    return build_step(small("training.global_batch_size=32"))


def drawn(graph, jitter, seed, draws, meetings=None):
    return np.array(list(draw_durations(graph, jitter, seed, draws, meetings)))


def test_no_jitter_changes_nothing(built):
    meetings = meetings_of(built, small().plan)
    found = drawn(built.graph, Jitter(sigma=0.0), 1, 2, meetings)
    assert found.tolist() == [built.graph.duration.tolist()] * 2


def test_the_same_seed_gives_the_same_bytes(built):
    meetings = meetings_of(built, small().plan)
    first = drawn(built.graph, Jitter(), 7, 3, meetings)
    assert first.tobytes() == drawn(built.graph, Jitter(), 7, 3, meetings).tobytes()
    assert first[:2].tobytes() == drawn(built.graph, Jitter(), 7, 2, meetings).tobytes()
    assert not np.array_equal(first, drawn(built.graph, Jitter(), 8, 3, meetings))


@pytest.mark.parametrize("sigma", [0.05, 0.3])
def test_the_mean_of_a_time_stays_and_its_logarithm_varies_by_sigma(sigma):
    graph = graph_of([Row(2.0)] * 1000)
    found = drawn(graph, Jitter(sigma=sigma), 1, 100)
    assert found.mean() == pytest.approx(2.0, rel=5 * sigma / math.sqrt(100_000))
    assert np.log(found / 2.0).std() == pytest.approx(sigma, rel=0.02)


def test_kernels_collectives_and_launches_vary_by_their_own():
    graph = graph_of([Row(1.0), Row(1.0, "ep"), Row(1.0, "host")])
    for name, varied in (("sigma", 0), ("network_sigma", 1), ("host_sigma", 2)):
        found = drawn(graph, Jitter(**{"sigma": 0.0, name: 0.1}), 1, 50)
        assert [bool(column.std() > 0) for column in found.T] == [task == varied for task in range(3)]


# Expected maximum of n standard normals (Teichroew 1956, table 1).
MAXIMA = {1: 0.0, 2: 0.56419, 4: 1.02938, 8: 1.42360, 16: 1.76599}


def mean_of_slowest(devices):
    """Mean end of a kernel of 1 s and the exchange that waits for it on all devices, sigma 1 %."""
    stage = Stage(
        first_device=0,
        devices=devices,
        chunks=(Chunk(first_layer=0, layers=1),),
        data_parallel=devices,
        expert_parallel=devices,
    )
    graph = graph_of([Row(1.0), Row(0.0, "ep", (0,), category="all_to_all")])
    built = StepGraph(graph, (RankClass(0, "any", devices, 0),))
    meetings = meetings_of(built, Plan(stages=(stage,)))
    return makespans(graph, draw_durations(graph, Jitter(sigma=0.01), 1, 4000, meetings)).mean()


def test_the_slowest_of_more_devices_is_slower():
    """Expectation: 1 + sigma E[max of n normals]; Actual: the mean over draws of one simulated device."""
    for devices, maximum in MAXIMA.items():
        assert (mean_of_slowest(devices) - 1) / 0.01 == pytest.approx(maximum, abs=0.05)


def test_devices_simulated_one_by_one_wait_as_long():
    """Expectation: the same for n kernels of n ranks that meet in one exchange."""
    for devices, maximum in MAXIMA.items():
        rows = [Row(1.0, rank=rank) for rank in range(devices)]
        rows.append(Row(0.0, "ep", tuple(range(devices)), category="all_to_all"))
        graph = graph_of(rows)
        found = makespans(graph, draw_durations(graph, Jitter(sigma=0.01), 1, 4000)).mean()
        assert (found - 1) / 0.01 == pytest.approx(maximum, abs=0.05)


@pytest.mark.parametrize("sigma", [0.05, 0.2])
@pytest.mark.parametrize(
    "plan",
    [
        (),
        ("plan.pipeline_parallel=1",),
        ("plan.pipeline_parallel=1", "plan.tensor_parallel=2", "plan.expert_parallel=8"),
        ("plan.pipeline_parallel=1", "plan.tensor_parallel=4", "plan.expert_parallel=8"),
    ],
)
def test_a_folded_step_suffers_as_much_as_all_its_devices(plan, sigma):
    """Expectation: the mean excess over the step without jitter, within a fifth; Actual: one device a class."""
    long = "training.sequence_length=8192"  # a step that waits for its hosts does not feel its kernels
    scenario, jitter = small("training.global_batch_size=16", long, *plan), Jitter(sigma=sigma)
    folded, single = build_step(scenario), build_step(scenario, fold=False)
    still = simulate_fast(folded.graph).makespan
    meetings = meetings_of(folded, scenario.plan)
    found = makespans(folded.graph, draw_durations(folded.graph, jitter, 1, 60, meetings)).mean() / still - 1
    expected = makespans(single.graph, draw_durations(single.graph, jitter, 2, 20)).mean() / still - 1
    assert found == pytest.approx(expected, rel=0.2)
    assert len(meetings_of(single, scenario.plan).task) == 0
