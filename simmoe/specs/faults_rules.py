"""What must hold for the faults of a cluster."""

from collections.abc import Callable

from simmoe.specs.faults import Fault
from simmoe.specs.hardware import Cluster
from simmoe.specs.rules import rule


def _each(check: Callable[[Fault, Cluster], str | None]) -> Callable[[Cluster], str | None]:
    """Register a check of one fault as a rule of clusters; the first fault that is wrong is named."""

    def of_cluster(cluster: Cluster) -> str | None:
        for number, fault in enumerate(cluster.faults):
            sentence = check(fault, cluster)
            if sentence is not None:
                return f"fault {number} {sentence}"
        return None

    of_cluster.__name__ = check.__name__
    return rule("cluster", "faults")(of_cluster)


@_each
def fault_has_one_place(fault: Fault, cluster: Cluster) -> str | None:
    """A fault is of a device or of a node."""
    del cluster
    given = (fault.device is not None) + (fault.node is not None)
    if given == 1:
        return None
    return "names neither device nor node, write one" if not given else "names a device and a node, remove one"


@_each
def faulty_device_exists(fault: Fault, cluster: Cluster) -> str | None:
    """A device counts from 0."""
    if fault.device is None or fault.device < cluster.devices:
        return None
    return f"is of device {fault.device}, the last one is {cluster.devices - 1}, correct it"


@_each
def faulty_node_exists(fault: Fault, cluster: Cluster) -> str | None:
    """A node counts from 0."""
    if fault.node is None or fault.node < cluster.nodes:
        return None
    return f"is of node {fault.node}, the last one is {cluster.nodes - 1}, correct it"


@_each
def fault_changes_something(fault: Fault, cluster: Cluster) -> str | None:
    """A fault without consequence is a slip."""
    del cluster
    if fault.slowdown != 1 or fault.network != 1 or fault.failed:
        return None
    return "changes nothing, write slowdown, network or failed: true"


@_each
def ports_belong_to_nodes(fault: Fault, cluster: Cluster) -> str | None:
    """Network ports and failures are of whole nodes."""
    del cluster
    if fault.device is None or (fault.network == 1 and not fault.failed):
        return None
    return "gives network or failed for a device, name its node"


@_each
def lost_nodes_are_not_slow(fault: Fault, cluster: Cluster) -> str | None:
    """A node that has failed has no speed."""
    del cluster
    if not fault.failed or (fault.slowdown == 1 and fault.network == 1):
        return None
    return "is a failure, which leaves nothing to slow down, remove slowdown and network"
