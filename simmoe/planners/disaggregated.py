"""DistEP: attention and experts on different devices as in HeterMoE, but one micro-batch at a time."""

from dataclasses import replace

from simmoe.planners.hetermoe import plan
from simmoe.planners.proposal import Proposal, Ranking, ranked
from simmoe.planners.zebra_shapes import Limits
from simmoe.specs.scenario import Scenario

_DEGREES = (4, 1, 2, 8)  # the first on all shapes, the others on the best of them


def disaggregated(
    scenario: Scenario, *, degree: int = 0, micro_batch_size: int = 0, limits: Limits | None = None, top: int = 3
) -> Ranking:
    """Disaggregated expert parallelism: zebra plans of R = 1, whose exchanges are cut into pieces.

    Parameters
    ----------
    scenario : Scenario
    degree : int
        Pieces of an exchange (`Plan.a2a_ffn_overlap_degree`); 0 = the best of 1, 2, 4 and 8.
    micro_batch_size : int
        Sequences of a micro-batch; 0 = the best.
    limits : Limits or None
        Devices that are fixed in advance; R, degree and assignment are DistEP's own.
    top : int
        Proposals to return.

    Returns
    -------
    Ranking

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 6.1: the disaggregation of HeterMoE without its overlap of micro-batches.
    """
    fixed = (limits or Limits())._replace(micro_batches=1, assignment="none")
    if micro_batch_size:
        fixed = fixed._replace(micro_batch_size=micro_batch_size)
    first = degree or _DEGREES[0]
    ranking = plan(scenario, limits=fixed._replace(degree=first), top=top, compare=False)
    found = [_renamed(one, first) for one in ranking.proposals]
    for pieces in _DEGREES[1:] if found and not degree else ():
        like = _limits_of(found[0], fixed)._replace(degree=pieces)
        found += [_renamed(one, pieces) for one in plan(scenario, limits=like, top=top, compare=False).proposals]
    return ranked(found, top)._replace(rejected=ranking.rejected)


def _limits_of(proposal: Proposal, fixed: Limits) -> Limits:
    """The limits with the devices of a proposal."""
    zebra = proposal.plan.zebra
    if zebra is None:
        return fixed
    return fixed._replace(
        attention_devices=zebra.attention_devices, expert_devices=zebra.expert_devices, groups=zebra.groups
    )


def _renamed(proposal: Proposal, degree: int) -> Proposal:
    """The proposal under the planner's own name."""
    pieces = f", degree {degree}" if degree > 1 else ""
    return replace(proposal, planner="distep", name=f"{proposal.name}{pieces}")
