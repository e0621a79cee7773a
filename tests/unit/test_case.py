"""Scenarios in notebooks: changes, simulations, comparisons and sweeps, and how they show themselves."""

import matplotlib as mpl
import pytest

import simmoe
from simmoe.errors import SpecError
from simmoe.explore.sliders import sliders
from simmoe.pipeline import run
from tests.scenarios import SMALL, small


@pytest.fixture
def case():
    return simmoe.load(SMALL)


def test_changes_make_new_cases(case):
    other = case.with_({"plan.pipeline_parallel": 1}, training__global_batch_size=128)
    assert other.scenario == small("plan.pipeline_parallel=1", "training.global_batch_size=128")
    assert case.scenario == small()
    assert other.with_(plan__pipeline_parallel=2).simulate().step_time_s == run(
        small("training.global_batch_size=128")
    ).step_time_s  # fmt: skip


def test_a_simulation_is_that_of_the_pipeline_and_shows_itself(case):
    found = case.simulate()
    assert found.step_time_s == run(small()).step_time_s == found.figures["step_time_s"]
    frame = found.to_pandas()
    assert list(frame["stage"]) == [0, 1]
    html = found._repr_html_()
    assert "step time" in html
    assert "grouped_gemm" in html
    assert isinstance(found.plot_gantt(), mpl.figure.Figure)


def test_texts_are_escaped_in_tables(case):
    assert "&lt;script&gt;" in case.with_(name="<script>")._repr_html_()
    assert "<script>" not in case.with_(name="<script>").simulate()._repr_html_()


def test_planners_are_compared(case):
    found = case.compare(["uniform"])
    assert [row["planner"] for row in found.rows][1:] == ["uniform"]
    assert len(found.to_pandas()) == 2
    assert "uniform" in found._repr_html_()


def test_sweeps_run_here(case):
    found = case.sweep(grid={"plan.pipeline_parallel": [1, 2, 3]}, where=["plan.pipeline_parallel != 1"])
    assert [row["plan.pipeline_parallel"] for row in found.rows] == [2, 3]
    assert found.rows[0]["step_time_s"] == run(small()).step_time_s
    assert found.rows[1]["status"] == "infeasible"
    assert found.rows[1]["reason"]


def test_sensitivities_are_a_table(case):
    assert {"resource", "elasticity", "half_s", "twice_s"} == set(case.sensitivity().rows[0])


def test_wrong_keys_are_told_when_they_are_used(case):
    with pytest.raises(SpecError, match="tensor_parallell"):
        _ = case.with_(plan__tensor_parallell=2).scenario


def test_sliders_answer_at_every_change(case):
    pytest.importorskip("ipywidgets", reason="no ipywidgets: pip install -e .[notebooks]")
    box = sliders(case, {"plan.pipeline_parallel": [2, 1, 3], "training.global_batch_size": [64, 128]})
    pipeline, batch, answer = box.children
    assert answer.value == case.simulate()._repr_html_()
    batch.value = 128
    assert answer.value == case.with_(training__global_batch_size=128).simulate()._repr_html_()
    pipeline.value = 3
    assert "cannot be simulated" in answer.value
    assert "pipeline_parallel" in answer.value
    pipeline.value = 1
    assert "step time" in answer.value
