"""The exchange between attention and expert devices: worked by hand, limits, and laws."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simmoe.cost.collectives import collective_time
from simmoe.cost.exchange import bipartite_shape, bipartite_time
from simmoe.cost.model import StageCost
from simmoe.cost.network import Network, Wire, slowest_network
from simmoe.cost.operators import BipartiteExchange, Collective
from simmoe.graph.zebra import ZebraStage
from tests.scenarios import zebra

MEGABYTES = BipartiteExchange(tokens=1000, bytes_per_token=8000, top_k=2, attention=1, experts=1)


def network(port: float, latency: float = 0.0, inside: float = 100e9) -> Network:
    return Network(inside, 1.0, latency, "switch", 8, (), Wire(port, latency), Wire(port, latency))


SLOW, FAST = network(10e9), network(20e9)


def seconds(attention: int, experts: int, moved: float = 0.0, sides=(SLOW, SLOW), *, local: bool = False) -> float:
    work = MEGABYTES._replace(attention=attention, experts=experts, moved=moved)
    return bipartite_time(work, *sides, local=local)


@pytest.mark.parametrize(
    ("attention", "experts", "moved", "megabytes"),
    [
        (1, 1, 0.0, 16),  # one sends 1000 x 2 x 8 kB
        (4, 4, 0.0, 16),
        (4, 2, 0.0, 32),  # two attention devices to every expert device
        (4, 8, 0.0, 16),  # expert devices receive half; the port of an attention device decides
        (4, 4, 0.5, 14),  # an eighth of the copies is for the experts at home
        (4, 2, 0.5, 16),  # half of 32 for the experts' side, 14 leave
        (4, 1, 0.25, 48),  # three quarters of 64
        (1, 2, 0.5, 8),  # the only attention device keeps its half
    ],
)
def test_the_busier_side_decides(attention, experts, moved, megabytes):
    """All wires of 10 GB/s without latency."""
    assert seconds(attention, experts, moved) == pytest.approx(megabytes * 1e6 / 10e9)


def test_the_slower_port_decides():
    """Expectation: 16 MB at 10 GB/s on one side and 20 GB/s on the other; of 2 to 1 the receiver has twice as much."""
    assert seconds(4, 4, sides=(SLOW, FAST)) == seconds(4, 4, sides=(FAST, SLOW)) == pytest.approx(1.6e-3)
    assert seconds(4, 4, sides=(FAST, FAST)) == pytest.approx(0.8e-3)
    assert seconds(4, 2, sides=(SLOW, FAST)) == pytest.approx(1.6e-3)
    assert seconds(4, 2, sides=(FAST, SLOW)) == pytest.approx(3.2e-3)


def test_one_domain_uses_its_links():
    """Expectation: 16 MB at 100 GB/s, whatever the ports."""
    assert seconds(4, 4, local=True) == pytest.approx(16e6 / 100e9)
    assert (bipartite_shape(8, local=True).domains, bipartite_shape(8, local=False).domains) == (1, 8)


def test_latency_is_that_of_an_all_to_all_of_all_devices():
    """Expectation: ceil(log2 8) messages of 10 us before the bytes."""
    sides = (network(10e9, 10e-6),) * 2
    assert seconds(4, 4, sides=sides) - seconds(4, 4) == pytest.approx(30e-6)


@pytest.mark.parametrize("size", [2, 4, 16])
def test_as_many_on_either_side_are_a_balanced_exchange_of_what_leaves_a_port(size):
    """Expectation: an all-to-all of 2 M ranks, of which each sends 16 MB to others."""
    ranks = 2 * size
    buffer = 16e6 * ranks / (ranks - 1)
    shape = bipartite_shape(ranks, local=False)
    balanced = collective_time(Collective("all_to_all", "ep", buffer), shape, SLOW)
    assert seconds(size, size) == pytest.approx(balanced, rel=1e-12)


SIZES = st.integers(1, 16)
SHARES = st.floats(0.0, 0.9)


@settings(deadline=None)
@given(SIZES, SIZES, SHARES, st.floats(1.0, 4.0))
def test_more_tokens_never_take_less(attention, experts, moved, more):
    work = MEGABYTES._replace(attention=attention, experts=experts, moved=moved)
    many = work._replace(tokens=work.tokens * more)
    assert bipartite_time(many, SLOW, FAST, local=False) >= bipartite_time(work, SLOW, FAST, local=False)


@settings(deadline=None)
@given(SIZES, SIZES, SHARES, SHARES)
def test_more_experts_at_home_never_take_longer(attention, experts, one, other):
    assert seconds(attention, experts, max(one, other)) <= seconds(attention, experts, min(one, other)) * (1 + 1e-12)


@settings(deadline=None)
@given(SIZES, SIZES, SHARES)
def test_nothing_is_lost_on_the_way(attention, experts, moved):
    """Expectation: what arrives anywhere is what all tokens are copied to."""
    work = MEGABYTES._replace(attention=attention, experts=experts, moved=moved)
    arrives = work.received * experts + work.taken * attention
    assert arrives == pytest.approx(attention * work.tokens * work.top_k * work.bytes_per_token)
    assert work.sent * attention == pytest.approx(arrives - work.taken)  # the rest is at home already


# ---------------------------------------------------------------- in a stage


def exchange_of(*overrides: str) -> tuple[float, BipartiteExchange]:
    """The time of a dispatch in a stage, the same on both sides, and its work."""
    scenario = zebra(*overrides)
    work = ZebraStage(scenario, 0).work.exchanges[0]
    first, second = (StageCost(scenario, 0, role, role=role)._time(work) for role in (0, 1))
    assert first == second
    return first, work


def test_a_stage_takes_the_ports_of_its_own_devices():
    found, work = exchange_of()
    cluster = zebra().cluster
    sides = [slowest_network(cluster, [group]) for group in (0, 1)]
    assert found == bipartite_time(work, *sides, local=False)
    assert sides[1].port.bandwidth == sides[0].port.bandwidth / 2  # 200 Gb/s a GPU, and 400


def test_the_fabric_between_unlike_nodes_is_taken():
    """Expectation: ports of 50 Gb/s, of which an A100 has half of one, instead of 400 Gb/s."""
    slow, _ = exchange_of("cluster.cross_group={link: infiniband-ndr-400, bandwidth: 50 Gb/s}")
    assert slow > 4 * exchange_of()[0]


def test_both_sides_in_one_node_use_nvlink():
    """Expectation: a group of 8 H100 in one domain is far quicker than one over ports."""
    near, _ = exchange_of("plan.zebra={attention_devices: 4, expert_devices: 4, expert_group: 0, micro_batches: 2}")
    assert near < exchange_of()[0] / 4
    scenario = zebra("plan.zebra={attention_devices: 4, expert_devices: 4, expert_group: 0, micro_batches: 2}")
    assert StageCost(scenario, 0, 0).between_sides.local
    assert not StageCost(zebra(), 0, 0).between_sides.local
