"""A software stack: what a training framework of a given date does, as physical switches and overheads."""

from typing import Literal

from simmoe.specs.base import SourcedBytes, SourcedNumber, SourcedSeconds, Spec


class SoftwareStack(Spec):
    """Switches and overheads of one framework version; never a factor on the step.

    Attributes
    ----------
    date : str
        Month of the release, ``YYYY-MM``.
    attention : str
        ``fused`` (FlashAttention class) or ``unfused`` (scores written to memory).
    attention_kernels : tuple of str
        Fused kernels the stack takes before others, by preference; where the accelerator has none of them, or with
        none named, its fastest one runs.
    grouped_gemm : str
        Kernel of the experts' products, a name of `GroupedGemmEfficiency`; where the accelerator lacks it, ``te``.
    elementwise_traffic : Quantity
        Memory traffic of norms, activations and residuals relative to the fully fused count [1].
    narrow_gemm_fill : Quantity or None
        Shorter side of a weight at which dense and expert products take twice as long on this stack, beyond what their
        kernels do (`simmoe.cost.kernels.narrow_factor`); None = the kernels' fits alone [1].
    host_dense_layer, host_moe_layer : Quantity
        Host time to launch one forward pass of a dense or a MoE layer; backward takes the same [s].
    host_fp8_layer, host_fp8_experts : Quantity
        Host time that an fp8 recipe adds to a pass of a dense layer, half of it in attention, and to the experts [s].
    host_attention, host_router, host_preprocess : Quantity
        Of these, the attention half, the router with its norm, and what prepares a dispatch (token counts) [s].
    host_overlap_factor : Quantity
        How much longer the host takes for a layer when expert exchanges of two micro-batches overlap [1].
    host_sync : bool
        The dropless dispatcher reads token counts back to the host before it launches the experts.
    scatter_gather_tensors_in_pipeline : bool
        Without sequence parallelism each tensor-parallel rank sends its share of an activation to the next stage,
        which gathers it over its own links (Megatron-LM, Narayanan et al., arXiv 2104.04473, section 4.1).
    blocking_launches : bool
        The host waits for each kernel before it launches the next (``CUDA_LAUNCH_BLOCKING=1``), so that its times add.
    blocking_transfers : bool
        A stage computes nothing while it sends or receives (DeepSpeed's pipeline).
    fp8_parameters : bool
        Under fp8 recipes weights are kept in 8 bits only, by rows and by columns (Megatron's ``--fp8-param-gather``).
    fused_grouped_mlp : bool
        Under MXFP8 the grouped GEMMs of gated experts apply the activation and cast its result (Transformer Engine's
        fused grouped MLP, Megatron's ``--use-transformer-engine-op-fuser``).
    fused_cross_entropy : bool
        The loss keeps no second copy of the logits.
    weight_gradients : str
        Where the products of weight gradients go, see `simmoe.cost.gradients.GRADIENT_TRAFFIC`: ``fused`` (added to the
        main gradient by the product itself), ``unfused`` (a kernel adds them), ``flat`` (FSDP1, copied into a flat
        parameter) or ``per_parameter`` (FSDP2, copied into a buffer for each collective).
    adam_traffic : Quantity or None
        Bytes that an Adam update moves for each parameter that a rank owns; None = one fused kernel [1].
    framework_memory : Quantity
        CUDA context, libraries and communicator buffers [B].
    allocator_waste : Quantity
        Fragmentation of the caching allocator over the live bytes [1].
    dense_spread, moe_spread : Quantity or None
        How far published steps of dense and of Mixture-of-Experts models scatter around the simulated ones, beyond what
        the spreads of kernels and links explain: standard deviation of the logarithm [1]; None = never compared.
    """

    id: str
    name: str
    date: str
    attention: Literal["fused", "unfused"]
    attention_kernels: tuple[str, ...] = ()
    grouped_gemm: str = "te"
    elementwise_traffic: SourcedNumber
    narrow_gemm_fill: SourcedNumber | None = None
    host_dense_layer: SourcedSeconds
    host_moe_layer: SourcedSeconds
    host_fp8_layer: SourcedSeconds
    host_fp8_experts: SourcedSeconds
    host_attention: SourcedSeconds
    host_router: SourcedSeconds
    host_preprocess: SourcedSeconds
    host_overlap_factor: SourcedNumber
    host_sync: bool
    scatter_gather_tensors_in_pipeline: bool = False
    blocking_launches: bool = False
    blocking_transfers: bool = False
    fp8_parameters: bool = False
    fused_grouped_mlp: bool = False
    fused_cross_entropy: bool
    weight_gradients: Literal["fused", "unfused", "flat", "per_parameter"] = "fused"
    adam_traffic: SourcedNumber | None = None
    framework_memory: SourcedBytes
    allocator_waste: SourcedNumber
    dense_spread: SourcedNumber | None = None
    moe_spread: SourcedNumber | None = None
