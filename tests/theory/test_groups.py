"""Where parallel groups stand: strides decide, and a wrong one costs a factor of the network."""

import numpy as np
import pytest

from simmoe.cost.groups import (
    GroupShape,
    domain_of_devices,
    group_shape,
    node_of_devices,
    stage_groups,
)
from simmoe.specs import catalog
from simmoe.specs.hardware import Cluster, Fabric, NodeGroup
from simmoe.specs.plan import Chunk, Stage


def cluster(*groups: tuple[str, int], nodes_per_domain: int | None = None) -> Cluster:
    return Cluster(
        groups=tuple(
            NodeGroup(node=catalog.node(name), count=count, nodes_per_domain=nodes_per_domain) for name, count in groups
        ),
        fabric=Fabric(link=catalog.link("infiniband-ndr-400")),
    )


def stage(devices: int, first: int = 0, **sizes: int) -> Stage:
    width = sizes.get("tensor_parallel", 1) * sizes.get("context_parallel", 1)
    return Stage(
        first_device=first,
        devices=devices,
        chunks=(Chunk(first_layer=0, layers=1),),
        data_parallel=devices // width,
        **sizes,
    )


def brute_force(one: Stage, kind: str, where: Cluster) -> set[tuple[int, int, int, int]]:
    """(size, most and fewest ranks a domain, domains) of every group, from each rank's own coordinates."""
    tensor, context = one.tensor_parallel, one.context_parallel
    expert_tensor, expert = one.expert_tensor_parallel, one.expert_parallel
    domain, _ = domain_of_devices(where)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(one.devices):
        t, c, d = rank % tensor, rank // tensor % context, rank // (tensor * context)
        et, e, ed = (
            rank % expert_tensor,
            rank // expert_tensor % expert,
            rank // (expert_tensor * expert),
        )
        key = {"tp": (c, d), "cp": (t, d), "dp": (t,), "etp": (e, ed), "ep": (et, ed), "edp": (et, e)}
        groups.setdefault(key[kind], []).append(int(domain[one.first_device + rank]))
    found = set()
    for members in groups.values():
        counts = np.unique(members, return_counts=True)[1]
        found.add((len(members), int(counts.max()), int(counts.min()), len(counts)))
    return found


@pytest.mark.parametrize("kind", ["tp", "cp", "dp", "etp", "ep", "edp"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_parallel": 4, "context_parallel": 2, "expert_parallel": 8},
        {"tensor_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 4},
        {"expert_parallel": 32, "expert_tensor_parallel": 1},
        {"tensor_parallel": 8, "expert_parallel": 8, "expert_tensor_parallel": 8},
    ],
)
def test_every_group_against_coordinates_of_the_ranks(kind: str, sizes: dict[str, int]) -> None:
    where, one = cluster(("dgx-h100", 8)), stage(64, **sizes)
    shape = group_shape(one, kind, where)
    found = brute_force(one, kind, where)
    assert (shape.size, shape.per_domain, shape.rails, shape.domains) in found
    assert shape.domains == max(domains for *_, domains in found)


def test_expert_ranks_are_strided_by_expert_tensor_parallel() -> None:
    """ETP = 8 leaves one rank of each expert group a node: all its traffic is on the network (Megatron-Core)."""
    where = cluster(("dgx-h100", 8))
    folded = stage(64, tensor_parallel=8, expert_parallel=8)
    unfolded = stage(64, tensor_parallel=8, expert_parallel=8, expert_tensor_parallel=8)
    assert stage_groups(unfolded)["ep"] == (8, 8)
    assert group_shape(folded, "ep", where) == GroupShape(8, 8, 1, rails=8, one_node=True)
    assert group_shape(unfolded, "ep", where) == GroupShape(8, 1, 8, rails=1)
    assert group_shape(unfolded, "etp", where).local


def test_expert_data_parallel_groups_stride_over_the_whole_expert_block() -> None:
    """EP 8 on 8 nodes: replicas of an expert are one a node, as ZeRO-3 gathers them."""
    one = stage(64, tensor_parallel=2, expert_parallel=8)
    assert group_shape(one, "edp", cluster(("dgx-h100", 8))) == GroupShape(8, 1, 8, rails=1)


def test_a_rack_of_72_is_one_domain_and_two_racks_are_two() -> None:
    rack = cluster(("gb200-tray", 18))
    assert group_shape(stage(72, expert_parallel=72), "ep", rack).local
    racks = cluster(("gb200-tray", 36))
    shape = group_shape(stage(144, expert_parallel=144), "ep", racks)
    assert (shape.per_domain, shape.domains, shape.rails) == (72, 2, 72)


def test_an_expert_group_that_straddles_two_racks() -> None:
    """Devices 64 to 127: 8 in the first rack, 56 in the second."""
    shape = group_shape(stage(64, first=64, expert_parallel=64), "ep", cluster(("gb200-tray", 36)))
    assert (shape.per_domain, shape.rails, shape.domains) == (56, 8, 2)
    assert not shape.one_node


def test_a_job_may_use_part_of_each_rack() -> None:
    """16 of 18 trays: domains of 64."""
    where = cluster(("gb200-tray", 32), nodes_per_domain=16)
    assert np.bincount(domain_of_devices(where)[0]).tolist() == [64, 64]


def test_groups_of_unlike_nodes() -> None:
    where = cluster(("dgx-h100", 1), ("dgx-a100-80gb", 1))
    across = group_shape(stage(16, tensor_parallel=8), "dp", where)
    assert across == GroupShape(2, 1, 2, unlike=True, rails=1)
    inside = group_shape(stage(8, first=8, expert_parallel=8), "ep", where)
    assert inside == GroupShape(8, 8, 1, unlike=False, rails=8, one_node=True)
    domain, group = domain_of_devices(where)
    assert domain.tolist() == group.tolist() == [0] * 8 + [1] * 8


def test_nodes_of_different_width_keep_their_own_domains() -> None:
    where = cluster(("gb200-tray", 2), ("dgx-h100", 2))
    assert domain_of_devices(where)[0].tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert node_of_devices(where).tolist() == [0] * 4 + [1] * 4 + [2] * 8 + [3] * 8


def test_pairs_inside_one_node_are_known_to_share_it() -> None:
    """Domains of two in a node of eight: a group of four crosses domains but not the network."""
    pairs = catalog.node("a40-x8-pairs")
    narrow = pairs.model_copy(update={"scale_up": pairs.scale_up.model_copy(update={"domain": 2})})
    where = Cluster(
        groups=(NodeGroup(node=narrow, count=2),),
        fabric=Fabric(link=catalog.link("infiniband-ndr-400")),
    )
    assert group_shape(stage(16, tensor_parallel=4), "tp", where) == GroupShape(4, 2, 2, rails=2, one_node=True)
    assert not group_shape(stage(16, tensor_parallel=4), "dp", where).one_node


def test_a_large_cluster_is_placed_quickly() -> None:
    where = cluster(("dgx-h100", 2048))
    one = stage(16384, tensor_parallel=8, expert_parallel=64)
    assert group_shape(one, "dp", where) == GroupShape(2048, 1, 2048, rails=1)
