"""How activities share links: max-min fair rates, by priority, and the bound that the busiest link sets."""

import numpy as np
from numpy.typing import NDArray

from simmoe.graph.fluid import Fluid
from simmoe.graph.task import FloatArray, IntArray

Numbers = NDArray[np.integer]


def max_min(start: Numbers, link: Numbers, use: FloatArray, bound: FloatArray, capacity: FloatArray) -> FloatArray:
    """Max-min fair rates of flows over links.

    Parameters
    ----------
    start, link, use : arrays
        Flow i takes ``use[k]`` units of link ``link[k]`` for each unit of its rate, k in
        ``range(start[i], start[i + 1])`` (CSR); every use is positive.
    bound : array of float64, shape (flows,)
        Largest rate of each flow, finite.
    capacity : array of float64, shape (links,)
        What each link can carry; what is below zero counts as zero.

    Returns
    -------
    array of float64, shape (flows,)
        No rate can be raised without lowering one that is not higher.

    Notes
    -----
    Progressive filling: all rates rise together; a flow stops at its bound, or when a link it uses is full. Each round
    settles the flows of the links that fill first, so it takes at most as many rounds as there are links and bounds.

    References
    ----------
    Bertsekas, Gallager, "Data Networks", 2nd edition, 1992, section 6.5.2.

    Examples
    --------
    A 10 B/s link carries flows 0 and 1, a 4 B/s link flows 1 and 2. The second fills first, at 2 B/s a flow; what is
    left of the first goes to flow 0:

    >>> rows = np.array([0, 1, 3, 4]), np.array([0, 0, 1, 1]), np.ones(4)
    >>> max_min(*rows, np.full(3, 100.0), np.array([10.0, 4.0])).tolist()
    [8.0, 2.0, 2.0]

    With at most 1 B/s for flow 2, flow 1 gets the rest:

    >>> max_min(*rows, np.array([100.0, 100.0, 1.0]), np.array([10.0, 4.0])).tolist()
    [7.0, 3.0, 1.0]
    """
    owner = np.repeat(np.arange(len(bound)), np.diff(start))
    rate = np.zeros(len(bound))
    rising = np.ones(len(bound), dtype=bool)
    left = np.maximum(capacity, 0.0)
    while rising.any():
        weight = np.bincount(link, use * rising[owner], minlength=len(capacity))
        level = np.divide(left, weight, out=np.full(len(capacity), np.inf), where=weight > 0.0)
        lowest = level.min(initial=np.inf)
        caught = rising & (bound <= lowest)
        if caught.any():
            rate[caught] = bound[caught]
        else:
            caught[owner[level[link] <= lowest]] = True
            caught &= rising
            rate[caught] = lowest
        rising &= ~caught
        left = np.maximum(left - np.bincount(link, use * (rate * caught)[owner], minlength=len(capacity)), 0.0)
    return rate


def shared_rates(fluid: Fluid, flowing: IntArray, running: IntArray) -> FloatArray:
    """Rates of activities under the routes of a graph: max-min fair in each priority, one after another.

    Parameters
    ----------
    fluid : Fluid
        Holds the routes and links.
    flowing : array of int
        Tasks that progress.
    running : array of int
        Tasks that occupy what their routes hold: those that progress and those still in their latency.

    Returns
    -------
    array of float64, shape (tasks that progress,)
        [units of work/s]

    Examples
    --------
    A message holds 20 of 100 multiprocessors. Computation, which would use all, gets the 80 left:

    >>> from simmoe.graph.fluid import COMPUTE, Route, make_fluid
    >>> routes = [Route({0: 1.0}, 50e9, {1: 20.0}), Route({1: 100.0}, 1.0, priority=COMPUTE)]
    >>> links = [("port", 50e9), ("multiprocessors", 100.0)]
    >>> fluid = make_fluid(np.ones(2), np.zeros(2), np.array([0, 1]), routes, links)
    >>> shared_rates(fluid, np.array([0, 1]), np.array([0, 1])).tolist()
    [50000000000.0, 0.8]
    """
    _, link, amount = _select(fluid.hold_start, fluid.hold_link, fluid.hold, fluid.route[running])
    left = fluid.capacity - np.bincount(link, amount, minlength=len(fluid.capacity))
    route = fluid.route[flowing]
    priority = fluid.priority[route]
    rates = np.zeros(len(flowing))
    for one in np.unique(priority):
        chosen = np.flatnonzero(priority == one)
        start, link, use = _select(fluid.use_start, fluid.use_link, fluid.use, route[chosen])
        rates[chosen] = max_min(start, link, use, fluid.bound[route[chosen]], left)
        spent = np.repeat(rates[chosen], np.diff(start)) * use
        left = left - np.bincount(link, spent, minlength=len(left))
    return rates


def _select(
    start: IntArray, link: IntArray, amount: FloatArray, rows: IntArray
) -> tuple[NDArray[np.int64], IntArray, FloatArray]:
    """Some rows of a CSR table as a table of their own."""
    lengths = (start[1:] - start[:-1])[rows].astype(np.int64)
    new = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(start[rows] - new[:-1], lengths) + np.arange(new[-1])
    return new, link[places], amount[places]


def bottleneck_time(
    matrix: FloatArray, *, domain: int, scale_up: float, port: float, leaf: int = 0, uplink: float = 0.0
) -> float:
    """Seconds of a lone all-to-all of unequal messages: the time that its busiest link needs.

    Parameters
    ----------
    matrix : array of float64, shape (ranks, ranks)
        Bytes from rank i to rank j [B]; the diagonal stays where it is.
    domain : int
        Consecutive ranks that share a scale-up domain; must divide the number of ranks.
    scale_up, port : float
        Bandwidth of a rank and direction inside its domain and between domains [B/s].
    leaf : int
        Consecutive ranks below one leaf switch, a multiple of `domain`; 0 = the fabric is not oversubscribed.
    uplink : float
        Bandwidth between a leaf switch and the spine, one direction [B/s].

    Returns
    -------
    float
        [s], without latency.

    Notes
    -----
    t = max over links and directions of bytes / capacity. No transfer can be quicker. On a fabric that is not
    oversubscribed, matrices whose skew is one of destinations (popular experts) end at the bound under max-min fair
    sharing, others within a few per cent of it. Below a spine of 4:1 sharing was seen to take up to 1.27 times as
    long: messages that are held up on a port leave the uplink idle towards the end.

    Examples
    --------
    Rank 0 sends 4 GB to its neighbour in the domain and 1 GB to each of the two ranks of the other, at 100 GB/s
    inside and 10 GB/s outside: 40 ms inside, 200 ms outside.

    >>> matrix = np.zeros((4, 4))
    >>> matrix[0] = [0, 4e9, 1e9, 1e9]
    >>> bottleneck_time(matrix, domain=2, scale_up=100e9, port=10e9)
    0.2
    """
    ranks = len(matrix)
    near = np.zeros((2, ranks))
    for first in range(0, ranks, domain):
        own = slice(first, first + domain)
        block = matrix[own, own] - np.diag(np.diag(matrix[own, own]))
        near[:, own] = block.sum(axis=1), block.sum(axis=0)
    kept = np.diag(matrix)
    far = np.stack([matrix.sum(axis=1), matrix.sum(axis=0)]) - kept - near
    longest = max(near.max(initial=0.0) / scale_up, far.max(initial=0.0) / port)
    if leaf:
        between = np.add.reduceat(np.add.reduceat(matrix, range(0, ranks, leaf), 0), range(0, ranks, leaf), 1)
        np.fill_diagonal(between, 0.0)
        longest = max(longest, between.sum(axis=1).max() / uplink, between.sum(axis=0).max() / uplink)
    return float(longest)
