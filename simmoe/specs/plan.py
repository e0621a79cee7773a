"""How the model is cut over the cluster: the uniform form, and the explicit list of stages it expands to.

Names are Megatron's. Inside one pipeline stage tp * cp * dp = etp * ep * edp = devices of the stage. Ranks are
ordered tp-cp-ep-dp-pp, so a stage holds consecutive devices.
"""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from simmoe.specs.base import Count, Index, Spec

RecomputeModule = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]
CudaGraphScope = Literal["full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess"]


class Schedule(StrEnum):
    """Order of forward and backward passes on a pipeline stage."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_V = "zb-v"
    DUALPIPE = "dualpipe"
    DUALPIPE_V = "dualpipe-v"
    CUSTOM = "custom"

    @property
    def v_shaped(self) -> bool:
        """Two chunks a stage, the second on the way back: the first stage also holds the end of the model."""
        return self in {Schedule.ZB_V, Schedule.DUALPIPE_V}

    @property
    def replicas(self) -> int:
        """Copies of the model that run at once, in opposite directions."""
        return 2 if self is Schedule.DUALPIPE else 1

    def stage_of(self, position: int, stages: int, replica: int = 0) -> int:
        """The stage on which a virtual stage of a copy of the model stands."""
        if self.v_shaped:
            return min(position, 2 * stages - 1 - position)
        return (stages - 1 - position if replica else position) % stages


class Recompute(Spec):
    """What is computed again in backward instead of being kept.

    Attributes
    ----------
    granularity : str
        ``none``, ``selective`` (the named modules) or ``full`` (whole layers).
    modules : tuple of str
        Megatron's ``--recompute-modules`` for selective.
    num_layers : int or None
        Full recomputation of only the first layers of each stage (Megatron's ``block`` method); None = all.
    """

    granularity: Literal["none", "selective", "full"] = "none"
    modules: tuple[RecomputeModule, ...] = ()
    num_layers: Count | None = None


class Chunk(Spec):
    """Consecutive layers of one virtual stage.

    Attributes
    ----------
    position : int
        Place among all virtual stages that a micro-batch passes, from 0.
    replica : int
        Which copy of the model the chunk belongs to: DualPipe runs two in opposite directions.
    first_layer, layers : int
        The layers [first_layer, first_layer + layers).
    embedding, head : bool
        The chunk starts with the input embedding; ends with final norm, logits and loss.
    mtp_layers : int
        Multi-token-prediction layers after its transformer layers.
    """

    position: Index = 0
    replica: Index = 0
    first_layer: Index
    layers: Index
    embedding: bool = False
    mtp_layers: Index = 0
    head: bool = False


class Zebra(Spec):
    """Zebra parallelism in the uniform form: attention and experts on different devices (HeterMoE, section 4.1).

    Attributes
    ----------
    attention_devices, expert_devices : int
        M and N of one zebra group: M hold all but the experts, N the experts.
    groups : int
        Zebra groups of each pipeline stage, which share the batch.
    micro_batches : int
        R, that pass a layer together; a pass of the pipeline is R micro-batches.
    moved_experts : tuple of int
        Experts that each expert device gives up to attention devices, for each MoE layer of the model; empty = none.
    attention_group, expert_group : int
        Node groups of the cluster that the devices are taken from; where they are one, expert devices follow.
    """

    attention_devices: Count
    expert_devices: Count
    groups: Count = 1
    micro_batches: Count = 1
    moved_experts: tuple[Index, ...] = ()
    attention_group: Index = 0
    expert_group: Index = 1


class ExpertDevices(Spec):
    """The devices that hold the experts of a zebra stage, whose own devices hold everything else.

    Attributes
    ----------
    first_device, devices : int
        Devices of all groups, in cluster order.
    groups, micro_batches : int
        As in `Zebra`.
    moved_experts : tuple of int
        As in `Zebra`, of the MoE layers of the stage; empty = none.
    """

    first_device: Index
    devices: Count
    groups: Count = 1
    micro_batches: Count = 1
    moved_experts: tuple[Index, ...] = ()

    @property
    def group_devices(self) -> int:
        """N, expert devices of one zebra group."""
        return self.devices // self.groups


class Stage(Spec):
    """One pipeline stage of the explicit form: its devices, its layers, its own parallel sizes.

    Attributes
    ----------
    first_device, devices : int
        Devices [first_device, first_device + devices) in cluster order; of a zebra stage those without experts.
    chunks : tuple of Chunk
        One for each virtual stage.
    sharding_group : int or None
        As in `Plan`.
    experts : ExpertDevices or None
        Of a zebra stage.
    """

    first_device: Index
    devices: Count
    chunks: tuple[Chunk, ...] = Field(min_length=1)
    tensor_parallel: Count = 1
    context_parallel: Count = 1
    data_parallel: Count
    expert_parallel: Count = 1
    expert_tensor_parallel: Count = 1
    sharding_group: Count | None = None
    recompute: Recompute = Recompute()
    experts: ExpertDevices | None = None

    @property
    def roles(self) -> tuple["Stage", ...]:
        """The stage; or, of a zebra stage, its attention devices and its expert devices as plain stages.

        On the attention devices of a group stand the experts that moved there, on the expert devices the others.
        """
        if self.experts is None:
            return (self,)
        apart, count = self.experts, self.experts.devices
        attention = {"experts": None, "expert_parallel": self.devices // apart.groups}
        experts = {
            "experts": None,
            "first_device": apart.first_device,
            "devices": count,
            "tensor_parallel": 1,
            "context_parallel": 1,
            "data_parallel": count,
            "expert_parallel": apart.group_devices,
            "sharding_group": None,
        }
        return self.model_copy(update=attention), self.model_copy(update=experts)

    @property
    def together(self) -> int:
        """Micro-batches of a pass: R of a zebra stage."""
        return self.experts.micro_batches if self.experts is not None else 1

    @property
    def width(self) -> int:
        """Micro-batches of one sequence each that a pass needs at least: one a rank, or R of a zebra stage."""
        return self.data_parallel * self.together

    @property
    def expert_data_parallel(self) -> int:
        """Replicas of one expert shard in the stage."""
        return self.devices // (self.expert_parallel * self.expert_tensor_parallel)

    @property
    def shards(self) -> int:
        """Ranks that share one copy of what is sharded, of the dense parameters."""
        return self.sharding_group or self.data_parallel * self.context_parallel

    @property
    def layers(self) -> int:
        """Transformer layers of the stage, without MTP."""
        return sum(chunk.layers for chunk in self.chunks)


class Plan(Spec):
    """A parallelisation plan; `simmoe.specs.expand.expand` fills in `stages` from the uniform form.

    Attributes
    ----------
    data_parallel : int or None
        Derived from the world size when left out; checked when given.
    expert_tensor_parallel : int
        1 = whole experts (Megatron's own default is tensor_parallel).
    stage_layers : tuple of int or None
        Transformer layers of each virtual stage, in model order (chunk-major: index = chunk * pp + stage).
    pipeline_layout : str or None
        Megatron's ``--pipeline-model-parallel-layout``, e.g. ``Et*3|(tt|)*29m|L``.
    account_for_embedding, account_for_loss : bool
        Embedding and loss take the place of a layer when layers are divided over stages.
    schedule_table : str or None
        The table of actions of schedule ``custom``, in PyTorch's form: one row a stage, cells such as ``0F0``, see
        `simmoe.graph.custom_schedule`.
    sharding : str
        ``none``, ``zero1`` (distributed optimizer), ``zero2`` (FSDP that keeps parameters whole from forward to
        backward, SHARD_GRAD_OP) or ``zero3`` (FSDP: parameters and gradients too); the last two on one stage only.
    sharding_group : int or None
        Data- and context-parallel ranks that share one copy of what is sharded of the dense parameters, the copies are
        kept alike by an all-reduce (HSDP); None = all of them. Experts are shared by all their replicas.
    sequence_parallel : bool
        Split norms and residuals over the tensor-parallel group; ignored at tensor_parallel 1.
    dispatcher : str
        ``alltoall`` (NCCL, every copy travels), ``allgather``; one copy per node: ``deepep``, ``hybridep``, ``uccl``.
    overlap_moe_expert_parallel_comm : bool
        Run the expert all-to-all of one micro-batch beneath the computation of another (1f1b on one stage, or
        interleaved; DualPipe always does).
    overlap_dispatch_backward_with_experts_wgrad : bool
        Compute the experts' weight gradients while the gradients of their inputs are under way.
    a2a_ffn_overlap_degree : int
        Tutel's name: dispatch, expert products and combine of a layer are cut into so many pieces, whose exchanges run
        beneath the products of the others, see `simmoe.graph.pieces`.
    microbatch_group_size : int or None
        Megatron's ``--microbatch-group-size-per-virtual-pipeline-stage`` of the interleaved schedule; None = stages.
    overlap_grad_reduce, overlap_param_gather : bool
        Hide data-parallel communication behind backward and forward.
    optimizer_offload_fraction : float
        Share of the master weights and moments that the host keeps and updates, as Megatron's
        ``--optimizer-cpu-offload``, see `simmoe.cost.host_update` [1].
    overlap_cpu_optimizer_d2h_h2d : bool
        Move gradients and parameters between device and host while the host updates others.
    tp_comm_overlap : bool
        Pipeline tensor-parallel collectives with their GEMM in tensor_parallel pieces.
    cuda_graph_scope : tuple of str
        What CUDA graphs replay: ``full_iteration``, or some of Megatron's ``--cuda-graph-modules``.
    zebra : Zebra or None
        Attention and experts on different devices.
    """

    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    virtual_pipeline: Count = 1
    context_parallel: Count = 1
    expert_parallel: Count = 1
    expert_tensor_parallel: Count = 1
    data_parallel: Count | None = None
    schedule: Schedule = Schedule.ONE_F_ONE_B
    schedule_table: str | None = None
    recompute: Recompute = Recompute()
    stage_layers: tuple[Index, ...] | None = None
    pipeline_layout: str | None = None
    account_for_embedding: bool = False
    account_for_loss: bool = False
    sharding: Literal["none", "zero1", "zero2", "zero3"] = "zero1"
    sharding_group: Count | None = None
    sequence_parallel: bool = True
    dispatcher: Literal["alltoall", "allgather", "deepep", "hybridep", "uccl"] = "alltoall"
    overlap_moe_expert_parallel_comm: bool = False
    overlap_dispatch_backward_with_experts_wgrad: bool = False
    a2a_ffn_overlap_degree: Count = 1
    microbatch_group_size: Count | None = None
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    optimizer_offload_fraction: float = Field(default=0.0, ge=0, le=1)
    overlap_cpu_optimizer_d2h_h2d: bool = True
    tp_comm_overlap: bool = False
    cuda_graph_scope: tuple[CudaGraphScope, ...] = ()
    zebra: Zebra | None = None
    stages: tuple[Stage, ...] = ()

    @property
    def widest(self) -> int:
        """Micro-batches that are a pass of the pipeline: data-parallel ranks x R of the stage that has most.

        A pass is the same sequences in all stages. Each micro-batch of a narrower stage has several sequences for one
        of theirs.
        """
        return max((stage.width for stage in self.stages), default=1)

    @property
    def layerwise(self) -> bool:
        """Parameters are gathered, and gradients scattered, layer by layer in every pass."""
        return self.sharding in {"zero2", "zero3"}
