"""HAPMoE's question answered exactly: the stages, their devices, layers and parallel sizes of the fastest pipeline."""

from math import comb, inf
from typing import Literal

from simmoe.errors import SpecError
from simmoe.planners.interleaving import interleaved
from simmoe.planners.pipeline_candidates import (
    SIMULATED,
    candidates,
    nothing_fits,
    shape_for,
    simulated,
    sizes_for,
)
from simmoe.planners.pipeline_search.brute import brute_force
from simmoe.planners.pipeline_search.exact import SearchResult, search
from simmoe.planners.pipeline_search.limits import Counts
from simmoe.planners.pipeline_search.paper import paper_search
from simmoe.planners.pipeline_tables import Tables, tables_of
from simmoe.planners.proposal import Ranking, ranked
from simmoe.planners.stage_model import StageModel
from simmoe.planners.watch import tell
from simmoe.planners.ways import Freedom
from simmoe.specs.scenario import Scenario

NAME = "hapmoe"
Mode = Literal["exact", "paper", "brute"]

SLACK = 0.02
"""How much longer than the best the other simulated plans may take by the planner's own model, as a share of it."""
_NEAR = 1.1  # of the best: plans met on the way that are worth a try with virtual stages
_SEVERAL = 2048  # devices x layers; the ten best of larger questions take long to tell apart, and differ in little
_MOST_PLANS = 2_000_000  # of a search by brute force


def hapmoe(
    scenario: Scenario,
    *,
    mode: Mode = "exact",
    top: int = 5,
    freedom: Freedom | None = None,
    virtual: bool = True,
) -> Ranking:
    """The fastest pipeline of stages that may differ in everything.

    Parameters
    ----------
    scenario : Scenario
        Its plan says how to shard, overlap and exchange tokens; its sizes do not matter.
    mode : str
        ``exact``: the least bound L' of all plans. ``paper``: HAPMoE's recursion with its three prunings. ``brute``:
        every plan, one after another, for small questions.
    top : int
        Proposals to return.
    freedom : Freedom or None
        What stages may differ in; None = everything.
    virtual : bool
        Also try virtual stages, which the paper does not.

    Returns
    -------
    Ranking
        The `SIMULATED` best plans by the planner's own model, of large questions the best and what was met on the way
        to it, in the order of the simulation; and, where they are faster, plans with virtual stages.

    Raises
    ------
    SpecError
        If a search by brute force would take too long.

    Notes
    -----
    Layers, devices, tensor, context, data, expert and expert-tensor parallelism and recomputation of each stage are
    free, and so is the pipeline's micro-batch. Restrictions: stages of a node group stand side by side; on more than 64
    devices they are equally large and no device is idle. What `simmoe.planners.ways` leaves out is never tried.

    References
    ----------
    HAPMoE, arXiv 2609.39350v1, section 3.
    """
    model = StageModel(scenario)
    tell("working out every way to run a stage")
    tables = tables_of(scenario, freedom, sizes_for(scenario), model)
    tell("searching for stages and layers")
    result = _searched(tables, mode)
    if not result.plans:
        return Ranking((), (nothing_fits(NAME, tables),))
    near = [plan for plan in result.on_the_way if plan.seconds <= _NEAR * result.plans[0].seconds]
    several = list(dict.fromkeys([*result.plans[:SIMULATED], *near]))
    chosen, rejected = candidates(tables, several, model, own=mode == "paper")
    tell("simulating")
    found = [simulated(NAME, one) for one in chosen[:SIMULATED]]
    if virtual and mode == "exact":
        best_s = min((one.simulated_s for one in ranked(found).proposals), default=inf)
        found += interleaved(NAME, chosen, best_s, model)
    ranking = ranked([*found, *rejected], top)
    return ranking._replace(remarks=(_searched_words(result.counts, mode), *_bound_words(result, ranking, mode)))


def _searched(tables: Tables, mode: Mode) -> SearchResult:
    """The best plans by the objective of a mode."""
    shape = shape_for(tables.scenario)
    if mode == "paper":
        return paper_search(tables.problems, shape=shape)
    if mode == "brute":
        _check_small(tables)
        return SearchResult(brute_force(tables.problems, shape, plans=SIMULATED), Counts())
    small = tables.scenario.cluster.devices * tables.scenario.model.num_layers <= _SEVERAL
    return search(tables.problems, shape, plans=SIMULATED if small else 1, slack=SLACK)


def _check_small(tables: Tables) -> None:
    """Refuse what would take hours."""
    many = 0
    for problem in tables.problems:
        smallest = min(option.devices for option in problem.options)
        stages = min(problem.most_stages, sum(kind.devices for kind in problem.types) // smallest)
        many += sum(comb(problem.layers - 1, p - 1) * len(problem.options) ** p for p in range(1, stages + 1))
    if many > _MOST_PLANS:
        raise SpecError(
            [f"--mode brute: {many:.1e} plans are more than {_MOST_PLANS:.0e}; use --mode exact, it finds the same"]
        )


def _searched_words(counts: Counts, mode: Mode) -> str:
    """What the search looked at."""
    if mode == "brute":
        return "Every plan was looked at."
    cut = {
        "memory": counts.by_memory,
        "time": counts.by_time,
        "devices left": counts.by_capacity,
        "bound": counts.by_bound,
        "dominance": counts.by_dominance,
        "quicker options": counts.by_options,
        "the paper's prunings": counts.by_window,
    }
    pruned = ", ".join(f"{number:,} by {name}" for name, number in cut.items() if number)
    return f"{counts.states:,} states and {counts.transitions:,} partial plans were looked at; left out: {pruned}."


def _bound_words(result: SearchResult, ranking: Ranking, mode: Mode) -> list[str]:
    """How good the best plan is."""
    if mode == "paper" or not ranking.proposals:
        return []
    least, best = result.plans[0].seconds, ranking.best.simulated_s
    return [
        f"By the planner's model no 1F1B plan of the search space takes less than {least:.3f} s; the best one takes "
        f"{best:.3f} s in the simulation."
    ]
