"""HAPMoE's question answered exactly: the stages, their devices, layers and parallel sizes of the fastest pipeline."""

from collections.abc import Sequence
from math import comb
from typing import Literal, NamedTuple

from simmoe.errors import SpecError
from simmoe.planners.interleaving import interleaved
from simmoe.planners.pipeline_search.brute import brute_force
from simmoe.planners.pipeline_search.exact import SearchResult, search
from simmoe.planners.pipeline_search.limits import Counts
from simmoe.planners.pipeline_search.paper import paper_search
from simmoe.planners.pipeline_search.problem import ONE_BLOCK, PipelinePlan, Shape
from simmoe.planners.pipeline_tables import Sizes, Tables, plan_of, tables_of
from simmoe.planners.proposal import Proposal, Ranking, Rejected, planned, propose, ranked
from simmoe.planners.stage_model import StageModel
from simmoe.planners.step_model import Prediction, predict
from simmoe.planners.watch import tell
from simmoe.planners.ways import Freedom
from simmoe.specs.plan import Plan
from simmoe.specs.scenario import Scenario

Mode = Literal["exact", "paper", "brute"]

SIMULATED = 10
"""Plans of a search that are simulated."""
SLACK = 0.02
"""How much longer than the best they may take by the planner's own model, as a share of it."""
_MANY_DEVICES = 64  # beyond, every type has one stage size, and no device stays idle
_MOST_PLANS = 2_000_000  # of a search by brute force
_WHOLE = Shape(one_block=True, one_size=True, all_devices=True)


class Candidate(NamedTuple):
    """A plan before it is simulated."""

    name: str
    plan: Plan
    scenario: Scenario
    prediction: Prediction


def hapmoe(scenario: Scenario, *, mode: Mode = "exact", top: int = 5, freedom: Freedom | None = None) -> Ranking:
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

    Returns
    -------
    Ranking
        The `SIMULATED` best plans by the planner's own model, in the order of the simulation, and, where it is faster,
        the best of them with virtual stages.

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
    if not tables.problems:
        return Ranking((), _nothing_fits(scenario))
    tell("searching for stages and layers")
    result = _searched(tables, mode)
    if not result.plans:
        return Ranking((), _nothing_fits(scenario, tables))
    candidates = _candidates(scenario, tables, result.plans, mode, model)
    tell("simulating")
    found = [one if isinstance(one, Rejected) else _simulated(one) for one in candidates]
    if mode == "exact":
        found += interleaved(ranked(found).proposals[:2], model)
    ranking = ranked(found, top)
    return ranking._replace(remarks=(_searched_words(result.counts, mode), *_bound_words(result, ranking, mode)))


def sizes_for(scenario: Scenario) -> Sizes:
    """What stages of a cluster may have; few sizes where there are many devices."""
    if scenario.cluster.devices <= _MANY_DEVICES:
        return Sizes()
    node = max(group.node.accelerators for group in scenario.cluster.groups)
    largest = max(group.devices for group in scenario.cluster.groups)
    return Sizes(stages=tuple(node * 2**power for power in range(largest.bit_length()) if node * 2**power <= largest))


def shape_for(scenario: Scenario) -> Shape:
    """What plans are looked for on a cluster."""
    return ONE_BLOCK if scenario.cluster.devices <= _MANY_DEVICES else _WHOLE


def _searched(tables: Tables, mode: Mode) -> SearchResult:
    """The best plans by the objective of a mode."""
    shape = shape_for(tables.scenario)
    if mode == "paper":
        return paper_search(tables.problems, shape=shape)
    if mode == "brute":
        _check_small(tables)
        return SearchResult(brute_force(tables.problems, shape, plans=SIMULATED), Counts())
    return search(tables.problems, shape, plans=SIMULATED, slack=SLACK)


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


def _candidates(
    scenario: Scenario, tables: Tables, plans: Sequence[PipelinePlan], mode: Mode, model: StageModel
) -> list[Candidate | Rejected]:
    """The plans of a search, most promising first; the printed algorithm keeps its own order and its own formula."""
    found: list[Candidate | Rejected] = []
    for one in plans[:SIMULATED]:
        name = described(tables, one)
        plan, size = plan_of(tables, one)
        try:
            made = planned(scenario, plan, micro_batch_size=size)
        except SpecError as error:
            found.append(Rejected(name, error.problems[0]))
            continue
        prediction = predict(made, model)
        if mode == "paper":
            prediction = prediction._replace(seconds=one.seconds)
        found.append(Candidate(name, plan, made, prediction))
    if mode == "paper":
        return found
    return sorted(found, key=lambda one: one.prediction.seconds if isinstance(one, Candidate) else 0.0)


def _simulated(one: Candidate) -> Proposal | Rejected:
    """A candidate as a whole step."""
    seconds, lower, upper = one.prediction
    why = [f"Bounds of its 1F1B step: L {lower:.3f} s, L' {seconds:.3f} s; the familiar estimate U {upper:.3f} s."]
    return propose("hapmoe", one.name, one.plan, one.scenario, seconds, why)


def described(tables: Tables, found: PipelinePlan) -> str:
    """A plan in a few words: layers of each stage and how it is run; neighbours that are run alike are counted.

    ``2 x 9 layers on H800, TP2 DP4 EP8 - 6 on 910B, ...``
    """
    problem, chosen = tables.problem(found.unit)
    words: list[tuple[str, list[int]]] = []
    for stage in found.stages:
        name = f"{problem.types[problem.options[stage.option].device_type].name} {chosen[stage.option].name}"
        if not words or words[-1][0] != name:
            words.append((name, []))
        words[-1][1].append(stage.layers)
    return ", ".join(f"{'+'.join(map(str, layers))} layers on {name}" for name, layers in words)


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


def _nothing_fits(scenario: Scenario, tables: Tables | None = None) -> tuple[Rejected, ...]:
    """Why there is no plan."""
    if tables is not None:
        return (Rejected("hapmoe", "does not fit: the layers are too many for the memory of all devices together"),)
    return (Rejected("hapmoe", "does not fit: no device type can hold a single layer in any way"),)
