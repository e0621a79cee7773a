"""Find the simplest uniform plan that fits, and write it down with comments."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from simmoe.errors import SimmoeError, SpecError
from simmoe.pipeline import stage_memory
from simmoe.specs import catalog, checks
from simmoe.specs.document import Document, Position
from simmoe.specs.expand import expand
from simmoe.specs.hardware import Accelerator, Cluster, Fabric, NodeGroup
from simmoe.specs.model import Model
from simmoe.specs.model_file import looks_like_path
from simmoe.specs.plan import Plan, Recompute, Schedule
from simmoe.specs.scenario import Scenario
from simmoe.specs.text_file import one_line
from simmoe.specs.workload import Precision, Training

DEFAULT_SOFTWARE = "megatron-core-2025"
_DEFAULT_FABRIC = "infiniband-ndr-400"
_USUAL_LENGTH = 4096
_SPARE = 0.95  # of the memory: what a real run needs beside the model is not known to the last byte
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_WIDEST_TENSOR = 8
_MOST_STAGES = 16


class Proposal(NamedTuple):
    """A scenario and how it was arrived at.

    Attributes
    ----------
    scenario : Scenario
        With its plan expanded.
    model : str
        As the user named it.
    node : str
        Id of the node.
    fabric_note : str
        Why this fabric.
    peak : float
        Share of the memory that the fullest device uses [1].
    """

    scenario: Scenario
    model: str
    node: str
    fabric_note: str
    peak: float


def propose(model_name: str, node_name: str, count: int, fabric_name: str | None = None) -> Proposal:
    """The simplest plan that fits: least recomputation, then least tensor x pipeline, then least expert parallel.

    Parameters
    ----------
    model_name : str
        Id or file of a model.
    node_name : str
        Id of a node.
    count : int
        Nodes.
    fabric_name : str or None
        Id of the link between nodes; None = that of a cluster of the catalogue with such nodes.

    Returns
    -------
    Proposal

    Raises
    ------
    SimmoeError
        If an id is unknown or no uniform plan fits.
    """
    model, node = catalog.model(model_name), catalog.node(node_name)
    fabric, note = _fabric(node_name, fabric_name)
    cluster = Cluster(groups=(NodeGroup(node=node, count=count),), fabric=fabric)
    training = Training(
        sequence_length=min(_USUAL_LENGTH, model.max_position_embeddings),
        global_batch_size=1,
        precision=_precision(node.accelerator),
        software=catalog.software(DEFAULT_SOFTWARE),
    )
    name = f"{model.id}-{cluster.devices}x{node.accelerator.id}"
    smallest = None
    for plan in _plans(model, cluster):
        found = _scenario(name, model, cluster, training, plan)
        if found is None:
            continue
        peak = _peak(found)
        if peak <= _SPARE:
            return Proposal(found, model_name, node_name, note, peak)
        smallest = peak if smallest is None else min(smallest, peak)
    need = (
        "no plan divides over it"
        if smallest is None
        else f"the leanest plan tried needs {smallest:.1f} times its memory"
    )
    raise SimmoeError(
        f"{model.name} does not fit on {count} x {node.name} with a uniform plan ({need}), take more or larger nodes"
    )


def _fabric(node: str, link: str | None) -> tuple[Fabric, str]:
    """The network between nodes, and why this one."""
    if link is not None:
        return Fabric(link=catalog.link(link)), "as asked for"
    found = [(_plainness(catalog.cluster(id)), id) for id in catalog.list_ids("cluster") if node in _nodes_named(id)]
    if found:
        _, id = min(found)
        return catalog.cluster(id).fabric, f"as in the cluster {id} of the database"
    return Fabric(link=catalog.link(_DEFAULT_FABRIC)), "assumed: put yours here (simmoe db list link)"


def _nodes_named(id: str) -> set[str]:
    """Ids of nodes in the file of a cluster: read alone, the database is slow to load as a whole."""
    groups = catalog.raw("cluster", id).get("groups")
    return (
        {str(group.get("node")) for group in groups if isinstance(group, dict)} if isinstance(groups, list) else set()
    )


def _plainness(cluster: Cluster) -> tuple[int, float, int]:
    """Smallest for few nodes of one kind on a network that nothing narrows."""
    return len(cluster.groups), cluster.fabric.oversubscription, cluster.devices


def _precision(accelerator: Accelerator) -> Precision:
    """Bf16 where there is any, else fp16, else fp32."""
    for precision in (Precision.BF16, Precision.FP16):
        if accelerator.peak_flops.get(precision.gemm_dtype) is not None:
            return precision
    return Precision.FP32


def _plans(model: Model, cluster: Cluster) -> Iterator[Plan]:
    """Uniform plans in the order of preference."""
    domain = cluster.groups[0].domain_devices
    experts = model.moe.num_experts if model.moe else 1
    sizes = [
        (tensor, pipeline, expert)
        for tensor in _SIZES
        for pipeline in _SIZES
        for expert in _SIZES
        if tensor <= min(_WIDEST_TENSOR, domain, model.attention.num_kv_heads)
        and pipeline <= min(_MOST_STAGES, model.num_layers)
        and experts % expert == 0
    ]
    sizes.sort(key=lambda one: (one[2] > domain, one[0] * one[1], one[0], one[2]))
    for granularity in ("none", "full"):
        for tensor, pipeline, expert in sizes:
            yield Plan(
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
                expert_parallel=expert,
                recompute=Recompute(granularity=granularity),
                stage_layers=_stage_layers(model.num_layers, pipeline),
                schedule=Schedule.ONE_F_ONE_B,
            )


def _stage_layers(layers: int, stages: int) -> tuple[int, ...] | None:
    """Layers of each stage where they do not divide; the first and last, with embedding and loss, get fewer.

    Examples
    --------
    >>> _stage_layers(61, 8), _stage_layers(32, 8)
    ((7, 8, 8, 8, 8, 8, 7, 7), None)
    """
    each, more = divmod(layers, stages)
    order = [*range(1, stages - 1), 0, stages - 1]
    return tuple(each + (order.index(stage) < more) for stage in range(stages)) if more else None


def _scenario(name: str, model: Model, cluster: Cluster, training: Training, plan: Plan) -> Scenario | None:
    """The plan as a scenario with a batch that keeps its pipeline busy; None if its sizes do not divide."""
    nowhere = Document(Position("new"), {})
    try:
        expanded = expand(plan, model, cluster, training)
    except SpecError:
        return None
    batch = max(8, 4 * plan.pipeline_parallel) * expanded.stages[0].data_parallel
    training = training.model_copy(update={"global_batch_size": batch})
    uniform = Scenario(name=name, model=model, cluster=cluster, training=training, plan=plan)
    scenario = uniform.model_copy(update={"plan": expanded})
    wrong = checks.run("scenario", uniform, nowhere) or checks.run("expanded", scenario, nowhere)
    return None if wrong else scenario


def _peak(scenario: Scenario) -> float:
    capacity = min(part.memory.value for part in scenario.cluster.accelerators)
    return max(memory.total for memory in stage_memory(scenario)) / capacity


def scenario_text(proposal: Proposal) -> str:
    """A proposal as a commented YAML file that `simmoe.specs.reader.load_scenario` reads.

    Parameters
    ----------
    proposal : Proposal
    """
    scenario = proposal.scenario
    training, plan = scenario.training, scenario.plan
    group, fabric = scenario.cluster.groups[0], scenario.cluster.fabric
    replicas = plan.data_parallel or 1
    layers = f"  stage_layers: {list(plan.stage_layers)}\n" if plan.stage_layers else ""
    each = training.global_batch_size // replicas
    return f"""\
# {one_line(scenario.model.name)} on {scenario.cluster.devices} {group.node.accelerator.name}.
# Simulate it with: simmoe simulate FILE; change a value for one run with: --set plan.tensor_parallel=2
name: {_scalar(scenario.name)}
model: {_model_key(proposal.model)}  # an id (simmoe models list), or the path of a Hugging Face config.json

cluster:
  groups:  # unlike groups may follow
    - {{node: {proposal.node}, count: {group.count}}}  # {group.node.accelerators} GPUs each
  fabric: {{link: {fabric.link.id}, topology: {fabric.topology}}}  # {proposal.fabric_note}

training:
  sequence_length: {training.sequence_length}  # tokens
  micro_batch_size: 1  # sequences a GPU works on at once
  global_batch_size: {training.global_batch_size}  # sequences a step: {each} for each of {replicas} replicas
  precision: {training.precision.value}  # also fp16, fp32, fp8-delayed, fp8-current, fp8-blockwise, mxfp8, nvfp4
  software: {training.software.id}  # simmoe db list software

# The simplest uniform plan that fits: {proposal.peak:.0%} of the memory at the fullest GPU.
plan:
  tensor_parallel: {plan.tensor_parallel}
  pipeline_parallel: {plan.pipeline_parallel}
{layers}  expert_parallel: {plan.expert_parallel}
  recompute: {plan.recompute.granularity}  # none, selective or full: less memory, more time
"""


def _model_key(name: str) -> str:
    """What the file says of the model: its id, or a path that holds from every folder."""
    return _scalar(str(Path(name).resolve()) if looks_like_path(name) else name)


def _scalar(text: str) -> str:
    """A string as YAML, in quotes unless it is a plain word."""
    return text if re.fullmatch(r"[A-Za-z][\w.-]*", text, re.ASCII) else json.dumps(text)
