"""Kernels of real names beside the simulator's operators: fusion, several kernels for one, what has no counterpart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simmoe.calibration.coverage import measured_coverage
from simmoe.calibration.matching import match_rank
from simmoe.calibration.observations import MatchedStep, observations, step_rows
from simmoe.calibration.simulated import COMPUTE, SimulatedRank, simulated_rank
from simmoe.calibration.trace import Trace
from simmoe.pipeline import run
from tests.scenarios import small
from tests.traces import Folder, kernel

NAMES = {
    "gemm": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute",
    "grouped_gemm": "nvjet_tst_128x256_64x4_1x2_h_bz_TNT",
    "attention": "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(flash::Flash_fwd_params)",
    "memory": "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<c10::BFloat16>>()",
    "optimizer": "void at::native::multi_tensor_apply_kernel<AdamFunctor>()",
}
NCCL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
COLLECTIVES = {"all_to_all": "all_to_allv", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base"}


@pytest.fixture(scope="module")
def simulated() -> SimulatedRank:
    result = run(small("training.global_batch_size=16"))
    return simulated_rank(result, 0)


def rows_of(simulated: SimulatedRank, *, slower: float = 1.2, pieces: int = 1) -> list[dict]:
    """The tasks of a rank as a profiler would show them, by real names, each grouped product in pieces."""
    rows = []
    for operation, start, took in zip(simulated.operation, simulated.start_s, simulated.seconds, strict=True):
        one = simulated.operations[operation]
        begin, length = 1e6 + start * 1e6 * slower, took * 1e6 * slower
        if one.category in COLLECTIVES:
            args = {
                "Collective name": COLLECTIVES[one.category],
                "In msg nelems": int(one.bytes / 2),
                "dtype": "BFloat16",
            }
            rows.append(kernel(begin, length, NCCL, stream=9, **args))
        elif one.category in NAMES:
            name = "void ln_fwd_kernel<Kernel_traits>()" if ".norm" in one.name else NAMES[one.category]
            parts = pieces if one.category == "grouped_gemm" else 1
            rows += [kernel(begin + p * length / parts, length / parts, name) for p in range(parts)]
    return rows


def matched(simulated: SimulatedRank, rows: list[dict], folder: Path) -> tuple[Trace, MatchedStep]:
    trace = Folder(folder).events(*rows)
    own = step_rows(trace)[0].rows
    return trace, MatchedStep(trace, simulated, match_rank(trace, own, simulated), {}, True)


def test_kernels_of_real_names_find_their_operators(simulated: SimulatedRank, tmp_path: Path):
    _, step = matched(simulated, rows_of(simulated), tmp_path)
    assert min(part.share for part in measured_coverage([step]).values()) == 1.0
    for one in observations([step]):
        own = sum(unit.seconds * count for unit, count in one.units)
        assert one.seconds / own == pytest.approx(1.2, rel=0.02), one.name


def test_one_kernel_an_expert_is_matched_with_the_grouped_product(simulated: SimulatedRank, tmp_path: Path):
    rank = replace(simulated, experts=4)
    trace, step = matched(rank, rows_of(rank, pieces=4), tmp_path)
    groups = [p for p in step.matches.pairs if rank.operations[rank.operation[p.tasks[0]]].category == "grouped_gemm"]
    assert {len(pair.rows) for pair in groups} == {4}
    for pair in groups:
        took = (trace.end_ns[list(pair.rows)] - trace.start_ns[list(pair.rows)]).sum() * 1e-9
        assert took == pytest.approx(1.2 * rank.seconds[pair.tasks[0]], rel=0.01)


def test_kernels_without_a_counterpart_are_left_over(simulated: SimulatedRank, tmp_path: Path):
    rows = rows_of(simulated)
    extra = [kernel(3e6, 5.0, "void my_sampling_kernel()", stream=11)]
    strangers = [kernel(2e6, 50.0, "ncclDevKernel_Broadcast(x)", stream=9, **{"Collective name": "broadcast"})]
    trace, step = matched(simulated, rows + strangers + extra, tmp_path)
    left = {trace.names[trace.name[row]] for row in step.matches.unmatched_rows}
    assert "ncclDevKernel_Broadcast(x)" in left
    assert measured_coverage([step])["comm"].unmatched_s == pytest.approx(50e-6)


def test_a_trace_of_the_forward_pass_alone_leaves_the_backward_pass_over(simulated: SimulatedRank, tmp_path: Path):
    forward = [simulated.operations[one].phase == "forward" for one in simulated.operation]
    half = _chosen(simulated, np.array(forward))
    _, step = matched(simulated, rows_of(half), tmp_path)
    phases = {
        simulated.operations[simulated.operation[task]].phase for pair in step.matches.pairs for task in pair.tasks
    }
    assert measured_coverage([step])["gemm"].share > 0.95
    compute = step.matches.unmatched_tasks[simulated.lane[step.matches.unmatched_tasks] == COMPUTE]
    assert "forward" in phases
    assert len(compute) > 0.3 * len(simulated)


def _chosen(simulated: SimulatedRank, rows: np.ndarray) -> SimulatedRank:
    names = ("task", "operation", "layer", "micro_batch", "start_s", "seconds", "lane", "stream")
    return replace(simulated, **{name: getattr(simulated, name)[rows] for name in names})
