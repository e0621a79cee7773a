"""What HeterMoE is compared with: expert parallelism over all devices, and on each type of device by itself.

The other two baselines of the paper are `simmoe.planners.disaggregated` and `simmoe.planners.hetero_pipeline`.
"""

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.planners.proposal import Proposal, Ranking, Rejected, divisors, plan_like, planned, propose, ranked
from simmoe.specs.hardware import Cluster
from simmoe.specs.plan import Recompute
from simmoe.specs.scenario import Scenario

_DEGREES = (2, 4)  # tried beside 1; more pieces only shrink the products
_SIZES = 3  # micro-batch sizes tried of each kind of plan, the largest that fit
_STAGES = (1, 2, 4, 8)  # pipeline stages, until one number fits
_PARTS = 8  # most sequences of a micro-batch


class Ideal(NamedTuple):
    """EP (Ideal): each type of device trains alone on its part of the batch, and the throughputs are added.

    Attributes
    ----------
    parts : tuple of Proposal
        One for each type of device on which a plan fits.
    rejected : tuple of Rejected
        Also of the types that contribute nothing.
    """

    parts: tuple[Proposal, ...]
    rejected: tuple[Rejected, ...]

    @property
    def tokens_per_s(self) -> float:
        """Of all types together; 0 if the model fits on none [tokens/s]."""
        return sum(part.tokens_per_s for part in self.parts)


class _Kind(NamedTuple):
    """A kind of plain plan: all but its micro-batch size and its degree."""

    stages: int
    expert_parallel: int
    recompute: Recompute

    @property
    def name(self) -> str:
        again = {"none": "", "selective": ", selective recomputation", "full": ", full recomputation"}
        pipeline = f", {self.stages} stages" if self.stages > 1 else ""
        return f"EP {self.expert_parallel}{pipeline}{again[self.recompute.granularity]}"


def expert_parallel(
    scenario: Scenario, *, degree: int = 0, micro_batch_size: int = 0, group: int = 0, top: int = 3
) -> Ranking:
    """Expert parallelism over all devices of the cluster, all of which do the same: the EP of HeterMoE's evaluation.

    Parameters
    ----------
    scenario : Scenario
    degree : int
        Pieces that exchanges are cut into (`Plan.a2a_ffn_overlap_degree`); 0 = the best of 1, 2 and 4.
    micro_batch_size : int
        Sequences of a micro-batch; 0 = the best of the powers of two that fit.
    group : int
        Devices that share the experts; 0 = the better of as many as divide experts and devices, and as many of them as
        stand in one scale-up domain.
    top : int
        Proposals to return.

    Returns
    -------
    Ranking
        Recomputation is the scenario's, full where that does not fit; pipeline stages (1, 2, 4, 8) are added until
        something fits.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 6.1: expert parallelism with an equal share for every device.
    """
    rejected: list[Rejected] = []
    for stages in _STAGES:
        kinds = list(_kinds(scenario, stages, group, rejected))
        found = [one for kind in kinds for one in _sizes_of(scenario, kind, degree or 1, micro_batch_size, rejected)]
        best = ranked(found)
        if best.proposals:
            found += _with_degrees(scenario, best.best) if degree == 0 else []
            ranking = ranked(found, top)
            return ranking._replace(rejected=(*rejected, *ranking.rejected))
    return Ranking((), tuple(rejected))


def _kinds(scenario: Scenario, stages: int, group: int, rejected: list[Rejected]) -> Iterator[_Kind]:
    """Kinds of plans with so many stages, what recomputes less first."""
    moe, devices = scenario.model.moe, scenario.cluster.devices
    if moe is None or devices % stages or stages > scenario.model.num_layers:
        reason = "the model has no experts" if moe is None else f"{stages} stages do not divide {devices} devices"
        rejected.append(Rejected(f"EP, {stages} stages", reason))
        return
    largest = gcd(devices // stages, moe.num_experts)
    inside = gcd(largest, min(part.domain_devices for part in scenario.cluster.groups))
    groups = [group] if group else sorted({largest, *([inside] if inside > 1 else [])}, reverse=True)
    for recompute in recomputations(scenario):
        for size in groups:
            yield _Kind(stages, size, recompute)


def recomputations(scenario: Scenario) -> tuple[Recompute, ...]:
    """The scenario's own recomputation, and full, which needs the least memory."""
    own = scenario.plan.stages[0].recompute if scenario.plan.stages else scenario.plan.recompute
    full = Recompute(granularity="full")
    return (own,) if own == full else (own, full)


def _sizes_of(
    scenario: Scenario, kind: _Kind, degree: int, micro_batch_size: int, rejected: list[Rejected]
) -> list[Proposal]:
    """The plans of a kind with the largest micro-batches that fit."""
    share = scenario.cluster.devices // kind.stages
    if scenario.training.global_batch_size % share:
        batch = scenario.training.global_batch_size
        rejected.append(Rejected(kind.name, f"{batch} sequences a step do not divide over {share} devices"))
        return []
    largest = scenario.training.global_batch_size // share
    sizes = [micro_batch_size] if micro_batch_size else batch_sizes(largest)
    found: list[Proposal] = []
    for size in sizes:
        one = _plain(scenario, kind, size, degree)
        if isinstance(one, Proposal):
            found.append(one)
        elif size == sizes[-1]:
            rejected.append(one)
        if len(found) == _SIZES:
            break
    return found


def batch_sizes(sequences: int) -> list[int]:
    """Micro-batch sizes to try: divisors of the sequences of a rank that are powers of two, the largest first.

    Examples
    --------
    >>> batch_sizes(12), batch_sizes(64)
    ([4, 2, 1], [8, 4, 2, 1])
    """
    return [size for size in reversed(divisors(sequences, _PARTS)) if size & (size - 1) == 0]


def _plain(scenario: Scenario, kind: _Kind, size: int, degree: int) -> Proposal | Rejected:
    """One plan, simulated."""
    pieces = f", degree {degree}" if degree > 1 else ""
    name = f"{kind.name}, micro-batch {size}{pieces}"
    changes = {"dispatcher": "alltoall", "a2a_ffn_overlap_degree": degree} if degree > 1 else {}
    plan = plan_like(
        scenario,
        pipeline_parallel=kind.stages,
        expert_parallel=kind.expert_parallel,
        **({"recompute": kind.recompute} | changes),
    )
    try:
        made = planned(scenario, plan, micro_batch_size=size)
    except SpecError as error:
        return Rejected(name, error.problems[0])
    return propose("ep", name, plan, made)


def _with_degrees(scenario: Scenario, best: Proposal) -> list[Proposal]:
    """The best plan with its exchanges in pieces."""
    plan = best.plan
    kind = _Kind(plan.pipeline_parallel, plan.expert_parallel, plan.recompute)
    found = [_plain(scenario, kind, best.micro_batch_size, degree) for degree in _DEGREES]
    return [one for one in found if isinstance(one, Proposal)]


def ideal(scenario: Scenario, *, degree: int = 0, micro_batch_size: int = 0, group: int = 0) -> Ideal:
    """EP (Ideal): expert parallelism on each type of device by itself, throughputs added.

    Parameters
    ----------
    scenario : Scenario
    degree, micro_batch_size, group : int
        As in `expert_parallel`.

    Returns
    -------
    Ideal
        Each type trains on as many sequences for each device as in the scenario, rounded down to whole ones, at
        least one: no type waits for another, and nothing is sent from one to another.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 6.1.
    """
    parts: list[Proposal] = []
    rejected: list[Rejected] = []
    each = max(scenario.training.global_batch_size // scenario.cluster.devices, 1)
    for part in alone(scenario.cluster):
        training = scenario.training.model_copy(update={"global_batch_size": each * part.devices})
        apart = scenario.model_copy(update={"cluster": part, "training": training})
        ranking = expert_parallel(apart, degree=degree, micro_batch_size=micro_batch_size, group=group, top=1)
        parts += ranking.proposals
        name = f"{part.devices} {part.accelerators[0].name}"
        rejected += [Rejected(f"{name}: {one.what}", one.reason) for one in ranking.rejected]
    return Ideal(tuple(parts), tuple(rejected))


def alone(cluster: Cluster) -> tuple[Cluster, ...]:
    """The devices of each type as a cluster of their own, on the same fabric."""
    found = []
    for accelerator in cluster.accelerators:
        groups = tuple(group for group in cluster.groups if group.node.accelerator.id == accelerator.id)
        changed = {"groups": groups, "faults": (), "name": f"{accelerator.name} of {cluster.name}"}
        found.append(cluster.model_copy(update=changed))
    return tuple(found)
