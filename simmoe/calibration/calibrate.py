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
from simmoe.errors import SpecError
from simmoe.report.result import Result
from simmoe.specs.base import spread_of
from simmoe.specs.inheritance import SAME_ARCHITECTURE
from simmoe.specs.numbers import Number
from simmoe.specs.scenario import Scenario


class Run(NamedTuple):
    """A scenario as the database has it, and what was traced of it."""

    result: Result
    steps: tuple[MatchedStep, ...]


class Calibration(NamedTuple):
    """What was fitted.

    Attributes
    ----------
    scenarios : tuple of Scenario
        Of each run, with the fitted numbers.
    numbers : tuple of Number
        The candidates, as they were.
    fit : Fit
        Over them.
    evidence : tuple of Evidence
        What was measured: of each run, then in benchmarks.
    before : array of float
        What the scenarios said of it at the start [s].
    """

    scenarios: tuple[Scenario, ...]
    numbers: tuple[Number, ...]
    fit: Fit
    evidence: tuple[Evidence, ...]
    before: FloatArray

    @property
    def measured(self) -> FloatArray:
        """Of everything [s]."""
        return np.concatenate([part.seconds for part in self.evidence])

    @property
    def categories(self) -> tuple[str, ...]:
        """The class of each."""
        return tuple(name for part in self.evidence for name in part.categories)


def calibrate(
    runs: Sequence[Run], products: Sequence[ProductRow] = (), collectives: Sequence[CollectiveRow] = ()
) -> Calibration:
    """Fit the numbers that scenarios rest on to what was measured.

    Parameters
    ----------
    runs : sequence of Run
        At least one, of the same machines.
    products : sequence of ProductRow
        Of the first accelerator of the first run.
    collectives : sequence of CollectiveRow
        Of its first nodes.

    Returns
    -------
    Calibration

    Raises
    ------
    SpecError
        If nothing that was measured belongs to the scenarios, a benchmark does not, or scipy is not installed.
    """
    scenarios = [run.result.scenario for run in runs]
    evidence = [Evidence(tuple(observations(run.steps))) for run in runs]
    owners = list(scenarios)
    if products or collectives:
        evidence.append(Evidence((), tuple(products), tuple(collectives)))
        owners.append(scenarios[0])
    predictors = [Predictor(owner, part) for owner, part in zip(owners, evidence, strict=True)]
    numbers = candidates([run.result for run in runs], products, collectives)
    start = [number.quantity.value for number in numbers]

    def predicted(factors: FloatArray) -> FloatArray:
        changed = np.flatnonzero(factors != 1.0).tolist()
        values = [start[i] * float(factors[i]) for i in changed]
        own = [numbers[i] for i in changed]
        return np.concatenate(
            [p.seconds(with_values(owner, own, values)) for p, owner in zip(predictors, owners, strict=True)]
        )

    # As in `simmoe.specs.inheritance`: what the numbers of one machine are off by on another of its kind.
    spreads = np.array([math.hypot(spread_of(number.quantity), SAME_ARCHITECTURE) for number in numbers])
    if not any(map(len, (one for part in evidence for one in part))):
        raise SpecError(
            ["calibrate: no measured kernel has a counterpart in the scenario, give the scenario of that run"]
        )
    measured, errors = (np.concatenate([getattr(part, name) for part in evidence]) for name in ("seconds", "errors"))
    found = fit(measured, errors, predicted, [number.path for number in numbers], spreads)
    chosen = [numbers[one.number] for one in found.fitted]
    values = [start[one.number] * one.factor for one in found.fitted]
    fitted = tuple(with_values(scenario, chosen, values) for scenario in scenarios)
    return Calibration(fitted, numbers, found, tuple(evidence), predicted(np.ones(len(numbers))))
