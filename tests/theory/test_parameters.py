"""Parameter counts equal those of the released checkpoints, and ranks together hold the model."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from simmoe.cost.parameters import count_parameters, padded_vocabulary, rank_parameters
from simmoe.specs.model import Attention, Model, MoE
from simmoe.specs.plan import Chunk, Stage

MODELS = Path(__file__).resolve().parents[2] / "scenarios" / "models"

# Weights of attention, experts, router and embeddings in 1e9, total and active.
BILLIONS = {
    "dbrx": ("131.60", "36.47"),
    "deepseek-r1": ("671.03", "37.55"),
    "deepseek-v2": ("235.74", "21.38"),
    "deepseek-v2-lite": ("15.71", "2.66"),
    "deepseek-v3": ("671.03", "37.55"),
    "glm-4.5": ("352.80", "33.63"),
    "glm-4.5-air": ("106.85", "13.42"),
    "gpt-oss-120b": ("116.79", "5.71"),
    "gpt-oss-20b": ("20.91", "4.19"),
    "grok-1": ("315.68", "83.76"),
    "kimi-k2": ("1026.41", "32.86"),
    "llama-4-maverick": ("400.71", "17.18"),
    "llama-4-scout": ("107.77", "17.17"),
    "mixtral-8x22b": ("140.62", "39.15"),
    "mixtral-8x7b": ("46.70", "12.88"),
    "olmoe-1b-7b": ("6.92", "1.28"),
    "phi-3.5-moe": ("41.87", "6.64"),
    "qwen1.5-moe-a2.7b": ("14.32", "2.69"),
    "qwen2-57b-a14b": ("57.41", "14.25"),
    "qwen3-235b-a22b": ("235.09", "22.19"),
    "qwen3-30b-a3b": ("30.53", "3.35"),
    "switch-base-128": ("7.42", "0.22"),
    "switch-base-8": ("0.62", "0.22"),
}

# Numbers in the released checkpoints, norms and biases included. The GLM checkpoints repeat embedding
# and head inside the MTP layer; Phi-3.5-MoE has a bias on its head.
CHECKPOINTS = {
    "dbrx": 131_596_523_520,
    "deepseek-v2-lite": 15_706_484_224,
    "glm-4.5": 358_337_791_296 - 2 * 151552 * 5120,
    "glm-4.5-air": 110_468_824_832 - 2 * 151552 * 4096,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2-1.5b": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "olmoe-1b-7b": 6_919_161_856,
    "phi-3.5-moe": 41_873_153_344 - 32064,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}


def shipped(name: str) -> Model:
    return Model.model_validate(YAML(typ="safe").load(MODELS / f"{name}.yaml"))


@pytest.mark.parametrize("name", BILLIONS)
def test_total_and_active_to_the_published_digits(name: str):
    count = count_parameters(shipped(name))
    assert (f"{count.total / 1e9:.2f}", f"{count.active / 1e9:.2f}") == BILLIONS[name]


def test_the_expected_digits_are_those_of_the_reference_table(shared: Path):
    text = (shared / "models" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+)\.json \|[^|]*\| ([\d.]+)B \| ([\d.]+)B \|", text, re.MULTILINE)
    assert {name: (total, active) for name, total, active in rows} == BILLIONS


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_number_of_the_released_checkpoint_is_counted(name: str):
    assert count_parameters(shipped(name)).exact == CHECKPOINTS[name]


def test_every_number_of_deepseek_v3_without_its_mtp_layer():
    count = count_parameters(shipped("deepseek-v3"))
    assert count.exact - count.mtp == 671_026_419_200


def test_latent_attention_by_hand():
    """Expectation: DeepSeek-V3 attention has 187 105 280 weights a layer; Actual: the count over 61."""
    h, heads = 7168, 128
    query = h * 1536 + 1536 * heads * (128 + 64)
    key_value = h * (512 + 64) + 512 * heads * (128 + 128)
    by_hand = query + key_value + heads * 128 * h
    assert by_hand == 187_105_280
    assert count_parameters(shipped("deepseek-v3")).attention == 61 * by_hand


def test_mtp_is_a_whole_layer_with_projection_and_three_norms():
    """Expectation: DeepSeek-V3's MTP layer has 2 h^2 + 3 h more than a 62nd layer would."""
    model = shipped("deepseek-v3")
    longer = model.model_copy(update={"num_layers": 62, "mtp_layers": 0})
    more = count_parameters(model).exact - count_parameters(longer).exact
    assert more == 2 * 7168**2 + 3 * 7168


# ---------------------------------------------------------------- ranks

# Powers of two divide floats exactly, so that sums over ranks can be compared with ==.
POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    heads = draw(st.sampled_from([8, 16]))
    biases = {"bias": draw(st.booleans()), "output_bias": draw(st.booleans())}
    if draw(st.booleans()):
        return Attention(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=24,
            q_lora_rank=draw(st.sampled_from([0, 40])),
            kv_lora_rank=24,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=16,
            **biases,
        )
    return Attention(
        num_heads=heads,
        num_kv_heads=draw(st.sampled_from([1, 2, 4, 8])),
        head_dim=8,
        qk_norm=draw(st.sampled_from(["none", "head", "full"])),
        sinks=draw(st.booleans()),
        **biases,
    )


@st.composite
def models(draw: st.DrawFn) -> Model:
    moe = MoE(
        num_experts=8,
        top_k=draw(st.integers(1, 8)),
        moe_ffn_hidden_size=draw(st.integers(1, 50)),
        shared_expert_ffn_hidden_size=draw(st.integers(0, 50)),
        shared_expert_gate=draw(st.booleans()),
        first_dense_layers=draw(st.integers(0, 3)),
        layer_period=draw(st.integers(1, 3)),
        router_bias=draw(st.booleans()),
    )
    flags = [
        "gated_mlp",
        "tied_embeddings",
        "learned_positions",
        "mlp_bias",
        "norm_bias",
    ]
    return Model(
        id="m",
        name="m",
        source="",
        num_layers=draw(st.integers(1, 12)),
        hidden_size=draw(st.integers(1, 100)),
        ffn_hidden_size=draw(st.integers(1, 100)),
        vocab_size=draw(st.integers(1, 1000)),
        max_position_embeddings=64,
        attention=draw(attentions()),
        moe=draw(st.none() | st.just(moe)),
        mtp_layers=draw(st.integers(0, 2)),
        norms_per_layer=draw(st.integers(1, 4)),
        **{flag: draw(st.booleans()) for flag in flags},
    )


@st.composite
def stages(draw: st.DrawFn, model: Model) -> tuple[Stage, ...]:
    """A random plan: layers cut anywhere over pp stages of vpp chunks, each stage with its own sizes."""
    pipeline, virtual = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    count = pipeline * virtual
    cuts = draw(st.lists(st.integers(0, model.num_layers), min_size=count - 1, max_size=count - 1))
    bounds = [0, *sorted(cuts), model.num_layers]
    chunks = [
        Chunk(
            first_layer=bounds[i],
            layers=bounds[i + 1] - bounds[i],
            embedding=i == 0,
            head=i == count - 1,
            mtp_layers=model.mtp_layers if i == count - 1 else 0,
        )
        for i in range(count)
    ]
    made = []
    for number in range(pipeline):
        tensor, data, expert, expert_tensor = (draw(POWERS) for _ in range(4))
        made.append(
            Stage(
                first_device=64 * number,
                devices=math.lcm(tensor * data, expert * expert_tensor),
                chunks=tuple(chunks[number::pipeline]),
                tensor_parallel=tensor,
                data_parallel=data,
                expert_parallel=expert,
                expert_tensor_parallel=expert_tensor,
            )
        )
    return tuple(made)


@given(st.data())
def test_ranks_without_replicas_hold_exactly_the_model(data: st.DataObject):
    model = data.draw(models())
    plan = data.draw(stages(model))
    held = 0.0
    for stage in plan:
        rank = rank_parameters(model, stage)
        held += rank.sharded * stage.tensor_parallel + rank.replicated
        held += rank.expert * stage.expert_parallel * stage.expert_tensor_parallel
    assert held == count_parameters(model).exact


@given(st.data())
def test_padding_only_adds(data: st.DataObject):
    model = data.draw(models())
    for stage in data.draw(stages(model)):
        plain, padded = rank_parameters(model, stage), rank_parameters(model, stage, pad_vocabulary=True)
        assert padded.sharded >= plain.sharded
        assert padded.replicated == plain.replicated
        assert padded.expert == plain.expert


def one_stage(model: Model, **sizes: int) -> Stage:
    chunk = Chunk(first_layer=0, layers=model.num_layers, embedding=True, head=True)
    return Stage(first_device=0, devices=64, chunks=(chunk,), data_parallel=1, **sizes)


def test_key_value_heads_are_copied_beyond_their_number():
    """Expectation: Qwen3-235B has 4 key/value heads; of 8 ranks each holds one whole, 1/8 its own."""
    model = shipped("qwen3-235b-a22b")
    key_value = 94 * 2 * 4096 * 4 * 128
    assert rank_parameters(model, one_stage(model, tensor_parallel=8)).copies == key_value / 8
    assert rank_parameters(model, one_stage(model, tensor_parallel=4)).copies == 0


def test_the_last_stage_copies_a_tied_embedding():
    """Expectation: V h / tp on the last of two stages, nothing on a stage that has the embedding."""
    model = shipped("gpt2-1.5b")
    last = Stage(
        first_device=0,
        devices=2,
        chunks=(Chunk(first_layer=24, layers=24, head=True),),
        tensor_parallel=2,
        data_parallel=1,
    )
    assert rank_parameters(model, last).copies == 50257 * 1600 / 2
    assert rank_parameters(model, one_stage(model)).copies == 0


def test_the_mtp_stage_copies_the_embedding():
    model = shipped("deepseek-v3")
    chunk = Chunk(first_layer=60, layers=1, mtp_layers=1, head=True)
    stage = Stage(first_device=0, devices=8, chunks=(chunk,), data_parallel=8, expert_parallel=8)
    rank = rank_parameters(model, stage)
    assert rank.copies == 129280 * 7168
    assert rank.expert == 2 * 256 * 3 * 7168 * 2048 / 8


def test_latent_down_projections_norms_and_router_are_whole_on_every_rank():
    """Expectation: DeepSeek-V3 replicates h (q + c + r), 2 h + q + c norms, and E h + E routing."""
    model = shipped("deepseek-v3").model_copy(update={"mtp_layers": 0})
    rank = rank_parameters(model, one_stage(model, tensor_parallel=8, expert_parallel=8))
    attention = 7168 * (1536 + 512 + 64) + 1536 + 512 + 2 * 7168
    router = 256 * 7168 + 256
    assert rank.replicated == 61 * attention + 58 * router + 7168


@pytest.mark.parametrize(("tensor_parallel", "rows"), [(1, 50304), (2, 50432), (8, 51200)])
def test_vocabulary_is_padded_as_megatron_does(tensor_parallel: int, rows: int):
    assert padded_vocabulary(50257, tensor_parallel) == rows
