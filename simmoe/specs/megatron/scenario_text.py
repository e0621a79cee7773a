"""A scenario file from what Megatron-LM was told."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from simmoe.errors import SpecError
from simmoe.specs import catalog
from simmoe.specs.megatron.from_arguments import from_arguments
from simmoe.specs.megatron.source_file import Source, read_source
from simmoe.specs.reader import scenario_of
from simmoe.specs.scenario import Scenario
from simmoe.specs.text_file import one_line

_USUAL_NODE = "dgx-h100"
_USUAL_LINK = "infiniband-ndr-400"


class Written(NamedTuple):
    """A scenario file.

    Attributes
    ----------
    text : str
        YAML, remarks in its head.
    scenario : Scenario
        As it is read back.
    remarks : tuple of str
        What was ignored or assumed, a sentence each.
    """

    text: str
    scenario: Scenario
    remarks: tuple[str, ...]


def import_megatron(path: Path, cluster: str | None = None) -> Written:
    """The scenario that a launch script, a log or a YAML file of Megatron-LM describes; nothing is executed.

    Parameters
    ----------
    path : Path
    cluster : str or None
        Id of a cluster. None = DGX H100 on InfiniBand NDR, as many as the job has GPUs.

    Raises
    ------
    SimmoeError
        If the file cannot be read, Megatron-LM would refuse what it says, or the cluster does not hold the job.
    """
    source = read_source(path)
    remarks = list(source.remarks)
    where, world = _cluster(path, source, cluster, remarks)
    try:
        found = from_arguments(source.arguments, world, source.environment, path.name)
    except SpecError as error:
        raise SpecError([f"{path}: {sentence}" for sentence in error.problems]) from None
    remarks += found.remarks
    data: dict[str, Any] = {
        "name": path.stem,
        "model": found.model,
        "cluster": where,
        "training": found.training,
        **({"routing": found.routing} if found.routing else {}),
        "plan": found.plan or {"tensor_parallel": 1},
    }
    text = _text(data, remarks, path)
    # Positions in messages are those of the text that was made, not of the file that was read.
    return Written(text, scenario_of(text, f"{path} as a scenario"), tuple(remarks))


def _cluster(path: Path, source: Source, id: str | None, remarks: list[str]) -> tuple[str | dict[str, Any], int]:
    """The cluster as a scenario file names it, and its GPUs."""
    world = source.world
    if id is not None:
        cluster = catalog.cluster(id)
        if world in {None, cluster.devices}:
            return id, cluster.devices
        node = cluster.groups[0].node
        if len(cluster.groups) > 1 or world is None or world % node.accelerators:
            raise SpecError(
                [f"{path}: the job has {world} GPUs, cluster {id} has {cluster.devices}, name another with --cluster"]
            )
        remarks.append(f"cluster {id} with {world // node.accelerators} nodes, as many as the job has")
        fabric = {"link": cluster.fabric.link.id, "topology": cluster.fabric.topology}
        return {"groups": [{"node": node.id, "count": world // node.accelerators}], "fabric": fabric}, world
    if world is None:
        raise SpecError([f"{path}: it does not say how many GPUs the job has, name a cluster with --cluster"])
    size = catalog.node(_USUAL_NODE).accelerators
    if world % size:
        raise SpecError(
            [f"{path}: the job has {world} GPUs, no whole number of {_USUAL_NODE}, name a cluster with --cluster"]
        )
    remarks.append(f"no --cluster: {world // size} {_USUAL_NODE} on {_USUAL_LINK} assumed")
    return {"groups": [{"node": _USUAL_NODE, "count": world // size}], "fabric": {"link": _USUAL_LINK}}, world


def _text(data: dict[str, Any], remarks: Sequence[str], path: Path) -> str:
    writer: Any = YAML(typ="safe", pure=True)  # its attributes are annotated None
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False
    writer.width = 100
    text = StringIO()
    writer.dump(data, text)
    head = [
        f"# From {one_line(path.name)}, by simmoe import megatron.",
        *(f"# Note: {one_line(r, 400)}." for r in remarks),
    ]
    return "\n".join(head) + "\n" + text.getvalue()
