"""The wires around one accelerator as plain numbers: its scale-up link, its share of the ports, the host path."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from simmoe.cost.groups import GroupShape
from simmoe.errors import SpecError
from simmoe.specs.base import Quantity
from simmoe.specs.hardware import Cluster, CollectiveFit, ExchangeFit, Fabric, Link, NodeGroup


class Wire(NamedTuple):
    """Achievable bandwidth of one rank and direction [B/s] and latency of one message [s]."""

    bandwidth: float
    latency: float


class Small(NamedTuple):
    """A `simmoe.specs.hardware.SmallMessages` as plain numbers [B, s, B/s, s/sqrt(B)]."""

    below: float
    latency: float
    bus_bandwidth: float
    sqrt_term: float


class Fit(NamedTuple):
    """A `simmoe.specs.hardware.CollectiveFit` as plain numbers [s, B/s, s/sqrt(B)]."""

    collective: str
    ranks: int
    latency: float
    bus_bandwidth: float
    sqrt_term: float
    peak: float
    small: Small | None = None


class PortFit(NamedTuple):
    """A collective between scale-up domains.

    Attributes
    ----------
    collective : str
        Which one.
    domains : int
        How many domains it was measured on.
    latency : float
        Of an empty one [s].
    share : float
        Bandwidth relative to `Network.port` [1].
    root : float
        Time for the root of the bytes over one rank's share of the ports, as messages slowly approach it [s/sqrt(B)].
    peak : float
        The largest bandwidth, relative to `Network.port` [1].
    """

    collective: str
    domains: int
    latency: float
    share: float
    root: float = 0.0
    peak: float = math.inf


class ExchangeRate(NamedTuple):
    """One way of `simmoe.specs.hardware.ExchangeFit`: bandwidth [B/s], latency [s] and time of a token copy [s]."""

    bandwidth: float
    latency: float
    message: float = 0.0


class Exchange(NamedTuple):
    """Dispatch and combine of a library over one kind of wire; on a port the bandwidth is relative to it [1].

    `forward` is the share of the rates that is left while tokens also pass to and from the network [1].
    """

    library: str
    dispatch: ExchangeRate
    combine: ExchangeRate
    forward: float = 1.0


# Libraries whose kernels another one takes over where it was not measured itself.
STANDS_FOR = {"hybridep": "deepep", "uccl": "deepep", "deepep": "hybridep"}


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
    port_fits : tuple of PortFit
        Measured collectives between domains.
    exchanges, port_exchanges : tuple of Exchange
        Measured dispatch and combine on the scale-up link and on the ports.
    """

    scale_up_bandwidth: float
    scale_up_achievable: float
    scale_up_latency: float
    topology: str
    domain: int
    fits: tuple[Fit, ...]
    port: Wire
    host: Wire
    port_fits: tuple[PortFit, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    port_exchanges: tuple[Exchange, ...] = ()

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

    def scale_up_exchange(self, library: str, shape: GroupShape, *, combine: bool) -> ExchangeRate:
        """What a library reaches on the scale-up link; unmeasured, what large messages reach and one latency."""
        known = _exchange(self.exchanges, library)
        if known is None:
            return ExchangeRate(self.scale_up_bandwidth * self.scale_up_achievable, self.scale_up_latency)
        rate, kept = known.combine if combine else known.dispatch, 1.0 if shape.local else known.forward
        return rate._replace(bandwidth=rate.bandwidth * kept, message=rate.message / kept)

    def outer_exchange(self, library: str, shape: GroupShape, *, combine: bool) -> ExchangeRate:
        """What a library reaches between the domains of a group; unmeasured, the wire itself.

        Raises
        ------
        SpecError
            If the node has no network port.
        """
        wire = self.outer(shape)
        known = None if shape.one_node else _exchange(self.port_exchanges, library)
        if known is None:
            return ExchangeRate(wire.bandwidth, 0.0)
        rate = known.combine if combine else known.dispatch
        return rate._replace(bandwidth=rate.bandwidth * wire.bandwidth)


def _exchange(known: tuple[Exchange, ...], library: str) -> Exchange | None:
    """What was measured of a library, or of the one that stands for it."""
    for name in (library, STANDS_FOR.get(library, "deepep")):
        for exchange in known:
            if exchange.library == name:
                return exchange
    return None


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
    return slowest_network(cluster, range(len(cluster.groups)))


def slowest_network(cluster: Cluster, groups: Iterable[int]) -> Network:
    """The slowest part of some node groups, on the fabric that joins unlike ones."""
    fabric = cluster.cross_group or cluster.fabric
    networks = [_network(cluster.groups[group], fabric) for group in groups]
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
        port_fits=tuple(_port_fit(fit, fabric.link, share) for fit in fabric.link.collectives),
        exchanges=tuple(_plain_exchange(one, link.bandwidth.value) for one in link.exchanges),
        port_exchanges=tuple(_plain_exchange(one, 1 / fabric.link.achievable.value) for one in fabric.link.exchanges),
    )


def _plain(fit: CollectiveFit) -> Fit:
    small = fit.small
    return Fit(
        collective=fit.collective,
        ranks=fit.ranks,
        latency=fit.latency.value,
        bus_bandwidth=fit.bus_bandwidth.value,
        sqrt_term=fit.sqrt_term.value if fit.sqrt_term is not None else 0.0,
        peak=fit.peak_bus_bandwidth.value if fit.peak_bus_bandwidth is not None else math.inf,
        small=None
        if small is None
        else Small(
            small.below.value,
            small.latency.value,
            small.bus_bandwidth.value,
            small.sqrt_term.value if small.sqrt_term is not None else 0.0,
        ),
    )


def _port_fit(fit: CollectiveFit, link: Link, ports: float) -> PortFit:
    """A fit of one port for a rank that has `ports` of them: n/B + c sqrt(n) of the port, n what it carries."""
    reached = link.bandwidth.value * link.achievable.value
    return PortFit(
        collective=fit.collective,
        domains=fit.ranks,
        latency=fit.latency.value,
        share=fit.bus_bandwidth.value / reached,
        root=fit.sqrt_term.value / math.sqrt(ports) if fit.sqrt_term is not None else 0.0,
        peak=fit.peak_bus_bandwidth.value / reached if fit.peak_bus_bandwidth is not None else math.inf,
    )


def _plain_exchange(fit: ExchangeFit, scale: float) -> Exchange:
    """The two ways of a fit, with bandwidths as fractions of the link times `scale`."""

    def rate(share: Quantity, latency: Quantity, message: Quantity | None) -> ExchangeRate:
        return ExchangeRate(share.value * scale, latency.value, message.value if message is not None else 0.0)

    return Exchange(
        fit.library,
        rate(fit.dispatch, fit.dispatch_latency, fit.dispatch_message),
        rate(fit.combine, fit.combine_latency, fit.combine_message),
        fit.forward.value if fit.forward is not None else 1.0,
    )


def fits_for(network: Network, collective: str, ranks: int) -> tuple[tuple[float, Fit], ...]:
    """The fits of a collective for a number of ranks, between or beyond those measured.

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
    tuple of (float, Fit)
        Weights of sum 1, and the fits whose times they are of; none if the collective was not measured on this link.

    Notes
    -----
    Between two measured numbers of ranks the times are interpolated over log2(ranks). Above the largest the
    bus bandwidth stays (which is what a switch does) and the latency grows with log2(ranks); below the smallest
    both stay, save that a mesh of direct links loses bandwidth as (ranks - 1). Both are extrapolations.

    Examples
    --------
    Half way between 2 and 8 ranks, on the log scale, is 4.

    >>> fits = (Fit("all_gather", 2, 10e-6, 100e9, 0.0, math.inf), Fit("all_gather", 8, 20e-6, 300e9, 0.0, math.inf))
    >>> network = Network(450e9, 0.8, 0.0, "switch", 8, fits, Wire(50e9, 0.0), Wire(20e9, 0.0))
    >>> [(weight, round(fit.latency * 1e6)) for weight, fit in fits_for(network, "all_gather", 4)]
    [(0.5, 10), (0.5, 20)]
    """
    known = sorted((fit for fit in network.fits if fit.collective == collective), key=lambda fit: fit.ranks)
    if not known:
        return ()
    first, last = known[0], known[-1]
    if ranks > last.ranks:
        return ((1.0, _more_ranks(last, ranks)),)
    if ranks < first.ranks:
        share = (ranks - 1) / (first.ranks - 1) if network.topology == "mesh" else 1.0
        return ((1.0, first._replace(ranks=ranks, bus_bandwidth=first.bus_bandwidth * share, peak=first.peak * share)),)
    above = next(fit for fit in known if fit.ranks >= ranks)
    if above.ranks == ranks:
        return ((1.0, above),)
    below = next(fit for fit in reversed(known) if fit.ranks < ranks)
    weight = math.log2(ranks / below.ranks) / math.log2(above.ranks / below.ranks)
    return (1.0 - weight, below._replace(ranks=ranks)), (weight, above._replace(ranks=ranks))


def _more_ranks(fit: Fit, ranks: int) -> Fit:
    """A fit for more ranks: its latencies grow with the steps of a tree."""
    growth = math.log2(ranks) / math.log2(fit.ranks)
    small = None if fit.small is None else fit.small._replace(latency=fit.small.latency * growth)
    return fit._replace(ranks=ranks, latency=fit.latency * growth, small=small)


def port_fit_for(network: Network, collective: str, domains: int) -> PortFit | None:
    """The fit of a collective between domains for a number of them, between or beyond those measured.

    Parameters
    ----------
    network : Network
        Holds the measured fits of its ports.
    collective : str
        Which collective.
    domains : int
        At least 2.

    Returns
    -------
    PortFit or None
        None if the collective was not measured on this port.

    Notes
    -----
    Between two measured numbers of domains every parameter is interpolated over log2(domains), below and above they
    stay.

    Examples
    --------
    >>> fits = (PortFit("all_to_all", 2, 100e-6, 1.0), PortFit("all_to_all", 8, 200e-6, 0.8))
    >>> network = Network(450e9, 0.8, 0.0, "switch", 8, (), Wire(50e9, 0.0), Wire(20e9, 0.0), fits)
    >>> fit = port_fit_for(network, "all_to_all", 4)
    >>> round(fit.latency * 1e6), fit.share
    (150, 0.9)
    """
    known = sorted((fit for fit in network.port_fits if fit.collective == collective), key=lambda fit: fit.domains)
    if not known:
        return None
    if domains >= known[-1].domains:
        return known[-1]._replace(domains=domains)
    if domains <= known[0].domains:
        return known[0]._replace(domains=domains)
    above = next(fit for fit in known if fit.domains > domains)
    below = next(fit for fit in reversed(known) if fit.domains <= domains)
    weight = math.log2(domains / below.domains) / math.log2(above.domains / below.domains)

    def mix(low: float, high: float) -> float:
        return low if low == high else (1.0 - weight) * low + weight * high

    return PortFit(
        collective=collective,
        domains=domains,
        latency=mix(below.latency, above.latency),
        share=mix(below.share, above.share),
        root=mix(below.root, above.root),
        peak=mix(below.peak, above.peak),
    )
