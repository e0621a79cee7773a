"""The JSON summary, the numbers a run rests on, and the interval around its step time."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from simmoe.pipeline import run
from simmoe.report import uncertainty
from simmoe.report.evidence import numbers_used
from simmoe.report.manifest import citations, input_hash
from simmoe.report.numbers import guesses, unreviewed
from simmoe.report.result import Result
from simmoe.report.summary import summarise, summary_text
from simmoe.report.uncertainty import class_spreads, path_seconds, step_interval, step_spread
from simmoe.report.wires import used_wires
from simmoe.specs import catalog
from simmoe.specs.base import DEFAULT_SPREAD, Kind, Quantity, spread_of
from simmoe.specs.numbers import numbers_of
from tests.scenarios import small

KEYS = [
    *("schema_version", "name", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu"),
    *("bubble_fraction", "exposed_communication_s", "breakdown_s", "bubbles_s", "peak_memory_bytes"),
    *("fits", "utilization"),
    *("cost_usd_per_million_tokens", "energy_kwh_per_million_tokens", "critical_path_s", "interval"),
    *("engine", "network"),
    *("tasks", "ranks", "published", "provenance"),
]
PUBLISHED = "published=[{metric: step_time_s, value: 1.0, tolerance: 0.5, source: nobody}]"


@pytest.fixture(scope="module")
def result() -> Result:
    return run(small(PUBLISHED))


def leaves(value: object) -> Iterator[object]:
    """Every number, text and null inside lists and dicts."""
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value)
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from leaves(entry)
    else:
        yield value


# ---------------------------------------------------------------- summary


def test_the_keys_are_those_of_the_schema(result: Result) -> None:
    found = summarise(result)
    assert list(found) == KEYS
    assert list(found["peak_memory_bytes"]) == ["worst", "per_stage"]
    assert list(found["interval"]) == ["low", "high", "level"]
    assert list(found["ranks"][0]) == [
        *("rank", "stage", "role", "accelerator", "count", "window_s", "compute_s", "communication_s", "overlapped_s"),
        *("exposed_communication_s", "idle_s", "bubbles_s", "stream_utilization"),
    ]
    assert list(found["provenance"]) == [
        *("simmoe", "python", "numpy", "input_sha256", "numbers", "unreviewed", "guesses")
    ]


def test_the_text_is_strict_json_of_plain_values(result: Result) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(summary_text(result), parse_constant=refuse)
    assert found == summarise(result)
    assert {type(leaf) for leaf in leaves(found)} <= {str, int, float, bool, type(None)}


def test_equal_inputs_give_equal_bytes(result: Result) -> None:
    assert summary_text(run(small(PUBLISHED))) == summary_text(result)


def test_the_figures_agree_with_each_other(result: Result) -> None:
    found = summarise(result)
    step = found["step_time_s"]
    assert found["tokens_per_s"] == pytest.approx(64 * 4096 / step)
    assert found["tokens_per_s_per_gpu"] == pytest.approx(found["tokens_per_s"] / 16)
    assert sum(found["breakdown_s"].values()) == pytest.approx(step)
    assert sum(found["critical_path_s"].values()) == pytest.approx(step)
    assert found["mfu"] == pytest.approx(found["model_tflops_per_gpu"] / 989)
    assert sum(rank["count"] for rank in found["ranks"]) == 16
    stages = found["peak_memory_bytes"]["per_stage"]
    assert found["peak_memory_bytes"]["worst"] == max(stage["total"] for stage in stages)
    for stage in stages:
        parts = ("weights", "gradients", "optimizer", "activations", "working", "framework")
        assert stage["total"] == pytest.approx(sum(stage[part] for part in parts))
        assert stage["capacity"] == 80 * 2**30


def test_a_published_figure_is_compared(result: Result) -> None:
    (one,) = summarise(result)["published"]
    assert one["simulated"] == result.step_time_s
    assert one["error"] == pytest.approx(result.step_time_s - 1)
    assert one["within_tolerance"] == (abs(one["error"]) <= 0.5)


def test_a_part_without_price_has_no_cost() -> None:
    free = small("cluster.groups.0.node.accelerator.price_per_hour=null")
    assert summarise(run(free))["cost_usd_per_million_tokens"] is None


def test_what_does_not_fit_is_still_summarised() -> None:
    found = summarise(run(small("plan.expert_parallel=1", "model.num_layers=32")))
    assert found["fits"] is False
    assert found["peak_memory_bytes"]["worst"] > 80 * 2**30
    assert found["step_time_s"] > 0


# ---------------------------------------------------------------- provenance


def test_the_hash_follows_the_meaning_of_the_input_not_its_wording() -> None:
    same = small("plan.tensor_parallel=1")
    assert input_hash(same) == input_hash(small())
    assert input_hash(small("training.global_batch_size=128")) != input_hash(small())


def paths(result: Result) -> set[str]:
    return {number.path for number in numbers_used(result)}


def test_only_the_arithmetic_and_the_kernels_that_ran_are_named(result: Result) -> None:
    found = paths(result)
    part = "accelerator h100-sxm5-80gb: "
    assert part + "peak_flops.bf16" in found
    assert part + "efficiency.gemm[bf16].compute" in found
    assert part + "efficiency.attention[fa3 128].compute" in found
    assert part + "efficiency.memory_bound[permute].memory" in found
    absent = ("peak_flops.fp8", "l2_cache", "efficiency.gemm[fp8]", "[fa3 64]", "[cast]", "host_fp8_layer")
    assert [path for path in found if any(word in path for word in absent)] == []


def test_an_fp8_recipe_uses_both_arithmetics() -> None:
    found = paths(run(small("training.precision=fp8-current")))
    part = "accelerator h100-sxm5-80gb: "
    wanted = (
        "peak_flops.fp8",
        "peak_flops.bf16",
        "efficiency.gemm[fp8].compute",
        "efficiency.memory_bound[cast].memory",
    )
    assert {part + name for name in wanted} <= found
    assert "software megatron-core-2025: host_fp8_layer" in found


def test_a_dense_model_uses_no_expert_numbers() -> None:
    found = paths(run(small("model=llama-2-7b", "plan.expert_parallel=1")))
    assert [path for path in found if "grouped_gemm" in path or "permute" in path or "host_moe" in path] == []


def test_only_the_links_that_carry_something_are_named(result: Result) -> None:
    found = paths(result)
    assert "link nvlink-4: collectives[all_to_all 8].bus_bandwidth" in found
    assert "link nvlink-4: collectives[all_to_all 2].bus_bandwidth" not in found
    assert "link infiniband-ndr-400: bandwidth" in found  # the pipeline crosses nodes
    assert [path for path in found if "pcie" in path] == []
    alone = paths(run(small("cluster.groups.0.count=1", "plan.pipeline_parallel=1", "plan.recompute=full")))
    assert [path for path in alone if "infiniband" in path or "network_ports" in path] == []


def test_a_number_that_the_scenario_replaces_is_not_relied_on() -> None:
    found = paths(run(small("cluster.fabric.bandwidth=100 Gb/s")))
    assert "link infiniband-ndr-400: bandwidth" not in found
    assert "link infiniband-ndr-400: latency" in found


def test_a_deduplicating_dispatcher_does_not_use_the_all_to_all_fit() -> None:
    found = used_wires(run(small("plan.dispatcher=deepep")))
    assert all(getattr(fit, "collective", "") != "all_to_all" for _, fit in found.fits)


def test_every_number_is_either_firm_confirmed_or_named_as_weak(result: Result) -> None:
    numbers = numbers_used(result)
    weak = {number.path for number in (*guesses(numbers), *unreviewed(numbers))}
    for number in numbers:
        firm = number.quantity.kind is not Kind.GUESS and bool(number.quantity.reviewed)
        assert firm == (number.path not in weak), number.path
    found = summarise(result)["provenance"]
    assert (found["numbers"], len(found["guesses"]) + len(found["unreviewed"])) == (len(numbers), len(weak))


def test_every_number_used_has_a_source_that_is_listed(result: Result) -> None:
    found = citations(result, catalog.sources())
    assert all(source["title"] for source in found["sources"])
    cited = [f"{n['part']}: {n['name']}" for source in found["sources"] for n in source["numbers"]]
    assert sorted(cited) == sorted(paths(result))
    assert sum(found["kinds"].values()) == len(cited)


def test_numbers_of_a_part_leave_out_those_of_parts_it_names() -> None:
    node = catalog.node("dgx-h100")
    assert [number.path for number in numbers_of(node, "node dgx-h100")] == ["node dgx-h100: network_ports"]


# ---------------------------------------------------------------- interval


def quantity(spread: float | None, kind: str = "measured") -> Quantity:
    return Quantity(value=1.0, unit="1", text="1", source="test", kind=kind, spread=spread)


def test_a_stated_spread_is_taken_else_that_of_the_kind() -> None:
    assert spread_of(quantity(0.07)) == 0.07
    assert spread_of(quantity(0.0)) == 0.0
    assert spread_of(quantity(None)) == DEFAULT_SPREAD[Kind.MEASURED]
    assert set(DEFAULT_SPREAD) == set(Kind)


def test_the_path_is_split_without_loss(result: Result) -> None:
    found = path_seconds(result)
    assert {category: sum(parts.values()) for category, parts in found.items()} == pytest.approx(
        result.critical_path.by_category_s
    )


def test_every_class_on_the_path_has_a_spread(result: Result) -> None:
    spreads = class_spreads(result)
    for category, parts in path_seconds(result).items():
        assert all(spreads[category, accelerator] > 0 for accelerator in parts), category


def test_spread_is_the_root_of_squares_over_classes_with_the_stack(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Expectation: two classes of 3/4 and 1/4 of the step, spreads 0.2 and 0.4: sqrt(0.15^2 + 0.1^2 + 0.2^2).
    step = result.step_time_s
    monkeypatch.setattr(uncertainty, "path_seconds", lambda _: {"a": {"x": 0.75 * step}, "b": {"x": 0.25 * step}})
    monkeypatch.setattr(uncertainty, "class_spreads", lambda _: {("a", "x"): 0.2, ("b", "x"): 0.4})
    monkeypatch.setattr(uncertainty, "stack_spread", lambda _: 0.2)
    assert step_spread(result) == pytest.approx(math.sqrt(0.15**2 + 0.1**2 + 0.2**2))


def test_unlike_accelerators_are_off_together_inside_a_class(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    # Expectation: halves of one class with 0.2 each give 0.2, not 0.2 / sqrt(2).
    step = result.step_time_s
    monkeypatch.setattr(uncertainty, "path_seconds", lambda _: {"a": {"x": 0.5 * step, "y": 0.5 * step}})
    monkeypatch.setattr(uncertainty, "class_spreads", lambda _: {("a", "x"): 0.2, ("a", "y"): 0.2})
    monkeypatch.setattr(uncertainty, "stack_spread", lambda _: 0.2)
    assert step_spread(result) == pytest.approx(math.hypot(0.2, 0.2))


def test_the_interval_is_the_step_times_a_factor_either_way(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertainty, "step_spread", lambda _: 0.1)
    interval = step_interval(result)
    assert interval.high / result.step_time_s == pytest.approx(math.exp(0.12816))
    assert result.step_time_s / interval.low == pytest.approx(math.exp(0.12816))
    assert interval.level == 0.8


def test_less_certain_numbers_widen_the_interval(result: Result) -> None:
    doubtful = run(small("training.software=megatron-core-2025", "training.software.host_moe_layer.spread=3"))
    assert doubtful.step_time_s == result.step_time_s
    assert step_spread(doubtful) > step_spread(result)


def test_an_interval_is_never_narrower_than_the_stack_allows(result: Result) -> None:
    own = uncertainty.stack_spread(result)
    assert own > 0
    assert step_spread(result) >= own
    assert step_spread(replace(result, critical_path=replace(result.critical_path, tasks=()))) == pytest.approx(own)
