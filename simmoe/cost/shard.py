"""The share of one rank: how a micro-batch and a layer are cut over tp, cp, ep and etp."""

from typing import NamedTuple

from simmoe.specs.model import Model
from simmoe.specs.plan import Plan, Stage
from simmoe.specs.workload import Precision, Routing, Training


class Shard(NamedTuple):
    """What one rank of a stage sees of a micro-batch.

    Attributes
    ----------
    batch, sequence : int
        Sequences of a micro-batch and their full length [tokens].
    tensor, context, expert, expert_tensor : int
        Sizes of the parallel groups.
    sequence_parallel : bool
        Norms, residuals and the MoE layer see tokens / tensor.
    element_bytes : int
        Bytes of one activation element.
    fp8 : bool
        Weight GEMMs read 8-bit or 4-bit inputs, cast by operators of their own.
    cast_bytes, cast_size : float
        Bytes that casting one element moves, and of the element it makes.
    fused_attention : bool
        Scores never reach memory.
    fused_experts : bool
        Gated experts without biases are activated, and the result cast, inside the grouped GEMMs.
    fused_loss : bool
        The loss keeps no second copy of the logits.
    dispatcher : str
        As `Plan.dispatcher`.
    capacity_factor : float
        Token copies sent to experts, with padding and without what is dropped, over tokens x top_k [1].
    load : float
        Expert rows of the rank over the mean of its expert-parallel group [1].
    exchange_load, domain_load : float
        What the busiest rank and the busiest scale-up domain of the group receive in a dispatch, over the mean [1].
    expert_replicas : int
        Copies of other ranks' experts that the rank holds.
    held_experts : int or None
        Experts of the rank where they are not an equal share.
    apart : bool
        Experts stand on other devices: exchanged even if there is only one of them.
    """

    batch: int
    sequence: int
    tensor: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence_parallel: bool = False
    element_bytes: int = 2
    fp8: bool = False
    cast_bytes: float = 4.0
    cast_size: float = 1.0
    fused_attention: bool = True
    fused_experts: bool = False
    fused_loss: bool = True
    dispatcher: str = "alltoall"
    capacity_factor: float = 1.0
    load: float = 1.0
    exchange_load: float = 1.0
    domain_load: float = 1.0
    expert_replicas: int = 0
    held_experts: int | None = None
    apart: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank inside a tensor-parallel block."""
        return self.batch * self.sequence // self.context

    @property
    def local_tokens(self) -> float:
        """Tokens of a micro-batch where sequence parallelism splits them."""
        return self.tokens / self.tensor if self.sequence_parallel else float(self.tokens)

    @property
    def gemm_bytes(self) -> float:
        """Bytes of one element as weight GEMMs read it."""
        return self.cast_size if self.fp8 else self.element_bytes

    @property
    def column_parallel(self) -> tuple[float, float]:
        """Ranks that share the cast of the input and of the output's gradient of a column-parallel GEMM."""
        return (float(self.tensor), 1.0) if self.sequence_parallel else (1.0, 1.0)

    @property
    def row_parallel(self) -> tuple[float, float]:
        """The same of a row-parallel GEMM, whose output is what sequence parallelism splits."""
        return (1.0, float(self.tensor)) if self.sequence_parallel else (1.0, 1.0)

    def expert_rows(self, top_k: int) -> float:
        """Token copies that the experts of one rank work on.

        Each of the ep ranks sends local_tokens * top_k copies and, balanced, receives as many; expert tensor
        parallelism gathers the copies of its etp ranks. Expert work therefore does not depend on ep at fixed world
        size.
        """
        return self.local_tokens * top_k * self.expert_tensor * self.capacity_factor * self.load


def shard_of(stage: Stage, plan: Plan, training: Training, routing: Routing) -> Shard:
    """The shard of a stage of an expanded plan."""
    software, precision = training.software, training.precision
    return Shard(
        batch=training.micro_batch_size * max(plan.widest // stage.width, 1),
        sequence=training.sequence_length,
        tensor=stage.tensor_parallel,
        context=stage.context_parallel,
        expert=stage.expert_parallel,
        expert_tensor=stage.expert_tensor_parallel,
        sequence_parallel=plan.sequence_parallel and stage.tensor_parallel > 1,
        element_bytes=precision.activation_bytes,
        fp8=precision.casts,
        cast_bytes=precision.cast_bytes,
        cast_size=precision.gemm_bytes,
        fused_attention=software.attention == "fused",
        fused_experts=software.fused_grouped_mlp and precision is Precision.MXFP8,
        fused_loss=software.fused_cross_entropy,
        dispatcher=plan.dispatcher,
        capacity_factor=_copies_sent(routing),
        expert_replicas=routing.expert_replicas,
    )


def _copies_sent(routing: Routing) -> float:
    """Under even shares a capacity below 1 drops; one above adds nothing unless it is filled up."""
    capacity = routing.capacity_factor
    if capacity is None:
        return 1.0
    return capacity if routing.pad_to_capacity else min(1.0, capacity)


def local_experts(model: Model, shard: Shard) -> int:
    """Experts whose weights a rank holds (a slice of, under expert tensor parallelism), copies included."""
    if shard.held_experts is not None:
        return shard.held_experts
    return model.moe.num_experts // shard.expert + shard.expert_replicas if model.moe else 0
