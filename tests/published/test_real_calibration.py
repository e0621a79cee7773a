"""A real trace of Megatron-LM on eight A100 beside its scenario, before and after calibration on half of the ranks."""

from pathlib import Path

import numpy as np
import pytest

from simmoe.calibration.calibrate import Calibration, Run, calibrate
from simmoe.calibration.coverage import measured_coverage
from simmoe.calibration.matched_steps import matched_steps, traces_of, transfers_of
from simmoe.calibration.observations import observations
from simmoe.calibration.prediction import Evidence, Predictor
from simmoe.calibration.step_comparison import measured_figures
from simmoe.calibration.trace import Trace
from simmoe.pipeline import run
from simmoe.report.result import Result
from simmoe.specs.reader import load_scenario

SCENARIO = Path(__file__).parents[1] / "files" / "gpt-8xa100.yaml"


@pytest.fixture(scope="module")
def result() -> Result:
    return run(load_scenario(SCENARIO))


@pytest.fixture(scope="module")
def traces(shared: Path, result: Result) -> list[Trace]:
    names = [f"astra-sim__megatron_tp8_rank{rank}.json.gz" for rank in range(8)]
    return traces_of(result.scenario, [shared / "traces" / name for name in names])


@pytest.fixture(scope="module")
def found(result: Result, traces: list[Trace]) -> Calibration:
    return calibrate([Run(result, matched_steps(result, traces[:4]))])


def test_nearly_all_of_the_trace_finds_its_operator(result: Result, traces: list[Trace]):
    shares = {name: part.share for name, part in measured_coverage(matched_steps(result, traces)).items()}
    assert min(shares[name] for name in ("gemm", "attention", "norm", "comm", "elementwise")) > 0.94, shares


def test_exchanges_without_their_waiting_are_as_the_database_says(result: Result, traces: list[Trace]):
    measured = measured_figures(traces[0], transfers=transfers_of(traces)[0])[0].by_class["all_reduce"]
    graph = result.timeline.graph
    own = [n for n, one in enumerate(graph.operations) if one.category == "all_reduce" and one.phase == "forward"]
    first = [stream.rank == 0 for stream in graph.streams]
    chosen = np.isin(graph.operation, own) & np.array(first)[graph.stream]
    simulated = float(graph.duration[chosen].sum())
    assert simulated == pytest.approx(measured, rel=0.03)


def test_other_ranks_are_predicted(result: Result, traces: list[Trace], found: Calibration):
    others = Evidence(tuple(observations(matched_steps(result, traces[4:]))))
    predictor = Predictor(result.scenario, others)
    products = [n for n, name in enumerate(others.categories) if name in {"gemm", "attention"}]
    weights = [others.observed[n].samples for n in products]
    measured = sum(others.seconds[n] * w for n, w in zip(products, weights, strict=True))
    before, after = (
        sum(predictor.seconds(scenario)[n] * w for n, w in zip(products, weights, strict=True))
        for scenario in (result.scenario, found.scenarios[0])
    )
    assert abs(after / measured - 1) < 0.03
    assert abs(before / measured - 1) < 0.2
