"""Simulate, write traces, calibrate: the numbers that made the traces come back."""

from pathlib import Path

import pytest

from simmoe.calibration.fit import NOT_SEEN
from simmoe.calibration.trace import read_trace
from simmoe.pipeline import run
from tests.closed_loop import Loop, closed_loop
from tests.scenarios import small

# Told by any trace of an MoE step, whatever the doubt in launches and roots.
TOLD = {
    "efficiency.gemm[bf16].sustained",
    "efficiency.grouped_gemm[bf16 te].sustained",
    "efficiency.memory_bound[elementwise].memory",
    "efficiency.grouped_gemm[bf16 te].wgrad",
    "host_attention",
}


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    return closed_loop(small(), tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    return closed_loop(small(), tmp_path_factory.mktemp("noisy"), noise=0.05)


def test_every_identifiable_number_is_recovered_within_1_percent(exact: Loop):
    found = exact.misses(within=0.01)
    assert set(found) >= TOLD | {"efficiency.gemm[bf16].launch", "achievable"}
    assert max(abs(miss) for miss in found.values()) <= 0.01, found


def test_the_others_lie_in_their_intervals(exact: Loop):
    bounds = {exact.found.numbers[one.number].name: one.half_width for one in exact.found.fit.fitted}
    for name, miss in exact.misses(within=1.0).items():
        assert abs(miss) <= max(0.01, 1.5 * bounds[name]), (name, miss, bounds[name])


def test_with_5_percent_of_noise_within_3_percent(noisy: Loop):
    found = noisy.misses(within=0.03)
    assert set(found) >= TOLD
    assert max(abs(miss) for miss in found.values()) <= 0.03, found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_with_noise_and_other_starts(tmp_path: Path, seed: int):
    found = closed_loop(small(), tmp_path / "traces", noise=0.05, seed=seed).misses(within=0.03)
    assert len(found) >= 5
    assert max(abs(miss) for miss in found.values()) <= 0.03, found


def test_what_cannot_be_told_is_said_with_its_reason(noisy: Loop):
    reasons = {noisy.found.numbers[one.number].name: one.reason for one in noisy.found.fit.left}
    assert "not told apart from" in reasons["host_router"]
    assert reasons["collectives[all_to_all 8].small.latency"] == NOT_SEEN
    fitted = {one.number for one in noisy.found.fit.fitted}
    assert fitted.isdisjoint({one.number for one in noisy.found.fit.left})
    assert len(fitted) + len(noisy.found.fit.left) == len(noisy.found.numbers)


def test_the_calibrated_scenario_takes_as_long_as_its_traces(exact: Loop):
    measured = max(int(trace.end_ns.max()) for trace in map(read_trace, exact.files)) * 1e-9
    assert run(exact.found.scenarios[0]).step_time_s == pytest.approx(measured, rel=0.01)
    assert run(small()).step_time_s != pytest.approx(measured, rel=0.05)
