"""The parts of the hardware database that a scenario is made of, and scenarios with other ones in their places."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from simmoe.specs.base import Spec
from simmoe.specs.hardware import Cluster, Fabric, Link, Node
from simmoe.specs.scenario import Scenario
from simmoe.specs.software import SoftwareStack


def parts_of(scenario: Scenario) -> dict[str, Spec]:
    """Accelerators, nodes, links and the software stack, by kind and id as ``simmoe cite`` names them.

    Parameters
    ----------
    scenario : Scenario

    Returns
    -------
    dict
        ``accelerator h100-sxm5-80gb`` -> `Accelerator`, and so on; in order of appearance.
    """
    found: dict[str, Spec] = {}
    cluster = scenario.cluster
    for group in cluster.groups:
        node = group.node
        found |= {f"accelerator {node.accelerator.id}": node.accelerator, f"node {node.id}": node}
        found |= {f"link {link.id}": link for link in (node.scale_up.link, node.pcie)}
    found |= {f"link {fabric.link.id}": fabric.link for fabric in _fabrics(cluster)}
    software = scenario.training.software
    return found | {f"software {software.id}": software}


def with_parts(scenario: Scenario, parts: Mapping[str, Spec]) -> Scenario:
    """A scenario in which some parts are replaced wherever they stand.

    Parameters
    ----------
    scenario : Scenario
    parts : mapping of str to Spec
        By the keys of `parts_of`; of a node only its own numbers are taken.
    """

    def link(old: Link) -> Link:
        return cast("Link", parts.get(f"link {old.id}", old))

    def node(old: Node) -> Node:
        own = cast("Node", parts.get(f"node {old.id}", old))
        update: dict[str, Any] = {
            "accelerator": parts.get(f"accelerator {old.accelerator.id}", old.accelerator),
            "scale_up": old.scale_up.model_copy(update={"link": link(old.scale_up.link)}),
            "pcie": link(old.pcie),
        }
        return own.model_copy(update=update)

    def fabric(old: Fabric | None) -> Fabric | None:
        return None if old is None else old.model_copy(update={"link": link(old.link)})

    cluster = scenario.cluster
    groups = tuple(group.model_copy(update={"node": node(group.node)}) for group in cluster.groups)
    wires = {"fabric": fabric(cluster.fabric), "cross_group": fabric(cluster.cross_group)}
    training = scenario.training
    software = cast("SoftwareStack", parts.get(f"software {training.software.id}", training.software))
    return scenario.model_copy(
        update={
            "cluster": cluster.model_copy(update={"groups": groups, **wires}),
            "training": training.model_copy(update={"software": software}),
        }
    )


def _fabrics(cluster: Cluster) -> Iterator[Fabric]:
    yield cluster.fabric
    if cluster.cross_group is not None:
        yield cluster.cross_group
