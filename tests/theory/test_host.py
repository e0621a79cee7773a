"""Host-bound steps, the scopes of CUDA graphs, what shares with exchanges, and the traffic around the experts."""

from dataclasses import replace

import pytest

from simmoe.cost.groups import GroupShape
from simmoe.cost.moe import moe_layer
from simmoe.cost.operators import MemoryBound, TokenExchange
from simmoe.cost.shard import Shard
from simmoe.graph.actions import micro_batches
from simmoe.graph.build import build_step
from simmoe.graph.fsdp import sharing_the_port
from simmoe.graph.host import GRAPH_LAUNCH
from simmoe.graph.stage_settings import stage_settings
from simmoe.graph.weave import weave
from simmoe.pipeline import run
from simmoe.specs import catalog
from tests.pipelines import template
from tests.scenarios import small

ONE_STAGE = ("plan.pipeline_parallel=1", "training.global_batch_size=32")
SLOW = (*ONE_STAGE, "training.software.host_moe_layer.value=200 ms", "training.software.host_attention.value=80 ms")
STACK = catalog.software("megatron-core-2025")
ROUTER, PREPARE = STACK.host_router.value, STACK.host_preprocess.value
GRAPHED = "plan.cuda_graph_scope=[full_iteration]"


def step(*overrides):
    return run(small(*overrides)).step_time_s


def passes(scenario):
    """Passes of a layer in a step, forward and backward."""
    return 2 * micro_batches(scenario) * scenario.model.num_layers


def test_a_slow_host_sets_the_pace():
    """Expectation: the sum of all launches, and at most the device's own time more."""
    launched = passes(small(*SLOW)) * 0.2
    assert launched < step(*SLOW) < launched + step(*ONE_STAGE, GRAPHED)


@pytest.mark.parametrize(
    ("scope", "saved"),
    [
        ("[attn]", 0.080 - GRAPH_LAUNCH),
        ("[moe_router]", ROUTER - GRAPH_LAUNCH),
        ("[attn, moe_router, moe_preprocess]", 0.080 + ROUTER + PREPARE - 3 * GRAPH_LAUNCH),
        ("[mlp]", 0.0),
    ],
)
def test_a_graph_saves_the_launches_of_what_it_replays(scope, saved):
    """Expectation: every pass of a layer is shorter by the captured parts, less one replay each; 1 % for the device."""
    found = step(*SLOW) - step(*SLOW, f"plan.cuda_graph_scope={scope}")
    assert found == pytest.approx(passes(small(*SLOW)) * saved, rel=0.01, abs=1e-3)


def test_a_graph_of_the_iteration_leaves_nothing_to_the_host():
    graph = build_step(small(*ONE_STAGE, GRAPHED)).graph
    assert "host.launch" not in {operation.name for operation in graph.operations}
    assert step(*SLOW, GRAPHED) == step(*ONE_STAGE, GRAPHED)


def test_a_fast_host_hides_beneath_its_device_if_it_need_not_wait():
    """Expectation: with static counts a host of a fifth of the device's time costs nothing; waiting for counts does."""
    quick = (
        *ONE_STAGE,
        "training.software.host_moe_layer.value=1.2 ms",
        "training.software.host_attention.value=0.1 ms",
    )
    static = ("routing.capacity_factor=1", "routing.pad_to_capacity=true")
    alone = step(*ONE_STAGE, GRAPHED, *static)
    assert step(*quick, *static) == pytest.approx(alone, rel=1e-3)
    assert step(*quick) > 1.001 * step(*ONE_STAGE, GRAPHED)


def test_overlap_multiplies_what_the_host_launches():
    both = (*SLOW, "plan.overlap_moe_expert_parallel_comm=true")
    assert step(*both) / step(*SLOW) == pytest.approx(STACK.host_overlap_factor.value, rel=0.02)


def test_an_fp8_recipe_costs_host_time_in_both_halves():
    scenario, eight = (small(*ONE_STAGE, f"training.precision={word}") for word in ("bf16", "fp8-current"))
    plain, cast = (stage_settings(one, one.plan.stages[0]).host for one in (scenario, eight))
    software = scenario.training.software
    added = (cast.attention - plain.attention, cast.mlp - plain.mlp, cast.experts - plain.experts)
    half = software.host_fp8_layer.value / 2
    assert added == pytest.approx((half, half, software.host_fp8_experts.value))
    assert cast.router == plain.router


# ---------------------------------------------------------------- what shares with an exchange


def test_computation_beside_an_exchange_has_fewer_multiprocessors():
    """Expectation: with a quarter of them held for 2 s, 1 s of work takes 4/3 s, and 3 s what is left of it longer."""
    forward = template([0.5, 2.0, 0.1], [0, 4, 0], ["compute", "ep", "compute"], sends=False)
    backward = template([1.0, 3.0], [1, 1], ["compute", "compute"], sends=False)
    slot = weave(*(replace(one, exchange_share=0.25) for one in (forward, backward)))
    assert slot.templates[1].duration.tolist() == pytest.approx([4 / 3, 3 + (2 - 4 / 3) / 4])
    assert slot.templates[0].duration.tolist() == [0.5, 2.0, 0.1]
    assert weave(forward, backward).templates[1] is backward


def test_gathers_share_the_port_with_exchanges_of_their_layer():
    """Expectation: the port is busy for the sum; what stays in the domain takes nothing from it."""
    plain = template([2.0, 1.0, 0.5], [0, 4, 0], ["dp", "ep", "compute"], sends=False)
    plain = replace(plain, groups=("edp", "ep", ""))
    far, near = GroupShape(16, 8, 2), GroupShape(8, 8, 1)
    assert sharing_the_port(plain, {"edp": far, "ep": far}).duration.tolist() == [3.0, 1.0, 0.5]
    assert sharing_the_port(plain, {"edp": far, "ep": near}).duration.tolist() == [2.0, 1.0, 0.5]
    assert sharing_the_port(plain, {"edp": near, "ep": far}).duration.tolist() == [2.0, 1.0, 0.5]


# ---------------------------------------------------------------- traffic of the experts


def layer(dispatcher, **changes):
    model = small().model
    return model, moe_layer(model.model_copy(update=changes), Shard(1, 4096, expert=4, dispatcher=dispatcher))


def permuted(operators):
    return [o.work.bytes for o in operators if isinstance(o.work, MemoryBound) and o.work.operator == "permute"]


def test_a_deduplicating_dispatcher_copies_tokens_where_they_arrive():
    """Expectation: 8 experts on 4 ranks, 2 a token: it visits 4 (1 - 6/8 x 5/7) = 13/7 ranks and becomes 2 rows."""
    model, operators = layer("deepep")
    row = 2 * model.hidden_size * 4096
    assert permuted(operators) == pytest.approx([row * (13 / 7 + 2)] * 2)
    assert permuted(layer("alltoall")[1]) == pytest.approx([row * 3, row * 4, row * 4, row * 3])
    names = [o.name for o in operators if isinstance(o.work, TokenExchange) or "sort" in o.name]
    assert names == ["moe.dispatch", "moe.sort", "moe.unsort", "moe.combine"]


def test_expert_biases_and_clamps_are_traffic_of_their_own():
    model, plain = layer("alltoall")
    moe = model.moe.model_copy(update={"clamped": True})
    rows = 4096 * model.moe.top_k
    found = {
        o.name: o.work.bytes for o in layer("alltoall", mlp_bias=True, moe=moe)[1] if isinstance(o.work, MemoryBound)
    }
    assert found["moe.expert_bias"] == 28 * rows * model.hidden_size
    assert found["moe.clamp"] == 16 * rows * model.moe.moe_ffn_hidden_size
    assert not {"moe.expert_bias", "moe.clamp"} & {o.name for o in plain}


def test_a_fused_expert_mlp_writes_its_activation_in_the_grouped_product():
    model = small().model
    shard = Shard(1, 4096, expert=4, fp8=True, fused_experts=True)
    fused, separate = (moe_layer(model, one) for one in (shard, shard._replace(fused_experts=False)))
    gone = {o.name for o in separate} - {o.name for o in fused}
    assert gone == {"moe.activation", "moe.expert_down.cast"}
    assert sum(o.saved for o in fused) == sum(o.saved for o in separate)
    biased = moe_layer(model.model_copy(update={"mlp_bias": True}), shard)
    assert gone < {o.name for o in biased}
