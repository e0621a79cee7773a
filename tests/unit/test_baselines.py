"""The baselines of HeterMoE as planners: EP, DistEP, EP (Ideal), heterogeneous pipelines."""

import math

import pytest

from simmoe.pipeline import run, stage_memory
from simmoe.planners.baselines import alone, batch_sizes, expert_parallel, ideal
from simmoe.planners.disaggregated import disaggregated
from simmoe.planners.hetermoe import plan
from simmoe.planners.hetero_pipeline import hetero_pipeline
from simmoe.planners.proposal import Proposal, planned
from simmoe.planners.zebra_shapes import Limits
from simmoe.specs.plan import Plan, Recompute
from tests.unlike import unlike

FULL = Recompute(granularity="full")
A40_V100 = (("a40-x1", 2), ("v100-16gb-x1", 2))


# ---------------------------------------------------------------- EP


def test_ep_spans_all_devices_and_is_what_the_simulator_says() -> None:
    scenario = unlike(*A40_V100, batch=16)
    best = expert_parallel(scenario, top=1).best
    assert best.plan.expert_parallel == 4
    assert best.tokens_per_s == run(best.scenario).tokens_per_s


def test_ep_is_the_best_of_its_micro_batches_and_degrees() -> None:
    scenario = unlike(*A40_V100, batch=16)
    best = expert_parallel(scenario, top=1).best
    for size in (1, 2, 4):
        for degree in (1, 2, 4):
            uniform = Plan(expert_parallel=4, a2a_ffn_overlap_degree=degree, recompute=FULL)
            other = run(planned(scenario, uniform, micro_batch_size=size))
            assert (
                not other.fits or best.tokens_per_s >= other.tokens_per_s * (1 - 1e-9) or size != best.micro_batch_size
            )


def test_degree_and_micro_batch_can_be_fixed() -> None:
    found = expert_parallel(unlike(*A40_V100, batch=16), degree=2, micro_batch_size=1)
    assert [(one.plan.a2a_ffn_overlap_degree, one.micro_batch_size) for one in found.proposals] == [(2, 1)]


def test_a_batch_that_does_not_divide_is_refused_with_the_reason() -> None:
    found = expert_parallel(unlike(*A40_V100, batch=6))
    assert not found.proposals or found.best.plan.pipeline_parallel > 1
    assert any("6 sequences a step do not divide over 4 devices" in one.reason for one in found.rejected)


def test_stages_are_added_until_the_model_fits() -> None:
    scenario = unlike(("t4-x1", 2), ("v100-16gb-x1", 2), layers=22, hidden=2048, experts=2, batch=8, length=2048)
    found = expert_parallel(scenario)
    assert found.best.plan.pipeline_parallel == 2
    assert any("lacks" in one.reason for one in found.rejected)


def test_batch_sizes_are_powers_of_two_from_above() -> None:
    assert batch_sizes(24) == [8, 4, 2, 1]
    assert batch_sizes(3) == [1]


# ---------------------------------------------------------------- EP (Ideal)


def test_ideal_adds_what_each_type_does_alone() -> None:
    scenario = unlike(("a40-x1", 2), ("v100-16gb-x1", 4), batch=24)
    found = ideal(scenario)
    assert [part.scenario.cluster.devices for part in found.parts] == [2, 4]
    assert [part.scenario.training.global_batch_size for part in found.parts] == [8, 16]
    assert found.tokens_per_s == sum(run(part.scenario).tokens_per_s for part in found.parts)


def test_a_type_that_cannot_hold_the_model_adds_nothing() -> None:
    scenario = unlike(("l40s-x1", 2), ("v100-16gb-x1", 1), layers=3, hidden=2048, batch=12)
    found = ideal(scenario)
    assert [part.scenario.cluster.accelerators[0].id for part in found.parts] == ["l40s"]
    assert any("V100" in one.what and "lacks" in one.reason for one in found.rejected)


def test_groups_of_one_type_train_together() -> None:
    cluster = unlike(("a40-x1", 2), ("v100-16gb-x1", 1), ("a40-x1", 1)).cluster
    assert [part.devices for part in alone(cluster)] == [3, 1]


# ---------------------------------------------------------------- DistEP


def test_distep_has_one_micro_batch_in_a_layer() -> None:
    found = disaggregated(unlike(*A40_V100, batch=8))
    assert found.proposals
    for one in found.proposals:
        assert one.plan.zebra.micro_batches == 1
        assert not one.plan.zebra.moved_experts
        assert one.planner == "distep"


def test_distep_is_slower_than_zebra() -> None:
    scenario = unlike(*A40_V100, hidden=2048, batch=16, length=8192)
    limits = Limits(attention_devices=2, expert_devices=2)
    assert disaggregated(scenario, limits=limits).best.tokens_per_s < plan(scenario, limits=limits).best.tokens_per_s


def test_the_degree_of_distep_can_be_fixed() -> None:
    found = disaggregated(unlike(*A40_V100, batch=8), degree=2)
    assert {one.plan.a2a_ffn_overlap_degree for one in found.proposals} == {2}


# ---------------------------------------------------------------- heterogeneous pipelines


def splits(layers: int, stages: int):
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        yield from ((first, *rest) for rest in splits(layers - first, stages - 1))


def test_hetero_pp_is_the_best_of_all_orders_and_splits() -> None:
    scenario = unlike(("a40-x1", 2), ("v100-16gb-x1", 4), layers=6, batch=8)
    best = hetero_pipeline(scenario, expert_parallel=1, micro_batch_size=1).best
    devices = {0: [0], 1: [2, 4]}
    tried = []
    for order in [(0, 1, 1), (1, 0, 1), (1, 1, 0)]:
        for split in splits(6, 3):
            stages = []
            used = {0: 0, 1: 0}
            for place, (group, layers) in enumerate(zip(order, split, strict=True)):
                chunk = {"first_layer": sum(split[:place]), "layers": layers, "position": place}
                chunk |= {"embedding": place == 0, "head": place == 2}
                first = devices[group][used[group]]
                used[group] += 1
                stages.append(
                    {"first_device": first, "devices": 2, "data_parallel": 2, "chunks": (chunk,), "recompute": FULL}
                )
            result = run(planned(scenario, Plan(stages=tuple(stages), recompute=FULL), micro_batch_size=1))
            tried.append(result.step_time_s if result.fits else math.inf)
    assert best.simulated_s == pytest.approx(min(tried), rel=1e-9)


def test_the_bound_of_hetero_pp_is_below_the_simulation() -> None:
    scenario = unlike(("a40-x1", 2), ("v100-16gb-x1", 2), layers=6, batch=16)
    for one in hetero_pipeline(scenario, top=0).proposals:
        assert one.predicted_s <= one.simulated_s


def test_hetero_pp_says_what_a_stage_can_hold_where_nothing_fits() -> None:
    scenario = unlike(("a40-x1", 2), ("v100-16gb-x1", 2), layers=4, hidden=4096, batch=4)
    found = hetero_pipeline(scenario, expert_parallel=1)
    assert not found.proposals
    assert any("V100 SXM2 16 GB holds not one layer" in one.reason for one in found.rejected)


def test_what_hetero_pp_calls_too_large_is_too_large_for_the_simulator() -> None:
    scenario = unlike(("a40-x1", 2), ("v100-16gb-x1", 2), layers=8, hidden=2048, experts=4, batch=4, length=2048)
    best = hetero_pipeline(scenario, expert_parallel=1, micro_batch_size=1).best
    stages = best.scenario.plan.stages
    more = -1 if stages[0].first_device == 0 else 1  # a layer from the A40, which stand first, to the V100
    grown = (stages[0].layers + more, stages[1].layers - more)
    chunks = (
        {"first_layer": 0, "layers": grown[0], "embedding": True},
        {"first_layer": grown[0], "layers": grown[1], "head": True},
    )
    made = tuple(
        stage.model_copy(update={"chunks": (type(stage.chunks[0])(**chunk),)})
        for stage, chunk in zip(stages, chunks, strict=True)
    )
    other = planned(scenario, Plan(stages=made, recompute=FULL), micro_batch_size=1)
    result = run(other)
    assert not result.fits or result.step_time_s >= best.simulated_s * (1 - 1e-9)
    assert max(memory.total for memory in stage_memory(best.scenario)) <= 48 * 2**30


def test_every_baseline_returns_plans_that_fit() -> None:
    scenario = unlike(*A40_V100, hidden=2048, experts=4, batch=16)
    rankings = [expert_parallel(scenario), disaggregated(scenario, degree=2), hetero_pipeline(scenario)]
    found: list[Proposal] = [one for ranking in rankings for one in ranking.proposals]
    assert len({one.planner for one in found}) == 3
    assert all(one.free_bytes >= 0 and run(one.scenario).fits for one in found)
