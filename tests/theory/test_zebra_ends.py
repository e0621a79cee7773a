"""What frames the passes of a zebra step: gradients summed where copies stand, and the optimizer at the end."""

from collections import Counter

import numpy as np
import pytest

from simmoe.cost.model import StageCost
from simmoe.cost.parameters import count_parameters
from simmoe.engine.record import Timeline
from simmoe.graph.build import build_step
from simmoe.pipeline import run
from tests.scenarios import zebra

NO_HOST = "plan.cuda_graph_scope=[full_iteration]"
PLAIN = "plan.sharding=none"  # nothing is gathered before the first block
FULL = "plan.recompute=full"
MOVED = "plan.zebra.moved_experts=[0, 1, 0, 1]"
ONE_GROUP = "plan.zebra={attention_devices: 4, expert_devices: 4, groups: 1, micro_batches: 2}"
TWO_STAGES = ("plan.pipeline_parallel=2", ONE_GROUP)


@pytest.mark.parametrize("overrides", [(FULL,), (MOVED,), TWO_STAGES], ids=str)
def test_the_optimizer_waits_for_all_work_and_all_gradients(overrides):
    """Expectation: what a device has computed or summed is there; what it only sends may still be under way."""
    timeline = run(zebra(*overrides)).timeline
    graph = timeline.graph
    updates = [i for i in range(len(graph)) if graph.operations[graph.operation[i]].name == "optimizer"]
    assert len(updates) == len({stream.rank for stream in graph.streams})
    for update in updates:
        rank = graph.streams[graph.stream[update]].rank
        own = [i for i, stream in enumerate(graph.streams) if stream in {(rank, "compute"), (rank, "dp")}]
        before = np.isin(graph.stream, own) & (np.arange(len(graph)) < update)
        assert timeline.end[before].max() <= timeline.start[update]


def test_more_groups_change_nothing_but_the_gradients():
    """Expectation: two groups with twice the batch start and end every pass when one group does."""
    found = []
    for one, batch in ((ONE_GROUP, 16), (ONE_GROUP.replace("groups: 1", "groups: 2"), 32)):
        timeline = run(zebra(one, PLAIN, f"training.global_batch_size={batch}")).timeline
        graph = timeline.graph
        passes = np.array([o.phase != "optimizer" for o in graph.operations])[graph.operation]
        names = Counter(o.name for o in graph.operations if o.phase == "optimizer")
        found.append((timeline.start[passes], timeline.end[passes], names))
    (start, end, alone), (other_start, other_end, both) = found
    assert np.array_equal(start, other_start)
    assert np.array_equal(end, other_end)
    assert set(both) - set(alone) == {"grad.expert"}


@pytest.mark.parametrize("overrides", [(), (MOVED,), ("plan.tensor_parallel=2",)], ids=str)
def test_gradients_are_summed_where_copies_stand(overrides):
    """Expectation: dense ones over all 8 attention devices, those of experts over the 2 groups, 4 B each."""
    scenario = zebra(*overrides)
    step, tensor = build_step(scenario), scenario.plan.stages[0].tensor_parallel
    shapes = [StageCost(scenario, 0, role, role=role).shapes for role in (0, 1)]
    assert shapes[0]["dp"].size == 8 // tensor
    assert [shape["edp"].size for shape in shapes] == [2, 2]
    model = count_parameters(scenario.model)
    experts = model.experts
    moved = 0.25 if MOVED in overrides else 0.0
    summed = {"attention": (True, experts * moved / 4), "experts": (False, experts * (1 - moved) / 4)}
    for number, rank in enumerate(step.ranks):
        sizes: Counter[str] = Counter()
        owner = np.array([stream.rank for stream in step.graph.streams])[step.graph.stream]
        for index in step.graph.operation[owner == number].tolist():
            operation = step.graph.operations[index]
            sizes[operation.name] += operation.bytes * (operation.phase == "optimizer")
        dense, own = summed[rank.role]
        assert sizes["grad.expert"] == pytest.approx(4 * own)
        assert (sizes["grad.dense"] > 0) is dense
        if dense and tensor == 1:
            assert sizes["grad.dense"] == pytest.approx(4 * (model.exact - experts), rel=1e-12)


def first_task(timeline: Timeline, rank: int, name: str) -> float:
    """When the first task of a name on a rank class starts [s]."""
    graph = timeline.graph
    own = np.array([stream.rank == rank for stream in graph.streams])[graph.stream]
    named = np.array([operation.name == name for operation in graph.operations])[graph.operation]
    return float(timeline.start[own & named].min())


def test_unlike_attention_devices_wait_for_each_other():
    """Expectation: a stage of H100 and A100 with attention is as slow as one of A100 alone."""
    chunks = "chunks: [{first_layer: 0, layers: 4, embedding: true, head: true}]"
    apart = "experts: {first_device: 16, devices: 4, micro_batches: 2}"
    groups = "cluster.groups=[{node: dgx-h100, count: 1}, {node: dgx-a100-80gb-as-ndr, count: 2}]"

    def stage(first: int) -> str:
        return f"plan.stages=[{{first_device: {first}, devices: 8, data_parallel: 8, {chunks}, {apart}}}]"

    mixed, alike = (run(zebra(groups, "plan={}", NO_HOST, PLAIN, stage(first))) for first in (4, 8))
    assert [(rank.accelerator, rank.role, rank.count) for rank in mixed.ranks] == [
        ("h100-sxm5-80gb", "attention", 4),
        ("a100-sxm4-80gb", "attention", 4),
        ("a100-sxm4-80gb", "experts", 4),
    ]
    sums = [first_task(mixed.timeline, number, "grad.dense") for number in (0, 1)]
    assert sums[0] == sums[1]  # gradients of the last layer are summed when both have them
    passes = [
        found.timeline.end[
            np.array([o.phase != "optimizer" for o in found.timeline.graph.operations])[found.timeline.graph.operation]
        ].max()
        for found in (mixed, alike)
    ]
    assert passes[0] == pytest.approx(passes[1], rel=1e-9)


@pytest.mark.parametrize("overrides", [(), (MOVED, FULL), TWO_STAGES], ids=str)
def test_weights_are_there_before_their_first_use_and_gradients_after_their_last(overrides):
    """Expectation: layer by layer and on each side, over all micro-batches of the step."""
    timeline = run(zebra(*overrides)).timeline
    graph = timeline.graph
    owner = np.array([stream.rank for stream in graph.streams])[graph.stream]
    computes = np.array([stream.name == "compute" for stream in graph.streams])[graph.stream]
    phase = np.array([operation.phase for operation in graph.operations])[graph.operation]
    name = np.array([operation.name.split(".")[0] for operation in graph.operations])[graph.operation]
    for task in np.flatnonzero((name == "grad") | (name == "param")).tolist():
        same = (owner == owner[task]) & (graph.layer == graph.layer[task]) & computes
        if name[task] == "grad":
            assert timeline.start[task] >= timeline.end[same & (phase == "backward")].max()
        else:
            assert timeline.end[task] <= timeline.start[same & (phase == "forward")].min()
    assert np.count_nonzero(name == "grad") == np.count_nonzero(name == "param") > 0
