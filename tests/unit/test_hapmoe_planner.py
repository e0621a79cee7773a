"""HAPMoE's planner on real models and clusters: what it predicts, what it finds, what it says where nothing fits."""

from pathlib import Path

import pytest

from simmoe.errors import SpecError
from simmoe.pipeline import run, stage_memory
from simmoe.planners.hapmoe import hapmoe
from simmoe.planners.pipeline_candidates import shape_for
from simmoe.planners.pipeline_search.brute import brute_force
from simmoe.planners.pipeline_search.exact import search
from simmoe.planners.pipeline_search.problem import held_bytes
from simmoe.planners.pipeline_tables import Sizes, plan_of, tables_of
from simmoe.planners.proposal import planned
from simmoe.planners.step_model import predict
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario

ROOT = Path(__file__).parents[2]
EXAMPLES = (
    "deepseek-v3-2048xh800",
    "llama-3-70b-64xh100",
    "mixtral-8x7b-64xh100",
    "qwen3-235b-256xh100",
    "small-moe-2xa40",
)


def paper(name: str, *overrides: str) -> Scenario:
    """A scenario of HAPMoE's evaluation."""
    return load_scenario(ROOT / "scenarios" / "papers" / "hapmoe" / f"{name}.yaml", list(overrides))


@pytest.fixture(scope="module")
def mixed() -> Scenario:
    """8 H800 and 8 910B, with a small model: a search takes less than a second."""
    return paper("16-1-s", "model.num_layers=6", "training.global_batch_size=32")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_planners_model_agrees_with_the_simulator(name: str) -> None:
    scenario = load_scenario(ROOT / "scenarios" / "examples" / f"{name}.yaml", [])
    assert predict(scenario).seconds == pytest.approx(run(scenario).step_time_s, rel=0.04)


def test_its_memory_is_that_of_the_simulator(mixed: Scenario) -> None:
    """Stage by stage, for every plan it finds: what fits in the search fits in the simulation."""
    tables = tables_of(mixed)
    plans = search(tables.problems, shape_for(mixed), plans=10, slack=0.2).plans
    assert len(plans) == 10
    for found in plans:
        plan, size = plan_of(tables, found)
        problem, _ = tables.problem(found.unit)
        expected = stage_memory(planned(mixed, plan, micro_batch_size=size))
        behind = range(len(found.stages) - 1, -1, -1)
        own = [held_bytes(problem, stage, number) for stage, number in zip(found.stages, behind, strict=True)]
        for mine, whole in zip(own, expected, strict=True):
            assert mine == pytest.approx(whole.total, rel=1e-6)


def test_faster_devices_get_more_layers_and_the_plan_beats_equal_stages(mixed: Scenario) -> None:
    best = hapmoe(mixed, top=1).best
    per_device = {
        "h800" if stage.first_device < 8 else "910b": stage.layers / stage.devices for stage in best.plan.stages
    }
    assert per_device["h800"] > 1.5 * per_device["910b"]
    assert best.simulated_s < run(mixed).step_time_s
    assert best.planner_error == pytest.approx(0.0, abs=0.05)


def test_brute_force_finds_no_better_plan() -> None:
    tiny = paper("16-1-s", "model.num_layers=4", "training.global_batch_size=8")
    exact, brute = (
        found(tables_of(tiny, sizes=Sizes(stages=(8,), units=(4, 8))).problems, shape_for(tiny)).pop()
        for found in (lambda *asked: list(search(*asked).plans), lambda *asked: list(brute_force(*asked)))
    )
    assert exact.seconds == pytest.approx(brute.seconds, rel=1e-12)


def test_exact_is_never_slower_than_the_papers_search(mixed: Scenario) -> None:
    exact, printed = (hapmoe(mixed, mode=mode, top=1).best for mode in ("exact", "paper"))
    assert exact.simulated_s <= printed.simulated_s * 1.001


def test_brute_force_refuses_what_takes_hours(mixed: Scenario) -> None:
    with pytest.raises(SpecError, match=r"--mode brute: .* plans are more than"):
        hapmoe(mixed, mode="brute")


def test_a_slow_network_between_types_changes_the_plan() -> None:
    """Between H800 and 910B 1 Gb/s instead of 200: fewer boundaries are crossed by larger micro-batches, or none."""
    scenarios = [
        paper("16-1-s", "model.num_layers=6", "training.global_batch_size=32", f"cluster.cross_group.link={link}")
        for link in ("roce-200", "ethernet-1")
    ]
    fast, slow = (hapmoe(scenario, top=1).best for scenario in scenarios)
    assert fast.plan != slow.plan
    assert fast.simulated_s < slow.simulated_s


def test_nothing_that_fits_is_said(mixed: Scenario) -> None:
    ranking = hapmoe(paper("16-1-l", "plan.optimizer_offload_fraction=0"), top=1)
    assert not ranking.proposals
    assert "memory" in ranking.rejected[0].reason
    with pytest.raises(SpecError, match="does not fit"):
        _ = ranking.best
