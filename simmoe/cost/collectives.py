"""Seconds of one collective or token exchange on a group of ranks whose placement is known.

Sizes follow nccl-tests: n is the full buffer of one rank. Bus bandwidth is n/t times the traffic factor of the
collective, which makes it comparable with the wire: 2(N-1)/N for an all-reduce, (N-1)/N for the others, 1 for a
send/recv (NVIDIA, nccl-tests, PERFORMANCE.md).
"""

import math
from collections.abc import Callable

from simmoe.cost.groups import GroupShape
from simmoe.cost.network import Fit, Network, Wire, fit_for
from simmoe.cost.operators import Collective, TokenExchange
from simmoe.cost.routing import busiest

# NCCL src/graph/tuning.cc @5067397: bandwidth of the logarithmic algorithms relative to the ring, and how many
# passes over the ranks each collective makes.
LOGARITHMIC_RATE = {"all_reduce": 0.92, "all_gather": 0.75, "reduce_scatter": 0.75}
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
# All-to-all over three and more domains: several senders meet at one port. 32 GPUs with 8 x 400 Gb/s a node move
# 37 of 50 GB/s a port (NVIDIA GTC slide quoted in ml-engineering@744d01e); 2 nodes 48 of 50 (mscclpp@1f5f065).
INCAST_RATE = 0.73
# DeepEP's kernels (aiconfigurator@095f58a, wideep_deepep_normal_perf): median intercepts of dispatch and combine,
# and the share of the scale-up link: H100 289-303 of 450 GB/s; 134 of 200 on H800 from DeepEP's own 153 GB/s,
# which counts the eighth that never leaves the GPU.
EXCHANGE_LATENCY = {False: 38e-6, True: 65e-6}
EXCHANGE_SCALE_UP = 0.67


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


def ring_or_tree_time(collective: str, size: float, ranks: int, wire: Wire) -> float:
    """Seconds of a collective between equal ranks on one kind of wire, by latency and bandwidth.

    Parameters
    ----------
    collective : str
        As in `traffic_factor`.
    size : float
        nccl-tests size [B].
    ranks : int
        Ranks, N.
    wire : Wire
        Achievable bandwidth of a rank [B/s] and latency of a message [s].

    Returns
    -------
    float
        [s]

    Notes
    -----
    Ring: t = s (N-1) alpha + f n/B; tree (all-gather and reduce-scatter: NCCL's PAT): t = s ceil(log2 N) alpha +
    f n/(r B), with s = 2 for an all-reduce, else 1, f = `traffic_factor` and r = 0.92 (tree) or 0.75 (PAT). The
    quicker one is taken, as NCCL's tuner does. An all-to-all takes ceil(log2 N) alpha + f n/B: its messages are
    independent and overlap. Valid for ranks with equal wires of which no two share one.

    References
    ----------
    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, section 4;
    NCCL, src/graph/tuning.cc @5067397.

    Examples
    --------
    1 GB over 4 ranks at 100 GB/s is 1.5 x 10 ms by ring, and 6 steps of 10 us.

    >>> round(ring_or_tree_time("all_reduce", 1e9, 4, Wire(100e9, 10e-6)) * 1e3, 2)
    15.06
    """
    if ranks == 1:
        return 0.0
    steps = math.ceil(math.log2(ranks))
    transfer = traffic_factor(collective, ranks) * size / wire.bandwidth
    if collective == "send_recv":
        return wire.latency + transfer
    if collective == "all_to_all":
        return steps * wire.latency + transfer
    passes = PASSES[collective] * wire.latency
    ring = passes * (ranks - 1) + transfer
    return min(ring, passes * steps + transfer / LOGARITHMIC_RATE[collective])


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
    peak; it makes B overshoot, hence the cap at the largest bus bandwidth measured. Valid from 512 B to 16 GiB,
    median error 1.5-9 % on the data of each fit.

    References
    ----------
    Form fitted to aiconfigurator@095f58a ``nccl_perf``, vidur@7d47513 ``network`` and superbenchmark@700d650.

    Examples
    --------
    64 MB over 8 ranks, all-gather at 350 GB/s bus bandwidth: 20 us + 0.875 x 64e6/350e9 = 160 us.

    >>> round(fitted_time(Fit("all_gather", 8, 20e-6, 350e9, 0.0, math.inf), 64e6) * 1e6)
    180
    """
    factor = traffic_factor(fit.collective, fit.ranks)
    rising = fit.latency + factor * size / fit.bus_bandwidth + fit.sqrt_term * math.sqrt(size)
    return max(rising, factor * size / fit.peak)


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
    `fitted_time` where the link has a fit for this collective (see `simmoe.cost.network.fit_for` for numbers of
    ranks between and beyond those measured), else `ring_or_tree_time` with the link's achievable bandwidth and
    latency; in a mesh of direct links r of d ranks use (r-1)/(d-1) of it. An all-gather or reduce-scatter is
    never slower than the all-reduce that does the work of both (it may seem so where only one was measured).
    """
    if ranks == 1:
        return 0.0
    fit = fit_for(network, collective, ranks)
    if fit is not None:
        seconds = fitted_time(fit, size)
    else:
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
    domain; all-gather and reduce-scatter are their own two parts. NCCL cuts the buffer into chunks, so the parts
    overlap: t = sum of their latencies + the longer of their transfers. With p = 1 this is the flat ring (or tree)
    over the network. All-to-all: (p-1)/N of the buffer over the scale-up link and (N-p)/N over the network at
    once, the latter at 0.73 of the port from three domains on.

    All groups of a kind are taken to communicate at the same time: a rank has ports/accelerators of its node.

    Valid for balanced groups; with unequal domains the emptiest sets the number of rails. Two-node collectives of
    1 GiB and more are met within 15 % on ND A100 v4, ND H100 v5 and p4de; on p5 the prediction is 1.2 to 1.4
    times the measured time. Below 16 MiB software overheads rule (160 us on p4de) and the prediction may be a
    third of the measured. No congestion of the fabric besides the incast factor.

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
    if work.collective == "all_to_all":
        return _all_to_all_across(work.bytes, shape, network)
    wire = network.outer(shape)
    if work.collective == "send_recv":
        return wire.latency + work.bytes / wire.bandwidth

    def inside(size: float) -> float:
        if work.collective != "all_reduce":
            return local_time(work.collective, size, shape.per_domain, network)
        scatter = local_time("reduce_scatter", size, shape.per_domain, network)
        return scatter + local_time("all_gather", size, shape.per_domain, network)

    def across(size: float) -> float:
        return ring_or_tree_time(work.collective, size / shape.parallel_rails, shape.domains, wire)

    return _overlapped(inside, across, work.bytes)


def _overlapped(inside: Callable[[float], float], across: Callable[[float], float], size: float) -> float:
    """Two parts of a chunked collective: latencies add, the longer transfer hides the other."""
    latency_inside, latency_across = inside(0.0), across(0.0)
    return latency_inside + latency_across + max(inside(size) - latency_inside, across(size) - latency_across)


def _all_to_all_across(size: float, shape: GroupShape, network: Network) -> float:
    wire = network.outer(shape)
    rate = wire.bandwidth * (INCAST_RATE if shape.domains > 2 else 1.0)
    latency = wire.latency * math.ceil(math.log2(shape.domains))
    near = shape.per_domain / shape.size
    far = 1.0 - shape.parallel_rails / shape.size

    def inside(part: float) -> float:
        return local_time("all_to_all", part * near, shape.per_domain, network)

    def across(part: float) -> float:
        return latency + part * far / rate

    return _overlapped(inside, across, size)


def expected_places(places: int, num_experts: int, top_k: int, limit: int = 0) -> float:
    """How many of `places` equal holders of experts a token visits on average.

    Parameters
    ----------
    places : int
        Ranks or domains, D, that share the experts equally.
    num_experts, top_k : int
        Experts, E, and how many different ones a token chooses at random, k.
    limit : int
        The router first picks this many places and chooses within them; 0 = no limit.

    Returns
    -------
    float
        D (1 - C(E - E/D, k) / C(E, k)), with D and E those the limit leaves.

    Notes
    -----
    Each place is missed with the hypergeometric probability that all k experts lie elsewhere. Valid for balanced
    routing; a trained router is correlated and visits fewer places.

    References
    ----------
    Node-limited routing: DeepSeek-V3, arXiv 2412.19437, section 2.1.2 (at most 4 nodes).

    Examples
    --------
    2 experts of 4 on 2 places: both on the first with probability 1/6, so a place is missed 1/6 of the time.

    >>> round(expected_places(2, 4, 2), 4)
    1.6667
    >>> round(expected_places(8, 256, 8), 2), round(expected_places(8, 256, 8, limit=4), 2)
    (5.29, 3.63)
    """
    reached = min(places, limit) if limit else places
    experts = num_experts * reached / places
    elsewhere = experts - experts / reached
    missed = 1.0
    for chosen in range(top_k):
        if elsewhere <= chosen:
            return float(reached)
        missed *= (elsewhere - chosen) / (experts - chosen)
    return reached * (1.0 - missed)


def exchange_time(work: TokenExchange, shape: GroupShape, network: Network) -> float:
    """Seconds of an expert dispatch or combine.

    Parameters
    ----------
    work : TokenExchange
        Tokens of one rank and how they are sent.
    shape : GroupShape
        Placement of the expert-parallel group.
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
    NCCL: an all-to-all of tokens x top_k copies; 1/N of them stay. Deduplicated (DeepEP, HybridEP): a token
    crosses the network once for each remote domain it visits, T b d (D-1)/D bytes a rank, and the scale-up link
    once for each rank it visits, T b r (p-1)/p, with d and r from `expected_places`. Then t = a + max(scale-up
    bytes / (0.67 B), network bytes / port), a = 38 us (dispatch) or 65 us (combine). Skewed, the busiest rank and
    domain set the pace: NCCL's copies grow with their load, deduplicated ones as `busiest` says.

    Valid for balanced routing and more than 256 tokens a rank (below, low-latency kernels take over). DeepEP's
    own H800 table (8 to 64 ranks) is met within 7 %, aiconfigurator's time per token on H100 within 20 % for 1, 2
    and 4 nodes; its 8 nodes measured 1.9 times the dispatch and 0.9 times the combine predicted, its B200 and
    GB200 (24 multiprocessors) 1.8 and 1.4 times.

    References
    ----------
    DeepEP README @dd758ca, normal kernels; aiconfigurator@095f58a ``wideep_deepep_normal_perf``.

    Examples
    --------
    4096 tokens of 7168 B, 8 of 256 experts, 8 ranks in one domain: 4096 x 7168 x 5.29 x 7/8 = 136 MB at
    0.67 x 450 GB/s = 451 us, after 38 us.

    >>> network = Network(450e9, 0.8, 1e-5, "switch", 8, (), Wire(45e9, 1e-5), Wire(50e9, 1e-5))
    >>> work = TokenExchange(4096, 7168, 8, 256, deduplicated=True)
    >>> round(exchange_time(work, GroupShape(8, 8, 1), network) * 1e6)
    489
    """
    if shape.size == 1 or work.tokens == 0:
        return 0.0
    payload = work.tokens * work.bytes_per_token
    if not work.deduplicated:
        return collective_time(Collective("all_to_all", "ep", payload * work.top_k * work.load), shape, network)
    per_group = max(1.0, shape.domains / work.num_groups)
    limit = min(math.ceil(work.group_limit * per_group), shape.domains)
    domains = expected_places(shape.domains, work.num_experts, work.top_k, limit)
    rank_limit = limit * shape.size // shape.domains
    ranks = expected_places(shape.size, work.num_experts, work.top_k, rank_limit)
    ranks, domains = busiest(ranks, shape.size, work.load), busiest(domains, shape.domains, work.domain_load)
    near = payload * ranks * (shape.per_domain - 1) / shape.per_domain
    rate = min(EXCHANGE_SCALE_UP, network.scale_up_achievable) * network.scale_up_bandwidth
    slowest = near / rate
    if not shape.local:
        far = payload * domains * (shape.domains - 1) / shape.domains
        slowest = max(slowest, far / network.outer(shape).bandwidth)
    return EXCHANGE_LATENCY[work.combine] + slowest
