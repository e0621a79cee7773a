"""What must hold inside a link, a node and a cluster."""

from simmoe import units
from simmoe.specs.hardware import Cluster, Fabric, Link, Node, NodeGroup
from simmoe.specs.rules import rule

# The fastest port on the market is 1.6 Tb/s, announced for 2026; a figure above it is bits read as bytes.
FASTEST_PORT = 200e9
LARGEST_CLUSTER = 2**20


def _too_fast(bandwidth: float) -> str | None:
    """The sentence for a network port that is faster than any."""
    if bandwidth <= FASTEST_PORT:
        return None
    digits = f"{bandwidth / 1e9:g}"
    most = units.format_si(FASTEST_PORT, "B/s")
    return (
        f"{units.format_si(bandwidth, 'B/s')} is more than any network port ({most}), "
        f"did you mean {digits} Gb/s ({bandwidth / 8e9:g} GB/s)?"
    )


@rule("link", "bandwidth")
def network_port_is_possible(link: Link) -> str | None:
    """A network port is at most as fast as the fastest one sold."""
    return _too_fast(link.bandwidth.value) if link.kind == "network" else None


@rule("link", "achievable")
def achievable_is_a_fraction(link: Link) -> str | None:
    """No link carries more than its nominal bandwidth."""
    value = link.achievable.value
    return None if 0 < value <= 1 else f"must be above 0 and at most 1 (got {value:g}), correct it"


@rule("node", "scale_up.domain")
def domain_fits_node(node: Node) -> str | None:
    """A scale-up domain is a whole part of a node, or whole nodes."""
    domain, devices = node.scale_up.domain, node.accelerators
    if domain % devices == 0 or devices % domain == 0:
        return None
    return f"a domain of {domain} does not match a node of {devices} accelerators, make one divide the other"


@rule("node", "pcie")
def pcie_is_pcie(node: Node) -> str | None:
    """The host interface is a PCIe link or better (NVLink-C2C)."""
    if node.pcie.kind != "network":
        return None
    return f"{node.pcie.id} is a network link, name a link of kind pcie"


@rule("node", "scale_up.link")
def scale_up_is_no_network(node: Node) -> str | None:
    """Accelerators of a node reach each other by a scale-up or PCIe link."""
    if node.scale_up.link.kind != "network":
        return None
    return f"{node.scale_up.link.id} is a network link, name a link of kind scale_up or pcie"


@rule("node", "network_ports")
def node_has_ports(node: Node) -> str | None:
    """A node has a positive number of network ports (a fraction where hosts share one)."""
    ports = node.network_ports.value
    return None if ports > 0 else f"must be greater than 0 (got {ports:g}), write a positive number"


@rule("cluster", "groups")
def cluster_is_countable(cluster: Cluster) -> str | None:
    """A million accelerators is a slip."""
    if cluster.devices <= LARGEST_CLUSTER:
        return None
    return f"{cluster.devices} accelerators are more than {LARGEST_CLUSTER}, write smaller counts"


@rule("group", "nodes_per_domain")
def nodes_fit_domain(group: NodeGroup) -> str | None:
    """A job does not put more nodes into a scale-up domain than the domain holds."""
    node, wanted = group.node, group.nodes_per_domain
    fitting = max(1, node.scale_up.domain // node.accelerators)
    if wanted is None or wanted <= fitting:
        return None
    return (
        f"{wanted} nodes of {node.accelerators} accelerators do not fit into a scale-up domain of "
        f"{node.scale_up.domain}, write at most {fitting}"
    )


def _not_network(fabric: Fabric) -> str | None:
    link = fabric.link
    if link.kind == "network":
        return None
    return f"{link.id} is a {link.kind} link, name a link of kind network"


@rule("cluster", "fabric.link")
def fabric_is_network(cluster: Cluster) -> str | None:
    """Nodes are joined by a network link."""
    return _not_network(cluster.fabric)


@rule("cluster", "cross_group.link")
def cross_group_is_network(cluster: Cluster) -> str | None:
    """Groups are joined by a network link."""
    return _not_network(cluster.cross_group) if cluster.cross_group else None


@rule("cluster", "fabric.bandwidth")
def fabric_port_is_possible(cluster: Cluster) -> str | None:
    """What-if bandwidth of a port stays below the fastest port sold."""
    return _too_fast(cluster.fabric.bandwidth or 0.0)


@rule("cluster", "cross_group.bandwidth")
def cross_group_port_is_possible(cluster: Cluster) -> str | None:
    """What-if bandwidth between groups stays below the fastest port sold."""
    return _too_fast(cluster.cross_group.bandwidth or 0.0) if cluster.cross_group else None
