"""The planners' replay of virtual stages against its closed form and against the simulator."""

import pytest

from simmoe.pipeline import run
from simmoe.planners.interleaved_replay import StageChunks, interleaved_s
from simmoe.planners.stage_model import StageModel
from simmoe.planners.step_model import predict
from tests.scenarios import small


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (2, 4), (4, 2), (4, 4)])
def test_equal_stages_without_transfers(stages: int, chunks: int) -> None:
    """(M + (p - 1) / v) t (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2)."""
    scenario = small(
        f"plan.pipeline_parallel={stages}",
        f"plan.virtual_pipeline={chunks}",
        "plan.expert_parallel=4",
        "plan.schedule=interleaved",
        "model.num_layers=16",
        "training.global_batch_size=64",
    )
    one = StageChunks([1.0] * chunks, [2.0] * chunks, 0.0, 0.5)
    count = 64 // scenario.plan.widest
    expected = (count + (stages - 1) / chunks) * 3.0 * chunks + 0.5
    assert interleaved_s(scenario, [one] * stages) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        ("plan.virtual_pipeline=2",),
        ("plan.virtual_pipeline=4",),
        ("plan.virtual_pipeline=2", "plan.recompute=full"),
        ("plan.stage_layers=[3, 1, 2, 2]", "plan.virtual_pipeline=2"),
        ("plan.pipeline_parallel=4", "plan.virtual_pipeline=2", "plan.expert_parallel=4"),
        ("cluster.fabric.link=ethernet-1", "plan.virtual_pipeline=2"),
    ],
)
def test_it_agrees_with_the_simulator(changes: tuple[str, ...]) -> None:
    scenario = small("plan.schedule=interleaved", *changes)
    predicted = predict(scenario, StageModel(scenario))
    assert predicted.seconds == pytest.approx(run(scenario).step_time_s, rel=0.02)
    assert predicted.seconds == predicted.lower_s == predicted.upper_s
