"""A job that has lost nodes goes on with fewer copies of the model."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise

from simmoe.errors import SpecError
from simmoe.specs import checks
from simmoe.specs.expand import expand
from simmoe.specs.faults import Fault, Shrinking
from simmoe.specs.hardware import Cluster, NodeGroup
from simmoe.specs.scenario import Scenario


def shrunk(scenario: Scenario) -> Scenario:
    """The scenario on the nodes that are left; without a failed node, the same.

    Parameters
    ----------
    scenario : Scenario
        Checked, its plan not yet expanded.

    Returns
    -------
    Scenario
        With the largest data-parallel size whose devices fill whole nodes and that passes every rule; all other sizes
        and the global batch are kept, so each copy of the model runs more micro-batches. Nodes that are left over, the
        last ones, are taken out of the cluster. The other faults keep their places; those on nodes that are gone go.

    Raises
    ------
    SpecError
        If the plan lists its stages, or no size will do.

    Notes
    -----
    Elastic training as in Oobleck (Jang et al. 2023, arXiv 2309.08125, section 2.2) and Varuna without re-planning of
    the pipeline: only whole pipelines are given up.
    """
    failed = sorted({fault.node for fault in scenario.cluster.faults if fault.failed and fault.node is not None})
    if not failed:
        return scenario
    if scenario.plan.stages:
        raise SpecError(["cluster.faults: a failed node needs a plan without explicit stages, remove plan.stages"])
    sizes = _node_sizes(scenario.cluster)
    alive = [node for node in range(len(sizes)) if node not in failed]
    left = sum(sizes[node] for node in alive)
    record = Shrinking(
        failed_nodes=tuple(failed), devices=sum(sizes), left=left, data_parallel=sum(sizes) // _width(scenario)
    )
    for candidate in _candidates(scenario, alive):
        if _holds(candidate):
            return candidate.after(record)
    raise SpecError(
        [
            f"cluster.faults: no data-parallel size makes the plan fit the {left} accelerators that are left of "
            f"{sum(sizes)}, choose smaller parallel sizes or another batch"
        ]
    )


def _width(scenario: Scenario) -> int:
    plan = scenario.plan
    return plan.tensor_parallel * plan.pipeline_parallel * plan.context_parallel


def _node_sizes(cluster: Cluster) -> list[int]:
    """Accelerators of each node."""
    return [group.node.accelerators for group in cluster.groups for _ in range(group.count)]


def _candidates(scenario: Scenario, alive: list[int]) -> Iterator[Scenario]:
    """The scenario on all nodes that are left, on all but the last, and so on."""
    plan = scenario.plan.model_copy(update={"data_parallel": None})
    for count in range(len(alive), 0, -1):
        cluster = _only(scenario.cluster, alive[:count])
        if cluster.devices % _width(scenario) == 0:
            yield scenario.model_copy(update={"cluster": cluster, "plan": plan})


def _holds(candidate: Scenario) -> bool:
    """Whether a plan can be made on these nodes, by every rule that a file has to pass."""
    if any(rule.check(candidate) is not None for rule in checks.rules_of("scenario")):
        return False
    try:
        plan = expand(candidate.plan, candidate.model, candidate.cluster, candidate.training)
    except SpecError:
        return False
    expanded = candidate.model_copy(update={"plan": plan})
    return all(rule.check(expanded) is None for rule in checks.rules_of("expanded"))


def _only(cluster: Cluster, nodes: list[int]) -> Cluster:
    """A cluster of some of its nodes, in their order."""
    bounds = list(accumulate((group.count for group in cluster.groups), initial=0))
    counts = [sum(low <= node < high for node in nodes) for low, high in pairwise(bounds)]
    groups = tuple(_fewer(group, count) for group, count in zip(cluster.groups, counts, strict=True) if count)
    sizes = list(accumulate(_node_sizes(cluster), initial=0))
    faults = tuple(moved for fault in cluster.faults if (moved := _moved(fault, nodes, sizes)) is not None)
    return cluster.model_copy(update={"groups": groups, "faults": faults})


def _fewer(group: NodeGroup, count: int) -> NodeGroup:
    return group.model_copy(update={"count": count})


def _moved(fault: Fault, nodes: list[int], first: list[int]) -> Fault | None:
    """A fault with the numbers of the nodes that are kept; None if its node is gone. `first`: first device by node."""
    node = fault.node if fault.node is not None else bisect_right(first, fault.device or 0) - 1
    if node not in nodes:
        return None
    place = nodes.index(node)
    if fault.node is not None:
        return fault.model_copy(update={"node": place})
    before = sum(first[kept + 1] - first[kept] for kept in nodes[:place])
    return fault.model_copy(update={"device": before + (fault.device or 0) - first[node]})
