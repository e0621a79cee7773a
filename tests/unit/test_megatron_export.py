"""Scenario -> launch script: arguments, hosts, refusals, the nearest plan."""

import socket
import subprocess
from pathlib import Path

import pytest

from simmoe.errors import SpecError
from simmoe.pipeline import run
from simmoe.specs.megatron.arguments import parse_words
from simmoe.specs.megatron.expressible import reasons
from simmoe.specs.megatron.hosts import hosts_of
from simmoe.specs.megatron.nearest import nearest
from simmoe.specs.megatron.script import launch_script
from simmoe.specs.megatron.settings import Settings
from simmoe.specs.megatron.to_arguments import to_arguments
from simmoe.specs.plan import Chunk, Plan, Stage
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario
from tests.command_line import Simmoe, files, in_folder
from tests.scenarios import SMALL, ZEBRA, small, zebra

EXAMPLES = Path(__file__).parents[2] / "scenarios" / "examples"
MIXED = EXAMPLES / "mixtral-8x7b-32xh100-32xa100.yaml"


@pytest.fixture
def simmoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Simmoe:
    """Runs `simmoe` in an empty folder."""
    return in_folder(tmp_path, monkeypatch, capsys)


def options(scenario: Scenario) -> dict[str, tuple[str, ...]]:
    """Flags with their values."""
    export = to_arguments(scenario)
    return {flag: tuple(values) for flag, *values in (*export.model, *export.moe, *export.training, *export.parallel)}


def with_stages(scenario: Scenario, *stages: Stage) -> Scenario:
    plan = Plan(stages=stages, pipeline_parallel=len(stages))
    return scenario.model_copy(update={"plan": plan})


def stage(first: int, devices: int, layers: tuple[int, int], **changes: object) -> Stage:
    """A stage with data parallelism alone: layers [first, first + count)."""
    ends = {"embedding": layers[0] == 0, "head": sum(layers) == 8}
    values = {"first_device": first, "devices": devices, "data_parallel": devices, "expert_parallel": 4} | changes
    chunk = Chunk(position=0 if ends["embedding"] else 1, first_layer=layers[0], layers=layers[1], **ends)
    return Stage.model_validate(values | {"chunks": (chunk,)})


def test_sizes_split_and_recomputation_become_flags() -> None:
    found = options(
        small(
            "plan.tensor_parallel=2",
            "plan.stage_layers=[5, 3]",
            "plan.recompute={granularity: full, num_layers: 2}",
            "plan.dispatcher=deepep",
        )
    )
    assert found["--tensor-model-parallel-size"] == ("2",)
    assert found["--sequence-parallel"] == ()
    assert found["--pipeline-model-parallel-layout"] == ("Et*5|t*3L",)
    assert found["--recompute-method"] == ("block",)
    assert found["--recompute-num-layers"] == ("2",)
    assert found["--moe-token-dispatcher-type"] == ("flex",)
    assert found["--moe-flex-dispatcher-backend"] == ("deepep",)
    assert found["--expert-tensor-parallel-size"] == ("1",)  # Megatron's default would be 2


@pytest.mark.parametrize(
    ("precision", "wanted"),
    [
        ("bf16", {"--bf16": ()}),
        ("fp8-delayed", {"--bf16": (), "--fp8-format": ("hybrid",), "--fp8-recipe": ("delayed",)}),
        ("fp8-blockwise", {"--bf16": (), "--fp8-format": ("e4m3",), "--fp8-recipe": ("blockwise",)}),
        ("fp16", {"--fp16": ()}),
        ("fp32", {}),
    ],
)
def test_precision_becomes_flags(precision: str, wanted: dict[str, tuple[str, ...]]) -> None:
    found = options(small(f"training.precision={precision}"))
    shown = {flag: values for flag, values in found.items() if flag[2:5] in {"bf1", "fp1", "fp8", "fp4"}}
    assert shown == wanted


def test_the_environment_follows_from_the_plan() -> None:
    assert to_arguments(small()).environment == {}
    assert to_arguments(small("plan.tensor_parallel=2")).environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    overlapped = ("plan.pipeline_parallel=1", "plan.overlap_moe_expert_parallel_comm=true")
    assert to_arguments(small(*overlapped)).environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    assert to_arguments(small("training.precision=tf32")).environment == {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    fsdp = small("plan.pipeline_parallel=1", "plan.tensor_parallel=2", "plan.sharding=zero3")
    assert to_arguments(fsdp).environment == {}
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in launch_script(fsdp)


def test_dense_layers_and_shared_experts_become_flags() -> None:
    found = options(load_scenario(EXAMPLES / "deepseek-v3-2048xh800.yaml"))
    assert found["--moe-layer-freq"] == ("([0]*3+[1]*58)",)
    assert found["--moe-shared-expert-intermediate-size"] == ("2048",)
    assert found["--moe-router-group-topk"] == ("4",)
    assert found["--mtp-num-layers"] == ("1",)
    assert "--group-query-attention" not in found


def test_hosts_are_listed_in_the_order_of_ranks() -> None:
    first, second = hosts_of(load_scenario(MIXED))
    assert (first.node, first.hosts, first.first_rank, first.ranks, first.stages) == ("dgx-h100", 4, 0, 32, (0, 0))
    assert (second.node, second.first, second.first_rank, second.stages) == ("dgx-a100-80gb", 4, 32, (1, 1))
    script = launch_script(load_scenario(MIXED))
    assert "#   hosts 0-3: dgx-h100 (8 x NVIDIA H100 SXM5 80 GB), ranks 0-31, stage 0\n" in script
    assert "#   hosts 4-7: dgx-a100-80gb (8 x NVIDIA A100 SXM4 80 GB), ranks 32-63, stage 1\n" in script


def test_a_pipeline_that_starts_on_the_second_group_lists_its_hosts_first() -> None:
    base = load_scenario(MIXED)
    one, two = base.plan.stages
    turned = (one.model_copy(update={"first_device": 32}), two.model_copy(update={"first_device": 0}))
    scenario = base.model_copy(update={"plan": base.plan.model_copy(update={"stages": turned})})
    assert reasons(scenario) == ()
    assert [part.node for part in hosts_of(scenario)] == ["dgx-a100-80gb", "dgx-h100"]


def test_a_part_of_a_host_is_chosen_by_its_devices() -> None:
    scenario = with_stages(small(), stage(0, 4, (0, 4)), stage(8, 4, (4, 4)))
    script = launch_script(scenario)
    assert script.count("  export CUDA_VISIBLE_DEVICES=0,1,2,3\n") == 2
    assert "WORLD_SIZE=8\n" in script
    assert "if (( NODE_RANK < 1 )); then\n  NPROC_PER_NODE=4\n" in script


def test_hosts_taken_in_turns_are_refused() -> None:
    scenario = with_stages(small(), stage(0, 4, (0, 3)), stage(8, 4, (3, 3)), stage(4, 4, (6, 2)))
    with pytest.raises(SpecError, match="in turns"):
        hosts_of(scenario)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (("plan.schedule=gpipe",), "schedule gpipe"),
        (("plan.schedule=zb-h1",), "schedule zb-h1"),
        (("plan.dispatcher=uccl",), "dispatcher uccl"),
        (("plan.a2a_ffn_overlap_degree=2",), "a2a_ffn_overlap_degree 2"),
        (("plan.overlap_grad_reduce=false",), "overlap_param_gather without overlap_grad_reduce"),
        (("plan.pipeline_parallel=1", "plan.sharding=zero2"), "--use-torch-fsdp2 does not go with"),
        (("routing={kind: zipf, exponent: 1.0, expert_replicas: 1}",), "routing.expert_replicas 1"),
        (("plan.tensor_parallel=2", "plan.sequence_parallel=false"), "needs --sequence-parallel"),
        (("training.precision=fp32", "training.gradient_dtype=bf16"), "gradient_dtype bf16"),
    ],
)
def test_what_megatron_cannot_be_told_is_refused_with_its_reason(changes: tuple[str, ...], part: str) -> None:
    scenario = small(*changes)
    found = reasons(scenario)
    assert len(found) == 1
    assert part in found[0]
    other = nearest(scenario)
    assert other is not None
    assert reasons(other) == ()


def test_unlike_stages_are_refused_each_with_its_reason_and_made_alike() -> None:
    one = stage(0, 12, (0, 5), expert_parallel=4, recompute={"granularity": "full"})
    two = stage(12, 4, (5, 3), data_parallel=2, tensor_parallel=2, expert_parallel=2)
    scenario = with_stages(small("training.global_batch_size=96"), one, two)
    found = " ".join(reasons(scenario))
    for name in ("devices (4 and 12)", "tensor_parallel (1 and 2)", "data_parallel", "expert_parallel", "recompute"):
        assert name in found
    other = nearest(scenario)
    assert other is not None
    assert [part.devices for part in other.plan.stages] == [8, 8]
    assert [part.layers for part in other.plan.stages] == [5, 3]
    assert {part.recompute.granularity for part in other.plan.stages} == {"full"}
    assert {part.tensor_parallel for part in other.plan.stages} == {1}
    assert run(other).metrics.step_time_s > 0


def test_zebra_stages_are_refused_and_their_devices_kept() -> None:
    scenario = zebra()
    assert reasons(scenario) == ("zebra stages: Megatron-LM keeps attention and experts of a layer on the same GPUs",)
    other = nearest(scenario)
    assert other is not None
    assert sum(part.devices for part in other.plan.stages) == scenario.cluster.devices


def test_a_plan_that_can_be_run_is_its_own_nearest() -> None:
    scenario = small("plan.stage_layers=[5, 3]")
    other = nearest(scenario)
    assert other is not None
    assert other.plan.stages == scenario.plan.stages


def test_v_shaped_chunks_become_interleaved_ones() -> None:
    other = nearest(small("plan.schedule=zb-v"))
    assert other is not None
    assert (other.plan.schedule, len(other.plan.stages[0].chunks)) == ("interleaved", 2)


def test_the_script_is_bash_and_stops_without_its_variables(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(launch_script(load_scenario(MIXED)), encoding="utf-8")
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    bare = subprocess.run(["bash", path], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert bare.returncode != 0
    assert "MEGATRON_PATH" in bare.stderr


def test_bash_hands_torchrun_the_words_of_the_export(tmp_path: Path) -> None:
    scenario = load_scenario(MIXED)
    torchrun = tmp_path / "torchrun"
    torchrun.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    torchrun.chmod(0o755)
    path = tmp_path / "launch.sh"
    path.write_text(launch_script(scenario), encoding="utf-8")
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MEGATRON_PATH": "/m", "MASTER_ADDR": "h0", "NODE_RANK": "3"}
    done = subprocess.run(["bash", path, "--seed", "1"], env=variables, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    start = words.index("/m/pretrain_gpt.py")
    assert words[words.index("--nnodes") + 1] == "8"
    assert words[words.index("--node-rank") + 1] == "3"
    assert tuple(words[start + 1 :])[: len(to_arguments(scenario).words)] == to_arguments(scenario).words
    assert words[-2:] == ["--seed", "1"]


def test_a_host_finds_its_rank_in_the_file_of_hosts(tmp_path: Path) -> None:
    torchrun, hosts, path = tmp_path / "torchrun", tmp_path / "hosts", tmp_path / "launch.sh"
    torchrun.write_text('#!/bin/bash\necho "$@"\n', encoding="utf-8")
    torchrun.chmod(0o755)
    path.write_text(launch_script(load_scenario(MIXED)), encoding="utf-8")
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MEGATRON_PATH": "/m", "HOSTFILE": str(hosts)}
    for names, status in (("h0\nh1\n{}\nh3\n", 0), ("h0\nh1\n", 2)):
        hosts.write_text(names.format(socket.gethostname()), encoding="utf-8")
        done = subprocess.run(["bash", path], env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert ("--node-rank 2 " in done.stdout) == (status == 0)
        assert ("--master-addr h0 " in done.stdout) == (status == 0)


def test_settings_of_a_layout_are_those_of_its_plan() -> None:
    scenario = load_scenario(EXAMPLES / "deepseek-v3-2048xh800.yaml")
    s = Settings(parse_words(to_arguments(scenario).words), 2048)
    assert s.layout is not None
    assert [part.count("t") for part in s.layout] == [part.layers for part in scenario.plan.stages]


def test_the_command_writes_the_script(simmoe: Simmoe) -> None:
    found = simmoe("export", "megatron", SMALL, "-o", "launch.sh")
    assert found.status == 0
    assert found.out.startswith("Wrote launch.sh")
    assert files() == ["launch.sh"]
    printed = simmoe("export", "megatron", SMALL)
    assert printed.out == Path("launch.sh").read_text(encoding="utf-8")


def test_the_command_refuses_what_megatron_cannot_run(simmoe: Simmoe) -> None:
    found = simmoe("export", "megatron", ZEBRA, "-o", "launch.sh")
    assert (found.status, found.out) == (2, "")
    reason, advice = found.err.splitlines()
    assert reason.startswith(f"{ZEBRA}: stock Megatron-LM cannot run this plan: zebra stages")
    assert "--nearest" in advice
    assert files() == []


def test_the_command_exports_the_nearest_plan_and_says_what_it_loses(simmoe: Simmoe) -> None:
    found = simmoe("export", "megatron", SMALL, "--set", "plan.schedule=zb-v", "--nearest", "-o", "launch.sh")
    assert found.status == 0
    reason, plan, loss, wrote = found.out.splitlines()
    assert reason.startswith("schedule zb-v")
    assert plan.startswith("nearest plan: pipeline 2 x 2 virtual")
    own, near = small("plan.schedule=zb-v"), nearest(small("plan.schedule=zb-v"))
    assert near is not None
    change = run(near).metrics.step_time_s / run(own).metrics.step_time_s - 1
    assert f"{100 * change:+.1f} %" in loss
    assert wrote.startswith("Wrote")
    assert "# Note: nearest plan" in Path("launch.sh").read_text(encoding="utf-8")


def test_a_folder_that_does_not_exist_is_told_before_the_simulation(simmoe: Simmoe) -> None:
    found = simmoe("export", "megatron", SMALL, "-o", "nowhere/launch.sh")
    assert found.status == 2
    assert found.err.count("\n") == 1
