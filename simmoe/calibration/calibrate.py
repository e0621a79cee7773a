"""From traces and benchmarks to fitted numbers of the hardware database."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simmoe.calibration.bench_rows import CollectiveRow, ProductRow
from simmoe.calibration.fit import Fit, fit
from simmoe.calibration.fitted_numbers import candidates, with_values
from simmoe.calibration.observations import FloatArray, MatchedStep, observations
from simmoe.calibration.prediction import Evidence, Predictor
from simmoe.report.result import Result
from simmoe.specs.base import spread_of
from simmoe.specs.inheritance import SAME_ARCHITECTURE
from simmoe.specs.numbers import Number
from simmoe.specs.scenario import Scenario


class Calibration(NamedTuple):
    """What was fitted.

    Attributes
    ----------
    scenario : Scenario
        With the fitted numbers.
    numbers : tuple of Number
        The candidates, as they were.
    fit : Fit
        Over them.
    evidence : Evidence
        What was measured.
    before : array of float
        What the scenario said of it at the start [s].
    """

    scenario: Scenario
    numbers: tuple[Number, ...]
    fit: Fit
    evidence: Evidence
    before: FloatArray


def calibrate(
    result: Result,
    steps: Sequence[MatchedStep],
    products: Sequence[ProductRow] = (),
    collectives: Sequence[CollectiveRow] = (),
) -> Calibration:
    """Fit the numbers that a scenario rests on to what was measured.

    Parameters
    ----------
    result : Result
        Of the scenario as the database has it.
    steps : sequence of MatchedStep
        Of traces of that scenario.
    products : sequence of ProductRow
        Of its first accelerator.
    collectives : sequence of CollectiveRow
        Of its first nodes.

    Returns
    -------
    Calibration

    Raises
    ------
    SpecError
        If a benchmark does not belong to the scenario, or scipy is not installed.
    """
    evidence = Evidence(tuple(observations(steps)), tuple(products), tuple(collectives))
    numbers = candidates(result, products, collectives)
    scenario = result.scenario
    predictor = Predictor(scenario, evidence)
    start = [number.quantity.value for number in numbers]

    def predicted(factors: FloatArray) -> FloatArray:
        changed = np.flatnonzero(factors != 1.0).tolist()
        values = [start[i] * float(factors[i]) for i in changed]
        return predictor.seconds(with_values(scenario, [numbers[i] for i in changed], values))

    # As in `simmoe.specs.inheritance`: what the numbers of one machine are off by on another of its kind.
    spreads = np.array([math.hypot(spread_of(number.quantity), SAME_ARCHITECTURE) for number in numbers])
    found = fit(evidence.seconds, evidence.errors, predicted, [number.path for number in numbers], spreads)
    chosen = [numbers[one.number] for one in found.fitted]
    values = [start[one.number] * one.factor for one in found.fitted]
    return Calibration(with_values(scenario, chosen, values), numbers, found, evidence, predictor.seconds(scenario))
