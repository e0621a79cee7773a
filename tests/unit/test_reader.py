"""Reading scenarios, parts, models and plans that are right; tables and folders that are wrong."""

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simmoe.specs import catalog
from simmoe.specs.plan import Chunk, Plan, Recompute, Schedule, Stage
from simmoe.specs.reader import dump_plan, load_plan, load_scenario

# ---------------------------------------------------------------- scenarios


def test_a_scenario_has_every_id_resolved_and_its_stages_filled_in(load):
    scenario = load()
    assert scenario.name == "demo"
    assert scenario.model.id == "mixtral-8x7b"
    assert [part.id for part in scenario.cluster.accelerators] == ["h100-sxm5-80gb"]
    assert scenario.cluster.fabric.link.bandwidth.value == 50e9
    assert scenario.training.software.id == "megatron-core-2025"
    assert [stage.layers for stage in scenario.plan.stages] == [8, 8, 8, 8]
    assert scenario.plan.data_parallel == 16


def test_the_name_is_that_of_the_file_where_none_is_given(load):
    assert load(("name: demo\n", "")).name == "s"


def test_a_scenario_is_equal_to_itself_read_again(load):
    assert load() == load()


def test_a_cluster_may_be_named(load):
    old = "\n  groups:\n    - node: dgx-h100\n      count: 8\n  fabric:\n    link: infiniband-ndr-400"
    scenario = load((old, " superpod-h100-4"), overrides=["plan.pipeline_parallel=2"])
    assert scenario.cluster == catalog.cluster("superpod-h100-4")


def test_unlike_groups_keep_their_order(load):
    groups = "    - {node: dgx-h100, count: 4}\n    - {node: dgx-a100-80gb, count: 4}\n"
    cluster = load(("    - node: dgx-h100\n      count: 8\n", groups)).cluster
    assert [group.node.id for group in cluster.groups] == ["dgx-h100", "dgx-a100-80gb"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("none", Recompute()),
        ("full", Recompute(granularity="full")),
        ("selective", Recompute(granularity="selective", modules=("core_attn",))),
        ("{granularity: selective}", Recompute(granularity="selective", modules=("core_attn",))),
        (
            "{granularity: selective, modules: [moe_act, layernorm]}",
            Recompute(granularity="selective", modules=("moe_act", "layernorm")),
        ),
        ("{granularity: full, num_layers: 2}", Recompute(granularity="full", num_layers=2)),
    ],
)
def test_recomputation_is_a_word_or_a_mapping(load, written, expected):
    scenario = load(("  tensor_parallel: 1", f"  recompute: {written}"))
    assert scenario.plan.recompute == expected
    assert all(stage.recompute == expected for stage in scenario.plan.stages)


def test_published_results_come_along(load):
    published = "published: [{metric: mfu, value: 0.4, tolerance: 0.1, source: here}]"
    (result,) = load(("name: demo", f"name: demo\n{published}")).published
    assert (result.metric, result.value, result.tolerance) == ("mfu", 0.4, 0.1)


def test_what_expand_finds_has_the_position_of_its_key(complaint):
    assert complaint(("  tensor_parallel: 1", "  pipeline_layout: 'Et*8|t*8|t*8|t*9L'")) == [
        "s.yaml:13:1: plan: the layout holds 33 layers, the model has 32, make them equal"
    ]
    (line,) = complaint(("  tensor_parallel: 1", "  pipeline_layout: 'Et*8|q'"))
    assert line.startswith("s.yaml:14:20: plan.pipeline_layout: 'q' is not part of a layout")


def test_a_layout_decides_the_virtual_stages(load):
    scenario = load(
        ("  tensor_parallel: 1", "  schedule: interleaved\n  pipeline_layout: 'Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4L'")
    )
    assert scenario.plan.virtual_pipeline == 2
    assert all(len(stage.chunks) == 2 for stage in scenario.plan.stages)


def test_reading_a_scenario_takes_a_fraction_of_a_second(load):
    load()
    catalog.refresh()
    began = time.process_time()
    load()
    assert time.process_time() - began < 0.5  # about 0.06 s on the machine of 2026


# ---------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("overrides", "read", "expected"),
    [
        (["name=x"], lambda s: s.name, "x"),
        (["name='8'"], lambda s: s.name, "8"),
        (["name=a=b"], lambda s: s.name, "a=b"),
        ([" training.micro_batch_size = 2"], lambda s: s.training.micro_batch_size, 2),
        (["training.micro_batch_size=2", "training.micro_batch_size=4"], lambda s: s.training.micro_batch_size, 4),
        (["training.precision=fp8-blockwise"], lambda s: s.training.precision, "fp8-blockwise"),
        (["training.software=megatron-lm-2021"], lambda s: s.training.software.id, "megatron-lm-2021"),
        (["training.mtp=false"], lambda s: s.training.mtp, False),
        (["routing.capacity_factor=1.5"], lambda s: s.routing.capacity_factor, 1.5),
        (["routing.capacity_factor=2"], lambda s: s.routing.capacity_factor, 2.0),
        (["routing={}"], lambda s: s.routing.capacity_factor, None),
        (["cluster.groups.0.count=16"], lambda s: s.cluster.devices, 128),
        (["cluster.groups=[{node: dgx-h100, count: 4}]"], lambda s: s.cluster.devices, 32),
        (["cluster.fabric.bandwidth=200 Gb/s"], lambda s: s.cluster.fabric.port_bandwidth, 25e9),
        (["cluster.fabric.latency=20 us"], lambda s: s.cluster.fabric.port_latency, pytest.approx(20e-6)),
        (["cluster=superpod-h100-4", "cluster.groups.0.count=2"], lambda s: s.cluster.devices, 16),
        (["cluster.groups.0.node.scale_up.domain=4"], lambda s: s.cluster.groups[0].domain_devices, 4),
        (
            ["cluster.groups.0.node.accelerator.memory.value=40 GB"],
            lambda s: s.cluster.accelerators[0].memory.value,
            40e9,
        ),
        (["training.software.host_sync=false"], lambda s: s.training.software.host_sync, False),
        (["plan.recompute=full"], lambda s: s.plan.recompute.granularity, "full"),
        (
            ["plan.recompute=selective", "plan.recompute.modules=[moe_act]"],
            lambda s: s.plan.recompute.modules,
            ("moe_act",),
        ),
        (["plan.data_parallel=null"], lambda s: s.plan.data_parallel, 16),
        (["model=mixtral-8x22b", "plan.pipeline_parallel=8"], lambda s: s.model.id, "mixtral-8x22b"),
        (["model.num_layers=16"], lambda s: (s.model.num_layers, s.model.hidden_size), (16, 4096)),
        (["model.num_layers=16"], lambda s: s.model.name, "Mixtral 8x7B (modified)"),
        (["model.moe.top_k=1"], lambda s: (s.model.moe.top_k, s.model.moe.num_experts), (1, 8)),
        (
            ["model.moe.top_k=1", "model.moe.num_experts=16"],
            lambda s: (s.model.moe.top_k, s.model.moe.num_experts),
            (1, 16),
        ),
        (["model.attention.sliding_window=4096"], lambda s: s.model.attention.sliding_window, 4096),
        (["model.moe=null", "plan.expert_parallel=1"], lambda s: s.model.moe, None),
        (["model.base=mixtral-8x7b"], lambda s: s.model.name, "Mixtral 8x7B"),
    ],
)
def test_an_override_changes_what_it_names(load, overrides, read, expected):
    if any("domain" in override or "count=2" in override for override in overrides):
        overrides = [*overrides, "plan.pipeline_parallel=2"]
    assert read(load(overrides=overrides)) == expected


def test_overrides_leave_the_catalogue_as_it_was(load):
    load(overrides=["model.num_layers=16", "cluster.groups.0.node.accelerators=4", "plan.pipeline_parallel=1"])
    assert catalog.model("mixtral-8x7b").num_layers == 32
    assert catalog.node("dgx-h100").accelerators == 8


def test_a_problem_after_overrides_names_the_one_that_made_it(complaint):
    lines = complaint(("count: 8", "count: 0"), overrides=["training.micro_batch_size=0", "plan.x.y=1"])
    assert [line.rsplit(": ", 2)[0] for line in lines] == [
        "--set plan.x.y=1",
        "--set training.micro_batch_size=0",
        "s.yaml:6:14",
    ]


def test_a_problem_inside_a_part_that_was_opened_names_the_part(complaint, catalogue):
    lines = complaint(overrides=["cluster.groups.0.node.acelerators=4"])
    assert lines == [
        "--set cluster.groups.0.node.acelerators=4: cluster.groups.0.node.acelerators: unknown key, "
        "did you mean accelerators?"
    ]


# ---------------------------------------------------------------- models

MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
INLINE = """model:
  num_layers: 4
  hidden_size: 64
  ffn_hidden_size: 256
  vocab_size: 1000
  max_position_embeddings: 4096
  attention: {num_heads: 4, num_kv_heads: 4, head_dim: 16}
  moe: {num_experts: 8, top_k: 2, moe_ffn_hidden_size: 128}"""


def test_a_model_may_be_the_config_of_hugging_face(load):
    for folder in (Path("beside"), Path("beside/config.json")):
        Path("beside").mkdir(exist_ok=True)
        Path("beside/config.json").write_text(json.dumps(MIXTRAL))
        model = load(("model: mixtral-8x7b", f"model: ./{folder}")).model
        assert model.id == "beside"
        assert (model.num_layers, model.moe.num_experts) == (32, 8)


def test_a_config_is_checked_like_any_model(complaint):
    Path("odd").mkdir()
    Path("odd/config.json").write_text(json.dumps(MIXTRAL | {"num_experts_per_tok": 9}))
    (line,) = complaint(("model: mixtral-8x7b", "model: odd/config.json"))
    assert line.startswith("odd/config.json: ")
    assert "8" in line
    assert "9" in line


def test_a_config_may_be_a_base(load):
    Path("c.json").write_text(json.dumps(MIXTRAL))
    assert load(("model: mixtral-8x7b", "model: {base: c.json, num_layers: 8}")).model.num_layers == 8


def test_a_model_may_be_a_file_of_ours_beside_the_scenario(load, repository, tmp_path):
    Path("m.yaml").write_text((repository / "scenarios/models/mixtral-8x7b.yaml").read_text().replace("8x7b", "mine"))
    Path("s.yaml").touch()
    assert load(("model: mixtral-8x7b", "model: m.yaml")).model.id == "mixtral-mine"
    elsewhere = Path.cwd()
    os.chdir(tmp_path)
    assert load_scenario(elsewhere / "s.yaml").model.id == "mixtral-mine"


def test_a_model_may_stand_in_the_scenario(load):
    model = load(("model: mixtral-8x7b", INLINE)).model
    assert (model.id, model.name, model.source) == ("inline", "inline model", "s.yaml")
    assert model.num_layers == 4


def test_a_mistake_in_a_model_file_has_its_position_there(complaint):
    Path("m.yaml").write_text("id: x\nnum_layer: 3\n")
    lines = complaint(("model: mixtral-8x7b", "model: ./m.yaml"))
    assert lines[0] == "m.yaml:1:1: num_layers: is missing, add a whole number"
    assert lines[-1] == "m.yaml:2:1: num_layer: unknown key, did you mean num_layers?"


# ---------------------------------------------------------------- plans


def test_a_plan_survives_being_written_and_read(load, tmp_path):
    for overrides in ([], ["plan.recompute=selective"], ["plan.schedule=interleaved", "plan.virtual_pipeline=2"]):
        plan = load(overrides=overrides).plan
        (tmp_path / "p.yaml").write_text(dump_plan(plan))
        assert load_plan(tmp_path / "p.yaml") == plan


SIZE = st.integers(1, 2**20)
RECOMPUTE = st.one_of(
    st.just(Recompute()),
    st.builds(Recompute, granularity=st.just("full"), num_layers=st.none() | SIZE),
    st.builds(
        Recompute,
        granularity=st.just("selective"),
        modules=st.lists(st.sampled_from(["core_attn", "moe", "mlp"]), min_size=1, unique=True).map(tuple),
    ),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A plan that lists its stages and keeps the rules for plans."""
    stages, first_device, first_layer = [], 0, 0
    number = draw(st.integers(1, 4))
    for index in range(number):
        tensor, context, data, layers = (draw(st.integers(1, 64)) for _ in range(4))
        chunk = Chunk(
            first_layer=first_layer, layers=layers, embedding=index == 0, head=index == number - 1, mtp_layers=0
        )
        stage = Stage(
            first_device=first_device,
            devices=tensor * context * data,
            chunks=(chunk,),
            tensor_parallel=tensor,
            context_parallel=context,
            data_parallel=data,
            expert_parallel=draw(st.sampled_from([1, tensor, data])),
            recompute=draw(RECOMPUTE),
        )
        stages.append(stage)
        first_device, first_layer = first_device + stage.devices, first_layer + layers
    return Plan(
        stages=tuple(stages),
        schedule=draw(st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B])),
        recompute=draw(RECOMPUTE),
        sequence_parallel=draw(st.booleans()),
        dispatcher=draw(st.sampled_from(["alltoall", "deepep"])),
    )


@given(plan=plans())
@settings(max_examples=40, deadline=None)
def test_any_plan_survives_being_written_and_read(plan, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any-plan.yaml"
    path.write_text(dump_plan(plan))
    assert load_plan(path) == plan


def test_the_default_plan_is_written_too(tmp_path):
    (tmp_path / "p.yaml").write_text(dump_plan(Plan()))
    assert load_plan(tmp_path / "p.yaml") == Plan()


def test_a_scenario_may_name_the_file_of_its_plan(load):
    Path("p.yaml").write_text("pipeline_parallel: 2\nexpert_parallel: 4\n")
    plan = load(overrides=["plan=p.yaml", "plan.expert_parallel=8"]).plan
    assert (plan.pipeline_parallel, plan.expert_parallel) == (2, 8)


def test_a_written_plan_simulates_as_the_plan_it_came_from(load):
    plan = load().plan
    Path("p.yaml").write_text(dump_plan(plan))
    assert load(overrides=["plan=p.yaml"]).plan.stages == plan.stages
