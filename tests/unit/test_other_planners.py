"""The planners that HAPMoE and HeterMoE are compared with: each keeps to its own space, and finds the best of it."""

from pathlib import Path

import pytest

from simmoe.planners.alpa import alpa
from simmoe.planners.hapmoe import hapmoe
from simmoe.planners.metis import metis
from simmoe.planners.proposal import Proposal, Ranking
from simmoe.planners.published_systems import deepspeed_moe, fsdp_ep, tutel
from simmoe.planners.random_plans import random_plans
from simmoe.planners.registry import Planner, Request, ask
from simmoe.planners.stage_model import StageModel
from simmoe.planners.uniform import fitting, grid, hand, simulated, uniform
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario

FOLDER = Path(__file__).parents[2] / "scenarios" / "papers" / "hapmoe"


def paper(name: str, *overrides: str) -> Scenario:
    """A scenario of HAPMoE's evaluation with a small model."""
    return load_scenario(FOLDER / f"{name}.yaml", ["model.num_layers=4", "training.global_batch_size=16", *overrides])


@pytest.fixture(scope="module")
def mixed() -> Scenario:
    return paper("16-1-s")


@pytest.fixture(scope="module")
def best(mixed: Scenario) -> Proposal:
    return hapmoe(mixed, top=1).best


def test_uniform_is_the_best_of_its_grid() -> None:
    """Every point that fits, simulated: none is faster than what the planner's model let through."""
    tiny = paper("16-1-h-s", "model.num_layers=2", "training.global_batch_size=16")
    model = StageModel(tiny)
    found = [one for point in grid(tiny) if (one := fitting(tiny, point, model)) is not None]
    assert len(found) > 50
    every = [simulated("uniform", tiny, one) for one in found[::3]]
    fastest = min(one.simulated_s for one in every if isinstance(one, Proposal))
    assert uniform(tiny, top=1).best.simulated_s <= fastest * (1 + 1e-9)


def test_uniform_stages_are_equal(mixed: Scenario) -> None:
    for one in uniform(mixed).proposals:
        stages = one.scenario.plan.stages
        for name in ("devices", "layers", "tensor_parallel", "data_parallel", "expert_parallel", "recompute"):
            assert len({getattr(stage, name) for stage in stages}) == 1


@pytest.mark.parametrize("planner", [uniform, metis, alpa, deepspeed_moe, tutel, fsdp_ep, random_plans])
def test_none_beats_the_search_that_may_do_all_they_do(mixed: Scenario, best: Proposal, planner) -> None:
    """FSDP apart, their plans are in HAPMoE's space; on unlike devices its best one is faster or the same."""
    ranking: Ranking = planner(mixed)
    assert ranking.proposals
    assert ranking.best.simulated_s >= best.simulated_s * (1 - 0.02)
    for one in ranking.proposals:
        assert one.free_bytes >= 0
        assert abs(one.planner_error) < 0.4


def test_metis_shares_experts_over_a_node_or_less(mixed: Scenario) -> None:
    for one in metis(mixed).proposals:
        for stage in one.scenario.plan.stages:
            assert stage.expert_parallel == min(8, stage.devices)
            assert stage.expert_tensor_parallel == 1
        assert sum(stage.devices for stage in one.scenario.plan.stages) == 16


def test_alpa_sees_one_kind_of_device_and_uses_all(mixed: Scenario) -> None:
    alike, ranking = paper("16-1-h-s", "training.global_batch_size=256"), alpa(mixed)
    assert "Ascend 910B" in ranking.best.why[0]
    assert all(sum(stage.devices for stage in one.scenario.plan.stages) == 16 for one in ranking.proposals)
    # Where all devices are alike, and the end of a step counts little, it is nearly as good as the whole search.
    assert alpa(alike).best.simulated_s <= 1.05 * hapmoe(alike, virtual=False, top=1).best.simulated_s


def test_systems_without_a_pipeline(mixed: Scenario) -> None:
    for one in (*deepspeed_moe(mixed).proposals, *tutel(mixed).proposals):
        assert len(one.scenario.plan.stages) == 1
        assert one.scenario.plan.sharding == "zero1"
    assert {one.plan.a2a_ffn_overlap_degree for one in deepspeed_moe(mixed).proposals} == {1}
    assert tutel(mixed).best.simulated_s <= deepspeed_moe(mixed).best.simulated_s
    for one in fsdp_ep(mixed).proposals:
        assert one.scenario.plan.sharding in {"zero2", "zero3"}
        assert len(one.scenario.plan.stages) == 1


def test_the_same_seed_draws_the_same_plans(mixed: Scenario) -> None:
    first, again, other = (random_plans(mixed, seed=seed) for seed in (1, 1, 2))
    assert [one.name for one in first.proposals] == [one.name for one in again.proposals]
    assert [one.name for one in first.proposals] != [one.name for one in other.proposals]
    assert "median" in first.remarks[0]


def test_the_plan_by_hand_has_a_node_for_each_stage(mixed: Scenario) -> None:
    stages = hand(mixed).best.scenario.plan.stages
    assert [(stage.devices, stage.tensor_parallel) for stage in stages] == [(8, 8), (8, 8)]


@pytest.mark.parametrize("planner", [p for p in Planner if p is not Planner.HETERO_PP])
def test_what_fits_nowhere_is_said(planner: Planner) -> None:
    """Mixtral-L on two small cards."""
    scenario = load_scenario(
        FOLDER / "16-1-l.yaml",
        [
            "cluster.groups=[{node: v100-16gb-x1, count: 2}]",
            "cluster.cross_group=null",
            "training.precision=fp16",
            "plan={recompute: full}",
            "training.global_batch_size=4",
        ],
    )
    ranking = ask(planner, scenario, Request(top=1))
    assert not ranking.proposals
    assert ranking.rejected
    assert all(one.reason for one in ranking.rejected)
