"""What is trained: batch, precision, optimizer, router balance."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from simmoe.specs.base import Count, Index, Spec
from simmoe.specs.faults import Jitter
from simmoe.specs.hardware import Dtype
from simmoe.specs.routing import ExpertCounts
from simmoe.specs.software import SoftwareStack


class Precision(StrEnum):
    """Precision recipe of a run; the fp8 family and nvfp4 keep bf16 master copies and activations, tf32 stores fp32.

    ``nvfp4`` runs every weight GEMM in fp4. NVIDIA's recipe (arXiv 2509.25149) keeps about a sixth of the linear
    layers, the first and last ones, in bf16, which makes its steps longer than these.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8_DELAYED = "fp8-delayed"
    FP8_CURRENT = "fp8-current"
    FP8_BLOCKWISE = "fp8-blockwise"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def is_fp8(self) -> bool:
        """GEMM inputs are cast to 8 bits."""
        return self in {Precision.FP8_DELAYED, Precision.FP8_CURRENT, Precision.FP8_BLOCKWISE, Precision.MXFP8}

    @property
    def casts(self) -> bool:
        """GEMM inputs are cast to 8 or 4 bits."""
        return self.is_fp8 or self is Precision.NVFP4

    @property
    def gemm_dtype(self) -> Dtype:
        """Arithmetic of the weight GEMMs."""
        if self is Precision.NVFP4:
            return Dtype.FP4
        return Dtype.FP8 if self.is_fp8 else Dtype(self.value)

    @property
    def activation_dtype(self) -> Dtype:
        """Arithmetic of attention and of everything that is not a weight GEMM."""
        return Dtype.BF16 if self.casts else Dtype(self.value)

    @property
    def gemm_bytes(self) -> float:
        """Bytes of one element as weight GEMMs read it, with the scales of its block."""
        if self is Precision.NVFP4:
            return 0.5 + 1 / 16
        return 1.0 if self.is_fp8 else float(self.activation_bytes)

    @property
    def cast_bytes(self) -> float:
        """Bytes that casting one element moves; what the casts of `CAST_BYTES` read and write."""
        return CAST_BYTES.get(self, 0.0)

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation element."""
        return 4 if self in {Precision.FP32, Precision.TF32} else 2


# Bytes that a cast moves for one bf16 element, after Transformer Engine 2 (its user guide, "Low precision training"):
# every input is kept along rows and along columns, for the products of both passes.
CAST_BYTES = {
    Precision.FP8_DELAYED: 2.0 + 1.0 + 1.0,  # the scale is that of earlier steps; the new maximum comes along
    Precision.FP8_CURRENT: 2.0 + 2.0 + 1.0 + 1.0,  # the maximum is found in a pass of its own
    Precision.FP8_BLOCKWISE: 2.0 + 2 * (1.0 + 4 / 128),  # one fp32 scale for 128
    Precision.MXFP8: 2.0 + 2 * (1.0 + 3 / 32),  # one byte for 32, then brought into the order the GEMM wants
    # The maxima of rows and of Hadamard-transformed columns in one pass, then rows, then columns; one byte for 16.
    Precision.NVFP4: 2.0 + 2 * (2.0 + 0.5 + 3 / 16),
}


class Training(Spec):
    """Batch, precision and optimizer of one run.

    Attributes
    ----------
    sequence_length : int
        Tokens of one sequence.
    micro_batch_size, global_batch_size : int
        Sequences per micro-batch and rank (of the stage with most data-parallel ranks), and per optimizer step over the
        whole job.
    gradient_dtype : str
        Dtype in which gradients are accumulated and reduced.
    fp8_attention : bool
        Attention takes 8-bit inputs, on accelerators with such a kernel.
    mtp : bool
        Train the multi-token-prediction layers the model has.
    sustained : bool
        A long run, whose clocks have settled; false for a benchmark of a few steps: kernels keep the rates of short
        benchmarks.
    software : SoftwareStack
        The framework that runs; a file names its id in ``hardware_db/software``.
    jitter : Jitter
        How much times vary between the draws of ``simmoe simulate --draws``; a single run has none.
    """

    sequence_length: Count
    micro_batch_size: Count = 1
    global_batch_size: Count
    precision: Precision = Precision.BF16
    optimizer: Literal["adam", "sgd"] = "adam"
    gradient_dtype: Literal["fp32", "bf16"] = "fp32"
    fp8_attention: bool = False
    mtp: bool = True
    sustained: bool = True
    software: SoftwareStack
    jitter: Jitter = Jitter()

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequence_length * self.global_batch_size


class Routing(Spec):
    """How evenly the router fills the experts.

    Attributes
    ----------
    kind : str
        ``balanced``: every expert gets the same tokens (forced balance, or a well-trained auxiliary loss).
        ``zipf``: shares fall as rank ** -exponent. ``power_law``: expert loads are drawn from the density
        x ** -exponent, as aiconfigurator's benchmarks do. ``dirichlet``: shares drawn with a concentration.
        ``counts``: measured.
    capacity_factor : float or None
        Tokens an expert accepts over its fair share, the rest is dropped; None = dropless.
    pad_to_capacity : bool
        Every expert works on exactly its capacity, filled up with padding (Megatron's
        ``--moe-pad-expert-input-to-capacity``): all ranks do the same, whatever the router says.
    exponent : float or None
        Of ``zipf`` and ``power_law``; 0 = even shares for ``zipf``.
    concentration : float or None
        Of ``dirichlet``, for each expert: the shares' variance falls as 1 / (1 + experts x concentration).
    counts : ExpertCounts or None
        Of ``counts``; a file names a CSV file (layer, expert, count) or what Megatron's
        ``--moe-routing-trace-path`` wrote, relative to itself.
    seed : int
        Of every draw; the same seed gives the same run.
    resample : str
        New shares for every ``micro_batch``, or one draw for each layer that holds for the whole ``step``.
    expert_replicas : int
        Extra expert slots of each rank, which copies of the most loaded experts fill (DeepSeek's EPLB).
    """

    kind: Literal["balanced", "zipf", "power_law", "dirichlet", "counts"] = "balanced"
    capacity_factor: float | None = Field(default=None, gt=0)
    pad_to_capacity: bool = False
    exponent: float | None = Field(default=None, ge=0, le=10)
    concentration: float | None = Field(default=None, gt=0, le=1e6)
    counts: ExpertCounts | None = None
    seed: Index = 0
    resample: Literal["step", "micro_batch"] = "micro_batch"
    expert_replicas: Index = 0

    @property
    def skewed(self) -> bool:
        """Ranks of an expert-parallel group do unequal work."""
        return self.kind != "balanced" and not self.pad_to_capacity
