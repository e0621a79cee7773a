"""The backward operators of a pass, and what recomputation repeats, derived from its forward operators."""

from collections.abc import Sequence
from functools import lru_cache

from simmoe.cost.operators import (
    AttentionCore,
    Collective,
    CollectiveName,
    Gemm,
    GroupedGemm,
    MemoryBound,
    Operator,
    TokenExchange,
)
from simmoe.specs.plan import Recompute

# Traffic of the backward pass over forward. Norm: reads x and dy, writes dx (3 tensors against 2). Elementwise: a gated
# activation reads two inputs and dy and writes two (5 against 3); rope is its own transpose (1); one figure serves
# both, between them. A fused loss turns the logits into their gradient in place.
_TRAFFIC = {
    "elementwise": 1.5,
    "norm": 1.5,
    "softmax": 1.0,
    "permute": 1.0,
    "cross_entropy": 1.0,
    "optimizer": 0.0,
    "cast": 1.0,
}
_DUAL: dict[CollectiveName, CollectiveName] = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}


@lru_cache(maxsize=2**14)
def backward(operator: Operator) -> tuple[Operator, ...]:
    """The operators that compute the gradients of one forward operator, in order of issue.

    Parameters
    ----------
    operator : Operator
        A forward operator.

    Returns
    -------
    tuple of Operator
        Input gradient before weight gradient. The dual of an all-gather is a reduce-scatter and vice versa, of a
        dispatch a combine. A residual has no kernel of its own: its gradient is added where the branches join.

    Examples
    --------
    >>> [o.name for o in backward(Operator("mlp.up", "gemm", Gemm(8, 4, 2)))]
    ['mlp.up.dgrad', 'mlp.up.wgrad']
    """
    work = operator.work
    if isinstance(work, Gemm):
        dgrad = work._replace(n=work.k, k=work.n, pass_="dgrad")
        wgrad = work._replace(m=work.k, k=work.m, pass_="wgrad")
        return _part(operator, "dgrad", dgrad), _part(operator, "wgrad", wgrad)
    if isinstance(work, GroupedGemm):
        dgrad_ = work._replace(n=work.k, k=work.n, pass_="dgrad")
        return _part(operator, "dgrad", dgrad_), _part(operator, "wgrad", work._replace(pass_="wgrad"))
    if isinstance(work, AttentionCore):
        return (_part(operator, "", work._replace(backward=True)),)
    if isinstance(work, TokenExchange):
        return (_part(operator, "", work._replace(combine=not work.combine)),)
    if isinstance(work, Collective):
        kind = _DUAL.get(work.collective, work.collective)
        size = work.bytes if work.gradient_bytes is None else work.gradient_bytes
        dual = Collective(kind, work.group, size, work.bytes)
        return (operator._replace(category=kind, work=dual, saved=0.0),)
    return _memory_bound(operator, work) if isinstance(work, MemoryBound) else ()


def _part(operator: Operator, suffix: str, work: Gemm | GroupedGemm | AttentionCore | TokenExchange) -> Operator:
    name = f"{operator.name}.{suffix}" if suffix else operator.name
    return operator._replace(name=name, work=work, saved=0.0)


def _memory_bound(operator: Operator, work: MemoryBound) -> tuple[Operator, ...]:
    if operator.name.endswith("residual"):
        return ()
    size = work.bytes * _TRAFFIC[work.operator] if work.gradient_bytes is None else work.gradient_bytes
    return (operator._replace(work=work._replace(bytes=size), saved=0.0),)


def recomputed(forward: Sequence[Operator], recompute: Recompute, *, whole_layer: bool) -> list[Operator]:
    """The forward operators that run again before the backward pass of a layer.

    Parameters
    ----------
    forward : sequence of Operator
        The layer's forward operators.
    recompute : Recompute
        The stage's mode.
    whole_layer : bool
        This layer is among those that full recomputation covers.

    Notes
    -----
    Selective recomputation repeats the operators of the named Megatron modules. Recomputing ``core_attn`` with a fused
    kernel repeats a kernel that keeps nothing of quadratic size; users of fused attention gain little by it.
    """
    if recompute.granularity == "full":
        return list(forward) if whole_layer else []
    if recompute.granularity == "none":
        return []
    return [operator for operator in forward if is_recomputed(operator, recompute)]


def is_recomputed(operator: Operator, recompute: Recompute) -> bool:
    """Whether selective recomputation covers an operator; ``moe`` covers the experts' activation too."""
    modules = recompute.modules
    return operator.module in modules or (operator.module == "moe_act" and "moe" in modules)
