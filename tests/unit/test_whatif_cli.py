"""``simmoe whatif`` and ``simmoe sensitivity``: tables, JSON and pictures."""

import json
from pathlib import Path

import pytest

from simmoe.pipeline import run
from tests.command_line import Simmoe, in_folder
from tests.scenarios import SMALL, small


@pytest.fixture
def simmoe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simmoe:
    return in_folder(tmp_path, monkeypatch, capsys)


def test_whatif_compares_two_simulations(simmoe: Simmoe, tmp_path: Path):
    change = ("--set", "cluster.fabric.bandwidth=100 Gb/s")
    outcome = simmoe("whatif", SMALL, *change, "--plot", "both.svg")
    assert (outcome.status, outcome.err) == (0, "")
    assert "before and after cluster.fabric.bandwidth=100 Gb/s" in outcome.out
    assert (tmp_path / "both.svg").read_text().count("one step of") == 2
    found = json.loads(simmoe("whatif", SMALL, *change, "--json", "-").out)
    assert found["before"]["step_time_s"] == run(small()).step_time_s
    assert found["after"]["step_time_s"] == run(small("cluster.fabric.bandwidth=100 Gb/s")).step_time_s
    assert found["after"]["step_time_s"] > found["before"]["step_time_s"]


def test_what_is_kept_holds_on_both_sides(simmoe: Simmoe):
    found = json.loads(
        simmoe("whatif", SMALL, "--keep", "model.num_layers=4", "--set", "plan.schedule=gpipe", "--json", "-").out
    )
    assert found["before"]["step_time_s"] == run(small("model.num_layers=4")).step_time_s


def test_whatif_says_when_a_plan_does_not_fit(simmoe: Simmoe):
    outcome = simmoe("whatif", SMALL, "--set", "training.micro_batch_size=8", "--set", "training.sequence_length=32768")
    assert outcome.status == 0
    assert "does not fit into memory after the change" in outcome.out


def test_either_side_may_be_planned_anew(simmoe: Simmoe):
    sides = ("--planner", "uniform", "--keep", "plan={expert_parallel: 8}", "--keep", "cluster.groups.0.count=1")
    found = json.loads(simmoe("whatif", SMALL, *sides, "--set", "cluster.groups.0.count=2", "--json", "-").out)
    assert found["after"]["tokens_per_s"] > 1.5 * found["before"]["tokens_per_s"]
    assert simmoe("whatif", SMALL, "--set", "cluster.faults=[{device: 0, slowdown: 1.2}]").status == 0
    assert simmoe("whatif", SMALL, "--set", "routing={kind: dirichlet, concentration: 0.5}").status == 0


@pytest.mark.parametrize("changes", [("--set", "plan.tensor=2"), ("--set", "nonsense"), ()])
def test_wrong_changes_are_refused(simmoe: Simmoe, changes: tuple[str, ...]):
    outcome = simmoe("whatif", SMALL, *changes)
    assert (outcome.status, outcome.out) == (2, "")


def test_sensitivity_prints_writes_and_draws(simmoe: Simmoe, tmp_path: Path):
    outcome = simmoe("sensitivity", SMALL, "--plot", "tornado.svg", "--json", "found.json")
    assert (outcome.status, outcome.err) == (0, "")
    assert "expert matrix products of h100-sxm5-80gb" in outcome.out
    assert "change of the step time" in (tmp_path / "tornado.svg").read_text()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["step_time_s"] == run(small()).step_time_s
    assert found["resources"][0]["elasticity"] < -0.1
