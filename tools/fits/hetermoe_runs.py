"""What whole steps of D1 on O1 say about the assumptions that no single module shows: network, host time, overlap.

    python -m tools.fits.hetermoe_runs [--network FACTOR ...] [--host MILLISECONDS ...]

For each combination it prints how busy A40 and V100 are at 8 k tokens, no experts moved, with attention and experts on
different GPUs: under zebra parallelism (2 to 4 micro-batches) and one micro-batch at a time (DistEP, 1 and 2 pieces of
an exchange), and the throughput of DistEP over that of plain expert parallelism at 4 k. HeterMoE (arXiv 2504.03871)
prints 55 % and 89 %, 33 % and 51 % (Table 3 and its ratios), and 0.68 (section 6.2). The database holds what agrees;
nothing is written.
"""

import argparse
import sys
from collections.abc import Sequence

from simmoe.pipeline import run
from simmoe.report.result import Result
from simmoe.specs.data_folders import data_root
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario
from tools.fits.hetermoe import A40, V100, K

SCENARIO = data_root() / "scenarios" / "papers" / "hetermoe" / "o1-d1.yaml"
GPUS, ATTENTION = 12, 6
TOKENS = 64 * K  # of each GPU in a step


def job(length: int, *overrides: str) -> Scenario:
    """D1 on O1 at a length, the batch kept in tokens."""
    batch = f"training.global_batch_size={TOKENS // length * GPUS}"
    return load_scenario(SCENARIO, (f"training.sequence_length={length}", batch, *overrides))


def apart(length: int, micro_batches: int, degree: int, overrides: Sequence[str] = ()) -> Result:
    """Attention on A40, experts on V100."""
    sequences = TOKENS // length * GPUS // ATTENTION // micro_batches
    return run(
        job(
            length,
            f"training.micro_batch_size={sequences}",
            f"plan.zebra.micro_batches={micro_batches}",
            f"plan.a2a_ffn_overlap_degree={degree}",
            *overrides,
        )
    )


def together(length: int, overrides: Sequence[str] = ()) -> Result:
    """Expert parallelism over all GPUs."""
    sequences = f"training.micro_batch_size={TOKENS // length}"
    return run(job(length, "plan.zebra=null", f"plan.expert_parallel={GPUS}", sequences, *overrides))


def _busy(result: Result) -> str:
    share = result.metrics.utilization
    return f"{share[A40]:6.0%} {share[V100]:6.0%}"


def _print(title: str, overrides: Sequence[str]) -> None:
    print(title)
    for micro_batches in (2, 4):
        print(f"  zebra, R = {micro_batches}    {_busy(apart(8 * K, micro_batches, 1, overrides))}   printed 55 % 89 %")
    slow = together(4 * K, overrides).step_time_s
    for degree in (1, 2):
        ratio = slow / apart(4 * K, 1, degree, overrides).step_time_s
        busy = _busy(apart(8 * K, 1, degree, overrides))
        print(f"  DistEP, degree {degree} {busy}   printed 33 % 51 %   over EP at 4 k {ratio:.2f}, printed 0.68")


def main() -> int:
    """Entry point of ``python -m tools.fits.hetermoe_runs``."""
    parser = argparse.ArgumentParser(description="busy GPUs of D1 on O1 under other assumptions")
    parser.add_argument("--network", type=float, nargs="+", default=[1.0], help="factors on the rate of a port")
    parser.add_argument("--host", type=float, nargs="+", default=[], help="host time of a MoE layer [ms]")
    options = parser.parse_args()
    for factor in options.network:
        rate = f"cluster.fabric.bandwidth={100.0 * factor:g} Gb/s"
        for host in options.host or [None]:
            given = () if host is None else (f"training.software.host_moe_layer.value={host:g} ms",)
            _print(f"network x {factor:g}" + ("" if host is None else f", host {host:g} ms"), (rate, *given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
