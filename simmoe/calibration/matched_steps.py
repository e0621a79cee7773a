"""Every step of some traces beside the rank of a scenario that it belongs to."""

from collections.abc import Sequence

import numpy as np

from simmoe.calibration.kernel_classes import TABLE, KernelClass
from simmoe.calibration.matching import match_rank
from simmoe.calibration.observations import MatchedStep, step_rows
from simmoe.calibration.ranks import match_ranks
from simmoe.calibration.simulated import simulated_rank
from simmoe.calibration.trace import Trace
from simmoe.errors import SpecError
from simmoe.report.result import Result
from simmoe.specs.text_file import one_line


def matched_steps(
    result: Result, traces: Sequence[Trace], table: tuple[KernelClass, ...] = TABLE
) -> tuple[MatchedStep, ...]:
    """Match the steps of traces with a simulated scenario.

    Parameters
    ----------
    result : Result
        Of the scenario that the traces were taken of.
    traces : sequence of Trace
        Of several ranks or runs.
    table : tuple of KernelClass

    Returns
    -------
    tuple of MatchedStep

    Raises
    ------
    SpecError
        If a trace holds no work of accelerators, or says of itself that it belongs to a job of another size.
    """
    _check(result, traces)
    transfers = _transfers(traces, table)
    found: list[MatchedStep] = []
    for trace, own in zip(traces, transfers, strict=True):
        simulated = simulated_rank(result, rank_class_of(result, trace.rank))
        for number, step in enumerate(step_rows(trace)):
            matches = match_rank(trace, step.rows, simulated, table)
            found.append(MatchedStep(trace, simulated, matches, own, number == 0))
    return tuple(found)


def rank_class_of(result: Result, rank: int | None) -> int:
    """Which rank class of a simulation stands for a rank of the job; the first one for a rank that is not known.

    Parameters
    ----------
    result : Result
    rank : int or None
    """
    firsts = [one.first_rank for one in result.ranks]
    if rank is None or rank in firsts:
        return firsts.index(rank) if rank is not None else 0
    stages = result.scenario.plan.stages
    stage = next((i for i, s in enumerate(stages) if s.first_device <= rank < s.first_device + s.devices), 0)
    accelerator = _accelerator(result, rank)
    alike = [i for i, one in enumerate(result.ranks) if one.stage == stage and one.accelerator == accelerator]
    own = alike or [i for i, one in enumerate(result.ranks) if one.stage == stage]
    return max((i for i in own if firsts[i] <= rank), default=own[0])


def _accelerator(result: Result, rank: int) -> str:
    groups = result.scenario.cluster.groups
    ends = np.cumsum([group.devices for group in groups])
    return groups[min(int(np.searchsorted(ends, rank, side="right")), len(groups) - 1)].node.accelerator.id


def _check(result: Result, traces: Sequence[Trace]) -> None:
    devices = sum(rank.count for rank in result.ranks)
    problems = []
    for trace in traces:
        name = one_line(str(trace.path), 4096)
        if not len(trace):
            problems.append(
                f"{name}: no kernels here, profile with ProfilerActivity.CUDA (or give an accelerator's trace)"
            )
        elif trace.world_size not in (None, devices):
            problems.append(
                f"{name}: distributedInfo.world_size: a job of {trace.world_size} ranks, the scenario has {devices} "
                "devices: give the scenario of that job"
            )
    if problems:
        raise SpecError(problems)


def _transfers(traces: Sequence[Trace], table: tuple[KernelClass, ...]) -> list[dict[int, int]]:
    """Of each trace the collectives whose time without waiting is known [ns]."""
    found: list[dict[int, int]] = [{} for _ in traces]
    if len(traces) < 2:
        return found
    matching = match_ranks(traces, table)
    for one in matching.matched if matching.aligned else ():
        for own, row in zip(found, one.rows, strict=True):
            own[row] = one.transfer_ns
    return found
