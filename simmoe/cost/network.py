"""The wires around one accelerator as plain numbers: its scale-up link, its share of the ports, the host path."""

import math
from typing import NamedTuple

from simmoe.cost.groups import GroupShape
from simmoe.errors import SpecError
from simmoe.specs.hardware import Cluster, CollectiveFit, Fabric, NodeGroup


class Wire(NamedTuple):
    """Achievable bandwidth of one rank and direction [B/s] and latency of one message [s]."""

    bandwidth: float
    latency: float


class Fit(NamedTuple):
    """A `simmoe.specs.hardware.CollectiveFit` as plain numbers [s, B/s, s/sqrt(B)]."""

    collective: str
    ranks: int
    latency: float
    bus_bandwidth: float
    sqrt_term: float
    peak: float


class Network(NamedTuple):
    """What the collective times need of a node and its fabric.

    Attributes
    ----------
    scale_up_bandwidth : float
        Nominal, one accelerator and direction [B/s].
    scale_up_achievable : float
        Fraction of it that large messages reach [1].
    scale_up_latency : float
        Of one message [s].
    topology : str
        ``switch``, ``mesh``, ``pairs`` or ``host``.
    domain : int
        Accelerators of a full scale-up domain.
    fits : tuple of Fit
        Measured collectives of the scale-up link.
    port : Wire
        An accelerator's share of the node's network ports, achievable.
    host : Wire
        Between scale-up domains of one node, over PCIe and the host bridge.
    """

    scale_up_bandwidth: float
    scale_up_achievable: float
    scale_up_latency: float
    topology: str
    domain: int
    fits: tuple[Fit, ...]
    port: Wire
    host: Wire

    def local_wire(self, ranks: int) -> Wire:
        """The scale-up link as `ranks` of the domain see it: in a mesh only the links between them carry traffic."""
        usable = (ranks - 1) / (self.domain - 1) if self.topology == "mesh" and ranks < self.domain else 1.0
        return Wire(self.scale_up_bandwidth * self.scale_up_achievable * usable, self.scale_up_latency)

    def outer(self, shape: GroupShape) -> Wire:
        """The wire between the scale-up domains of a group.

        Raises
        ------
        SpecError
            If the node has no network port.
        """
        wire = self.host if shape.one_node else self.port
        if wire.bandwidth <= 0.0:
            raise SpecError(
                [
                    "cluster: a parallel group spans nodes that have no network ports, set network_ports of the "
                    "node or keep the group inside a node"
                ]
            )
        return wire


def network_of(cluster: Cluster, group: int, *, unlike: bool = False) -> Network:
    """The wires of the accelerators of one node group.

    Parameters
    ----------
    cluster : Cluster
        Gives the fabric.
    group : int
        Index into `cluster.groups`.
    unlike : bool
        For groups of ranks that join several node groups: the slowest part of all node groups, and the cross-group
        fabric if there is one.

    Returns
    -------
    Network

    Notes
    -----
    An accelerator's port bandwidth is ports / accelerators x port x achievable / oversubscription. The whole
    oversubscription is charged to every message between domains: which ranks stay below one leaf switch is not
    known here, so this is an upper bound for groups that do.
    """
    if not unlike:
        return _network(cluster.groups[group], cluster.fabric)
    fabric = cluster.cross_group or cluster.fabric
    networks = [_network(one, fabric) for one in cluster.groups]
    slowest = min(networks, key=lambda one: one.scale_up_bandwidth * one.scale_up_achievable)
    port = min((one.port for one in networks), key=lambda wire: wire.bandwidth)
    host = min((one.host for one in networks), key=lambda wire: wire.bandwidth)
    return slowest._replace(port=port, host=host)


def _network(group: NodeGroup, fabric: Fabric) -> Network:
    node = group.node
    link, scale_up = node.scale_up.link, node.scale_up
    share = node.network_ports.value / node.accelerators
    port = share * fabric.port_bandwidth * fabric.link.achievable.value / fabric.oversubscription
    return Network(
        scale_up_bandwidth=link.bandwidth.value,
        scale_up_achievable=link.achievable.value,
        scale_up_latency=link.latency.value,
        topology=scale_up.topology,
        domain=scale_up.domain,
        fits=tuple(_plain(fit) for fit in link.collectives),
        port=Wire(port, fabric.port_latency),
        host=Wire(node.pcie.bandwidth.value * node.pcie.achievable.value, node.pcie.latency.value),
    )


def _plain(fit: CollectiveFit) -> Fit:
    return Fit(
        collective=fit.collective,
        ranks=fit.ranks,
        latency=fit.latency.value,
        bus_bandwidth=fit.bus_bandwidth.value,
        sqrt_term=fit.sqrt_term.value if fit.sqrt_term is not None else 0.0,
        peak=fit.peak_bus_bandwidth.value if fit.peak_bus_bandwidth is not None else math.inf,
    )


def fit_for(network: Network, collective: str, ranks: int) -> Fit | None:
    """The fit of a collective for a number of ranks, between or beyond those measured.

    Parameters
    ----------
    network : Network
        Holds the measured fits.
    collective : str
        Which collective.
    ranks : int
        Of the group, at least 2.

    Returns
    -------
    Fit or None
        None if the collective was not measured on this link.

    Notes
    -----
    Between two measured numbers of ranks every parameter is interpolated over log2(ranks). Above the largest the
    bus bandwidth stays (which is what a switch does) and the latency grows with log2(ranks); below the smallest
    both stay, save that a mesh of direct links loses bandwidth as (ranks - 1). Both are extrapolations.

    Examples
    --------
    Half way between 2 and 8 ranks, on the log scale, is 4.

    >>> fits = (Fit("all_gather", 2, 10e-6, 100e9, 0.0, math.inf), Fit("all_gather", 8, 20e-6, 300e9, 0.0, math.inf))
    >>> network = Network(450e9, 0.8, 0.0, "switch", 8, fits, Wire(50e9, 0.0), Wire(20e9, 0.0))
    >>> fit = fit_for(network, "all_gather", 4)
    >>> round(fit.latency * 1e6), round(fit.bus_bandwidth / 1e9)
    (15, 200)
    """
    known = sorted((fit for fit in network.fits if fit.collective == collective), key=lambda fit: fit.ranks)
    if not known:
        return None
    above = next((fit for fit in known if fit.ranks >= ranks), None)
    below = next((fit for fit in reversed(known) if fit.ranks <= ranks), None)
    if above is None:
        last = known[-1]
        growth = math.log2(ranks) / math.log2(last.ranks)
        return last._replace(ranks=ranks, latency=last.latency * growth)
    if below is None:
        first = known[0]
        share = (ranks - 1) / (first.ranks - 1) if network.topology == "mesh" else 1.0
        return first._replace(ranks=ranks, bus_bandwidth=first.bus_bandwidth * share, peak=first.peak * share)
    return below if below.ranks == ranks else _between(below, above, ranks)


def _between(below: Fit, above: Fit, ranks: int) -> Fit:
    weight = math.log2(ranks / below.ranks) / math.log2(above.ranks / below.ranks)

    def mix(low: float, high: float) -> float:
        return low if low == high else (1.0 - weight) * low + weight * high

    return Fit(
        collective=below.collective,
        ranks=ranks,
        latency=mix(below.latency, above.latency),
        bus_bandwidth=mix(below.bus_bandwidth, above.bus_bandwidth),
        sqrt_term=mix(below.sqrt_term, above.sqrt_term),
        peak=mix(below.peak, above.peak),
    )
