"""The numbers that a report says a run relied on are those that its result depends on, all of them and no others."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simmoe.pipeline import run
from simmoe.report.evidence import numbers_used
from simmoe.report.uncertainty import step_interval
from simmoe.specs.base import Quantity, Spec
from simmoe.specs.numbers import Number, numbers_of
from simmoe.specs.scenario import Scenario
from tests.scenarios import small

Change = Callable[[Quantity], Quantity]


def changed(spec: Spec, change: Change) -> Any:
    """A copy of a spec with every number replaced; parts without a changed number are kept as they are."""
    update = {}
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        new = tuple(_one(inner, change) for inner in value) if isinstance(value, tuple) else _one(value, change)
        if (any(a is not b for a, b in zip(value, new, strict=True))) if isinstance(value, tuple) else new is not value:
            update[name] = new
    return spec.model_copy(update=update) if update else spec


def _one(value: Any, change: Change) -> Any:
    if isinstance(value, Quantity):
        return change(value)
    return changed(value, change) if isinstance(value, Spec) else value


def scaled(scenario: Scenario, wanted: set[int], factor: float) -> Scenario:
    """The scenario with some numbers (by identity) multiplied."""

    def change(quantity: Quantity) -> Quantity:
        if id(quantity) not in wanted:
            return quantity
        return quantity.model_copy(update={"value": quantity.value * factor or factor})

    found = changed(scenario, change)
    assert isinstance(found, Scenario)
    return found


def outcome(scenario: Scenario) -> tuple[object, ...]:
    """What a user reads off a run: times and their interval, sizes, cost and energy."""
    result = run(scenario)
    return (
        tuple(sorted(result.metrics.breakdown_s.items())),
        result.step_time_s,
        tuple(memory.total for memory in result.memory),
        result.fits,
        result.mfu,
        result.cost_usd_per_million_tokens,
        result.energy_kwh_per_million_tokens,
        step_interval(result),
    )


def every_number(scenario: Scenario) -> Iterator[Number]:
    """The numbers of all parts of a scenario, used or not."""
    cluster = scenario.cluster
    for fabric in filter(None, (cluster.fabric, cluster.cross_group)):
        yield from numbers_of(fabric.link, f"link {fabric.link.id}")
    for node in (group.node for group in cluster.groups):
        yield from numbers_of(node, f"node {node.id}")
        yield from numbers_of(node.accelerator, f"accelerator {node.accelerator.id}")
        for link in (node.pcie, node.scale_up.link):
            yield from numbers_of(link, f"link {link.id}")
    software = scenario.training.software
    yield from numbers_of(software, f"software {software.id}")


CASES = {
    "as it is": (),
    "deepep over nodes": (
        *("plan.dispatcher=deepep", "model.moe.num_experts=16", "plan.expert_parallel=16", "plan.pipeline_parallel=1"),
        "plan.recompute=full",
    ),
    "all-to-all over nodes": (
        *("model.moe.num_experts=16", "plan.expert_parallel=16", "plan.pipeline_parallel=1", "plan.recompute=full"),
    ),
    "dense, fp8, tensor parallel": (
        *("model=llama-2-7b", "plan.expert_parallel=1", "plan.tensor_parallel=4", "training.precision=fp8-current"),
    ),
    "no ports": ("cluster.groups.0.count=1", "plan.pipeline_parallel=1", "plan.recompute=full"),
    "overlapped": (
        "plan.overlap_moe_expert_parallel_comm=true",
        "plan.virtual_pipeline=2",
        "plan.schedule=interleaved",
    ),
    "PCIe boxes": (
        "cluster.groups=[{node: l40s-x8, count: 2}]",
        *("cluster.fabric={link: ethernet-100, topology: flat}", "model.num_layers=2", "plan.recompute=full"),
    ),
    "unfused attention": ("training.software=megatron-lm-2021", "training.precision=fp16"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_number_that_is_not_listed_changes_nothing(case: str) -> None:
    scenario = small(*CASES[case])
    listed = {id(number.quantity) for number in numbers_used(run(scenario))}
    # Which attention kernel is taken depends on the rates of those that are not.
    others = {
        id(number.quantity)
        for number in every_number(scenario)
        if not (number.name.startswith("efficiency.attention[") and number.name.endswith("].compute"))
    }
    unlisted = others - listed
    assert len(unlisted) > 20
    before = outcome(scenario)
    for factor in (0.5, 1.5):
        assert outcome(scaled(scenario, unlisted, factor)) == before


def test_everything_that_is_listed_changes_something() -> None:
    scenario = small()
    before = outcome(scenario)

    def matters(number: Number) -> bool:
        return any(outcome(scaled(scenario, {id(number.quantity)}, factor)) != before for factor in (0.02, 0.5))

    # A fit is relied on as a whole: its numbers for other sizes of message are idle here.
    entries: dict[str, list[Number]] = {}
    for number in numbers_used(run(scenario)):
        entry, bracket, _ = number.path.rpartition("]")
        entries.setdefault(entry if bracket else number.path, []).append(number)
    assert [entry for entry, numbers in entries.items() if not any(map(matters, numbers))] == []
