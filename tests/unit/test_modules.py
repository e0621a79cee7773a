"""Times of single modules."""

import pytest

from simmoe.errors import SpecError
from simmoe.explore.modules import module_s
from simmoe.pipeline import run
from simmoe.specs.data_folders import data_root
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario

MIXED = data_root() / "scenarios" / "examples" / "mixtral-8x7b-32xh100-32xa100.yaml"


def mixed(*overrides: str) -> Scenario:
    return load_scenario(MIXED, ["plan={}", "training.global_batch_size=64", *overrides])


@pytest.mark.parametrize("group", [0, 1], ids=["H100", "A100"])
@pytest.mark.parametrize(("part", "names"), [("attention", ("attention.",)), ("experts", ("moe.exp", "moe.act"))])
def test_the_kernels_are_those_of_a_step(part: str, names: tuple[str, ...], group: int) -> None:
    """One layer, one micro-batch, experts not shared: all kernels of the module in the simulated step."""
    scenario = mixed("model={base: mixtral-8x7b, num_layers: 1}")
    step = run(scenario)
    graph = step.timeline.graph
    kernels = [
        seconds
        for seconds, stream, operation in zip(
            graph.duration.tolist(), graph.stream.tolist(), graph.operation.tolist(), strict=True
        )
        if graph.streams[stream].rank == group
        and graph.streams[stream].name == "compute"
        and graph.operations[operation].name.startswith(names)
    ]
    assert module_s(scenario, part, group) == pytest.approx(sum(kernels), rel=1e-9)


def test_attention_grows_faster_than_the_sequence_and_experts_do_not() -> None:
    short, long = mixed("training.sequence_length=8192"), mixed("training.sequence_length=32768")
    assert module_s(long, "attention") > 6 * module_s(short, "attention")
    assert module_s(long, "experts") == pytest.approx(4 * module_s(short, "experts"), rel=0.05)


def test_a_dense_model_is_refused() -> None:
    with pytest.raises(SpecError, match="llama-3-8b has no experts"):
        module_s(mixed("model=llama-3-8b"), "experts")
