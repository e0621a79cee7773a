"""Metis as a planner: unlike stages, experts shared as on the best homogeneous cluster."""

from collections import defaultdict

from simmoe.planners.pipeline_candidates import SIMULATED, Candidate, candidates, nothing_fits, simulated, sizes_for
from simmoe.planners.pipeline_search.metis import Ladder, metis_search
from simmoe.planners.pipeline_tables import Tables, tables_of
from simmoe.planners.proposal import Ranking, ranked
from simmoe.planners.stage_model import StageModel
from simmoe.planners.watch import tell
from simmoe.planners.ways import Freedom, recompute_ladder
from simmoe.specs.scenario import Scenario

NAME = "metis"


def metis(scenario: Scenario, *, top: int = 3, expert: int = 0) -> Ranking:
    """The plans that Metis finds.

    Parameters
    ----------
    scenario : Scenario
    top : int
        Proposals to return.
    expert : int
        Devices that share the experts of a layer, in a stage of as many; 0 = as many as stand in a scale-up domain,
        which is the best choice on almost every homogeneous cluster.

    Returns
    -------
    Ranking
        Of the best by Metis' own estimate; a stage computes again what it must, which Metis does not plan: everything
        is planned once for each rung of `recompute_ladder`, the same for all stages.

    References
    ----------
    Um et al. 2024, "Metis", USENIX ATC; frozen expert sizes as in HAPMoE, arXiv 2609.39350v1, section 5.1.
    """
    domain = min(group.domain_devices for group in scenario.cluster.groups)
    experts = scenario.model.moe.num_experts if scenario.model.moe else 1
    frozen = expert or max(size for size in range(1, domain + 1) if experts % size == 0)
    model, found = StageModel(scenario), list[Candidate]()
    for recompute in recompute_ladder(scenario):
        tell("working out every way to run a stage")
        freedom = Freedom(expert=frozen, expert_tensor=1, recomputes=(recompute,))
        tables = tables_of(scenario, freedom, sizes_for(scenario), model)
        tell("cutting devices into groups")
        plans = metis_search(tables.problems, [_ladder(tables, unit) for unit in _units(tables)], plans=SIMULATED)
        found += candidates(tables, plans, model, own=True)[0]
    if not found:
        return Ranking((), (nothing_fits(NAME, tables),))
    tell("simulating")
    best = sorted(found, key=lambda one: one.predicted_s)[:SIMULATED]
    why = f"Metis shares experts over {frozen} devices of a stage, as the best homogeneous plan does, and does not ask."
    return ranked([simulated(NAME, one, [why]) for one in best], top)


def _units(tables: Tables) -> list[int]:
    return [problem.unit for problem in tables.problems]


def _ladder(tables: Tables, unit: int) -> Ladder:
    """Options of as many devices of a type, pure data parallelism first."""
    problem, chosen = tables.problem(unit)
    ladder: dict[tuple[int, int], list[int]] = defaultdict(list)
    order = sorted(range(len(chosen)), key=lambda number: (chosen[number].tensor * chosen[number].context, number))
    for number in order:
        option = problem.options[number]
        ladder[option.device_type, option.devices].append(number)
    return ladder
