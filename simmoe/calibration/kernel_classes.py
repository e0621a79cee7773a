"""What a kernel does, by its name: an ordered table that users extend."""

import re
from functools import lru_cache
from typing import NamedTuple


class KernelClass(NamedTuple):
    """A row of the table: kernels whose name a pattern finds, and no earlier one, belong to a class."""

    name: str
    pattern: re.Pattern[str]


COMMUNICATION = "comm"
OTHER = "other"


def _row(name: str, *parts: str, any_case: bool = False) -> KernelClass:
    return KernelClass(name, re.compile("|".join(parts), re.IGNORECASE if any_case else 0))


TABLE: tuple[KernelClass, ...] = (
    # Collective libraries, and the expert exchanges of DeepEP; notify kernels of DeepEP wait for peers.
    _row(
        COMMUNICATION,
        r"^(?:void )?(?:nccl|rccl|msccl)",
        r"^gloo:",
        r"^(?:void )?(?:dpsk::ep|deep_ep)::(?:internode|intranode|internode_ll)::",
    ),
    # FlashAttention and cuDNN's, also inside cutlass::device_kernel<flash::...>; Megatron's fused masked softmax.
    _row("attention", "flash", "fmha", "attn", "attention", r"scaled_(?:upper_triang_)?masked_softmax", any_case=True),
    _row(
        "norm",
        r"batch_?norm",
        r"\bbn_(?:fw|bw)",
        r"layer_?norm",
        r"rms_?norm",
        r"ln_(?:fwd|bwd)",
        "cuComputeGrad",
        "cuComputePartGrad",
        "cuApplyLayerNorm",
        any_case=True,
    ),
    # Of TensorRT-LLM, Triton kernels and DeepSeek: which tokens go to which experts.
    _row(
        "moe_routing",
        r"moe::dev::(?:routing|finalize)",
        "_combined_routing",
        "bitmatrix",
        "clean_and_count_expert",
        "get_fused_mapping",
        "get_dispatch_layout",
        "expand_to_fused",
        "reduce_fused_impl",
        "count_expert",
    ),
    # Operators of a processor that trains.
    _row("gemm", r"^aten::(?:mm|addmm|bmm|baddbmm|mkldnn_linear|_addmm_activation)$"),
    # Before GEMM: convolutions are GEMMs by name (implicit GEMM, xmma fprop). "convert" is none.
    _row(
        "conv",
        "conv(?!ert)",
        "fprop",
        "dgrad",
        "wgrad",
        "winograd",
        "implicit",
        "igemm",
        "miopen",
        "cudnn",
        "fft2d",
        "flip_filter",
        any_case=True,
    ),
    # cuBLAS, CUTLASS, nvjet, Tensile (Cijk), DeepGEMM and grouped GEMMs, Triton's matmul_ogs.
    _row(
        "gemm",
        "gemm",
        "matmul",
        r"\bbmm_",
        "epilogue::impl",
        "Cijk_",
        "nvjet",
        "cutlass.*Kernel2",
        "xmma",
        "splitKreduce",
        "gemv",
        "s16816",
        "s1688",
        "s884",
        any_case=True,
    ),
    _row(
        "elementwise",
        *("elementwise", "reduce", "softmax", "dropout", "triton", "copy", "cast", "transpose", "fill", "index"),
        *("scatter", "gather", "topk", "sort", "cat", "embedding", "multi_tensor", "rotary", "swiglu", "gelu", "silu"),
        *("max_pool", "pool", "nll_loss", "cub::", "triu", "arange", "cumsum", "scan", "expand", "fbgemm", "permute"),
        *("clamp", "sigmoid", "adam", "bce", "SubTensorOp", "store_kvcache", "bounds_check"),
        any_case=True,
    ),
)
"""In this order. A name that no row finds is `OTHER`; copies and fills of memory are told by category, not by name."""


@lru_cache(maxsize=2**16)
def class_of(name: str, table: tuple[KernelClass, ...] = TABLE) -> str:
    """The class of a kernel.

    Parameters
    ----------
    name : str
    table : tuple of KernelClass
        Rows of one's own stand before `TABLE`.

    Examples
    --------
    >>> class_of("void cutlass::device_kernel<flash::FlashAttnFwdSm90>"), class_of("ncclDevKernel_AllReduce")
    ('attention', 'comm')
    >>> class_of("sm80_xmma_fprop_implicit_gemm"), class_of("SyncBatchNorm_fwd"), class_of("my_kernel")
    ('conv', 'norm', 'other')
    """
    return next((row.name for row in table if row.pattern.search(name)), OTHER)
