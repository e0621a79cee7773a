"""A model as flags of Megatron-LM, and what they cannot say of it."""

from collections.abc import Iterator

from simmoe.specs.megatron.frequency import runs
from simmoe.specs.model import Model, MoE

Option = tuple[str, ...]  # a flag with its values


def model_options(model: Model) -> Iterator[Option]:
    """Sizes, attention, MLP and vocabulary.

    Parameters
    ----------
    model : Model
        Decoder only.
    """
    attention = model.attention
    yield "--num-layers", str(model.num_layers)
    yield "--hidden-size", str(model.hidden_size)
    yield "--ffn-hidden-size", str(model.ffn_hidden_size)
    yield "--num-attention-heads", str(attention.num_heads)
    if attention.kind == "mla":
        yield ("--multi-latent-attention",)
        if attention.q_lora_rank:
            yield "--q-lora-rank", str(attention.q_lora_rank)
        yield "--kv-lora-rank", str(attention.kv_lora_rank)
        yield "--qk-head-dim", str(attention.qk_nope_head_dim)
        yield "--qk-pos-emb-head-dim", str(attention.qk_rope_head_dim)
        yield "--v-head-dim", str(attention.v_head_dim)
    else:
        if attention.kind == "gqa":
            yield ("--group-query-attention",)
            yield "--num-query-groups", str(attention.num_kv_heads)
        yield "--kv-channels", str(attention.head_dim)
    yield from _attention_extras(model)
    yield "--max-position-embeddings", str(model.max_position_embeddings)
    yield "--position-embedding-type", "learned_absolute" if model.learned_positions else "rope"
    yield "--normalization", "LayerNorm" if model.norm_bias else "RMSNorm"
    yield from _mlp(model)
    if not model.tied_embeddings:
        yield ("--untie-embeddings-and-output-weights",)
    yield "--tokenizer-type", "NullTokenizer"
    yield "--vocab-size", str(model.vocab_size)


def _attention_extras(model: Model) -> Iterator[Option]:
    attention = model.attention
    if attention.qk_norm != "none":
        yield ("--qk-layernorm",)
    if attention.sinks:
        yield "--softmax-type", "learnable"
    if attention.sliding_window is not None:
        # Keys to the left of the query and to its right; the query itself is not counted.
        yield "--window-size", f"{attention.sliding_window - 1},0"
        if attention.window_period > 1:
            yield "--window-attn-skip-freq", str(attention.window_period)


def _mlp(model: Model) -> Iterator[Option]:
    clamped = model.moe is not None and model.moe.clamped
    if model.gated_mlp:
        yield ("--quick-geglu" if clamped else "--swiglu",)
    if clamped:
        # GPT-OSS: swiglu_limit 7 of its config.json, and (up + 1) in its activation.
        yield "--activation-func-clamp-value", "7.0"
        yield "--glu-linear-offset", "1.0"
    if not model.mlp_bias:
        yield ("--disable-bias-linear",)
        if model.attention.bias:
            yield ("--add-qkv-bias",)


def moe_options(model: Model, moe: MoE, *, grouped: bool) -> Iterator[Option]:
    """Experts and router.

    Parameters
    ----------
    model : Model
    moe : MoE
        Of the model.
    grouped : bool
        The GPUs have grouped GEMM kernels.
    """
    yield "--num-experts", str(moe.num_experts)
    pattern = tuple(int(layer.moe) for layer in model.layers)
    if 0 in pattern:
        yield "--moe-layer-freq", runs(pattern)
    yield "--moe-ffn-hidden-size", str(moe.moe_ffn_hidden_size)
    if moe.shared_expert_ffn_hidden_size:
        yield "--moe-shared-expert-intermediate-size", str(moe.shared_expert_ffn_hidden_size)
        if moe.shared_expert_gate:
            yield ("--moe-shared-expert-gate",)
    yield "--moe-router-topk", str(moe.top_k)
    if moe.num_groups > 1:
        yield "--moe-router-num-groups", str(moe.num_groups)
        if moe.group_limit:
            yield "--moe-router-group-topk", str(moe.group_limit)
    balance_bias = moe.router_bias and not model.mlp_bias
    if balance_bias:
        yield "--moe-router-score-function", "sigmoid"
        yield ("--moe-router-enable-expert-bias",)
    elif moe.top_k == 1:
        yield ("--moe-router-pre-softmax",)
    yield "--moe-router-load-balancing-type", "seq_aux_loss" if balance_bias else "aux_loss"
    yield "--moe-aux-loss-coeff", "1e-4" if balance_bias else "1e-2"
    yield "--moe-router-dtype", "fp32"
    if grouped:
        yield ("--moe-grouped-gemm",)
        yield ("--moe-permute-fusion",)


def model_differences(model: Model) -> tuple[str, ...]:
    """How the model that Megatron-LM builds differs from this one, a sentence each; mostly small things.

    Parameters
    ----------
    model : Model
    """
    attention = model.attention
    found = (
        (
            attention.qk_norm == "full",
            "queries and keys are normalised over their full width, Megatron-LM normalises each head",
        ),
        (
            model.norms_per_layer != 2,
            f"a layer has {model.norms_per_layer} norms, Megatron-LM builds 2",
        ),
        (
            attention.output_bias and not model.mlp_bias,
            "the output projection of attention alone has a bias, Megatron-LM has it in all matrices or none",
        ),
        (
            model.mlp_bias and not (attention.bias and attention.output_bias),
            "MLPs have biases and attention has not, Megatron-LM has them in all matrices",
        ),
        (
            model.moe is not None and model.mlp_bias and not model.moe.router_bias,
            "the router has no bias, Megatron-LM adds one where all matrices have",
        ),
    )
    return tuple(f"{model.id}: {sentence}" for there, sentence in found if there)
