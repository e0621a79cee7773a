"""The MoE half of a layer as its forward operators: router, permute, dispatch, experts, combine, shared experts."""

import math

from simmoe.cost.blocks import elementwise, gemm_bf16, mlp_block, norm, residual
from simmoe.cost.exchange import expected_places
from simmoe.cost.operators import Collective, CollectiveName, GroupedGemm, MemoryBound, Operator, TokenExchange
from simmoe.cost.shard import Shard, local_experts
from simmoe.errors import InternalError
from simmoe.specs.model import Model, MoE

_BIAS_BYTES = 28.0
_ROUTER_PASSES = 4  # softmax or sigmoid, top-k, auxiliary loss and the routing map each pass over the fp32 scores


def moe_layer(model: Model, shard: Shard) -> list[Operator]:
    """The MoE half of a layer, from norm to residual.

    Parameters
    ----------
    model : Model
        With routed experts.
    shard : Shard
        Tokens are the sequence-parallel share of the rank: Megatron dispatches over etp x ep, not over tp.

    Returns
    -------
    list of Operator

    Raises
    ------
    InternalError
        If the model has no routed experts.

    Notes
    -----
    A rank sends local_tokens * top_k copies and, balanced, works on as many (times etp). Rows per local expert are
    therefore local_tokens * top_k * etp * ep / num_experts; dispatched copies per rank do not shrink with ep.
    """
    moe = model.moe
    if moe is None:
        raise InternalError("moe_layer: the model has no experts")
    return [
        norm("moe.norm", model, shard._replace(fp8=False)),  # the router reads it in 16 bits
        *_router(model, moe, shard),
        *_shared(model, moe, shard),
        *_dispatch(model, moe, shard),
        *_experts(model, moe, shard),
        *_combine(model, moe, shard),
        residual("moe.residual", model, shard),
    ]


def _router(model: Model, moe: MoE, shard: Shard) -> list[Operator]:
    """Scores of every expert for every local token, in fp32."""
    scores = 4.0 * shard.local_tokens * moe.num_experts
    choose = MemoryBound("softmax", 2 * _ROUTER_PASSES * scores, kernels=2 * _ROUTER_PASSES)
    return [
        *gemm_bf16("moe.router", shard.local_tokens, moe.num_experts, model.hidden_size),
        Operator("moe.topk", "memory", choose, saved=2 * scores, module="moe"),
    ]


def _shared(model: Model, moe: MoE, shard: Shard) -> list[Operator]:
    """Shared experts: a dense MLP that every token passes."""
    if not moe.shared_expert_ffn_hidden_size:
        return []
    return mlp_block(model, shard, moe.shared_expert_ffn_hidden_size, "moe.shared", "shared_experts")


def _exchange(name: str, model: Model, moe: MoE, shard: Shard) -> list[Operator]:
    """Dispatch or combine over the expert-parallel group."""
    if shard.expert == 1 and not shard.apart:
        return []
    work = TokenExchange(
        tokens=shard.local_tokens * shard.capacity_factor,
        bytes_per_token=float(shard.element_bytes * model.hidden_size),
        top_k=moe.top_k,
        num_experts=moe.num_experts,
        deduplicated=_deduplicates(shard),
        group_limit=moe.group_limit,
        num_groups=moe.num_groups,
        combine=name == "moe.combine",
        load=shard.exchange_load,
        domain_load=shard.domain_load,
        library=shard.dispatcher,
    )
    if shard.dispatcher == "allgather":
        gathered = shard.element_bytes * shard.local_tokens * shard.expert * model.hidden_size
        kind: CollectiveName = "reduce_scatter" if work.combine else "all_gather"
        return [Operator(name, kind, Collective(kind, "ep", gathered), "ep", module="moe")]
    return [Operator(name, "all_to_all", work, "ep", module="moe")]


def _permute(name: str, rows_read: float, rows_written: float, model: Model, shard: Shard) -> Operator:
    size = shard.element_bytes * model.hidden_size
    return Operator(name, "memory", MemoryBound("permute", size * (rows_read + rows_written)), module="moe")


def _dispatch(model: Model, moe: MoE, shard: Shard) -> list[Operator]:
    """Bring the tokens to the rank of their experts and group them by local expert.

    An all-to-all sends a copy for every chosen expert: tokens are copied before it and sorted after it. DeepEP and
    HybridEP send a token once to a rank, which copies it for each of its chosen experts.
    """
    rows = shard.expert_rows(moe.top_k)
    operators = _exchange("moe.dispatch", model, moe, shard)
    if not _deduplicates(shard):
        copies = shard.local_tokens * moe.top_k * shard.capacity_factor
        operators.insert(0, _permute("moe.permute", shard.local_tokens, copies, model, shard))
    if shard.expert_tensor > 1:
        gather = Collective("all_gather", "etp", shard.element_bytes * model.hidden_size * rows)
        operators.append(Operator("moe.etp_gather", "all_gather", gather, "ep", module="moe"))
    operators += _grouping("moe.sort", model, moe, shard)
    last = operators[-1]  # keeps the input of the expert GEMM
    return [*operators[:-1], last._replace(saved=shard.gemm_bytes * model.hidden_size * rows)]


def _deduplicates(shard: Shard) -> bool:
    return shard.expert > 1 and shard.dispatcher in {"deepep", "hybridep", "uccl"}


def _grouping(name: str, model: Model, moe: MoE, shard: Shard) -> list[Operator]:
    """Group what a rank received by local expert, or undo it; DeepEP and HybridEP copy or add up tokens here."""
    rows = shard.expert_rows(moe.top_k)
    if not _deduplicates(shard):
        needed = (shard.expert > 1 or shard.apart) and local_experts(model, shard) > 1
        return [_permute(name, rows, rows, model, shard)] if needed else []
    limit = math.ceil(moe.group_limit * shard.expert / moe.num_groups)
    visited = expected_places(shard.expert, moe.num_experts, moe.top_k, limit)
    return [_permute(name, rows * visited / moe.top_k, rows, model, shard)]


def _experts(model: Model, moe: MoE, shard: Shard) -> list[Operator]:
    """The grouped GEMMs of the local experts and the activation between them."""
    experts, rows = local_experts(model, shard), shard.expert_rows(moe.top_k)
    width = moe.moe_ffn_hidden_size // shard.expert_tensor
    columns = (2 if model.gated_mlp else 1) * width
    element = shard.element_bytes
    up = GroupedGemm(experts, rows / experts, columns, model.hidden_size)
    down = GroupedGemm(experts, rows / experts, model.hidden_size, width)
    activation = elementwise(
        "moe.activation", element * rows * (columns + width), saved=shard.gemm_bytes * rows * width, module="moe_act"
    )
    product = Operator("moe.expert_up", "grouped_gemm", up, saved=element * rows * columns, module="moe")
    inputs, inner, outputs = rows * model.hidden_size, rows * width, rows * columns
    up_cast = _cast("moe.expert_up", inputs, outputs, experts, shard)
    between = [*_clamp(moe, inner), activation, *_cast("moe.expert_down", inner, inputs, experts, shard)]
    if shard.fused_experts and model.gated_mlp and not model.mlp_bias:
        product, between = product._replace(saved=product.saved + activation.saved), []
        up_cast = _cast("moe.expert_up", inputs, inputs, 1, shard)  # the gradient that the second matrix gets
    return [
        *up_cast,
        product,
        *between,
        Operator("moe.expert_down", "grouped_gemm", down, module="moe"),
        *_output_bias(model, rows, shard),
    ]


def _cast(name: str, elements: float, gradients: float, kernels: int, shard: Shard) -> list[Operator]:
    """The cast of the input of a grouped product, whose backward casts the gradient of its output, expert by expert.

    Transformer Engine 2.x splits both and quantises each part by its own kernel (``split_quantize``); its fused MLP
    quantises the whole, and what stands between the products not at all.
    """
    if not shard.fp8:
        return []
    each = shard.cast_bytes
    work = MemoryBound("cast", each * elements, kernels=kernels, gradient_bytes=each * gradients)
    return [Operator(f"{name}.cast", "memory", work, module="moe")]


def _clamp(moe: MoE, elements: float) -> list[Operator]:
    """Clamping of both halves before the fused activation, and putting them together again, of 16-bit elements.

    Megatron-Core's ``weighted_bias_quick_geglu_impl``: each half is read and written (8 B), both are concatenated (8);
    in backward the gradient and what it passed are read (12), and the halves concatenated (8).
    """
    work = MemoryBound("elementwise", 16.0 * elements, kernels=3, gradient_bytes=20.0 * elements)
    return [Operator("moe.clamp", "memory", work, module="moe_act")] if moe.clamped else []


def _output_bias(model: Model, rows: float, shard: Shard) -> list[Operator]:
    """The bias of the second expert matrix times the router's weight, added expert by expert without fusion.

    Megatron-Core's ``TEGroupedMLP._apply_bias`` (0.12 to 0.19): the product is written in fp32 (4 B an element), the
    sum read and written (10), the experts' parts concatenated (8) and cast back (6); half as much again in backward.
    """
    if not model.mlp_bias:
        return []
    return [elementwise("moe.expert_bias", _BIAS_BYTES * rows * model.hidden_size, module="moe")]


def _combine(model: Model, moe: MoE, shard: Shard) -> list[Operator]:
    """Undo the dispatch and sum the top-k results of each token by their router weights."""
    rows = shard.expert_rows(moe.top_k)
    operators = _grouping("moe.unsort", model, moe, shard)
    if shard.expert_tensor > 1:
        scatter = Collective("reduce_scatter", "etp", shard.element_bytes * model.hidden_size * rows)
        operators.append(Operator("moe.etp_scatter", "reduce_scatter", scatter, "ep", module="moe"))
    operators += _exchange("moe.combine", model, moe, shard)
    if not _deduplicates(shard):
        copies = shard.local_tokens * moe.top_k * shard.capacity_factor
        operators.append(_permute("moe.unpermute", copies, shard.local_tokens, model, shard))
    return operators
