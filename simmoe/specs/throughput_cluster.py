"""From a row of a throughput table to the cluster it ran on: one kind of node, or unlike ones stage by stage."""

import re
from itertools import groupby

from simmoe.errors import NotFoundError
from simmoe.specs import catalog
from simmoe.specs.hardware import Cluster, Fabric, NodeGroup
from simmoe.specs.throughput_table_reader import TableRow
from simmoe.specs.throughput_words import TRAYS_PER_RACK, node_of

# "[RTX-3090x8,RTX-2080x8] | [Titan-RTXx8]": the devices of each pipeline stage, a part name and a count for each node.
_STAGES = re.compile(r"stage devices: (\[[^;]*\])")
_NODE = re.compile(r"([A-Za-z0-9-]+)x(\d+)")
_UNITS = re.compile(r"layers per stage incl\. embedding/head units: \[([\d, ]+)\]")


def cluster_of(row: TableRow, assumed: list[str]) -> Cluster:
    """The cluster of a row; raises NotFoundError with a sentence where the hardware database has no such host.

    Parameters
    ----------
    row : TableRow
    assumed : list of str
        Is told what the source leaves open.
    """
    return _mixed(row, assumed) if "heterogeneous" in row.flags else _uniform(row)


def _uniform(row: TableRow) -> Cluster:
    accelerator, devices, per_node = row.text("accelerator_id"), row.whole("num_gpus"), row.whole("gpus_per_node")
    found = node_of(accelerator, row.text("interconnect"), catalog.list_ids("link"))
    if found is None:
        raise NotFoundError(f"no hardware data for {accelerator or 'an accelerator that is not named'}")
    node = catalog.node(found.node)
    if devices is None or per_node is None or per_node != node.accelerators:
        raise NotFoundError(f"{per_node} {accelerator} a node, {node.id} has {node.accelerators}")
    if devices < per_node:
        node, per_node = node.model_copy(update={"accelerators": devices}), devices
    count, rest = divmod(devices, per_node)
    if rest:
        raise NotFoundError(f"{devices} accelerators do not fill nodes of {per_node}")
    trays = TRAYS_PER_RACK.get(accelerator)
    group = NodeGroup(node=node, count=count, nodes_per_domain=min(trays, count) if trays else None)
    return Cluster(groups=(group,), fabric=Fabric(link=catalog.link(found.link)))


def _mixed(row: TableRow, assumed: list[str]) -> Cluster:
    """Nodes in the order of the stages, so that ranks fall on them as the source says."""
    written = _STAGES.search(row.text("notes"))
    if written is None:
        raise NotFoundError("several accelerator types in one job, which stage has which is not stated")
    groups = []
    for (part, devices), same in groupby(_NODE.findall(written[1])):
        found = node_of(part, row.text("interconnect"), catalog.list_ids("link"))
        if found is None:
            raise NotFoundError(f"no hardware data for {part}")
        node = catalog.node(found.node).model_copy(update={"accelerators": int(devices)})
        groups.append(NodeGroup(node=node, count=len(list(same))))
    assumed.append("network between unlike nodes not stated, 1 Gb/s Ethernet assumed")
    return Cluster(groups=tuple(groups), fabric=Fabric(link=catalog.link("ethernet-1")))


def stage_layers_of(row: TableRow) -> tuple[int, ...]:
    """The layers of each stage where the source counts embedding and head as one unit each; empty if it does not say.

    Examples
    --------
    >>> words = "layers per stage incl. embedding/head units: [12, 14]"
    >>> stage_layers_of(TableRow("a", "g", "t:1", {"schedule_overlap_flags": words}))
    (11, 13)
    """
    written = _UNITS.search(row.text("schedule_overlap_flags"))
    if written is None:
        return ()
    units = [int(unit) for unit in written[1].split(",")]
    units[0] -= 1
    units[-1] -= 1
    return tuple(units)
