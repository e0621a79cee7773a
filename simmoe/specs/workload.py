"""What is trained: batch, precision, optimizer, router balance."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from simmoe.specs.base import Count, Spec
from simmoe.specs.hardware import Dtype
from simmoe.specs.software import SoftwareStack


class Precision(StrEnum):
    """Precision recipe of a run; the fp8 family keeps bf16 master copies and activations."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8_DELAYED = "fp8-delayed"
    FP8_CURRENT = "fp8-current"
    FP8_BLOCKWISE = "fp8-blockwise"
    MXFP8 = "mxfp8"

    @property
    def is_fp8(self) -> bool:
        """GEMM inputs are cast to 8 bits."""
        return self in {Precision.FP8_DELAYED, Precision.FP8_CURRENT, Precision.FP8_BLOCKWISE, Precision.MXFP8}

    @property
    def gemm_dtype(self) -> Dtype:
        """Arithmetic of the weight GEMMs."""
        return Dtype.FP8 if self.is_fp8 else Dtype(self.value)

    @property
    def activation_dtype(self) -> Dtype:
        """Arithmetic of attention and of everything that is not a weight GEMM."""
        return Dtype.BF16 if self.is_fp8 else Dtype(self.value)

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation element."""
        return 4 if self is Precision.FP32 else 2


class Training(Spec):
    """Batch, precision and optimizer of one run.

    Attributes
    ----------
    sequence_length : int
        Tokens of one sequence.
    micro_batch_size, global_batch_size : int
        Sequences per micro-batch and rank, and per optimizer step over the whole job.
    gradient_dtype : str
        Dtype in which gradients are accumulated and reduced.
    mtp : bool
        Train the multi-token-prediction layers the model has.
    software : SoftwareStack
        The framework that runs; a file names its id in ``hardware_db/software``.
    """

    sequence_length: Count
    micro_batch_size: Count = 1
    global_batch_size: Count
    precision: Precision = Precision.BF16
    optimizer: Literal["adam", "sgd"] = "adam"
    gradient_dtype: Literal["fp32", "bf16"] = "fp32"
    mtp: bool = True
    software: SoftwareStack

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
    capacity_factor : float or None
        Tokens an expert accepts over its fair share, rest dropped and padded; None = dropless.
    """

    kind: Literal["balanced"] = "balanced"
    capacity_factor: float | None = Field(default=None, gt=0)
