"""Collective and exchange times against closed forms and limits."""

import math

import pytest

from simmoe.cost.collectives import collective_time, fitted_time, local_time, ring_or_tree_time, traffic_factor
from simmoe.cost.exchange import exchange_time, exchange_traffic, expected_places
from simmoe.cost.groups import GroupShape
from simmoe.cost.network import (
    Exchange,
    ExchangeRate,
    Fit,
    Network,
    PortFit,
    Small,
    Wire,
    fits_for,
    network_of,
    port_fit_for,
)
from simmoe.cost.operators import Collective, TokenExchange
from simmoe.errors import SpecError
from simmoe.specs import catalog
from simmoe.specs.hardware import Cluster, Fabric, NodeGroup

# 400 GB/s in a domain of 8, 40 GB/s a rank between domains, no latency: times are pure traffic.
PURE = Network(400e9, 1.0, 0.0, "switch", 8, (), Wire(40e9, 0.0), Wire(20e9, 0.0))
SIZE = 1e9


def seconds(kind: str, shape: GroupShape, network: Network = PURE, size: float = SIZE) -> float:
    return collective_time(Collective(kind, "dp", size), shape, network)


def fit(kind: str, ranks: int, latency: float, bus: float, root: float = 0.0, peak: float = math.inf) -> Fit:
    return Fit(kind, ranks, latency, bus, root, peak)


# ---------------------------------------------------------------- one domain


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 2.0), ("all_gather", 1.0), ("reduce_scatter", 1.0), ("all_to_all", 1.0)],
)
def test_ring_traffic(kind: str, factor: float, ranks: int) -> None:
    """Expectation: factor (N-1)/N n/B."""
    expected = factor * (ranks - 1) / ranks * SIZE / 400e9
    assert seconds(kind, GroupShape(ranks, ranks, 1)) == pytest.approx(expected, rel=1e-12)
    assert traffic_factor(kind, ranks) == pytest.approx(factor * (ranks - 1) / ranks)


def test_a_group_of_one_communicates_for_free() -> None:
    slow = PURE._replace(scale_up_latency=1.0)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        assert seconds(kind, GroupShape(1, 1, 1), slow) == 0.0
    work = TokenExchange(4096, 8192, 8, 64, deduplicated=True)
    assert exchange_time(work, GroupShape(1, 1, 1), slow) == 0.0


def test_a_large_message_goes_round_the_ring_and_a_small_one_up_the_tree() -> None:
    """Expectation: 2 (N-1) alpha + 2 (N-1)/N n/B; and 2 log2(N) (alpha - 11.3 us) + 2 (N-1)/N n/(0.5 x 0.92 B), LL."""
    wire = Wire(100e9, 20e-6)
    large = 2 * 63 * 20e-6 + 2 * 63 / 64 * 1e12 / 100e9
    assert ring_or_tree_time("all_reduce", 1e12, 64, wire) == pytest.approx(large, rel=1e-12)
    small = 2 * 6 * 8.7e-6 + 2 * 63 / 64 * 1e3 / 46e9
    assert ring_or_tree_time("all_reduce", 1e3, 64, wire) == pytest.approx(small, rel=1e-12)


@pytest.mark.parametrize(("size", "share", "saved", "hop"), [(1e3, 0.5, 11.3, 0.6), (1e8, 0.92, 10, 1.9)])
def test_a_ring_passes_every_rank_of_a_domain(size: float, share: float, saved: float, hop: float) -> None:
    """Expectation: 15 steps of alpha - saved and 7 hops inside; with one rank a domain the logarithmic PAT: 4 steps."""
    wire = Wire(100e9, 20e-6)
    ring = 15 * (20e-6 - saved * 1e-6 + 7 * hop * 1e-6) + 15 / 16 * size / (share * 100e9)
    assert ring_or_tree_time("all_gather", size, 16, wire, neighbours=8) == pytest.approx(ring, rel=1e-12)
    alone = ring_or_tree_time("all_gather", 1e3, 16, wire)
    assert alone == pytest.approx(4 * 8.7e-6 + 15 / 16 * 1e3 / (0.5 * 0.75 * 100e9), rel=1e-12)


def test_sixteen_thousand_ranks_take_a_finite_time() -> None:
    shape = GroupShape(16384, 8, 2048)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        actual = seconds(kind, shape, PURE._replace(port=Wire(40e9, 1e-5)))
        assert 0 < actual < 1.0


# ---------------------------------------------------------------- fits


def test_a_fit_is_its_formula_until_the_peak_caps_it() -> None:
    """Expectation: a + n f/B + c sqrt(n), never above the measured peak."""
    measured = fit("all_gather", 8, 10e-6, 400e9, 5e-9, 350e9)
    small = 10e-6 + 1e6 * 0.875 / 400e9 + 5e-9 * 1e3
    assert fitted_time(measured, 1e6) == pytest.approx(small, rel=1e-12)
    assert fitted_time(measured, 1e12) == pytest.approx(0.875 * 1e12 / 350e9, rel=1e-12)


def test_the_protocol_changes_at_a_size() -> None:
    """Expectation: a + f n/B of the small below 1 MB; above it those of the large, but never less than just below."""
    two = fit("all_gather", 8, 40e-6, 350e9)._replace(small=Small(1e6, 10e-6, 70e9, 0.0))
    assert fitted_time(two, 5e5) == pytest.approx(10e-6 + 0.875 * 5e5 / 70e9, rel=1e-12)
    assert fitted_time(two, 0.0) == 10e-6
    assert fitted_time(two, 1e9) == pytest.approx(40e-6 + 0.875 * 1e9 / 350e9, rel=1e-12)
    quick = two._replace(latency=0.0)
    assert fitted_time(quick, 1e6) == pytest.approx(10e-6 + 0.875 * 1e6 / 70e9, rel=1e-12)


def test_numbers_of_ranks_without_a_fit() -> None:
    network = PURE._replace(fits=(fit("all_gather", 2, 5e-6, 300e9), fit("all_gather", 8, 15e-6, 360e9)))
    ((_, beyond),) = fits_for(network, "all_gather", 64)
    assert beyond.bus_bandwidth == 360e9
    assert beyond.latency == pytest.approx(30e-6)
    assert fits_for(network, "all_to_all", 8) == ()
    half = 0.75 * SIZE / 2
    expected = 10e-6 + half / 300e9 + half / 360e9
    assert local_time("all_gather", SIZE, 4, network) == pytest.approx(expected, rel=1e-12)


def test_part_of_a_mesh_has_part_of_its_links() -> None:
    """Expectation: 2 of 8 ranks have one of seven links, with and without a fit."""
    mesh = PURE._replace(topology="mesh")
    assert local_time("send_recv", SIZE, 2, mesh) == pytest.approx(SIZE / (400e9 / 7))
    fitted = mesh._replace(fits=(fit("all_reduce", 8, 0.0, 350e9),))
    assert local_time("all_reduce", SIZE, 2, fitted) == pytest.approx(SIZE / 50e9)


def test_an_all_reduce_bounds_its_halves() -> None:
    """A link on which only the all-reduce was measured: the others do not come out slower."""
    network = PURE._replace(scale_up_latency=1.0, fits=(fit("all_reduce", 8, 1e-5, 350e9),))
    for kind in ("all_gather", "reduce_scatter"):
        assert local_time(kind, SIZE, 8, network) == local_time("all_reduce", SIZE, 8, network)


# ---------------------------------------------------------------- across domains


def test_one_rank_a_domain_is_a_flat_ring() -> None:
    """Expectation: 2 (D-1)/D n over one rank's ports."""
    actual = seconds("all_reduce", GroupShape(16, 1, 16))
    assert actual == pytest.approx(2 * 15 / 16 * SIZE / 40e9, rel=1e-12)


def test_the_network_bounds_a_hierarchical_all_reduce() -> None:
    """Expectation: each of 8 rails reduces n/8 over 4 domains: 2 3/4 (n/8)/40e9, more than 2 7/8 n/400e9."""
    assert seconds("all_reduce", GroupShape(32, 8, 4)) == pytest.approx(1.5 * SIZE / 8 / 40e9, rel=1e-12)


def test_the_scale_up_link_bounds_it_when_the_network_is_fast() -> None:
    fast = PURE._replace(port=Wire(4e12, 0.0))
    assert seconds("all_reduce", GroupShape(32, 8, 4), fast) == pytest.approx(2 * 7 / 8 * SIZE / 400e9)
    assert seconds("all_gather", GroupShape(32, 8, 4), fast) == pytest.approx(7 / 8 * SIZE / 400e9)


def test_latencies_of_both_levels_add() -> None:
    """Expectation: tree over 8 (3 steps there and back) and over 4 (2 steps there and back), each with LL."""
    slow = PURE._replace(scale_up_latency=2e-5, port=Wire(40e9, 1e-4))
    actual = seconds("all_reduce", GroupShape(32, 8, 4), slow, size=1e-3)
    assert actual == pytest.approx(2 * 3 * 8.7e-6 + 2 * 2 * 88.7e-6, rel=1e-6)


def test_a_switch_that_sums_spares_an_all_reduce_its_halves() -> None:
    """Expectation: 2 7/8 n/500e9, not 7/8 n (1/350e9 + 1/350e9), where the all-reduce of the domain is quicker."""
    fits = (fit("all_reduce", 8, 0.0, 500e9), fit("all_gather", 8, 0.0, 350e9), fit("reduce_scatter", 8, 0.0, 350e9))
    fast = PURE._replace(fits=fits, port=Wire(4e12, 0.0))
    assert seconds("all_reduce", GroupShape(32, 8, 4), fast) == pytest.approx(1.75 * SIZE / 500e9)


def test_the_emptiest_domain_sets_the_rails() -> None:
    """62 + 2 ranks: 2 rails between the domains."""
    actual = seconds("all_gather", GroupShape(64, 62, 2, rails=2))
    assert actual == pytest.approx(0.5 * SIZE / 2 / 40e9, rel=1e-12)
    assert GroupShape(64, 32, 2).parallel_rails == 32


def test_an_all_to_all_sends_what_is_far_over_the_ports() -> None:
    """Expectation: 2 domains: half of the buffer over 40 GB/s; 4: three quarters, at the share measured there."""
    assert seconds("all_to_all", GroupShape(16, 8, 2)) == pytest.approx(0.5 * SIZE / 40e9, rel=1e-12)
    fitted = PURE._replace(port_fits=(PortFit("all_to_all", 4, 2e-4, 0.8), PortFit("all_to_all", 16, 4e-4, 0.6)))
    expected = 2e-4 + 0.75 * SIZE / (0.8 * 40e9)
    assert seconds("all_to_all", GroupShape(32, 8, 4), fitted) == pytest.approx(expected, rel=1e-12)
    assert port_fit_for(fitted, "all_to_all", 8) == PortFit("all_to_all", 8, pytest.approx(3e-4), pytest.approx(0.7))
    assert port_fit_for(fitted, "all_to_all", 64) == PortFit("all_to_all", 64, 4e-4, 0.6)
    assert port_fit_for(fitted, "all_gather", 8) is None


def test_a_slow_port_slows_what_was_measured_on_a_healthy_one() -> None:
    fitted = PURE._replace(port_fits=(PortFit("all_to_all", 2, 0.0, 0.8),))
    halved = fitted._replace(port=Wire(20e9, 0.0))
    whole = seconds("all_to_all", GroupShape(16, 8, 2), fitted)
    assert seconds("all_to_all", GroupShape(16, 8, 2), halved) == pytest.approx(2 * whole)


def test_a_message_between_stages() -> None:
    near, far = GroupShape(2, 2, 1), GroupShape(2, 1, 2)
    assert seconds("send_recv", near) == pytest.approx(SIZE / 400e9)
    assert seconds("send_recv", far, PURE._replace(port=Wire(40e9, 1e-5))) == pytest.approx(1e-5 + SIZE / 40e9)


def test_pairs_of_one_node_talk_over_its_host_bridge() -> None:
    actual = seconds("all_reduce", GroupShape(4, 1, 4, one_node=True))
    assert actual == pytest.approx(1.5 * SIZE / 20e9, rel=1e-12)


def test_whole_pairs_take_what_was_measured_over_their_bridge() -> None:
    """Expectation: four cards of two pairs as measured; four of four pairs one ring over PCIe."""
    fits = (fit("all_reduce", 2, 0.0, 200e9), fit("all_reduce", 4, 0.0, 23.7e9))
    pairs = PURE._replace(topology="pairs", domain=2, fits=fits)
    whole, strided = GroupShape(4, 2, 2, one_node=True), GroupShape(4, 1, 4, one_node=True)
    assert seconds("all_reduce", whole, pairs) == pytest.approx(1.5 * SIZE / 23.7e9)
    assert seconds("all_reduce", strided, pairs) == pytest.approx(1.5 * SIZE / 20e9)
    unmeasured = pairs._replace(fits=fits[:1])
    assert seconds("all_reduce", whole, unmeasured) == pytest.approx(1.5 * SIZE / 20e9)


def test_nodes_without_ports_cannot_be_spanned() -> None:
    with pytest.raises(SpecError, match="no network ports, set network_ports"):
        seconds("all_reduce", GroupShape(16, 8, 2), PURE._replace(port=Wire(0.0, 0.0)))


# ---------------------------------------------------------------- expert exchange


def test_nccl_sends_every_copy() -> None:
    """Expectation: an all-to-all of tokens x top_k x bytes; with a dispatch also of 4 bytes a copy, and the counts."""
    work = TokenExchange(1000, 1e4, 8, 64, deduplicated=False)
    for shape in (GroupShape(8, 8, 1), GroupShape(32, 8, 4)):
        tokens, weights = (seconds("all_to_all", shape, size=8000 * width) for width in (1e4, 4))
        counts = seconds("all_gather", shape, size=8 * 64 * shape.size)
        assert exchange_time(work._replace(combine=True), shape, PURE) == tokens
        assert exchange_time(work, shape, PURE) == pytest.approx(tokens + counts + weights, rel=1e-12)


@pytest.mark.parametrize(("places", "experts", "top_k"), [(4, 8, 2), (8, 64, 6), (2, 4, 3), (16, 16, 1)])
def test_expected_places_is_the_hypergeometric_mean(places: int, experts: int, top_k: int) -> None:
    """Expectation: D (1 - C(E - E/D, k) / C(E, k))."""
    missed = math.comb(experts - experts // places, top_k) / math.comb(experts, top_k)
    assert expected_places(places, experts, top_k) == pytest.approx(places * (1 - missed), rel=1e-12)


def test_places_are_limited_by_routing_and_by_their_number() -> None:
    assert expected_places(4, 8, 8) == 4  # every expert is chosen
    assert expected_places(8, 256, 8, limit=1) == 1
    assert expected_places(8, 256, 8, limit=4) < 4 < expected_places(8, 256, 8)


DEEPEP = Exchange("deepep", ExchangeRate(300e9, 38e-6), ExchangeRate(250e9, 65e-6))
PORTS = Exchange("deepep", ExchangeRate(0.9, 90e-6), ExchangeRate(0.8, 150e-6))


def test_a_deduplicated_token_crosses_the_network_once_a_domain() -> None:
    """Expectation: a + T b d (D-1)/D / (share of the port), d the expected domains of 4."""
    network = PURE._replace(exchanges=(DEEPEP,), port_exchanges=(PORTS,))
    work = TokenExchange(4096, 8192, 8, 256, deduplicated=True)
    domains = 4 * (1 - math.comb(192, 8) / math.comb(256, 8))
    moved = 4096 * 8192 * domains * 0.75
    shape = GroupShape(32, 8, 4)
    assert exchange_traffic(work, shape).far_bytes == pytest.approx(moved, rel=1e-9)
    assert exchange_time(work, shape, network) == pytest.approx(90e-6 + moved / 36e9, rel=1e-9)
    combined = exchange_time(work._replace(combine=True), shape, network)
    assert combined == pytest.approx(150e-6 + moved / 32e9, rel=1e-9)


def test_a_rack_domain_keeps_the_exchange_off_the_network() -> None:
    """Expectation: a + T r b/B, r the expected ranks, the own one too."""
    work = TokenExchange(4096, 8192, 8, 256, deduplicated=True)
    ranks = 64 * (1 - math.comb(252, 8) / math.comb(256, 8))
    network = PURE._replace(exchanges=(DEEPEP,))
    expected = 38e-6 + 4096 * ranks * 8192 / 300e9
    assert exchange_time(work, GroupShape(64, 64, 1), network) == pytest.approx(expected, rel=1e-9)


def test_small_tokens_cost_their_copies_and_proxies_their_messages() -> None:
    """Expectation: T r (c + b/B) inside; across, the larger of bytes over the port and messages of the proxy."""
    slow = DEEPEP._replace(dispatch=ExchangeRate(300e9, 0.0, 5e-9))
    work = TokenExchange(1000, 64, 1, 8, deduplicated=True)
    inside = exchange_time(work, GroupShape(8, 8, 1), PURE._replace(exchanges=(slow,)))
    assert inside == pytest.approx(1000 * (5e-9 + 64 / 300e9), rel=1e-9)
    proxy = PORTS._replace(dispatch=ExchangeRate(1.0, 0.0, 1e-6))
    across = exchange_time(work, GroupShape(16, 8, 2), PURE._replace(exchanges=(slow,), port_exchanges=(proxy,)))
    assert across == pytest.approx(500 * 1e-6, rel=1e-9)
    large = exchange_time(
        work._replace(bytes_per_token=1e6),
        GroupShape(16, 8, 2),
        PURE._replace(exchanges=(slow,), port_exchanges=(proxy,)),
    )
    assert large == pytest.approx(500 * 1e6 / 40e9, rel=1e-9)


def test_a_library_that_was_not_measured_takes_the_one_it_stands_for_or_the_wire() -> None:
    work = TokenExchange(4096, 8192, 8, 256, deduplicated=True, library="uccl")
    network = PURE._replace(exchanges=(DEEPEP,))
    shape = GroupShape(8, 8, 1)
    assert exchange_time(work, shape, network) == exchange_time(work._replace(library="deepep"), shape, network)
    unmeasured = PURE._replace(scale_up_latency=1e-5)
    expected = 1e-5 + exchange_traffic(work, shape).near * 8192 / 400e9
    assert exchange_time(work, shape, unmeasured) == pytest.approx(expected, rel=1e-12)


# ---------------------------------------------------------------- what a cluster offers


def cluster(*nodes: str, oversubscription: float = 1.0, cross: str | None = None) -> Cluster:
    def fabric(link: str, share: float) -> Fabric:
        return Fabric(link=catalog.link(link), oversubscription=share)

    groups = tuple(NodeGroup(node=catalog.node(name), count=2) for name in nodes)
    other = fabric(cross, 1.0) if cross else None
    return Cluster(groups=groups, fabric=fabric("infiniband-ndr-400", oversubscription), cross_group=other)


def test_a_rank_has_its_share_of_the_ports() -> None:
    link = catalog.link("infiniband-ndr-400")
    port = link.bandwidth.value * link.achievable.value
    assert network_of(cluster("dgx-h100"), 0).port.bandwidth == pytest.approx(port)  # 8 ports, 8 GPUs
    assert network_of(cluster("a40-x8"), 0).port.bandwidth == pytest.approx(port / 8)  # 1 port, 8 GPUs
    halved = network_of(cluster("dgx-h100", oversubscription=2.0), 0)
    assert halved.port.bandwidth == pytest.approx(port / 2)
    assert halved.port_fits == network_of(cluster("dgx-h100"), 0).port_fits


def test_unlike_groups_take_the_slower_side_and_the_cross_group_fabric() -> None:
    mixed = cluster("dgx-h100", "dgx-a100-80gb", cross="roce-100")
    slow, fast = network_of(mixed, 1), network_of(mixed, 0)
    both = network_of(mixed, 0, unlike=True)
    assert slow.scale_up_bandwidth < fast.scale_up_bandwidth
    assert both.scale_up_bandwidth == slow.scale_up_bandwidth
    assert both.fits == slow.fits
    assert both.port.bandwidth < min(slow.port.bandwidth, fast.port.bandwidth)
    assert both == network_of(mixed, 1, unlike=True)
