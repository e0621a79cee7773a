"""Pipelines of plain and zebra stages: the laws of both hold, and a pass is the same sequences everywhere."""

from collections.abc import Sequence

import numpy as np
import pytest

from simmoe.cost.flops import forward_flops_by_operator
from simmoe.cost.model import StageCost
from simmoe.cost.operators import Collective, Operator
from simmoe.cost.shard import shard_of
from simmoe.engine.fast import simulate_fast
from simmoe.engine.simulate import simulate
from simmoe.graph.actions import micro_batches
from simmoe.graph.build import build_step
from simmoe.graph.ranks import StepGraph
from simmoe.graph.stage_settings import send_operator
from simmoe.pipeline import rank_memories, role_memory, run
from simmoe.report.memory_timeline import memory_timelines
from simmoe.specs.plan import Stage
from tests.scenarios import zebra

NO_HOST = ("plan.cuda_graph_scope=[full_iteration]", "plan.sharding=none")
FULL = tuple(f"plan.stages.{number}.recompute=full" for number in (0, 1))


def plain(first: int, devices: int, layers: tuple[int, int], sizes: str = "") -> str:
    """A plain stage as a file states it; it ends the model if its layers do."""
    return f"{{first_device: {first}, devices: {devices}, {sizes or f'data_parallel: {devices}'}, {_chunk(layers)}}}"


def apart(first: int, devices: int, layers: tuple[int, int], experts: str) -> str:
    """A zebra stage."""
    stage = plain(first, devices, layers)
    return f"{stage[:-1]}, experts: {{{experts}}}}}"


def _chunk(layers: tuple[int, int]) -> str:
    first, count = layers
    ends = f"embedding: {str(first == 0).lower()}, head: {str(first + count == 4).lower()}"
    return f"chunks: [{{first_layer: {first}, layers: {count}, {ends}}}]"


def plan(*stages: str) -> tuple[str, ...]:
    return ("plan={}", f"plan.stages=[{', '.join(stages)}]")


# 8 H100 are devices 0 to 7, 8 A100 devices 8 to 15.
EP4 = "data_parallel: 4, expert_parallel: 4"
PLANS = {
    "plain, zebra": plan(
        plain(12, 4, (0, 1), EP4), apart(0, 8, (1, 3), "first_device: 8, devices: 4, groups: 2, micro_batches: 2")
    ),
    "zebra, plain": plan(
        apart(0, 8, (0, 3), "first_device: 8, devices: 4, micro_batches: 4"), plain(12, 4, (3, 1), EP4)
    ),
    "moved experts": plan(
        apart(0, 8, (0, 3), "first_device: 8, devices: 2, groups: 2, micro_batches: 2, moved_experts: [0, 4, 4]"),
        plain(12, 4, (3, 1), "data_parallel: 2, tensor_parallel: 2"),
    ),
    "plain, zebra, plain": plan(
        plain(12, 4, (0, 1), EP4),
        apart(0, 4, (1, 2), "first_device: 8, devices: 4, micro_batches: 2"),
        plain(4, 4, (3, 1), "data_parallel: 1, context_parallel: 2, tensor_parallel: 2, expert_parallel: 2"),
    ),
    "unequal R": plan(
        apart(0, 4, (0, 2), "first_device: 8, devices: 4, micro_batches: 4"),
        apart(4, 4, (2, 2), "first_device: 12, devices: 4, micro_batches: 2"),
    ),
    "unequal ranks": plan(
        apart(0, 2, (0, 2), "first_device: 8, devices: 4, micro_batches: 8"),
        apart(4, 4, (2, 2), "first_device: 12, devices: 4, micro_batches: 2"),
    ),
    "unlike devices in a stage": plan(
        plain(4, 8, (0, 2), "data_parallel: 8, expert_parallel: 8"),
        apart(0, 4, (2, 2), "first_device: 12, devices: 4, micro_batches: 2"),
    ),
}
MORE = {
    "": (),
    "repeated": FULL,
    "gpipe": ("plan.schedule=gpipe", "plan.overlap_grad_reduce=false", "plan.overlap_param_gather=false"),
    "pieces": ("plan.a2a_ffn_overlap_degree=2", *FULL),
}


def counted(step: StepGraph) -> np.ndarray:
    """Tasks of each operation on all devices."""
    graph = step.graph
    owner = np.array([stream.rank for stream in graph.streams])[graph.stream]
    counts = np.array([rank.count for rank in step.ranks], dtype=np.float64)[owner]
    return np.bincount(graph.operation, weights=counts, minlength=len(graph.operations))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("more", MORE)
def test_all_devices_together_do_the_work_of_the_model(name, more):
    """Expectation: the FLOPs of plain pipelines, 3 x forward and 3.5 x the attention core, whatever the stages are."""
    scenario = zebra(*PLANS[name], *MORE[more])
    step, training = build_step(scenario), scenario.training
    work = forward_flops_by_operator(scenario.model, training.sequence_length)
    repeated = [stage.layers for stage in scenario.plan.stages if stage.recompute.granularity == "full"]
    layers = (sum(work.values()) - work["logits"]) * sum(repeated) / scenario.model.num_layers
    expected = training.tokens_per_step * (3.0 * sum(work.values()) + 0.5 * work["attention.core"] + layers)
    flops = np.array([operation.flops for operation in step.graph.operations])
    assert float(counted(step) @ flops) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("more", MORE)
def test_both_engines_agree_to_the_last_bit(name, more):
    graph = build_step(zebra(*PLANS[name], *MORE[more])).graph
    reference, fast = simulate(graph), simulate_fast(graph)
    assert (fast.start == reference.start).all()
    assert (fast.end == reference.end).all()


@pytest.mark.parametrize("name", PLANS)
def test_what_has_been_sent_is_enough_for_what_starts(name):
    """Expectation: at any moment the next stage works on no sequence that its neighbour has not sent."""
    scenario = zebra(*PLANS[name])
    step = build_step(scenario)
    timeline = simulate_fast(step.graph)
    stages = scenario.plan.stages
    for front in range(len(stages) - 1):
        for sender, receiver, phase in ((front, front + 1, "forward"), (front + 1, front, "backward")):
            sent = _times(step, timeline.end, sender, ("pipeline.send", "pipeline.send_gradient"), phase)
            begun = _times(step, timeline.start, receiver, ("attention.core",), phase)
            for batch, start in begun.items():
                needed = (batch + 1) / stages[receiver].together
                there = sum(end <= start for end in sent.values()) / stages[sender].together
                assert there >= needed - 1e-9


def _times(step: StepGraph, times: np.ndarray, stage: int, names: Sequence[str], phase: str) -> dict[int, float]:
    """First start, or last end, of each micro-batch of a stage in some operators."""
    graph, found = step.graph, dict[int, float]()
    owner = np.array([stream.rank for stream in graph.streams])[graph.stream]
    for task in np.flatnonzero([step.ranks[rank].stage == stage for rank in owner]):
        operation = graph.operations[graph.operation[task]]
        if operation.name in names and operation.phase == phase:
            batch, time = int(graph.micro_batch[task]), float(times[task])
            worse = max if operation.name.startswith("pipeline") else min
            found[batch] = worse(found.get(batch, time), time)
    assert found
    return found


def only(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let one operator take 1 s forward and as long backward, and all others no time."""
    monkeypatch.setattr(StageCost, "seconds", lambda self, operator: float(operator.name == name))


@pytest.mark.parametrize(("name", "needed"), [("unequal R", 2), ("zebra, plain", 4)])
def test_a_stage_starts_when_its_part_of_the_pass_has_come(name, needed, monkeypatch):
    """Expectation: two of four micro-batches make one of the next stage's two; a plain stage needs all four."""
    only(monkeypatch, "moe.unpermute")  # in what follows the last exchange
    scenario = zebra(*PLANS[name], *NO_HOST)
    step = build_step(scenario)
    begun = _times(step, simulate_fast(step.graph).start, 1, ("attention.core",), "forward")
    # 1 s for each of the four micro-batches in each layer; of the last layer as many as are needed.
    assert begun[0] == 4.0 * (scenario.plan.stages[0].layers - 1) + needed


@pytest.mark.parametrize(("order", "expected"), [("plain first", 10.0), ("zebra first", 8.0)])
def test_a_step_of_one_plain_and_one_zebra_layer_by_hand(order, expected, monkeypatch):
    """Expectation: attention alone takes time, 1 s a micro-batch and direction, R = 2, two passes. The plain stage in
    front waits for both backward passes, 1 + 2 (2 + 2) + 1; behind, its work is done while the zebra stage has a
    forward and a backward pass to do: 2 (2 + 2).
    """
    only(monkeypatch, "attention.core")
    experts = "first_device: 8, devices: 4, micro_batches: 2"
    if order == "plain first":
        stages = (plain(12, 4, (0, 1), EP4), apart(0, 8, (1, 1), experts))
    else:
        stages = (apart(0, 8, (0, 1), experts), plain(12, 4, (1, 1), EP4))
    last = stages[1].replace("head: false", "head: true")
    made = zebra("model={base: mixtral-8x7b, num_layers: 2}", *plan(stages[0], last), *NO_HOST)
    assert run(made).step_time_s == pytest.approx(expected)


@pytest.mark.parametrize("name", PLANS)
def test_a_boundary_carries_every_token_of_a_pass(name):
    """Expectation: what the ports of the narrower side send in a pass are the pass's tokens, once, either way."""
    scenario = zebra(*PLANS[name])
    tokens = scenario.plan.widest * scenario.training.sequence_length
    whole = tokens * scenario.model.hidden_size * 2.0  # bf16
    stages = scenario.plan.stages
    for number in range(len(stages) - 1):
        ranks = min(_ports(stages[side]) for side in (number, number + 1))
        for side, backward in ((number, False), (number + 1, True)):
            operator = send_operator(scenario, side, stages[side].chunks[0], backward=backward)
            assert operator is not None
            assert _bytes(operator) * stages[side].together * ranks == pytest.approx(whole)


def _ports(stage: Stage) -> int:
    """Ranks that hold different tokens of a pass at the boundary of a stage."""
    return stage.data_parallel * stage.context_parallel * stage.tensor_parallel


def _bytes(operator: Operator) -> float:
    assert isinstance(operator.work, Collective)
    return operator.work.bytes


def test_a_stage_needs_the_memory_that_it_needs_among_its_like():
    """Expectation: a plain stage that takes 4 sequences of each pass keeps what it keeps at a micro-batch of 4 among
    plain stages; a zebra stage what it keeps among zebra stages.
    """
    mixed = role_memory(zebra(*PLANS["plain, zebra"]))
    alike = plan(plain(12, 4, (0, 1), EP4), plain(0, 4, (1, 3), EP4))
    assert mixed[0] == role_memory(zebra(*alike, "training.micro_batch_size=4"))[0]
    experts = "first_device: 8, devices: 4, groups: 2, micro_batches: 2"
    first = apart(0, 8, (0, 1), experts).replace("first_device: 0", "first_device: 16")
    first = first.replace("first_device: 8", "first_device: 24")
    three = "cluster.groups=[{node: dgx-h100, count: 1}, {node: dgx-a100-80gb-as-ndr, count: 3}]"
    zebras = plan(first, apart(0, 8, (1, 3), experts))
    assert mixed[1] == role_memory(zebra(three, *zebras))[1]


@pytest.mark.parametrize("name", PLANS)
def test_the_memory_over_time_reaches_the_peak(name):
    result = run(zebra(*PLANS[name]))
    lines = memory_timelines(result.scenario, result.timeline, result.ranks, result.memory)
    for line, memory in zip(lines, rank_memories(result.scenario, result.ranks), strict=True):
        assert line.peak == pytest.approx(memory.total)


def test_a_pass_is_as_wide_as_its_widest_stage():
    scenario = zebra(*PLANS["zebra, plain"])
    assert [stage.width for stage in scenario.plan.stages] == [32, 4]
    assert scenario.plan.widest == 32
    assert [
        shard_of(stage, scenario.plan, scenario.training, scenario.routing).batch for stage in scenario.plan.stages
    ] == [1, 8]
    assert micro_batches(scenario) == 1
