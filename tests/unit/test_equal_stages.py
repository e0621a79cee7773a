"""HAPMoE's search with equal stages: one rule for all clusters."""

from pathlib import Path

import pytest

from simmoe.planners.equal_stages import equal_stages
from simmoe.planners.hapmoe import hapmoe
from simmoe.planners.step_model import predict
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario

FOLDER = Path(__file__).parents[2] / "scenarios" / "papers" / "hapmoe"


def paper(name: str, *overrides: str) -> Scenario:
    return load_scenario(FOLDER / f"{name}.yaml", list(overrides))


@pytest.fixture(scope="module")
def mixed() -> Scenario:
    """8 H800 and 8 910B, with a small model."""
    return paper("16-1-s", "model.num_layers=6", "training.global_batch_size=32")


def test_stages_are_equal(mixed: Scenario):
    ranking = equal_stages(mixed, top=5)
    assert len(ranking.proposals) > 1
    for one in ranking.proposals:
        stages = one.scenario.plan.stages
        assert len({(stage.layers, stage.devices, stage.data_parallel) for stage in stages}) == 1
        assert sum(stage.devices for stage in stages) == 16
        assert sum(stage.layers for stage in stages) == 6
        assert one.predicted_s == predict(one.scenario).seconds
    assert ranking.best.simulated_s == min(one.simulated_s for one in ranking.proposals)


def test_unequal_stages_pay_on_unlike_devices(mixed: Scenario):
    assert hapmoe(mixed).best.simulated_s < 0.8 * equal_stages(mixed).best.simulated_s


def test_equal_stages_are_as_good_on_equal_devices():
    alike = paper("16-2-h-s", "model.num_layers=6", "training.global_batch_size=32")
    assert equal_stages(alike).best.simulated_s <= 1.02 * hapmoe(alike).best.simulated_s


def test_layers_that_no_stages_divide():
    """Five layers are one stage or five; 16 devices of two types are neither."""
    ranking = equal_stages(paper("16-1-s", "model.num_layers=5", "plan.pipeline_parallel=1"))
    assert ranking.proposals == ()
    assert ranking.rejected[-1].reason.startswith("no number of equal stages divides")


def test_models_that_are_too_large():
    ranking = equal_stages(paper("16-1-l", "plan.optimizer_offload_fraction=0"))
    assert ranking.proposals == ()
    assert ranking.rejected[-1].reason.startswith("does not fit")
