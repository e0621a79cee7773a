"""MoE training systems without a pipeline, as plans of equal shares: DeepSpeed-MoE, Tutel, FSDP with experts.

They know one kind of device: on unlike ones everybody waits for the slowest.
"""

from dataclasses import replace
from typing import Any

from simmoe.errors import SpecError
from simmoe.planners.proposal import Proposal, Ranking, Rejected, plan_like, planned, propose, ranked
from simmoe.planners.uniform import Grid, best_of, grid
from simmoe.planners.watch import tell
from simmoe.planners.ways import recompute_ladder
from simmoe.specs.plan import Recompute
from simmoe.specs.scenario import Scenario

_DEGREES = (2, 4)  # of Tutel, tried beside 1
_FSDP_SIMULATED = 24


def deepspeed_moe(scenario: Scenario, *, top: int = 3) -> Ranking:
    """DeepSpeed-MoE: experts over all devices or groups of them, everything else data parallel with ZeRO-1.

    Parameters
    ----------
    scenario : Scenario
    top : int
        Proposals to return.

    Returns
    -------
    Ranking
        Over tensor parallelism, expert parallelism, micro-batch and recomputation; no pipeline, experts are not cut.

    References
    ----------
    Rajbhandari et al. 2022, arXiv 2201.05596, section 5: expert, data and tensor parallelism for training.
    """
    like = _with(scenario, sharding="zero1", dispatcher="alltoall")
    points = [point for point in _without_pipeline(like) if point.way.expert_tensor == 1]
    return best_of("deepspeed-moe", like, points, top=top)


def tutel(scenario: Scenario, *, top: int = 3) -> Ranking:
    """Tutel: the same, where experts may be cut, and exchanges go in pieces beneath the experts' products.

    Parameters
    ----------
    scenario : Scenario
    top : int

    Returns
    -------
    Ranking
        The best points of the grid with 1, 2 and 4 pieces. Tutel changes pieces and cuts while it trains; here one
        choice holds for the whole run.

    References
    ----------
    Hwang et al. 2023, arXiv 2206.03382, sections 4.1 (adaptive parallelism) and 4.2 (adaptive pipelining).
    """
    like = _with(scenario, sharding="zero1", dispatcher="alltoall")
    ranking = best_of("tutel", like, _without_pipeline(like), top=0)
    found: list[Proposal | Rejected] = list(ranking.proposals)
    for one in ranking.proposals[:2]:
        found += [_in_pieces(like, one, degree) for degree in _DEGREES]
    return ranked([*found, *ranking.rejected], top)


def _in_pieces(scenario: Scenario, one: Proposal, degree: int) -> Proposal | Rejected:
    """A proposal with its exchanges in pieces."""
    plan = one.plan.model_copy(update={"a2a_ffn_overlap_degree": degree})
    made = planned(scenario, plan, micro_batch_size=one.micro_batch_size)
    found = propose("tutel", f"{one.name}, degree {degree}", plan, made)
    return replace(found, why=one.why) if isinstance(found, Proposal) else found


def fsdp_ep(scenario: Scenario, *, top: int = 3) -> Ranking:
    """FSDP with expert parallelism: parameters sharded over all devices, or over groups that keep copies (HSDP).

    Parameters
    ----------
    scenario : Scenario
    top : int

    Returns
    -------
    Ranking
        Over expert parallelism, micro-batch, sharding group (all, a scale-up domain) and recomputation; each with the
        smallest recomputation that fits. The largest micro-batches are simulated first.

    References
    ----------
    Zhao et al. 2023, arXiv 2304.11277; expert parallelism beside it as torchtitan has it.
    """
    like = _with(scenario, sharding="zero3", dispatcher="alltoall")
    domain = min(group.domain_devices for group in scenario.cluster.groups)
    points = [point for point in _without_pipeline(like) if point.way.tensor == point.way.expert_tensor == 1]
    points.sort(key=lambda point: (-point.size, -point.way.expert))
    found: list[Proposal | Rejected] = []
    tell("simulating")
    for point in points:
        if sum(isinstance(one, Proposal) for one in found) >= _FSDP_SIMULATED:
            break
        groups = (None, domain) if domain < scenario.cluster.devices else (None,)
        found += [_sharded(like, point, group) for group in groups]
    if not found:
        return Ranking((), (Rejected("fsdp-ep", "no sizes divide the experts, the devices and the batch"),))
    return ranked(found, top)


def _sharded(scenario: Scenario, point: Grid, group: int | None) -> Proposal | Rejected:
    """A point under FSDP with the smallest recomputation that fits."""
    shards = f", shards of {group}" if group else ""
    name, found = "", Rejected("fsdp-ep", "no recomputation")
    for recompute in recompute_ladder(scenario):
        name = f"{point._replace(way=point.way._replace(recompute=recompute)).name(recompute)}{shards}"
        plan = _fsdp_plan(scenario, point, recompute, group)
        try:
            made = planned(scenario, plan, micro_batch_size=point.size)
        except SpecError as error:
            return Rejected(name, error.problems[0])
        one = propose("fsdp-ep", name, plan, made)
        if isinstance(one, Proposal):
            return one
        found = one
    return found


def _fsdp_plan(scenario: Scenario, point: Grid, recompute: Recompute, group: int | None) -> Any:
    return plan_like(
        scenario,
        context_parallel=point.way.context,
        expert_parallel=point.way.expert,
        sharding_group=group,
        recompute=recompute,
    )


def _with(scenario: Scenario, **changes: Any) -> Scenario:
    """The scenario with some switches of its plan changed."""
    return scenario.model_copy(update={"plan": scenario.plan.model_copy(update=changes)})


def _without_pipeline(scenario: Scenario) -> list[Grid]:
    return [point for point in grid(scenario) if point.stages == 1]
