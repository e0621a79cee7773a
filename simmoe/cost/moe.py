"""The MoE half of a layer as its forward operators: router, permute, dispatch, experts, combine, shared experts."""

from simmoe.cost.blocks import elementwise, gemm_bf16, mlp_block, norm, residual
from simmoe.cost.operators import Collective, CollectiveName, GroupedGemm, MemoryBound, Operator, TokenExchange
from simmoe.cost.shard import Shard, local_experts
from simmoe.errors import InternalError
from simmoe.specs.model import Model, MoE

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
        norm("moe.norm", model, shard),
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
    if shard.expert == 1:
        return []
    work = TokenExchange(
        tokens=shard.local_tokens * shard.capacity_factor,
        bytes_per_token=float(shard.element_bytes * model.hidden_size),
        top_k=moe.top_k,
        num_experts=moe.num_experts,
        deduplicated=shard.dispatcher in {"deepep", "hybridep"},
        group_limit=moe.group_limit,
        num_groups=moe.num_groups,
        combine=name == "moe.combine",
        load=shard.exchange_load,
        domain_load=shard.domain_load,
    )
    if shard.dispatcher == "allgather":
        gathered = shard.element_bytes * shard.local_tokens * shard.expert * model.hidden_size
        kind: CollectiveName = "reduce_scatter" if work.combine else "all_gather"
        return [Operator(name, kind, Collective(kind, "ep", gathered), "ep", module="moe")]
    return [Operator(name, "all_to_all", work, "ep", module="moe")]


def _permute(name: str, rows_read: float, rows_written: float, model: Model, shard: Shard, saved: float) -> Operator:
    size = shard.element_bytes * model.hidden_size
    return Operator(
        name, "memory", MemoryBound("permute", size * (rows_read + rows_written)), saved=saved, module="moe"
    )


def _dispatch(model: Model, moe: MoE, shard: Shard) -> list[Operator]:
    """Copy each token once per chosen expert, send the copies, group them by local expert."""
    copies = shard.local_tokens * moe.top_k * shard.capacity_factor
    rows = shard.expert_rows(moe.top_k)
    kept = shard.element_bytes * model.hidden_size * rows  # the input of the expert GEMM
    operators = [
        _permute("moe.permute", shard.local_tokens, copies, model, shard, 0.0),
        *_exchange("moe.dispatch", model, moe, shard),
    ]
    if shard.expert_tensor > 1:
        gather = Collective("all_gather", "etp", kept)
        operators.append(Operator("moe.etp_gather", "all_gather", gather, "ep", module="moe"))
    if shard.expert > 1 and local_experts(model, shard) > 1:
        operators.append(_permute("moe.sort", rows, rows, model, shard, 0.0))
    last = operators[-1]
    return [*operators[:-1], last._replace(saved=kept)]


def _experts(model: Model, moe: MoE, shard: Shard) -> list[Operator]:
    """The grouped GEMMs of the local experts and the activation between them."""
    experts, rows = local_experts(model, shard), shard.expert_rows(moe.top_k)
    width = moe.moe_ffn_hidden_size // shard.expert_tensor
    columns = (2 if model.gated_mlp else 1) * width
    element = shard.element_bytes
    up = GroupedGemm(experts, rows / experts, columns, model.hidden_size)
    down = GroupedGemm(experts, rows / experts, model.hidden_size, width)
    activation = elementwise(
        "moe.activation", element * rows * (columns + width), saved=element * rows * width, module="moe_act"
    )
    return [
        *_cast("moe.expert_up", rows * model.hidden_size, shard),
        Operator("moe.expert_up", "grouped_gemm", up, saved=element * rows * columns, module="moe"),
        activation,
        *_cast("moe.expert_down", rows * width, shard),
        Operator("moe.expert_down", "grouped_gemm", down, module="moe"),
    ]


def _cast(name: str, elements: float, shard: Shard) -> list[Operator]:
    if not shard.fp8:
        return []
    return [Operator(f"{name}.cast", "memory", MemoryBound("cast", 4.0 * elements), module="moe")]


def _combine(model: Model, moe: MoE, shard: Shard) -> list[Operator]:
    """Undo the dispatch and sum the top-k results of each token by their router weights."""
    copies = shard.local_tokens * moe.top_k * shard.capacity_factor
    rows = shard.expert_rows(moe.top_k)
    operators = []
    if shard.expert > 1 and local_experts(model, shard) > 1:
        operators.append(_permute("moe.unsort", rows, rows, model, shard, 0.0))
    if shard.expert_tensor > 1:
        scatter = Collective("reduce_scatter", "etp", shard.element_bytes * model.hidden_size * rows)
        operators.append(Operator("moe.etp_scatter", "reduce_scatter", scatter, "ep", module="moe"))
    return [
        *operators,
        *_exchange("moe.combine", model, moe, shard),
        _permute("moe.unpermute", copies, shard.local_tokens, model, shard, 0.0),
    ]
