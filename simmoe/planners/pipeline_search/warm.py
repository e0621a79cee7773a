"""A first plan to beat: layers in proportion to the stages' speeds, rounded, and equally many on each stage."""

from collections.abc import Iterator
from itertools import islice, permutations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.planners.pipeline_search.bounds import Stages, tight_bound
from simmoe.planners.pipeline_search.frontier import FloatArray, IntArray
from simmoe.planners.pipeline_search.limits import Setting
from simmoe.planners.pipeline_search.problem import PipelinePlan, PipelineProblem, PlacedStage, fits, stage_times

TRIED, ORDERS, ROUNDS = 12, 24, 4


class Blocks(NamedTuple):
    """Stages of one size for each type that is used: group of options and number of stages."""

    groups: tuple[int, ...]
    stages: tuple[int, ...]


def plan_seconds(problem: PipelineProblem, stages: tuple[PlacedStage, ...]) -> float:
    """The objective of the exact search: the bound L' and the longest end of the step.

    Parameters
    ----------
    problem : PipelineProblem
    stages : tuple of PlacedStage
        First to last.

    Returns
    -------
    float
        [s].
    """
    times = stage_times(problem, stages)
    bound = tight_bound(Stages(times.forward_s, times.backward_s, times.transfer_s), problem.micro_batches)
    return bound + times.update_s


def first_plan(setting: Setting) -> PipelinePlan | None:
    """The best of some plans with one stage size for each type and layers split by speed, or equally.

    Parameters
    ----------
    setting : Setting

    Returns
    -------
    PipelinePlan or None
        None if none of them fits.

    Notes
    -----
    The dozen best choices of stage sizes by ``(M + p - 1) W/R`` are tried, in every order of the types. A stage takes
    the fastest option that has room for its layers, then the layers are divided anew by the speeds of these options.
    """
    best: PipelinePlan | None = None
    for blocks in islice(_by_estimate(setting), TRIED):
        for order in islice(permutations(range(len(blocks.groups))), ORDERS):
            chain = np.array([blocks.groups[place] for place in order for _ in range(blocks.stages[place])])
            for equally in (False, True):
                stages = _split(setting, chain, equally=equally)
                if fits(setting.problem, stages):
                    seconds = plan_seconds(setting.problem, stages)
                    if best is None or seconds < best.seconds:
                        best = PipelinePlan(seconds, setting.problem.unit, stages)
    return best


def _by_estimate(setting: Setting) -> Iterator[Blocks]:
    """Choices of a stage size for each type, the most promising first."""
    tables, shape, problem = setting.tables, setting.shape, setting.problem
    choices: list[list[int]] = []
    for kind, count in enumerate(tables.counts.tolist()):
        groups = np.flatnonzero(tables.group_kind == kind).tolist()
        if shape.all_devices:
            groups = [group for group in groups if count % tables.group_size[group] == 0]
        choices.append(groups if shape.all_devices else [*groups, -1])
    found = []
    for chosen in product(*choices):
        used = tuple(group for group in chosen if group >= 0)
        stages = tuple(int(tables.counts[tables.group_kind[g]] // tables.group_size[g]) for g in used)
        if used and sum(stages) <= problem.most_stages:
            devices = zip(used, stages, strict=True)
            rate = sum(number * float(tables.group_size[g] * tables.rate[g]) for g, number in devices)
            estimate = (problem.micro_batches + sum(stages) - 1) * float(tables.weight[-1]) / rate
            found.append((estimate, Blocks(used, stages)))
    return (blocks for _, blocks in sorted(found))


def _split(setting: Setting, chain: IntArray, *, equally: bool) -> tuple[PlacedStage, ...]:
    """Layers and options for a chain of groups: each takes its fastest option that fits, and layers by its speed."""
    tables = setting.tables
    own = tables.group == chain[:, None]
    total = tables.total[:, -1]
    options = np.where(own, total, np.inf).argmin(axis=1)
    for _ in range(ROUNDS):
        edges = _edges(setting, np.ones(len(chain)) if equally else 1.0 / total[options], equally=equally)
        before = options
        options = _fastest_that_fit(setting, own, edges)
        if (options == before).all():
            break
    cuts = edges.tolist()
    named = tables.option[options].tolist()
    return tuple(PlacedStage(option, a, b - a) for option, a, b in zip(named, cuts, cuts[1:], strict=False))


def _edges(setting: Setting, speed: FloatArray, *, equally: bool) -> IntArray:
    """The first layer of each stage, and the number of layers; at least one layer each."""
    layers, stages = setting.problem.layers, len(speed)
    work = np.arange(layers + 1.0) if equally else setting.tables.weight
    ends = np.cumsum(speed)[:-1] / speed.sum() * work[-1]
    cuts = np.searchsorted((work[1:] + work[:-1]) / 2, ends)
    places = np.arange(1, stages)
    cuts = np.minimum(np.maximum.accumulate(np.maximum(cuts - places, 0)) + places, layers - stages + places)
    return np.concatenate([[0], cuts, [layers]])


def _fastest_that_fit(setting: Setting, own: NDArray[np.bool_], edges: IntArray) -> IntArray:
    """Of each stage the fastest option with room for its layers; if there is none, the one that lacks least."""
    tables, stages = setting.tables, len(own)
    flying = np.minimum(setting.problem.micro_batches, np.arange(stages, 0, -1))[:, None]
    first, last = edges[:-1], edges[1:]
    total = (tables.total[:, last] - tables.total[:, first]).T
    needed = (tables.held[:, last] - tables.held[:, first]).T + flying * (
        tables.kept[:, last] - tables.kept[:, first]
    ).T
    needed -= tables.room
    needed[0] += tables.first.held + flying[0] * tables.first.kept
    needed[-1] += tables.last.held + tables.last.kept
    quick = np.where(own & (needed <= 0), total, np.inf).argmin(axis=1)
    lean = np.where(own, needed, np.iinfo(np.int64).max).argmin(axis=1)
    chosen: IntArray = np.where((own & (needed <= 0)).any(axis=1), quick, lean)
    return chosen
