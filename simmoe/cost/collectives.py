"""Seconds of one collective on a group of ranks whose placement is known.

Sizes follow nccl-tests: n is the full buffer of one rank. Bus bandwidth is n/t times the traffic factor of the
collective, which makes it comparable with the wire: 2(N-1)/N for an all-reduce, (N-1)/N for the others, 1 for a
send/recv (NVIDIA, nccl-tests, PERFORMANCE.md).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from simmoe.cost.groups import GroupShape
from simmoe.cost.network import Fit, Network, Wire, fits_for, port_fit_for
from simmoe.cost.operators import Collective


class Protocol(NamedTuple):
    """How NCCL moves data: what it keeps of the bandwidth, and what it saves and needs for a hop.

    Attributes
    ----------
    share : float
        Of the bandwidth [1].
    saved : float
        Latency of a network hop less than with the protocol ``Simple`` [s].
    hop : float
        Of a hop inside a domain, NVLink, ring [s].
    """

    share: float
    saved: float
    hop: float


# NCCL src/graph/tuning.cc @5067397: LL, LL128 and Simple; a network hop takes 2.7, 4 and 14 us.
PROTOCOLS = (Protocol(0.5, 11.3e-6, 0.6e-6), Protocol(0.92, 10.0e-6, 1.9e-6), Protocol(1.0, 0.0, 3.4e-6))
LEAST_HOP = 2.7e-6
# The same: bandwidth of the logarithmic algorithms relative to the ring, and passes over the ranks. PAT, the
# logarithmic all-gather and reduce-scatter, exists for one rank a domain.
LOGARITHMIC_RATE = {"all_reduce": 0.92, "all_gather": 0.75, "reduce_scatter": 0.75}
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


def traffic_factor(collective: str, ranks: int) -> float:
    """Bytes a rank must send over the wire, relative to the nccl-tests size.

    Parameters
    ----------
    collective : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``send_recv``.
    ranks : int
        Ranks of the group, N.

    Returns
    -------
    float
        2(N-1)/N, (N-1)/N or 1.

    References
    ----------
    NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".

    Examples
    --------
    >>> traffic_factor("all_reduce", 8), traffic_factor("all_gather", 8), traffic_factor("send_recv", 2)
    (1.75, 0.875, 1.0)
    """
    if collective == "send_recv":
        return 1.0
    return (2.0 if collective == "all_reduce" else 1.0) * (ranks - 1) / ranks


def ring_or_tree_time(
    collective: str, size: float, ranks: int, wire: Wire, neighbours: int = 1, near: float = math.inf
) -> float:
    """Seconds of a collective between equal ranks on one kind of wire, by latency and bandwidth.

    Parameters
    ----------
    collective : str
        As in `traffic_factor`.
    size : float
        nccl-tests size [B].
    ranks : int
        Ranks (or domains), N.
    wire : Wire
        Achievable bandwidth of a rank [B/s] and latency of a message [s].
    neighbours : int
        Ranks in each domain that a ring passes before it takes the wire, p.
    near : float
        Latency of a message between neighbours, which no hop exceeds [s].

    Returns
    -------
    float
        [s]

    Notes
    -----
    For each protocol with share b, hop h inside a domain and alpha = latency - what it saves on the network:
    ring t = s (N-1) (alpha + (p-1) h) + f n/(b B), tree t = s ceil(log2 N) alpha + f n/(r b B), with s = 2 for an
    all-reduce, else 1, f = `traffic_factor` and r = 0.92 (tree) or 0.75 (PAT, the logarithmic all-gather and
    reduce-scatter, for p = 1 alone). The quickest is taken, as NCCL's tuner does. An all-to-all takes
    ceil(log2 N) latency + f n/B: its messages are independent and overlap. Valid for ranks with equal wires of which
    no two share one.

    References
    ----------
    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, section 4;
    NCCL, src/graph/tuning.cc @5067397.

    Examples
    --------
    1 GB over 4 ranks at 100 GB/s is 1.5 x 10 ms by ring, and 6 steps of 20 us.

    >>> round(ring_or_tree_time("all_reduce", 1e9, 4, Wire(100e9, 20e-6)) * 1e3, 2)
    15.12

    8 bytes take the tree with LL: 4 steps of 20 - 11.3 us.

    >>> round(ring_or_tree_time("all_reduce", 8, 4, Wire(100e9, 20e-6)) * 1e6, 1)
    34.8
    """
    if ranks == 1:
        return 0.0
    steps = math.ceil(math.log2(ranks))
    transfer = traffic_factor(collective, ranks) * size / wire.bandwidth
    if collective == "send_recv":
        return wire.latency + transfer
    if collective == "all_to_all":
        return steps * wire.latency + transfer
    passes, logarithmic = PASSES[collective], collective == "all_reduce" or neighbours == 1
    seconds = math.inf
    for protocol in PROTOCOLS:
        hop = min(wire.latency, max(LEAST_HOP, wire.latency - protocol.saved))
        inside = (neighbours - 1) * min(protocol.hop, near)
        moved = transfer / protocol.share
        seconds = min(seconds, passes * (ranks - 1) * (hop + inside) + moved)
        if logarithmic:
            seconds = min(seconds, passes * steps * hop + moved / LOGARITHMIC_RATE[collective])
    return seconds


def fitted_time(fit: Fit, size: float) -> float:
    """Seconds of a collective from its fit.

    Parameters
    ----------
    fit : Fit
        For this number of ranks.
    size : float
        nccl-tests size [B].

    Returns
    -------
    float
        [s]

    Notes
    -----
    t = max(a + n/B + c sqrt(n), f n/B_peak), B = bus bandwidth / f. The root stands for the slow approach to the
    peak; it makes B overshoot, hence the cap at the largest bus bandwidth measured. Where NCCL changes its protocol
    at some size, `fit.small` holds a, B and c of the messages below it, and no larger one is quicker than the
    largest of those. Valid from 512 B to 16 GiB; median error on sizes that the fits have not seen in
    ``hardware_db/efficiency/residuals.csv``.

    References
    ----------
    Form fitted to aiconfigurator@095f58a ``nccl_perf`` and vidur@7d47513 ``network`` by ``tools/fits/collectives.py``.

    Examples
    --------
    64 MB over 8 ranks, all-gather at 350 GB/s bus bandwidth: 20 us + 0.875 x 64e6/350e9 = 160 us.

    >>> round(fitted_time(Fit("all_gather", 8, 20e-6, 350e9, 0.0, math.inf), 64e6) * 1e6)
    180
    """
    factor = traffic_factor(fit.collective, fit.ranks)
    least = factor * size / fit.peak
    if fit.small is not None:
        small = min(size, fit.small.below)
        root = fit.small.sqrt_term * math.sqrt(small)
        least = max(least, fit.small.latency + factor * small / fit.small.bus_bandwidth + root)
        if size < fit.small.below:
            return least
    return max(least, fit.latency + factor * size / fit.bus_bandwidth + fit.sqrt_term * math.sqrt(size))


def local_time(collective: str, size: float, ranks: int, network: Network) -> float:
    """Seconds of a collective inside one scale-up domain.

    Parameters
    ----------
    collective : str
        As in `traffic_factor`.
    size : float
        nccl-tests size [B].
    ranks : int
        Ranks in the domain.
    network : Network
        Of the slowest member.

    Returns
    -------
    float
        [s]; one rank costs nothing.

    Notes
    -----
    `fitted_time` where the link has a fit for this collective (see `simmoe.cost.network.fits_for` for numbers of
    ranks between and beyond those measured), else `ring_or_tree_time` with the link's achievable bandwidth and
    latency; in a mesh of direct links r of d ranks use (r-1)/(d-1) of it. An all-gather or reduce-scatter
    that was not measured is never slower than the all-reduce that does the work of both.
    """
    if ranks == 1:
        return 0.0
    fits = fits_for(network, collective, ranks)
    if fits:
        return sum(weight * fitted_time(fit, size) for weight, fit in fits)
    seconds = ring_or_tree_time(collective, size, ranks, network.local_wire(ranks))
    if collective in {"all_gather", "reduce_scatter"}:
        return min(seconds, local_time("all_reduce", size, ranks, network))
    return seconds


def collective_time(work: Collective, shape: GroupShape, network: Network) -> float:
    """Seconds of one collective.

    Parameters
    ----------
    work : Collective
        Kind and nccl-tests size.
    shape : GroupShape
        Placement of the group.
    network : Network
        Of the slowest member.

    Returns
    -------
    float
        [s]; 0 for a group of one.

    Raises
    ------
    SpecError
        If the group spans domains and the node has no network port.

    Notes
    -----
    Inside one domain: `local_time`. Over D domains of p ranks an all-reduce is a reduce-scatter in the domain, p
    parallel all-reduces of n/p over D (one on each rank's own share of the ports), and an all-gather in the
    domain, or what an all-reduce in the domain takes where that is less (NVLS sums in the switch); all-gather and
    reduce-scatter are their own two parts. NCCL cuts the buffer into chunks, so the parts overlap: t = sum of their
    latencies + the longer of their transfers. With p = 1 this is the flat ring (or tree) over the network. A collective
    that was measured between domains (`simmoe.cost.network.port_fit_for`) takes max(m/B + c sqrt(m), m/B_peak) for
    the m bytes of a rank there: the root is the pipeline that NCCL fills.

    All-to-all: (p-1)/N of the buffer over the scale-up link and (N-p)/N over the network at once, the latter with
    the latency and at the share of the port measured for D domains (`simmoe.cost.network.port_fit_for`), which
    hold what several senders lose that meet at one port.

    Between domains of one host (pairs of cards): what was measured there if the group holds whole pairs, else one
    ring over PCIe: NCCL does not nest them (four A100 in two pairs reach 23.7 GB/s, one card's PCIe 24).

    All groups of a kind are taken to communicate at the same time: a rank has ports/accelerators of its node.

    Valid for balanced groups; with unequal domains the emptiest sets the number of rails. Against published tables
    of 2 to 32 nodes see ``tests/theory/test_measured_collectives.py``.

    References
    ----------
    Thakur et al. 2005 (see `ring_or_tree_time`); measured: mscclpp@1f5f065 (perf_ndmv4, perf_ndmv5),
    awsome-distributed-training@7217859 (nccl all_reduce, 2 nodes).

    Examples
    --------
    An all-reduce of 1 GB over 2 nodes of 8 at 400 GB/s in the node and 50 GB/s a rank between: the network moves
    1 GB / 8 over 2 ranks in 2.5 ms, the node 2 x 0.875 GB / 400 GB/s = 4.375 ms, at once.

    >>> network = Network(400e9, 1.0, 0.0, "switch", 8, (), Wire(50e9, 0.0), Wire(20e9, 0.0))
    >>> work = Collective("all_reduce", "dp", 1e9)
    >>> round(collective_time(work, GroupShape(16, 8, 2), network) * 1e3, 3)
    4.375
    """
    if shape.size == 1 or work.bytes == 0:
        return 0.0
    if shape.local:
        return local_time(work.collective, work.bytes, shape.size, network)
    if shape.one_node and work.collective != "send_recv":
        return _over_the_bridge(work, shape, network)
    if work.collective == "all_to_all":
        return _all_to_all_across(work.bytes, shape, network)
    wire = network.outer(shape)
    if work.collective == "send_recv":
        return wire.latency + work.bytes / wire.bandwidth

    def inside(size: float) -> float:
        whole = local_time(work.collective, size, shape.per_domain, network)
        if work.collective != "all_reduce":
            return whole
        scatter = local_time("reduce_scatter", size, shape.per_domain, network)
        return min(whole, scatter + local_time("all_gather", size, shape.per_domain, network))

    fit = port_fit_for(network, work.collective, shape.domains)

    def across(size: float) -> float:
        rails, near = size / shape.parallel_rails, network.scale_up_latency
        if fit is None:
            return ring_or_tree_time(work.collective, rails, shape.domains, wire, shape.per_domain, near)
        latency = ring_or_tree_time(work.collective, 0.0, shape.domains, wire, shape.per_domain, near)
        moved = traffic_factor(work.collective, shape.domains) * rails
        transfer = moved / (fit.share * wire.bandwidth) + fit.root * math.sqrt(moved)
        return max(latency, fit.latency) + max(transfer, moved / (fit.peak * wire.bandwidth))

    return _overlapped(inside, across, work.bytes)


def _over_the_bridge(work: Collective, shape: GroupShape, network: Network) -> float:
    """A collective between scale-up domains of one host."""
    measured = any(fit.collective == work.collective and fit.ranks > network.domain for fit in network.fits)
    if measured and shape.per_domain == network.domain:
        return local_time(work.collective, work.bytes, shape.size, network)
    if work.collective == "all_to_all":
        return _all_to_all_across(work.bytes, shape, network)
    return ring_or_tree_time(work.collective, work.bytes, shape.size, network.outer(shape))


def _overlapped(inside: Callable[[float], float], across: Callable[[float], float], size: float) -> float:
    """Two parts of a chunked collective: latencies add, the longer transfer hides the other."""
    latency_inside, latency_across = inside(0.0), across(0.0)
    return latency_inside + latency_across + max(inside(size) - latency_inside, across(size) - latency_across)


def _all_to_all_across(size: float, shape: GroupShape, network: Network) -> float:
    wire = network.outer(shape)
    fit = None if shape.one_node else port_fit_for(network, "all_to_all", shape.domains)
    rate = wire.bandwidth * (1.0 if fit is None else fit.share)
    latency = wire.latency * math.ceil(math.log2(shape.domains)) if fit is None else fit.latency
    near = shape.per_domain / shape.size
    far = 1.0 - shape.parallel_rails / shape.size

    def inside(part: float) -> float:
        return local_time("all_to_all", part * near, shape.per_domain, network)

    def across(part: float) -> float:
        return latency + part * far / rate

    return _overlapped(inside, across, size)
