"""Seconds of one kernel: matrix products, attention, expert products, memory-bound operators.

Every function is a roofline whose ceilings are fitted to measurements, plus what the fit needs to hold for small
shapes: a launch, the waves of tiles over the multiprocessors, the time to fill a loop. Peaks are dense (no 2:4
sparsity); the fits come with the accelerator, from `hardware_db/efficiency`.
"""

import math
from functools import lru_cache

from simmoe.cost.operators import AttentionCore, Gemm, GroupedGemm, MemoryBound
from simmoe.specs.hardware import (
    AttentionEfficiency,
    GemmEfficiency,
    GroupedGemmEfficiency,
    MemoryBoundEfficiency,
)

# Output tiles that cuBLAS and CUTLASS kernels of tensor-core GPUs use; the best one of each shape is taken.
TILES = ((128, 256), (256, 128), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64))
# SimuMax@4dcaae5, a100_pcie.json, matmul: forward (TN) 0.738 of peak, weight gradient accumulating into fp32 (NT)
# 0.704; B200 0.49 and 0.455.
WGRAD_RATE = 0.95
# An fp32 weight gradient is read, added to and written back.
ACCUMULATE_BYTES = 8.0
ATTENTION_ROWS = 128  # query rows of one thread block, FlashAttention-2 and -3
UNFUSED_BYTES = (13.0, 18.0)  # of one 16-bit score: forward, backward


@lru_cache(maxsize=65536)
def tile_utilisation(m: int, n: int, sm_count: int) -> float:
    """Share of the multiprocessors' tile slots that hold useful output, for the best tile size.

    Parameters
    ----------
    m, n : int
        Rows and columns of the output.
    sm_count : int
        Streaming multiprocessors.

    Returns
    -------
    float
        In (0, 1].

    Notes
    -----
    u = max over tiles (a, b) of m n / (w S a b), w = ceil(ceil(m/a) ceil(n/b) / S) waves. Split-k and
    stream-k kernels are not modelled: for outputs much smaller than one wave with long k, u is too low.

    References
    ----------
    NVIDIA, "Matrix Multiplication Background User's Guide", sections "Tile Quantization" and "Wave Quantization".

    Examples
    --------
    A 1024 x 1024 output in 64 x 64 tiles is 256 tiles, 3 waves of 108 with the last one short: 256/324 = 0.790;
    in 128 x 128 tiles it is 64 of 108 = 0.593.

    >>> round(tile_utilisation(1024, 1024, 108), 3)
    0.79
    """
    best = 0.0
    for rows, columns in TILES:
        waves = -(-(-(-m // rows) * -(-n // columns)) // sm_count)
        best = max(best, m * n / (waves * sm_count * rows * columns))
    return best


def gemm_time(
    work: Gemm,
    *,
    peak: float,
    bandwidth: float,
    sm_count: int,
    element_bytes: int,
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
    element_bytes : int
        Bytes of one input element: 1 (fp8), 2 or 4.
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
    0.95 of the forward rate. Casts to fp8 are separate operators.

    Valid for m >= 512 (median error 4-6 % on the data of each fit, 6-14 % between two software stacks of one
    GPU); at small m, where split-k kernels take over, errors reach 30 %.

    References
    ----------
    Form fitted to vidur@7d47513 (A40, A100, H100) and aiconfigurator@095f58a (A100 to GB300), forward only;
    weight gradient: SimuMax@4dcaae5, a100_pcie.json and b200_bf16_ceperm.json, ``matmul`` NT against TN.

    Examples
    --------
    1024 x 1024 outputs with k = 4096 on 108 SMs at 312 TFLOP/s, half of it reached, no launch, no fill:
    2 x 1024**2 x 4096 / (156e12 x 0.790) = 69.7 us.

    >>> from simmoe.specs.base import Quantity
    >>> number = lambda x: Quantity(value=x, unit="1", text=str(x), source="doctest", kind="guess")
    >>> half = GemmEfficiency.model_construct(launch=number(0), compute=number(0.5), memory=number(1),
    ...                                       k_fill=number(0), sustained=number(1))
    >>> t = gemm_time(Gemm(1024, 1024, 4096), peak=312e12, bandwidth=2e12, sm_count=108, element_bytes=2,
    ...               efficiency=half)
    >>> round(t * 1e6, 1)
    69.7
    """
    m, n, k = work.m, work.n, work.k
    if work.flops == 0:
        return 0.0
    wgrad = work.pass_ == "wgrad"
    rate = peak * efficiency.compute.value * efficiency.sustained.value * tile_utilisation(m, n, sm_count)
    compute = 2.0 * m * n * k / (rate * (WGRAD_RATE if wgrad else 1.0)) * (1.0 + efficiency.k_fill.value / k)
    output = ACCUMULATE_BYTES if wgrad else max(element_bytes, 2)
    moved = element_bytes * (float(m) * k + float(k) * n) + output * float(m) * n
    return efficiency.launch.value + max(compute, moved / (bandwidth * efficiency.memory.value))


def grouped_gemm_time(
    work: GroupedGemm,
    *,
    peak: float,
    bandwidth: float,
    element_bytes: int,
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
    element_bytes : int
        Bytes of one input element: 1 (fp8), 2 or 4.
    efficiency : GroupedGemmEfficiency
        The fit for this dtype.

    Returns
    -------
    float
        [s]; no tokens cost nothing.

    Notes
    -----
    t = t0 + max(F / (P e s) (1 + T0/T) (1 + I0/k), bytes / (BW e_m)) with F = 2 g T n k, T tokens for each of g
    experts, T0 = `token_fill`, I0 = `width_fill`. Bytes are b g (T k + k n) + o g T n: below about 200 tokens an
    expert the weights' traffic rules. A weight gradient runs at `wgrad` times the forward rate and moves 8 bytes
    a weight instead of its output.

    Valid for balanced experts and 16 to 4096 tokens an expert; median error 8-15 % on the data of the fit. The
    kernel matters more than the GPU: Triton kernels of inference servers reach a third of the CUTLASS ones.

    References
    ----------
    Form fitted to aiconfigurator@095f58a, ``moe_perf`` (H100 to GB300, forward of the whole expert MLP); weight
    gradient 0.7-0.86 of forward: SimuMax@4dcaae5, ``group_matmul``.

    Examples
    --------
    8 experts, 1024 tokens, 4096 x 4096 weights at half of 1 PFLOP/s: 2 x 8 x 1024 x 4096**2 / 0.5e15 = 550 us;
    a token fill of 64 adds 64/1024 = 6.25 %.

    >>> from simmoe.specs.base import Quantity
    >>> number = lambda x: Quantity(value=x, unit="1", text=str(x), source="doctest", kind="guess")
    >>> half = GroupedGemmEfficiency.model_construct(launch=number(0), compute=number(0.5), memory=number(1),
    ...     token_fill=number(64), width_fill=number(0), sustained=number(1), wgrad=number(0.8))
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
    return efficiency.launch.value + max(filled / rate, memory)


def attention_time(work: AttentionCore, *, peak: float, sm_count: int, efficiency: AttentionEfficiency) -> float:
    """Seconds of fused attention (FlashAttention class), forward or backward.

    Parameters
    ----------
    work : AttentionCore
        Shape, mask and direction.
    peak : float
        Dense bf16/fp16 peak [FLOP/s].
    sm_count : int
        Streaming multiprocessors.
    efficiency : AttentionEfficiency
        The fit for this kernel and head width.

    Returns
    -------
    float
        [s]

    Notes
    -----
    t = t0 + F / (P e) (1 + S0/L) / min(1, c/S): c = batch heads ceil(queries/128) thread blocks on S
    multiprocessors, S0 = `length_fill`, F counts half of the square under a causal mask, 2.5 times forward in
    backward, which runs at `backward` times the forward rate, and a last block of queries as a whole one. L is
    twice the keys a query sees on average: the sequence length under the causal mask the fits were made with,
    twice the window under a window; what S0 stands for is the start of a loop over keys.

    Valid for causal self-attention with L >= 256 and batch heads queries >= 4096, median error 3-9 %. Without a
    mask and with windows the form is an extension: with the parameters that meet FlashAttention-2's masked figures
    on H100 within 3 %, its unmasked ones are 2 to 15 % faster than predicted.

    References
    ----------
    Form fitted to aiconfigurator@095f58a, ``context_attention_perf`` (forward, causal). Backward: Dao,
    "FlashAttention-2", arXiv 2307.08691, section 4.1 (FLOPs 2.5 times forward), SimuMax@4dcaae5 ``sdp_bwd``.

    Examples
    --------
    32 heads of 128, 4096 tokens, causal: 2 x 32 x (4096**2 / 2) x 256 = 137 GFLOP; at half of 312 TFLOP/s 881 us.

    >>> from simmoe.specs.base import Quantity
    >>> number = lambda x: Quantity(value=x, unit="1", text=str(x), source="doctest", kind="guess")
    >>> half = AttentionEfficiency.model_construct(launch=number(0), compute=number(0.5), length_fill=number(0),
    ...                                            backward=number(0.8))
    >>> core = AttentionCore(batch=1, heads=32, kv_heads=8, queries=4096, keys=4096, qk_dim=128, v_dim=128,
    ...                      causal=True)
    >>> round(attention_time(core, peak=312e12, sm_count=108, efficiency=half) * 1e6)
    881
    """
    if work.flops == 0:
        return 0.0
    rows = math.ceil(work.queries / ATTENTION_ROWS)
    rate = peak * efficiency.compute.value * min(1.0, work.batch * work.heads * rows / sm_count)
    rate *= efficiency.backward.value if work.backward else 1.0
    length = 2.0 * work.pairs / work.queries
    flops = work.flops * rows * ATTENTION_ROWS / work.queries
    return efficiency.launch.value + flops / rate * (1.0 + efficiency.length_fill.value / length)


def attention_unfused_time(
    work: AttentionCore,
    *,
    peak: float,
    bandwidth: float,
    element_bytes: int,
    products: AttentionEfficiency,
    softmax: MemoryBoundEfficiency,
) -> float:
    """Seconds of attention whose scores go through memory (Megatron-LM before FlashAttention).

    Parameters
    ----------
    work : AttentionCore
        Shape and direction; a causal mask saves nothing, the whole square is computed.
    peak : float
        Dense peak of the activations' dtype [FLOP/s].
    bandwidth : float
        Memory bandwidth [B/s].
    element_bytes : int
        Bytes of one score.
    products : AttentionEfficiency
        The batched GEMMs, whose short side is one head width (kernel ``math``).
    softmax : MemoryBoundEfficiency
        Masked softmax and dropout.

    Returns
    -------
    float
        [s]

    Notes
    -----
    t = launches + p 2 b h q k (d_qk + d_v) / (P e) + s b h q k (element_bytes/2) / (BW e_m), with p = 1, s = 13
    forward and p = 2, s = 18 backward. The 13 bytes a score are: product written 2, softmax read and written 4,
    dropout read and written 4 with a mask of 1, read by the second product 2.

    Valid for head widths 64 to 128 with dropout, the Megatron-LM stacks of 2019 to 2022.

    References
    ----------
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, eq. 2
    and figure 3 (the tensors kept). The 18 bytes are a guess, checked only in sum, against published step times.

    Examples
    --------
    8 heads, 1024 tokens, width 128: 2 x 8 x 1024**2 x 256 = 4.29 GFLOP at 0.55e14 = 78 us, and
    13 x 8 x 1024**2 = 109 MB at 0.75e12 = 145 us.

    >>> from simmoe.specs.base import Quantity
    >>> number = lambda x: Quantity(value=x, unit="1", text=str(x), source="doctest", kind="guess")
    >>> core = AttentionCore(batch=1, heads=8, kv_heads=8, queries=1024, keys=1024, qk_dim=128, v_dim=128,
    ...                      causal=True)
    >>> products = AttentionEfficiency.model_construct(launch=number(0), compute=number(0.55), backward=number(1))
    >>> softmax = MemoryBoundEfficiency.model_construct(launch=number(0), memory=number(0.75))
    >>> t = attention_unfused_time(core, peak=1e14, bandwidth=1e12, element_bytes=2, products=products,
    ...                            softmax=softmax)
    >>> round(t * 1e6)
    223
    """
    scores = float(work.batch) * work.heads * work.queries * work.keys
    if scores == 0:
        return 0.0
    gemms = 4 if work.backward else 2
    flops = gemms * scores * (work.qk_dim + work.v_dim)
    rate = peak * products.compute.value * (products.backward.value if work.backward else 1.0)
    moved = UNFUSED_BYTES[work.backward] * scores * element_bytes / 2.0
    launches = gemms * products.launch.value + 2 * softmax.launch.value  # softmax and dropout
    return launches + flops / rate + moved / (bandwidth * softmax.memory.value)


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
    t = kernels t0 + bytes / (BW e). Valid above about 1 MB a kernel and below the point where the tensor stays
    in L2 (the fraction may then exceed 1); median error 2-14 %.

    References
    ----------
    Form fitted to vidur@7d47513, ``mlp.csv`` (A40, A100, H100).

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
