"""Every weight of a model: what it belongs to and how the ranks of a stage share it.

Parameter counts, per model and per rank, and model FLOPs are sums over this table.
"""

from typing import Literal, NamedTuple

from simmoe.specs.model import LayerSpec, Model, MoE

Component = Literal[
    "attention",
    "dense_mlp",
    "experts",
    "shared_experts",
    "router",
    "embedding",
    "head",
    "norms",
    "biases",
    "mtp",
    "positions",
]

# How a tensor is laid over the ranks of a stage:
#   tensor   cut into tensor_parallel equal pieces;
#   kv       cut likewise, but never finer than one key/value head: beyond that, copies;
#   whole    every rank of the tensor-parallel group holds it all;
#   expert   cut into expert_parallel * expert_tensor_parallel pieces;
#   expert_output   one bias per expert, added after the reduction over expert_tensor_parallel: copies.
Split = Literal["tensor", "kv", "whole", "expert", "expert_output"]


class Tensor(NamedTuple):
    """One weight of the model.

    Attributes
    ----------
    component : str
        What it belongs to, a field of `ParameterCount`.
    split : str
        How ranks share it.
    size : int
        Parameters.
    """

    component: Component
    split: Split
    size: int


def embedding_tensors(model: Model) -> tuple[Tensor, ...]:
    """Token embedding, and learned positions if the model has them."""
    tokens = Tensor("embedding", "tensor", model.vocab_size * model.hidden_size)
    if not model.learned_positions:
        return (tokens,)
    return (tokens, Tensor("positions", "whole", model.max_position_embeddings * model.hidden_size))


def head_tensors(model: Model) -> tuple[Tensor, ...]:
    """Final norm (an encoder-decoder has two) and output projection, absent when tied."""
    final = Tensor("norms", "whole", _norm_size(model) * (2 if model.encoder_layers else 1))
    if model.tied_embeddings:
        return (final,)
    return (final, Tensor("head", "tensor", model.vocab_size * model.hidden_size))


def layer_tensors(model: Model, layer: LayerSpec) -> tuple[Tensor, ...]:
    """All tensors of a transformer layer.

    Parameters
    ----------
    model : Model
        The architecture.
    layer : LayerSpec
        Which kind of its layers, from `Model.layer`.

    Returns
    -------
    tuple of Tensor
        Attention (twice with cross attention), dense MLP or experts, norms and biases.
    """
    blocks = 2 if layer.cross_attention else 1
    norms = (model.norms_per_layer + blocks - 1) * _norm_size(model)
    attention = _mla_tensors(model) if model.attention.kv_lora_rank else _gqa_tensors(model)
    if layer.moe and model.moe is not None:
        mlp = _moe_tensors(model, model.moe)
    else:
        mlp = _mlp_tensors(model, "dense_mlp", model.ffn_hidden_size)
    return (*attention * blocks, *mlp, Tensor("norms", "whole", norms))


def mtp_tensors(model: Model, depth: int) -> tuple[Tensor, ...]:
    """All tensors of one multi-token-prediction layer; its embedding and head are the model's.

    Parameters
    ----------
    model : Model
        The architecture.
    depth : int
        Which MTP layer, from 0.
    """
    projection = 2 * model.hidden_size * model.hidden_size
    return (
        *layer_tensors(model, model.layer(model.num_layers + depth)),
        Tensor("attention", "tensor", projection),
        Tensor("norms", "whole", 3 * _norm_size(model)),  # of embedding, of hidden state, final
    )


def _norm_size(model: Model) -> int:
    return model.hidden_size * (2 if model.norm_bias else 1)


def _gqa_tensors(model: Model) -> tuple[Tensor, ...]:
    attention, h = model.attention, model.hidden_size
    queries = attention.num_heads * attention.head_dim
    keys = attention.num_kv_heads * attention.head_dim
    scales = {"none": 0, "head": 2 * attention.head_dim, "full": queries + keys}[attention.qk_norm]
    return (
        Tensor("attention", "tensor", 2 * h * queries),  # query and output
        Tensor("attention", "kv", 2 * h * keys),
        Tensor("biases", "tensor", queries * attention.bias + attention.num_heads * attention.sinks),
        Tensor("biases", "kv", 2 * keys * attention.bias),
        Tensor("biases", "whole", h * attention.output_bias),
        Tensor("norms", "whole", scales),
    )


def _mla_tensors(model: Model) -> tuple[Tensor, ...]:
    """Low-rank attention: the down projections and their norms are whole on every rank."""
    attention, h = model.attention, model.hidden_size
    heads, q_rank, kv_rank = attention.num_heads, attention.q_lora_rank, attention.kv_lora_rank
    kv_down = kv_rank + attention.qk_rope_head_dim
    up = (q_rank or h) * heads * attention.qk_dim
    up += kv_rank * heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    return (
        Tensor("attention", "whole", h * (q_rank + kv_down)),
        Tensor("attention", "tensor", up + heads * attention.v_head_dim * h),
        Tensor("norms", "whole", q_rank + kv_rank),
        Tensor("biases", "whole", (q_rank + kv_down) * attention.bias + h * attention.output_bias),
    )


def _mlp_tensors(model: Model, component: Component, width: int) -> tuple[Tensor, ...]:
    """A dense MLP or shared experts of a total width."""
    h, inputs = model.hidden_size, 2 if model.gated_mlp else 1
    return (
        Tensor(component, "tensor", (inputs + 1) * h * width),
        Tensor("biases", "tensor", inputs * width * model.mlp_bias),
        Tensor("biases", "whole", h * model.mlp_bias),
    )


def _moe_tensors(model: Model, moe: MoE) -> tuple[Tensor, ...]:
    h, inputs, experts = model.hidden_size, 2 if model.gated_mlp else 1, moe.num_experts
    width = moe.moe_ffn_hidden_size
    tensors = (
        Tensor("experts", "expert", experts * (inputs + 1) * h * width),
        Tensor("biases", "expert", experts * inputs * width * model.mlp_bias),
        Tensor("biases", "expert_output", experts * h * model.mlp_bias),
        Tensor("router", "whole", h * (experts + moe.shared_expert_gate)),
        Tensor("biases", "whole", experts * moe.router_bias),
    )
    shared = moe.shared_expert_ffn_hidden_size
    return (*tensors, *_mlp_tensors(model, "shared_experts", shared)) if shared else tensors
