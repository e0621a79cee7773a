"""How unevenly experts and ranks are loaded: shares of experts, loads of ranks, what is dropped, what a link carries.

A share is the part of all token copies of a layer and micro-batch that one expert receives; a load is what a rank
receives over the mean of its expert-parallel group. Every draw has a generator of its own, seeded by (seed, layer,
micro-batch), so a cell does not depend on how many others are drawn.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simmoe.specs.model import MoE
from simmoe.specs.workload import Routing

FloatArray = NDArray[np.float64]

# aiconfigurator@095f58a, collector/helper.py: expert loads are drawn from 1 to 0.8 of the tokens; where there are fewer
# copies than experts, from 0.01 to 2.
_DRAWN_TOKENS, _DRAWN_FEW = 0.8, (0.01, 2.0)


def capped_shares(shares: FloatArray, most: float) -> FloatArray:
    """Shares of which none exceeds a limit; what is over it goes to the others in proportion.

    Parameters
    ----------
    shares : array, shape (..., experts)
        Not negative, not all zero; need not sum to 1.
    most : float
        Largest share, at least 1 / experts. A token visits an expert once, so a share is at most 1 / top_k.

    Returns
    -------
    array
        Of the same shape, summing to 1.

    Examples
    --------
    >>> capped_shares(np.array([6.0, 3.0, 1.0]), 0.5).round(6).tolist()
    [0.5, 0.375, 0.125]
    """
    weights: FloatArray = shares / shares.sum(axis=-1, keepdims=True)
    found = weights
    full = np.zeros(weights.shape, dtype=bool)
    while bool((found > most * (1.0 + 1e-12)).any()):
        full |= found > most
        rest = np.where(full, 0.0, weights)
        rest = np.where(rest.any(axis=-1, keepdims=True), rest, ~full)  # all others have nothing: they share evenly
        room = 1.0 - most * full.sum(axis=-1, keepdims=True)
        found = np.where(full, most, rest * (room / np.maximum(rest.sum(axis=-1, keepdims=True), 1e-300)))
    return found


@lru_cache(maxsize=64)
def zipf_shares(experts: int, exponent: float) -> FloatArray:
    """Shares that fall as rank ** -exponent, largest first.

    Examples
    --------
    >>> zipf_shares(3, 1.0).round(4).tolist()  # 6/11, 3/11, 2/11
    [0.5455, 0.2727, 0.1818]
    """
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -exponent
    shares: FloatArray = weights / weights.sum()
    shares.setflags(write=False)
    return shares


def power_law_quantile(uniform: FloatArray, exponent: float, low: float, high: float) -> FloatArray:
    """Values of the density x ** -exponent between two bounds, by inverting its distribution.

    Parameters
    ----------
    uniform : array
        In [0, 1).
    exponent : float
        a; 1 is the logarithmic law.
    low, high : float
        Bounds, 0 < low <= high.

    Returns
    -------
    array
        (low^(1-a) + u (high^(1-a) - low^(1-a)))^(1/(1-a)), or low (high / low)^u for a = 1.

    References
    ----------
    aiconfigurator@095f58a, collector/helper.py, ``sample_power_law``: loads of experts in its MoE benchmarks.

    Examples
    --------
    >>> power_law_quantile(np.array([0.0, 0.5]), 1.0, 1.0, 100.0).tolist()
    [1.0, 10.0]
    >>> power_law_quantile(np.array([0.5]), 2.0, 1.0, 100.0).round(3).tolist()  # 1 / (1 - 0.5 x 0.99)
    [1.98]
    """
    if abs(exponent - 1.0) < 1e-9:
        return np.asarray(low * (high / low) ** uniform, dtype=np.float64)
    power = 1.0 - exponent
    first, last = low**power, high**power
    return np.asarray((first + uniform * (last - first)) ** (1.0 / power), dtype=np.float64)


def expert_shares(routing: Routing, moe: MoE, tokens: float, layer: int, micro_batch: int = 0) -> FloatArray:
    """The part of all token copies that each expert of a layer receives in one micro-batch.

    Parameters
    ----------
    routing : Routing
        Kind, its number, and the seed.
    moe : MoE
        Experts and top_k.
    tokens : float
        Tokens of the expert-parallel group in a micro-batch; bounds what ``power_law`` draws.
    layer, micro_batch : int
        Which draw; under ``resample: step`` every micro-batch has the same.

    Returns
    -------
    array, shape (experts,)
        Sums to 1, none over 1 / top_k.

    Notes
    -----
    zipf: rank ** -exponent, the experts in random order. power_law: `power_law_quantile` between 1 and 0.8 tokens.
    dirichlet: gamma variates of shape `concentration`. counts: what was measured, in the order of the file,
    micro-batch i taking sample i modulo their number, or all samples together under ``resample: step``.
    Expected counts: the noise of sampling tokens, sqrt(tokens x top_k / experts) on an expert, is left out.

    References
    ----------
    aiconfigurator@095f58a, collector/helper.py, ``_generate_power_law_distribution``.

    Examples
    --------
    >>> moe = MoE(num_experts=4, top_k=2, moe_ffn_hidden_size=1)
    >>> shares = expert_shares(Routing(kind="zipf", exponent=1.0), moe, 4096, layer=0)
    >>> np.sort(shares).round(3).tolist(), bool(np.isclose(shares.sum(), 1))  # 12, 6, 4 and 3 of 25
    ([0.12, 0.16, 0.24, 0.48], True)
    """
    return capped_shares(drawn_weights(routing, moe, tokens, layer, micro_batch), 1.0 / moe.top_k)


def drawn_weights(routing: Routing, moe: MoE, tokens: float, layer: int, micro_batch: int) -> FloatArray:
    """Shares before they are normalised and limited."""
    draw = 0 if routing.resample == "step" else micro_batch
    generator = np.random.default_rng(np.random.SeedSequence((routing.seed, layer, draw)))
    found = _drawn(routing, moe, tokens, layer, micro_batch, generator)
    if not found.any():  # gamma variates of a tiny shape vanish, a micro-batch may not be measured: one takes all
        found[int(generator.integers(moe.num_experts))] = 1.0
    return found


def _drawn(
    routing: Routing, moe: MoE, tokens: float, layer: int, micro_batch: int, generator: np.random.Generator
) -> FloatArray:
    """What the kind of routing gives, before it is normalised."""
    experts = moe.num_experts
    if routing.kind == "zipf" and routing.exponent is not None:
        return generator.permutation(zipf_shares(experts, routing.exponent))
    if routing.kind == "power_law" and routing.exponent is not None:
        low, high = (1.0, _DRAWN_TOKENS * tokens) if tokens * moe.top_k > experts else _DRAWN_FEW
        return power_law_quantile(generator.random(experts), routing.exponent, low, max(low, high))
    if routing.kind == "dirichlet" and routing.concentration is not None:
        return generator.standard_gamma(routing.concentration, experts)
    if routing.kind == "counts" and routing.counts is not None:
        samples = routing.counts.of_layer(layer).samples
        chosen = samples if routing.resample == "step" else samples[micro_batch % len(samples) :][:1]
        found = np.zeros(experts)
        for row in chosen:
            found[: len(row)] += row
        return found
    return np.ones(experts)


def gini(shares: FloatArray) -> float:
    """Gini coefficient of the loads: 0 = all equal, near 1 = one has everything.

    Notes
    -----
    sum over pairs |s_i - s_j| / (2 n sum s). Gamma-distributed shares of concentration c have
    Gamma(c + 1/2) / (sqrt(pi) Gamma(c + 1)), 0.246 for c = 5.

    Examples
    --------
    >>> round(gini(np.array([1.0, 1.0, 2.0])), 4), round(gini(np.array([0.0, 0.0, 1.0])), 4)  # 4/24; 1 - 1/3
    (0.1667, 0.6667)
    """
    ordered = np.sort(shares)
    count = len(ordered)
    return float(2.0 * np.dot(np.arange(1, count + 1), ordered) / (count * ordered.sum()) - (count + 1) / count)


def rank_loads(shares: FloatArray, ranks: int, placement: FloatArray | None = None) -> FloatArray:
    """What each rank of an expert-parallel group receives, relative to the mean.

    Parameters
    ----------
    shares : array, shape (..., experts)
        Of each expert.
    ranks : int
        Ranks of the group, N.
    placement : array, shape (ranks, experts), or None
        The part of each expert's copies that a rank serves, from `simmoe.cost.placement.place_experts`; None = experts
        in order, experts / ranks on each.

    Returns
    -------
    array, shape (..., ranks)
        Mean 1, between 0 and N.

    Examples
    --------
    >>> rank_loads(np.array([0.4, 0.2, 0.2, 0.2]), 2).round(2).tolist()
    [1.2, 0.8]
    """
    blocks = shares.reshape(*shares.shape[:-1], ranks, -1)
    held = blocks.sum(axis=-1) if placement is None else np.matmul(shares, placement.T)
    return np.asarray(held * (ranks / held.sum(axis=-1, keepdims=True)), dtype=np.float64)


def kept_shares(shares: FloatArray, capacity_factor: float | None) -> FloatArray:
    """What experts of limited capacity accept: at most capacity_factor / experts of all copies.

    Examples
    --------
    >>> kept_shares(np.array([0.75, 0.25]), 1.2).tolist()
    [0.6, 0.25]
    """
    return shares if capacity_factor is None else np.minimum(shares, capacity_factor / shares.shape[-1])


def drop_fraction(shares: FloatArray, capacity_factor: float | None) -> float:
    """The part of the token copies that no expert accepts; copies over the capacity are dropped.

    References
    ----------
    Fedus et al., "Switch Transformers", arXiv 2101.03961, section 2.2 (expert capacity).

    Examples
    --------
    >>> round(drop_fraction(np.array([0.75, 0.25]), 1.2), 3), drop_fraction(np.array([0.75, 0.25]), None)
    (0.15, 0.0)
    """
    return float(shares.sum() - kept_shares(shares, capacity_factor).sum())


def exchange_matrix(loads: FloatArray) -> FloatArray:
    """The part of all token copies that goes from one rank (row) to another (column) in a dispatch.

    Parameters
    ----------
    loads : array, shape (ranks,)
        Relative to the mean. Every rank sends the same number of copies.

    Returns
    -------
    array, shape (ranks, ranks)
        Sums to 1; a combine moves the transpose. The diagonal stays where it is.

    Examples
    --------
    >>> exchange_matrix(np.array([1.5, 0.5])).tolist()
    [[0.375, 0.125], [0.375, 0.125]]
    """
    ranks = len(loads)
    return np.tile(loads / ranks**2, (ranks, 1))


def exchange_factor(loads: FloatArray) -> FloatArray:
    """What the busiest rank of an all-to-all moves over what it moves when all are equally loaded.

    Parameters
    ----------
    loads : array, shape (..., ranks)
        Relative to the mean.

    Returns
    -------
    array, shape (...)
        max(max load, (N - min load) / (N - 1)), at least 1; 1 for a group of one.

    Notes
    -----
    In a dispatch rank j receives load_j (N - 1) / N^2 of all copies and sends (N - load_j) / N^2; balanced both are
    (N - 1) / N^2. The most loaded rank receives most, the least loaded one keeps fewest. A combine is the mirror image.

    Examples
    --------
    >>> exchange_factor(np.array([1.5, 0.9, 0.9, 0.7])).tolist(), exchange_factor(np.array([1.0, 1.0])).tolist()
    (1.5, 1.0)
    """
    ranks = loads.shape[-1]
    if ranks == 1:
        return np.ones(loads.shape[:-1])
    return np.asarray(np.maximum(loads.max(axis=-1), (ranks - loads.min(axis=-1)) / (ranks - 1)), dtype=np.float64)


def busiest(visited: float, places: int, load: float) -> float:
    """Places a token would visit if all were as likely as the busiest: a place of `load` times the mean copies.

    Notes
    -----
    A token misses a place with 1 - v/D, and one of load l with (1 - v/D)^l: copies for the same place travel together,
    so the traffic of a busy one grows less than its load, up to every token once.

    Examples
    --------
    >>> busiest(4.0, 8, 2.0)  # 8 x (1 - 0.5**2)
    6.0
    """
    return places * (1.0 - max(0.0, 1.0 - visited / places) ** load) if load != 1.0 else visited
