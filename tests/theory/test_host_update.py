"""The optimizer on the host: memory it frees, time it takes."""

import pytest

from simmoe.cost.host_update import ADAM_RATE
from simmoe.errors import SpecError
from simmoe.pipeline import run, stage_memory
from simmoe.specs.scenario import Scenario
from tests.scenarios import small, zebra

ONE_STAGE = ("plan.pipeline_parallel=1", "plan.tensor_parallel=2")


def offloaded(fraction: float, *overrides: str) -> Scenario:
    return small(*ONE_STAGE, f"plan.optimizer_offload_fraction={fraction}", *overrides)


@pytest.mark.parametrize("fraction", [0.25, 1.0])
def test_the_share_on_the_host_leaves_the_device(fraction: float) -> None:
    (before,), (after,) = stage_memory(offloaded(0.0)), stage_memory(offloaded(fraction))
    assert after.optimizer == pytest.approx(before.optimizer * (1 - fraction))
    assert after._replace(optimizer=0.0) == before._replace(optimizer=0.0)


@pytest.mark.parametrize(("overlap", "combined"), [("true", max), ("false", sum)])
def test_a_step_takes_as_much_longer_as_the_host_needs(overlap: str, combined) -> None:
    """Adam on the device moves (1 - F) of its traffic; the host's wires and processors take the rest."""
    changed = f"plan.overlap_cpu_optimizer_d2h_h2d={overlap}"
    longer = run(offloaded(1.0, changed)).step_time_s - run(offloaded(0.0)).step_time_s
    (memory,) = stage_memory(offloaded(0.0))
    parameters = memory.optimizer / 12
    node = small().cluster.groups[0].node
    wire = node.pcie.bandwidth.value * node.pcie.achievable.value
    gradient = 4 if small().training.gradient_dtype == "fp32" else 2
    host = combined([parameters * gradient / wire, parameters * 2 / wire, parameters * 8 / ADAM_RATE])
    on_device = parameters * 28 / 3.35e12  # at the peak of its memory
    assert host - 3 * on_device < longer < host - on_device


def test_engines_agree_on_it_under_contention_too() -> None:
    scenario = offloaded(0.5)
    assert run(scenario, engine="simpy").step_time_s == run(scenario).step_time_s
    assert run(scenario, network="fluid").step_time_s >= run(scenario).step_time_s * (1 - 1e-9)


def test_both_sides_of_a_zebra_stage_offload() -> None:
    plain, away = zebra(), zebra("plan.optimizer_offload_fraction=1")
    assert all(memory.optimizer == 0.0 for memory in stage_memory(away))
    assert run(away).step_time_s > run(plain).step_time_s


@pytest.mark.parametrize("value", ["-0.1", "1.5", "nan"])
def test_a_share_lies_between_0_and_1(value: str) -> None:
    with pytest.raises(SpecError, match="optimizer_offload_fraction"):
        small(f"plan.optimizer_offload_fraction={value}")
