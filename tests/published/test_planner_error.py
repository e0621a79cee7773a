"""How well HAPMoE's planner predicts the simulation of its own plans, over the shipped scenarios."""

from pathlib import Path

import pytest

from simmoe.planners.hapmoe import hapmoe
from simmoe.planners.proposal import Ranking
from simmoe.specs.plan import Schedule
from simmoe.specs.reader import load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHIPPED = [
    *sorted((SCENARIOS / "examples").glob("*.yaml")),
    *sorted((SCENARIOS / "papers" / "hapmoe").glob("??-*.yaml")),
    *sorted((SCENARIOS / "papers" / "hetermoe").glob("??-*.yaml")),
]
QUICK = {"small-moe-2xa40", "qwen3-30b-a3b-8xb200", "16-1-s", "c1-w2", "o3-d2"}
MEAN, MOST, LOSS = 0.05, 0.12, 0.025
"""Of the planner's error, and of what its first choice under 1F1B loses to the simulator's among the ten best."""


def errors(path: Path) -> tuple[float, float]:
    """The planner's error on its best plan, and what is lost if the simulator ranks another one first."""
    ranking: Ranking = hapmoe(load_scenario(path), top=20)
    searched = [one for one in ranking.proposals if one.plan.schedule is Schedule.ONE_F_ONE_B]
    first = min(searched, key=lambda one: one.predicted_s)
    return abs(ranking.best.planner_error), first.simulated_s / min(one.simulated_s for one in searched) - 1


def assert_small(paths: list[Path]) -> None:
    found = {path.stem: errors(path) for path in paths}
    assert max(error for error, _ in found.values()) <= MOST, found
    assert sum(error for error, _ in found.values()) / len(found) <= MEAN, found
    assert max(loss for _, loss in found.values()) <= LOSS, found


def test_a_few_scenarios() -> None:
    assert_small([path for path in SHIPPED if path.stem in QUICK])


@pytest.mark.slow
def test_all_shipped_scenarios() -> None:
    assert len(SHIPPED) >= 40
    assert_small(SHIPPED)
