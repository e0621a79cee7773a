"""The rules, groups and flags of Megatron-LM beside what its own code (Megatron-Core 0.19.2) says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simmoe.cost.faults import group_members
from simmoe.specs.megatron.arguments import parse_words
from simmoe.specs.megatron.flags import FLAGS
from simmoe.specs.megatron.groups import DEFAULT_ORDER, rank_groups
from simmoe.specs.megatron.rules import problems
from simmoe.specs.megatron.settings import Settings
from simmoe.specs.megatron.to_arguments import to_arguments
from simmoe.specs.plan import Chunk, Stage
from simmoe.specs.reader import load_scenario

ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
LAYERS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
# What an error of Megatron begins with -> our rule, and what our sentence must name.
ERRORS = (
    (r"world size \(\d+\) is not divisible by total_model_size", "world", "world size"),
    (r"eval_global_batch_size \(\d+\) must be divisible", "batch", "--global-batch-size"),
    (r"When interleaved schedule is used", "interleaving", "--pipeline-model-parallel-size"),
    (r"Number of layers should be divisible", "layers divide", "--num-layers"),
    (r"number of layers of the model must be divisible", "layers divide", "--num-layers"),
    (r"number of layers per pipeline stage must be", "layers divide again", "--num-layers-per-virtual-pipeline-stage"),
    (r"The length of pipeline_model_parallel_layout", "layout divides", "--pipeline-model-parallel-layout"),
    (r"Mismatch: \d+ middle layers remaining", "ends", "middle stages"),
    (r"number of layers at middle stage", "ends", "middle stages"),
    (r"If enabling EP A2A overlap", "overlap experts", "virtual stages"),
    (r"Must use --overlap-param-gather with", "param gather with reduce", "--overlap-grad-reduce"),
    (r"When using recompute_granularity: selective", "selective layers", "--recompute-num-layers"),
    (r"When using recompute_granularity: full", "full layers", "--recompute-num-layers"),
    (r"Using recompute_granularity: full so", "full method", "--recompute-method"),
    (r"recompute method is not yet supported", "recompute method", "--recompute-method"),
    (r"Invalid choices for recompute_modules", "recompute modules", "--recompute-modules"),
    (r"Number of decoder layers \d+must match", "layout layers", "--num-layers"),
    (r"Number of mtp layers in layout", "layout mtp", "--mtp-num-layers"),
    (r"Invalid layer character", "layout letters", "'x'"),
    (r"pipeline_model_parallel_layout cannot be set with", "layout alone", "--pipeline-model-parallel-layout"),
    (r"please use --num-virtual-stages-per", "virtual with ends", "--num-virtual-stages-per-pipeline-rank"),
    (r"Number of experts should be a multiple", "experts divide", "--num-experts"),
    (r"Delaying wgrad compute is only supported", "delayed gradients", "--transformer-impl"),
    (r"num_attention_heads \(\d+\) must be a multiple", "heads", "--num-attention-heads"),
    (r"x: error: unrecognized arguments", "unknown flag", "--foo"),
)


def read(shared: Path, name: str) -> Any:
    path = shared / "megatron" / name
    if not path.is_file():
        pytest.skip(f"no reference material: {path} is absent")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def cases(shared: Path) -> list[dict[str, Any]]:
    """Argument lists with what the real code made of them."""
    golden = read(shared, "validate_golden_0.19.2.json")
    return [case | {"argv": golden["base_argv"] + case["argv"]} for case in golden["cases"]]


@pytest.fixture(scope="module")
def options(shared: Path) -> dict[str, dict[str, Any]]:
    """The flags of the real parser."""
    return {flag: option for option in read(shared, "flags_0.19.2.json") for flag in option["flags"]}


def first_problem(case: dict[str, Any]) -> tuple[str, str] | None:
    """The first rule that the arguments break before Megatron trains, and our sentence."""
    found = problems(parse_words(case["argv"]), case["world_size"], ENVIRONMENT)
    early = [problem for problem in found if not problem.late]
    return (early[0].rule, early[0].sentence) if early else None


def test_there_are_cases_of_both_kinds(cases: list[dict[str, Any]]) -> None:
    assert (len(cases), sum(case["ok"] for case in cases)) == (262, 100)


def test_every_case_is_accepted_or_refused_as_by_megatron_for_the_same_reason(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        found = first_problem(case)
        if case["ok"]:
            assert found is None, case["name"]
            continue
        assert found is not None, case["name"]
        error = re.sub(r"^[A-Za-z]+: ", "", case["error"])
        rule, named = next((rule, named) for start, rule, named in ERRORS if re.match(start, error))
        assert found[0] == rule, (case["name"], error, found)
        assert named in found[1], (case["name"], error, found)


def test_sizes_that_follow_are_those_of_megatron(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        if not case["ok"]:
            continue
        s = Settings(parse_words(case["argv"]), case["world_size"])
        assert s.data == case["data_parallel_size"]
        assert (s.virtual if s.virtual > 1 else None) == case["virtual_pipeline_model_parallel_size"]
        assert s.expert_tensor == case["expert_tensor_parallel_size"]
        assert s.sequence_parallel == case["sequence_parallel"]
        assert s.batch == case["global_batch_size"]


def test_layouts_put_the_same_layers_on_the_same_ranks(cases: list[dict[str, Any]]) -> None:
    with_layout = [case for case in cases if "layout" in case]
    assert len(with_layout) == 19
    for case in with_layout:
        s = Settings(parse_words(case["argv"]), case["world_size"])
        assert s.layout is not None
        placed = [
            [[LAYERS[item] for item in s.layout[turn * s.pipeline + rank]] for turn in range(s.virtual)]
            for rank in range(s.pipeline)
        ]
        assert placed == case["layout"], case["name"]


def test_ranks_form_the_groups_of_megatron_in_both_orders(shared: Path) -> None:
    golden = read(shared, "rank_groups_golden_0.19.2.json")
    assert len(golden) == 7
    for case in golden:
        dense = {name: case[name] for name in ("tp", "cp", "dp", "pp")}
        experts = {"tp": case["etp"], "ep": case["ep"], "dp": case["edp"], "pp": case["pp"]}
        for sizes, groups in ((dense, case["groups"]), (experts, case["expert_groups"])):
            for kind, ranks in groups.items():
                assert rank_groups(sizes, kind, case["order"]) == ranks, (case, kind)


def test_the_simulator_puts_stages_into_the_same_groups(shared: Path) -> None:
    default = [c for c in read(shared, "rank_groups_golden_0.19.2.json") if c["order"] == DEFAULT_ORDER]
    assert len(default) == 6
    for case in default:
        count = case["world_size"] // case["pp"]
        stage = Stage(
            first_device=0,
            devices=count,
            chunks=(Chunk(first_layer=0, layers=1),),
            tensor_parallel=case["tp"],
            context_parallel=case["cp"],
            data_parallel=case["dp"],
            expert_parallel=case["ep"],
            expert_tensor_parallel=case["etp"],
        )
        ours = {"tp": ("groups", "tp"), "cp": ("groups", "cp"), "dp": ("groups", "dp-cp")}
        ours |= {"ep": ("expert_groups", "ep"), "etp": ("expert_groups", "tp"), "edp": ("expert_groups", "dp")}
        for kind, (part, name) in ours.items():
            first = [group for group in case[part][name] if max(group) < count]
            assert sorted(group_members(stage, kind).tolist()) == sorted(first), (case, kind)


def test_every_flag_of_ours_is_one_of_megatron(options: dict[str, dict[str, Any]]) -> None:
    actions = {"_StoreTrueAction": "on", "_StoreFalseAction": "off"}
    for name, flag in FLAGS.items():
        option = options[f"--{name}"]
        assert option["dest"] == flag.dest, name
        assert (option["nargs"] == 0) == (flag.kind in {"on", "off"}), name
        assert actions.get(option["action"], flag.kind) == flag.kind, name
        assert ((option["nargs"] in {"+", "*"}) or option["nargs"] == 3) == (flag.kind == "words"), name
        if option["choices"] and flag.choices:
            assert set(map(str, option["choices"])) == set(flag.choices), name
        default = str(option["default"]).strip("'[]")
        if flag.default and name != "attention-backend":
            assert default.strip("'") == flag.default, name


def test_every_flag_we_write_exists_and_takes_its_value(options: dict[str, dict[str, Any]], repository: Path) -> None:
    written = {}
    for path in sorted((repository / "scenarios" / "examples").glob("*.yaml")):
        export = to_arguments(load_scenario(path))
        for flag, *values in (*export.model, *export.moe, *export.training, *export.parallel):
            written.setdefault(flag, set()).update(values)
            assert bool(values) == (options[flag]["nargs"] != 0), flag
    assert len(written) > 50
    for flag, values in written.items():
        choices = options[flag]["choices"]
        assert choices is None or values <= set(map(str, choices)), flag
        if options[flag]["type"] in {"int", "float"}:
            assert all(float(value) >= 0 for value in values), flag
