"""How much of the measured time has a counterpart in the simulation, and what has none."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simmoe.calibration.breakdown import row_classes
from simmoe.calibration.kernel_classes import TABLE, KernelClass
from simmoe.calibration.observations import MatchedStep


class Coverage(NamedTuple):
    """Of one measured class, or one simulated.

    Attributes
    ----------
    matched_s, unmatched_s : float
        Sums of durations over all steps [s].
    """

    matched_s: float
    unmatched_s: float

    @property
    def share(self) -> float:
        """Of the time that is matched [1]."""
        total = self.matched_s + self.unmatched_s
        return self.matched_s / total if total else 0.0


def measured_coverage(steps: Sequence[MatchedStep], table: tuple[KernelClass, ...] = TABLE) -> dict[str, Coverage]:
    """What of the kernels of each class was matched, most time first.

    Parameters
    ----------
    steps : sequence of MatchedStep
    table : tuple of KernelClass
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for step in steps:
        classes = row_classes(step.trace, table)
        seconds = (step.trace.end_ns - step.trace.start_ns) * 1e-9
        matched = np.array([row for pair in step.matches.pairs for row in pair.rows], dtype=np.int64)
        for place, rows in enumerate((matched, step.matches.unmatched_rows)):
            for name, took in zip(classes[rows].tolist(), seconds[rows].tolist(), strict=True):
                sums[name][place] += took
    return _sorted(sums)


def simulated_coverage(steps: Sequence[MatchedStep]) -> dict[str, Coverage]:
    """What of the simulated tasks of each class was matched, most time first; the host is left out.

    Parameters
    ----------
    steps : sequence of MatchedStep
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for step in steps:
        simulated = step.simulated
        matched = np.array([task for pair in step.matches.pairs for task in pair.tasks], dtype=np.int64)
        for place, tasks in enumerate((matched, step.matches.unmatched_tasks)):
            names = [simulated.operations[operation].category for operation in simulated.operation[tasks].tolist()]
            for name, took in zip(names, simulated.seconds[tasks].tolist(), strict=True):
                sums[name][place] += took
    return _sorted(sums)


def _sorted(sums: dict[str, list[float]]) -> dict[str, Coverage]:
    return {name: Coverage(*sums[name]) for name in sorted(sums, key=lambda name: (-sum(sums[name]), name))}
