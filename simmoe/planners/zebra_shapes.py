"""Which zebra groups a cluster can be cut into: pure arithmetic of devices, experts and sequences."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from simmoe.planners.assignment import Formula
from simmoe.planners.proposal import Rejected, divisors
from simmoe.specs.hardware import Cluster
from simmoe.specs.scenario import Scenario

_MOST_SEQUENCES = 8  # of a micro-batch
_LISTED = 8  # numbers in a sentence
_ENOUGH = 4  # micro-batches, beyond which bubbles are small


class Limits(NamedTuple):
    """What is fixed in advance; 0 = the planner's choice.

    Attributes
    ----------
    attention_devices, expert_devices, groups : int
        M, N and zebra groups of each stage.
    micro_batches, micro_batch_size : int
        R, and sequences of a micro-batch.
    most_micro_batches : int
        Largest R.
    degree : int
        Pieces of an exchange (`Plan.a2a_ffn_overlap_degree`).
    assignment : str
        ``none``; ``greedy``: gather and squeeze, or nothing where that is faster; ``best``: also the equal numbers in
        all layers that come closest to balance; ``optimal``: integer programming.
    formula : str
        Of gather and squeeze.
    stages : tuple of int
        Pipeline stages to try, in order, until a plan fits.
    attention_group : int
        Node group of the attention devices; -1 = any.
    """

    attention_devices: int = 0
    expert_devices: int = 0
    groups: int = 0
    micro_batches: int = 0
    micro_batch_size: int = 0
    most_micro_batches: int = 16
    degree: int = 1
    assignment: Literal["none", "greedy", "best", "optimal"] = "best"
    formula: Formula = "consistent"
    stages: tuple[int, ...] = (1, 2, 4, 8)
    attention_group: int = -1


class Shape(NamedTuple):
    """Devices of a zebra plan.

    Attributes
    ----------
    attention_group, expert_group : int
        Node groups of the cluster.
    attention_devices, expert_devices, groups, stages : int
        M and N of a group, groups of a stage, pipeline stages.
    """

    attention_group: int
    expert_group: int
    attention_devices: int
    expert_devices: int
    groups: int
    stages: int = 1

    @property
    def replicas(self) -> int:
        """Attention devices that share the batch."""
        return self.attention_devices * self.groups

    def overlapped(self, sequences: int) -> int:
        """Sequences of a rank that can overlap in a layer, as far as more of them help much."""
        return min(sequences // self.replicas, _ENOUGH)

    @property
    def chunked(self) -> bool:
        """Experts can move in equal chunks."""
        small, large = sorted((self.attention_devices, self.expert_devices))
        return large % small == 0

    def name(self, cluster: Cluster) -> str:
        """For example ``4 H100 : 8 A100, 4 groups``."""
        attention, experts = (short_name(cluster, group) for group in (self.attention_group, self.expert_group))
        many = f", {self.groups} groups" if self.groups > 1 else ""
        pipeline = f", {self.stages} stages" if self.stages > 1 else ""
        return f"{self.attention_devices} {attention} : {self.expert_devices} {experts}{many}{pipeline}"

    def idle(self, cluster: Cluster) -> dict[str, int]:
        """Devices of each type that the plan leaves idle."""
        left: dict[str, int] = {}
        for index, group in enumerate(cluster.groups):
            used = self.attention_devices * (index == self.attention_group)
            used += self.expert_devices * (index == self.expert_group)
            name = short_name(cluster, index)
            left[name] = left.get(name, 0) + group.devices - used * self.groups * self.stages
        return {name: count for name, count in left.items() if count}


def short_name(cluster: Cluster, group: int) -> str:
    """What the accelerators of a node group are called, without their vendor."""
    part = cluster.groups[group].node.accelerator
    return part.name.removeprefix(f"{part.vendor} ")


def pairs(cluster: Cluster, attention_group: int = -1) -> list[tuple[int, int]]:
    """Which node group holds attention and which experts: unlike ones in either order; a cluster of one type, itself.

    Parameters
    ----------
    cluster : Cluster
    attention_group : int
        That must hold attention; -1 = any.

    Returns
    -------
    list of (int, int)
        Groups of one type of accelerator are not set against each other where there are others.
    """
    kinds = [group.node.accelerator.id for group in cluster.groups]
    indices = range(len(kinds))
    unlike = [(one, other) for one in indices for other in indices if kinds[one] != kinds[other]]
    found = unlike or [(one, other) for one in indices for other in indices if one != other or len(kinds) == 1]
    return [pair for pair in found if attention_group in (-1, pair[0])]


def shapes(
    scenario: Scenario,
    pair: tuple[int, int],
    stages: int,
    limits: Limits,
    rejected: list[Rejected],
    *,
    every: bool = False,
) -> Iterator[Shape]:
    """Every way to cut two node groups into equal zebra groups.

    Parameters
    ----------
    scenario : Scenario
    pair : (int, int)
        Node groups of attention and of experts.
    stages : int
        Pipeline stages.
    limits : Limits
    rejected : list of Rejected
        Gets the sizes that nothing can be made of.
    every : bool
        All M.

    Yields
    ------
    Shape
        N divides the experts. For each N and number of groups, M is as large as devices allow and the batch divides
        over; also every smaller M at which experts can move in equal chunks, which are smaller there, and the largest
        M that leave a rank two and four sequences to overlap.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 6.4.1: enough expert devices to hold all experts, then groups are repeated.
    """
    moe, cluster = scenario.model.moe, scenario.cluster
    if moe is None:
        return
    attention, experts = (cluster.groups[index].devices for index in pair)
    for count in divisors(moe.num_experts, experts // stages):
        if limits.expert_devices not in (0, count):
            continue
        barren = []
        for groups in range(1, experts // (count * stages) + 1):
            if limits.groups not in (0, groups):
                continue
            left = attention - count * groups * stages if pair[0] == pair[1] else attention
            base = Shape(*pair, 1, count, groups, stages)
            found = _widths(base, left // (groups * stages), scenario, limits, every=every)
            barren += [] if found else [str(groups)]
            yield from found
        if barren:
            rejected.append(_barren(scenario, pair, count, barren))


def _barren(scenario: Scenario, pair: tuple[int, int], count: int, groups: list[str]) -> Rejected:
    """Numbers of groups for which no number of attention devices will do."""
    attention, experts = (short_name(scenario.cluster, index) for index in pair)
    listed = f"{', '.join(groups)}" if len(groups) <= _LISTED else f"{len(groups)} numbers of"
    many = "group" if groups == ["1"] else "groups"
    name = f"{listed} {many} with experts on {count} {experts} each, attention on {attention}"
    batch = scenario.training.global_batch_size
    return Rejected(name, f"{batch} sequences a step do not divide over the attention devices of so many groups")


def _widths(base: Shape, most: int, scenario: Scenario, limits: Limits, *, every: bool) -> list[Shape]:
    """The shape with the M worth trying, or with all."""
    batch = scenario.training.global_batch_size
    made = [base._replace(attention_devices=width) for width in range(most, 0, -1)]
    whole = [
        shape
        for shape in made
        if batch % shape.replicas == 0 and limits.attention_devices in (0, shape.attention_devices)
    ]
    chunked = [shape for shape in whole if shape.chunked and limits.assignment != "none"]
    if every:
        return whole
    overlapping = [next((one for one in whole if batch // one.replicas >= count), None) for count in (2, _ENOUGH)]
    kept = {one for one in (*whole[:1], *chunked, *overlapping) if one is not None}
    return sorted(kept, key=lambda one: -one.attention_devices)


def batches(scenario: Scenario, shape: Shape, limits: Limits) -> list[tuple[int, int]]:
    """Sequences of a micro-batch and number of micro-batches R to try for a shape.

    Parameters
    ----------
    scenario : Scenario
    shape : Shape
    limits : Limits

    Returns
    -------
    list of (int, int)
        A rank's sequences of a step, B / (M x groups), divide into passes of R micro-batches, whose size is a power of
        two, or all of them.
    """
    share = scenario.training.global_batch_size // shape.replicas
    found = []
    for size in divisors(share, _MOST_SEQUENCES):
        if size & (size - 1) and size not in (share, limits.micro_batch_size):
            continue
        if limits.micro_batch_size in (0, size):
            most = limits.micro_batches or limits.most_micro_batches
            counts = divisors(share // size, most)
            found += [(size, count) for count in counts if limits.micro_batches in (0, count)]
    return found
