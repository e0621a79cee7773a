"""A step of zebra parallelism with real operators against closed forms: work, bytes, times, gradients."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simmoe.graph.zebra
from simmoe.cost.flops import forward_flops_by_operator
from simmoe.cost.model import StageCost
from simmoe.cost.operators import BipartiteExchange, Operator
from simmoe.engine.fast import simulate_fast
from simmoe.engine.record import Timeline
from simmoe.graph.build import build_step
from simmoe.graph.ranks import RankClass, StepGraph
from simmoe.graph.task import TaskGraph
from simmoe.graph.zebra import ZebraCost, ZebraStage
from simmoe.graph.zebra_order import Part, block_graph
from simmoe.pipeline import run
from simmoe.specs.scenario import Scenario
from tests.scenarios import zebra

NO_HOST = "plan.cuda_graph_scope=[full_iteration]"
PLAIN = "plan.sharding=none"  # nothing is gathered before the first block
FULL = "plan.recompute=full"
MOVED = "plan.zebra.moved_experts=[0, 1, 0, 1]"
WIDE = "plan.zebra={attention_devices: 2, expert_devices: 4, groups: 2, micro_batches: 4, moved_experts: [1, 0, 1, 1]}"
ONE_GROUP = "plan.zebra={attention_devices: 4, expert_devices: 4, groups: 1, micro_batches: 2}"
TWO_STAGES = ("plan.pipeline_parallel=2", ONE_GROUP)
DEEPSEEK_V3 = ("model={base: deepseek-v3, num_layers: 5}", "training.mtp=true")


def count(step: StepGraph, chosen: Callable[[RankClass], bool] = lambda rank: True) -> np.ndarray:
    """Tasks of each operation on all devices of the chosen classes."""
    graph, total = step.graph, np.zeros(len(step.graph.operations))
    owner = np.array([stream.rank for stream in graph.streams])[graph.stream]
    for number, rank in enumerate(step.ranks):
        if chosen(rank):
            own = graph.operation[owner == number]
            total += rank.count * np.bincount(own, minlength=len(graph.operations))
    return total


# ---------------------------------------------------------------- work

PLANS = [
    (),
    (FULL,),
    (MOVED,),
    (MOVED, FULL),
    (WIDE, FULL),
    ("plan.a2a_ffn_overlap_degree=4", MOVED, FULL),
    TWO_STAGES,
    (*TWO_STAGES, FULL),
    (*TWO_STAGES, FULL, "plan.schedule=gpipe", MOVED),
    ("plan.tensor_parallel=2", "plan.context_parallel=2", FULL),
    ("model={base: deepseek-v2-lite, num_layers: 4}", FULL),
    (*DEEPSEEK_V3, FULL),
    (*DEEPSEEK_V3, "plan.zebra.moved_experts=[1, 0, 4]"),
    ("model={base: qwen3-30b-a3b, num_layers: 3}", "plan.tensor_parallel=2", FULL),
]


@pytest.mark.parametrize("overrides", PLANS, ids=str)
def test_all_devices_together_do_the_work_of_the_model(overrides):
    """Expectation: three times the forward FLOPs, 3.5 times the attention core; fully repeated once, but no logits."""
    scenario = zebra(*overrides)
    training, step = scenario.training, build_step(scenario)
    work = forward_flops_by_operator(scenario.model, training.sequence_length, mtp=training.mtp)
    forward, core = sum(work.values()), work["attention.core"]
    again = forward - work["logits"] if scenario.plan.stages[0].recompute.granularity == "full" else 0.0
    expected = training.tokens_per_step * (3.0 * forward + 0.5 * core + again)
    flops = np.array([operation.flops for operation in step.graph.operations])
    assert float(count(step) @ flops) == pytest.approx(expected, rel=1e-12)


def test_each_side_does_its_own_part():
    """Expectation: half of the experts of two layers of four moved, so a quarter of their work."""

    def products(role: str) -> float:
        step = build_step(zebra(MOVED))
        chosen = [operation.category == "grouped_gemm" for operation in step.graph.operations]
        flops = np.array([operation.flops for operation in step.graph.operations])
        return float((count(step, lambda rank: rank.role == role) * flops)[chosen].sum())

    assert products("attention") == pytest.approx(products("experts") / 3)
    plain = build_step(zebra())
    on_experts = count(plain, lambda rank: rank.role == "experts")
    kinds = {plain.graph.operations[i].name.split(".")[0] for i in np.flatnonzero(on_experts)}
    assert kinds == {"moe", "host", "grad", "param", "optimizer"}


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_exchanges_carry_what_those_of_expert_parallelism_carry(phase):
    """HeterMoE, section 4.1: at an equal batch the volume of all exchanges is that of expert parallelism."""

    def volume(scenario: Scenario, chosen: Callable[[RankClass], bool]) -> float:
        step = build_step(scenario)
        sizes = [o.bytes * (o.group == "ep" and o.phase == phase) for o in step.graph.operations]
        return float(count(step, chosen) @ np.array(sizes))

    apart = zebra()
    uniform = zebra("plan={expert_parallel: 8}")
    sent = volume(apart, lambda rank: rank.role == "attention")
    assert sent == volume(uniform, lambda rank: True)
    training, model = apart.training, apart.model
    copies = training.tokens_per_step * model.moe.top_k * model.num_layers
    assert sent == 2 * copies * 2 * model.hidden_size  # dispatch and combine, bf16


def test_moved_experts_keep_their_own_tokens_at_home():
    """Expectation: of 4 attention devices with half of the experts each sends 7/8, an expert device receives 1/2."""
    work = BipartiteExchange(tokens=4096, bytes_per_token=8192, top_k=2, attention=4, experts=4, moved=0.5)
    whole = 4096 * 8192 * 2
    assert (work.sent, work.received, work.taken) == (whole * 7 / 8, whole / 2, whole / 2)
    found = ZebraStage(zebra(MOVED), 0).work.exchanges
    assert found[1] == work
    assert found[0] == work._replace(moved=0.0)


def test_exchanges_keep_their_directions_and_names():
    """Expectation: on its way to the experts a backward exchange carries gradients of what the combine brought back."""
    graph = build_step(zebra()).graph
    found = {
        (graph.streams[graph.stream[task]].name, graph.operations[graph.operation[task]].phase): graph.operations[
            graph.operation[task]
        ].name
        for task in range(len(graph))
        if graph.streams[graph.stream[task]].name in {"dispatch", "combine"}
    }
    assert found == {
        ("dispatch", "forward"): "moe.dispatch",
        ("combine", "forward"): "moe.combine",
        ("dispatch", "backward"): "moe.combine",
        ("combine", "backward"): "moe.dispatch",
    }


# ---------------------------------------------------------------- times

_TIMES = {"attention.core": "attention", "head.logits": "attention", "moe.expert_down": "experts"}


def priced(monkeypatch, attention: float, experts: float, exchange: float, degree: int = 1) -> None:
    """Give attention cores, logits, experts and exchanges these times in either direction, all else none.

    Exchanges take no multiprocessors away.
    """

    def seconds(_: StageCost, operator: Operator) -> float:
        if isinstance(operator.work, BipartiteExchange):
            return exchange / degree
        name = operator.name.removesuffix(".dgrad")
        return {"attention": attention, "experts": experts / degree}.get(_TIMES.get(name, ""), 0.0)

    monkeypatch.setattr(StageCost, "seconds", seconds)
    monkeypatch.setattr(simmoe.graph.zebra, "exchange_share", lambda *_: 0.0)


def timeline_of(*overrides: str) -> Timeline:
    return simulate_fast(build_step(zebra(NO_HOST, PLAIN, *overrides)).graph)


def busy(timeline: Timeline, rank: int) -> float:
    graph = timeline.graph
    streams = [i for i, stream in enumerate(graph.streams) if stream == (rank, "compute")]
    return float(graph.duration[np.isin(graph.stream, streams)].sum())


def test_enough_micro_batches_hide_all_exchanges(monkeypatch):
    """R a >= a + e + 2 c with a > e: attention never waits, experts idle for all but their own work.

    Four layers and the head, four micro-batches, one pass: 2 x 5 x 4 x 3 s.
    """
    priced(monkeypatch, attention=3.0, experts=2.0, exchange=1.0)
    wide = "plan.zebra={attention_devices: 4, expert_devices: 4, groups: 2, micro_batches: 4}"
    found = run(zebra(NO_HOST, PLAIN, wide))
    attention, experts = found.metrics.ranks
    assert found.step_time_s == 120.0
    assert (attention.compute_s, attention.exposed_communication_s) == (120.0, 0.0)
    assert experts.compute_s == 2 * 4 * 4 * 2.0
    assert found.bubbles.ranks[0] == pytest.approx(dict.fromkeys(found.bubbles.mean, 0.0))


def test_too_few_micro_batches_leave_a_gap_a_layer(monkeypatch):
    """R a < a + e + 2 c: a layer lasts as long as the round trip of a micro-batch.

    a = 3, e = 2, c = 1, R = 2: micro-batch 0 is back 7 s after a layer began, 1 s after attention ended. Four layers of
    7 s and the last block with its turn of 2 x 2 x 3 s; then the first gradients have left for 6 s when the second
    block ends, and four layers of 7 s follow, the last of which ends with its attention: 28 + 3 + 3 + 28 + 6.
    """
    priced(monkeypatch, attention=3.0, experts=2.0, exchange=1.0)
    timeline = timeline_of("training.global_batch_size=16")
    attention = busy(timeline, 0)
    assert attention == 2 * 5 * 2 * 3.0
    assert timeline.makespan == 28 + 3 + 3 + 28 + 6
    assert timeline.makespan - attention == 8 * 1.0


@pytest.mark.parametrize(("degree", "layer"), [(1, 3 + 1 + 6 + 1), (2, 3 + 0.5 + 6 + 0.5), (4, 3 + 0.25 + 6 + 0.25)])
def test_one_micro_batch_in_pieces_is_distep(monkeypatch, degree, layer):
    """DistEP: attention, then dispatch, experts and combine in pieces; all but one piece of either is hidden."""
    priced(monkeypatch, attention=3.0, experts=6.0, exchange=1.0, degree=degree)
    one = "plan.zebra={attention_devices: 4, expert_devices: 4, groups: 2, micro_batches: 1}"
    pieces = f"plan.a2a_ffn_overlap_degree={degree}"
    assert timeline_of(one, pieces, "training.global_batch_size=8").makespan == 2 * (4 * layer + 3)


def test_pieces_that_wait_for_exchanges_arrive_one_by_one(monkeypatch):
    """Exchanges of 4 s around experts of 2 s in two pieces: 2 + 2 on the way out, a piece of 1 s, 2 s back.

    The first piece is back before the second one is, for the way out and the way back are streams of their own.
    """
    priced(monkeypatch, attention=3.0, experts=2.0, exchange=4.0, degree=2)
    one = "plan.zebra={attention_devices: 4, expert_devices: 4, groups: 2, micro_batches: 1}"
    found = timeline_of(one, "plan.a2a_ffn_overlap_degree=2", "training.global_batch_size=8")
    assert found.makespan == 2 * (4 * (3 + 2 + 2 + 1 + 2) + 3)


@settings(deadline=None, max_examples=12)
@given(st.randoms(use_true_random=False), st.sampled_from([(), (MOVED,), (WIDE,), ("plan.a2a_ffn_overlap_degree=2",)]))
def test_the_step_is_its_order_of_blocks(random, overrides):
    """Expectation: with times for whole blocks the step ends when the bare order of blocks does."""
    scenario = zebra(NO_HOST, PLAIN, *overrides)
    stage = ZebraStage(scenario, 0)
    times = {part: random.uniform(0.5, 4.0) for part in Part}

    def seconds(_: StageCost, operator: Operator) -> float:
        if isinstance(operator.work, BipartiteExchange):
            return times[Part.DISPATCH if operator.stream == "dispatch" else Part.COMBINE]
        name = operator.name.removesuffix(".dgrad")
        return times[Part.ATTENTION] * (name == "moe.unpermute") + times[Part.EXPERTS] * (name == "moe.expert_down")

    def block(one) -> float:
        if one.part is Part.ATTENTION:
            return times[Part.ATTENTION] * (one.place > 0)  # the block behind a layer begins with its results
        return times[Part.EXPERTS if one.part is Part.MOVED else one.part]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageCost, "seconds", seconds)
        found = simulate_fast(build_step(scenario, contention=False).graph).makespan
    assert found == pytest.approx(simulate_fast(block_graph(stage.order, block)).makespan, rel=1e-12)


@pytest.mark.parametrize("overrides", [(), (FULL, MOVED), (WIDE, "plan.a2a_ffn_overlap_degree=2")], ids=str)
def test_planners_see_the_times_of_the_step(overrides):
    """Expectation: without a host, times of blocks and the order alone give the step without its ends."""
    scenario = zebra(NO_HOST, PLAIN, *overrides)
    cost, step = ZebraCost(scenario), build_step(scenario)
    times = simulate_fast(block_graph(cost.stage.order, cost.seconds)).makespan
    timeline = simulate_fast(step.graph)
    passes = np.array([o.phase != "optimizer" for o in step.graph.operations])[step.graph.operation]
    assert times == pytest.approx(timeline.end[passes].max(), rel=1e-9)


# ---------------------------------------------------------------- the last block


def phases(graph: TaskGraph, rank: int, prefix: str) -> Counter[str]:
    """Tasks by phase whose names begin so, on the compute stream of a rank class."""
    streams = [i for i, stream in enumerate(graph.streams) if stream == (rank, "compute")]
    own = graph.operation[np.isin(graph.stream, streams)]
    return Counter(
        graph.operations[i].phase for i in own.tolist() if graph.operations[i].name.removesuffix(".dgrad") == prefix
    )


def test_what_is_alive_is_not_computed_again():
    """Expectation: attention 4 times a micro-batch, experts 4 times, the results behind the last layer never."""
    graph = build_step(zebra(FULL)).graph  # two passes of two micro-batches
    assert phases(graph, 0, "attention.core") == {"forward": 16, "recompute": 16, "backward": 16}
    assert phases(graph, 1, "moe.expert_down") == {"forward": 16, "recompute": 16, "backward": 16}
    assert phases(graph, 0, "moe.unpermute") == {"forward": 16, "recompute": 12, "backward": 16}
    assert phases(graph, 0, "head.logits") == {"forward": 4, "backward": 4}


def test_a_stage_that_does_not_end_the_model_repeats_its_last_block():
    """Expectation: of two stages the first repeats all four results of its two layers, even if it turns at once."""
    one_pass = ("training.global_batch_size=4", ONE_GROUP.replace("micro_batches: 2", "micro_batches: 1"))
    graph = build_step(zebra(FULL, *TWO_STAGES, *one_pass)).graph
    first, last = (phases(graph, rank, "moe.unpermute") for rank in (0, 2))
    assert first == {"forward": 2, "recompute": 2, "backward": 2}
    assert last == {"forward": 2, "recompute": 1, "backward": 2}


def test_gpipe_turns_with_its_last_pass_alone():
    """Expectation: all forward passes come first, so the results behind the last layer are repeated; logits never."""
    graph = build_step(zebra(FULL, "plan.schedule=gpipe")).graph
    assert phases(graph, 0, "moe.unpermute")["recompute"] == 16
    assert phases(graph, 0, "head.logits") == {"forward": 4, "backward": 4}


def order_of(graph: TaskGraph, rank: int, names: dict[str, str], phase: str) -> str:
    """The chosen operations of a compute stream in order of issue, a letter with its micro-batch."""
    streams = [i for i, stream in enumerate(graph.streams) if stream == (rank, "compute")]
    tasks = np.flatnonzero(np.isin(graph.stream, streams))
    found = [(graph.operations[graph.operation[task]], int(graph.micro_batch[task])) for task in tasks]
    return " ".join(f"{names[o.name]}{batch}" for o, batch in found if o.name in names and o.phase == phase)


def test_moved_experts_follow_the_attention_of_all_micro_batches():
    """HeterMoE, section 4.2; in backward they come before the attention of their layer."""
    graph = build_step(zebra(MOVED, "training.global_batch_size=16")).graph
    forward = order_of(graph, 0, {"attention.core": "a", "moe.expert_down": "x"}, "forward")
    assert forward == "a0 a1 a0 a1 x0 x1 a0 a1 a0 a1 x0 x1"
    backward = order_of(graph, 0, {"attention.core": "a", "moe.expert_down.dgrad": "x"}, "backward")
    assert backward == "x0 x1 a0 a1 a0 a1 x0 x1 a0 a1 a0 a1"


@pytest.mark.parametrize(("sync", "waiting"), [("false", 0), ("true", 16)])
def test_a_host_that_needs_token_counts_waits_for_their_dispatch(sync, waiting):
    """Expectation: before the experts of 4 layers and micro-batches forward; backward knows the counts."""
    graph = build_step(zebra(FULL, f"training.software.host_sync={sync}")).graph
    target = np.repeat(np.arange(len(graph)), np.diff(graph.predecessor_start))
    kinds = np.array([operation.category for operation in graph.operations])[graph.operation]
    found = (kinds[target] == "host") & (kinds[graph.predecessor] == "all_to_all")
    assert np.count_nonzero(found) == waiting
