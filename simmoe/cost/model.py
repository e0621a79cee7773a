"""The cost of an operator on one stage: binds the pure functions of this layer to accelerator, network and groups."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from simmoe.cost.collectives import collective_time
from simmoe.cost.device import device_of, kernel_time
from simmoe.cost.exchange import bipartite_shape, bipartite_time, exchange_time
from simmoe.cost.faults import Effects, effects_on
from simmoe.cost.groups import GroupShape, domain_of_devices, group_shape, node_of_devices, stage_groups
from simmoe.cost.host_update import Host, host_update_time
from simmoe.cost.network import Network, network_of, slowest_network
from simmoe.cost.operators import BipartiteExchange, Collective, HostLaunch, HostUpdate, Operator, TokenExchange, Work
from simmoe.errors import InternalError
from simmoe.specs.hardware import Cluster
from simmoe.specs.plan import Stage
from simmoe.specs.scenario import Scenario


class StageCost:
    """Seconds of every operator of one pipeline stage on one of its accelerators.

    Parameters
    ----------
    scenario : Scenario
    stage : int
        Index into `scenario.plan.stages`.
    group : int
        Index into `scenario.cluster.groups`: which of the stage's accelerators.
    device : int, optional
        Which one of them, over the whole cluster, if its faults are to count.
    role : int, optional
        Of a zebra stage: 0 for its attention devices, 1 for its expert devices.

    Attributes
    ----------
    effects : Effects
        Of the faults of the device.
    shapes : dict of str to GroupShape
        Placement of each kind of parallel group of the stage.
    likeness : hashable
        Two of one scenario whose likeness is equal give equal times.
    """

    def __init__(self, scenario: Scenario, stage: int, group: int, device: int | None = None, *, role: int = 0) -> None:
        cluster, stages = scenario.cluster, scenario.plan.stages
        here = stages[stage].roles[role]
        self.training = scenario.training
        node = cluster.groups[group].node
        self.device = device_of(node.accelerator, sustained=self.training.sustained)
        self._host = Host(node.pcie.bandwidth.value * node.pcie.achievable.value, node.accelerators)
        self.network: Network = network_of(cluster, group)
        self.mixed: Network = network_of(cluster, group, unlike=True)
        self.shapes: dict[str, GroupShape] = _group_shapes(here, cluster)
        self.shapes["pp"] = _boundary_shape(scenario, stages[stage], stages[(stage + 1) % len(stages)])
        self._sides = _sides(stages[stage], cluster) if stages[stage].experts is not None else None
        self.effects = Effects() if device is None else effects_on(cluster, scenario.plan, stage, device)
        self.likeness: Hashable = (group, tuple(self.shapes.items()), self.effects, self._sides)
        self._known: dict[Work, float] = {}

    def share(self, known: dict[Hashable, dict[Work, float]]) -> None:
        """Look times up in, and add them to, those of all costs of equal `likeness`."""
        self._known = known.setdefault(self.likeness, self._known)

    @property
    def between_sides(self) -> GroupShape | None:
        """Placement of the group in which both sides of a zebra stage exchange tokens; None in other stages."""
        sides = self._sides
        if sides is None:
            return None
        return bipartite_shape(sides.ranks, local=sides.local)._replace(unlike=True)

    def seconds(self, operator: Operator) -> float:
        """Time the operator occupies its stream [s]."""
        work = operator.work
        found = self._known.get(work)
        if found is None:
            found = self._known[work] = self._time(work)
        return found

    def _time(self, work: Work) -> float:
        if isinstance(work, HostLaunch):
            return work.seconds
        if isinstance(work, HostUpdate):
            return host_update_time(work, self._host)
        if isinstance(work, BipartiteExchange):
            if self._sides is None:
                raise InternalError("a bipartite exchange needs a zebra stage")
            return bipartite_time(work, self._sides.attention, self._sides.experts, local=self._sides.local)
        if isinstance(work, Collective | TokenExchange):
            kind = "ep" if isinstance(work, TokenExchange) else work.group
            shape = self.shapes[kind]
            network = self.effects.network(self.mixed if shape.unlike else self.network, kind)
            if isinstance(work, Collective):
                return collective_time(work, shape, network)
            return exchange_time(work, shape, network)
        seconds = kernel_time(
            work,
            self.device,
            self.training.precision,
            self.training.software,
            fp8_attention=self.training.fp8_attention,
        )
        return seconds * self.effects.slowdown


class _Sides(NamedTuple):
    """Both ends of a zebra exchange, whether they share one scale-up domain, devices of a group."""

    attention: Network
    experts: Network
    local: bool
    ranks: int


def _sides(stage: Stage, cluster: Cluster) -> _Sides:
    """The networks of both sides of a zebra stage."""
    domain, group = domain_of_devices(cluster)
    parts = [range(part.first_device, part.first_device + part.devices) for part in stage.roles]
    attention, experts = (slowest_network(cluster, np.unique(group[part]).tolist()) for part in parts)
    everywhere = np.concatenate([domain[part] for part in parts])
    ranks = len(everywhere) // (stage.experts.groups if stage.experts is not None else 1)
    return _Sides(attention, experts, bool(np.all(everywhere == everywhere[0])), ranks)


_KINDS = ("tp", "cp", "dp", "etp", "ep", "edp", "shard", "replica")
_shapes: OrderedDict[Hashable, dict[str, GroupShape]] = OrderedDict()
_MOST_SHAPES = 128


def _group_shapes(stage: Stage, cluster: Cluster) -> dict[str, GroupShape]:
    """The placement of the groups of a stage; stages that stand alike in their domains are worked out once."""
    first, last = stage.first_device, stage.first_device + stage.devices
    domain, group = (places[first:last] for places in domain_of_devices(cluster))
    node = node_of_devices(cluster)[first:last]
    where = tuple((places - places[0]).tobytes() for places in (domain, group, node))
    key = (tuple(stage_groups(stage).items()), where)
    if key not in _shapes:
        _shapes[key] = {kind: group_shape(stage, kind, cluster) for kind in _KINDS}
        if len(_shapes) > _MOST_SHAPES:
            _shapes.popitem(last=False)
    return dict(_shapes[key])


def _boundary_shape(scenario: Scenario, here: Stage, there: Stage) -> GroupShape:
    """Whether the ranks of two neighbouring stages that exchange activations share a scale-up domain."""
    if here is there:
        return GroupShape(1, 1, 1)
    domain, group = domain_of_devices(scenario.cluster)
    first, second = here.first_device, there.first_device
    pairs = min(here.devices, there.devices)
    same = bool((domain[first : first + pairs] == domain[second : second + pairs]).all())
    unlike = bool((group[first : first + pairs] != group[second : second + pairs]).any())
    node = node_of_devices(scenario.cluster)
    beside = bool((node[first : first + pairs] == node[second : second + pairs]).all())
    return GroupShape(2, 2, 1, unlike) if same else GroupShape(2, 1, 2, unlike, one_node=beside)
