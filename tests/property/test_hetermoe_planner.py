"""The HeterMoE planner against trying everything, on small random clusters and models."""

import random

import pytest

from simmoe.pipeline import run
from simmoe.planners.hetermoe import exhaustive, plan
from simmoe.specs.scenario import Scenario
from tests.unlike import unlike

NODES = ("a40-x1", "v100-16gb-x1", "l40s-x1", "t4-x1")


def random_scenario(seed: int, least: int = 2, most: int = 5) -> Scenario:
    """Two kinds of GPU, some of either, and two or three layers; steps long enough not to wait for the host."""
    draw = random.Random(seed)
    first, second = draw.sample(NODES, 2)
    one = draw.randint(1, most - 1)
    return unlike(
        (first, one),
        (second, draw.randint(max(1, least - one), most - one)),
        layers=draw.choice([2, 3]),
        hidden=draw.choice([1024, 2048]),
        experts=draw.choice([4, 6]),
        batch=draw.choice([2, 4]),
        length=draw.choice([4096, 8192, 16384]),
    )


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_the_planner_is_within_two_percent_of_trying_everything(seed: int) -> None:
    scenario = random_scenario(seed)
    found, best = plan(scenario, compare=False), exhaustive(scenario)
    assert found.best.tokens_per_s >= 0.98 * best.best.tokens_per_s


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3, *range(5, 25)])
def test_so_it_is_on_more_clusters(seed: int) -> None:
    test_the_planner_is_within_two_percent_of_trying_everything(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_so_it_is_on_six_to_eight_gpus(seed: int) -> None:
    scenario = random_scenario(seed, least=6, most=8)
    found, best = plan(scenario, compare=False), exhaustive(scenario)
    assert found.best.tokens_per_s >= 0.98 * best.best.tokens_per_s


@pytest.mark.parametrize("seed", range(4))
def test_proposals_fit_and_their_order_is_that_of_the_simulation(seed: int) -> None:
    scenario = random_scenario(seed)
    found = plan(scenario, compare=False).proposals
    assert found
    results = [run(one.scenario) for one in found]
    assert all(result.fits for result in results)
    assert [result.tokens_per_s for result in results] == sorted((one.tokens_per_s for one in found), reverse=True)
    for one, result in zip(found, results, strict=True):
        assert one.scenario.training.tokens_per_step == scenario.training.tokens_per_step
        assert one.free_bytes >= 0
        assert one.simulated_s == result.step_time_s
