"""What happens once per optimizer step: gradient reduction, optimizer, parameter gather, and their sizes."""

from typing import NamedTuple

from simmoe.cost.operators import Collective, CollectiveName, GroupName, MemoryBound, Operator
from simmoe.specs.plan import Plan
from simmoe.specs.workload import Training

_ADAM_TRAFFIC = 30  # reads fp32 gradient, master weight, two moments; writes the last three and the 16-bit weight
_SGD_TRAFFIC = 14  # the same without moments


class Weights(NamedTuple):
    """Parameters of one rank, by the group over which their replicas reduce gradients.

    Attributes
    ----------
    dense : float
        Attention, dense MLPs, router, shared experts, norms, embedding, head: reduced over dp x cp.
    expert : float
        Routed experts: reduced over edp.
    """

    dense: float
    expert: float


def reduce_gradients(weights: Weights, plan: Plan, training: Training) -> list[Operator]:
    """Reduce-scatter (distributed optimizer) or all-reduce of the gradients of some layers."""
    kind: CollectiveName = "all_reduce" if plan.sharding == "none" else "reduce_scatter"
    size = 4 if training.gradient_dtype == "fp32" else 2
    return [
        Operator(f"grad.{name}", kind, Collective(kind, group, count * size), "dp")
        for name, group, count in _parts(weights)
    ]


def gather_parameters(weights: Weights, plan: Plan) -> list[Operator]:
    """All-gather of updated 16-bit parameters under the distributed optimizer."""
    if plan.sharding == "none":
        return []
    return [
        Operator(f"param.{name}", "all_gather", Collective("all_gather", group, count * 2), "dp")
        for name, group, count in _parts(weights)
    ]


def optimizer_step(weights: Weights, plan: Plan, training: Training, dp: int, edp: int) -> Operator:
    """Update of the parameters that a rank owns.

    Parameters
    ----------
    weights : Weights
        All parameters of the rank.
    dp, edp : int
        Ranks over which the optimizer of the dense and of the expert parameters is sharded.
    """
    traffic = _ADAM_TRAFFIC if training.optimizer == "adam" else _SGD_TRAFFIC
    sharded = plan.sharding != "none"
    owned = weights.dense / (dp if sharded else 1) + weights.expert / (edp if sharded else 1)
    return Operator("optimizer", "optimizer", MemoryBound("optimizer", owned * traffic))


def _parts(weights: Weights) -> list[tuple[str, GroupName, float]]:
    parts: list[tuple[str, GroupName, float]] = [("dense", "dp", weights.dense), ("expert", "edp", weights.expert)]
    return [part for part in parts if part[2] > 0]
