"""SimPy and the fast engine agree on every start and end of zebra steps; pipelines of them keep their laws."""

import numpy as np
import pytest

from simmoe.engine.fast import simulate_fast
from simmoe.engine.simulate import simulate
from simmoe.graph.build import build_step
from tests.scenarios import zebra

FULL = "plan.recompute=full"
MOVED = "plan.zebra.moved_experts=[0, 1, 1, 0]"
TWO = ("plan.pipeline_parallel=2", "plan.zebra.groups=1")
THREE = (
    "plan.pipeline_parallel=3",
    "plan.stage_layers=[1, 1, 2]",
    "plan.zebra={attention_devices: 2, expert_devices: 2, groups: 1, micro_batches: 2, moved_experts: [0, 1, 2, 1]}",
)
UNLIKE = (
    "cluster.groups=[{node: dgx-h100, count: 1}, {node: dgx-a100-80gb-as-ndr, count: 3}]",
    "plan={}",
    "plan.stages=[{first_device: 4, devices: 8, data_parallel: 8,"
    " chunks: [{first_layer: 0, layers: 2, embedding: true}],"
    " experts: {first_device: 16, devices: 8, groups: 2, micro_batches: 2, moved_experts: [1, 0]}},"
    " {first_device: 24, devices: 8, data_parallel: 8, chunks: [{first_layer: 2, layers: 2, head: true}],"
    " experts: {first_device: 0, devices: 4, groups: 1, micro_batches: 2}}]",
)
VARIANTS = {
    "plain": (),
    "repeated": (FULL,),
    "selective": ("plan.recompute={granularity: selective, modules: [moe_act, layernorm]}",),
    "moved": (MOVED, FULL),
    "pieces": ("plan.a2a_ffn_overlap_degree=3", MOVED),
    "one micro-batch": ("plan.zebra.micro_batches=1",),
    "gpipe": ("plan.schedule=gpipe", FULL),
    "two stages": (*TWO, FULL),
    "two stages, gpipe": (*TWO, "plan.schedule=gpipe", MOVED),
    "three stages": THREE,
    "three stages, gpipe": (*THREE, "plan.schedule=gpipe", FULL, "plan.a2a_ffn_overlap_degree=2"),
    "unlike devices": UNLIKE,
    "unlike devices, gpipe": (*UNLIKE, "plan.schedule=gpipe", FULL),
    "tensor parallel": ("plan.tensor_parallel=2", "plan.tp_comm_overlap=true", FULL),
    "context parallel": ("plan.context_parallel=2", "plan.sharding=none"),
    "late gradients": ("plan.overlap_grad_reduce=false", "plan.overlap_param_gather=false"),
    "shared experts": ("model={base: deepseek-v2-lite, num_layers: 4}", FULL),
    "token counts": ("training.software.host_sync=true", MOVED, FULL),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_both_engines_agree_to_the_last_bit(name):
    graph = build_step(zebra(*VARIANTS[name])).graph
    reference = simulate(graph)
    for compiled in (False, None):
        fast = simulate_fast(graph, use_numba=compiled)
        assert (fast.start == reference.start).all()
        assert (fast.end == reference.end).all()


@pytest.mark.parametrize("name", ["two stages", "three stages", "three stages, gpipe", "unlike devices"])
def test_a_later_stage_begins_when_the_first_micro_batch_has_come(name):
    """Expectation: no stage works before the one in front has sent, and gradients come back the same way."""
    step = build_step(zebra(*VARIANTS[name]))
    timeline, graph = simulate_fast(step.graph), step.graph
    owner = np.array([stream.rank for stream in graph.streams])[graph.stream]
    stage = np.array([rank.stage for rank in step.ranks])[owner]
    core = np.array([o.name == "attention.core" for o in graph.operations])[graph.operation]
    send = np.array([o.name == "pipeline.send" for o in graph.operations])[graph.operation]
    back = np.array([o.name == "pipeline.send_gradient" for o in graph.operations])[graph.operation]
    late = np.array([o.phase == "backward" for o in graph.operations])[graph.operation]
    for number in range(1, int(stage.max()) + 1):
        here, before = stage == number, stage == number - 1
        for batch in range(4):
            own = graph.micro_batch == batch
            sent = timeline.end[send & before & own]
            assert len(sent) == sum(rank.stage == number - 1 and rank.role == "attention" for rank in step.ranks)
            assert timeline.start[core & here & own].min() >= sent.max()
            assert timeline.start[core & before & own & late].min() >= timeline.end[back & here & own].max()


@pytest.mark.parametrize("name", VARIANTS)
def test_both_sides_of_an_exchange_start_together_or_wait_for_their_stream(name):
    """Expectation: an exchange has as many tasks on every device, with equal times, and the same causes."""
    step = build_step(zebra(*VARIANTS[name]))
    graph = step.graph
    owner = np.array([stream.rank for stream in graph.streams])[graph.stream]
    lists: dict[int, list[list[tuple[str, str, int, int, float]]]] = {}
    for number, rank in enumerate(step.ranks):
        own = [
            (o.name, o.phase, int(graph.layer[task]), int(graph.micro_batch[task]), float(graph.duration[task]))
            for task in np.flatnonzero(owner == number)
            if (o := graph.operations[graph.operation[task]]).name in {"moe.dispatch", "moe.combine"}
        ]
        lists.setdefault(rank.stage, []).append(own)
    for sides in lists.values():
        assert sides[0]
        assert all(sorted(side) == sorted(sides[0]) for side in sides)


def test_unlike_attention_devices_are_simulated_each():
    step = build_step(zebra(*UNLIKE))
    assert [(rank.stage, rank.role, rank.accelerator[:4], rank.count) for rank in step.ranks] == [
        (0, "attention", "h100", 4),
        (0, "attention", "a100", 4),
        (0, "experts", "a100", 8),
        (1, "attention", "a100", 8),
        (1, "experts", "h100", 4),
    ]
