"""Which links each task of a step shares with others: ports, uplinks, host bridges, multiprocessors and memory.

A rank class stands for devices that act at the same time, so one set of device links is enough for all of them; on a
link that several devices share, a flow counts as often as the class has devices below it. Lone tasks take what the
cost layer says: a route is bounded by the rate that follows from there, however wide its links are.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.backward import backward
from simmoe.cost.collectives import traffic_factor
from simmoe.cost.exchange import copies_bytes, exchange_traffic
from simmoe.cost.gradients import HOST_UPDATE
from simmoe.cost.groups import GroupShape, domain_of_devices, node_of_devices
from simmoe.cost.model import StageCost
from simmoe.cost.moe import moe_layer
from simmoe.cost.operators import Collective, CollectiveName, GroupName, Operator, TokenExchange
from simmoe.cost.shard import shard_of
from simmoe.graph.fluid import COMPUTE, Fluid, Route, make_fluid
from simmoe.graph.multiprocessors import held_multiprocessors
from simmoe.graph.pieces import one_piece, pieces_of
from simmoe.graph.ranks import RankClass, StepGraph
from simmoe.graph.task import Operation, TaskGraph
from simmoe.specs.hardware import Fabric, Node
from simmoe.specs.plan import Plan
from simmoe.specs.scenario import Scenario

# Nodes below one leaf switch: half of its 64 ports go down (NVIDIA, DGX SuperPOD H100 reference architecture,
# RA-11333-001: 32 nodes a scalable unit, one leaf a rail). Only used where the fabric is oversubscribed.
LEAF_NODES = 32
MEMORY_BOUND = frozenset({"memory", "optimizer"})
_NOTHING = 1e-30  # bytes, or tokens, of an exchange that is all latency
Amounts = dict[int, float]


class _Links:
    """Numbers links in order of first use."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float]] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str, capacity: float) -> int:
        """The link of a name; made with this capacity if it is new."""
        if name not in self._numbers:
            self._numbers[name] = len(self.rows)
            self.rows.append((name, capacity))
        return self._numbers[name]


class _Site(NamedTuple):
    """A rank class with what stands around one of its devices.

    `nodes` and `leaves` hold (number, devices of the class there), one for each that may be unlike the others.
    """

    number: int
    devices: int
    stage_devices: int
    node: Node
    fabric: Fabric
    cross: Fabric | None
    plan: Plan
    cost: StageCost
    exchanges: dict[tuple[str, bool], TokenExchange]
    nodes: tuple[tuple[int, int], ...]
    leaves: tuple[tuple[str, int, int], ...]


def fluid_of(step: StepGraph, scenario: Scenario) -> Fluid:
    """What every task of a step shares with the others.

    Parameters
    ----------
    step : StepGraph
        From `simmoe.graph.build.build_step`.
    scenario : Scenario
        It was built from.

    Returns
    -------
    Fluid
        Alone, every task takes its duration in the graph.

    Notes
    -----
    Work is counted in seconds of the task alone, so tasks that meet on a full link are slowed by the same factor.
    (Rates in bytes would starve a hierarchical collective: for one byte on the port it moves many inside the node.)

    A collective occupies the scale-up link and the network port in the proportion of the bytes that it sends over
    each, as `wire_bytes` counts them, in both directions; a pipeline transfer occupies the sender's outgoing and the
    receiver's incoming direction. Where the fabric is oversubscribed, an uplink of `LEAF_NODES` nodes is shared by all
    below it; in a host without a scale-up switch, the bridge by all its accelerators. Traffic reads and writes memory,
    which memory-bound kernels share; its kernels hold multiprocessors, which the other kernels lack meanwhile.

    The two halves of a collective that joins unlike accelerators progress on their own, each on its own links. Which
    pairs of devices talk is not known: all traffic that leaves a domain counts as leaving the leaf, as in
    `simmoe.cost.network.network_of`.
    """
    graph, links = step.graph, _Links()
    sites = [_site(scenario, number, rank) for number, rank in enumerate(step.ranks)]
    kinds, first, kind = np.unique(_kinds(graph, len(sites)), return_index=True, return_inverse=True)
    table: list[Route] = []
    row, latency = np.full(len(kinds), -1, dtype=np.int32), np.zeros(len(kinds))
    for number, task in enumerate(first.tolist()):
        receiver = int(kinds[number] % (len(sites) + 1)) - 1
        operation, site = graph.operations[graph.operation[task]], sites[graph.streams[graph.stream[task]].rank]
        found = _route(operation, site, sites[receiver] if receiver >= 0 else site, links)
        if found is not None:
            row[number], latency[number] = len(table), found[1]
            table.append(found[0])
    return make_fluid(graph.duration, latency[kind], row[kind], table, links.rows)


def _kinds(graph: TaskGraph, ranks: int) -> NDArray[np.int64]:
    """A number for each task that is the same for tasks of one operation, rank and receiving rank."""
    rank = np.array([stream.rank for stream in graph.streams], dtype=np.int64)[graph.stream]
    sends = np.array([operation.group == "pp" for operation in graph.operations], dtype=bool)
    edges = np.flatnonzero(sends[graph.operation[graph.predecessor]])
    target = np.searchsorted(graph.predecessor_start, edges, side="right") - 1
    receiver = np.full(len(graph), -1, dtype=np.int64)
    source = graph.predecessor[edges]
    away = rank[source] != rank[target]
    receiver[source[away][::-1]] = rank[target[away][::-1]]  # of several, the first
    return (graph.operation * np.int64(ranks) + rank) * (ranks + 1) + receiver + 1


def _site(scenario: Scenario, number: int, rank: RankClass) -> _Site:
    cluster, stage = scenario.cluster, scenario.plan.stages[rank.stage]
    own = slice(rank.first_rank, rank.first_rank + rank.count)
    group = int(domain_of_devices(cluster)[1][rank.first_rank])
    node = node_of_devices(cluster)[own]
    before = sum(one.count for one in cluster.groups[:group])
    nodes, leaves = _counts(node), _counts((node - before) // LEAF_NODES)
    sizes = {leaf: min(LEAF_NODES, cluster.groups[group].count - leaf * LEAF_NODES) for leaf, _ in leaves}
    moe = scenario.model.moe is not None
    shard = shard_of(stage, scenario.plan, scenario.training, scenario.routing)
    operators = one_piece(moe_layer(scenario.model, shard), pieces_of(scenario.plan, stage)) if moe else []
    return _Site(
        number=number,
        devices=rank.count,
        stage_devices=stage.devices,
        node=cluster.groups[group].node,
        fabric=cluster.fabric,
        cross=cluster.cross_group,
        plan=scenario.plan,
        cost=StageCost(scenario, rank.stage, group),
        exchanges=_exchanges(operators),
        nodes=nodes,
        leaves=tuple((f"leaf {group}.{leaf}", count, sizes[leaf]) for leaf, count in leaves),
    )


def _counts(places: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """The first, the second and the last place with how many devices of a class it holds: those between are alike."""
    found, counts = np.unique(places, return_counts=True)
    chosen = sorted({0, min(1, len(found) - 1), len(found) - 1})
    return tuple((int(found[one]), int(counts[one])) for one in chosen)


def _exchanges(operators: Sequence[Operator]) -> dict[tuple[str, bool], TokenExchange]:
    """Dispatch and combine by name, forward and backward."""
    both = [(one, False) for one in operators]
    both += [(gradient, True) for one in operators for gradient in backward(one)]
    return {(one.name, late): one.work for one, late in both if isinstance(one.work, TokenExchange)}


# ---------------------------------------------------------------- routes


def _route(operation: Operation, site: _Site, receiver: _Site, links: _Links) -> tuple[Route, float] | None:
    """The route of an operation and its latency [s]; None if it shares nothing."""
    if operation.category == "host" or operation.name == HOST_UPDATE:
        return None
    device, memory, multiprocessors = site.cost.device, _memory(site, links), _multiprocessors(site, links)
    if operation.category in MEMORY_BOUND:
        return Route({memory: links.rows[memory][1]}, 1.0, priority=COMPUTE), 0.0
    if not operation.group:
        return Route({multiprocessors: float(device.sm_count)}, 1.0, priority=COMPUTE), 0.0
    known = site.exchanges.get((operation.name, operation.phase == "backward"))
    work = known or _collective(operation)
    shape = site.cost.shapes[operation.group]
    near, far = wire_bytes(work, shape)
    seconds, latency = _seconds(work, site.cost), _seconds(_empty(work), site.cost)
    if near + far <= 0.0 or seconds <= latency:
        return None
    transfer = operation.category == "send_recv"
    parts = _scale_up(site, receiver, links, near) + _network(site, receiver, links, far, shape)
    parts += [(memory, near + far), (_memory(receiver, links), (near + far) * _fan(site, receiver, transfer=transfer))]
    use: Amounts = {}
    for link, amount in parts:
        if amount > 0.0:
            use[link] = use.get(link, 0.0) + amount / (seconds - latency)
    use = {link: min(rate, links.rows[link][1]) for link, rate in use.items()}
    channels = held_multiprocessors(work, shape, site.plan, site.node)
    sides = {multiprocessors, _multiprocessors(receiver, links)}
    return Route(use, 1.0, dict.fromkeys(sorted(sides), channels) if channels else {}), latency


def _collective(operation: Operation) -> Collective:
    """What an operation of a group says of itself; its category is the NCCL name."""
    kind, group = cast("CollectiveName", operation.category), cast("GroupName", operation.group)
    return Collective(kind, group, operation.bytes)


def _seconds(work: Collective | TokenExchange, cost: StageCost) -> float:
    return cost.seconds(Operator("", "", work))


def _empty(work: Collective | TokenExchange) -> Collective | TokenExchange:
    """The same exchange without contents."""
    return work._replace(bytes=_NOTHING) if isinstance(work, Collective) else work._replace(tokens=_NOTHING)


def wire_bytes(work: Collective | TokenExchange, shape: GroupShape) -> tuple[float, float]:
    """Bytes that a rank sends over its scale-up link and over the network.

    Parameters
    ----------
    work : Collective or TokenExchange
    shape : GroupShape
        Placement of the group.

    Returns
    -------
    near, far : float
        [B]

    Notes
    -----
    What the cost layer divides by bandwidths: all-reduce, all-gather and reduce-scatter of n bytes over D domains of
    p ranks send f(p) n inside and f(D) n/p outside, with f = `traffic_factor`; an all-to-all (p-1)/N n and (N-p)/N n;
    a deduplicated exchange each token once for each rank and domain that it visits (`exchange_traffic`).

    Examples
    --------
    A reduce-scatter of 16 MB over 2 domains of 8 ranks:

    >>> wire_bytes(Collective("reduce_scatter", "dp", 16e6), GroupShape(16, 8, 2))
    (14000000.0, 1000000.0)
    """
    if shape.size == 1:
        return 0.0, 0.0
    if isinstance(work, Collective):
        return _collective_bytes(work, shape)
    if work.deduplicated:
        traffic = exchange_traffic(work, shape)
        return traffic.near_bytes, traffic.far_bytes
    return _collective_bytes(Collective("all_to_all", "ep", copies_bytes(work)), shape)


def _collective_bytes(work: Collective, shape: GroupShape) -> tuple[float, float]:
    size = work.bytes
    if shape.local:
        return traffic_factor(work.collective, shape.size) * size, 0.0
    if work.collective == "send_recv":
        return 0.0, size
    if work.collective == "all_to_all":
        return size * (shape.per_domain - 1) / shape.size, size * (1.0 - shape.parallel_rails / shape.size)
    near = traffic_factor(work.collective, shape.per_domain) * size
    return near, traffic_factor(work.collective, shape.domains) * size / shape.parallel_rails


# ---------------------------------------------------------------- links


def _fan(site: _Site, receiver: _Site, *, transfer: bool = True) -> float:
    """Senders for each receiver of a transfer between stages; 1 where every rank sends and receives."""
    return site.stage_devices / receiver.stage_devices if transfer else 1.0


def _memory(site: _Site, links: _Links) -> int:
    """Memory bandwidth that the best kernels reach."""
    best = max((fit.memory.value for fit in site.cost.device.efficiency.memory_bound), default=1.0)
    return links.number(f"memory {site.number}", site.cost.device.bandwidth * best)


def _multiprocessors(site: _Site, links: _Links) -> int:
    return links.number(f"multiprocessors {site.number}", float(site.cost.device.sm_count))


def _scale_up(site: _Site, receiver: _Site, links: _Links, near: float) -> list[tuple[int, float]]:
    """Traffic inside a scale-up domain: out of one device, into another, and over the bridge where hosts switch."""
    if near <= 0.0:
        return []
    network = site.cost.network
    hosted = network.topology == "host"
    width = network.scale_up_bandwidth * (1.0 if hosted else network.scale_up_achievable)
    parts = [
        (links.number(f"scale-up {site.number} out", width), near),
        (links.number(f"scale-up {receiver.number} in", width), near * _fan(site, receiver)),
    ]
    return parts + (_bridge(site, links, near) if hosted else [])


def _bridge(site: _Site, links: _Links, amount: float) -> list[tuple[int, float]]:
    """The host bridge of each node: all its accelerators together."""
    network, accelerators = site.cost.network, site.node.accelerators
    wire = network.local_wire(accelerators) if network.topology == "host" else network.host
    width = accelerators * wire.bandwidth
    return [(links.number(f"bridge {node}", width), amount * count) for node, count in site.nodes]


def _network(site: _Site, receiver: _Site, links: _Links, far: float, shape: GroupShape) -> list[tuple[int, float]]:
    """Traffic between domains: over the host's bridge, or ports, uplinks and what joins unlike groups."""
    if far <= 0.0:
        return []
    into = far * _fan(site, receiver)
    if shape.one_node:
        wire = site.cost.network.host.bandwidth
        ends = [(links.number(f"pcie {site.number} out", wire), far)]
        ends += [(links.number(f"pcie {receiver.number} in", wire), into)]
        return ends + _bridge(site, links, far)
    parts = _fabric(site, receiver, links, site.fabric, "port", (far, into))
    if shape.unlike and site.cross is not None:
        parts += _fabric(site, receiver, links, site.cross, "cross", (far, into))
    if site.cost.network.topology == "host":
        parts += _bridge(site, links, far)
    return parts


def _fabric(
    site: _Site, receiver: _Site, links: _Links, fabric: Fabric, name: str, amounts: tuple[float, float]
) -> list[tuple[int, float]]:
    """Out of a port and up, down and into a port."""
    parts = []
    for end, way, amount in ((site, "out", amounts[0]), (receiver, "in", amounts[1])):
        port = _port(end.node, fabric)
        parts.append((links.number(f"{name} {end.number} {way}", port), amount))
        if fabric.oversubscription > 1.0:
            for leaf, devices, nodes in end.leaves:
                width = nodes * end.node.accelerators * port / fabric.oversubscription
                parts.append((links.number(f"{name} {leaf} {way}", width), amount * devices))
    return parts


def _port(node: Node, fabric: Fabric) -> float:
    """An accelerator's share of the ports of its node [B/s], not oversubscribed."""
    return node.network_ports.value / node.accelerators * fabric.port_bandwidth * fabric.link.achievable.value
