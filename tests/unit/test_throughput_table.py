"""Tables of published throughput: reading, the rules that make scenarios of rows, and the summary of errors."""

import csv
import io
from pathlib import Path

import pytest

from simmoe.cli import validate as command
from simmoe.errors import OutputError, SpecError
from simmoe.specs.plan import Schedule
from simmoe.specs.throughput_scenario import scenario_of
from simmoe.specs.throughput_table_reader import REQUIRED, read_table

# Mixtral-8x7B-like, one node, two layers.
ROW = {
    "id": "r1", "group": "demo", "model": "tiny", "accelerator_id": "H100-SXM5-80GB", "num_gpus": "8",
    "gpus_per_node": "8", "precision_norm": "bf16", "seq_len": "1024", "mbs": "1", "gbs": "16", "tp": "1", "pp": "1",
    "ep": "8", "etp": "1", "num_layers": "2", "hidden_size": "512", "ffn_hidden_size": "1024", "num_heads": "8",
    "num_kv_heads": "2", "head_dim": "64", "num_experts": "8", "top_k": "2", "moe_ffn_hidden_size": "1024",
    "vocab_size": "32000", "gated_mlp": "1", "recompute_norm": "none", "schedule_norm": "none",
    "dispatcher_norm": "alltoall", "dp_sharding": "zero1", "routing": "forced-balanced", "software": "Megatron-Core",
    "software_date": "2025-01", "measured_s": "0.5",
}  # fmt: skip


def write(path: Path, *rows: dict[str, str], before: str = "") -> Path:
    """A table with these rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(before + text.getvalue(), encoding="utf-8")
    return path


def reading(tmp_path: Path, **changes: str):
    """What becomes of ROW with these cells changed."""
    return scenario_of(read_table(write(tmp_path / "t.csv", ROW | changes))[0])


# ---------------------------------------------------------------- reading


def test_a_table_is_read_in_order_without_comments(tmp_path):
    rows = read_table(write(tmp_path / "t.csv", ROW, ROW | {"id": "r2", "vpp": ""}, before="# a remark\n"))
    assert [row.id for row in rows] == ["r1", "r2"]
    assert rows[0].whole("num_gpus") == 8
    assert rows[0].measured_s == 0.5
    assert rows[0].whole("vpp") is None
    assert rows[1].place.endswith("t.csv:4")
    assert rows[0].moe


def test_every_wrong_cell_is_told_with_its_line(tmp_path):
    path = write(tmp_path / "t.csv", ROW | {"tp": "two", "measured_s": "-1"}, ROW | {"gated_mlp": "yes"})
    with pytest.raises(SpecError) as caught:
        read_table(path)
    assert caught.value.problems == (
        f"{path}:2: tp: a whole number of at least 1 is expected (got 'two'), correct it or leave it empty",
        f"{path}:2: measured_s: a positive number is expected (got '-1'), correct it or leave it empty",
        f"{path}:3: gated_mlp: 1 or 0 is expected (got 'yes'), correct it or leave it empty",
        f"{path}:3: id: 'r1' is also at {path}:2, give each row its own id",
    )


@pytest.mark.parametrize("value", ["nan", "inf", "0", "1e999"])
def test_a_time_is_positive_and_finite(tmp_path, value):
    with pytest.raises(SpecError, match="a positive number is expected"):
        read_table(write(tmp_path / "t.csv", ROW | {"measured_s": value}))


def test_a_missing_column_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"column vocab_size is missing"):
        read_table(write(tmp_path / "t.csv", {key: cell for key, cell in ROW.items() if key != "vocab_size"}))


def test_a_line_with_too_few_cells_is_refused(tmp_path):
    path = write(tmp_path / "t.csv", ROW)
    path.write_text(path.read_text(encoding="utf-8") + "r2,demo\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"t\.csv:3: \d+ cells are expected \(got 2\)"):
        read_table(path)


def test_an_empty_file_is_no_table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(SpecError, match="column id, model"):
        read_table(path)


def test_reference_tables_are_read_by_the_same_reader(shared):
    rows = read_table(shared / "ground_truth" / "training_throughput.csv")
    assert len(rows) > 1000
    assert sum(row.moe for row in rows) > 200


def test_shipped_rows_are_the_reference_rows(shared, repository):
    """Restating changed no number: the columns of numbers agree with the collection the table was made from."""
    reference = {row.id: row for row in read_table(shared / "ground_truth" / "training_throughput.csv")}
    columns = [*(name for name in REQUIRED if name not in {"id", "model"}), "ep", "cp", "vpp", "num_experts", "top_k"]
    for row in read_table(repository / "scenarios" / "published" / "training.csv"):
        other = reference[row.id.replace("moe-", "GT-").replace("dense-", "GT-")]
        assert [row.text(name) for name in columns] == [other.text(name) for name in columns], row.id


# ---------------------------------------------------------------- rows to scenarios


def test_a_complete_row_assumes_nothing(tmp_path):
    found = reading(tmp_path)
    assert (found.reason, found.assumptions) == ("", ())
    scenario = found.scenario
    assert scenario.cluster.devices == 8
    assert scenario.model.moe.num_experts == 8
    assert scenario.plan.expert_parallel == 8
    assert scenario.plan.stages[0].data_parallel == 8
    assert scenario.training.software.id == "megatron-core-2025"


@pytest.mark.parametrize(
    ("changes", "assumption"),
    [
        ({"mbs": ""}, "micro-batch not stated, 1 assumed"),
        ({"recompute_norm": "unknown"}, "recomputation not stated, none assumed"),
        ({"dispatcher_norm": ""}, "dispatcher not stated, alltoall assumed"),
        ({"routing": "natural"}, "natural routing simulated as shares"),
        ({"routing": "drop"}, "capacity factor not stated, 1 assumed"),
        ({"ep_overlap": "1", "recompute_norm": "full"}, "expert all-to-all overlap with"),
        ({"cuda_graph": "1"}, "scope of CUDA graphs not stated"),
        ({"tp": "2", "etp": "", "ep": "4"}, "expert tensor parallelism not stated, 2 assumed"),
        ({"tp": "2", "etp": ""}, "expert tensor parallelism not stated, 1 assumed"),
        ({"pp": "2", "ep": "4", "vpp": "", "schedule_norm": "unknown"}, "virtual stages not stated, 1 assumed"),
        ({"pp": "4", "ep": "2", "num_layers": "9", "schedule_norm": "1f1b"}, "division of layers not stated"),
    ],
)
def test_what_is_assumed_is_said(tmp_path, changes, assumption):
    found = reading(tmp_path, **changes)
    assert found.reason == ""
    assert len(found.assumptions) == 1
    assert found.assumptions[0].startswith(assumption)


@pytest.mark.parametrize(("flags", "eight"), [("", False), ("fp8-attention", True)])
def test_attention_in_eight_bits_is_simulated_so(tmp_path, flags, eight):
    scenario = reading(tmp_path, flags=flags).scenario
    assert scenario is not None
    assert scenario.training.fp8_attention is eight


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"measured_s": ""}, "no step time"),
        ({"dp_sharding": "zero9"}, "zero9 sharding not modelled"),
        ({"schedule_norm": "dualpipe", "pp": "2", "ep": "4"}, "schedule dualpipe not modelled"),
        ({"precision_norm": "nvfp4"}, "training.precision: nvfp4 needs fp4"),
        ({"precision_norm": "fp6"}, "precision fp6"),
        ({"accelerator_id": ""}, "no hardware data for an accelerator that is not named"),
        ({"accelerator_id": "XPU"}, "no hardware data for XPU"),
        ({"gpus_per_node": "4"}, "4 H100-SXM5-80GB a node, dgx-h100 has 8"),
        ({"num_gpus": "12"}, "12 accelerators do not fill nodes of 8"),
        ({"flags": "heterogeneous"}, "several accelerator types in one job"),
        ({"gbs": "15"}, "training.global_batch_size: 15 is not divisible"),
        ({"ep": "3"}, "plan.expert_parallel: expert_parallel 3 does not divide num_experts 8"),
    ],
)
def test_what_cannot_be_simulated_says_why(tmp_path, changes, reason):
    found = reading(tmp_path, **changes)
    assert found.scenario is None
    assert found.reason.startswith(reason)


# ---------------------------------------------------------------- gaps


@pytest.mark.parametrize(
    ("changes", "assumption"),
    [
        ({"precision_norm": "", "software": "FlagPerf"}, "precision not stated, bf16 assumed"),
        ({"vocab_size": ""}, "vocabulary not stated, 32000 assumed"),
        ({"vocab_size": "", "gated_mlp": "0"}, "vocabulary not stated, 51200 assumed"),
        ({"ep": ""}, "expert parallelism not stated, 8 assumed"),
        ({"ep": "", "dp_sharding": "zero3-fsdp"}, "expert parallelism not stated, 1 assumed"),
        ({"accelerator_id": "", "gpu": "H100 SXM 96GB HBM2e"}, "clocks of an H100 at 500 W assumed"),
        ({"recompute_norm": "remat save_qkv_proj"}, "MaxText policy save_qkv_proj simulated as recompute full"),
        (
            {"software": "torchtitan", "mbs": "", "pp": "2", "dp": "4", "ep": "4"},
            "micro-batch not stated, 2 assumed, torch",
        ),
        ({"dp_sharding": "hsdp"}, "size of sharding groups not stated, one host assumed"),
    ],
)
def test_gaps_are_filled_and_told(tmp_path, changes, assumption):
    found = reading(tmp_path, **changes)
    assert found.reason == ""
    assert found.assumptions[0].startswith(assumption)


def test_the_vocabulary_is_that_of_a_known_model_of_the_shape(tmp_path):
    shape = {"hidden_size": "4096", "num_heads": "32", "num_kv_heads": "8", "head_dim": "128"}
    dense = {"num_experts": "", "top_k": "", "moe_ffn_hidden_size": "", "ep": "1", "ffn_hidden_size": "14336"}
    found = reading(tmp_path, vocab_size="", **shape, **dense)
    assert found.assumptions == ("vocabulary not stated, 128256 assumed",)


def test_policies_become_the_nearest_recomputation(tmp_path):
    plan = reading(tmp_path, recompute_norm="unknown", recompute="remat policy save_dot_except_mlp").scenario.plan
    assert plan.recompute.modules == ("core_attn", "layernorm", "mlp")
    torch = {"recompute_norm": "selective", "software": "torchtitan", "num_layers": "8"}
    assert reading(tmp_path, **torch).scenario.plan.recompute.num_layers == 4


@pytest.mark.parametrize(
    ("sharding", "words", "expected"),
    [
        ("zero2", "", ("zero2", None)),
        ("zero3-fsdp", "FSDP over all", ("zero3", None)),
        ("hsdp", "FSDP groups of 4, DP outside", ("zero3", 4)),
        ("hsdp", "FSDP 2x2, DP 2", ("zero3", 4)),
        ("hsdp", "HSDP", ("zero3", 8)),
    ],
)
def test_layerwise_sharding_and_its_groups(tmp_path, sharding, words, expected):
    plan = reading(tmp_path, dp_sharding=sharding, zero_distopt=words).scenario.plan
    assert (plan.sharding, plan.sharding_group) == expected
    assert (
        reading(tmp_path, dp_sharding=sharding, zero_distopt=words, pp="2", ep="4")
        .assumptions[0]
        .startswith(f"{sharding} with a pipeline simulated as zero1")
    )


def test_gradients_are_bf16_in_the_performance_recipes_only(tmp_path):
    assert reading(tmp_path).scenario.training.gradient_dtype == "fp32"
    found = reading(tmp_path, software="NeMo 24.07 container", software_date="2024-07")
    assert found.scenario.training.gradient_dtype == "bf16"


def test_the_megatron_of_2021_hides_and_shards_nothing(tmp_path):
    early = {"software_date": "2021-04", "dp_sharding": "", "tp": "2", "ep": "4"}
    plan = reading(tmp_path, **early).scenario.plan
    assert (plan.sharding, plan.overlap_grad_reduce, plan.sequence_parallel) == ("none", False, False)
    plan = reading(tmp_path, **early | {"dp_sharding": "zero1", "recompute_norm": "selective", "dp_overlap": "1"})
    plan = plan.scenario.plan
    assert (plan.sharding, plan.overlap_grad_reduce, plan.sequence_parallel) == ("zero1", True, True)
    plan = reading(tmp_path, tp="2", ep="4").scenario.plan
    assert (plan.sharding, plan.overlap_grad_reduce, plan.sequence_parallel) == ("zero1", True, True)


def test_one_layer_in_each_virtual_stage_where_it_divides(tmp_path):
    changes = {"pp": "2", "ep": "4", "num_layers": "8", "schedule_norm": "unknown"}
    plan = reading(tmp_path, **changes).scenario.plan
    assert (plan.schedule, plan.virtual_pipeline) == (Schedule.INTERLEAVED, 4)
    assert all(chunk.layers == 1 for stage in plan.stages for chunk in stage.chunks)


def test_ends_take_a_layer_where_that_divides(tmp_path):
    changes = {"pp": "4", "ep": "2", "num_layers": "6", "schedule_norm": "1f1b"}
    plan = reading(tmp_path, **changes).scenario.plan
    assert [stage.layers for stage in plan.stages] == [1, 2, 2, 1]
    plan = reading(tmp_path, **changes | {"num_layers": "7"}).scenario.plan
    assert [stage.layers for stage in plan.stages] == [2, 2, 2, 1]


@pytest.mark.parametrize(("layers", "expected"), [("13", [4, 4, 4, 1]), ("9", [3, 2, 2, 2])])
def test_a_division_that_is_not_stated_fills_stages(tmp_path, layers, expected):
    changes = {"pp": "4", "ep": "2", "num_layers": layers, "schedule_norm": "1f1b"}
    assert [stage.layers for stage in reading(tmp_path, **changes).scenario.plan.stages] == expected


def test_a_written_layout_is_followed(tmp_path):
    changes = {"pp": "2", "ep": "4", "num_layers": "3", "schedule_norm": "1f1b"}
    found = reading(tmp_path, **changes, schedule_overlap_flags="1F1B;pp_layout=Et*2|tL")
    assert [stage.layers for stage in found.scenario.plan.stages] == [2, 1]
    assert found.assumptions == ()


def test_recomputing_as_many_layers_as_a_stage_has_is_full(tmp_path):
    assert reading(tmp_path, recompute_norm="full-block:1").scenario.plan.recompute.num_layers == 1
    assert reading(tmp_path, recompute_norm="full-block:2").scenario.plan.recompute.num_layers is None


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        ("cuda_graph=full_iteration", ("full_iteration",)),
        (
            "1F1B;cuda_graph=transformer_engine:moe_router+moe_preprocess;ep_a2a_overlap=False",
            ("moe_router", "moe_preprocess"),
        ),
        ("cuda_graph=TE attn+moe_router; delay wgrad", ("attn", "moe_router")),
        ("no PP; external_cuda_graph:attn", ("attn",)),
        ("cuda_graph=TE:attn;full-iteration graph mentioned in recipe", ("attn",)),
        ("no PP;full-iteration graph mentioned in recipe", ("full_iteration",)),
    ],
)
def test_the_scope_of_cuda_graphs_is_read(tmp_path, words, scope):
    found = reading(tmp_path, cuda_graph="1", schedule_overlap_flags=words)
    assert found.scenario.plan.cuda_graph_scope == scope
    assert found.assumptions == ()


BRIDGE = {
    "software": "Megatron-Bridge (NeMo container 25.11)",
    "software_date": "2025-11",
    "dispatcher_norm": "unknown",
}


@pytest.mark.parametrize(
    ("changes", "dispatcher", "scope"),
    [
        ({}, "alltoall", ()),
        ({"accelerator_id": "GB200", "gpus_per_node": "4"}, "hybridep", ()),
        ({"accelerator_id": "GB200", "gpus_per_node": "4", "software_date": "2025-09"}, "alltoall", ()),
        ({"accelerator_id": "GB200", "gpus_per_node": "4", "routing": "drop"}, "alltoall", ("full_iteration",)),
        ({"routing": "drop"}, "alltoall", ()),
    ],
)
def test_a_blank_dispatcher_is_that_of_the_recipes_of_its_time(tmp_path, changes, dispatcher, scope):
    plan = reading(tmp_path, **{**BRIDGE, **changes}).scenario.plan
    assert (plan.dispatcher, plan.cuda_graph_scope) == (dispatcher, scope)


def test_a_job_smaller_than_a_node_uses_part_of_it(tmp_path):
    scenario = reading(tmp_path, num_gpus="4", ep="4").scenario
    assert scenario.cluster.devices == 4


def test_racks_of_72_run_jobs_in_domains_of_64(tmp_path):
    changes = {"accelerator_id": "GB200", "num_gpus": "256", "gpus_per_node": "4", "gbs": "256"}
    assert reading(tmp_path, **changes).scenario.cluster.groups[0].domain_devices == 64


def test_details_come_from_the_model_of_that_shape(repository):
    rows = {row.id: row for row in read_table(repository / "scenarios" / "published" / "training.csv")}
    deepseek = scenario_of(rows["moe-0043"]).scenario.model
    assert (deepseek.moe.group_limit, deepseek.moe.num_groups, deepseek.attention.kind) == (4, 8, "mla")
    assert scenario_of(rows["moe-0459"]).scenario.model.name == "Mixtral-8x22B"
    assert scenario_of(rows["moe-0094"]).scenario.model.attention.sinks


# ---------------------------------------------------------------- the command


def test_the_command_compares_a_table_of_ones_own(tmp_path, capsys):
    table = write(tmp_path / "mine.csv", ROW, ROW | {"id": "r2", "dp_sharding": "zero9"})
    command.validate(table=table, csv=tmp_path / "out.csv", jobs=1)
    out = capsys.readouterr().out
    assert "1 of 2 published runs simulated" in out
    assert "zero9 sharding not modelled: r2" in out
    assert "likely" not in (tmp_path / "out.csv").read_text(encoding="utf-8")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(encoding="utf-8"))))
    assert [line["status"] for line in lines] == ["ok", "unsupported"]
    assert float(lines[0]["low_s"]) < float(lines[0]["simulated_s"]) < float(lines[0]["high_s"])


def test_processes_change_nothing_and_markdown_goes_to_the_screen(tmp_path, capsys):
    table = write(tmp_path / "mine.csv", ROW, ROW | {"id": "r2", "mbs": "2"})
    command.validate(table=table, csv=Path("-"), jobs=1)
    alone = capsys.readouterr().out
    command.validate(table=table, csv=Path("-"), jobs=2)
    assert capsys.readouterr().out == alone
    command.validate(table=table, markdown=True, jobs=1)
    assert capsys.readouterr().out.startswith("| group | rows |")


def test_the_command_wants_one_table_and_some_rows(tmp_path):
    table = write(tmp_path / "mine.csv", ROW)
    with pytest.raises(SpecError, match="either --published or --table"):
        command.validate()
    with pytest.raises(SpecError, match="either --published or --table"):
        command.validate(published=True, table=table)
    with pytest.raises(SpecError, match="no row is left"):
        command.validate(table=table, group="other")


def test_a_result_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(OutputError, match="does not exist"):
        command.validate(table=write(tmp_path / "mine.csv", ROW), csv=tmp_path / "none" / "out.csv", jobs=1)
