"""What the faults of a cluster do to the times of one device: a factor on its kernels, and less of its network ports.

Every collective ends when its slowest member does, so a degraded port slows down every group that reaches over it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.groups import node_of_devices, stage_groups
from simmoe.cost.network import Network
from simmoe.specs.hardware import Cluster
from simmoe.specs.plan import Plan, Stage

Ids = NDArray[np.int64]
Shares = NDArray[np.float64]


class Effects(NamedTuple):
    """What faults do to one device.

    Attributes
    ----------
    slowdown : float
        Factor on the time of its kernels [1].
    ports : tuple of (kind of group, share)
        Share of the port bandwidth left to collectives of a kind of group [1]; kinds left out have all of it.
    """

    slowdown: float = 1.0
    ports: tuple[tuple[str, float], ...] = ()

    def network(self, healthy: Network, kind: str) -> Network:
        """The network as the collectives of a kind of group see it."""
        share = dict(self.ports).get(kind, 1.0)
        if share == 1.0:
            return healthy
        return healthy._replace(port=healthy.port._replace(bandwidth=healthy.port.bandwidth * share))


def slowdown_of_devices(cluster: Cluster) -> Shares:
    """Factor on the time of the kernels of each device [1]; several faults multiply."""
    node, factor = node_of_devices(cluster), np.ones(cluster.devices)
    for fault in cluster.faults:
        where = node == fault.node if fault.node is not None else np.arange(len(node)) == fault.device
        factor[where] *= fault.slowdown
    return factor


def ports_of_devices(cluster: Cluster) -> Shares:
    """Share of the port bandwidth that each device has left [1]; several faults multiply."""
    node, share = node_of_devices(cluster), np.ones(cluster.devices)
    for fault in cluster.faults:
        if fault.node is not None:
            share[node == fault.node] *= fault.network
    return share


def effects_on(cluster: Cluster, plan: Plan, stage: int, device: int) -> Effects:
    """What the faults of a cluster do to one device of a stage.

    Parameters
    ----------
    cluster : Cluster
    plan : Plan
        Expanded.
    stage : int
        Index into `plan.stages`.
    device : int
        Counted over the whole cluster.

    Returns
    -------
    Effects
        For ``tp``, ``cp``, ``ep`` and ``etp`` the worst share of the device's own group; for ``dp`` and ``edp``, whose
        reductions end the step together, of all devices of the stage; for ``pp`` of the device and of those it
        exchanges activations with.
    """
    if not cluster.faults:
        return Effects()
    here, share = plan.stages[stage], ports_of_devices(cluster)
    own = share[here.first_device : here.first_device + here.devices]
    place = device - here.first_device
    sharded = ("shard", "replica") if here.sharding_group else ()
    worst = {kind: float(own.min()) for kind in ("dp", "edp", *sharded)}
    for kind in ("tp", "cp", "ep", "etp"):
        members = group_members(here, kind)
        mine = members[np.any(members == place, axis=1)]
        worst[kind] = float(own[mine].min())
    beyond = [float(share[other].min()) for other in facing_devices(plan, stage, place)]
    worst["pp"] = min([float(own[place]), *beyond])
    ports = tuple((kind, left) for kind, left in worst.items() if left < 1.0)
    return Effects(float(slowdown_of_devices(cluster)[device]), ports)


def group_members(stage: Stage, kind: str) -> Ids:
    """The places in a stage of the members of each group of a kind, shape (groups, size).

    Examples
    --------
    Four devices, tensor-parallel pairs of neighbours, data-parallel pairs of every second one:

    >>> from simmoe.specs.plan import Chunk
    >>> stage = Stage(first_device=8, devices=4, chunks=(Chunk(first_layer=0, layers=4),), tensor_parallel=2,
    ...               data_parallel=2)
    >>> group_members(stage, "tp").tolist(), group_members(stage, "dp").tolist()
    ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    """
    size, stride = stage_groups(stage)[kind]
    return np.arange(stage.devices).reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)


def facing_devices(plan: Plan, stage: int, place: int) -> list[Ids]:
    """The devices of the stages before and after that hold the same part of the batch as a place in a stage.

    Examples
    --------
    The second of two devices works with the last two of the four of the other stage:

    >>> from simmoe.specs.plan import Chunk
    >>> first = Stage(first_device=0, devices=2, chunks=(Chunk(first_layer=0, layers=4),), data_parallel=2)
    >>> second = Stage(first_device=2, devices=4, chunks=(Chunk(first_layer=4, layers=4),), data_parallel=4)
    >>> facing_devices(Plan(stages=(first, second)), 0, 1)
    [array([4, 5])]
    """
    stages = plan.stages
    low, high = place / stages[stage].devices, (place + 1) / stages[stage].devices
    found = []
    for other in dict.fromkeys(((stage - 1) % len(stages), (stage + 1) % len(stages))):
        if other != stage:
            count = stages[other].devices
            edges = np.arange(count + 1) / count
            found.append(stages[other].first_device + np.flatnonzero((edges[:-1] < high) & (edges[1:] > low)))
    return found
