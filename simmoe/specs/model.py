"""A transformer as its layers: attention kind, dense or MoE, experts, MTP."""

from typing import Literal, NamedTuple

from pydantic import Field

from simmoe.specs.base import Count, Index, Spec


class LayerSpec(NamedTuple):
    """What one transformer layer is made of.

    Attributes
    ----------
    moe : bool
        Routed experts instead of a dense MLP.
    window : int or None
        Sliding or chunked attention width in tokens; None = full attention.
    cross_attention : bool
        A decoder layer of an encoder-decoder model, with a second attention block.
    causal : bool
        False in an encoder.
    """

    moe: bool
    window: int | None
    cross_attention: bool
    causal: bool


class Attention(Spec):
    """Self-attention of a layer: MHA, GQA or MLA, by which fields are present.

    Attributes
    ----------
    num_heads, num_kv_heads : int
        Query heads and key/value heads (Megatron's query groups).
    head_dim : int
        Width of one head; for MLA the width of the query-key product is qk_nope_head_dim + qk_rope_head_dim.
    q_lora_rank : int
        MLA: rank of the query projection; 0 = a direct projection.
    kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim : int
        MLA ranks and widths; kv_lora_rank = 0 means no MLA.
    sliding_window : int or None
        Window width in tokens of the windowed layers.
    window_period : int
        Layer i is windowed when i % window_period < window_period - 1 (1 = every layer; 2 = even layers).
    bias : bool
        The query, key and value projections carry a bias; for MLA the two down projections do.
    output_bias : bool
        The output projection carries a bias.
    qk_norm : str
        Learned norm of queries and keys: none, one scale per channel of a `head` shared by all heads
        (Qwen3), or over the `full` projected width (OLMoE).
    sinks : bool
        One learned logit per head joins the softmax (GPT-OSS).
    """

    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    q_lora_rank: Index = 0
    kv_lora_rank: Index = 0
    qk_nope_head_dim: Index = 0
    qk_rope_head_dim: Index = 0
    v_head_dim: Index = 0
    sliding_window: Count | None = None
    window_period: Count = 1
    bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    sinks: bool = False

    @property
    def kind(self) -> Literal["mha", "gqa", "mla"]:
        """The attention family."""
        if self.kv_lora_rank:
            return "mla"
        return "mha" if self.num_kv_heads == self.num_heads else "gqa"

    @property
    def qk_dim(self) -> int:
        """Width of one query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.kv_lora_rank else self.head_dim

    @property
    def v_dim(self) -> int:
        """Width of one value head."""
        return self.v_head_dim if self.kv_lora_rank else self.head_dim


class MoE(Spec):
    """The routed experts of a MoE layer.

    Attributes
    ----------
    num_experts, top_k : int
        Routed experts of a layer, and how many a token visits.
    moe_ffn_hidden_size : int
        Width of one routed expert.
    shared_expert_ffn_hidden_size : int
        Total width of all shared experts; 0 = none.
    shared_expert_gate : bool
        The shared expert's output is scaled by a learned gate (Qwen2-MoE).
    first_dense_layers : int
        Leading layers with a dense MLP.
    layer_period : int
        Layer i >= first_dense_layers is MoE when (i - first_dense_layers) % layer_period == layer_period - 1.
    group_limit : int
        Router may pick experts from at most this many of `num_groups` groups; 0 = no limit (DeepSeek's topk_group).
    num_groups : int
        Expert groups of a group-limited router; 1 = none.
    router_bias : bool
        The router adds one learned number per expert (GPT-OSS; DeepSeek-V3's balance correction).
    clamped : bool
        Both inputs of the gated activation are clamped (``swiglu_limit`` of GPT-OSS).
    """

    num_experts: Count
    top_k: Count
    moe_ffn_hidden_size: Count
    shared_expert_ffn_hidden_size: Index = 0
    shared_expert_gate: bool = False
    first_dense_layers: Index = 0
    layer_period: Count = 1
    group_limit: Index = 0
    num_groups: Count = 1
    router_bias: bool = False
    clamped: bool = False


class Model(Spec):
    """A decoder-only or encoder-decoder transformer.

    Attributes
    ----------
    num_layers : int
        Transformer layers without MTP; encoder plus decoder layers for an encoder-decoder model.
    ffn_hidden_size : int
        Width of a dense MLP (used by the dense layers of a MoE model).
    gated_mlp : bool
        Three matrices (SwiGLU/GeGLU) instead of two.
    encoder_layers : int
        How many of `num_layers` form an encoder; 0 = decoder only.
    mtp_layers : int
        Multi-token-prediction layers the architecture has; whether a run trains them is `Training.mtp`.
    learned_positions : bool
        Position embeddings are a table of max_position_embeddings rows (GPT-2/3).
    mlp_bias : bool
        The matrices of MLPs and experts carry a bias.
    norm_bias : bool
        Norms have a shift beside their scale (LayerNorm instead of RMSNorm).
    norms_per_layer : int
        Norms of the hidden width in a layer, without that of a cross attention; Grok-1 has 4.
    """

    id: str
    name: str
    source: str
    num_layers: Count
    hidden_size: Count
    ffn_hidden_size: Count
    vocab_size: Count
    max_position_embeddings: Count
    attention: Attention
    moe: MoE | None = None
    gated_mlp: bool = True
    tied_embeddings: bool = False
    encoder_layers: Index = 0
    mtp_layers: Index = 0
    learned_positions: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    norms_per_layer: Count = 2
    published_parameters: str = Field(default="", description="what the authors state, total / active")

    def layer(self, index: int) -> LayerSpec:
        """The make-up of layer `index`, counted from 0."""
        attention = self.attention
        windowed = attention.sliding_window is not None and (
            attention.window_period == 1 or index % attention.window_period < attention.window_period - 1
        )
        decoder = index >= self.encoder_layers
        position = index if decoder is False else index - self.encoder_layers
        return LayerSpec(
            moe=self._is_moe(position if self.encoder_layers else index),
            window=attention.sliding_window if windowed else None,
            cross_attention=bool(self.encoder_layers) and decoder,
            causal=decoder,
        )

    def _is_moe(self, index: int) -> bool:
        moe = self.moe
        if moe is None or index < moe.first_dense_layers:
            return False
        return (index - moe.first_dense_layers) % moe.layer_period == moe.layer_period - 1

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """All layers in order, without MTP."""
        return tuple(self.layer(index) for index in range(self.num_layers))

    @property
    def num_moe_layers(self) -> int:
        """How many layers have routed experts, without MTP."""
        return sum(layer.moe for layer in self.layers)
