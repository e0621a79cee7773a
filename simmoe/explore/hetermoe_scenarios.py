"""The clusters, models and batches of HeterMoE's evaluation as scenarios."""

import re
from math import ceil, gcd

from simmoe.errors import NotFoundError
from simmoe.explore.hetermoe_bench import AS_SHIPPED, Assumptions, Case
from simmoe.specs import catalog
from simmoe.specs.data_folders import data_root
from simmoe.specs.hardware import Cluster, Fabric, Node, NodeGroup
from simmoe.specs.model import Model
from simmoe.specs.plan import Plan, Recompute
from simmoe.specs.scenario import Scenario
from simmoe.specs.software import SoftwareStack
from simmoe.specs.workload import Precision, Training

SOFTWARE = "deepspeed-moe-2024"
# Tokens that expert parallelism gives each GPU in a step. Printed is only that the batch is the largest that all
# baselines can hold; 33 k to 105 k tokens on the 16 GB of the older cards serve as well.
TOKENS_PER_DEVICE = 65_536
# One GPU and one port a host, as in the clusters of the database.
NODES = {"A40": "a40-x1", "V100": "v100-16gb-x1", "L40S": "l40s-x1", "T4": "t4-x1", "A100": "a100-pcie-x8"}
LINK = "roce-100"
_PART = re.compile(r"(\d+)x([A-Z0-9]+)")
_MODEL = re.compile(r"([WD]\d)(?:/(\d+))?")


def cluster_of(name: str, assumptions: Assumptions = AS_SHIPPED) -> Cluster:
    """A cluster of the paper.

    Parameters
    ----------
    name : str
        ``O1`` to ``C2``, or devices in order: ``4xA40+5xV100``.
    assumptions : Assumptions
        Its factor on the bandwidth of the fabric is applied.

    Raises
    ------
    NotFoundError
        If there is no such cluster or device.

    Examples
    --------
    >>> cluster_of("O2").devices, [group.count for group in cluster_of("4xA40+5xV100").groups]
    (12, [4, 5])
    """
    parts = [_PART.fullmatch(part) for part in name.split("+")]
    if all(parts):
        groups = tuple(NodeGroup(node=_node(part[2]), count=int(part[1])) for part in parts if part is not None)
        made = Cluster(name=name, groups=groups, fabric=Fabric(link=catalog.link(LINK), topology="flat"))
    else:
        made = catalog.cluster(f"hetermoe-{name.lower()}")
    if assumptions.network == 1.0:
        return made
    bandwidth = made.fabric.port_bandwidth * assumptions.network
    return made.model_copy(update={"fabric": made.fabric.model_copy(update={"bandwidth": bandwidth})})


def with_room(cluster: Cluster, room: float) -> Cluster:
    """The cluster with more memory on every device.

    Parameters
    ----------
    cluster : Cluster
    room : float
        Factor on the memory [1].
    """
    groups = []
    for group in cluster.groups:
        part = group.node.accelerator
        memory = part.memory.model_copy(update={"value": part.memory.value * room})
        node = group.node.model_copy(update={"accelerator": part.model_copy(update={"memory": memory})})
        groups.append(group.model_copy(update={"node": node}))
    return cluster.model_copy(update={"groups": tuple(groups)})


def _node(device: str) -> Node:
    """A host with one device."""
    if device not in NODES:
        raise NotFoundError(f"{device} is no device of HeterMoE, write one of {', '.join(NODES)}")
    node = catalog.node(NODES[device])
    alone = node.scale_up.model_copy(update={"domain": 1})
    return node.model_copy(update={"accelerators": 1, "scale_up": alone})


def model_of(name: str) -> Model:
    """A model of the paper.

    Parameters
    ----------
    name : str
        ``W1`` to ``D3``; ``D1/8`` with 8 experts in place of its own.

    Examples
    --------
    >>> found = model_of("D1/8")
    >>> found.id, found.moe.num_experts if found.moe else 0
    ('hetermoe-d1', 8)
    """
    match = _MODEL.fullmatch(name)
    if match is None:
        raise NotFoundError(f"{name} is no model of HeterMoE, write W1, W2, D1, D2 or D3")
    folder = data_root() / "scenarios" / "papers" / "hetermoe"
    made = catalog.model(str(folder / f"{match[1].lower()}.yaml"))
    if match[2] is None or made.moe is None:
        return made
    return made.model_copy(update={"moe": made.moe.model_copy(update={"num_experts": int(match[2])})})


def batch_of(cluster: Cluster, length: int, *, everywhere: bool) -> int:
    """Sequences of a step.

    Parameters
    ----------
    cluster : Cluster
    length : int
        Tokens of a sequence.
    everywhere : bool
        Also the same number for every device of the cluster, so that expert parallelism can run it.

    Returns
    -------
    int
        As near as possible to `TOKENS_PER_DEVICE` for every device, where each attention device gets a multiple of 3 or
        of 4 sequences: the paper tunes R, and a prime number of sequences would leave nothing to tune.

    Examples
    --------
    6 + 6 devices x 65,536 / 20,480 are 38.4 sequences; 36 divide over 12 devices and are 6 for each of 6.

    >>> batch_of(cluster_of("O1"), 20480, everywhere=True)
    36
    """
    world, attention = cluster.devices, cluster.groups[0].devices
    wanted = TOKENS_PER_DEVICE * world / length / attention
    unit = world // gcd(world, attention) if everywhere else 1
    each = [count for count in range(unit, 4 * unit + 2 * ceil(wanted), unit) if count % 3 == 0 or count % 4 == 0]
    return attention * min(each, key=lambda count: (abs(count - wanted), -count))


def stack_of(assumptions: Assumptions = AS_SHIPPED) -> SoftwareStack:
    """The software stack, with the width at which its products take twice as long scaled."""
    stack = catalog.software(SOFTWARE)
    fill = stack.narrow_gemm_fill
    if fill is None or assumptions.narrow == 1.0:
        return stack
    scaled = fill.model_copy(update={"value": fill.value * assumptions.narrow})
    return stack.model_copy(update={"narrow_gemm_fill": scaled})


def scenario_of(case: Case, assumptions: Assumptions = AS_SHIPPED) -> Scenario:
    """The job of a case, for planners: its plan says only what all systems share.

    Parameters
    ----------
    case : Case
    assumptions : Assumptions

    Returns
    -------
    Scenario
        FP16 with Adam and 16-bit gradients, full recomputation, states not sharded: 16 bytes a parameter. The plan is
        not expanded.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 6.1: mixed FP16, activation checkpointing, 4K to 32K.

    Examples
    --------
    >>> made = scenario_of(Case("ep", "O1", "D1", 4096))
    >>> made.training.global_batch_size, made.model.id
    (192, 'hetermoe-d1')
    """
    cluster = cluster_of(case.cluster, assumptions)
    training = Training(
        sequence_length=case.length,
        global_batch_size=batch_of(cluster, case.length, everywhere="+" not in case.cluster),
        precision=Precision.FP16,
        gradient_dtype="bf16",  # stands for any 16 bits
        software=stack_of(assumptions),
    )
    plan = Plan(recompute=Recompute(granularity="full"), sharding="none")
    return Scenario(name=str(case), model=model_of(case.model), cluster=cluster, training=training, plan=plan)
