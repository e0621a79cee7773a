"""import(export(plan)) = plan: for every shipped scenario that Megatron-LM can run, and for random ones."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simmoe.errors import SpecError
from simmoe.pipeline import run
from simmoe.specs import catalog, checks
from simmoe.specs.document import Document, Position
from simmoe.specs.expand import expand
from simmoe.specs.megatron.expressible import reasons
from simmoe.specs.megatron.model_options import model_differences
from simmoe.specs.megatron.nearest import nearest
from simmoe.specs.megatron.script import launch_script
from simmoe.specs.megatron.shell import read_script
from simmoe.specs.megatron.to_arguments import to_arguments
from simmoe.specs.plan import Plan
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario
from simmoe.specs.workload import Precision
from tests.megatron import assert_unchanged, imported, plan_of
from tests.scenarios import small

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHIPPED = [
    path
    for folder in ("examples", "papers")
    for path in sorted((SCENARIOS / folder).rglob("*.yaml"))
    if "\nplan:" in path.read_text(encoding="utf-8")
]
# Megatron-LM normalises queries and keys of each head, OLMoE over their full width; said in the script.
OTHER_MODEL = {"small-moe-2xa40"}


def refused(scenario: Scenario, *kinds: str) -> bool:
    """The scenario breaks a rule of ours."""
    document = Document(Position("random"), {})
    specs = {"plan": scenario.plan}
    return any(checks.run(kind, specs.get(kind, scenario), document) for kind in kinds)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_come_back_or_are_refused_with_a_reason(path: Path, tmp_path: Path) -> None:
    scenario = load_scenario(path)
    found = reasons(scenario)
    if found:
        assert all(sentence and "\n" not in sentence for sentence in found)
        other = nearest(scenario)
        assert other is not None
        assert_unchanged(other, tmp_path / "nearest.sh")
        return
    if path.stem not in OTHER_MODEL:
        assert_unchanged(scenario, tmp_path / "launch.sh")
    assert plan_of(imported(scenario, tmp_path / "again.sh"), scenario).stages == scenario.plan.stages


def test_every_example_can_be_run_by_megatron() -> None:
    for path in SHIPPED:
        if path.parent.name == "examples":
            assert reasons(load_scenario(path)) == (), path.stem


def test_a_plan_that_comes_back_takes_the_same_time_to_the_last_bit(tmp_path: Path) -> None:
    scenario = small("plan.stage_layers=[5, 3]", "plan.recompute={granularity: full, num_layers: 2}")
    back = scenario.model_copy(update={"plan": plan_of(imported(scenario, tmp_path / "x.sh"), scenario)})
    assert run(back).metrics.step_time_s == run(scenario).metrics.step_time_s


sizes = st.sampled_from([1, 2, 4, 8])
plans = st.fixed_dictionaries(
    {
        "tensor_parallel": st.sampled_from([1, 2, 4]),
        "pipeline_parallel": st.sampled_from([1, 2, 4]),
        "context_parallel": st.sampled_from([1, 1, 2]),
        "expert_parallel": sizes,
        "expert_tensor_parallel": st.sampled_from([1, 1, 2]),
        "virtual_pipeline": st.sampled_from([1, 1, 2]),
        "sequence_parallel": st.sampled_from([True, True, True, False]),
        "dispatcher": st.sampled_from(["alltoall", "allgather", "deepep", "hybridep", "uccl"]),
        "sharding": st.sampled_from(["none", "zero1", "zero1", "zero2", "zero3"]),
        "overlap_grad_reduce": st.booleans(),
        "overlap_param_gather": st.booleans(),
        "offload": st.sampled_from([(0.0, True), (0.0, True), (0.5, True), (1.0, False)]),
        "tp_comm_overlap": st.booleans(),
        "overlap_moe_expert_parallel_comm": st.sampled_from([False, False, True]),
        "overlap_dispatch_backward_with_experts_wgrad": st.booleans(),
        "a2a_ffn_overlap_degree": st.sampled_from([1, 1, 1, 2]),
        "recompute": st.sampled_from(
            [
                {"granularity": "none"},
                {"granularity": "selective", "modules": ("core_attn", "moe_act")},
                {"granularity": "selective", "modules": ("layernorm", "moe")},
                {"granularity": "full"},
                {"granularity": "full", "num_layers": 1},
            ]
        ),
        "cuda_graph_scope": st.sampled_from([(), (), ("full_iteration",), ("attn",), ("moe_router", "moe_preprocess")]),
    }
)
splits = st.sampled_from(["even", "layers", "layout", "account"])


def with_split(plan: dict[str, Any], split: str) -> dict[str, Any]:
    """The plan with its 8 layers divided in some way."""
    plan = dict(plan)
    plan["optimizer_offload_fraction"], plan["overlap_cpu_optimizer_d2h_h2d"] = plan.pop("offload")
    stages = plan["pipeline_parallel"] * plan["virtual_pipeline"]
    schedule = "interleaved" if plan["virtual_pipeline"] > 1 else "1f1b"
    layers = [8 // stages] * stages
    if stages > 1 and split != "even":
        layers[0], layers[-1] = layers[0] - 1, layers[-1] + 1
    more: dict[str, Any] = {}
    if split == "layers":
        more = {"stage_layers": tuple(layers)}
    elif split == "layout":
        more = {"pipeline_layout": "E" + "|".join("t" * count for count in layers) + "L"}
    elif split == "account":
        more = {"account_for_embedding": True, "account_for_loss": True}
    return plan | {"schedule": schedule} | more


CASES = (plans, splits, st.sampled_from(["bf16", "fp16", "fp8-current", "mxfp8", "fp32"]), st.booleans())
FEW, MANY = (settings(max_examples=count, deadline=None) for count in (100, 2000))


def scenario_with(plan: dict[str, Any], precision: str, half: bool) -> Scenario | None:
    """A small scenario under a plan; None if a rule of ours refuses it."""
    base = small()
    gradients = "bf16" if half else "fp32"
    training = base.training.model_copy(update={"precision": Precision(precision), "gradient_dtype": gradients})
    made = Plan.model_validate(plan)
    scenario = base.model_copy(update={"plan": made, "training": training})
    if refused(scenario, "plan", "scenario"):
        return None
    try:
        plan = expand(made, base.model, base.cluster, training)
    except SpecError:
        return None
    scenario = scenario.model_copy(update={"plan": plan})
    return None if refused(scenario, "expanded") else scenario


def comes_back_or_is_refused(folder: Path, plan: dict[str, Any], split: str, precision: str, half: bool) -> None:
    scenario = scenario_with(with_split(plan, split), precision, half)
    if scenario is None:
        return
    if not reasons(scenario):
        assert_unchanged(scenario, folder / "launch.sh")
        return
    other = nearest(scenario)
    assert other is not None
    assert reasons(other) == ()
    assert not refused(other, "plan", "scenario", "expanded")
    assert_unchanged(other, folder / "nearest.sh")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


@FEW
@given(*CASES)
def test_random_plans_come_back_or_are_refused(
    folder: Path, plan: dict[str, Any], split: str, precision: str, half: bool
) -> None:
    comes_back_or_is_refused(folder, plan, split, precision, half)


@pytest.mark.slow
@MANY
@given(*CASES)
def test_so_do_many_more(folder: Path, plan: dict[str, Any], split: str, precision: str, half: bool) -> None:
    comes_back_or_is_refused(folder, plan, split, precision, half)


def test_enough_random_plans_are_expressible() -> None:
    """The property above would be empty if nearly all plans were refused."""
    found = 0
    for tensor in (1, 2, 4):
        for pipeline in (1, 2, 4):
            scenario = small(
                f"plan.tensor_parallel={tensor}", f"plan.pipeline_parallel={pipeline}", "plan.expert_parallel=4"
            )
            found += not reasons(scenario)
    assert found == 9


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab =\"'$(){}[]\\\n`#;|&<>-+*:@E0", max_size=80))
def test_any_text_is_read_as_a_script(text: str) -> None:
    script = read_script(text)
    assert all(isinstance(word, str) for command in script.commands for word in command)


def test_the_same_scenario_gives_the_same_words() -> None:
    assert to_arguments(small()).words == to_arguments(small()).words


@pytest.mark.parametrize("id", catalog.list_ids("model"))
def test_every_model_comes_back_or_its_difference_is_told(id: str, tmp_path: Path) -> None:
    base, model = small(), catalog.model(id)
    training = base.training.model_copy(update={"sequence_length": min(512, model.max_position_embeddings)})
    plan = expand(Plan(), model, base.cluster, training)
    scenario = base.model_copy(update={"model": model, "training": training, "plan": plan})
    if model.encoder_layers:
        assert "encoder" in reasons(scenario)[0]
        assert nearest(scenario) is None
        return
    assert reasons(scenario) == ()
    if model_differences(model):
        assert any("Note: " + model.id in line for line in launch_script(scenario).splitlines())
        return
    assert_unchanged(scenario, tmp_path / "launch.sh")
