"""Expert dispatch and combine: how many places a token visits, the bytes on each wire, the seconds."""

import math
from typing import NamedTuple

from simmoe.cost.collectives import collective_time
from simmoe.cost.groups import GroupShape
from simmoe.cost.network import Network
from simmoe.cost.operators import BipartiteExchange, Collective, TokenExchange
from simmoe.cost.routing import busiest

_COUNT_BYTES, _WEIGHT_BYTES = 8, 4  # an int64 for each expert, an fp32 for each copy


class Traffic(NamedTuple):
    """What a rank of a deduplicated exchange sends.

    Attributes
    ----------
    near : float
        Copies of a token that its kernels write inside the domain, the ones that stay on the rank too [1].
    far : float
        Copies that it sends over the network [1].
    near_bytes, far_bytes : float
        What crosses the scale-up link and the network [B].
    """

    near: float
    far: float
    near_bytes: float
    far_bytes: float


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


def exchange_traffic(work: TokenExchange, shape: GroupShape) -> Traffic:
    """Copies and bytes that the busiest rank of a deduplicated exchange moves.

    Parameters
    ----------
    work : TokenExchange
        Tokens of one rank and how they are sent.
    shape : GroupShape
        Placement of the expert-parallel group: N ranks in D domains of p.

    Returns
    -------
    Traffic

    Notes
    -----
    A token crosses the network once for each remote domain it visits, T d (D-1)/D copies a rank, and is written once
    for each rank it visits, T r, of which (p-1)/p cross the scale-up link, with d and r from `expected_places`.
    Skewed, the busiest rank and domain set the pace, as `busiest` says.

    References
    ----------
    DeepEP README @dd758ca, normal kernels with NVLink and RDMA forwarding.

    Examples
    --------
    4096 tokens, 8 of 256 experts, 8 ranks in one domain: 4096 x 5.29 copies, of which 7/8 x 7168 B leave the rank.

    >>> traffic = exchange_traffic(TokenExchange(4096, 7168, 8, 256, deduplicated=True), GroupShape(8, 8, 1))
    >>> round(traffic.near), round(traffic.near_bytes / 1e6), traffic.far
    (21687, 136, 0.0)
    """
    per_group = max(1.0, shape.domains / work.num_groups)
    limit = min(math.ceil(work.group_limit * per_group), shape.domains)
    domains = expected_places(shape.domains, work.num_experts, work.top_k, limit)
    rank_limit = limit * shape.size // shape.domains
    ranks = expected_places(shape.size, work.num_experts, work.top_k, rank_limit)
    ranks, domains = busiest(ranks, shape.size, work.load), busiest(domains, shape.domains, work.domain_load)
    near = work.tokens * ranks
    far = 0.0 if shape.local else work.tokens * domains * (shape.domains - 1) / shape.domains
    crossing = near * (shape.per_domain - 1) / shape.per_domain
    return Traffic(near, far, crossing * work.bytes_per_token, far * work.bytes_per_token)


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
    NCCL: an all-to-all of tokens x top_k copies, which grow with their load if they are skewed; 1/N of them stay.
    Before a dispatch Megatron-Core gathers every rank's count of tokens for every expert, and sends the router's
    weight of each copy by an all-to-all of its own (@0014f13, token_dispatcher.py): latencies above all.

    Deduplicated (DeepEP, HybridEP, UCCL-EP), with the traffic of `exchange_traffic` and the numbers that the links
    hold for the library: t = a + max(n (c + w/B), n' c', n' w/B'), for n copies of w bytes in the domain and n' over
    the network. In the domain a copy takes its multiprocessors a time c of its own, so small tokens are slower, and
    forwarding tokens between domain and network slows both. On
    the network c' is the time that a proxy thread on the CPU needs to post a message, while the port is busy with
    others (0 where the GPU itself rings the network card).

    Valid for more than 256 tokens a rank (below, low-latency kernels take over) and the number of multiprocessors
    that the links name. Measured: ``tests/theory/test_measured_collectives.py``.

    References
    ----------
    DeepEP README @dd758ca and docs/README_Hybrid-EP.md @41cad94; aiconfigurator@095f58a
    ``wideep_deepep_normal_perf``; Mao et al., "UCCL-EP", arXiv 2512.19849.

    Examples
    --------
    4096 tokens of 7168 B, 8 of 256 experts, 8 ranks in one domain: 155 MB at 300 GB/s = 518 us, after 38 us.

    >>> from simmoe.cost.network import Exchange, ExchangeRate, Wire
    >>> deepep = Exchange("deepep", ExchangeRate(300e9, 38e-6), ExchangeRate(300e9, 65e-6))
    >>> network = Network(450e9, 0.8, 1e-5, "switch", 8, (), Wire(45e9, 1e-5), Wire(50e9, 1e-5), exchanges=(deepep,))
    >>> work = TokenExchange(4096, 7168, 8, 256, deduplicated=True)
    >>> round(exchange_time(work, GroupShape(8, 8, 1), network) * 1e6)
    556
    """
    if shape.size == 1 or work.tokens == 0:
        return 0.0
    if not work.deduplicated:
        return _copies_time(work, shape, network)
    traffic = exchange_traffic(work, shape)
    near = network.scale_up_exchange(work.library, shape, combine=work.combine)
    latency = near.latency
    slowest = traffic.near * (near.message + work.bytes_per_token / near.bandwidth)
    if not shape.local:
        far = network.outer_exchange(work.library, shape, combine=work.combine)
        latency = max(latency, far.latency)
        slowest = max(slowest, traffic.far * far.message, traffic.far_bytes / far.bandwidth)
    return latency + slowest


def bipartite_time(work: BipartiteExchange, attention: Network, experts: Network, *, local: bool) -> float:
    """Seconds of a zebra dispatch or combine.

    Parameters
    ----------
    work : BipartiteExchange
    attention, experts : Network
        Of the slowest device of each side.
    local : bool
        Both sides share one scale-up domain.

    Returns
    -------
    float
        [s]

    Notes
    -----
    An all-to-all with uneven splits (NCCL send/recv), of which the busier side decides: an attention device sends
    b k w (1 - f/M), an expert device receives b k w (1 - f) M/N, for b tokens of w bytes, k experts each, of which the
    share f moved to attention devices. Either takes what a balanced all-to-all of the same bytes a port takes on as
    many ranks. A combine is the mirror image. Token counts and router weights are small beside it and left out.

    Unless all devices share a domain every copy is taken to cross the network, as it does where unlike devices stand
    in different hosts. Valid for bytes a port above a megabyte.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, sections 4.1 and 5: bipartite all-to-all, groups for dispatch and combine.

    Examples
    --------
    Two attention devices send 16 MB each at 10 GB/s to one expert device, which receives 32 MB: 3.2 ms.

    >>> from simmoe.cost.network import Wire
    >>> network = Network(25e9, 1.0, 0.0, "switch", 1, (), Wire(10e9, 0.0), Wire(10e9, 0.0))
    >>> work = BipartiteExchange(tokens=1000, bytes_per_token=8000, top_k=2, attention=2, experts=1)
    >>> round(bipartite_time(work, network, network, local=False) * 1e3, 3)
    3.2
    """
    ranks = work.attention + work.experts
    shape = bipartite_shape(ranks, local=local)
    whole = ranks / (ranks - 1)  # of the buffer of a balanced all-to-all, (N - 1) / N leaves the rank

    def side(size: float, network: Network) -> float:
        return collective_time(Collective("all_to_all", "ep", size * whole), shape, network)

    return max(side(work.sent, attention), side(work.received, experts))


def bipartite_shape(ranks: int, *, local: bool) -> GroupShape:
    """Where the devices of a zebra group stand: all in one scale-up domain, or each for itself.

    Examples
    --------
    >>> bipartite_shape(12, local=False).domains, bipartite_shape(12, local=True).per_domain
    (12, 12)
    """
    return GroupShape(ranks, ranks if local else 1, 1 if local else ranks)


def copies_bytes(work: TokenExchange) -> float:
    """Bytes that a rank's exchange of every copy holds, with the router's weights where they go along [B].

    Examples
    --------
    >>> copies_bytes(TokenExchange(1000, 8192, 8, 64, deduplicated=False))
    65568000.0
    """
    return float(work.tokens * work.top_k * (work.bytes_per_token + (0 if work.combine else _WEIGHT_BYTES)))


def _copies_time(work: TokenExchange, shape: GroupShape, network: Network) -> float:
    """Seconds of an exchange of every copy by NCCL; with a dispatch go the counts and the weights."""
    copies = work.tokens * work.top_k * work.load
    parts = [Collective("all_to_all", "ep", copies * work.bytes_per_token)]
    if not work.combine:
        parts.append(Collective("all_gather", "ep", float(_COUNT_BYTES * work.num_experts * shape.size)))
        parts.append(Collective("all_to_all", "ep", _WEIGHT_BYTES * copies))
    return sum(collective_time(part, shape, network) for part in parts)
