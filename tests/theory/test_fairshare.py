"""Max-min fair shares: hand-solved networks, the condition that defines them, and the bound of the busiest link."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simmoe.engine.fairshare import bottleneck_time, max_min, shared_rates
from simmoe.engine.fluid import simulate_fluid
from tests.flows import Flow, all_to_all, network

UNBOUND = 1e9


def rates(capacity: list[float], uses: list[dict[int, float]], bound: list[float] | None = None) -> list[float]:
    """`max_min` of flows written as {link: use}."""
    start = np.cumsum([0, *(len(use) for use in uses)])
    link = np.array([link for use in uses for link in use], dtype=int)
    amount = np.array([part for use in uses for part in use.values()], dtype=float)
    limits = np.array(bound or [UNBOUND] * len(uses))
    return max_min(start, link, amount, limits, np.array(capacity)).tolist()


# ---------------------------------------------------------------- by hand


def test_a_single_flow_gets_the_capacity() -> None:
    assert rates([50.0], [{0: 1}]) == [50.0]


def test_a_single_flow_gets_the_narrowest_link() -> None:
    assert rates([50.0, 20.0, 70.0], [{0: 1, 1: 1, 2: 1}]) == [20.0]


def test_two_flows_share_evenly() -> None:
    assert rates([50.0], [{0: 1}, {0: 1}]) == [25.0, 25.0]


def test_what_a_bounded_flow_leaves_goes_to_the_others() -> None:
    """Expectation: 50 = 5 + 2 x 22.5."""
    assert rates([50.0], [{0: 1}, {0: 1}, {0: 1}], [5.0, UNBOUND, UNBOUND]) == [5.0, 22.5, 22.5]


def test_a_parking_lot() -> None:
    """One long flow over three links of 10, each with a short flow of its own: all get 5."""
    assert rates([10.0] * 3, [{0: 1, 1: 1, 2: 1}, {0: 1}, {1: 1}, {2: 1}]) == [5.0] * 4


def test_links_fill_one_after_another() -> None:
    """Expectation: link 0 (6, three flows) fills at 2; link 1 (14) then has 12 for two flows: 6 each."""
    assert rates([6.0, 14.0], [{0: 1}, {0: 1}, {0: 1, 1: 1}, {1: 1}, {1: 1}]) == [2.0, 2.0, 2.0, 6.0, 6.0]


def test_a_flow_that_stands_for_many_counts_as_many() -> None:
    """64 devices and 8 devices below one uplink of 720 get 10 each."""
    assert rates([720.0], [{0: 64}, {0: 8}]) == [10.0, 10.0]


def test_nothing_is_left_of_a_full_link() -> None:
    assert rates([0.0, 10.0], [{0: 1}, {0: 1, 1: 1}, {1: 1}]) == [0.0, 0.0, 10.0]
    assert rates([-1.0], [{0: 1}]) == [0.0], "more was held than there is"


def test_no_flows() -> None:
    assert rates([1.0], []) == []


def test_a_flow_without_links_runs_at_its_bound() -> None:
    assert rates([1.0], [{}, {0: 1}], [3.0, UNBOUND]) == [3.0, 1.0]


# ---------------------------------------------------------------- what defines it


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[float], list[dict[int, float]], list[float]]:
    amount = st.one_of(st.sampled_from([0.5, 1.0, 2.0]), st.floats(0.01, 50.0))
    capacity = draw(st.lists(st.one_of(st.just(0.0), amount), min_size=1, max_size=5))
    use = st.dictionaries(st.integers(0, len(capacity) - 1), amount, min_size=1)
    uses = draw(st.lists(use, max_size=8))
    return capacity, uses, draw(st.lists(amount, min_size=len(uses), max_size=len(uses)))


@given(networks())
def test_no_link_carries_more_than_it_can_and_no_rate_can_rise(drawn) -> None:
    """Bertsekas and Gallager: a flow is at its bound, or on a full link where nobody is faster."""
    capacity, uses, bound = drawn
    found = rates(capacity, uses, bound)
    load = [
        sum(rate * use.get(link, 0.0) for rate, use in zip(found, uses, strict=True)) for link in range(len(capacity))
    ]
    assert all(carried <= limit * (1 + 1e-9) for carried, limit in zip(load, capacity, strict=True))
    for rate, use, limit in zip(found, uses, bound, strict=True):
        full = [link for link in use if load[link] >= capacity[link] * (1 - 1e-9)]
        fastest = [max(r for r, other in zip(found, uses, strict=True) if link in other) for link in full]
        assert rate == limit or any(rate >= other * (1 - 1e-9) for other in fastest)


@given(networks(), st.randoms(use_true_random=False))
def test_the_order_of_flows_does_not_matter(drawn, random) -> None:
    capacity, uses, bound = drawn
    order = list(range(len(uses)))
    random.shuffle(order)
    found = rates(capacity, [uses[i] for i in order], [bound[i] for i in order])
    assert found == pytest.approx([rates(capacity, uses, bound)[i] for i in order], rel=1e-12, abs=1e-12)


def test_priorities_are_served_one_after_another() -> None:
    """Computation (priority 1) gets of the memory what two transfers at 10 of 100 leave: 80; of 132 processors 112."""
    capacity = {"memory": 100.0, "processors": 132.0, "port": 10.0}
    _, fluid = network(
        capacity,
        [
            Flow(1.0, {"memory": 2.0, "port": 1.0}, hold={"processors": 20.0}),
            Flow(1.0, {"memory": 100.0}, priority=1),
            Flow(1.0, {"processors": 132.0}, priority=1),
        ],
    )
    flowing = np.array([1, 3, 5])
    assert shared_rates(fluid, flowing, flowing).tolist() == pytest.approx([10.0, 0.8, 112 / 132])
    assert shared_rates(fluid, flowing[1:], flowing).tolist() == pytest.approx([1.0, 112 / 132]), "held in its latency"


# ---------------------------------------------------------------- the busiest link


def skewed(ranks: int, exponent: float, seed: int) -> np.ndarray:
    """Each rank sends as many bytes, to destinations of Zipf popularity."""
    popularity = np.random.default_rng(seed).permutation(np.arange(1.0, ranks + 1) ** -exponent)
    return np.tile(1e9 * popularity / popularity.sum(), (ranks, 1))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_lone_skewed_all_to_all_ends_at_the_bound(exponent: float, seed: int) -> None:
    """16 GPUs in nodes of 4 on a fabric that is not oversubscribed."""
    matrix, wires = skewed(16, exponent, seed), {"domain": 4, "scale_up": 450e9, "port": 50e9}
    simulated = simulate_fluid(*network(*all_to_all(matrix, **wires))).makespan
    assert simulated == pytest.approx(bottleneck_time(matrix, **wires), rel=1e-9)


@pytest.mark.parametrize("ratio", [2, 4])
def test_a_lone_balanced_all_to_all_ends_at_the_bound_of_the_spine(ratio: int) -> None:
    """Each leaf of 8 GPUs sends half of 8 x 1 GB up: 8 x 8/16 / (400 / ratio) s, if that is more than a port needs."""
    matrix, wires = skewed(16, 0.0, 0), {"domain": 4, "scale_up": 450e9, "port": 50e9, "leaf": 8}
    wires["uplink"] = 8 * 50e9 / ratio
    simulated = simulate_fluid(*network(*all_to_all(matrix, **wires))).makespan
    assert simulated == pytest.approx(4e9 / wires["uplink"]) == bottleneck_time(matrix, **wires)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_quicker_than_the_bound(seed: int) -> None:
    """Any matrix: max-min sharing never beats the busiest link, and stays close to it without oversubscription."""
    matrix = np.random.default_rng(seed).lognormal(0.0, 2.0, (12, 12))
    for spine in ({}, {"leaf": 4, "uplink": 60.0}):
        wires = {"domain": 4, "scale_up": 450.0, "port": 50.0, **spine}
        simulated = simulate_fluid(*network(*all_to_all(matrix, **wires))).makespan
        bound = bottleneck_time(matrix, **wires)
        assert simulated >= bound * (1 - 1e-12)
        assert spine or simulated <= 1.1 * bound


def test_the_bound_by_hand() -> None:
    """4 ranks, 2 a node: rank 3 receives 3 x 5 bytes, 10 of them from outside at 2 B/s; inside, 5 at 10 B/s."""
    matrix = np.zeros((4, 4))
    matrix[:, 3] = 5.0
    assert bottleneck_time(matrix, domain=2, scale_up=10.0, port=2.0) == 5.0
    assert bottleneck_time(matrix, domain=2, scale_up=0.5, port=2.0) == 10.0
    assert bottleneck_time(matrix, domain=2, scale_up=10.0, port=2.0, leaf=2, uplink=0.5) == 20.0
    assert bottleneck_time(np.diag(np.ones(4)), domain=2, scale_up=1.0, port=1.0) == 0.0, "what stays takes no time"


def test_the_bound_of_1024_gpus_takes_milliseconds() -> None:
    matrix = skewed(1024, 1.0, seed=1)
    begin = time.process_time()
    seconds = bottleneck_time(matrix, domain=8, scale_up=450e9, port=50e9, leaf=256, uplink=6400e9)
    assert time.process_time() - begin < 0.3, "measured 0.02 s; the simulation of a million flows takes seconds"
    share = matrix[0].max() * 1016 / 50e9  # the most popular GPU receives from 1016 outside its node
    assert seconds == pytest.approx(share)
