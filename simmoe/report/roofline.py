"""The roofline of an accelerator: what its data sheet allows, what its kernels reach, and where kernels stand."""

from collections.abc import Sequence
from typing import NamedTuple

from simmoe.cost.attention import UNFUSED_BYTES, attention_time, attention_unfused_time
from simmoe.cost.device import (
    EIGHT_BIT,
    ELEMENT_BYTES,
    LOOP,
    SIXTEEN_BIT,
    UNFUSED,
    Device,
    device_of,
    select_attention,
    select_experts,
    select_fit,
)
from simmoe.cost.kernels import gemm_time, grouped_gemm_time
from simmoe.cost.operators import AttentionCore, Gemm, GroupedGemm
from simmoe.errors import SimmoeError, SpecError
from simmoe.specs.base import Quantity
from simmoe.specs.hardware import Accelerator, AttentionEfficiency, Dtype, GemmEfficiency
from simmoe.specs.numbers import Number, label, numbers_of

# A slice of a layer under tensor parallelism, a projection of an 8 B model, an MLP of a 70 B model: m x n x k.
GEMMS = {
    "GEMM small": Gemm(2048, 1024, 4096),
    "GEMM medium": Gemm(4096, 4096, 4096),
    "GEMM large": Gemm(8192, 28672, 8192),
}
# Eight local experts of DeepSeek-V3's size: gate and up projection of width 2048 on 7168 channels.
EXPERTS = {f"experts, {tokens} tokens": GroupedGemm(8, tokens, 4096, 7168) for tokens in (128, 1024)}
ATTENTION = AttentionCore(
    batch=1, heads=32, kv_heads=8, queries=4096, keys=4096, qk_dim=128, v_dim=128, causal=True
)  # of an 8 B model
_SHAPES = {
    "GEMM": "GEMM m x n x k: small 2048 x 1024 x 4096, medium 4096 x 4096 x 4096, large 8192 x 28672 x 8192",
    "attention": "attention: forward, causal, 4096 tokens, 32 heads of 128 over 8 key heads",
    "experts": "experts: 8 x (tokens x 7168) x (7168 x 4096)",
}


class Dot(NamedTuple):
    """One kernel on the roofline.

    Attributes
    ----------
    name : str
        Such as ``GEMM medium``.
    flops : float
        Useful work [FLOP].
    bytes : float
        What it has to move through memory at least [B].
    seconds : float
        As `simmoe.cost` times it, launch included [s].
    """

    name: str
    flops: float
    bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Work for each byte moved [FLOP/B]."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """Work a second [FLOP/s]."""
        return self.flops / self.seconds


class Roof(NamedTuple):
    """A horizontal and a slanted line: peak [FLOP/s] and bandwidth [B/s]."""

    peak: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """Intensity at which the two lines meet [FLOP/B]."""
        return self.peak / self.bandwidth

    def at(self, intensity: float) -> float:
        """Attainable rate at an arithmetic intensity [FLOP/s].

        Parameters
        ----------
        intensity : float
            [FLOP/B]

        Notes
        -----
        min(peak, intensity x bandwidth).

        References
        ----------
        Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
        Architectures", Communications of the ACM 52(4), 2009, doi 10.1145/1498765.1498785.

        Examples
        --------
        At 1 PFLOP/s and 2 TB/s the ridge is at 500 FLOP/B; at 100 FLOP/B memory allows 200 TFLOP/s.

        >>> Roof(1e15, 2e12).ridge, Roof(1e15, 2e12).at(100) / 1e12
        (500.0, 200.0)
        """
        return min(self.peak, intensity * self.bandwidth)


class Roofline(NamedTuple):
    """One accelerator in one arithmetic.

    Attributes
    ----------
    id, name : str
        Of the accelerator.
    nominal : Roof
        Of the data sheet.
    achieved : Roof or None
        What matrix products reach inside a long training step (``compute`` x ``sustained`` of the GEMM fit), and the
        highest fraction of the memory bandwidth that any fitted kernel reaches; None without a GEMM fit.
    dots : tuple of Dot
        Kernels of training size; empty without fits.
    numbers : tuple of Number
        Everything the lines and dots rest on.
    """

    id: str
    name: str
    nominal: Roof
    achieved: Roof | None
    dots: tuple[Dot, ...]
    numbers: tuple[Number, ...]


def rooflines(accelerators: Sequence[Accelerator], dtype: Dtype) -> list[Roofline]:
    """The rooflines of several accelerators in one arithmetic.

    Parameters
    ----------
    accelerators : sequence of Accelerator
    dtype : Dtype

    Raises
    ------
    SimmoeError
        If one has no such arithmetic; names it and what it has.
    """
    lacking = [part for part in accelerators if part.peak_flops.get(dtype) is None]
    if lacking:
        raise SimmoeError("\n".join(_without(part, dtype, accelerators) for part in lacking))
    return [_roofline(part, dtype) for part in accelerators]


def shapes_of(parts: Sequence[Roofline]) -> str:
    """What the kernels on some rooflines are, as a sentence; empty if there are none."""
    drawn = {dot.name for part in parts for dot in part.dots}
    words = [text for begin, text in _SHAPES.items() if any(name.startswith(begin) for name in drawn)]
    return f"{'; '.join(words)}." if words else ""


def _without(part: Accelerator, dtype: Dtype, others: Sequence[Accelerator]) -> str:
    """The sentence for a part that lacks an arithmetic, with one that all of the parts have."""
    common = [name for name in part.peak_flops.supported() if all(name in o.peak_flops.supported() for o in others)]
    best = next((name for name in ("bf16", "fp16", "fp8", "fp32") if name in common), None)
    remedy = f"say --dtype {best}" if best else "leave it out"
    has = ", ".join(part.peak_flops.supported())
    return f"accelerator {part.id}: no {dtype.value} (it has {has}), {remedy}"


def _roofline(part: Accelerator, dtype: Dtype) -> Roofline:
    device = device_of(part)
    place = f"accelerator {part.id}"
    nominal = Roof(device.peaks[dtype], device.bandwidth)
    numbers = [
        Number(place, f"peak_flops.{dtype}", _known(part.peak_flops.get(dtype))),
        Number(place, "memory_bandwidth", part.memory_bandwidth),
    ]
    fit = _gemm_fit(device, dtype)
    if fit is None:
        return Roofline(part.id, part.name, nominal, None, (), tuple(numbers))
    numbers += numbers_of(fit, place, f"efficiency.gemm{label(fit)}.")
    memory = _best_memory(place, device, dtype, fit)
    numbers.append(memory)
    achieved = Roof(nominal.peak * fit.compute.value * fit.sustained.value, nominal.bandwidth * memory.quantity.value)
    dots, more = _dots(part, device, dtype, fit)
    used = {number.path: number for number in (*numbers, *more)}
    return Roofline(part.id, part.name, nominal, achieved, tuple(dots), tuple(used.values()))


def _best_memory(place: str, device: Device, dtype: Dtype, fit: GemmEfficiency) -> Number:
    """The largest fraction of the memory bandwidth among the fits of a dtype and the memory-bound operators."""
    grouped = [one for one in device.efficiency.grouped_gemm if one.kernel == LOOP and one.dtype in {dtype, fit.dtype}]
    candidates = [Number(place, f"efficiency.gemm{label(fit)}.memory", fit.memory)]
    candidates += [Number(place, f"efficiency.grouped_gemm{label(one)}.memory", one.memory) for one in grouped]
    candidates += [
        Number(place, f"efficiency.memory_bound{label(one)}.memory", one.memory)
        for one in device.efficiency.memory_bound
    ]
    return max(candidates, key=lambda number: number.quantity.value)


def _known(peak: Quantity | None) -> Quantity:
    if peak is None:
        raise AssertionError("rooflines has checked that the part has the arithmetic")
    return peak


def _gemm_fit(device: Device, dtype: Dtype) -> GemmEfficiency | None:
    try:
        return select_fit(device, "gemm", device.efficiency.gemm, dtype)
    except SpecError:
        return None


def _dots(part: Accelerator, device: Device, dtype: Dtype, fit: GemmEfficiency) -> tuple[list[Dot], list[Number]]:
    """The kernels that the part has fits for, and the numbers behind them beyond those of the GEMM."""
    peak, size = device.peaks[dtype], ELEMENT_BYTES[dtype]
    dots = []
    for name, work in GEMMS.items():
        seconds = gemm_time(
            work,
            peak=peak,
            bandwidth=device.bandwidth,
            sm_count=device.sm_count,
            element_bytes=size,
            efficiency=fit,
        )
        dots.append(Dot(name, work.flops, _moved(1, work.m, work.n, work.k, size), seconds))
    numbers = [Number(f"accelerator {part.id}", "sm_count", part.sm_count)]
    for found, used in (_attention(part, device, dtype), _experts(part, device, dtype, size)):
        dots += found
        numbers += used
    return dots, numbers


def _moved(groups: int, m: float, n: int, k: int, size: float) -> float:
    """Inputs and output of a product, each once [B]; the output has at least two bytes."""
    return groups * (size * (m * k + float(k) * n) + max(size, 2) * m * n)


def _experts(part: Accelerator, device: Device, dtype: Dtype, size: float) -> tuple[list[Dot], list[Number]]:
    try:
        fit = select_experts(device, LOOP, dtype)
    except SpecError:
        return [], []
    dots = []
    for name, work in EXPERTS.items():
        seconds = grouped_gemm_time(
            work, peak=device.peaks[dtype], bandwidth=device.bandwidth, element_bytes=size, efficiency=fit
        )
        dots.append(Dot(name, work.flops, _moved(work.groups, work.tokens, work.n, work.k, size), seconds))
    return dots, list(numbers_of(fit, f"accelerator {part.id}", f"efficiency.grouped_gemm{label(fit)}."))


def _attention(part: Accelerator, device: Device, dtype: Dtype) -> tuple[list[Dot], list[Number]]:
    """Attention forward, which runs in 16 bits; fused if the part has such a kernel."""
    if dtype not in SIXTEEN_BIT:
        return [], []
    fits, work, peak = device.efficiency.attention, ATTENTION, device.peaks[dtype]
    heads = 2 * work.heads + 2 * work.kv_heads  # queries and output, keys and values
    moved = float(ELEMENT_BYTES[dtype] * heads * work.queries * work.qk_dim)
    sixteen_bit = [kernel for kernel in device.fused_attention if not kernel.endswith(EIGHT_BIT)]
    fused = select_attention(fits, sixteen_bit, work.qk_dim)
    if fused is not None:
        seconds = attention_time(work, peak=peak, sm_count=device.sm_count, efficiency=fused)
        return [Dot("attention", work.flops, moved, seconds)], _attention_numbers(part, fused)
    products = select_attention(fits, (UNFUSED,), work.qk_dim)
    softmax = next((row for row in device.efficiency.memory_bound if row.operator == "softmax"), None)
    if products is None or softmax is None:
        return [], []
    seconds = attention_unfused_time(
        work,
        peak=peak,
        bandwidth=device.bandwidth,
        element_bytes=ELEMENT_BYTES[dtype],
        products=products,
        softmax=softmax,
    )
    scores = UNFUSED_BYTES[False] * ELEMENT_BYTES[dtype] / 2 * work.heads * work.queries * work.keys
    more = list(numbers_of(softmax, f"accelerator {part.id}", "efficiency.memory_bound[softmax]."))
    return [Dot("attention", work.flops, moved + scores, seconds)], _attention_numbers(part, products) + more


def _attention_numbers(part: Accelerator, fit: AttentionEfficiency) -> list[Number]:
    return list(numbers_of(fit, f"accelerator {part.id}", f"efficiency.attention{label(fit)}."))
