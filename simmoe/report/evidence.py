"""Which numbers of the hardware database a simulation rested on, each with its place and its source."""

from collections.abc import Iterator
from typing import NamedTuple

from simmoe.cost.device import UNFUSED, Device, device_of, select_attention, select_dtype, select_fit
from simmoe.cost.groups import GroupShape
from simmoe.cost.model import StageCost
from simmoe.report.metrics import COLLECTIVES
from simmoe.report.result import Result
from simmoe.specs.base import Kind, Quantity, Spec
from simmoe.specs.hardware import Accelerator, CollectiveFit, Dtype, Fabric, Link, Node
from simmoe.specs.scenario import Scenario

Group = tuple[str, str]
# NCCL builds an all-reduce over several domains from these two inside each of them.
_PARTS = {"all_reduce": ("all_reduce", "reduce_scatter", "all_gather")}
# These dispatchers are priced from the link itself, not from NCCL's collectives.
_NOT_NCCL = ("deepep", "hybridep")
# What names an entry of a list of fits.
_LABELS = ("collective", "dtype", "kernel", "operator", "head_dim", "ranks")


class Number(NamedTuple):
    """One number of a part.

    Attributes
    ----------
    part : str
        Kind and id, such as ``link nvlink-4``.
    name : str
        Its place in the part, such as ``collectives[all_reduce 8].latency``.
    quantity : Quantity
        The number with its source.
    """

    part: str
    name: str
    quantity: Quantity

    @property
    def path(self) -> str:
        """Part and place."""
        return f"{self.part}: {self.name}"


def numbers_of(spec: Spec, part: str, prefix: str = "") -> Iterator[Number]:
    """Every number of a spec in the order of its fields, without those of the parts it names by id.

    Parameters
    ----------
    spec : Spec
    part : str
        Kind and id of the part that `spec` is, or belongs to.
    prefix : str
        Where in the part `spec` stands.
    """
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        entries = value if isinstance(value, tuple) else (value,)
        for entry in entries:
            place = f"{prefix}{name}"
            if isinstance(entry, Quantity):
                yield Number(part, place, entry)
            elif isinstance(entry, Spec) and not hasattr(entry, "id"):
                yield from numbers_of(entry, part, f"{place}{_label(entry)}.")


def _label(entry: Spec) -> str:
    """The names of a list's entry in brackets, empty for what is no entry of a list."""
    words = [str(getattr(entry, key)) for key in _LABELS if hasattr(entry, key)]
    return f"[{' '.join(words)}]" if words else ""


def numbers_used(result: Result) -> tuple[Number, ...]:
    """The numbers of the hardware database that a run read.

    Parameters
    ----------
    result : Result

    Returns
    -------
    tuple of Number
        In the order accelerators, nodes, links, software; each once. Of an accelerator only the fits of the
        arithmetic and kernels that ran; of a link only the collectives that ran on it.
    """
    scenario = result.scenario
    found = [number for part in used_accelerators(result) for number in _accelerator_numbers(part, scenario)]
    wires = used_wires(result)
    found += [Number(f"node {node.id}", "network_ports", node.network_ports) for node in wires.nodes]
    for link in wires.links:
        nominal = [number for number in numbers_of(link, f"link {link.id}") if "[" not in number.name]
        replaced = wires.replaced.get(link.id, frozenset())
        found += [number for number in nominal if number.name not in replaced]
    found += [
        number
        for link, fit in wires.fits
        for number in numbers_of(fit, f"link {link.id}", f"collectives{_label(fit)}.")
    ]
    found += _software_numbers(scenario)
    return tuple({number.path: number for number in found}.values())


def used_accelerators(result: Result) -> tuple[Accelerator, ...]:
    """The accelerators that ranks run on, in the order of the ranks."""
    return tuple({rank.accelerator: result.accelerator(rank) for rank in result.ranks}.values())


def used_fits(accelerator: Accelerator, scenario: Scenario) -> dict[str, tuple[Spec, ...]]:
    """The fits of an accelerator that price the kernels of a scenario.

    Returns
    -------
    dict
        Table of `Efficiency` -> its fits that are used; a table that is not used is left out.
    """
    device, model = device_of(accelerator), scenario.model
    efficiency = accelerator.efficiency
    dtypes = used_dtypes(device, scenario)
    fits: dict[str, tuple[Spec, ...]] = {
        "gemm": tuple(select_fit(device, "gemm", efficiency.gemm, dtype) for dtype in dtypes)
    }
    attention = _attention_fit(device, scenario)
    if attention is not None:
        fits["attention"] = (attention,)
    operators = {"elementwise", "norm", "cross_entropy", "optimizer"}
    if attention is None or getattr(attention, "kernel", UNFUSED) == UNFUSED:
        operators.add("softmax")
    if scenario.training.precision.is_fp8 and len(dtypes) > 1:
        operators.add("cast")
    if model.moe is not None:
        fits["grouped_gemm"] = (select_fit(device, "grouped_gemm", efficiency.grouped_gemm, dtypes[0]),)
        operators |= {"permute", "softmax"}
    fits["memory_bound"] = tuple(fit for fit in efficiency.memory_bound if fit.operator in operators)
    return fits


def used_dtypes(device: Device, scenario: Scenario) -> tuple[Dtype, ...]:
    """The arithmetic of weight products, then that of everything else if it is another."""
    precision = scenario.training.precision
    return tuple(dict.fromkeys(select_dtype(device, precision, cast=cast) for cast in (True, False)))


def _attention_fit(device: Device, scenario: Scenario) -> Spec | None:
    width = scenario.model.attention.qk_dim
    rows = device.efficiency.attention
    fused = scenario.training.software.attention == "fused"
    fit = select_attention(rows, device.fused_attention, width) if fused else None
    return fit or select_attention(rows, (UNFUSED,), width)


def _accelerator_numbers(accelerator: Accelerator, scenario: Scenario) -> Iterator[Number]:
    """What a run reads of an accelerator."""
    part = f"accelerator {accelerator.id}"
    for dtype in used_dtypes(device_of(accelerator), scenario):
        peak = getattr(accelerator.peak_flops, dtype)
        yield Number(part, f"peak_flops.{dtype}", peak)
    for name in ("memory", "memory_bandwidth", "sm_count", "tdp", "price_per_hour"):
        quantity = getattr(accelerator, name)
        if quantity is not None:
            yield Number(part, name, quantity)
    for table, fits in used_fits(accelerator, scenario).items():
        for fit in fits:
            yield from numbers_of(fit, part, f"efficiency.{table}{_label(fit)}.")


def _software_numbers(scenario: Scenario) -> Iterator[Number]:
    """What a run reads of its software stack."""
    software, training = scenario.training.software, scenario.training
    unused = set()
    if scenario.plan.cuda_graph:
        unused |= {"host_dense_layer", "host_moe_layer", "host_fp8_layer"}
    if not training.precision.is_fp8:
        unused.add("host_fp8_layer")
    if scenario.model.moe is None:
        unused.add("host_moe_layer")
    for number in numbers_of(software, f"software {software.id}"):
        if number.name not in unused:
            yield number


class Wires(NamedTuple):
    """What the collectives of a run travel over.

    Attributes
    ----------
    nodes : tuple of Node
        Those whose network ports are used.
    links : tuple of Link
        Every link used.
    fits : tuple of (Link, CollectiveFit)
        The measured collectives used.
    replaced : dict
        Id of a link -> its numbers that the scenario overrides.
    spreads : dict
        Collective -> the bandwidth numbers of the wires it used, the strongest doubt among them rules.
    """

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    fits: tuple[tuple[Link, CollectiveFit], ...]
    replaced: dict[str, frozenset[str]]
    spreads: dict[str, tuple[Quantity, ...]]


def used_wires(result: Result) -> Wires:
    """The links and fits behind the collectives of a run."""
    scenario = result.scenario
    nodes: dict[str, Node] = {}
    links: dict[str, Link] = {}
    fits: dict[str, tuple[Link, CollectiveFit]] = {}
    spreads: dict[str, list[Quantity]] = {}
    for collective, kind, shape, node, fabric in _journeys(result):
        if shape.per_domain > 1:
            link = node.scale_up.link
            links[link.id] = link
            measured = kind != "ep" or scenario.plan.dispatcher not in _NOT_NCCL
            chosen = _chosen_fits(link, collective, shape) if measured else []
            fits |= {f"{link.id}{_label(fit)}": (link, fit) for fit in chosen}
            spreads.setdefault(collective, []).extend([fit.bus_bandwidth for fit in chosen] or [link.achievable])
        if shape.domains > 1:
            link = node.pcie if shape.one_node else fabric.link
            links[link.id] = link
            spreads.setdefault(collective, []).append(link.achievable)
            if not shape.one_node:
                nodes[node.id] = node
    return Wires(
        nodes=tuple(nodes.values()),
        links=tuple(links.values()),
        fits=tuple(fits.values()),
        replaced=_replaced(scenario),
        spreads={collective: tuple(found) for collective, found in spreads.items()},
    )


def _journeys(result: Result) -> Iterator[tuple[str, str, GroupShape, Node, Fabric]]:
    """Every collective of every rank class: its name, its kind of group, where that stands, node and fabric."""
    cluster = result.scenario.cluster
    group_of_device = [index for index, group in enumerate(cluster.groups) for _ in range(group.devices)]
    operations = result.timeline.graph.operations
    wanted = sorted({(o.category, o.group) for o in operations if o.category in COLLECTIVES})
    for rank in result.ranks:
        group = group_of_device[rank.first_rank]
        shapes = StageCost(result.scenario, rank.stage, group).shapes
        for collective, kind in wanted:
            shape = shapes[kind]
            if shape.size > 1:
                cross = cluster.cross_group if shape.unlike else None
                yield collective, kind, shape, cluster.groups[group].node, cross or cluster.fabric


def _chosen_fits(link: Link, collective: str, shape: GroupShape) -> list[CollectiveFit]:
    """The fits at, or on both sides of, the number of ranks in the domain."""
    names = (collective,) if shape.local else _PARTS.get(collective, (collective,))
    chosen = []
    for name in names:
        rows = sorted((fit for fit in link.collectives if fit.collective == name), key=lambda fit: fit.ranks)
        below = [fit for fit in rows if fit.ranks <= shape.per_domain][-1:]
        above = [fit for fit in rows if fit.ranks >= shape.per_domain][:1]
        chosen += below + [fit for fit in above if fit not in below]
    return chosen


def _replaced(scenario: Scenario) -> dict[str, frozenset[str]]:
    """The numbers of a fabric's link that the scenario gives itself."""
    fabrics = [scenario.cluster.fabric, scenario.cluster.cross_group]
    return {
        fabric.link.id: frozenset(name for name in ("bandwidth", "latency") if getattr(fabric, name) is not None)
        for fabric in fabrics
        if fabric is not None
    }


def guesses(numbers: tuple[Number, ...]) -> tuple[Number, ...]:
    """The numbers that somebody made up for want of a source."""
    return tuple(number for number in numbers if number.quantity.kind is Kind.GUESS)


def unreviewed(numbers: tuple[Number, ...]) -> tuple[Number, ...]:
    """The numbers with a source that no second source confirms; a guess is not among them."""
    return tuple(n for n in numbers if n.quantity.kind is not Kind.GUESS and not n.quantity.reviewed)
