"""Where experts stand when the most loaded ones have copies on several ranks."""

import heapq

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def copy_counts(shares: FloatArray, extra: int, most: int) -> NDArray[np.int64]:
    """Copies of each expert when extra slots go, one at a time, to the expert whose copies are loaded most.

    Parameters
    ----------
    shares : array, shape (experts,)
        Expected loads.
    extra : int
        Slots beyond one for each expert.
    most : int
        Copies that an expert can have: one a rank.

    Returns
    -------
    array, shape (experts,)

    References
    ----------
    deepseek-ai/EPLB, README, "The Algorithm": redundant experts.

    Examples
    --------
    0.6 is halved to 0.3, which is then the largest but for 0.4: that is halved next.

    >>> copy_counts(np.array([0.6, 0.4]), 2, most=4).tolist()
    [2, 2]
    """
    counts = np.ones(len(shares), dtype=np.int64)
    queue = [(-float(share), expert) for expert, share in enumerate(shares)]
    heapq.heapify(queue)
    for _ in range(extra):
        if not queue:
            break
        _, expert = heapq.heappop(queue)
        counts[expert] += 1
        if counts[expert] < most:
            heapq.heappush(queue, (-float(shares[expert]) / int(counts[expert]), expert))
    return counts


def place_experts(shares: FloatArray, ranks: int, replicas: int) -> FloatArray:
    """Which part of each expert's tokens every rank serves.

    Parameters
    ----------
    shares : array, shape (experts,)
        Expected loads.
    ranks : int
        Expert-parallel size; divides the experts.
    replicas : int
        Extra slots of each rank.

    Returns
    -------
    array, shape (ranks, experts)
        Columns sum to 1.

    Notes
    -----
    Slots are dealt out by longest processing time first: the largest to the least loaded rank that has a slot free and
    does not hold that expert yet (or, where every such rank holds it, to the least loaded one with a free slot).

    References
    ----------
    Graham, "Bounds on Multiprocessing Timing Anomalies", 1969 (longest processing time first); deepseek-ai/EPLB.

    Examples
    --------
    Two ranks of two slots; the hot expert is on both.

    >>> place_experts(np.array([0.8, 0.2]), 2, replicas=1).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    experts = len(shares)
    counts = copy_counts(shares, ranks * replicas, ranks)
    part = shares / counts
    slots = np.repeat(np.arange(experts), counts)
    slots = slots[np.argsort(-part[slots], kind="stable")]
    free = np.full(ranks, experts // ranks + replicas)
    load, held = np.zeros(ranks), np.zeros((ranks, experts))
    for expert in slots:
        open_ = free > 0
        apart = open_ & (held[:, expert] == 0.0)
        rank = int(np.argmin(np.where(apart if apart.any() else open_, load, np.inf)))
        held[rank, expert] += 1.0 / counts[expert]
        load[rank] += part[expert]
        free[rank] -= 1
    return held
