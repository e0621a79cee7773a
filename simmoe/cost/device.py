"""One accelerator with its fits looked up: from an operator's work to seconds on that device."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from simmoe.cost.attention import attention_time, attention_unfused_time
from simmoe.cost.kernels import gemm_time, grouped_gemm_time, memory_bound_time, narrow_factor
from simmoe.cost.operators import AttentionCore, Gemm, GroupedGemm, MemoryBound
from simmoe.errors import SpecError
from simmoe.specs.base import Quantity
from simmoe.specs.hardware import (
    Accelerator,
    AttentionEfficiency,
    Dtype,
    Efficiency,
    GemmEfficiency,
    GroupedGemmEfficiency,
    MemoryBoundEfficiency,
)
from simmoe.specs.software import SoftwareStack
from simmoe.specs.workload import Precision

# An fp4 block of 16 has a scale of one byte.
ELEMENT_BYTES = {Dtype.FP32: 4.0, Dtype.TF32: 4.0, Dtype.FP16: 2.0, Dtype.BF16: 2.0, Dtype.FP8: 1.0, Dtype.FP4: 0.5625}
# A fit of a fraction of the peak holds for both 16-bit types: they run on the same unit at the same rate, and
# where a part halves one of them its peak says so.
SIXTEEN_BIT = (Dtype.BF16, Dtype.FP16)

UNFUSED = "math"  # PyTorch's name for attention by batched products and a softmax, the scores in memory
LOOP = "te"  # the grouped GEMM of training: one dense product for each expert
EIGHT_BIT = "-fp8"  # ends the name of an attention kernel with 8-bit inputs

KernelWork = Gemm | GroupedGemm | AttentionCore | MemoryBound


class _HasDtype(Protocol):
    @property
    def dtype(self) -> Dtype: ...


Fit = TypeVar("Fit", bound=_HasDtype)


class Device(NamedTuple):
    """What the kernel times need of an accelerator, as plain numbers and its fits.

    Attributes
    ----------
    name : str
        The accelerator's id, for messages.
    peaks : dict
        Dense peak of each dtype the part has [FLOP/s].
    bandwidth : float
        Memory bandwidth [B/s].
    sm_count : int
        Streaming multiprocessors.
    fused_attention : tuple of str
        The fused attention kernels that exist for the part.
    efficiency : Efficiency
        The fits.
    """

    name: str
    peaks: dict[Dtype, float]
    bandwidth: float
    sm_count: int
    fused_attention: tuple[str, ...]
    efficiency: Efficiency


def device_of(accelerator: Accelerator, *, sustained: bool = True) -> Device:
    """The numbers of an accelerator, unpacked once.

    Parameters
    ----------
    accelerator : Accelerator
        From the hardware database.
    sustained : bool
        False for a run too short to throttle: every kernel keeps the rate of its benchmark.

    Returns
    -------
    Device
    """
    peaks = {dtype: peak.value for dtype in Dtype if (peak := accelerator.peak_flops.get(dtype)) is not None}
    return Device(
        name=accelerator.id,
        peaks=peaks,
        bandwidth=accelerator.memory_bandwidth.value,
        sm_count=round(accelerator.sm_count.value),
        fused_attention=tuple(kernel for kernel in accelerator.attention_kernels if kernel != UNFUSED),
        efficiency=accelerator.efficiency if sustained else accelerator.efficiency.with_sustained(_unthrottled),
    )


def _unthrottled(factor: Quantity) -> Quantity:
    return factor.model_copy(update={"value": 1.0})


def select_dtype(device: Device, precision: Precision, *, cast: bool) -> Dtype:
    """The arithmetic a product runs in under a precision recipe.

    Parameters
    ----------
    device : Device
        Says which dtypes exist.
    precision : Precision
        The recipe of the run.
    cast : bool
        True for the products that an fp8 recipe casts; False for attention, router and logits.

    Returns
    -------
    Dtype
        fp8 for cast products of an fp8 recipe on a part that has fp8, else the activations' dtype.

    Raises
    ------
    SpecError
        If the part has no such arithmetic (bf16 on V100).

    Examples
    --------
    >>> part = Device("a100", {Dtype.BF16: 312e12}, 2e12, 108, (), Efficiency.model_construct())
    >>> select_dtype(part, Precision.MXFP8, cast=True).value  # no fp8 on A100
    'bf16'
    """
    wanted = precision.gemm_dtype if cast else precision.activation_dtype
    if wanted in {Dtype.FP8, Dtype.FP4} and wanted not in device.peaks:
        wanted = precision.activation_dtype
    if wanted not in device.peaks:
        has = ", ".join(dtype.value for dtype in device.peaks)
        raise SpecError(
            [
                f"accelerator {device.name}: peak_flops: no {wanted.value} (it has {has}), "
                f"set training.precision to one of these or take other nodes"
            ]
        )
    return wanted


def select_fit(device: Device, table: str, fits: Sequence[Fit], dtype: Dtype) -> Fit:
    """The fit of a dtype; the two 16-bit types stand in for each other.

    Parameters
    ----------
    device : Device
        Named in the message.
    table : str
        ``gemm`` or ``grouped_gemm``.
    fits : sequence
        The accelerator's fits of that table.
    dtype : Dtype
        What the product runs in.

    Returns
    -------
    GemmEfficiency or GroupedGemmEfficiency

    Raises
    ------
    SpecError
        If no fit serves.
    """
    wanted = (dtype, *SIXTEEN_BIT) if dtype in SIXTEEN_BIT else (dtype,)
    for candidate in wanted:
        for fit in fits:
            if fit.dtype is candidate:
                return fit
    raise _missing(device, table, f"a row with dtype {dtype.value}")


def select_experts(device: Device, kernel: str, dtype: Dtype) -> GroupedGemmEfficiency:
    """The fit of the experts' product of a stack.

    Parameters
    ----------
    device : Device
        Where.
    kernel : str
        As the software stack says; a part without a fit of it runs ``te``.
    dtype : Dtype
        What the product runs in.

    Raises
    ------
    SpecError
        If neither serves.
    """
    fits = device.efficiency.grouped_gemm
    wanted = SIXTEEN_BIT if dtype in SIXTEEN_BIT else (dtype,)
    own = [fit for fit in fits if fit.kernel == kernel and fit.dtype in wanted]
    return select_fit(device, "grouped_gemm", own or [fit for fit in fits if fit.kernel == LOOP], dtype)


def select_attention(
    efficiencies: Sequence[AttentionEfficiency],
    available: Sequence[str],
    head_dim: int,
    preferred: Sequence[str] = (),
) -> AttentionEfficiency | None:
    """The attention kernel that runs, at the head width nearest to the one asked for.

    Parameters
    ----------
    efficiencies : sequence of AttentionEfficiency
        All fits of the accelerator.
    available : sequence of str
        Kernels that may be used.
    head_dim : int
        Width of a query-key head.
    preferred : sequence of str
        Kernels to take before the others, the first of them that is available.

    Returns
    -------
    AttentionEfficiency or None
        For each kernel the row of the nearest `head_dim` counts, the narrower one of two equally near. Without an
        available kernel among the preferred ones the one with the highest `compute` is taken, the earlier one of two
        equals. None if no kernel is available.

    Examples
    --------
    >>> from simmoe.specs.base import Quantity
    >>> number = lambda x: Quantity(value=x, unit="1", text=str(x), source="doctest", kind="guess")
    >>> row = lambda kernel, width, compute: AttentionEfficiency.model_construct(kernel=kernel, head_dim=width,
    ...                                                                          compute=number(compute))
    >>> rows = [row("fa3", 128, 0.66), row("fa2", 128, 0.35), row("fa3", 64, 0.53)]
    >>> best = select_attention(rows, ("fa3", "fa2"), 96)  # 64 and 128 are equally near
    >>> best.kernel, best.head_dim
    ('fa3', 64)
    >>> select_attention(rows, ("fa3", "fa2"), 96, preferred=("triton-fa1", "fa2")).kernel
    'fa2'
    """
    nearest: dict[str, AttentionEfficiency] = {}
    for kernel in available:
        rows = [fit for fit in efficiencies if fit.kernel == kernel]
        if rows:
            nearest[kernel] = min(rows, key=lambda fit: (abs(fit.head_dim - head_dim), fit.head_dim))
    for kernel in preferred:
        if kernel in nearest:
            return nearest[kernel]
    return max(nearest.values(), key=lambda fit: fit.compute.value, default=None)


def fused_attention(
    device: Device, software: SoftwareStack, head_dim: int, *, fp8: bool = False
) -> AttentionEfficiency | None:
    """The fused attention kernel a stack runs on a device.

    Parameters
    ----------
    device : Device
        Says which kernels exist.
    software : SoftwareStack
        Says whether attention is fused, and which kernels it prefers.
    head_dim : int
        Width of a query-key head.
    fp8 : bool
        Take 8-bit kernels where the device has one; elsewhere attention stays in 16 bits.

    Returns
    -------
    AttentionEfficiency or None
        None if attention runs unfused.
    """
    if software.attention != "fused":
        return None
    eight = tuple(kernel for kernel in device.fused_attention if kernel.endswith(EIGHT_BIT))
    sixteen = tuple(kernel for kernel in device.fused_attention if not kernel.endswith(EIGHT_BIT))
    rows, preferred = device.efficiency.attention, software.attention_kernels
    found = None
    if fp8:
        found = select_attention(rows, eight, head_dim, tuple(f"{kernel}{EIGHT_BIT}" for kernel in preferred))
    return found or select_attention(rows, sixteen, head_dim, preferred)


def kernel_time(
    work: KernelWork,
    device: Device,
    precision: Precision,
    software: SoftwareStack,
    *,
    fp8_attention: bool = False,
) -> float:
    """Seconds of one operator on one device, launch included, host time not.

    Parameters
    ----------
    work : Gemm, GroupedGemm, AttentionCore or MemoryBound
        What is done. Collectives are timed by `simmoe.cost.collectives`.
    device : Device
        Where.
    precision : Precision
        Which arithmetic: an fp8 recipe runs dense and expert GEMMs in fp8 where the part has it, attention and
        the products marked `high_precision` (router, logits) in bf16.
    software : SoftwareStack
        Whether attention is fused (a part without a fused kernel runs it unfused) and by which kernels, and how many
        times the fused count of bytes elementwise operators and norms move; how much narrow products lose.
    fp8_attention : bool
        Attention takes 8-bit inputs where the part has such a kernel.

    Returns
    -------
    float
        [s]

    Raises
    ------
    SpecError
        If the accelerator lacks the arithmetic or the fit; the sentence names the table to add to.
    """
    if isinstance(work, MemoryBound):
        if work.operator in {"elementwise", "norm"}:
            work = work._replace(bytes=work.bytes * software.elementwise_traffic.value)
        fit = _memory_fit(device, work.operator)
        return memory_bound_time(work, bandwidth=device.bandwidth, efficiency=fit)
    if isinstance(work, AttentionCore):
        return _attention(work, device, precision, software, fp8_attention)
    fill = software.narrow_gemm_fill
    return _product(work, device, precision, software) * (1.0 if fill is None else narrow_factor(work, fill.value))


def _product(work: Gemm | GroupedGemm, device: Device, precision: Precision, software: SoftwareStack) -> float:
    """A dense or grouped matrix product by the fits of the device."""
    dtype = select_dtype(device, precision, cast=not (isinstance(work, Gemm) and work.high_precision))
    blockwise = precision is Precision.FP8_BLOCKWISE
    if isinstance(work, Gemm):
        dense = select_fit(device, "gemm", device.efficiency.gemm, dtype)
        return gemm_time(
            work,
            peak=device.peaks[dtype] * _scaled(dense, blockwise),
            bandwidth=device.bandwidth,
            sm_count=device.sm_count,
            element_bytes=ELEMENT_BYTES[dtype],
            efficiency=dense,
        )
    experts = select_experts(device, software.grouped_gemm, dtype)
    return grouped_gemm_time(
        work,
        peak=device.peaks[dtype] * _scaled(experts, blockwise),
        bandwidth=device.bandwidth,
        element_bytes=ELEMENT_BYTES[dtype],
        efficiency=experts,
    )


def _scaled(fit: GemmEfficiency | GroupedGemmEfficiency, blockwise: bool) -> float:
    """What scales for every block leave of the rate."""
    return fit.blockwise.value if blockwise and fit.blockwise is not None else 1.0


def _attention(work: AttentionCore, device: Device, precision: Precision, software: SoftwareStack, fp8: bool) -> float:
    dtype = select_dtype(device, precision, cast=False)
    fused = fused_attention(device, software, work.qk_dim, fp8=fp8)
    if fused is not None:
        peak = device.peaks[Dtype.FP8 if fused.kernel.endswith(EIGHT_BIT) else dtype]
        return attention_time(work, peak=peak, sm_count=device.sm_count, efficiency=fused)
    products = select_attention(device.efficiency.attention, (UNFUSED,), work.qk_dim)
    if products is None:
        raise _missing(device, "attention", f"a row with kernel {' or '.join((*device.fused_attention, UNFUSED))}")
    return attention_unfused_time(
        work,
        peak=device.peaks[dtype],
        bandwidth=device.bandwidth,
        element_bytes=ELEMENT_BYTES[dtype],
        products=products,
        softmax=_memory_fit(device, "softmax"),
    )


def _memory_fit(device: Device, operator: str) -> MemoryBoundEfficiency:
    for fit in device.efficiency.memory_bound:
        if fit.operator == operator:
            return fit
    raise _missing(device, "memory_bound", f"a row with operator {operator}")


def _missing(device: Device, table: str, row: str) -> SpecError:
    return SpecError(
        [
            f"accelerator {device.name}: efficiency: the {table} table lacks {row}, add it to the accelerator's "
            f"folder in hardware_db/efficiency or name a similar part in efficiency_of"
        ]
    )
