"""One accelerator with its fits looked up: from an operator's work to seconds on that device."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from simmoe.cost.kernels import (
    attention_time,
    attention_unfused_time,
    gemm_time,
    grouped_gemm_time,
    memory_bound_time,
)
from simmoe.cost.operators import AttentionCore, Gemm, GroupedGemm, MemoryBound
from simmoe.errors import SpecError
from simmoe.specs.hardware import (
    Accelerator,
    AttentionEfficiency,
    Dtype,
    Efficiency,
    MemoryBoundEfficiency,
)
from simmoe.specs.software import SoftwareStack
from simmoe.specs.workload import Precision

ELEMENT_BYTES = {Dtype.FP32: 4, Dtype.TF32: 4, Dtype.FP16: 2, Dtype.BF16: 2, Dtype.FP8: 1}
# A fit of a fraction of the peak holds for both 16-bit types: they run on the same unit at the same rate, and
# where a part halves one of them its peak says so.
SIXTEEN_BIT = (Dtype.BF16, Dtype.FP16)

UNFUSED = "math"  # PyTorch's name for attention by batched products and a softmax, the scores in memory

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


def device_of(accelerator: Accelerator) -> Device:
    """The numbers of an accelerator, unpacked once.

    Parameters
    ----------
    accelerator : Accelerator
        From the hardware database.

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
        efficiency=accelerator.efficiency,
    )


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
    if wanted is Dtype.FP8 and Dtype.FP8 not in device.peaks:
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


def select_attention(
    efficiencies: Sequence[AttentionEfficiency], available: Sequence[str], head_dim: int
) -> AttentionEfficiency | None:
    """The fastest available attention kernel, at the head width nearest to the one asked for.

    Parameters
    ----------
    efficiencies : sequence of AttentionEfficiency
        All fits of the accelerator.
    available : sequence of str
        Kernels that may be used.
    head_dim : int
        Width of a query-key head.

    Returns
    -------
    AttentionEfficiency or None
        For each kernel the row of the nearest `head_dim` counts, the narrower one of two equally near; of these
        the one with the highest `compute`, the earlier one of two equals. None if no kernel is available.

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
    >>> select_attention(rows, ("fa2",), 96).kernel
    'fa2'
    """
    best: AttentionEfficiency | None = None
    for kernel in available:
        rows = [fit for fit in efficiencies if fit.kernel == kernel]
        if not rows:
            continue
        nearest = min(rows, key=lambda fit: (abs(fit.head_dim - head_dim), fit.head_dim))
        if best is None or nearest.compute.value > best.compute.value:
            best = nearest
    return best


def kernel_time(work: KernelWork, device: Device, precision: Precision, software: SoftwareStack) -> float:
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
        Whether attention is fused (a part without a fused kernel runs it unfused), and how many times the fused
        count of bytes elementwise operators and norms move.

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
        return _attention(work, device, precision, software)
    dtype = select_dtype(device, precision, cast=not (isinstance(work, Gemm) and work.high_precision))
    peak, element_bytes = device.peaks[dtype], ELEMENT_BYTES[dtype]
    if isinstance(work, Gemm):
        return gemm_time(
            work,
            peak=peak,
            bandwidth=device.bandwidth,
            sm_count=device.sm_count,
            element_bytes=element_bytes,
            efficiency=select_fit(device, "gemm", device.efficiency.gemm, dtype),
        )
    return grouped_gemm_time(
        work,
        peak=peak,
        bandwidth=device.bandwidth,
        element_bytes=element_bytes,
        efficiency=select_fit(device, "grouped_gemm", device.efficiency.grouped_gemm, dtype),
    )


def _attention(work: AttentionCore, device: Device, precision: Precision, software: SoftwareStack) -> float:
    dtype = select_dtype(device, precision, cast=False)
    peak, element_bytes = device.peaks[dtype], ELEMENT_BYTES[dtype]
    fits, available = device.efficiency.attention, device.fused_attention
    fused = select_attention(fits, available, work.qk_dim) if software.attention == "fused" else None
    if fused is not None:
        return attention_time(work, peak=peak, sm_count=device.sm_count, efficiency=fused)
    products = select_attention(fits, (UNFUSED,), work.qk_dim)
    if products is None:
        raise _missing(device, "attention", f"a row with kernel {' or '.join((*available, UNFUSED))}")
    return attention_unfused_time(
        work,
        peak=peak,
        bandwidth=device.bandwidth,
        element_bytes=element_bytes,
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
