"""What happens once per optimizer step: gradient reduction, optimizer, parameter gather, and their sizes."""

from typing import NamedTuple

from simmoe.cost.operators import Collective, CollectiveName, GroupName, HostUpdate, MemoryBound, Operator
from simmoe.specs.plan import Plan
from simmoe.specs.workload import Training

# Bytes for each parameter that a rank updates: Adam reads the fp32 gradient, the master weight and two moments and
# writes the last three and the 16-bit weight; SGD has no moments.
_ADAM_TRAFFIC = 30
_SGD_TRAFFIC = 14
# Before it the rank reads its gradients for their norm and scales them to the clipping threshold, both in fp32.
_CLIP_TRAFFIC = 12
# For each parameter that a rank holds: gradients are divided by the replicas before their reduction and zeroed after
# the step (Megatron-Core, param_and_grad_buffer.py, start_grad_sync and reset), both over the whole fp32 buffer.
_BUFFER_TRAFFIC = 12
# Bytes for each parameter and micro-batch between the 16-bit weight gradient that a product leaves and the buffer that
# is reduced, by where that is and what it holds: 16-bit gradients, fp32 gradients.
# unfused: read, and added to the buffer. flat (PyTorch FSDP1): split views of the flat parameter are joined (4), cast
# (2 + 4 for fp32) and divided before the reduction (2 + 2 or 4 + 4). per_parameter (FSDP2): cast into the buffer of
# the reduction.
GRADIENT_TRAFFIC = {"fused": (0, 0), "unfused": (6, 10), "flat": (8, 18), "per_parameter": (4, 6)}
# FSDP2 copies gathered 16-bit parameters out of the buffer of the collective; FSDP1 gathers them in place.
GATHER_TRAFFIC = {"per_parameter": 4}
HOST_UPDATE = "optimizer.host"
"""Name of the operator that the host runs."""


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
    """Reduce-scatter (distributed optimizer) or all-reduce of the gradients of some layers.

    With a sharding group the scattered gradients are then summed over its copies (Zhao et al. 2023, arXiv 2304.11277,
    section 3.2.2, equation 1).
    """
    kind: CollectiveName = "all_reduce" if plan.sharding == "none" else "reduce_scatter"
    size = 4 if training.gradient_dtype == "fp32" else 2
    found = [
        Operator(f"grad.{name}", kind, Collective(kind, group, count * size), "dp")
        for name, group, count in _parts(weights, plan)
    ]
    if plan.sharding_group is not None:
        shard = Collective("all_reduce", "replica", weights.dense / plan.sharding_group * size)
        found.append(Operator("grad.replicas", "all_reduce", shard, "dp"))
    return found


def move_gradients(weights: Weights, training: Training) -> list[Operator]:
    """What a micro-batch does to the 16-bit weight gradients of a layer before they can be reduced.

    Parameters
    ----------
    weights : Weights
        Of the layer.
    training : Training
        Its software stack says where gradients go, `GRADIENT_TRAFFIC` what that moves.

    References
    ----------
    PyTorch, ``torch/distributed/fsdp/_runtime_utils.py`` (``_post_backward_hook``, ``_reduce_grad``) and
    ``torch/distributed/_composable/fsdp/_fsdp_collectives.py`` (``foreach_reduce``); DeepSpeed,
    ``runtime/bf16_optimizer.py`` (``update_hp_grads``).

    Examples
    --------
    >>> from simmoe.specs.software import SoftwareStack
    >>> stack = SoftwareStack.model_construct(weight_gradients="unfused")
    >>> training = Training.model_construct(software=stack, gradient_dtype="fp32")
    >>> move_gradients(Weights(1e9, 0), training)[0].work.bytes  # 2 read, 8 for the sum
    10000000000.0
    """
    moved = GRADIENT_TRAFFIC[training.software.weight_gradients][training.gradient_dtype == "fp32"]
    if moved == 0:
        return []
    return [Operator("grad.move", "memory", MemoryBound("optimizer", float(moved * sum(weights))))]


def copy_gathered(weights: Weights, training: Training) -> list[Operator]:
    """What follows the gather of a layer's parameters before they can be used, see `GATHER_TRAFFIC`."""
    moved = GATHER_TRAFFIC.get(training.software.weight_gradients, 0)
    return [Operator("param.copy", "memory", MemoryBound("optimizer", float(moved * sum(weights))))] if moved else []


def gather_parameters(weights: Weights, plan: Plan) -> list[Operator]:
    """All-gather of updated 16-bit parameters under the distributed optimizer."""
    if plan.sharding == "none":
        return []
    return [
        Operator(f"param.{name}", "all_gather", Collective("all_gather", group, count * 2), "dp")
        for name, group, count in _parts(weights, plan)
    ]


def optimizer_step(weights: Weights, plan: Plan, training: Training, dp: int, edp: int) -> list[Operator]:
    """What a rank does to its gradients and parameters once a step: scale, clip, update, zero; then what its host does.

    Parameters
    ----------
    weights : Weights
        All parameters of the rank.
    dp, edp : int
        Ranks over which the optimizer of the dense and of the expert parameters is sharded.
    """
    adam = training.software.adam_traffic
    traffic = _SGD_TRAFFIC if training.optimizer == "sgd" else adam.value if adam else _ADAM_TRAFFIC
    sharded = plan.sharding != "none"
    owned = weights.dense / (dp if sharded else 1) + weights.expert / (edp if sharded else 1)
    held = owned if plan.layerwise else weights.dense + weights.expert
    away = plan.optimizer_offload_fraction
    moved = owned * ((1.0 - away) * traffic + _CLIP_TRAFFIC) + held * _BUFFER_TRAFFIC
    found = [Operator("optimizer", "optimizer", MemoryBound("optimizer", moved))]
    if away:
        gradient = 4.0 if training.gradient_dtype == "fp32" else 2.0
        weight = float(training.precision.activation_bytes)
        work = HostUpdate(owned * away, gradient, weight, plan.overlap_cpu_optimizer_d2h_h2d)
        found.append(Operator(HOST_UPDATE, "optimizer", work))
    return found


def _parts(weights: Weights, plan: Plan) -> list[tuple[str, GroupName, float]]:
    dense: GroupName = "dp" if plan.sharding_group is None else "shard"
    parts: list[tuple[str, GroupName, float]] = [("dense", dense, weights.dense), ("expert", "edp", weights.expert)]
    return [part for part in parts if part[2] > 0]
