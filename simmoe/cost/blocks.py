"""A transformer layer as its forward operators, in order of issue, for one rank.

Everything else is derived from these lists: FLOPs, times, the backward pass (`simmoe.cost.backward`), what
recomputation repeats, and the activations a rank keeps. Byte counts of memory-bound operators are the fused counts:
read each input once, write each output once.
"""

from simmoe.cost.operators import (
    AttentionCore,
    Collective,
    CollectiveName,
    Gemm,
    MemoryBound,
    Operator,
)
from simmoe.cost.shard import Shard
from simmoe.specs.model import LayerSpec, Model


def gemm(
    name: str,
    m: float,
    n: int,
    k: int,
    shard: Shard,
    *,
    split: tuple[float, float] = (1.0, 1.0),
    saved: float = 0.0,
    module: str = "",
) -> list[Operator]:
    """A weight GEMM, preceded under fp8 by the cast of its input, whose backward casts the gradient of its output.

    `split` is how many ranks share the cast of the input and of the gradient: under sequence parallelism Transformer
    Engine casts the local tokens before it gathers them, in 8 bits.
    """
    rows = max(1, round(m))
    product = Operator(name, "gemm", Gemm(rows, n, k), saved=saved, module=module)
    if not shard.fp8:
        return [product]
    forward, gradient = shard.cast_bytes * rows * k / split[0], shard.cast_bytes * rows * n / split[1]
    cast = MemoryBound("cast", forward, gradient_bytes=gradient)
    return [Operator(f"{name}.cast", "memory", cast, module=module), product]


def elementwise(name: str, bytes_: float, *, saved: float = 0.0, module: str = "") -> Operator:
    """A fused elementwise operator of the given traffic [B]."""
    return Operator(name, "memory", MemoryBound("elementwise", bytes_), saved=saved, module=module)


def norm(name: str, model: Model, shard: Shard) -> Operator:
    """RMSNorm or LayerNorm over the local tokens: reads and writes each element once.

    Its output is kept as GEMMs read it; its input is kept by the residual before it.
    """
    elements = shard.local_tokens * model.hidden_size
    work = MemoryBound("norm", 2 * shard.element_bytes * elements)
    return Operator(name, "memory", work, saved=shard.gemm_bytes * elements, module="layernorm")


def residual(name: str, model: Model, shard: Shard) -> Operator:
    """Residual addition: reads two tensors, writes one, which the next block keeps as the input of its norm."""
    size = shard.element_bytes * shard.local_tokens * model.hidden_size
    return elementwise(name, 3 * size, saved=size)


def enter_tensor_parallel(name: str, width: int, shard: Shard, element_bytes: float | None = None) -> list[Operator]:
    """All-gather the sequence before a column-parallel GEMM (sequence parallelism only), as its GEMM reads it."""
    if not shard.sequence_parallel:
        return []
    size = float(shard.tokens * width)
    work = Collective("all_gather", "tp", (element_bytes or shard.gemm_bytes) * size, shard.element_bytes * size)
    return [Operator(name, "all_gather", work, "tp")]


def gathered(gather: list[Operator], product: list[Operator]) -> list[Operator]:
    """Put a gather right before its GEMM: under fp8 the cast comes first and works on the local tokens."""
    return [*product[:-1], *gather, product[-1]]


def leave_tensor_parallel(name: str, model: Model, shard: Shard) -> list[Operator]:
    """Sum the partial results of a row-parallel GEMM: reduce-scatter with sequence parallelism, else all-reduce."""
    if shard.tensor == 1:
        return []
    size = float(shard.tokens * model.hidden_size)
    kind: CollectiveName = "reduce_scatter" if shard.sequence_parallel else "all_reduce"
    gathered_bytes = shard.gemm_bytes if shard.sequence_parallel else shard.element_bytes
    work = Collective(kind, "tp", shard.element_bytes * size, gathered_bytes * size)
    return [Operator(name, kind, work, "tp")]


def attention_block(model: Model, layer: LayerSpec, shard: Shard, name: str = "attention") -> list[Operator]:
    """Self-attention (or, for an encoder-decoder model, cross-attention) from norm to residual.

    Parameters
    ----------
    model : Model
    layer : LayerSpec
        Gives window and causality.
    shard : Shard
    name : str
        Prefix of the operator names.

    Returns
    -------
    list of Operator

    Notes
    -----
    Projections: MHA/GQA h x (a + 2 kv) d and a d x h, cut over tp (key/value heads are replicated when there are
    fewer than tp). MLA: the down-projections see the local tokens and are replicated over tp, the up-projections are
    cut over heads (DeepSeek-V2, arXiv 2405.04434, section 2.1; Megatron-Core's MLASelfAttention).
    """
    attention = model.attention
    heads = attention.num_heads // shard.tensor
    inputs = _latent_projections(model, shard, name) if attention.kind == "mla" else _projections(model, shard, name)
    values = heads * attention.v_dim
    kept = float(shard.gemm_bytes * shard.tokens * values)  # stays when core attention is recomputed
    return [
        norm(f"{name}.norm", model, shard),
        *inputs,
        *_core(model, layer, shard, name),
        *gemm(f"{name}.out", shard.tokens, model.hidden_size, values, shard, split=shard.row_parallel, saved=kept),
        *leave_tensor_parallel(f"{name}.reduce", model, shard),
        residual(f"{name}.residual", model, shard),
    ]


def _kv_heads(model: Model, shard: Shard) -> int:
    return max(1, model.attention.num_kv_heads // shard.tensor)


def _projections(model: Model, shard: Shard, name: str) -> list[Operator]:
    """Query, key and value projections and rotary embedding of MHA and GQA."""
    attention, tokens = model.attention, shard.tokens
    width = (attention.num_heads // shard.tensor + 2 * _kv_heads(model, shard)) * attention.head_dim
    rotated = (attention.num_heads // shard.tensor + _kv_heads(model, shard)) * attention.head_dim
    size = float(shard.element_bytes * tokens * width)
    operators = [
        *gathered(
            enter_tensor_parallel(f"{name}.gather", model.hidden_size, shard),
            gemm(f"{name}.qkv", tokens, width, model.hidden_size, shard, split=shard.column_parallel, saved=size),
        )
    ]
    if not model.learned_positions:
        operators.append(elementwise(f"{name}.rope", 2.0 * shard.element_bytes * tokens * rotated))
    return operators


def _latent_projections(model: Model, shard: Shard, name: str) -> list[Operator]:
    """Down- and up-projections of multi-head latent attention."""
    attention, tokens, element = model.attention, shard.tokens, shard.element_bytes
    heads, latent_rank, column = attention.num_heads // shard.tensor, attention.kv_lora_rank, shard.column_parallel
    query, latent = heads * attention.qk_dim, latent_rank + attention.qk_rope_head_dim
    key_value = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    down, up = f"{name}.q_down", f"{name}.q_up"
    operators = []
    if attention.q_lora_rank:
        saved = element * shard.local_tokens * attention.q_lora_rank
        operators += gemm(down, shard.local_tokens, attention.q_lora_rank, model.hidden_size, shard, saved=saved)
    saved = element * shard.local_tokens * latent
    operators += gemm(f"{name}.kv_down", shard.local_tokens, latent, model.hidden_size, shard, saved=saved)
    inner = attention.q_lora_rank or model.hidden_size
    operators += gathered(
        enter_tensor_parallel(f"{name}.gather", latent + inner, shard),
        gemm(up, tokens, query, inner, shard, split=column, saved=element * tokens * query, module="mla_up_proj"),
    )
    keys = element * tokens * heads * (attention.qk_dim + attention.v_head_dim)
    operators += gemm(
        f"{name}.kv_up", tokens, key_value, latent_rank, shard, split=column, saved=keys, module="mla_up_proj"
    )
    rotated = element * tokens * (heads + 1) * attention.qk_rope_head_dim
    return [*operators, elementwise(f"{name}.rope", 2.0 * rotated, module="mla_up_proj")]


def _core(model: Model, layer: LayerSpec, shard: Shard, name: str) -> list[Operator]:
    """Core attention; context parallelism exchanges keys and values around the ring beneath it."""
    attention, element = model.attention, shard.element_bytes
    heads, kv_heads = attention.num_heads // shard.tensor, _kv_heads(model, shard)
    if attention.kind == "mla":
        kv_heads = heads
    work = AttentionCore(
        batch=shard.batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=shard.sequence // shard.context,
        keys=shard.sequence,
        qk_dim=attention.qk_dim,
        v_dim=attention.v_dim,
        causal=layer.causal,
        window=layer.window,
    )
    saved = float(element * shard.tokens * heads * attention.v_dim) if shard.fp8 else 0.0  # else its GEMM keeps it
    if shard.fused_attention:  # the logarithm of each query's softmax sum, fp32
        saved += 4.0 * shard.tokens * heads
    else:  # softmax output (2 B), dropout mask (1 B) and their product (2 B) of every score
        saved += 5.0 * shard.batch * heads * work.queries * work.keys
    core = Operator(f"{name}.core", "attention", work, saved=saved, module="core_attn")
    if shard.context == 1:
        return [core]
    size = float(element * shard.batch * shard.sequence * kv_heads * (attention.qk_dim + attention.v_dim))
    ring = Operator(f"{name}.ring", "all_gather", Collective("all_gather", "cp", size), "cp", module="core_attn")
    return [ring, core]


def mlp_block(model: Model, shard: Shard, width: int, name: str = "mlp", module: str = "mlp") -> list[Operator]:
    """A dense MLP of the given width, cut over tp, without norm and residual.

    Also used for shared experts. With a gated MLP the first GEMM yields 2 x width columns.
    """
    tokens, local, element = shard.tokens, width // shard.tensor, shard.element_bytes
    columns = (2 if model.gated_mlp else 1) * local
    inner, kept = float(element * tokens * local), float(shard.gemm_bytes * tokens * local)
    up_saved, column = float(element * tokens * columns), shard.column_parallel
    activation = elementwise(f"{name}.activation", up_saved + inner, saved=kept, module=module)
    return [
        *gathered(
            enter_tensor_parallel(f"{name}.gather", model.hidden_size, shard),
            gemm(f"{name}.up", tokens, columns, model.hidden_size, shard, split=column, saved=up_saved, module=module),
        ),
        activation,
        *gemm(f"{name}.down", tokens, model.hidden_size, local, shard, split=shard.row_parallel, module=module),
        *leave_tensor_parallel(f"{name}.reduce", model, shard),
    ]


def dense_layer(model: Model, shard: Shard) -> list[Operator]:
    """The MLP half of a dense layer."""
    return [
        norm("mlp.norm", model, shard),
        *mlp_block(model, shard, model.ffn_hidden_size),
        residual("mlp.residual", model, shard),
    ]


def embedding_block(model: Model, shard: Shard) -> list[Operator]:
    """Look up the input embeddings of a micro-batch; vocabulary-parallel over tp."""
    size = float(shard.element_bytes * shard.tokens * model.hidden_size)
    lookup = elementwise("embedding", 2 * size, saved=size / shard.tensor)
    return [lookup, *leave_tensor_parallel("embedding.reduce", model, shard)]


def head_block(model: Model, shard: Shard) -> list[Operator]:
    """Final norm, logits and loss.

    The fused loss reads the logits twice (maximum and sum); the unfused one also writes and reads an fp32 copy, which
    it keeps (Megatron's vocab-parallel cross entropy).
    """
    tokens, columns = shard.tokens, -(-model.vocab_size // shard.tensor)
    logits = float(tokens * columns)
    loss_bytes = logits * (2 * shard.element_bytes if shard.fused_loss else 2 * shard.element_bytes + 12)
    kept = logits * (shard.element_bytes if shard.fused_loss else shard.element_bytes + 4)
    return [
        norm("head.norm", model, shard._replace(fp8=False)),
        *enter_tensor_parallel("head.gather", model.hidden_size, shard, shard.element_bytes),
        *gemm_bf16("head.logits", tokens, columns, model.hidden_size),
        Operator("head.loss", "memory", MemoryBound("cross_entropy", loss_bytes), saved=kept),
    ]


def gemm_bf16(name: str, m: float, n: int, k: int) -> list[Operator]:
    """A GEMM that fp8 recipes leave in 16 bits: logits and router."""
    return [Operator(name, "gemm", Gemm(max(1, round(m)), n, k, high_precision=True))]


def mtp_projection(model: Model, shard: Shard) -> list[Operator]:
    """The entry of a multi-token-prediction layer: two norms and the 2h x h projection (arXiv 2412.19437, eq 21)."""
    tokens, hidden = shard.tokens, model.hidden_size
    saved, width = shard.element_bytes * shard.local_tokens * hidden, hidden // shard.tensor
    return [
        norm("mtp.norm_hidden", model, shard),
        norm("mtp.norm_embedding", model, shard),
        *gathered(
            enter_tensor_parallel("mtp.gather", 2 * hidden, shard),
            gemm("mtp.projection", tokens, width, 2 * hidden, shard, split=shard.column_parallel, saved=saved),
        ),
    ]
