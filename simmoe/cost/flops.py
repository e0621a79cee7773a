"""How many floating-point operations a token costs, under each convention in use.

Published TFLOP/s and MFU figures divide by different counts of the same work; they can be compared
only when the convention is named. Times are never computed from these numbers.
"""

from collections import Counter
from typing import Literal

from simmoe.cost.operators import AttentionCore
from simmoe.cost.parameters import count_parameters
from simmoe.cost.tensors import Component, layer_tensors
from simmoe.specs.model import LayerSpec, Model

Convention = Literal["megatron-core", "full-attention", "6n", "palm", "ptd-p-hardware"]

# Training costs three forward passes: backward has one product for the gradient of the inputs and one
# for that of the weights.
TRAINING_OVER_FORWARD = 3.0

_GEMMS: dict[Component, str] = {
    "attention": "attention.projections",
    "dense_mlp": "mlp.dense",
    "experts": "moe.experts",
    "shared_experts": "moe.shared",
    "router": "moe.router",
}


def model_flops_per_token(
    model: Model,
    sequence_length: int,
    *,
    convention: Convention = "megatron-core",
    mtp: bool = False,
) -> float:
    """Training FLOPs per token by a published convention.

    Parameters
    ----------
    model : Model
        The architecture.
    sequence_length : int
        Tokens of a sequence [tokens].
    convention : str
        - ``megatron-core``: three forward passes, causal attention at half of the square, sliding
          windows at their width, logits counted, router and recomputation not.
        - ``full-attention``: the same with the whole square in every layer (NeMo 24.07, MaxText,
          MLPerf 405B; 72 B s L h^2 (1 + s/6h + V/12Lh) for a GPT).
        - ``6n``: 6 N, no attention (FlagPerf).
        - ``palm``: 6 N + 12 L H Q s, whole square, no window (PaLM, MPT).
        - ``ptd-p-hardware``: hardware FLOPs with full recomputation: four forward passes of the
          layers, three of the logits (PTD-P, BLOOM).
    mtp : bool
        Count the multi-token-prediction layers of the model, each with its own logits.

    Returns
    -------
    float
        FLOP per token [FLOP].

    Notes
    -----
    N counts every parameter that a token uses, with embeddings, norms and biases; a tied embedding
    once. For an encoder-decoder model a token is one source and one target token, and both
    sequences have the given length.

    GPT-OSS figures printed by Megatron-Bridge before its container 26.06 took the gated MLP for two
    GEMMs and ignored the window (27.2 GFLOP at 4096 tokens); `megatron-core` is the later count.
    Bridge counts w keys for every query of a window of w tokens, this function w - w^2/2s: a
    difference of 5e-5 for GPT-OSS-120B at 4096.

    References
    ----------
    Megatron-Core ``num_floating_point_operations`` (NVIDIA/Megatron-LM, megatron/training/training.py).
    Korthikanti et al. 2022, arXiv:2205.05198, appendix A. Chowdhery et al. 2022, arXiv:2204.02311,
    appendix B. Narayanan et al. 2021, arXiv:2104.04473, equation 3.

    Examples
    --------
    GPT-3 175B at 2048 tokens: 96 L h^2 (1 + s/6h + V/16Lh) with L = 96, h = 12288, V = 51200.

    >>> from simmoe.specs.model import Attention
    >>> gpt = Model(
    ...     id="gpt", name="gpt", source="", num_layers=96, hidden_size=12288, ffn_hidden_size=49152,
    ...     vocab_size=51200, max_position_embeddings=2048, gated_mlp=False, tied_embeddings=True,
    ...     attention=Attention(num_heads=96, num_kv_heads=96, head_dim=128),
    ... )
    >>> by_sum = model_flops_per_token(gpt, 2048, convention="ptd-p-hardware")
    >>> by_sum / (96 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288)))
    1.0
    >>> round(model_flops_per_token(gpt, 2048, convention="full-attention") / 1e9, 1)  # [GFLOP]
    1076.4
    """
    if convention in {"6n", "palm"}:
        return _flops_by_parameters(model, sequence_length, convention, mtp=mtp)
    work = forward_flops_by_operator(model, sequence_length, full_square=convention != "megatron-core", mtp=mtp)
    # Megatron-Core leaves the router out; it is 0.2 % of Qwen3-235B.
    layers = sum(work.values()) - work["logits"] - work["moe.router"]
    passes = TRAINING_OVER_FORWARD + (convention == "ptd-p-hardware")
    return passes * layers + TRAINING_OVER_FORWARD * work["logits"]


def forward_flops_by_operator(
    model: Model, sequence_length: int, *, full_square: bool = False, mtp: bool = False
) -> dict[str, float]:
    """Forward FLOPs per token of each operator, summed over layers.

    Parameters
    ----------
    model : Model
        The architecture.
    sequence_length : int
        Tokens of a sequence [tokens].
    full_square : bool
        Take every attention for full: no causal half, no window.
    mtp : bool
        Add the multi-token-prediction layers to the operators they consist of.

    Returns
    -------
    dict of str to float
        ``attention.projections``, ``attention.core``, ``mlp.dense``, ``moe.experts``,
        ``moe.shared``, ``moe.router``, ``mtp.projection``, ``logits`` [FLOP per token].

    Notes
    -----
    A weight costs 2 FLOP per token that meets it. Attention costs 2 H (d_qk + d_v) FLOP per
    query-key pair of all heads; pairs as in `simmoe.cost.operators.AttentionCore`.

    Examples
    --------
    One layer of width 8, two heads of 4, gated MLP 16, vocabulary 100, 32 tokens: projections
    2*256, core 2*2*(4+4)*32/2, MLP 2*384, logits 2*800.

    >>> from simmoe.specs.model import Attention
    >>> model = Model(
    ...     id="tiny", name="tiny", source="", num_layers=1, hidden_size=8, ffn_hidden_size=16,
    ...     vocab_size=100, max_position_embeddings=32,
    ...     attention=Attention(num_heads=2, num_kv_heads=2, head_dim=4),
    ... )
    >>> work = forward_flops_by_operator(model, 32)
    >>> [work[name] for name in ("attention.projections", "attention.core", "mlp.dense", "logits")]
    [512.0, 512.0, 768.0, 1600.0]
    """
    depths = model.mtp_layers if mtp else 0
    work = dict.fromkeys([*_GEMMS.values(), "attention.core"], 0.0)
    kinds = Counter(model.layer(index) for index in range(model.num_layers + depths))
    for layer, times in kinds.items():
        for name, flops in _layer_gemms(model, layer).items():
            work[name] += times * flops
        core = _attention_core(model, layer, sequence_length, full_square=full_square)
        work["attention.core"] += times * core
    work["mtp.projection"] = 2.0 * depths * 2 * model.hidden_size**2
    work["logits"] = 2.0 * (1 + depths) * model.vocab_size * model.hidden_size
    return work


def _layer_gemms(model: Model, layer: LayerSpec) -> dict[str, float]:
    """FLOPs per token of the weights of a layer: top_k of the experts, all of the rest."""
    work: dict[str, float] = dict.fromkeys(_GEMMS.values(), 0.0)
    for tensor in layer_tensors(model, layer):
        name = _GEMMS.get(tensor.component)
        if name is None:
            continue  # norms and biases are memory traffic, no products
        share = model.moe.top_k / model.moe.num_experts if name == "moe.experts" and model.moe else 1.0
        work[name] += 2.0 * tensor.size * share
    return work


def _attention_core(model: Model, layer: LayerSpec, sequence_length: int, *, full_square: bool) -> float:
    """FLOPs per token of scores and weighted values, self- and cross-attention."""
    attention = model.attention
    core = AttentionCore(
        batch=1,
        heads=attention.num_heads,
        kv_heads=attention.num_kv_heads,
        queries=sequence_length,
        keys=sequence_length,
        qk_dim=attention.qk_dim,
        v_dim=attention.v_dim,
        causal=layer.causal and not full_square,
        window=None if full_square else layer.window,
    )
    flops = core.flops
    if layer.cross_attention:
        flops += core._replace(causal=False, window=None).flops
    return flops / sequence_length


def _flops_by_parameters(model: Model, sequence_length: int, convention: Convention, *, mtp: bool) -> float:
    """6 N, and for PaLM 12 L H Q s, written 6 L H (d_qk + d_v) s so that it also holds for MLA."""
    count = count_parameters(model)
    parameters = 6.0 * (count.active_exact + (count.active_mtp if mtp else 0))
    if convention == "6n":
        return parameters
    work = forward_flops_by_operator(model, sequence_length, full_square=True, mtp=mtp)
    return parameters + TRAINING_OVER_FORWARD * work["attention.core"]
