"""Skewed routing in the task graph: folded = every rank on its own, nothing else moves, and measured effects."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from simmoe.cost.backward import backward
from simmoe.cost.groups import group_shape
from simmoe.cost.loads import busiest_ports, group_loads
from simmoe.cost.model import StageCost
from simmoe.cost.moe import moe_layer
from simmoe.cost.operators import GroupedGemm, TokenExchange
from simmoe.cost.shard import shard_of
from simmoe.engine.fast import simulate_fast
from simmoe.graph.actions import micro_batches
from simmoe.graph.build import build_step
from simmoe.graph.ranks import StepGraph
from simmoe.graph.skew import along_curve
from simmoe.pipeline import stage_memory
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario
from tests.scenarios import small

ONE_NODE = ("cluster.groups.0.count=1", "model.num_layers=4", "training.global_batch_size=32")
UNEVEN = "routing={kind: power_law, exponent: 1.2}"
EVEN = "routing={kind: zipf, exponent: 0}"


def makespan(step: StepGraph) -> float:
    return float(simulate_fast(step.graph).end.max())


def seconds_of_rank(scenario: Scenario, stage: int) -> dict[tuple[str, bool, int, int, int], float]:
    """The time of every operator of a MoE layer on every rank, from the rows of each of its experts.

    Keys are (name, backward, layer, micro-batch, expert-parallel rank).
    """
    here, model = scenario.plan.stages[stage], scenario.model
    cost = StageCost(scenario, stage, 0)
    shard = shard_of(here, scenario.plan, scenario.training, scenario.routing)
    loads = group_loads(scenario.routing, model, shard, micro_batches(scenario))
    ports = busiest_ports(loads, group_shape(here, "ep", scenario.cluster))
    launch = cost.device.efficiency.grouped_gemm[0].launch.value
    found = {}
    for layer, batch, rank in np.ndindex(*loads.ranks.shape):
        loaded = shard._replace(
            capacity_factor=float(loads.sent[layer, batch]),
            load=float(loads.ranks[layer, batch, rank]),
            exchange_load=float(ports.rank[layer, batch]),
            domain_load=float(ports.domain[layer, batch]),
        )
        forward = moe_layer(model, loaded)
        gradients = [(gradient, True) for one in forward for gradient in backward(one)]
        for operator, back in [*((one, False) for one in forward), *gradients]:
            seconds = cost.seconds(operator)
            if isinstance(work := operator.work, GroupedGemm):
                rows = work.tokens * work.groups * loads.slots[layer, batch, rank] / loads.ranks[layer, batch, rank]
                one_by_one = [operator._replace(work=work._replace(groups=1, tokens=float(one))) for one in rows]
                seconds = launch + sum(cost.seconds(one) - launch for one in one_by_one if one.work.tokens >= 0.5)
            found[operator.name, back, layer, batch, rank] = seconds
    return found


def unfolded(scenario: Scenario, balanced: Scenario) -> StepGraph:
    """Every device on its own, each with the times of its own rows; exchanges join those of a stage."""
    step = build_step(balanced, fold=False)
    graph, duration = step.graph, step.graph.duration.copy()
    known = [seconds_of_rank(scenario, stage) for stage in range(len(scenario.plan.stages))]
    moved = 0
    for task in range(len(graph)):
        rank = step.ranks[graph.streams[graph.stream[task]].rank]
        stage = scenario.plan.stages[rank.stage]
        place = (rank.first_rank - stage.first_device) // stage.expert_tensor_parallel % stage.expert_parallel
        operation = graph.operations[graph.operation[task]]
        cell = (int(graph.layer[task]), int(graph.micro_batch[task]), place)
        key = (operation.name, operation.phase == "backward", *cell)
        if key in known[rank.stage]:
            duration[task] = known[rank.stage][key]
            moved += 1
    assert moved > 1000
    return step._replace(graph=replace(graph, duration=duration))


@pytest.mark.parametrize(
    "overrides",
    [
        ("plan.pipeline_parallel=1",),
        ("plan.pipeline_parallel=2", "plan.expert_parallel=4"),
        ("plan.pipeline_parallel=2", "plan.expert_parallel=4", "plan.dispatcher=deepep"),
        ("plan.pipeline_parallel=1", "plan.expert_parallel=4", "plan.expert_tensor_parallel=2"),
        ("plan.pipeline_parallel=1", "plan.recompute={granularity: selective, modules: [moe]}"),
        ("plan.pipeline_parallel=1", "plan.tensor_parallel=2", "plan.recompute=full"),
        ("plan.pipeline_parallel=1", "routing.capacity_factor=1.2"),
        ("plan.pipeline_parallel=2", "plan.expert_parallel=2", "routing.expert_replicas=1", "routing.resample=step"),
        ("plan.pipeline_parallel=2", "plan.expert_parallel=4", "plan.virtual_pipeline=2", "plan.schedule=interleaved"),
    ],
    ids=str,
)
def test_folded_is_unfolded(overrides):
    """Eight ranks of unequal work, each simulated, end when one class with the work of the slowest does."""
    fixed = [one for one in overrides if "replicas" not in one and "capacity" not in one and "resample" not in one]
    scenario, balanced = small(*ONE_NODE, UNEVEN, *overrides), small(*ONE_NODE, *fixed)
    if any("replicas" in one for one in overrides):
        balanced = small(*ONE_NODE, *fixed, "routing.expert_replicas=1")
    assert makespan(build_step(scenario)) == pytest.approx(makespan(unfolded(scenario, balanced)), rel=1e-9)
    assert makespan(build_step(scenario, fold=False)) == pytest.approx(makespan(build_step(scenario)), rel=1e-12)


def test_weight_gradients_that_wait_make_folding_an_upper_bound():
    """Zero bubble: no exchange follows them, so no rank is slowest in all."""
    overrides = ("plan.pipeline_parallel=2", "plan.expert_parallel=4", "plan.schedule=zb-h1")
    scenario, balanced = small(*ONE_NODE, UNEVEN, *overrides), small(*ONE_NODE, *overrides)
    folded, alone = makespan(build_step(scenario)), makespan(unfolded(scenario, balanced))
    assert alone <= folded * (1 + 1e-12)
    assert folded == pytest.approx(alone, rel=0.08)


def test_a_slow_device_takes_longer_for_the_same_rows():
    """A fault doubles its kernels; that they are those of the most loaded rank is an upper bound."""
    fault = "cluster.faults=[{device: 3, slowdown: 2}]"
    for routing in (UNEVEN, "routing={kind: balanced}"):
        step = build_step(small(*ONE_NODE, "plan.pipeline_parallel=1", fault, routing))
        up = {rank.count: _expert_up(step, number) for number, rank in enumerate(step.ranks)}
        assert set(up) == {1, 7}
        assert up[1] == pytest.approx(2 * up[7])


def _expert_up(step: StepGraph, rank: int) -> np.ndarray:
    graph = step.graph
    own = np.array([stream.rank == rank for stream in graph.streams])[graph.stream]
    named = np.array([operation.name == "moe.expert_up" for operation in graph.operations])[graph.operation]
    return graph.duration[own & named]


@pytest.mark.parametrize(
    "overrides",
    [
        ("plan.schedule=dualpipe", "plan.expert_parallel=4"),
        ("plan.schedule=dualpipe-v", "plan.expert_parallel=4"),
        ("plan.schedule=zb-v", "plan.expert_parallel=4"),
        ("plan.overlap_moe_expert_parallel_comm=true", "plan.virtual_pipeline=2", "plan.schedule=interleaved"),
    ],
    ids=str,
)
def test_every_schedule_runs_with_skew(overrides):
    """Slower than balanced, and by less than the busiest rank's load."""
    skew = "routing={kind: dirichlet, concentration: 2}"
    balanced, skewed = makespan(build_step(small(*overrides))), makespan(build_step(small(*overrides, skew)))
    assert 1.0 < skewed / balanced < 2.0


def test_even_shares_change_nothing():
    balanced, even = build_step(small()).graph, build_step(small(EVEN)).graph
    assert even.duration == pytest.approx(balanced.duration, rel=1e-9)
    assert (even.predecessor == balanced.predecessor).all()


def test_only_expert_work_and_exchanges_change():
    balanced, skewed = build_step(small()).graph, build_step(small(UNEVEN)).graph
    moved = np.flatnonzero(balanced.duration != skewed.duration)
    names = {skewed.operations[skewed.operation[task]].name for task in moved}
    assert names == {
        *("moe.dispatch", "moe.combine", "moe.activation"),
        *(f"moe.expert_{part}{suffix}" for part in ("up", "down") for suffix in ("", ".dgrad", ".wgrad")),
    }
    assert (skewed.layer[moved] >= 0).all()


def test_each_layer_and_micro_batch_has_its_own_time_or_one_for_the_step():
    def times(*overrides: str) -> np.ndarray:
        graph = build_step(small("routing={kind: dirichlet, concentration: 5}", *overrides)).graph
        up = [
            number
            for number, one in enumerate(graph.operations)
            if (one.name, one.phase) == ("moe.expert_up", "forward")
        ]
        tasks = np.isin(graph.operation, up)
        found = np.zeros((8, 8))
        found[graph.layer[tasks], graph.micro_batch[tasks]] = graph.duration[tasks]
        return found

    assert len(np.unique(times())) == 64
    step = times("routing.resample=step")
    assert (step == step[:, :1]).all()
    assert len(np.unique(step)) == 8


def test_padding_to_capacity_makes_all_ranks_equal():
    """The router does not matter: every expert has 1.25 times its share of rows."""
    padded = ("routing.capacity_factor=1.25", "routing.pad_to_capacity=true")
    one = makespan(build_step(small(UNEVEN, *padded)))
    assert one == makespan(build_step(small(*padded)))
    assert one > makespan(build_step(small()))


def test_dropping_is_quicker_than_waiting():
    """A tight capacity costs tokens and saves time; a wide one saves less, and a very wide one nothing."""
    times = [
        makespan(build_step(small(UNEVEN, f"routing.capacity_factor={factor}"))) for factor in (0.5, 1.0, 1.5, 8.0)
    ]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(makespan(build_step(small(UNEVEN))), rel=1e-9)
    assert times[1] < makespan(build_step(small()))


@pytest.mark.parametrize("dispatcher", ["alltoall", "deepep"])
def test_exchanges_between_nodes_wait_for_the_busiest_node(dispatcher):
    """Mixtral over 2 nodes with all tokens on the experts of one: ports receive twice the balanced bytes."""
    layer = "{layer: 0, samples: [[1, 1, 1, 1, 0, 0, 0, 0]]}"
    wide = (
        "plan.pipeline_parallel=1",
        "plan.expert_parallel=8",
        "plan.tensor_parallel=2",
        f"plan.dispatcher={dispatcher}",
    )
    scenario = small(*wide, "plan.expert_tensor_parallel=2", f"routing={{kind: counts, counts: {{layers: [{layer}]}}}}")
    shape = group_shape(scenario.plan.stages[0], "ep", scenario.cluster)
    assert (shape.size, shape.domains) == (8, 2)
    loads = group_loads(scenario.routing, scenario.model, _shard(scenario), 1)
    ports = busiest_ports(loads, shape)
    assert ports.domain.max() == ports.rank.max() == 2.0
    cost = StageCost(scenario, 0, 0)
    (dispatch,) = (one for one in moe_layer(scenario.model, _shard(scenario)) if one.name == "moe.dispatch")
    balanced = cost.seconds(dispatch)
    assert isinstance(dispatch.work, TokenExchange)
    skewed = cost.seconds(dispatch._replace(work=dispatch.work._replace(load=2.0, domain_load=2.0)))
    if dispatcher == "alltoall":
        empty = cost.seconds(dispatch._replace(work=dispatch.work._replace(tokens=1e-30)))
        assert skewed - empty == pytest.approx(2 * (balanced - empty), rel=0.05)
    else:  # a token visits both nodes with probability 11/14 already: at most all do
        assert 1.0 < skewed / balanced < 1.5


def _shard(scenario: Scenario):
    return shard_of(scenario.plan.stages[0], scenario.plan, scenario.training, scenario.routing)


def test_the_worst_rank_needs_more_memory():
    even, skewed = stage_memory(small())[0], stage_memory(small(UNEVEN))[0]
    assert skewed.activations > 1.1 * even.activations
    assert skewed.working > even.working
    assert skewed.weights == even.weights
    assert stage_memory(small(EVEN))[0].total == pytest.approx(even.total, rel=1e-9)


def test_copies_of_experts_cost_weights_and_gradients():
    """Eight experts on eight ranks: one copy each doubles the expert weights, not the optimizer state."""
    one, two = stage_memory(small())[0], stage_memory(small("routing.expert_replicas=1"))[0]
    expert = 4 * 3 * 4096 * 14336  # layers of the stage x matrices of one expert
    assert two.weights - one.weights == pytest.approx(2 * expert)
    assert two.gradients - one.gradients == pytest.approx(4 * expert)
    assert two.optimizer == one.optimizer


def test_a_curve_is_met_between_its_nodes():
    sizes = np.random.default_rng(5).random((20, 30)) * 9.0
    assert along_curve(lambda x: 3.0, sizes) == pytest.approx(np.full(sizes.shape, 3.0))
    assert along_curve(lambda x: max(2.0, 0.7 * x), sizes) == pytest.approx(np.maximum(2.0, 0.7 * sizes), rel=1e-11)
    assert along_curve(lambda x: (1.0 + x) ** 0.5, sizes) == pytest.approx((1.0 + sizes) ** 0.5, rel=1e-6)
    assert along_curve(lambda x: 1.0 + x if x else 0.0, np.array([0.0, 0.3, 1.0])) == pytest.approx([0.0, 1.3, 2.0])
    assert along_curve(lambda x: 2.0 * x, np.full((2, 2), 4.0)) == pytest.approx(np.full((2, 2), 8.0))


# ---------------------------------------------------------------- natural against forced routing

# Qwen3-235B-A22B, 256 H100, TP4 PP8 VPP4 EP8, DeepEP, bf16, modules layernorm and moe recomputed. Model TFLOP/s a GPU
# with forced balance and with natural, dropless routing: yanring/Megatron-MoE-ModelZoo@020b813,
# best_practice/qwen3/readme.md, "Long Context". Key: context-parallel size; the sequence is 16384 tokens times as long.
FORCED_AND_NATURAL = {1: (295.0, 237.0), 2: (335.0, 277.0), 4: (368.0, 320.0), 8: (389.0, 357.0)}
LONG_CONTEXT = """\
model: {base: qwen3-235b-a22b, max_position_embeddings: 131072}
cluster:
  groups: [{node: dgx-h100, count: 32}]
  fabric: {link: infiniband-ndr-400, topology: rail}
training: {sequence_length: 16384, micro_batch_size: 1, global_batch_size: 256, precision: bf16}
plan:
  tensor_parallel: 4
  pipeline_parallel: 8
  virtual_pipeline: 4
  expert_parallel: 8
  schedule: interleaved
  account_for_embedding: true
  account_for_loss: true
  dispatcher: deepep
  recompute: {granularity: selective, modules: [layernorm, moe]}
"""
# What others found, none of it from these runs. Qwen3-235B and DeepSeek-V3 while serving: exponents 1.2 and 1.01
# (aiconfigurator, docs on the power law of its MoE benchmarks, by matching latencies). 128 experts on 8 H100 in
# training without auxiliary loss: 18.6 % of a MoE layer lost to waiting (arXiv 2604.19654), and up to Gini 0.38 on the
# routers of five models (arXiv 2605.20982): concentration 2 has Gini 0.375 and loses 20 %.
PUBLISHED = {
    "serving, strong": "{kind: power_law, exponent: 1.2}",
    "serving, weak": "{kind: power_law, exponent: 1.01}",
    "training, kernels": "{kind: dirichlet, concentration: 2}",
}
# The one number that is chosen here, on the first length alone: the busiest of 8 ranks has 1.63 times the mean.
CHOSEN = "{kind: dirichlet, concentration: 0.4}"


@pytest.fixture(scope="module")
def long_context(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenario") / "long.yaml"
    path.write_text(LONG_CONTEXT)

    @lru_cache
    def step_time(context: int, routing: str, batches: int = 32) -> float:
        sizes = (f"plan.context_parallel={context}", f"training.sequence_length={16384 * context}")
        batch = f"training.global_batch_size={batches * 8 // context}"
        return makespan(build_step(load_scenario(path, [*sizes, batch, f"routing={routing}"])))

    def loss(context: int, routing: str, batches: int = 32) -> float:
        """Throughput with a routing over that with forced balance, minus 1."""
        return step_time(context, "{kind: balanced}", batches) / step_time(context, routing, batches) - 1.0

    return loss


def measured(context: int) -> float:
    forced, natural = FORCED_AND_NATURAL[context]
    return natural / forced - 1.0


@pytest.mark.parametrize("context", FORCED_AND_NATURAL)
def test_natural_routing_costs_what_was_measured(long_context, context):
    """-19.7, -17.3, -13.0 and -8.2 %: one skew, chosen on the first, gives the other three within 2 points.

    32 micro-batches at every length, as in the first run; the others had more, see the slow test.
    """
    assert long_context(context, CHOSEN) == pytest.approx(measured(context), abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("context", FORCED_AND_NATURAL)
def test_natural_routing_costs_what_was_measured_with_all_micro_batches(long_context, context):
    assert long_context(context, CHOSEN, 32 * context) == pytest.approx(measured(context), abs=0.02)


def test_published_skews_enclose_the_measured_cost(long_context):
    """None of them meets all four lengths within 5 points: what skew these runs had was not published.

    Errors in points at 16, 32, 64 and 128 thousand tokens: exponent 1.2 -14, -12, -10, -8; exponent 1.01 -7, -5, -4,
    -3; concentration 2 +10, +9, +7, +4.
    """
    for context in (1, 8):
        costs = {name: long_context(context, routing) for name, routing in PUBLISHED.items()}
        assert costs["serving, strong"] < costs["serving, weak"] < measured(context) < costs["training, kernels"] < 0.0
        assert costs["serving, weak"] == pytest.approx(measured(context), abs=0.08)
        assert costs["training, kernels"] == pytest.approx(measured(context), abs=0.11)
