"""Traces of a scenario whose numbers are known to be others than the database's."""

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simmoe.calibration.calibrate import Calibration, Run, calibrate
from simmoe.calibration.fitted_numbers import candidates, with_values
from simmoe.calibration.matched_steps import matched_steps
from simmoe.calibration.trace import read_trace
from simmoe.engine.fast import simulate_fast
from simmoe.graph.build import build_step
from simmoe.pipeline import run
from simmoe.report.chrome_trace import write_trace
from simmoe.specs.base import spread_of
from simmoe.specs.inheritance import SAME_ARCHITECTURE
from simmoe.specs.scenario import Scenario


class Loop(NamedTuple):
    """What was found, and by what factor each candidate really differs from the database."""

    found: Calibration
    truth: np.ndarray
    files: tuple[Path, ...]

    def misses(self, within: float) -> dict[str, float]:
        """Relative errors of the numbers that are told to so much."""
        return {
            self.found.numbers[one.number].name: one.factor / self.truth[one.number] - 1
            for one in self.found.fit.fitted
            if one.half_width <= within
        }


def closed_loop(scenario: Scenario, folder: Path, *, noise: float = 0.0, perturbed: float = 0.3, seed: int = 7) -> Loop:
    """Simulate with other numbers, write the traces, and calibrate from the database's numbers.

    Each number is off by up to `perturbed`, but no more than 1.5 times the doubt that the database has in it.
    """
    result = run(scenario)
    numbers = candidates([result])
    draws = np.random.default_rng(seed)
    doubts = [1.5 * math.hypot(spread_of(number.quantity), SAME_ARCHITECTURE) for number in numbers]
    truth = np.exp(draws.uniform(-1.0, 1.0, len(numbers)) * np.minimum(perturbed, doubts))
    values = [number.quantity.value * factor for number, factor in zip(numbers, truth, strict=True)]
    step = build_step(with_values(scenario, numbers, values))
    graph = step.graph
    if noise:
        varied = graph.duration * np.maximum(0.1, 1 + noise * draws.standard_normal(len(graph)))
        graph = replace(graph, duration=varied)
    files = write_trace(simulate_fast(graph), step.ranks, folder)
    steps = matched_steps(result, [read_trace(path) for path in files])
    return Loop(calibrate([Run(result, steps)]), truth, files)
