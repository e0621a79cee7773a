"""Exchanges beneath the computation of a zebra stage hold multiprocessors; what hides nothing is not slowed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simmoe.graph.build import build_step
from simmoe.graph.task import TaskGraph
from simmoe.graph.zebra import exchange_share
from simmoe.graph.zebra_contention import slowed
from simmoe.graph.zebra_order import Role
from tests.scenarios import zebra

ONE = "plan.zebra={attention_devices: 4, expert_devices: 4, groups: 2, micro_batches: 1}"
MOVED = "plan.zebra.moved_experts=[0, 1, 0, 1]"


def graphs(*overrides: str) -> tuple[TaskGraph, TaskGraph]:
    """A step with and without contention."""
    with_, without = (build_step(zebra(*overrides), contention=contention).graph for contention in (True, False))
    return with_, without


def kernels(graph: TaskGraph, rank: int) -> np.ndarray:
    """The tasks of passes on the compute stream of a rank class."""
    own = np.array([stream == (rank, "compute") for stream in graph.streams])[graph.stream]
    return own & (graph.micro_batch >= 0)


@pytest.mark.parametrize(
    ("overrides", "shares"),
    [
        ((), (8 / 132, 8 / 108)),  # two channels for each of 4 peers on the other side
        ((MOVED,), (14 / 132, 8 / 108)),  # attention devices also exchange with the 3 others
        (
            ("plan.zebra={attention_devices: 8, expert_devices: 2, groups: 1, micro_batches: 2}",),
            (4 / 132, 16 / 108),
        ),
    ],
)
def test_a_side_gives_up_two_channels_for_each_peer(overrides, shares):
    scenario = zebra(*overrides)
    (stage,) = scenario.plan.stages
    assert tuple(exchange_share(scenario, stage, role, int(role)) for role in Role) == pytest.approx(shares)


@pytest.mark.parametrize("overrides", [(), (MOVED, "plan.recompute=full"), ("plan.a2a_ffn_overlap_degree=2",)], ids=str)
def test_only_computation_is_slowed_and_by_no_more_than_its_share(overrides):
    scenario = zebra(*overrides)
    slow, free = graphs(*overrides)
    assert slow.operations == free.operations
    changed = slow.duration != free.duration
    for rank, role in enumerate(Role):
        own, share = kernels(free, rank), exchange_share(scenario, scenario.plan.stages[0], role, rank)
        busy = own & (free.duration > 0)
        ratio = slow.duration[busy] / free.duration[busy]
        assert (ratio >= 1).all()
        assert ratio.max() > 1
        assert (ratio <= 1 / (1 - share) + 1e-12).all()
        changed &= ~own
    assert not changed.any()


def test_one_micro_batch_in_one_piece_hides_nothing():
    slow, free = graphs(ONE)
    assert np.array_equal(slow.duration, free.duration)
    assert not np.array_equal(*(graph.duration for graph in graphs(ONE, "plan.a2a_ffn_overlap_degree=2")))


SECONDS = st.floats(0.0, 100.0)


@given(SECONDS, SECONDS, st.floats(0.0, 0.5))
def test_work_and_exchange_share_the_device_until_either_ends(compute, exchange, share):
    """Expectation: at the rate 1 - h while the exchange lasts, at the full rate after it."""
    found = slowed(compute, exchange, share)
    meanwhile = min(found, exchange)
    done = (1 - share) * meanwhile + (found - meanwhile)
    assert done >= compute - 1e-9
    assert found <= compute / (1 - share) + 1e-9
    assert slowed(compute, 0.0, share) == compute
