"""Read a Hugging Face ``config.json`` as a `Model`: one small function per family.

Fields that serve inference or numerics (rope, dtype, token ids) are ignored.
"""

from collections.abc import Callable, Mapping

from simmoe.errors import SpecError
from simmoe.specs.config_fields import (
    MOST_LAYERS,
    Fields,
    attention_bias,
    decoder,
    every_layer,
    experts,
    heads,
    window,
    windowed_layers,
)
from simmoe.specs.model import Attention, Model, MoE


def from_huggingface(config: Mapping[str, object], *, id: str, source: str) -> Model:
    """Build a model from the fields of a Hugging Face configuration.

    Parameters
    ----------
    config : mapping of str to object
        The parsed ``config.json``.
    id : str
        Identifier (and name) of the model.
    source : str
        Where the configuration was published.

    Returns
    -------
    Model
        The architecture; ``published_parameters`` is left empty.

    Raises
    ------
    SpecError
        If the family is not supported; or with one line for each field that is missing, of the wrong
        type, out of bounds, or inconsistent with another.

    Notes
    -----
    Sizes are always required. A flag that the file leaves out takes the value of the family's class
    in transformers, or where that differs, of its released checkpoints.

    Valid for transformers with softmax attention; hybrids with linear attention or state-space
    layers are refused.

    Examples
    --------
    >>> config = {
    ...     "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    ...     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...     "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
    ...     "max_position_embeddings": 32768,
    ... }
    >>> model = from_huggingface(config, id="mixtral-8x7b", source="mistralai/Mixtral-8x7B-v0.1")
    >>> model.moe.num_experts, model.attention.head_dim, model.attention.kind
    (8, 128, 'gqa')
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        supported = ", ".join(sorted(FAMILIES))
        raise SpecError(
            [
                f"model_type: {family!r} is not supported ({supported}), "
                "write a model file by hand: see scenarios/models/mixtral-8x7b.yaml"
            ]
        )
    fields = Fields(config, id=id, source=source)
    model = FAMILIES[family](fields)
    if fields.failed:
        fields.fail()
    return model


# ---------------------------------------------------------------- mixture of experts


def _mixtral(fields: Fields) -> Model:
    attention = heads(fields, **window(fields, windowed_layers(fields)))
    return decoder(fields, attention, experts(fields, every_layer(fields), "intermediate_size"))


def _minimax(fields: Fields) -> Model:
    """MiniMax-Text-01 itself mixes in linear attention, which is no `Model`."""
    kinds = fields.items("attn_type_list")
    if not kinds and not fields.items("layer_types"):
        fields.wrong("attn_type_list", "is missing, add it: one entry per layer, 1 for softmax")
    if any(kind != 1 for kind in kinds):
        fields.inconsistent("attn_type_list", "must be 1 (softmax) for every layer, linear attention is not supported")
    return _mixtral(fields)


def _phimoe(fields: Fields) -> Model:
    bias = attention_bias(fields, default=True)  # released checkpoints; the class says False
    attention = heads(fields, **bias, **window(fields, windowed_layers(fields)))
    moe = experts(fields, every_layer(fields), "intermediate_size")
    return decoder(fields, attention, moe, norm_bias=True)


def _granitemoe(fields: Fields) -> Model:
    shared = fields.integer("shared_intermediate_size", 0, least=0)
    moe = experts(
        fields,
        every_layer(fields),
        "intermediate_size",
        shared_expert_ffn_hidden_size=shared,
    )
    return decoder(fields, heads(fields, **attention_bias(fields)), moe)


def _sparse_layers(fields: Fields) -> list[bool]:
    """Qwen's MoE layers: every decoder_sparse_step-th, save those of mlp_only_layers."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = fields.items("mlp_only_layers")
    return [index not in dense and (index + 1) % step == 0 for index in range(fields.layers)]


def _late_window(fields: Fields) -> dict[str, int]:
    """Qwen's window: only with use_sliding_window, and from layer max_window_layers on."""
    if not fields.boolean("use_sliding_window", default=False):
        return {}
    if fields.items("layer_types"):
        return window(fields, windowed_layers(fields))
    first = fields.integer("max_window_layers", 0, least=0)
    return window(fields, [index >= first for index in range(fields.layers)])


def _qwen2_moe(fields: Fields) -> Model:
    moe = experts(
        fields,
        _sparse_layers(fields),
        "moe_intermediate_size",
        shared_expert_ffn_hidden_size=fields.integer("shared_expert_intermediate_size"),
        shared_expert_gate=True,
    )
    return decoder(fields, heads(fields, bias=True, **_late_window(fields)), moe)


def _qwen3_moe(fields: Fields) -> Model:
    attention = heads(fields, qk_norm="head", **attention_bias(fields), **_late_window(fields))
    moe = experts(fields, _sparse_layers(fields), "moe_intermediate_size")
    return decoder(fields, attention, moe)


def _olmoe(fields: Fields) -> Model:
    attention = heads(fields, qk_norm="full", **attention_bias(fields))
    return decoder(fields, attention, experts(fields, every_layer(fields), "intermediate_size"))


def _deepseek_moe(fields: Fields, *, router_bias: bool) -> MoE | None:
    """Leading dense layers, a number of shared experts, and a router limited to groups."""
    first = fields.integer("first_k_dense_replace", 0, least=0)
    step = fields.integer("moe_layer_freq", 1)
    groups = fields.integer("n_group", 1)
    limit = fields.integer("topk_group", groups)
    shared = fields.integer("n_shared_experts", 0, least=0)
    return experts(
        fields,
        [index >= first and index % step == 0 for index in range(fields.layers)],
        "moe_intermediate_size",
        shared_expert_ffn_hidden_size=shared * fields.integer("moe_intermediate_size"),
        router_bias=router_bias,
        **({"group_limit": limit, "num_groups": groups} if limit < groups else {}),
    )


def _deepseek(fields: Fields) -> Model:
    count = fields.integer("num_attention_heads")
    bias = fields.boolean("attention_bias", default=False)
    content, rotary = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
    attention = Attention(
        num_heads=count,
        num_kv_heads=count,  # the latent expands into keys and values of every head
        head_dim=content + rotary,
        q_lora_rank=fields.integer("q_lora_rank", 0, least=0),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=content,
        qk_rope_head_dim=rotary,
        v_head_dim=fields.integer("v_head_dim"),
        bias=bias,
        output_bias=bias,
    )
    moe = _deepseek_moe(fields, router_bias=fields.config.get("topk_method") == "noaux_tc")
    mtp = fields.integer("num_nextn_predict_layers", 0, least=0)
    return decoder(fields, attention, moe, mtp_layers=mtp)


def _glm4_moe(fields: Fields) -> Model:
    attention = heads(
        fields,
        bias=fields.boolean("attention_bias", default=False),  # never on the output projection
        qk_norm="head" if fields.boolean("use_qk_norm", default=False) else "none",
    )
    mtp = fields.integer("num_nextn_predict_layers", 0, least=0)
    return decoder(fields, attention, _deepseek_moe(fields, router_bias=True), mtp_layers=mtp)


def _gpt_oss(fields: Fields) -> Model:
    bias = attention_bias(fields, default=True)
    attention = heads(fields, sinks=True, **bias, **window(fields, windowed_layers(fields)))
    moe = experts(fields, every_layer(fields), "intermediate_size", router_bias=True, clamped=True)
    return decoder(fields, attention, moe, mlp_bias=True)


def _llama4(fields: Fields) -> Model:
    """The text part; the vision encoder of the published checkpoints is left out."""
    text = fields.section("text_config") if "text_config" in fields.config else fields
    listed = text.items("moe_layers")
    step = text.integer("interleave_moe_layer_step", 1)
    moe = experts(
        text,
        [index in listed if listed else (index + 1) % step == 0 for index in range(text.layers)],
        "intermediate_size",
        shared_expert_ffn_hidden_size=text.integer("intermediate_size"),
    )
    attention = heads(text, **attention_bias(text), **window(text, _chunked_layers(text), "attention_chunk_size"))
    ffn = text.integer("intermediate_size_mlp")
    return decoder(text, attention, moe, ffn_hidden_size=ffn)


def _chunked_layers(text: Fields) -> list[bool]:
    """Llama-4 attends within chunks in all but every fourth layer, unless the file says otherwise.

    A chunk is taken for a sliding window; the two are the same up to one chunk of tokens.
    """
    rotary = text.items("no_rope_layers")
    if text.items("layer_types"):
        return windowed_layers(text)
    if rotary:
        return [flag == 1 for flag in rotary]
    period = text.integer("no_rope_layer_interval", 4)
    return [(index + 1) % period != 0 for index in range(text.layers)]


def _dbrx(fields: Fields) -> Model:
    attention, ffn = fields.section("attn_config"), fields.section("ffn_config")
    flat = fields.derive({**fields.config, **attention.config, **ffn.config})
    moe = experts(flat, every_layer(flat), "ffn_hidden_size")
    return decoder(flat, heads(flat), moe, ffn_hidden_size=flat.integer("ffn_hidden_size"))


def _grok(fields: Fields) -> Model:
    moe = experts(fields, every_layer(fields), "intermediate_size")
    tied = fields.derive({"tie_word_embeddings": True, **fields.config})
    return decoder(tied, heads(fields), moe, norms_per_layer=4)


def _switch_transformers(fields: Fields) -> Model:
    """Layer i of encoder and of decoder is MoE when i % step == 1, or always with a step of 1."""
    encoder = fields.integer("num_layers", most=MOST_LAYERS)
    step = fields.integer("encoder_sparse_step")
    if fields.integer("decoder_sparse_step") != step or step > 2:
        fields.inconsistent(
            "decoder_sparse_step",
            "must be 1 or 2 and equal encoder_sparse_step, write a model file by hand",
        )
    routed = fields.derive({**fields.config, "num_experts_per_tok": 1})
    pattern = [index % step == step - 1 for index in range(encoder)]
    every = encoder + fields.integer("num_decoder_layers", encoder, most=MOST_LAYERS)
    return decoder(
        fields.derive({"num_hidden_layers": every, "tie_word_embeddings": True, **fields.config}),
        heads(fields),
        experts(routed, pattern, "d_ff"),
        encoder_layers=encoder,
        ffn_hidden_size=fields.integer("d_ff"),
        max_position_embeddings=fields.integer("max_position_embeddings", 512),  # as T5 was trained
        gated_mlp=False,
    )


# ---------------------------------------------------------------- dense


def _llama(fields: Fields) -> Model:
    mlp_bias = fields.boolean("mlp_bias", default=False)
    return decoder(fields, heads(fields, **attention_bias(fields)), mlp_bias=mlp_bias)


def _mistral(fields: Fields) -> Model:
    return decoder(fields, heads(fields, **window(fields, windowed_layers(fields))))


def _qwen2(fields: Fields) -> Model:
    return decoder(fields, heads(fields, bias=True, **_late_window(fields)))


def _qwen3(fields: Fields) -> Model:
    return decoder(fields, heads(fields, qk_norm="head", **attention_bias(fields), **_late_window(fields)))


def _gpt2(fields: Fields) -> Model:
    return decoder(
        fields.derive({"tie_word_embeddings": True, **fields.config}),
        heads(fields, bias=True, output_bias=True),
        ffn_hidden_size=fields.integer("n_inner", 4 * fields.integer("hidden_size")),
        gated_mlp=False,
        learned_positions=True,
        mlp_bias=True,
        norm_bias=True,
    )


def _gpt_neox(fields: Fields) -> Model:
    attention = heads(fields, **attention_bias(fields, default=True))
    return decoder(fields, attention, gated_mlp=False, mlp_bias=True, norm_bias=True)


FAMILIES: dict[str, Callable[[Fields], Model]] = {
    "dbrx": _dbrx,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "glm4_moe": _glm4_moe,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "granitemoe": _granitemoe,
    "granitemoeshared": _granitemoe,
    "grok-1": _grok,
    "kimi_k2": _deepseek,
    "llama": _llama,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "minimax": _minimax,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "switch_transformers": _switch_transformers,
}
