"""A built step against what it must amount to: FLOPs, tokens, parameters, and what other simulators get wrong."""

import itertools
import math
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from simmoe.cost.flops import model_flops_per_token
from simmoe.cost.layers import layer_operators
from simmoe.cost.operators import TokenExchange
from simmoe.cost.shard import shard_of
from simmoe.engine.simulate import simulate
from simmoe.graph.actions import micro_batches
from simmoe.graph.build import build_step
from simmoe.pipeline import run
from tests.scenarios import SMALL, small

# 4 ranks of the first stage hand over to 8 of the second: each takes two sequences where those take one.
UNEQUAL = (
    "plan={stages: [{first_device: 0, devices: 8, tensor_parallel: 2, data_parallel: 4, expert_parallel: 4, "
    "chunks: [{first_layer: 0, layers: 3, embedding: true}]}, {first_device: 8, devices: 8, data_parallel: 8, "
    "expert_parallel: 8, chunks: [{first_layer: 3, layers: 5, head: true}]}]}",
)
PLANS = [
    (),
    UNEQUAL,
    ("plan.pipeline_parallel=1",),
    ("plan.pipeline_parallel=4", "plan.expert_parallel=4", "plan.schedule=gpipe"),
    ("plan.tensor_parallel=2", "plan.expert_tensor_parallel=2", "plan.expert_parallel=4"),
    ("plan.tensor_parallel=4", "plan.expert_parallel=8"),
    ("plan.context_parallel=2", "plan.expert_parallel=2"),
    ("plan.virtual_pipeline=2", "plan.schedule=interleaved"),
    ("model=deepseek-v2-lite", "plan.stage_layers=[14, 13]", "plan.expert_parallel=8"),
    ("model=qwen3-30b-a3b", "model.num_layers=8", "plan.tensor_parallel=2", "plan.tp_comm_overlap=true"),
    ("model=llama-3-8b", "plan.expert_parallel=1", "plan.tensor_parallel=8"),
    ("model=gpt-oss-20b", "plan.expert_parallel=4"),
    ("plan.overlap_dispatch_backward_with_experts_wgrad=true",),
]


def flops_of(scenario, phase, categories=("gemm", "grouped_gemm", "attention"), leave_out=()):
    """FLOPs of all tasks of a phase over all devices."""
    step = build_step(scenario)
    graph = step.graph
    total = 0.0
    for task in range(len(graph)):
        operation = graph.operations[graph.operation[task]]
        if operation.phase == phase and operation.category in categories and operation.name not in leave_out:
            total += operation.flops * step.ranks[graph.streams[graph.stream[task]].rank].count
    return total


@pytest.mark.parametrize("overrides", PLANS)
def test_the_forward_tasks_do_the_models_flops(overrides):
    """Expectation: a third of the model FLOPs of the step, whatever the plan; Actual: the sum over all tasks.

    The convention leaves out the router. MLA down-projections run on every token once, so they are no exception.
    """
    scenario = small(*overrides)
    training = scenario.training
    expected = model_flops_per_token(scenario.model, training.sequence_length, mtp=training.mtp) / 3
    found = flops_of(scenario, "forward", leave_out=("moe.router",)) / training.tokens_per_step
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("overrides", PLANS)
def test_backward_gemms_do_twice_the_forward_work(overrides):
    scenario = small(*overrides)
    products = ("gemm", "grouped_gemm")
    forward, backward = flops_of(scenario, "forward", products), flops_of(scenario, "backward", products)
    assert backward == pytest.approx(2 * forward, rel=1e-12)


def test_stages_of_unequal_data_parallel_sizes_share_one_batch():
    """Expectation: 8 micro-batches of 8 sequences, two a rank in the narrow stage, whose port carries both of them."""
    scenario = small(*UNEQUAL)
    shards = [shard_of(stage, scenario.plan, scenario.training, scenario.routing) for stage in scenario.plan.stages]
    assert [shard.batch for shard in shards] == [2, 1]
    assert micro_batches(scenario) == 8
    graph = build_step(scenario).graph
    sent = {o.name: o.bytes for o in graph.operations if o.category == "send_recv"}
    tokens = scenario.training.sequence_length  # 2 sequences over tensor-parallel 2, or one
    expected = 2.0 * tokens * scenario.model.hidden_size
    assert sent == {"pipeline.send": expected, "pipeline.send_gradient": expected}


def test_full_recomputation_repeats_the_forward_pass_of_every_layer():
    scenario = small("plan.recompute=full")
    again = flops_of(scenario, "recompute")
    assert again == pytest.approx(flops_of(scenario, "forward", leave_out=("head.logits",)), rel=1e-12)


@pytest.mark.parametrize("overrides", PLANS)
def test_every_micro_batch_passes_every_layer_both_ways_once(overrides):
    scenario = small(*overrides)
    step = build_step(scenario)
    graph = step.graph
    seen = Counter()
    for task in range(len(graph)):
        operation = graph.operations[graph.operation[task]]
        if operation.name == "attention.core":
            seen[operation.phase, int(graph.layer[task]), int(graph.micro_batch[task])] += 1
    phases, layers = ("forward", "backward"), range(scenario.model.num_layers)
    expected = dict.fromkeys(itertools.product(phases, layers, range(micro_batches(scenario))), 1)
    assert dict(seen) == expected


@pytest.mark.parametrize("overrides", PLANS)
def test_no_pass_starts_before_the_stage_before_has_sent(overrides):
    """The device work of a micro-batch in a layer follows that of the layer before, in both directions."""
    timeline = simulate(build_step(small(*overrides)).graph)
    graph = timeline.graph
    spans = {}
    for task in range(len(graph)):
        operation, layer = graph.operations[graph.operation[task]], int(graph.layer[task])
        if operation.name not in {"attention.norm", "attention.residual", "attention.out.dgrad"} or layer < 0:
            continue
        key = (operation.phase, int(graph.micro_batch[task]), layer)
        first, last = spans.get(key, (math.inf, 0.0))
        spans[key] = (min(first, timeline.start[task]), max(last, timeline.end[task]))
    for (phase, batch, layer), (first, _) in spans.items():
        before = spans.get((phase, batch, layer - 1 if phase == "forward" else layer + 1))
        if before is not None:
            assert first >= before[1]


def test_delayed_weight_gradients_hide_the_exchange_of_their_input_gradients():
    """Expectation: of the four exchanges of a layer and micro-batch one runs beneath two expert GEMMs."""
    plain, delayed = (run(small(f"plan.overlap_dispatch_backward_with_experts_wgrad={on}")) for on in ("false", "true"))
    assert delayed.step_time_s < plain.step_time_s
    exposed = [result.metrics.exposed_by_collective_s["all_to_all"] for result in (plain, delayed)]
    assert exposed[1] == pytest.approx(0.75 * exposed[0], rel=0.1)


def test_attention_work_of_a_rank_does_not_depend_on_ep():
    work = set()
    for expert_parallel in (1, 2, 4, 8):
        scenario = small(f"plan.expert_parallel={expert_parallel}")
        shard = shard_of(scenario.plan.stages[0], scenario.plan, scenario.training, scenario.routing)
        work.add(tuple(o.work for o in layer_operators(scenario.model, shard, 0) if o.name.startswith("attention")))
    assert len(work) == 1


def test_expert_parallelism_works_without_tensor_parallelism():
    result = run(small("plan.tensor_parallel=1", "plan.expert_parallel=8"))
    assert result.metrics.exposed_by_collective_s["all_to_all"] > 0


def exchanged(expert_parallel):
    scenario = small(f"plan.expert_parallel={expert_parallel}")
    shard = shard_of(scenario.plan.stages[0], scenario.plan, scenario.training, scenario.routing)
    (dispatch,) = [o.work for o in layer_operators(scenario.model, shard, 0) if o.name == "moe.dispatch"]
    rows = sum(
        o.work.groups * o.work.tokens for o in layer_operators(scenario.model, shard, 0) if o.name == "moe.expert_up"
    )
    return dispatch, rows


def test_dispatched_tokens_per_rank_do_not_shrink_with_ep():
    """Every rank sends tokens x top_k copies and works on as many, for every ep."""
    for expert_parallel in (2, 4, 8):
        dispatch, rows = exchanged(expert_parallel)
        assert isinstance(dispatch, TokenExchange)
        assert (dispatch.tokens, dispatch.top_k, rows) == (4096, 2, 8192)


INSIDE = ("cluster.groups.0.count=1", "plan.pipeline_parallel=1")
ACROSS = [
    (),  # gradients of the two nodes' stages stay inside, activations cross
    ("plan.pipeline_parallel=1", "plan.expert_parallel=8"),  # gradients cross
    ("plan.pipeline_parallel=1", "plan.expert_parallel=4", "plan.tensor_parallel=2", "plan.sharding=none"),
]


def step_at(bandwidth, *overrides):
    return run(small(*overrides, f"cluster.fabric.bandwidth={bandwidth}")).step_time_s


def test_network_bandwidth_matters_only_where_traffic_crosses_nodes():
    assert step_at("50 Gb/s", *INSIDE) == step_at("400 Gb/s", *INSIDE)
    for overrides in ACROSS:
        assert step_at("50 Gb/s", *overrides) > step_at("400 Gb/s", *overrides)


def test_expert_traffic_crosses_nodes_when_expert_ranks_are_strided():
    """With etp = tp = 8 an expert-parallel group has one GPU per node, so its all-to-all is on the network."""
    base = ("plan.pipeline_parallel=1", "plan.tensor_parallel=8", "plan.overlap_grad_reduce=false")
    folded = (*base, "plan.expert_parallel=2", "plan.expert_tensor_parallel=1")
    strided = (*base, "plan.expert_parallel=2", "plan.expert_tensor_parallel=8")

    def exchange(overrides, bandwidth):
        result = run(small(*overrides, f"cluster.fabric.bandwidth={bandwidth}"))
        return result.metrics.exposed_by_collective_s["all_to_all"]

    assert exchange(folded, "50 Gb/s") == pytest.approx(exchange(folded, "400 Gb/s"), rel=1e-9)
    assert exchange(strided, "50 Gb/s") > 2 * exchange(strided, "400 Gb/s")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("plan.tensor_parallel=2", "plan.expert_parallel=4"),
        ("plan.pipeline_parallel=4", "plan.expert_parallel=4", "plan.recompute=full"),
        ("plan.pipeline_parallel=1",),
    ],
)
def test_folded_and_unfolded_ranks_take_the_same_time(overrides):
    scenario = small("model.num_layers=4", "training.global_batch_size=32", *overrides)
    folded, unfolded = build_step(scenario), build_step(scenario, fold=False)
    assert len(unfolded.ranks) == 16 > len(folded.ranks)
    assert simulate(unfolded.graph).makespan == simulate(folded.graph).makespan


def test_more_devices_do_not_make_a_larger_graph():
    sizes = set()
    for nodes in (4, 8, 64):
        scenario = small(f"cluster.groups.0.count={nodes}", f"training.global_batch_size={32 * nodes}")
        sizes.add(len(build_step(scenario).graph))
    assert len(sizes) == 1


def test_16384_devices_give_finite_figures():
    result = run(
        small(
            "cluster.groups.0.count=2048",
            "training.global_batch_size=65536",
            "plan.expert_parallel=8",
            "model.num_layers=8",
        )
    )
    assert result.devices == 16384
    figures = [result.step_time_s, result.mfu, result.tokens_per_s, *result.metrics.breakdown_s.values()]
    assert np.isfinite(figures).all()
    assert 0.05 < result.mfu < 0.9


def test_the_same_file_gives_the_same_bytes_under_any_hash_seed():
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "simmoe", "simulate", str(SMALL), "--json", "-"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    (output,) = outputs
    assert b"NaN" not in output
    assert len(output) > 1000
