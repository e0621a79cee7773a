"""Calibrated on four sizes of a small MoE on two processor cores, the simulator predicts five others."""

from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import pytest

from simmoe.calibration.calibrate import Calibration, calibrate
from simmoe.calibration.matched_steps import traced_run, traces_of, transfers_of
from simmoe.calibration.runs_file import TracedRun, read_runs
from simmoe.calibration.simulated import simulated_rank
from simmoe.calibration.step_comparison import Figures, combined, measured_figures, simulated_figures
from simmoe.pipeline import run as simulate
from simmoe.specs import catalog
from simmoe.specs.overlay import with_quantities
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario

LEAST_SHARE = 0.03  # of the step: smaller classes are not judged


class Proof(NamedTuple):
    """The calibration, and of each held-out run what was predicted and measured."""

    found: Calibration
    held_out: dict[str, tuple[Figures, Figures]]


def fitted(scenario: Scenario, found: Calibration) -> Scenario:
    """A scenario with the fitted numbers."""
    new: dict[str, dict[str, object]] = {}
    for one in found.fit.fitted:
        number = found.numbers[one.number]
        value = number.quantity.value * one.factor
        new.setdefault(number.part, {})[number.name] = number.quantity.model_copy(update={"value": value})
    return with_quantities(scenario, new)


def both(folder: Path, run: TracedRun, found: Calibration) -> tuple[Figures, Figures]:
    scenario = fitted(load_scenario(folder / "small-moe-2-cores.yaml", run.overrides), found)
    result = simulate(scenario)
    traces = traces_of(scenario, run.traces)
    measured = [
        combined(measured_figures(trace, transfers=transfers), median)
        for trace, transfers in zip(traces, transfers_of(traces), strict=True)
    ]
    return simulated_figures(simulated_rank(result, 0), result.step_time_s), combined(measured, fmean)


@pytest.fixture(scope="module")
def proof(repository: Path) -> Proof:
    folder = repository / "scenarios" / "proof"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMMOE_HARDWARE_PATH", str(folder / "hardware"))
        catalog.refresh()
        listed = read_runs(folder / "runs.csv")
        known = [
            traced_run(load_scenario(folder / "small-moe-2-cores.yaml", run.overrides), run.traces)
            for run in listed
            if not run.held_out
        ]
        found = calibrate(known)
        held_out = {run.name: both(folder, run, found) for run in listed if run.held_out}
    catalog.refresh()
    return Proof(found, held_out)


def test_some_sizes_are_held_out(proof: Proof):
    assert len(proof.held_out) >= 4
    assert len(proof.found.scenarios) >= 4


def test_the_median_step_is_predicted_within_10_percent(proof: Proof):
    errors = {name: simulated.step_s / measured.step_s - 1 for name, (simulated, measured) in proof.held_out.items()}
    assert median(map(abs, errors.values())) <= 0.10, errors


def test_the_median_of_each_class_is_predicted_within_15_percent(proof: Proof):
    errors: dict[str, list[float]] = {}
    for simulated, measured in proof.held_out.values():
        for name, took in measured.by_class.items():
            if took > LEAST_SHARE * measured.step_s and name in simulated.by_class:
                errors.setdefault(name, []).append(abs(simulated.by_class[name] / took - 1))
    medians = {name: median(found) for name, found in errors.items()}
    assert {"matrix products", "attention", "memory-bound"} <= set(medians)
    assert max(medians.values()) <= 0.15, medians


def test_the_guesses_before_were_worse(proof: Proof):
    measured = proof.found.measured
    before, after = abs(proof.found.before / measured - 1), abs(proof.found.fit.predicted / measured - 1)
    assert median(after.tolist()) < 0.6 * median(before.tolist())
