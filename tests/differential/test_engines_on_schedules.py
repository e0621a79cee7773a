"""SimPy and the fast engine agree on every start and end of every schedule, and of whatever changes a graph."""

import pytest

from simmoe.engine.fast import simulate_fast
from simmoe.engine.simulate import simulate
from simmoe.graph.build import build_step
from tests.scenarios import small

LONG = "training.global_batch_size=128"  # 16 micro-batches: DualPipe wants two a stage and way
VARIANTS = {
    "gpipe": ("plan.schedule=gpipe",),
    "1f1b": ("plan.schedule=1f1b",),
    "interleaved": ("plan.schedule=interleaved", "plan.virtual_pipeline=2"),
    "interleaved in groups": ("plan.schedule=interleaved", "plan.virtual_pipeline=2", "plan.microbatch_group_size=4"),
    "overlapped": (
        "plan.schedule=interleaved",
        "plan.virtual_pipeline=2",
        "plan.overlap_moe_expert_parallel_comm=true",
    ),
    "overlapped on one stage": ("plan.pipeline_parallel=1", "plan.overlap_moe_expert_parallel_comm=true"),
    "zb-h1": ("plan.schedule=zb-h1",),
    "zb-v": ("plan.schedule=zb-v",),
    "dualpipe": ("plan.schedule=dualpipe",),
    "dualpipe-v": ("plan.schedule=dualpipe-v",),
    "fsdp": ("plan.pipeline_parallel=1", "plan.sharding=zero3"),
    "tensor parallel": ("plan.tensor_parallel=4", "plan.tp_comm_overlap=true", "plan.recompute=full"),
    "skewed": ("routing={kind: dirichlet, concentration: 1.0, seed: 3}",),
    "pieces": ("plan.a2a_ffn_overlap_degree=3", "plan.recompute=full"),
    "pieces of a split pass": ("plan.a2a_ffn_overlap_degree=2", "plan.schedule=zb-h1"),
    "faulty": ("cluster.faults=[{device: 3, slowdown: 1.3}]",),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_both_engines_agree_to_the_last_bit(name):
    graph = build_step(small(LONG, *VARIANTS[name])).graph
    reference = simulate(graph)
    for compiled in (False, None):
        fast = simulate_fast(graph, use_numba=compiled)
        assert (fast.start == reference.start).all()
        assert (fast.end == reference.end).all()
