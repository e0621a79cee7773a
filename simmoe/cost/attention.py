"""Seconds of attention: fused kernels (FlashAttention class), and the unfused one whose scores go through memory."""

import math

from simmoe.cost.operators import AttentionCore
from simmoe.specs.hardware import AttentionEfficiency, MemoryBoundEfficiency

ATTENTION_ROWS = 128  # query rows of one thread block, FlashAttention-2 and -3
# SimuMax@4dcaae5, a100_pcie.json: sdp_bwd falls by a third from 64 heads to 4 where sdp_fwd falls by more than half.
BACKWARD_BLOCKS = 0.5
UNFUSED_BYTES = (13.0, 18.0)  # of one 16-bit score: forward, backward


def attention_time(work: AttentionCore, *, peak: float, sm_count: int, efficiency: AttentionEfficiency) -> float:
    """Seconds of fused attention (FlashAttention class), forward or backward.

    Parameters
    ----------
    work : AttentionCore
        Shape, mask and direction.
    peak : float
        Dense peak of the kernel's arithmetic [FLOP/s].
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
    A thread block takes 128 queries and walks along the keys they see. t = t0 + F / (P e s k) [(k + K/2) +
    w (k_max + K/2) S / c]: k keys that a query sees on average and k_max at most (twice as many under a causal mask),
    K = `length_fill` (`window_fill` under a window) for the start and end of the walk, c = batch heads
    ceil(queries/128) blocks on S multiprocessors. The first term is the mean load of a multiprocessor, the second the
    longest block, which starts last: no schedule is worse than w = 1 with it (w = `block_fill`). F counts half of the
    square under a causal mask, 2.5 times forward in backward, which runs at `backward` times the rate and, measured,
    loses `BACKWARD_BLOCKS` of what forward loses to its longest block.

    Valid for causal self-attention with 256 to 16384 queries and batch heads queries >= 4096; the median error on
    shapes kept out of each fit stands in `hardware_db/efficiency/residuals.csv`. Attention sinks cost a sum over 8
    bytes a query and head in backward, which is below 1 % and left out.

    References
    ----------
    Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17 (1969): list schedules. Fitted to
    aiconfigurator@095f58a, ``context_attention_perf`` and ``context_mla_perf``. Backward: Dao, "FlashAttention-2",
    arXiv 2307.08691, section 4.1 (FLOPs 2.5 times forward); SimuMax@4dcaae5 ``sdp_bwd``; Shah et al.,
    "FlashAttention-3", arXiv 2407.08608, figure 6.

    Examples
    --------
    32 heads of 128, 4096 tokens, causal: 2 x 32 x (4096**2 / 2) x 256 = 137 GFLOP; at half of 312 TFLOP/s 881 us. The
    longest of its 1024 blocks sees twice the mean, on 128 multiprocessors 2 x 128/1024 = 25 % more.

    >>> from simmoe.specs.base import Quantity
    >>> number = lambda x: Quantity(value=x, unit="1", text=str(x), source="doctest", kind="guess")
    >>> half = AttentionEfficiency.model_construct(launch=number(0), compute=number(0.5), length_fill=number(0),
    ...     window_fill=None, block_fill=number(0), backward=number(0.8), sustained=number(1))
    >>> core = AttentionCore(batch=1, heads=32, kv_heads=8, queries=4096, keys=4096, qk_dim=128, v_dim=128,
    ...                      causal=True)
    >>> round(attention_time(core, peak=312e12, sm_count=128, efficiency=half) * 1e6)
    881
    >>> filled = half.model_copy(update={"block_fill": number(1)})
    >>> round(attention_time(core, peak=312e12, sm_count=128, efficiency=filled) * 1e6)
    1101
    """
    if work.flops == 0:
        return 0.0
    rows = math.ceil(work.queries / ATTENTION_ROWS)
    windowed = work.window is not None and work.window < work.keys
    fill = efficiency.window_fill if windowed and efficiency.window_fill else efficiency.length_fill
    mean, around = work.pairs / work.queries, fill.value / 2.0
    loss = efficiency.block_fill.value * sm_count / (work.batch * work.heads * rows)
    rate = peak * efficiency.compute.value * efficiency.sustained.value
    if work.backward:
        rate *= efficiency.backward.value
        loss *= BACKWARD_BLOCKS
    walk = mean + around + loss * (work.most_keys + around)
    flops = work.flops * rows * ATTENTION_ROWS / work.queries
    return efficiency.launch.value + flops / rate * walk / mean


def attention_unfused_time(
    work: AttentionCore,
    *,
    peak: float,
    bandwidth: float,
    element_bytes: float,
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
    element_bytes : float
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
