"""Where the ranks of a parallel group stand: how many share a scale-up domain, how many domains they span.

Ranks of a stage are ordered tp-cp-dp for the dense part and etp-ep-edp for the experts (Megatron's RankGenerator
order tp-cp-ep-dp-pp), on consecutive devices. An expert-parallel group is therefore strided by etp, a data-parallel
group by tp * cp, and whether such a group stays inside the fast domain follows from the strides alone.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.specs.hardware import Cluster
from simmoe.specs.plan import Stage


class GroupShape(NamedTuple):
    """Size and placement of the worst-placed group of a kind.

    Attributes
    ----------
    size : int
        Ranks of the group.
    per_domain : int
        Most ranks of the group that share one scale-up domain.
    domains : int
        Scale-up domains the group touches.
    unlike : bool
        The group joins accelerators of different cluster groups.
    rails : int
        Fewest ranks of the group in one of its domains; 0 = size // domains.
    one_node : bool
        Every rank is in the same host, so what joins the domains is its PCIe, not the network.
    """

    size: int
    per_domain: int
    domains: int
    unlike: bool = False
    rails: int = 0
    one_node: bool = False

    @property
    def local(self) -> bool:
        """Every rank is in the same scale-up domain."""
        return self.domains == 1

    @property
    def parallel_rails(self) -> int:
        """Ranks that can talk to the next domain at once, each over its own share of the ports."""
        return self.rails or max(1, self.size // self.domains)


def domain_of_devices(cluster: Cluster) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The scale-up domain and the node group of every device of the cluster.

    Returns
    -------
    domain, group : arrays of int, shape (devices,)
    """
    domains, groups = [], []
    offset = 0
    for number, group in enumerate(cluster.groups):
        local = np.arange(group.devices) // group.domain_devices
        domains.append(local + offset)
        groups.append(np.full(group.devices, number))
        offset += int(local[-1]) + 1
    return np.concatenate(domains), np.concatenate(groups)


def node_of_devices(cluster: Cluster) -> NDArray[np.int64]:
    """The host of every device of the cluster, shape (devices,)."""
    sizes = [group.node.accelerators for group in cluster.groups for _ in range(group.count)]
    return np.repeat(np.arange(len(sizes)), sizes)


def stage_groups(stage: Stage) -> dict[str, tuple[int, int]]:
    """Size and stride of each kind of group inside a stage.

    Examples
    --------
    >>> from simmoe.specs.plan import Chunk, Stage
    >>> stage = Stage(first_device=0, devices=64, chunks=(Chunk(first_layer=0, layers=4),), tensor_parallel=8,
    ...               data_parallel=8, expert_parallel=8, expert_tensor_parallel=8)
    >>> stage_groups(stage)["ep"]  # expert ranks are strided by etp: one GPU per 8-GPU node
    (8, 8)
    """
    tensor, context = stage.tensor_parallel, stage.context_parallel
    expert, expert_tensor = stage.expert_parallel, stage.expert_tensor_parallel
    return {
        "tp": (tensor, 1),
        "cp": (context, tensor),
        "dp": (stage.data_parallel * context, tensor),  # Megatron shards the optimizer over dp x cp
        "etp": (expert_tensor, 1),
        "ep": (expert, expert_tensor),
        "edp": (stage.expert_data_parallel, expert_tensor * expert),
        "shard": (stage.shards, tensor),
        "replica": (stage.data_parallel * context // stage.shards, tensor * stage.shards),
    }


def group_shape(stage: Stage, kind: str, cluster: Cluster) -> GroupShape:
    """Placement of the group of a kind that spans the most domains.

    Parameters
    ----------
    stage : Stage
        A stage of an expanded plan.
    kind : str
        ``tp``, ``cp``, ``dp``, ``etp``, ``ep``, ``edp``; ``shard`` and ``replica`` of `Plan.sharding_group`.
    cluster : Cluster
        Gives the domain of each device.
    """
    size, stride = stage_groups(stage)[kind]
    domain, group = domain_of_devices(cluster)
    devices = np.arange(stage.first_device, stage.first_device + stage.devices)
    members = devices.reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)
    in_domain = np.sort(domain[members], axis=1)
    spans = 1 + np.count_nonzero(np.diff(in_domain, axis=1), axis=1)
    worst = int(np.argmax(spans))
    _, counts = np.unique(in_domain[worst], return_counts=True)
    unlike = bool(np.any(group[members] != group[members][:, :1]))
    nodes = node_of_devices(cluster)[members[worst]]
    return GroupShape(
        size=size,
        per_domain=int(counts.max()),
        domains=int(spans[worst]),
        unlike=unlike,
        rails=int(counts.min()),
        one_node=bool(np.all(nodes == nodes[0])),
    )
