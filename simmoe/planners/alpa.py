"""Alpa as a planner: the best pipeline if every device were the slowest one."""

from simmoe.planners.pipeline_candidates import SIMULATED, Candidate, candidates, nothing_fits, simulated, sizes_for
from simmoe.planners.pipeline_search.alpa import alpa_search
from simmoe.planners.pipeline_tables import tables_of
from simmoe.planners.proposal import Ranking, Rejected, planned, ranked
from simmoe.planners.stage_model import StageModel
from simmoe.planners.watch import tell
from simmoe.planners.ways import Freedom, recompute_ladder
from simmoe.planners.zebra_shapes import short_name
from simmoe.specs.hardware import NodeGroup
from simmoe.specs.scenario import Scenario

NAME = "alpa"


def alpa(scenario: Scenario, *, top: int = 3) -> Ranking:
    """The pipelines of Alpa's two levels: between operators a dynamic program, inside a stage the quickest way.

    Parameters
    ----------
    scenario : Scenario
    top : int
        Proposals to return.

    Returns
    -------
    Ranking
        The best for each micro-batch and each rung of `recompute_ladder` (the same for all stages), by Alpa's own
        estimate, which sees all devices as those of the slowest node group. A plan that does not fit the devices that
        there really are is refused.

    References
    ----------
    Zheng et al. 2022, arXiv 2201.12023, section 5; on unlike devices as HAPMoE (arXiv 2609.39350v1, section 5.1) runs
    it.
    """
    cluster = scenario.cluster.model_copy(update={"groups": (_slowest(scenario),)})
    alike = scenario.model_copy(update={"cluster": cluster})
    model, found, rejected = StageModel(alike), list[Candidate](), list[Rejected]()
    for recompute in recompute_ladder(scenario):
        tell("working out every way to run a stage")
        tables = tables_of(alike, Freedom(recomputes=(recompute,)), sizes_for(alike), model)
        tell("choosing stages")
        answers = [alpa_search(problem) for problem in tables.problems]
        own, forbidden = candidates(tables, [plan for plan in answers if plan is not None], model, own=True)
        found += own
        rejected += forbidden
    if not found:
        return Ranking((), (nothing_fits(NAME, tables), *rejected))
    tell("simulating")
    best = sorted(found, key=lambda one: one.predicted_s)[:SIMULATED]
    real = [_on(scenario, one) for one in best]
    why = f"Alpa takes every device for {cluster.groups[0].node.accelerator.name}."
    return ranked([*(simulated(NAME, one, [why]) for one in real), *rejected], top)


def _on(scenario: Scenario, one: Candidate) -> Candidate:
    """A plan on the devices that there really are, whose names are not in its name."""
    made = planned(scenario, one.plan, micro_batch_size=one.scenario.training.micro_batch_size)
    return one._replace(name=one.name.replace(f" on {short_name(one.scenario.cluster, 0)}", ""), scenario=made)


def _slowest(scenario: Scenario) -> NodeGroup:
    """A node group of as many devices as the cluster has, all like those with the lowest peak.

    Nodes have equally many devices in all clusters that Alpa knows; a rest that fills no node is left out.
    """
    dtype = scenario.training.precision.gemm_dtype

    def peak(group: NodeGroup) -> float:
        quantity = group.node.accelerator.peak_flops.get(dtype)
        return quantity.value if quantity is not None else 0.0

    slowest = min(scenario.cluster.groups, key=peak)
    return slowest.model_copy(update={"count": scenario.cluster.devices // slowest.node.accelerators})
