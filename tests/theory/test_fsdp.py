"""Parameters sharded over data-parallel ranks: what is gathered when, and what a rank keeps."""

from collections import Counter

import numpy as np
import pytest

from simmoe.cost.parameters import count_parameters
from simmoe.engine.simulate import simulate
from simmoe.errors import SpecError
from simmoe.graph.actions import micro_batches
from simmoe.graph.build import build_step
from simmoe.pipeline import run, stage_memory
from tests.scenarios import small

SHARDED = ("plan.pipeline_parallel=1", "plan.sharding=zero3")
DENSE = ("model=llama-3-8b", "plan.expert_parallel=1", *SHARDED)


def spans(timeline):
    """For every phase, micro-batch and layer: when its parameters are there, when it first computes and ends."""
    graph, found = timeline.graph, {}
    for task in range(len(graph)):
        operation, stream = graph.operations[graph.operation[task]], graph.streams[graph.stream[task]]
        layer, batch = int(graph.layer[task]), int(graph.micro_batch[task])
        if layer < 0 or batch < 0 or stream.name == "host":
            continue
        key = (operation.phase.replace("recompute", "backward"), batch, layer)
        parts = found.setdefault(key, {"gather": [], "scatter": [], "work": []})
        kind = {"param": "gather", "grad.": "scatter"}.get(operation.name[:5], "work")
        parts[kind].append((timeline.start[task], timeline.end[task]))
    return found


def test_every_layer_is_gathered_twice_and_scattered_once_a_micro_batch():
    scenario = small(*SHARDED)
    graph = build_step(scenario).graph
    count = Counter()
    for task in range(len(graph)):
        operation = graph.operations[graph.operation[task]]
        if operation.name in {"param.dense", "param.expert", "grad.dense", "grad.expert"}:
            count[operation.name] += 1
    passes = scenario.model.num_layers * micro_batches(scenario)
    # 16 devices, ep 8: two replicas of each expert, so experts are gathered, too
    expected = {"param.dense": 2, "param.expert": 2, "grad.dense": 1, "grad.expert": 1}
    assert count == {name: times * passes for name, times in expected.items()}


@pytest.mark.parametrize("overrides", [SHARDED, DENSE, (*SHARDED, "plan.recompute=full")])
def test_a_layer_waits_for_its_parameters_and_only_two_layers_are_whole(overrides):
    scenario = small("model.num_layers=6", *overrides)
    found = spans(simulate(build_step(scenario).graph))
    for (phase, batch, layer), parts in found.items():
        work = min(start for start, _ in parts["work"])
        assert max(end for _, end in parts["gather"]) <= work
        two_before = found.get((phase, batch, layer - 2 if phase == "forward" else layer + 2))
        if two_before is not None:
            assert min(start for start, _ in parts["gather"]) >= max(end for _, end in two_before["work"])
        for start, _ in parts["scatter"]:
            assert start >= max(end for _, end in parts["work"])


def test_gathers_run_beneath_the_layer_before():
    """With an ample network nothing but the first gather of a pass and the last scatter shows."""
    slow, fast = (run(small(*DENSE, f"cluster.fabric.bandwidth={rate}")) for rate in ("25 Gb/s", "400 Gb/s"))
    hidden = fast.metrics.overlapped_s / fast.metrics.communication_s
    assert hidden > 0.8
    assert slow.step_time_s > 1.5 * fast.step_time_s


def test_a_rank_keeps_its_share_and_two_whole_layers():
    """2 + 4 + 12 bytes a parameter over the ranks, and the whole weights and gradients of the layers in use."""
    scenario = small(*DENSE)
    (memory,) = stage_memory(scenario)
    count = count_parameters(scenario.model)
    layer = (count.attention + count.dense_mlp + count.norms) / scenario.model.num_layers
    assert memory.weights == pytest.approx(2 * (count.exact / 16 + 2 * layer), rel=1e-3)
    assert memory.gradients == pytest.approx(4 * (count.exact / 16 + layer), rel=1e-3)
    assert memory.optimizer == pytest.approx(12 * count.exact / 16, rel=1e-3)


def test_full_sharding_needs_less_memory_and_more_time_than_a_sharded_optimizer():
    whole, sharded = run(small(*DENSE, "plan.sharding=zero1")), run(small(*DENSE))
    assert sharded.memory[0].total < whole.memory[0].total
    assert sharded.step_time_s > whole.step_time_s


def test_zero2_keeps_parameters_from_forward_to_backward():
    scenario = small(*DENSE, "plan.sharding=zero2")
    graph = build_step(scenario).graph
    count = Counter(graph.operations[number].name for number in graph.operation.tolist())
    passes = scenario.model.num_layers * micro_batches(scenario)
    assert (count["param.dense"], count["grad.dense"]) == (passes, passes)
    (memory,) = stage_memory(scenario)
    exact = count_parameters(scenario.model).exact
    assert memory.weights == pytest.approx(2 * exact, rel=1e-3)
    assert memory.optimizer == pytest.approx(12 * exact / 16, rel=1e-3)
    assert run(scenario).step_time_s < run(small(*DENSE)).step_time_s


def seconds_of(graph, name: str) -> float:
    """Time of all tasks of an operation."""
    chosen = [number for number, operation in enumerate(graph.operations) if operation.name == name]
    return float(graph.duration[np.isin(graph.operation, chosen)].sum())


def test_sharding_groups_share_a_copy_and_sum_over_copies():
    """Two hosts of eight: parameters travel inside a host only, gradients also between the copies."""
    scenario = small(*DENSE, "plan.sharding_group=8")
    slow = "cluster.fabric.bandwidth=25 Gb/s"
    graph, whole = (build_step(small(*DENSE, slow, *more)).graph for more in (("plan.sharding_group=8",), ()))
    operations = {operation.name: operation for operation in graph.operations}
    assert (operations["param.dense"].group, operations["grad.replicas"].group) == ("shard", "replica")
    assert operations["grad.replicas"].category == "all_reduce"
    count = Counter(graph.operations[number].name for number in graph.operation.tolist())
    assert count["grad.replicas"] == scenario.model.num_layers * micro_batches(scenario)
    assert "grad.replicas" not in {operation.name for operation in whole.operations}
    assert seconds_of(graph, "param.dense") < 0.5 * seconds_of(whole, "param.dense")  # over NVLink alone
    (memory,), (alone,) = stage_memory(scenario), stage_memory(small(*DENSE))
    assert memory.optimizer == pytest.approx(2 * alone.optimizer)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((*DENSE, "plan.sharding_group=3"), "sharding_group 3 does not divide"),
        ((*DENSE, "plan.sharding=none", "plan.sharding_group=8"), "sharding none has no groups"),
        ((*DENSE, "plan.pipeline_parallel=2", "plan.sharding=zero2"), "zero2 needs one pipeline stage"),
    ],
)
def test_wrong_sharding_is_told(overrides, sentence):
    with pytest.raises(SpecError, match=sentence):
        small(*overrides)
