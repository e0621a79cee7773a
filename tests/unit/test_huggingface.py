"""Hugging Face configurations become models, or an error that says what to correct."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from simmoe.errors import SpecError
from simmoe.specs.huggingface import FAMILIES, from_huggingface
from simmoe.specs.model import Model

MODELS = Path(__file__).resolve().parents[2] / "scenarios" / "models"
DESCRIPTIVE = {"id", "name", "source", "published_parameters"}

MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
}
QWEN3_MOE = {
    **MIXTRAL,
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
}
DENSE = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


def read(config: dict[str, Any]) -> Model:
    return from_huggingface(config, id="m", source="test")


def shipped(name: str) -> Model:
    return Model.model_validate(YAML(typ="safe").load(MODELS / f"{name}.yaml"))


def facts(model: Model) -> dict[str, Any]:
    return model.model_dump(exclude=DESCRIPTIVE)


def problems(config: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        read(config)
    return caught.value.problems


# ---------------------------------------------------------------- shipped models


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_model_is_valid_and_names_its_source(path: Path):
    model = shipped(path.stem)
    assert model.id == path.stem
    assert model.name
    assert model.source
    assert model.published_parameters


def test_every_reference_configuration_equals_the_shipped_model_typed_by_hand(shared: Path):
    paths = sorted((shared / "models").glob("*.json"))
    assert len(paths) >= 23
    for path in paths:
        read_from_config = read(json.loads(path.read_text(encoding="utf-8")))
        assert facts(read_from_config) == facts(shipped(path.stem)), path.stem


# ---------------------------------------------------------------- families


def test_llama_2_as_published():
    config = {**DENSE, "model_type": "llama", "rope_theta": 1e4, "torch_dtype": "float16"}
    assert facts(read(config)) == facts(shipped("llama-2-7b"))


def test_gpt2_has_learned_positions_biases_and_a_tied_head():
    config = {
        "model_type": "gpt2",
        "n_embd": 1600,
        "n_layer": 48,
        "n_head": 25,
        "n_positions": 1024,
        "vocab_size": 50257,
        "n_inner": None,
    }
    assert facts(read(config)) == facts(shipped("gpt2-1.5b"))


def test_gpt_neox_has_two_matrices_and_an_untied_head():
    model = read({**DENSE, "model_type": "gpt_neox"})
    assert (model.gated_mlp, model.tied_embeddings, model.mlp_bias) == (False, False, True)


def test_mistral_windows_every_layer():
    model = read({**DENSE, "model_type": "mistral", "sliding_window": 1024})
    assert {layer.window for layer in model.layers} == {1024}


def test_a_window_no_shorter_than_the_longest_sequence_is_none():
    assert read({**MIXTRAL, "sliding_window": 32768}).attention.sliding_window is None


def test_qwen2_has_biased_queries_and_no_window_unless_asked():
    config = {**DENSE, "model_type": "qwen2", "sliding_window": 1024, "max_window_layers": 0}
    attention = read(config).attention
    assert (attention.bias, attention.output_bias, attention.sliding_window) == (True, False, None)
    assert read({**config, "use_sliding_window": True}).attention.sliding_window == 1024


def test_qwen3_norms_its_heads():
    config = {**DENSE, "model_type": "qwen3", "head_dim": 80, "num_key_value_heads": 8}
    attention = read(config).attention
    assert (attention.qk_norm, attention.head_dim, attention.kind) == ("head", 80, "gqa")


def test_granite_has_one_ungated_shared_expert():
    moe = read({**MIXTRAL, "model_type": "granitemoe", "shared_intermediate_size": 1024}).moe
    assert moe is not None
    assert (moe.shared_expert_ffn_hidden_size, moe.shared_expert_gate) == (1024, False)


def test_minimax_is_read_only_with_softmax_in_every_layer():
    config = {**MIXTRAL, "model_type": "minimax"}
    assert facts(read({**config, "attn_type_list": [1] * 32})) == facts(read(MIXTRAL))
    assert "linear attention" in problems({**config, "attn_type_list": [0, 1] * 16})[0]
    assert "linear" in problems({**config, "layer_types": ["linear_attention"] * 32})[0]
    assert problems(config)[0].startswith("attn_type_list: is missing")


def test_llama4_reads_the_nested_text_model_or_the_text_model_alone():
    text = {
        **MIXTRAL,
        "model_type": "llama4_text",
        "intermediate_size_mlp": 8192,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8192,
        "num_experts_per_tok": 1,
    }
    model = read(text)
    assert facts(model) == facts(read({"model_type": "llama4", "text_config": text}))
    assert [layer.moe for layer in model.layers[:4]] == [False, True, False, True]
    assert [layer.window for layer in model.layers[:4]] == [8192, 8192, 8192, None]
    assert facts(model) == facts(read({**text, "no_rope_layers": [1, 1, 1, 0] * 8}))
    assert facts(model) == facts(read({**text, "moe_layers": list(range(1, 32, 2))}))


def test_switch_routes_one_token_to_one_expert_of_two_matrices_in_half_of_both_stacks():
    model = shipped("switch-base-8")
    assert [layer.moe for layer in model.layers] == [False, True] * 12
    assert [layer.cross_attention for layer in model.layers] == [False] * 12 + [True] * 12
    assert model.moe is not None
    assert (model.moe.top_k, model.gated_mlp) == (1, False)


# ---------------------------------------------------------------- layer patterns


@pytest.mark.parametrize(
    ("dense", "step", "first", "period"),
    [([], 1, 0, 1), ([0, 1], 1, 2, 1), ([], 2, 0, 2), ([], 4, 0, 4), ([1], 2, 2, 2)],
)
def test_qwen_layer_patterns(dense: list[int], step: int, first: int, period: int):
    model = read({**QWEN3_MOE, "mlp_only_layers": dense, "decoder_sparse_step": step})
    expected = [i not in dense and (i + 1) % step == 0 for i in range(32)]
    assert [layer.moe for layer in model.layers] == expected
    assert model.moe is not None
    assert (model.moe.first_dense_layers, model.moe.layer_period) == (first, period)


def test_no_moe_layer_makes_a_dense_model():
    assert read({**QWEN3_MOE, "mlp_only_layers": list(range(32))}).moe is None


def test_an_irregular_pattern_of_experts_is_refused():
    (problem,) = problems({**QWEN3_MOE, "mlp_only_layers": [0, 5]})
    assert "not periodic" in problem
    assert "by hand" in problem


def test_an_irregular_pattern_of_windows_is_refused():
    types = ["full_attention", *["sliding_attention"] * 31]
    (problem,) = problems({**MIXTRAL, "sliding_window": 128, "layer_types": types})
    assert problem.startswith("layer_types: windowed and full layers do not alternate")


def test_an_unknown_kind_of_attention_is_refused():
    (problem,) = problems({**MIXTRAL, "sliding_window": 9, "layer_types": ["mamba"] * 32})
    assert "'mamba'" in problem


# ---------------------------------------------------------------- wrong input


@pytest.mark.parametrize("spelling", ["num_experts", "n_routed_experts", "moe_num_experts"])
def test_spellings_are_interchangeable(spelling: str):
    config = {key: value for key, value in MIXTRAL.items() if key != "num_local_experts"}
    assert facts(read({**config, spelling: 8})) == facts(read(MIXTRAL))


def test_equal_spellings_may_stand_together_but_not_differ():
    assert facts(read({**MIXTRAL, "experts_per_token": 2})) == facts(read(MIXTRAL))
    (problem,) = problems({**MIXTRAL, "experts_per_token": 4})
    assert problem.startswith("num_experts_per_tok: its spellings disagree")


@pytest.mark.parametrize("value", [True, "8", 8.0, 0, -1, 2**31, float("nan"), [8], {}])
@pytest.mark.parametrize("key", ["hidden_size", "num_local_experts", "num_hidden_layers"])
def test_a_size_that_is_no_positive_whole_number_is_named(key: str, value: object):
    (problem,) = problems({**MIXTRAL, key: value})
    assert problem.startswith(f"{key}: must be a whole number from 1 to ")
    assert f"(got {value!r})" in problem
    assert "correct it" in problem


@pytest.mark.parametrize("key", sorted(MIXTRAL.keys() - {"model_type", "num_key_value_heads"}))
def test_a_missing_size_is_named_with_what_to_add(key: str):
    config = {name: value for name, value in MIXTRAL.items() if name != key}
    (problem,) = problems(config)
    assert "is missing, add " in problem
    assert key in problem
    assert problems({**config, key: None}) == (problem,)


def test_every_wrong_field_is_reported_at_once():
    changes = {"hidden_size": "wide", "vocab_size": 0, "num_experts_per_tok": None}
    found = problems({**MIXTRAL, **changes})
    assert sorted(problem.split(":")[0] for problem in found) == sorted(changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: must not exceed the 8 experts (got 9)"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: must divide the 32 heads (got 5)"),
        ({"hidden_size": 4097}, "head_dim: hidden_size 4097 does not divide by 32 heads, add"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: must be true or false (got 'no')"),
        ({"layer_types": "full"}, "layer_types: must be a list (got 'full')"),
    ],
)
def test_fields_that_contradict_each_other(changes: dict[str, object], text: str):
    (problem,) = problems({**MIXTRAL, **changes})
    assert problem.startswith(text)


def test_a_problem_in_a_section_carries_the_section():
    (problem,) = problems({**MIXTRAL, "model_type": "llama4", "text_config": [1]})[:1]
    assert problem == "text_config: must be a mapping (got [1]), use the original config.json"
    found = problems({"model_type": "llama4", "text_config": {**MIXTRAL, "vocab_size": 0}})
    assert any(problem.startswith("text_config.vocab_size: ") for problem in found)


@pytest.mark.parametrize("family", ["bert", None, 3, ["mixtral"]])
def test_an_unsupported_family_is_answered_with_the_list_and_a_way_out(family: object):
    (problem,) = problems({**MIXTRAL, "model_type": family})
    assert problem.startswith(f"model_type: {family!r} is not supported (dbrx, deepseek_v2, ")
    assert problem.endswith("by hand: see scenarios/models/mixtral-8x7b.yaml")


ODD: list[object] = [
    None, True, False, -1, 0, 1, 2, 3, 8, 64, 2**33, 0.5, float("nan"), "", "8", [], {}, [None],
    [0, 1], [1] * 8, ["sliding_attention", "full_attention"] * 4, [[1]], {"a": 1}, {**MIXTRAL},
]  # fmt: skip
KEYS = [
    *MIXTRAL, "text_config", "attn_config", "ffn_config", "layer_types", "sliding_window",
    "mlp_only_layers", "first_k_dense_replace", "moe_layer_freq", "n_shared_experts", "head_dim",
    "n_group", "topk_group", "moe_layers", "no_rope_layers", "encoder_sparse_step", "num_layers",
    "decoder_sparse_step", "attention_bias", "attn_type_list", "use_sliding_window",
]  # fmt: skip


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(ODD), max_size=6),
)
def test_any_configuration_gives_a_model_or_a_spec_error(family: str, changes: dict[str, Any]):
    config = {**MIXTRAL, "num_hidden_layers": 8, **changes, "model_type": family}
    try:
        outcome: Model | SpecError = read(config)
    except SpecError as error:
        outcome = error
    if isinstance(outcome, Model):
        assert len(outcome.layers) == outcome.num_layers
    else:
        assert outcome.problems
        assert all(": " in problem for problem in outcome.problems)
