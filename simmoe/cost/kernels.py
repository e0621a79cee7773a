"""Seconds of one kernel: matrix products, expert products, memory-bound operators; attention has a module of its own.

Every function is a roofline whose ceilings are fitted to measurements, plus what the fit needs to hold for small
shapes: a launch, the waves of tiles over the multiprocessors, the time to fill a loop. Peaks are dense (no 2:4
sparsity); the fits come with the accelerator, from `hardware_db/efficiency`.
"""

import math
from functools import lru_cache

from simmoe.cost.operators import Gemm, GroupedGemm, MemoryBound
from simmoe.specs.hardware import (
    GemmEfficiency,
    GroupedGemmEfficiency,
    MemoryBoundEfficiency,
)

# Output tiles that cuBLAS and CUTLASS kernels of tensor-core GPUs use; the best one of each shape is taken.
TILES = ((128, 256), (256, 128), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64))
# How much of the empty slots of the last wave of tiles is saved.
WAVE_OVERLAP = 0.65
# SimuMax@4dcaae5, a100_pcie.json, matmul: forward (TN) 0.738 of peak, weight gradient accumulating into fp32 (NT)
# 0.704; B200 0.49 and 0.455.
WGRAD_RATE = 0.95
# An fp32 weight gradient is read, added to and written back.
ACCUMULATE_BYTES = 8.0
# The narrowest weight that `narrow_factor` slows down: the GEMM fits are valid from here on.
NARROWEST = 256


@lru_cache(maxsize=65536)
def tile_utilisation(m: int, n: int, sm_count: int, tile_overhead: float = 0.0) -> float:
    """Share of the multiprocessors' time that yields useful output, for the best tile size.

    Parameters
    ----------
    m, n : int
        Rows and columns of the output.
    sm_count : int
        Streaming multiprocessors.
    tile_overhead : float
        Extra time of a small tile, o below [1].

    Returns
    -------
    float
        In (0, 1].

    Notes
    -----
    u = max over tiles (a, b) of m n / (w S a b g). With x = ceil(m/a) ceil(n/b) / S tiles for each of S
    multiprocessors, w = 0.35 ceil(x) + 0.65 max(x, 1) waves: a last wave that is not full costs about a third of
    its empty slots, for tiles do not end together and persistent kernels share out the rest. A tile moves operands
    in proportion to 1/a + 1/b, so the time of its outputs is g = (1 + o (64/a + 64/b)) / (1 + 0.75 o) times that
    of the largest tile, 128 x 256. Split-k kernels are not modelled: for outputs much smaller than one wave with
    long k, u is too low.

    References
    ----------
    NVIDIA, "Matrix Multiplication Background User's Guide", sections "Tile Quantization" and "Wave Quantization".
    0.65: fits to aiconfigurator@095f58a give 0.60 on A100, 0.65 on H100, 0.54 on B200, 0.73 on L40S.

    Examples
    --------
    A 1024 x 1024 output in 64 x 64 tiles is 256 tiles, 2.37 for each of 108 multiprocessors, or
    0.35 x 3 + 0.65 x 2.37 = 2.59 waves: 2.37/2.59 = 0.915. In 128 x 128 tiles it is 64, one wave: 64/108 = 0.593.

    >>> round(tile_utilisation(1024, 1024, 108), 3)
    0.915
    """
    best = 0.0
    for rows, columns in TILES:
        share = -(-m // rows) * -(-n // columns) / sm_count
        waves = (1.0 - WAVE_OVERLAP) * math.ceil(share) + WAVE_OVERLAP * max(share, 1.0)
        slower = (1.0 + tile_overhead * (64 / rows + 64 / columns)) / (1.0 + 0.75 * tile_overhead)
        best = max(best, m * n / (waves * sm_count * rows * columns * slower))
    return min(best, 1.0)  # full waves may round to a trifle less than their number


def gemm_time(
    work: Gemm,
    *,
    peak: float,
    bandwidth: float,
    sm_count: int,
    element_bytes: float,
    efficiency: GemmEfficiency,
) -> float:
    """Seconds of one dense matrix product.

    Parameters
    ----------
    work : Gemm
        The product as it runs: in a weight gradient m x n is the weight and k counts tokens.
    peak : float
        Dense peak of the dtype [FLOP/s].
    bandwidth : float
        Memory bandwidth [B/s].
    sm_count : int
        Streaming multiprocessors.
    element_bytes : float
        Bytes of one input element: 0.5625 (fp4 with one scale byte for 16), 1 (fp8), 2 or 4.
    efficiency : GemmEfficiency
        The fit for this dtype.

    Returns
    -------
    float
        [s]

    Notes
    -----
    t = t0 + max(2mnk / (P e s u) (1 + K0/k), bytes / (BW e_m)) with the tile utilisation u of
    `tile_utilisation`, e = `compute`, s = `sustained`, K0 = `k_fill`. Bytes are b (mk + kn) + o mn; the output
    element has o = max(b, 2) bytes, or 8 (read and written in fp32) in a weight gradient, which also runs at
    0.95 of the forward rate. Casts to fp8 and fp4 are separate operators.

    Valid for m >= 512, n >= 256 and k >= 256. There the median error on shapes held out from a fit is 2 to 7 %
    (L40S 9 %: its library changes kernels from one shape to the next) and between two software stacks of one GPU
    5 to 14 % (``hardware_db/efficiency/residuals.csv``); at small m, where split-k kernels take over, errors
    reach 30 %.

    References
    ----------
    Form fitted by ``tools/fits/gemm.py`` to aiconfigurator@095f58a, vidur@7d47513, LLMServingSim@5daddb2,
    sailor@cf2c8e3 and NeuSight@6945927; weight gradient: SimuMax@4dcaae5, a100_pcie.json and
    b200_bf16_ceperm.json, ``matmul`` NT against TN.

    Examples
    --------
    1024 x 1024 outputs with k = 4096 on 108 SMs at 312 TFLOP/s, half of it reached, no launch, no fill:
    2 x 1024**2 x 4096 / (156e12 x 0.915) = 60.2 us.

    >>> from simmoe.specs.base import Quantity
    >>> number = lambda x: Quantity(value=x, unit="1", text=str(x), source="doctest", kind="guess")
    >>> half = GemmEfficiency.model_construct(launch=number(0), compute=number(0.5), memory=number(1),
    ...                                       k_fill=number(0), sustained=number(1))
    >>> t = gemm_time(Gemm(1024, 1024, 4096), peak=312e12, bandwidth=2e12, sm_count=108, element_bytes=2,
    ...               efficiency=half)
    >>> round(t * 1e6, 1)
    60.2
    """
    m, n, k = work.m, work.n, work.k
    if work.flops == 0:
        return 0.0
    wgrad = work.pass_ == "wgrad"
    used = tile_utilisation(m, n, sm_count, efficiency.tile_overhead.value if efficiency.tile_overhead else 0.0)
    rate = peak * efficiency.compute.value * efficiency.sustained.value * used
    compute = 2.0 * m * n * k / (rate * (WGRAD_RATE if wgrad else 1.0)) * (1.0 + efficiency.k_fill.value / k)
    output = ACCUMULATE_BYTES if wgrad else max(element_bytes, 2)
    moved = element_bytes * (float(m) * k + float(k) * n) + output * float(m) * n
    return efficiency.launch.value + max(compute, moved / (bandwidth * efficiency.memory.value))


def grouped_gemm_time(
    work: GroupedGemm,
    *,
    peak: float,
    bandwidth: float,
    element_bytes: float,
    efficiency: GroupedGemmEfficiency,
) -> float:
    """Seconds of one grouped GEMM over the local experts of a rank.

    Parameters
    ----------
    work : GroupedGemm
        `tokens` per expert; in a weight gradient the weights k x n of every expert are the output.
    peak : float
        Dense peak of the dtype [FLOP/s].
    bandwidth : float
        Memory bandwidth [B/s].
    element_bytes : float
        Bytes of one input element: 1 (fp8), 2 or 4.
    efficiency : GroupedGemmEfficiency
        The fit for this dtype.

    Returns
    -------
    float
        [s]; no tokens cost nothing.

    Notes
    -----
    t = t0 + g t1 + max(F / (P e s) (1 + T0/T) (1 + I0/k), bytes / (BW e_m)) with F = 2 g T n k, T tokens for each of
    g experts, t1 = `expert_launch`, T0 = `token_fill`, I0 = `width_fill`. Bytes are b g (T k + k n) + o g T n: below
    about 200 tokens an expert the weights' traffic rules. A weight gradient runs at `wgrad` times the forward rate
    and moves 8 bytes a weight instead of its output.

    Valid for balanced experts and 16 to 4096 tokens an expert; the median error on shapes kept out of each fit stands
    in `hardware_db/efficiency/residuals.csv`. The kernel matters more than the GPU: Triton kernels of inference
    servers reach a third of the CUTLASS ones.

    References
    ----------
    Form fitted to aiconfigurator@095f58a, ``moe_perf`` (forward of the whole expert MLP), and to SimuMax@4dcaae5,
    ``group_matmul`` (Transformer Engine, with both gradients).

    Examples
    --------
    8 experts, 1024 tokens, 4096 x 4096 weights at half of 1 PFLOP/s: 2 x 8 x 1024 x 4096**2 / 0.5e15 = 550 us;
    a token fill of 64 adds 64/1024 = 6.25 %.

    >>> from simmoe.specs.base import Quantity
    >>> number = lambda x: Quantity(value=x, unit="1", text=str(x), source="doctest", kind="guess")
    >>> half = GroupedGemmEfficiency.model_construct(launch=number(0), expert_launch=None, compute=number(0.5),
    ...     memory=number(1), token_fill=number(64), width_fill=number(0), sustained=number(1), wgrad=number(0.8))
    >>> t = grouped_gemm_time(GroupedGemm(8, 1024, 4096, 4096), peak=1e15, bandwidth=3e12, element_bytes=2,
    ...                       efficiency=half)
    >>> round(t * 1e6)
    584
    """
    groups, tokens, n, k = work.groups, work.tokens, work.n, work.k
    if work.flops == 0:
        return 0.0
    wgrad = work.pass_ == "wgrad"
    rate = peak * efficiency.compute.value * efficiency.sustained.value
    rate *= efficiency.wgrad.value if wgrad else 1.0
    # F (1 + T0/T) (1 + I0/k) without the divisions, which overflow for a vanishing share of a token.
    filled = 2.0 * groups * n * (tokens + efficiency.token_fill.value) * (k + efficiency.width_fill.value)
    inputs = element_bytes * groups * tokens * k
    weights = (ACCUMULATE_BYTES if wgrad else element_bytes) * groups * float(k) * n
    outputs = (element_bytes if wgrad else max(element_bytes, 2)) * groups * tokens * n
    memory = (inputs + weights + outputs) / (bandwidth * efficiency.memory.value)
    each = efficiency.expert_launch.value if efficiency.expert_launch else 0.0
    return efficiency.launch.value + groups * each + max(filled / rate, memory)


def narrow_factor(work: Gemm | GroupedGemm, fill: float) -> float:
    """How many times as long a product with a narrow weight takes on a software stack.

    Parameters
    ----------
    work : Gemm or GroupedGemm
        The product as it runs.
    fill : float
        h0, `SoftwareStack.narrow_gemm_fill`: the side of the weight at which a product takes twice as long [1].

    Returns
    -------
    float
        At least 1 [1].

    Notes
    -----
    1 + h0/h with h the shorter side of the weight: of n and k, in a weight gradient, whose k counts tokens, of m and n.
    The whole product counts, whether it computes or waits for memory. A weight whose shorter side is below 256 (a
    router) is left alone: no GEMM fit holds there, and its product waits for its inputs.

    This is a property of a stack and comes on top of the fill of the kernels themselves (`k_fill`, `width_fill`, about
    100), which was measured without a framework. Valid for weights 1024 to 4096 wide, where it was fitted; what makes
    narrow products slow there (launch gaps, copies between kernels, unfused casts) is not known.

    References
    ----------
    HeterMoE, arXiv 2504.03871, section 6.4.3: attention takes as long as experts between 20 k and 24 k tokens at
    a hidden size of 1024, and between 28 k and 32 k at 2048. Kernels alone would put the second at twice the first
    (``python -m tools.fits.hetermoe``).

    Examples
    --------
    A 1024 x 7168 weight with h0 = 512: 1 + 512/1024.

    >>> narrow_factor(Gemm(4096, 7168, 1024), 512.0)
    1.5
    >>> narrow_factor(Gemm(1024, 7168, 4096, "wgrad"), 512.0)  # its gradient over 4096 tokens
    1.5
    >>> narrow_factor(Gemm(4096, 24, 1024), 512.0)  # a router of 24 experts
    1.0
    """
    side = min(work.n, work.m if isinstance(work, Gemm) and work.pass_ == "wgrad" else work.k)
    return 1.0 if side < NARROWEST else 1.0 + fill / side


def memory_bound_time(work: MemoryBound, *, bandwidth: float, efficiency: MemoryBoundEfficiency) -> float:
    """Seconds of an operator that only moves memory.

    Parameters
    ----------
    work : MemoryBound
        Bytes read and written in all, and in how many kernels.
    bandwidth : float
        Memory bandwidth [B/s].
    efficiency : MemoryBoundEfficiency
        Launch of one kernel and fraction of the bandwidth.

    Returns
    -------
    float
        [s]

    Notes
    -----
    t = kernels t0 + bytes / (BW e). Valid for tensors that do not stay in L2 (there the fraction may exceed 1), from
    about 32 MB a kernel; median error on shapes held out from a fit 1 to 8 %. Between the kernels of two frameworks
    it is 4 to 40 %, and 60 % for the norm of a 2023 inference server on A100.

    References
    ----------
    Form fitted by ``tools/fits/memory_bound.py`` to vidur@7d47513, Frontier@a4b22df, LLMCompass@2e015fd and
    sailor@cf2c8e3.

    Examples
    --------
    1 GB at 80 % of 2 TB/s is 625 us; two launches of 2 us add 4.

    >>> from simmoe.specs.base import Quantity
    >>> number = lambda x: Quantity(value=x, unit="1", text=str(x), source="doctest", kind="guess")
    >>> fit = MemoryBoundEfficiency.model_construct(launch=number(2e-6), memory=number(0.8))
    >>> round(memory_bound_time(MemoryBound("norm", 1e9, kernels=2), bandwidth=2e12, efficiency=fit) * 1e6)
    629
    """
    if work.bytes == 0:
        return 0.0
    return work.kernels * efficiency.launch.value + work.bytes / (bandwidth * efficiency.memory.value)
