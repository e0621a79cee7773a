"""Launch scripts, logs and YAML -> scenario; and what is wrong with them."""

from pathlib import Path

import pytest

from simmoe.errors import SpecError
from simmoe.specs.megatron.arguments import Arguments, parse_words
from simmoe.specs.megatron.flags import FLAGS
from simmoe.specs.megatron.from_arguments import Imported, from_arguments
from simmoe.specs.megatron.scenario_text import import_megatron
from simmoe.specs.megatron.shell import read_script
from simmoe.specs.megatron.source_file import read_source
from simmoe.specs.megatron.to_arguments import to_arguments
from simmoe.specs.reader import load_scenario
from tests.command_line import Simmoe, in_folder
from tests.scenarios import small

BASE = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --bf16 --swiglu --disable-bias-linear "
    "--normalization RMSNorm --position-embedding-type rope --use-distributed-optimizer"
)
MOE = f"{BASE} --num-experts 8 --moe-ffn-hidden-size 512 --moe-token-dispatcher-type alltoall"


@pytest.fixture
def simmoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Simmoe:
    """Runs `simmoe` in an empty folder."""
    return in_folder(tmp_path, monkeypatch, capsys)


def read(words: str, world: int = 16) -> Imported:
    return from_arguments(parse_words(words.split()), world)


def complaints(words: str, world: int = 16) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        read(words, world)
    return caught.value.problems


def test_defaults_are_those_of_megatron() -> None:
    found = read(
        MOE.replace("--moe-token-dispatcher-type alltoall", "") + " --tensor-model-parallel-size 2 --sequence-parallel"
    )
    assert found.model["ffn_hidden_size"] == 2688  # 2 / 3 of 4 hidden sizes, in multiples of 64
    assert found.model["moe"]["top_k"] == 2
    assert found.plan["expert_tensor_parallel"] == 2  # as tensor parallelism
    assert found.plan["dispatcher"] == "allgather"
    assert found.plan["overlap_grad_reduce"] is False
    assert read(BASE.replace("--use-distributed-optimizer", "")).plan["sharding"] == "none"
    plain = read(BASE.replace("--disable-bias-linear --normalization RMSNorm --position-embedding-type rope", ""))
    assert plain.model["learned_positions"] is plain.model["mlp_bias"] is plain.model["norm_bias"] is True


@pytest.mark.parametrize(
    ("words", "part", "key", "value"),
    [
        ("--recompute-activations", "plan", "recompute", {"granularity": "selective", "modules": ["core_attn"]}),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            "plan",
            "recompute",
            {"granularity": "full"},
        ),
        ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3", "plan", "stage_layers", [3, 5]),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "training", "precision", "fp8-current"),
        ("--grad-reduce-in-bf16", "training", "gradient_dtype", "bf16"),
        ("--optimizer sgd", "training", "optimizer", "sgd"),
        ("--use-megatron-fsdp --ckpt-format fsdp_dtensor", "plan", "sharding", "zero3"),
        ("--num-distributed-optimizer-instances 4", "plan", "sharding_group", 4),
        ("--moe-enable-deepep --moe-token-dispatcher-type flex", "plan", "dispatcher", "deepep"),
        ("--moe-expert-capacity-factor 1.25", "routing", "capacity_factor", 1.25),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn", "plan", "cuda_graph_scope", ["attn"]),
    ],
)
def test_flags_become_keys_of_a_scenario(words: str, part: str, key: str, value: object) -> None:
    found = read(f"{MOE} {words}")
    assert getattr(found, part)[key] == value
    assert found.remarks == ()


def test_model_flags_become_a_model() -> None:
    model = read(
        f"{MOE} --moe-layer-freq [0]*2+[1]*6 --moe-shared-expert-intermediate-size 512 --window-size (127,0) "
        "--window-attn-skip-freq 2 --moe-router-num-groups 4 --moe-router-group-topk 2 --qk-layernorm "
        "--group-query-attention --num-query-groups 2 --kv-channels 64"
    ).model
    assert model["moe"]["first_dense_layers"] == 2
    assert (model["moe"]["num_groups"], model["moe"]["group_limit"]) == (4, 2)
    attention = model["attention"]
    assert (attention["sliding_window"], attention["window_period"]) == (128, 2)
    assert (attention["num_kv_heads"], attention["head_dim"], attention["qk_norm"]) == (2, 64, "head")


def test_every_layer_with_experts_by_a_period_is_read() -> None:
    assert read(f"{MOE} --moe-layer-freq ([0,1]*4)").model["moe"]["layer_period"] == 2
    assert "moe-layer-freq" in complaints(f"{MOE} --moe-layer-freq 2")[0]  # layer 0 first: not known here


def test_unknown_and_unmodelled_flags_are_listed() -> None:
    found = read(f"{MOE} --my-own-flag 3 4 --delay-wgrad --cross-entropy-loss-fusion --log-interval 1")
    assert found.remarks == (
        "unknown flag, ignored: --my-own-flag 3 4",
        "unknown flag, ignored: --delay-wgrad",
        "--cross-entropy-loss-fusion changes a step, and is not simulated",
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (BASE.replace("--num-layers 8", ""), "--num-layers is missing"),
        (BASE.replace("--num-layers 8", "--num-layers eight"), "a whole number above 0 is expected (got 'eight')"),
        (BASE.replace("--num-layers 8", "--num-layers 99999999999999999999"), "a whole number above 0"),
        (f"{MOE} --moe-token-dispatcher-type magic", "none of allgather, alltoall, flex (got 'magic')"),
        (f"{MOE} --moe-expert-capacity-factor nan", "a number is expected (got 'nan')"),
        (f"{BASE} --tensor-model-parallel-size 3", "world size 16 is not divisible"),
        (f"{MOE} --expert-model-parallel-size 3", "--num-experts 8 is not divisible"),
        (f"{MOE} --moe-layer-freq __import__('os')", "--moe-layer-freq is no number and no list"),
        (f"{MOE} --moe-layer-freq [1]*99999", "--moe-layer-freq is no number and no list"),
        (f"{BASE} --hybrid-layer-pattern M*M*", "such models or groups are not known here"),
        (f"{BASE} --pipeline-model-parallel-size 2 --use-tp-pp-dp-mapping", "--use-tp-pp-dp-mapping"),
        (f"{BASE} --tensor-model-parallel-size", "--tensor-model-parallel-size: a value is missing"),
        (f"{BASE} --window-size wide", "--window-size: two whole numbers are expected"),
    ],
)
def test_what_cannot_be_imported_is_told_in_one_sentence(words: str, part: str) -> None:
    found = complaints(words)
    assert any(part in sentence for sentence in found), found
    assert all("\n" not in sentence for sentence in found)


def test_an_order_of_ranks_that_makes_no_difference_is_read() -> None:
    assert read(f"{BASE} --use-tp-pp-dp-mapping --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2")


SCRIPT = """\
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"2"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DATA=$(cat secret)   # never run
MODEL_ARGS=(
    --num-layers 8 --hidden-size $((128 * 8))
    #--num-layers 99
    --num-attention-heads 8 \\
    --moe-layer-freq "([0]*1+[1]*7)"
)
OTHER="
    --seq-length 2048 \\
    --max-position-embeddings 2048 --micro-batch-size 1
    --global-batch-size 64"
OTHER+=" --vocab-size 32000"
if [ -n "$WANDB" ]; then
    MODEL_ARGS+=(--wandb-project x)
fi
cat <<EOF
python wrong.py --num-layers 5 --hidden-size 1
EOF
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
    ${MODEL_ARGS[@]} $OTHER --num-experts 8 "--moe-router-topk=1" --moe-router-pre-softmax --bf16 \\
    --data-path $DATA
"""


def test_a_script_is_read_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    source = read_source(path)
    values = source.arguments.values
    assert source.world == 16
    assert (values["num-layers"], values["hidden-size"], values["moe-router-topk"]) == (8, 1024, 1)
    assert values["moe-layer-freq"] == "([0]*1+[1]*7)"
    assert source.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert source.remarks == ("flags in a condition or a loop were not read, line 19: --wandb-project",)
    assert source.arguments.problems == ()  # the value of --data-path is not known, and matters to nothing
    assert "data-path" not in values


def test_a_command_kept_in_a_variable_and_arrays_alone_are_read(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(
        f'A="{BASE}"\nRUN="cd x; python3 ${{P}}/pretrain_gpt.py $A"\nsrun bash -c "$RUN"\n', encoding="utf-8"
    )
    assert read_source(path).arguments.values["num-layers"] == 8
    path.write_text(f"MODEL_ARGS=(\n{BASE}\n)\n", encoding="utf-8")
    assert read_source(path).arguments.values["hidden-size"] == 1024


def test_variables_that_double_end_with_a_sentence() -> None:
    doubled = "A=xxxxxxxxxxxxxxxx\n" + 'A="$A$A"\n' * 60
    with pytest.raises(SpecError, match="variables make more than"):
        read_script(doubled)


def dump(arguments: Arguments, world: int) -> str:
    """What Megatron prints: every argument by its inner name, a line each."""
    lines = {"world_size": world, "params_dtype": "torch.bfloat16"}
    for name, flag in FLAGS.items():
        value = arguments.values.get(name)
        if flag.kind in {"on", "off"}:
            lines[flag.dest] = (flag.kind == "on") is (value is True)
        elif isinstance(value, tuple):
            lines[flag.dest] = list(value)
        else:
            lines[flag.dest] = value if value is not None else flag.default or None
    head = "0: ------------------------ arguments ------------------------\n"
    return head + "".join(f"0:   {name} {'.' * (48 - len(name))} {value}\n" for name, value in sorted(lines.items()))


def test_the_arguments_in_a_log_are_those_of_the_command(tmp_path: Path) -> None:
    scenario = small("plan.tensor_parallel=2", "plan.stage_layers=[5, 3]", "plan.recompute={granularity: full}")
    words = to_arguments(scenario).arguments
    path = tmp_path / "train.log"
    path.write_text("some line\n" + dump(words, 16) + "iteration 1 | loss ... 3\n", encoding="utf-8")
    source = read_source(path)
    assert source.world == 16
    assert from_arguments(source.arguments, 16) == from_arguments(words, 16)


def test_yaml_is_read_flat_or_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(
        "ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}\nMODEL_ARGS:\n  --num-layers: 8\n  --swiglu: true\n"
        "  --bf16: false\n  --recompute-modules: [moe_act, layernorm]\nworld_size: 64\nhidden_size: 1024\n"
        "add_bias_linear: false\nnot_a_flag: 3\n",
        encoding="utf-8",
    )
    source = read_source(path)
    assert source.world == 64
    assert source.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert source.arguments.values == {
        "num-layers": 8,
        "swiglu": True,
        "recompute-modules": ("moe_act", "layernorm"),
        "hidden-size": 1024,
        "disable-bias-linear": True,
    }
    assert source.arguments.unknown == ("--not-a-flag 3",)


def test_the_command_makes_a_scenario_that_simulates(simmoe: Simmoe) -> None:
    Path("train.sh").write_text(
        f"torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py {MOE} --odd 1\n", encoding="utf-8"
    )
    found = simmoe("import", "megatron", "train.sh", "-o", "mine.yaml")
    assert found.status == 0
    assert "unknown flag, ignored: --odd 1" in found.err
    assert "2 dgx-h100" in found.err
    assert simmoe("simulate", "mine.yaml").status == 0
    assert load_scenario("mine.yaml").cluster.devices == 16
    printed = simmoe("import", "megatron", "train.sh")
    assert printed.out == Path("mine.yaml").read_text(encoding="utf-8")
    assert "# Note: unknown flag, ignored: --odd 1." in printed.out


def test_the_cluster_is_taken_as_large_as_the_job(simmoe: Simmoe) -> None:
    Path("train.sh").write_text(f"torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py {MOE}\n", encoding="utf-8")
    assert import_megatron(Path("train.sh"), "superpod-a100-4").scenario.cluster.nodes == 2
    Path("any.sh").write_text(f"python pretrain_gpt.py {MOE}\n", encoding="utf-8")
    assert import_megatron(Path("any.sh"), "superpod-a100-4").scenario.cluster.devices == 32
    assert simmoe("import", "megatron", "any.sh").err.endswith("name a cluster with --cluster\n")
    assert simmoe("import", "megatron", "train.sh", "--cluster", "nowhere").status == 2
    assert "has 8" in simmoe("import", "megatron", "train.sh", "--cluster", "hetermoe-c1").err


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("absent.sh", None, "there is no such file"),
        ("empty.sh", b"", "the file is empty"),
        ("binary.sh", bytes(range(256)) * 10, "not UTF-8 text"),
        ("zeros.sh", b"torchrun\0\0\0", "is no text file"),
        ("plain.sh", b"echo hello\n", "no arguments of Megatron-LM are in it"),
        ("large.sh", b"python pretrain_gpt.py " + b"--num-layers 8 " * 700_000, "the file is too large (got 10.0 MiB"),
        ("long.sh", b"python pretrain_gpt.py " + b"--num-layers 8 " * 100_000, "a script of 1.4 MiB is too large"),
        ("wrong.yaml", b"a: [1\n", "a list is not closed"),
        ("list.yaml", b"- 1\n", "key: value lines are expected"),
    ],
)
def test_wrong_files_get_one_clear_line(simmoe: Simmoe, name: str, content: bytes | None, part: str) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    found = simmoe("import", "megatron", name)
    assert (found.status, found.out) == (2, "")
    assert found.err.count("\n") == 1
    assert part in found.err
    assert name in found.err


def test_a_folder_is_no_script(simmoe: Simmoe) -> None:
    Path("folder.sh").mkdir()
    found = simmoe("import", "megatron", "folder.sh")
    assert (found.status, found.err) == (2, "folder.sh: is a directory, name a file in it\n")


def test_values_that_break_rules_name_the_file(simmoe: Simmoe) -> None:
    Path("bad.sh").write_text(
        f"torchrun --nproc-per-node 8 pretrain_gpt.py {MOE} --micro-batch-size 3\n", encoding="utf-8"
    )
    found = simmoe("import", "megatron", "bad.sh")
    assert found.status == 2
    assert found.err.startswith("bad.sh: --global-batch-size 64 is not divisible")
