"""The search: the plan with the least bound L' of a 1F1B step, over all divisions of a model into stages."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from simmoe.planners.pipeline_search.frontier import FloatArray, IntArray, undominated
from simmoe.planners.pipeline_search.levels import Labels, start_labels, step_labels, steps_of
from simmoe.planners.pipeline_search.limits import (
    ALL_PRUNINGS,
    SAFE,
    Counts,
    Level,
    Prunings,
    Setting,
    clock_of,
    level_of,
    setting_of,
)
from simmoe.planners.pipeline_search.problem import (
    ONE_BLOCK,
    PipelinePlan,
    PipelineProblem,
    PlacedStage,
    Shape,
    check_pipeline,
)
from simmoe.planners.pipeline_search.tables import chosen_options
from simmoe.planners.pipeline_search.warm import first_plan

STEPS_AT_ONCE = 1_000_000
RAISE, MOST_RAISES = 1.15, 40  # of the limit, while nothing is found
NEAR = 1.03
FEW_DEVICES = 64  # up to which the search is quick from any first plan


class SearchResult(NamedTuple):
    """Plans, best first, what it took to find them, and plans that were the best on the way."""

    plans: tuple[PipelinePlan, ...]
    counts: Counts
    on_the_way: tuple[PipelinePlan, ...] = ()


class Finished(NamedTuple):
    """A complete plan of a run: its objective, the level of its first stage and its row there."""

    seconds: float
    level: int
    row: int


class Trail(NamedTuple):
    """Where the labels of a level come from."""

    parent: IntArray
    option: IntArray
    start: IntArray


def search(
    problems: Sequence[PipelineProblem],
    shape: Shape = ONE_BLOCK,
    prunings: Prunings = ALL_PRUNINGS,
    *,
    plans: int = 1,
    slack: float = 0.02,
    below_s: float = math.inf,
) -> SearchResult:
    """The plans with the least bound of the step, over all problems.

    Parameters
    ----------
    problems : sequence of PipelineProblem
        One for each pipeline unit, all of the same training step.
    shape : Shape
        What plans are allowed.
    prunings : Prunings
        None changes the optimum; to measure what each saves.
    plans : int
        How many different plans are wanted.
    slack : float
        How much worse than the best the others may be, as a share of it.
    below_s : float
        Plans whose bound is not less are of no interest [s].

    Returns
    -------
    SearchResult
        Empty plans if nothing fits, or nothing is of interest. The k-th plan is the k-th best of all, as far as they
        lie within `slack` and, with that pruning on, use no option that another one beats.

    Raises
    ------
    SpecError
        If a problem's tables describe no pipeline.

    Notes
    -----
    Stages are placed from the last to the first, so that a stage's number of micro-batches in flight is known when it
    is placed. A state is (stages placed, layers left, devices left of each type, type and size behind); its labels are
    Y, the bound L' of the stages placed, S, the time of one micro-batch through them, and D, the longest end of the
    step. A stage of f + b = t seconds with a boundary of c behind it makes::

        S0 = S + 2c,  w = min(M-1, k),  M - 1 = q (w+1) + r
        X  = max( M t + max(0, S0 - w f),  r f + (q+1) (t + S0) )
        Y <- max(Y + t + 2c, X),   S <- S0 + t,   D <- max(D, d)

    All three grow with the labels before, so a label that another one beats in all of them leads to no better plan. The
    objective is Y + D of a complete plan: a lower bound of its step (`bounds.tight_bound`), optimal as such; the plan
    whose replay is the fastest may be another one among the best few.

    References
    ----------
    HAPMoE, arXiv 2609.39350v1, section 3.4: the search space (stages of unlike types, layers, parallelism), which it
    searches with an additive recursion (`paper.py`). Narayanan et al. 2021, arXiv 2104.04473: 1F1B.

    Examples
    --------
    Four layers on a fast device (3 s a layer) and a slow one (9 s), eight micro-batches: three layers on the fast one
    make two equal stages of 9 s, (8 + 2 - 1) * 9 s.

    >>> from simmoe.planners.pipeline_search.problem import DeviceType, StageOption
    >>> fast = StageOption(0, 1, "", (1.0,) * 4, (2.0,) * 4, (0.0,) * 4, (1,) * 4, (0,) * 4, 9)
    >>> slow = fast._replace(device_type=1, forward_s=(3.0,) * 4, backward_s=(6.0,) * 4)
    >>> problem = PipelineProblem((DeviceType("fast", 1), DeviceType("slow", 1)), 4, 8, (fast, slow), ((0.0,) * 2,) * 2)
    >>> best = search([problem]).plans[0]
    >>> best.seconds, [(problem.options[stage.option].device_type, stage.layers) for stage in best.stages]
    (81.0, [(0, 3), (1, 1)])
    """
    for problem in problems:
        check_pipeline(problem)
    settings, counts = _settings(problems, shape, prunings)
    met: list[PipelinePlan] = []
    if prunings.warm_start:
        met = [plan for setting in settings if (plan := first_plan(setting)) and plan.seconds < below_s]
        if prunings.bound and any(sum(kind.devices for kind in problem.types) > FEW_DEVICES for problem in problems):
            found = _of_one_size(settings, min((plan.seconds for plan in met), default=below_s))
            met, counts = [*met, *found.plans], counts.added(found.counts)
    for setting in _most_promising_first(settings, met):
        limit = min((plan.seconds for plan in met), default=below_s)
        if prunings.bound and _least_seconds(setting) >= limit:
            continue
        found = run_levels(setting, limit)
        met, counts = [*met, *found.plans], counts.added(found.counts)
    # Of equal plans the first one found: options are in order of names, whatever order they were given in.
    met = sorted(dict.fromkeys(met), key=lambda plan: plan.seconds)
    if not met or plans < 2:
        return SearchResult(tuple(met[:1]), counts, tuple(met[1:]))
    several: list[PipelinePlan] = []
    limit = min(met[0].seconds * (1.0 + slack), below_s)
    for setting in settings:
        if prunings.bound and _least_seconds(setting) >= limit * SAFE:
            continue
        found = run_levels(setting._replace(keep=plans), limit, narrow=False)
        several += [plan for plan in found.plans if plan.seconds <= limit * SAFE]
        counts = counts.added(found.counts)
    several.sort(key=lambda plan: plan.seconds)
    return SearchResult(tuple(several[:plans]), counts, tuple(met[1:]))


def _most_promising_first(settings: list[Setting], met: Sequence[PipelinePlan]) -> list[Setting]:
    """What the first problems find spares the others much."""
    seconds = {plan.unit: plan.seconds for plan in met}

    def hope(setting: Setting) -> tuple[float, float, int]:
        unit = setting.problem.unit
        return seconds.get(unit, math.inf), _least_seconds(setting), unit

    return sorted(settings, key=hope)


def _of_one_size(settings: Sequence[Setting], limit: float) -> SearchResult:
    """Plans with equally large stages on all types: there are few, and often the best is among them.

    Limits are tried upwards from what no plan can beat, for a search that finds nothing costs little.
    """
    made = [one for setting in settings for one in _one_size_each(setting)]
    made.sort(key=lambda setting: len(setting.tables.kind))  # what the quick ones find spares the others
    tried, counts = min((_least_seconds(setting) for setting in made), default=math.inf), Counts()
    for _ in range(MOST_RAISES):
        tried = min(tried * RAISE, limit)
        plans: list[PipelinePlan] = []
        for setting in made:
            least = min([tried, *(plan.seconds for plan in plans)])
            if _least_seconds(setting) < least:
                found = run_levels(setting, least)
                plans, counts = [*plans, *found.plans], counts.added(found.counts)
        if plans or tried == limit:
            return _and_what_comes_near(made, plans, counts)
    return SearchResult((), counts)


def _and_what_comes_near(made: Sequence[Setting], plans: Sequence[PipelinePlan], counts: Counts) -> SearchResult:
    """Also the best of every size and unit that is nearly as good: the bound does not see all that tells them apart."""
    near = NEAR * min((plan.seconds for plan in plans), default=0.0)
    found = [run_levels(setting, near) for setting in made if _least_seconds(setting) < near]
    for one in found:
        counts = counts.added(one.counts)
    return SearchResult((*plans, *(plan for one in found for plan in one.plans)), counts)


def _one_size_each(setting: Setting) -> Iterator[Setting]:
    """The same problem, once for each size of stages."""
    problem, tables = setting.problem, setting.tables
    for size in sorted(set(tables.group_size.tolist())):
        options = [number for number in tables.option.tolist() if problem.options[number].devices == size]
        yield setting_of(problem, options, setting.shape._replace(sizes=(size,)), setting.prunings)


def _settings(problems: Sequence[PipelineProblem], shape: Shape, prunings: Prunings) -> tuple[list[Setting], Counts]:
    settings, counts = [], Counts()
    for problem in problems:
        options, dropped = chosen_options(problem, shape, dominance=prunings.options)
        counts = counts.plus(options=dropped)
        if options:
            settings.append(setting_of(problem, options, shape, prunings))
    return settings, counts


def _least_seconds(setting: Setting) -> float:
    """No plan of a problem takes less: all devices share the work, and one micro-batch passes all layers."""
    tables, many = setting.tables, setting.problem.micro_batches
    best = np.zeros(len(tables.counts))
    np.maximum.at(best, tables.group_kind, tables.rate)
    share = float(tables.weight[-1] / (best * tables.counts).sum())
    ahead = many - 1 - tables.ahead_share * min(setting.problem.most_stages - 1, many - 1)
    return max(many * share, float(tables.least[-1]) + ahead * share)


def run_levels(setting: Setting, limit: float, *, narrow: bool = True) -> SearchResult:
    """All plans of one problem, level by level.

    Parameters
    ----------
    setting : Setting
    limit : float
        Seconds of the plan at hand; plans that are not better are not looked for [s].
    narrow : bool
        Let complete plans on the way lower the limit; off, everything below the limit is kept.

    Returns
    -------
    SearchResult
        The `Setting.keep` best plans, best first; of an additive search, the best with each number of stages.
    """
    labels, counts, clock = start_labels(setting), Counts(), clock_of(setting, limit)
    trails: list[Trail] = []
    finished: list[Finished] = []
    for placed in range(setting.problem.most_stages):
        labels, done, objective, counts = _advance(setting, labels, level_of(setting, placed, clock), counts)
        first = len(labels.left)
        trails.append(Trail(*(np.concatenate([a, b]) for a, b in zip(labels[-3:], done[-3:], strict=True))))
        finished += [Finished(value, placed, first + row) for row, value in enumerate(objective.tolist())]
        if narrow and not setting.additive:
            limit = min([clock.limit, *objective.tolist()])
            clock = clock if limit == clock.limit else clock_of(setting, limit)
        if not first:
            break
    finished.sort()
    chosen = finished if setting.additive else finished[: setting.keep]
    plans = tuple(PipelinePlan(end.seconds, setting.problem.unit, _stages(setting, trails, end)) for end in chosen)
    return SearchResult(plans, counts)


def _advance(
    setting: Setting, labels: Labels, level: Level, counts: Counts
) -> tuple[Labels, Labels, FloatArray, Counts]:
    """The next level: labels with layers left, complete plans and their objective."""
    parts, begin = [], 0
    rows = max(1, STEPS_AT_ONCE // (len(setting.tables.kind) * (setting.problem.layers + 1)))
    while begin < len(labels.left):
        chunk = np.arange(begin, min(begin + rows, len(labels.left)))
        made, looked, counts = _block(setting, labels, chunk, level, counts)
        parts.append(made)
        begin += rows
        # As many rows as the last block suggests: how many layers a stage may have differs little from row to row.
        rows = max(1, min(4 * rows, rows * STEPS_AT_ONCE // max(1, looked)))
    made = parts[0] if len(parts) == 1 else Labels(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    complete = np.flatnonzero(made.left == 0)
    objective = made.bound[complete] + (0.0 if setting.additive else made.update[complete])
    order = np.argsort(objective, kind="stable")[: setting.keep]
    open_rows = np.flatnonzero(made.left)
    rest = made.rows(open_rows) if len(complete) else made
    key = state_keys(setting, rest)
    if setting.prunings.dominance:
        kept = undominated(key, _columns(setting, rest), setting.keep)
        counts = counts.plus(by_dominance=len(key) - len(kept))
        rest, key = rest.rows(kept), key[kept]
    counts = counts.plus(labels=len(key), states=len(np.unique(key)))
    return rest, made.rows(complete[order]), objective[order], counts


def _block(
    setting: Setting, labels: Labels, chunk: IntArray, level: Level, counts: Counts
) -> tuple[Labels, int, Counts]:
    """What some rows of a level become, without those that cannot beat the limit, and how many steps were looked at."""
    steps, front, counts = steps_of(setting, labels.rows(chunk), level, counts)
    looked = len(steps.start)
    made = step_labels(setting, labels.rows(chunk), steps, front, level)
    made = made._replace(parent=chunk[made.parent])
    counts = counts.plus(transitions=len(made.left))
    if setting.prunings.bound and level.clock.limit < np.inf:
        good = np.flatnonzero(made.hope < level.clock.limit * SAFE)
        counts = counts.plus(by_bound=len(made.left) - len(good))
        made = made.rows(good)
    return made, looked, counts


def _columns(setting: Setting, labels: Labels) -> tuple[FloatArray, ...]:
    """What counts in a comparison of labels."""
    if setting.additive:
        return (labels.serial,)
    return (labels.bound, labels.serial, labels.update)


def state_keys(setting: Setting, labels: Labels) -> IntArray:
    """One number for each state: layers and devices left, type and size of the stage behind."""
    tables, shape = setting.tables, setting.shape
    columns, counts = [labels.left], [setting.problem.layers + 1]
    if setting.by_kind:
        columns, counts = [*columns, labels.kind], [*counts, len(tables.counts)]
    if shape.one_size:
        columns, counts = [*columns, labels.size], [*counts, int(tables.size.max()) + 1]
    for kind, count in enumerate(tables.counts.tolist()):
        devices = labels.devices[:, kind]
        if shape.one_block and not shape.all_devices:
            # What a finished block left over cannot be used any more.
            devices = np.where((labels.kind == kind) | (devices == count), devices, 0)
        columns, counts = [*columns, devices], [*counts, count + 1]
    if math.prod(counts) >= 2**63:
        return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    key = np.zeros_like(labels.left)
    for column, count in zip(columns, counts, strict=True):
        key = key * count + column
    return key


def _stages(setting: Setting, trails: Sequence[Trail], end: Finished) -> tuple[PlacedStage, ...]:
    """The stages of a complete plan, first to last."""
    found, row = [], end.row
    for level in range(end.level, -1, -1):
        parent, option, start = (int(column[row]) for column in trails[level])
        found.append((int(setting.tables.option[option]), start))
        row = parent
    edges = [start for _, start in found] + [setting.problem.layers]
    return tuple(PlacedStage(option, a, b - a) for (option, a), b in zip(found, edges[1:], strict=True))
