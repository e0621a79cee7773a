"""Elasticities equal finite differences of whole simulations, and add up where they must."""

import math

import pytest

from simmoe.explore.resources import resources_of, with_more
from simmoe.explore.sensitivity import sensitivities
from simmoe.pipeline import run
from simmoe.specs.scenario import Scenario
from tests.scenarios import small, zebra

CASES = {
    "pipeline and experts": small,
    "interleaved": lambda: small("plan.schedule=interleaved", "plan.virtual_pipeline=2"),
    "fp8 with overlap": lambda: small(
        "training.precision=mxfp8", "plan.pipeline_parallel=1", "plan.overlap_moe_expert_parallel_comm=true"
    ),
    "FSDP": lambda: small("plan.sharding=zero3", "plan.pipeline_parallel=1"),
    "two types of accelerators": zebra,
}


def difference(scenario: Scenario, name: str, step: float) -> float:
    """Central difference of the logarithm of the step time."""
    (resource,) = (one for one in resources_of(scenario) if one.name == name)
    less, more = (run(with_more(scenario, resource, factor)).step_time_s for factor in (1 / (1 + step), 1 + step))
    return math.log(more / less) / (2 * math.log1p(step))


@pytest.mark.parametrize("case", CASES)
def test_elasticities_are_finite_differences_of_simulations(case: str):
    scenario = CASES[case]()
    found = sensitivities(scenario)
    assert found.step_s == pytest.approx(run(scenario).step_time_s, rel=1e-12)
    for one in found.of:
        assert one.elasticity == pytest.approx(difference(scenario, one.resource, 0.01), rel=0.01, abs=1e-4), (
            one.resource
        )


def test_half_and_twice_are_simulations_too():
    scenario = small()
    found = {one.resource: one for one in sensitivities(scenario).of}
    for resource in resources_of(scenario):
        assert found[resource.name].half_s == pytest.approx(run(with_more(scenario, resource, 0.5)).step_time_s)
        assert found[resource.name].twice_s == pytest.approx(run(with_more(scenario, resource, 2.0)).step_time_s)


def test_more_of_anything_is_never_slower():
    for one in sensitivities(small()).of:
        assert one.elasticity <= 1e-9, one.resource
        assert one.twice_s <= one.half_s * (1 + 1e-9), one.resource


def test_everything_at_once_halves_the_step():
    scenario = small()
    for resource in resources_of(scenario):
        scenario = with_more(scenario, resource, 2.0)
    assert run(scenario).step_time_s < 0.58 * run(small()).step_time_s
