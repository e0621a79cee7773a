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
    elementwise_traffic : Quantity
        Memory traffic of norms, activations and residuals relative to the fully fused count [1].
    host_dense_layer, host_moe_layer : Quantity
        Host time to launch one forward pass of a dense or a MoE layer; backward takes the same [s].
    host_fp8_layer : Quantity
        Host time that an fp8 recipe adds to each of these [s].
    host_sync : bool
        The dropless dispatcher reads token counts back to the host before it launches the experts.
    fused_cross_entropy : bool
        The loss keeps no second copy of the logits.
    framework_memory : Quantity
        CUDA context, libraries and communicator buffers [B].
    allocator_waste : Quantity
        Fragmentation of the caching allocator over the live bytes [1].
    """

    id: str
    name: str
    date: str
    attention: Literal["fused", "unfused"]
    elementwise_traffic: SourcedNumber
    host_dense_layer: SourcedSeconds
    host_moe_layer: SourcedSeconds
    host_fp8_layer: SourcedSeconds
    host_sync: bool
    fused_cross_entropy: bool
    framework_memory: SourcedBytes
    allocator_waste: SourcedNumber
