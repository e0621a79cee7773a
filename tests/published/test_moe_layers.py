"""Single MoE layers on eight H100, forward and backward, against the times of Megatron-LM's functional tests.

The benchmark is short, hides the launch behind other work and times an ``MoELayer`` alone: no norm, no residual, and no
shared expert, which its configuration leaves out.
"""

import csv
import statistics
from pathlib import Path

import pytest

from simmoe.cost.backward import backward
from simmoe.cost.model import StageCost
from simmoe.cost.moe import moe_layer
from simmoe.cost.shard import shard_of
from simmoe.specs.scenario import Scenario
from tests.scenarios import small

LAYERS = [f"GC-{number:03d}" for number in range(1, 13)]
COMMON = (
    "cluster.groups.0.count=1",
    "model.num_layers=1",
    "plan.pipeline_parallel=1",
    "training.global_batch_size=8",
    "training.sustained=false",
)
# Four local experts behind group-limited routing; one local expert.
MODELS = {
    "hidden=7168": (
        "model=deepseek-v3",
        "model.mtp_layers=0",
        "model.moe.num_experts=32",
        "model.moe.first_dense_layers=0",
        "model.moe.shared_expert_ffn_hidden_size=0",
    ),
    "hidden=4096": ("model=mixtral-8x7b",),
}
PRECISIONS = {"bf16": "bf16", "fp8 blockwise e4m3": "fp8-blockwise"}
DISPATCHERS = {"alltoall": "alltoall", "flex/DeepEP": "deepep", "flex/HybridEP": "hybridep"}
MEAN, WORST = 0.07, 0.20


@pytest.fixture(scope="module")
def layers(shared: Path) -> dict[str, dict[str, str]]:
    with (shared / "ground_truth" / "moe_layer_times.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def scenario(row: dict[str, str]) -> Scenario:
    model, *_ = row["config"].split(";")
    return small(
        *MODELS[model],
        *COMMON,
        f"plan.dispatcher={DISPATCHERS[row['dispatcher']]}",
        f"training.precision={PRECISIONS[row['precision']]}",
    )


def errors(row: dict[str, str]) -> tuple[float, float]:
    """Predicted/measured - 1 of the forward and the backward pass."""
    case = scenario(row)
    cost = StageCost(case, 0, 0)
    shard = shard_of(case.plan.stages[0], case.plan, case.training, case.routing)
    operators = [one for one in moe_layer(case.model, shard) if one.name not in {"moe.norm", "moe.residual"}]
    forward = sum(cost.seconds(one) for one in operators)
    gradients = sum(cost.seconds(gradient) for one in operators for gradient in backward(one))
    return forward * 1e3 / float(row["forward_ms"]) - 1, gradients * 1e3 / float(row["backward_ms"]) - 1


@pytest.mark.parametrize("id", LAYERS)
def test_a_layer_takes_what_it_takes(layers: dict[str, dict[str, str]], id: str) -> None:
    forward, gradients = errors(layers[id])
    assert abs(forward) <= WORST, f"{layers[id]['precision']} {layers[id]['dispatcher']} forward {forward:+.0%}"
    assert abs(gradients) <= WORST, f"{layers[id]['precision']} {layers[id]['dispatcher']} backward {gradients:+.0%}"


def test_layers_are_met_on_average(layers: dict[str, dict[str, str]]) -> None:
    found = [abs(error) for id in LAYERS for error in errors(layers[id])]
    assert len(found) == 24
    assert statistics.mean(found) <= MEAN


def test_a_long_run_is_slower_than_a_benchmark(layers: dict[str, dict[str, str]]) -> None:
    case = scenario(layers["GC-007"])
    long = small(*MODELS["hidden=4096"], *COMMON[:-1], "plan.dispatcher=alltoall")
    operator = next(
        one
        for one in moe_layer(case.model, shard_of(case.plan.stages[0], case.plan, case.training, case.routing))
        if one.name == "moe.expert_up"
    )
    assert StageCost(long, 0, 0).seconds(operator) > 1.1 * StageCost(case, 0, 0).seconds(operator)
