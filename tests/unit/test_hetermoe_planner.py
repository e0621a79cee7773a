"""The HeterMoE planner: what it tries, what it refuses, what it says."""

import pytest

from simmoe.pipeline import run
from simmoe.planners.hetermoe import plan
from simmoe.planners.proposal import Rejected, divisors, planned
from simmoe.planners.zebra_bench import Batch, Bench, room
from simmoe.planners.zebra_candidate import candidates, least_s, predict_s
from simmoe.planners.zebra_shapes import Limits, Shape, batches, pairs, shapes
from simmoe.specs.plan import Recompute
from simmoe.specs.reader import dump_plan, load_plan, load_scenario
from tests.scenarios import SMALL, small
from tests.unlike import unlike

FULL = Recompute(granularity="full")
A40_V100 = (("a40-x1", 2), ("v100-16gb-x1", 4))


# ---------------------------------------------------------------- shapes


def test_unlike_groups_are_paired_in_both_orders() -> None:
    assert pairs(unlike(*A40_V100).cluster) == [(0, 1), (1, 0)]


def test_a_cluster_of_one_type_is_paired_with_itself() -> None:
    assert pairs(small().cluster) == [(0, 0)]
    assert pairs(unlike(("a40-x1", 2), ("a40-x1", 2)).cluster) == [(0, 1), (1, 0)]


def test_three_types_give_six_pairs() -> None:
    cluster = unlike(("a40-x1", 2), ("v100-16gb-x1", 2), ("t4-x1", 2)).cluster
    assert len(pairs(cluster)) == 6


def test_shapes_hold_all_experts_and_divide_the_batch() -> None:
    scenario, rejected = unlike(*A40_V100, experts=8, batch=8), []
    found = list(shapes(scenario, (0, 1), 1, Limits(), rejected))
    assert Shape(0, 1, 2, 4, 1) in found
    assert Shape(0, 1, 1, 2, 2) in found
    for shape in found:
        assert 8 % shape.expert_devices == 0
        assert 8 % shape.replicas == 0
        assert shape.replicas <= 2
        assert shape.expert_devices * shape.groups <= 4
    assert rejected  # three or four groups leave no attention device
    assert all("3, 4 groups" in one.what for one in rejected if "on 1 " in one.what)


def test_what_cannot_be_used_stays_idle_and_is_named() -> None:
    scenario = unlike(("a40-x1", 3), ("v100-16gb-x1", 4), experts=4, batch=8)
    shape = Shape(0, 1, 2, 4, 1)
    assert shape.idle(scenario.cluster) == {"A40": 1}
    found = plan(scenario, limits=Limits(attention_devices=2, expert_devices=4), compare=False)
    assert any("1 A40" in sentence and "idle" in sentence for sentence in found.best.why)


def test_batches_divide_the_sequences_of_a_rank() -> None:
    scenario = unlike(*A40_V100, batch=24)
    shape = Shape(0, 1, 2, 4, 1)
    found = batches(scenario, shape, Limits())
    assert (4, 3) in found
    assert (2, 6) in found
    assert all(12 % (size * count) == 0 for size, count in found)
    assert {count for _, count in batches(scenario, shape, Limits(most_micro_batches=4))} == {1, 2, 3, 4}
    assert {count for _, count in batches(scenario, shape, Limits(micro_batches=3))} == {3}
    assert {size for size, _ in batches(scenario, shape, Limits(micro_batch_size=2))} == {2}


def test_divisors_are_ascending() -> None:
    assert divisors(24, 6) == [1, 2, 3, 4, 6]


# ---------------------------------------------------------------- prediction


@pytest.mark.parametrize("moved", [(), (1, 1, 1), (0, 1, 0)])
@pytest.mark.parametrize("batch", [Batch(1, 4), Batch(2, 2), Batch(4, 1), Batch(1, 2)])
def test_the_block_level_prediction_is_close_and_its_bound_below(batch: Batch, moved: tuple[int, ...]) -> None:
    scenario = unlike(("a40-x1", 2), ("v100-16gb-x1", 2), hidden=2048, batch=8, length=8192)
    bench, shape = Bench(scenario, Limits(), FULL), Shape(0, 1, 2, 2, 1)
    simulated = run(bench.made(shape, batch, moved)).step_time_s
    assert predict_s(bench, shape, batch, moved) == pytest.approx(simulated, rel=0.02)
    assert least_s(bench, shape, batch) < simulated


def test_a_shortened_model_predicts_the_same() -> None:
    scenario = unlike(("a40-x1", 1), ("l40s-x1", 1), layers=6, batch=4)
    bench, shape, batch = Bench(scenario, Limits(), FULL), Shape(0, 1, 1, 1, 1), Batch(1, 4)
    assert bench._short.model.num_layers < 6
    short = predict_s(bench, shape, batch, ())
    whole = Bench(scenario, Limits(), FULL)
    whole.__dict__["_short"] = scenario
    assert short == pytest.approx(predict_s(whole, shape, batch, ()), rel=1e-12)


# ---------------------------------------------------------------- memory


def test_experts_that_do_not_fit_are_moved_or_the_shape_is_refused() -> None:
    # 4 layers of 8 experts of 44 M parameters: 22 GB at 16 bytes, more than a V100 of 16 GB holds
    scenario = unlike(("l40s-x1", 1), ("v100-16gb-x1", 1), layers=4, hidden=2048, batch=4)
    bench, shape, rejected = Bench(scenario, Limits(), FULL), Shape(0, 1, 1, 1, 1), []
    assert room(bench.made(shape, Batch(1, 4))).experts < 0
    found = list(candidates(bench, shape, float("inf"), rejected))
    assert found
    assert all(any(one.moved) for one in found)
    assert all(room(one.scenario).enough for one in found)
    never = Bench(scenario, Limits(assignment="none"), FULL)
    assert not list(candidates(never, shape, float("inf"), rejected))
    assert "does not fit: an expert device lacks" in rejected[-1].reason
    assert "GiB" in rejected[-1].reason


def test_nothing_fits_says_why_and_proposes_nothing() -> None:
    scenario = unlike(("t4-x1", 1), ("v100-16gb-x1", 1), layers=16, hidden=4096, batch=2)
    found = plan(scenario, compare=False)
    assert not found.proposals
    assert any("lacks" in one.reason for one in found.rejected)
    assert all(isinstance(one, Rejected) and one.reason for one in found.rejected)


def test_the_fullest_device_is_the_one_that_is_judged() -> None:
    found = plan(unlike(*A40_V100), compare=False).best
    result = run(found.scenario)
    parts = zip(result.ranks, result.memory, strict=True)
    assert found.free_bytes == min(result.accelerator(rank).memory.value - memory.total for rank, memory in parts)


# ---------------------------------------------------------------- answers


def test_the_answer_says_what_sets_the_pace_and_what_moved() -> None:
    best = plan(unlike(*A40_V100, hidden=2048), compare=False).best
    told = " ".join(best.why)
    assert "set the pace" in told
    assert "experts" in told
    assert "GiB left" in told
    assert "idles" in told


def test_the_verdict_names_the_best_plan_without_disaggregation() -> None:
    found = plan(unlike(*A40_V100, hidden=2048, batch=24), top=2)
    assert found.remarks[0].startswith("Disaggregation ")
    rates = [float(line.split()[0].replace(",", "")) for line in found.remarks[1:] if "added up" not in line]
    assert rates == sorted(rates, reverse=True)
    pays = found.best.tokens_per_s > rates[0]
    assert ("pays" in found.remarks[0]) == pays or "does not pay" in found.remarks[0]


@pytest.mark.parametrize("group", [0, 1])
def test_the_side_of_attention_can_be_fixed(group: int) -> None:
    found = plan(unlike(*A40_V100), limits=Limits(attention_group=group), compare=False)
    assert {one.plan.zebra.attention_group for one in found.proposals} == {group}


def test_limits_are_kept() -> None:
    limits = Limits(attention_devices=2, expert_devices=4, micro_batches=2, micro_batch_size=1, assignment="none")
    for one in plan(unlike(*A40_V100), limits=limits, compare=False).proposals:
        zebra = one.plan.zebra
        assert (zebra.attention_devices, zebra.expert_devices, zebra.groups) == (2, 4, 1)
        assert zebra.micro_batches == 2
        assert one.micro_batch_size == 1
        assert not zebra.moved_experts


@pytest.mark.parametrize("assignment", ["greedy", "best", "optimal"])
def test_every_assignment_beats_none_where_experts_are_slow(assignment: str) -> None:
    scenario = unlike(("a40-x1", 2), ("v100-16gb-x1", 2), hidden=2048, batch=16, length=2048)
    limits = Limits(attention_devices=2, expert_devices=2)
    none = plan(scenario, limits=limits._replace(assignment="none"), compare=False).best
    some = plan(scenario, limits=limits._replace(assignment=assignment), compare=False).best
    assert some.tokens_per_s >= none.tokens_per_s
    if assignment != "greedy":
        assert some.tokens_per_s > none.tokens_per_s


def test_a_plan_can_be_written_read_and_simulated(tmp_path) -> None:
    scenario = unlike(*A40_V100)
    best = plan(scenario, compare=False).best
    path = tmp_path / "best.yaml"
    path.write_text(dump_plan(best.plan), encoding="utf-8")
    again = planned(scenario, load_plan(path), micro_batch_size=best.micro_batch_size)
    assert run(again).step_time_s == best.simulated_s


def test_pipelines_of_zebra_stages_are_tried_where_one_stage_does_not_fit() -> None:
    scenario = unlike(("t4-x1", 4), ("v100-16gb-x1", 4), layers=10, hidden=2048, experts=4, batch=8)
    limits = Limits(assignment="none", expert_devices=1, attention_devices=1)
    found = plan(scenario, limits=limits, compare=False)
    assert found.proposals
    assert found.best.plan.pipeline_parallel > 1
    assert abs(found.best.planner_error) < 0.10


def test_what_zebra_does_not_go_with_is_told_once() -> None:
    scenario = unlike(*A40_V100)
    skewed = scenario.model_copy(
        update={"routing": scenario.routing.model_copy(update={"kind": "zipf", "exponent": 1.0})}
    )
    found = plan(skewed, compare=False)
    assert not found.proposals
    assert any("does not go with routing" in one.reason for one in found.rejected)


def test_a_dense_model_has_nothing_to_take_apart() -> None:
    scenario = load_scenario(SMALL, ["model=llama-3-8b", "plan={tensor_parallel: 8}"])
    found = plan(scenario, compare=False)
    assert not found.proposals
    assert any("no experts" in one.reason for one in found.rejected)


@pytest.mark.parametrize("cluster", ["mixed-h100-a100", "mixed-b200-h100", "mixed-h100-l40s"])
@pytest.mark.parametrize("model", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"])
@pytest.mark.slow
def test_shipped_clusters_and_models_are_planned(cluster: str, model: str) -> None:
    full = "plan={recompute: {granularity: full}, zebra: {attention_devices: 8, expert_devices: 8}}"
    batch = {"mixed-h100-a100": 256, "mixed-b200-h100": 192, "mixed-h100-l40s": 96}[cluster]
    scenario = load_scenario(
        SMALL, [f"cluster={cluster}", f"model={model}", f"training.global_batch_size={batch}", full]
    )
    found = plan(scenario, top=2)
    assert found.proposals or any("lacks" in one.reason for one in found.rejected)
    assert found.remarks
    assert all(abs(one.planner_error) < 0.12 for one in found.proposals)
