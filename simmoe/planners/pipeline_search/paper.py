"""HAPMoE's search as printed: a recursion that adds stages up, three prunings, and a formula for the step.

What it says differently from the exact search, and where it contradicts itself, can be chosen flag by flag.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simmoe.errors import SpecError
from simmoe.planners.pipeline_search.bounds import Stages
from simmoe.planners.pipeline_search.exact import SearchResult, run_levels
from simmoe.planners.pipeline_search.limits import Counts, Prunings, Window, setting_of
from simmoe.planners.pipeline_search.problem import (
    ONE_BLOCK,
    PipelinePlan,
    PipelineProblem,
    PlacedStage,
    Shape,
    check_pipeline,
    stage_times,
)
from simmoe.planners.pipeline_search.tables import Tables, chosen_options, kinds_by_name

WINDOWS = ("normalised", "printed", "none")


class PaperRules(NamedTuple):
    """How the printed algorithm is read.

    Attributes
    ----------
    window : str
        Load balance. ``"printed"``: every stage has (1 -+ delta) w_h N layers, w_h = P_h / sum of P over types: with
        two stages of a type, twice the layers of the type. ``"normalised"``: w of a stage is its devices' share of the
        cluster's power, and the whole numbers beside its middle are always in. ``"none"``: off.
    delta : float
        Half width of the window [1].
    eta : float
        A boundary between types is not allowed if its two transfers take longer than eta mean stages; 0 = off.
    type_behind : bool
        The type of the neighbour belongs to the state, which the transfer between types needs; the printed state is
        (stages, layers, devices left).
    """

    window: str = "normalised"
    delta: float = 0.2
    eta: float = 2.0
    type_behind: bool = True


NORMALISED = PaperRules()


def equation_4_and_5(stages: Stages, micro_batches: int) -> float:
    """HAPMoE's formula for a 1F1B step, without gradients and optimizer.

    Parameters
    ----------
    stages : Stages
    micro_batches : int
        M.

    Returns
    -------
    float
        [s].

    Notes
    -----
    ::

        T = sum_i (f_i + b_i) + sum_{i<=s} f_i + max(0, M - s - 1) max_i (f_i + b_i)        stages 1..p, s the slowest

    of equally slow stages the first. M < s + 1 is not printed; the term is then left out. Transfers are not in it, and
    are added here twice each, as the recursion does. It is neither an upper nor a lower bound.

    References
    ----------
    HAPMoE, arXiv 2609.39350v1, equations 4 and 5.

    Examples
    --------
    Eight stages, the last one barely the slowest: 24 + 8 + 55 * 3 s, where 1F1B takes (64 + 7) * 3 = 213 s.

    >>> round(equation_4_and_5(Stages([1.0] * 8, [2.0] * 7 + [2.0 + 1e-9]), 64), 6)
    197.0
    """
    total = [f + b for f, b in zip(stages.forward_s, stages.backward_s, strict=True)]
    slowest = max(range(len(total)), key=lambda stage: total[stage])
    middle = sum(stages.forward_s[: slowest + 1]) + max(0, micro_batches - slowest - 2) * total[slowest]
    return sum(total) + sum(stages.round_trips) + middle


def paper_search(
    problems: Sequence[PipelineProblem], rules: PaperRules = NORMALISED, shape: Shape = ONE_BLOCK
) -> SearchResult:
    """The plans that HAPMoE's algorithm finds, best by its own formula first.

    Parameters
    ----------
    problems : sequence of PipelineProblem
    rules : PaperRules
    shape : Shape

    Returns
    -------
    SearchResult
        For each problem and each number of stages the plan with the least sum of stages and transfers, ordered by
        equations 4 and 5 with the end of the step, which is their `seconds`. Empty if nothing is left.

    Raises
    ------
    SpecError
        If a problem's tables or a rule are wrong.

    Notes
    -----
    ::

        DP[i, j, m] = min over k, h of  DP[i-1, k, m'] + T_stage(h, k+1..j) + T_comm(h, h')

    The recursion runs from the last stage to the first, which changes nothing for a sum, and tells the micro-batches in
    flight that the memory test needs. A sum knows no slowest stage, M does not enter it: without the window it puts all
    layers on the fastest devices. The mean stage of the third pruning is unknown before a plan is; here it is that of a
    perfectly balanced pipeline of all devices.

    References
    ----------
    HAPMoE, arXiv 2609.39350v1, section 3.4 and algorithm 1.
    """
    if rules.window not in WINDOWS or rules.delta < 0.0 or rules.eta < 0.0:
        raise SpecError([f"window must be one of {', '.join(WINDOWS)}, delta and eta not negative (got {rules})"])
    counts, plans = Counts(), []
    for problem in problems:
        check_pipeline(problem)
        options, _ = chosen_options(problem, shape, dominance=False)
        if not options:
            continue
        prunings = Prunings(options=False, warm_start=False, bound=False, capacity=False)
        setting = setting_of(problem, options, shape, prunings)
        window = _window(problem, setting.tables, rules)
        setting = setting._replace(additive=True, by_kind=rules.type_behind, window=window)
        found = run_levels(setting, np.inf)
        counts = counts.added(found.counts)
        plans += [_by_formula(problem, plan.stages) for plan in found.plans]
    return SearchResult(tuple(sorted(plans, key=lambda plan: plan.seconds)), counts)


def _by_formula(problem: PipelineProblem, stages: tuple[PlacedStage, ...]) -> PipelinePlan:
    times = stage_times(problem, stages)
    seconds = equation_4_and_5(Stages(times.forward_s, times.backward_s, times.transfer_s), problem.micro_batches)
    return PipelinePlan(seconds + times.update_s, problem.unit, stages)


def _window(problem: PipelineProblem, tables: Tables, rules: PaperRules) -> Window:
    """Fewest and most layers of a stage of each group, and which boundaries between types are allowed."""
    best = np.zeros(len(tables.counts))
    np.maximum.at(best, tables.group_kind, tables.rate)
    given = np.array([problem.types[kind].power for kind in kinds_by_name(problem)])
    power = np.where(given > 0.0, given, best)
    if rules.window == "printed":
        share = power[tables.group_kind] / power.sum()
    else:
        share = power[tables.group_kind] * tables.group_size / (power * tables.counts).sum()
    layers = share * problem.layers
    fewest, most = (1.0 - rules.delta) * layers, (1.0 + rules.delta) * layers
    if rules.window == "none":
        fewest, most = np.zeros(len(share)), np.full(len(share), float(problem.layers))
    if rules.window == "normalised":
        # A narrow window may hold no whole number; the two beside the share itself are always allowed.
        fewest, most = np.minimum(fewest, np.floor(layers)), np.maximum(most, np.ceil(layers))
    devices = (best * tables.counts).sum()
    mean = tables.weight[-1] / devices
    boundary = np.ones_like(tables.transfer)
    if rules.eta > 0.0:
        boundary = (2.0 * tables.transfer <= rules.eta * mean).astype(np.float64)
        np.fill_diagonal(boundary, 1.0)
    return Window(fewest, most, boundary)
