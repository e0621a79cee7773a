"""Every step of some traces beside the rank of a scenario that it belongs to."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simmoe.calibration.calibrate import Run
from simmoe.calibration.kernel_classes import TABLE, KernelClass
from simmoe.calibration.matching import match_rank
from simmoe.calibration.observations import MatchedStep, step_rows
from simmoe.calibration.ranks import match_ranks
from simmoe.calibration.simulated import simulated_rank
from simmoe.calibration.trace import Trace, read_trace
from simmoe.errors import SpecError
from simmoe.pipeline import run
from simmoe.report.result import Result
from simmoe.specs.scenario import Scenario
from simmoe.specs.text_file import one_line

PROCESSOR = "cpu"
"""The architecture of an accelerator that is the host itself."""


def traces_of(scenario: Scenario, paths: Sequence[Path]) -> list[Trace]:
    """Read traces of a scenario; where its accelerators are processors, their operators are the kernels.

    Parameters
    ----------
    scenario : Scenario
    paths : sequence of Path

    Raises
    ------
    SpecError
        If one is no trace.
    """
    on_host = all(part.architecture == PROCESSOR for part in scenario.cluster.accelerators)
    return [read_trace(path, on_host=on_host) for path in paths]


def traced_run(scenario: Scenario, paths: Sequence[Path], table: tuple[KernelClass, ...] = TABLE) -> Run:
    """Simulate a scenario and match traces of it.

    Parameters
    ----------
    scenario : Scenario
    paths : sequence of Path
        One a rank.
    table : tuple of KernelClass

    Raises
    ------
    SpecError
        As `traces_of` and `matched_steps`.
    """
    read, result = traces_of(scenario, paths), run(scenario)
    return Run(result, matched_steps(result, read, table))


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
    transfers = transfers_of(traces, table)
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


def transfers_of(traces: Sequence[Trace], table: tuple[KernelClass, ...] = TABLE) -> list[dict[int, int]]:
    """Of each trace the collectives whose time without waiting is known, by row [ns].

    Parameters
    ----------
    traces : sequence of Trace
        Of the ranks of one job; others are never matched.
    table : tuple of KernelClass
    """
    found: list[dict[int, int]] = [{} for _ in traces]
    if len(traces) < 2:
        return found
    matching = match_ranks(traces, table)
    for one in matching.matched if matching.aligned else ():
        for own, row in zip(found, one.rows, strict=True):
            own[row] = one.transfer_ns
    return found
