"""Which links, and which measurements on them, the collectives of a run were priced with."""

from collections.abc import Iterator
from typing import NamedTuple

from simmoe.cost.groups import GroupShape
from simmoe.cost.model import StageCost
from simmoe.cost.network import STANDS_FOR
from simmoe.report.metrics import COLLECTIVES
from simmoe.report.result import Result
from simmoe.specs.base import Quantity
from simmoe.specs.hardware import CollectiveFit, ExchangeFit, Fabric, Link, Node
from simmoe.specs.numbers import Number, label, numbers_of
from simmoe.specs.scenario import Scenario

LinkFit = CollectiveFit | ExchangeFit
NOMINAL = frozenset({"bandwidth", "latency", "achievable"})
# NCCL builds an all-reduce over several domains from these inside each of them.
_PARTS = {"all_reduce": ("all_reduce", "reduce_scatter", "all_gather")}
# Groups of what stands on the attention devices of a zebra stage alone.
_OF_ATTENTION = ("tp", "cp", "dp", "pp")
# Dispatchers that are no NCCL all-to-all.
_LIBRARIES = ("deepep", "hybridep", "uccl")


class Wires(NamedTuple):
    """What the collectives of a run travel over.

    Attributes
    ----------
    nodes : tuple of Node
        Those whose network ports are used.
    links : dict
        Id -> link, of every link used.
    nominal : dict
        Id of a link -> which of its own `NOMINAL` numbers a time was computed from.
    fits : tuple of (Link, CollectiveFit or ExchangeFit)
        The measured collectives, dispatches and combines used.
    replaced : dict
        Id of a link -> its numbers that the scenario overrides.
    spreads : dict
        Collective -> the bandwidth numbers of the wires it used, the strongest doubt among them rules.
    """

    nodes: tuple[Node, ...]
    links: dict[str, Link]
    nominal: dict[str, frozenset[str]]
    fits: tuple[tuple[Link, LinkFit], ...]
    replaced: dict[str, frozenset[str]]
    spreads: dict[str, tuple[Quantity, ...]]

    def numbers(self) -> Iterator[Number]:
        """Every number of nodes and links that was used."""
        for node in self.nodes:
            yield Number(f"node {node.id}", "network_ports", node.network_ports)
        for id, link in self.links.items():
            names = self.nominal.get(id, frozenset()) - self.replaced.get(id, frozenset())
            yield from (number for number in numbers_of(link, f"link {id}") if number.name in names)
        for link, fit in self.fits:
            table = "collectives" if isinstance(fit, CollectiveFit) else "exchanges"
            yield from numbers_of(fit, f"link {link.id}", f"{table}{label(fit)}.")


class _Hop(NamedTuple):
    """What one part of a journey was priced with: numbers of the link itself, and fits."""

    nominal: frozenset[str] = frozenset()
    fits: tuple[LinkFit, ...] = ()

    def spreads(self, link: Link) -> list[Quantity]:
        found: list[Quantity] = []
        for fit in self.fits:
            found += [fit.bus_bandwidth] if isinstance(fit, CollectiveFit) else [fit.dispatch, fit.combine]
        return found + ([link.achievable] if "achievable" in self.nominal or not found else [])


def used_wires(result: Result) -> Wires:
    """The links and fits behind the collectives of a run."""
    scenario = result.scenario
    dispatcher = scenario.plan.dispatcher
    nodes: dict[str, Node] = {}
    links: dict[str, Link] = {}
    nominal: dict[str, frozenset[str]] = {}
    fits: dict[str, tuple[Link, LinkFit]] = {}
    spreads: dict[str, list[Quantity]] = {}
    for collective, kind, shape, node, fabric in _journeys(result):
        library = dispatcher if kind == "ep" and dispatcher in _LIBRARIES else ""
        for link, hop in _hops(collective, shape, node, fabric, library):
            links[link.id] = link
            nominal[link.id] = nominal.get(link.id, frozenset()) | hop.nominal
            fits |= {f"{link.id} {type(fit).__name__} {label(fit)}": (link, fit) for fit in hop.fits}
            spreads.setdefault(collective, []).extend(hop.spreads(link))
        if shape.domains > 1 and not shape.one_node:
            nodes[node.id] = node
    return Wires(
        nodes=tuple(nodes.values()),
        links=links,
        nominal=nominal,
        fits=tuple(fits.values()),
        replaced=_replaced(scenario),
        spreads={collective: tuple(found) for collective, found in spreads.items()},
    )


def _journeys(result: Result) -> Iterator[tuple[str, str, GroupShape, Node, Fabric]]:
    """Every collective of every rank class: its name, its kind of group, where that stands, node and fabric."""
    cluster = result.scenario.cluster
    group_of_device = [index for index, group in enumerate(cluster.groups) for _ in range(group.devices)]
    operations = result.timeline.graph.operations
    pairs = {(o.category, o.group) for o in operations if o.category in COLLECTIVES}
    counts = ("all_to_all", "ep") in pairs and result.scenario.plan.dispatcher not in _LIBRARIES
    for rank in result.ranks:
        group = group_of_device[rank.first_rank]
        cost = StageCost(result.scenario, rank.stage, group, role=int(rank.role == "experts"))
        gathered = {("all_gather", "ep")} if counts and not rank.role else set()  # of the counts, before a dispatch
        for collective, kind in sorted(pairs | gathered):
            shape = cost.between_sides if kind == "ep" and cost.between_sides is not None else cost.shapes[kind]
            if shape.size > 1 and not (rank.role == "experts" and kind in _OF_ATTENTION):
                cross = cluster.cross_group if shape.unlike else None
                yield collective, kind, shape, cluster.groups[group].node, cross or cluster.fabric


def _hops(collective: str, shape: GroupShape, node: Node, fabric: Fabric, library: str) -> Iterator[tuple[Link, _Hop]]:
    """The parts of one journey, as `simmoe.cost.collectives` and `simmoe.cost.exchange` price them."""
    if shape.per_domain > 1:
        link = node.scale_up.link
        yield link, _exchange(link, library) if library else _inside(link, collective, shape)
    if shape.domains > 1:
        link = node.pcie if shape.one_node else fabric.link
        yield link, _across(link, collective, shape, library)


def _exchange(link: Link, library: str) -> _Hop:
    """Dispatch and combine over a scale-up link, by the library itself or the one that stands for it."""
    fit = _exchange_fit(link, library)
    return _Hop(NOMINAL) if fit is None else _Hop(frozenset({"bandwidth"}), (fit,))


def _exchange_fit(link: Link, library: str) -> ExchangeFit | None:
    names = (library, STANDS_FOR.get(library, "deepep"))
    return next((fit for name in names for fit in link.exchanges if fit.library == name), None)


def _inside(link: Link, collective: str, shape: GroupShape) -> _Hop:
    """A collective inside a scale-up domain."""
    names = (collective,) if shape.local else _PARTS.get(collective, (collective,))
    nominal: frozenset[str] = frozenset()
    fits: list[LinkFit] = []
    for name in names:
        chosen = _chosen_fits(link, name, shape.per_domain)
        if not chosen:
            nominal = NOMINAL
            if name in {"all_gather", "reduce_scatter"}:  # never slower than an all-reduce, which may be measured
                chosen = _chosen_fits(link, "all_reduce", shape.per_domain)
        fits += [fit for fit in chosen if fit not in fits]
    return _Hop(nominal, tuple(fits))


def _across(link: Link, collective: str, shape: GroupShape, library: str) -> _Hop:
    """A collective between scale-up domains: of one node over PCIe, or over the network."""
    if library:
        fit = None if shape.one_node else _exchange_fit(link, library)
        return _Hop(frozenset({"bandwidth", "achievable"})) if fit is None else _Hop(frozenset({"bandwidth"}), (fit,))
    chosen = [] if shape.one_node else _chosen_fits(link, collective, shape.domains)
    if chosen:
        return _Hop(frozenset() if collective == "all_to_all" else frozenset({"latency"}), tuple(chosen))
    return _Hop(NOMINAL)


def _chosen_fits(link: Link, collective: str, ranks: int) -> list[CollectiveFit]:
    """The fits at, or on both sides of, a number of ranks or domains."""
    rows = sorted((fit for fit in link.collectives if fit.collective == collective), key=lambda fit: fit.ranks)
    below = [fit for fit in rows if fit.ranks <= ranks][-1:]
    above = [fit for fit in rows if fit.ranks >= ranks][:1]
    return below + [fit for fit in above if fit not in below]


def _replaced(scenario: Scenario) -> dict[str, frozenset[str]]:
    """The numbers of a fabric's link that the scenario gives itself."""
    fabrics = [scenario.cluster.fabric, scenario.cluster.cross_group]
    return {
        fabric.link.id: frozenset(name for name in ("bandwidth", "latency") if getattr(fabric, name) is not None)
        for fabric in fabrics
        if fabric is not None
    }
