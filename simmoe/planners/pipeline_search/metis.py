"""Metis' search on the same tables: unlike device groups, layers in proportion to speed, repairs where memory lacks.

Metis plans dense models: how experts are shared is settled by whoever fills in the tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import NamedTuple

from simmoe.planners.pipeline_search.bounds import Stages, upper_estimate
from simmoe.planners.pipeline_search.problem import (
    PipelinePlan,
    PipelineProblem,
    PlacedStage,
    check_pipeline,
    held_bytes,
    stage_times,
)

REPAIRS = 3
"""Times that layers are moved away from stages that lack memory, before a stage is cut further."""
MOST_GROUPS = 200
"""Ways to cut the devices of a type into stages."""

Ladder = Mapping[tuple[int, int], Sequence[int]]
"""Options of as many devices of a type, in the order in which they are tried: pure data parallelism first."""


class _Stage(NamedTuple):
    """A stage being planned: its type and devices, and which rung of its ladder is in use."""

    kind: int
    devices: int
    rung: int = 0


def metis_search(
    problems: Sequence[PipelineProblem], ladders: Sequence[Ladder], *, plans: int = 1
) -> list[PipelinePlan]:
    """The plans that Metis' algorithm finds, best by its own estimate first.

    Parameters
    ----------
    problems : sequence of PipelineProblem
    ladders : sequence of Ladder
        Of each problem.
    plans : int
        How many.

    Returns
    -------
    list of PipelinePlan
        With Metis' estimate as `seconds`; empty if nothing fits.

    Raises
    ------
    SpecError
        If a problem's tables describe no pipeline.

    Notes
    -----
    For every order of the types and every way to cut the devices of each into stages of powers of two, whose sizes
    differ by a factor of 2 at most (its limit on the variance of group sizes), a stage begins with pure data
    parallelism. Layers are cut in proportion to the speed of stages. Where memory lacks, layers move to stages that
    have room, three times at most; then the stage that lacks most halves its data parallelism for tensor parallelism,
    and all begins again. The estimate is that of a pipeline without bubbles but fill and drain::

        sum t + (M-1) max t + transfers + gradients and optimizer

    Read so here: a stage is of one type (Metis also forms stages of several types, whose samples it cuts by speed), all
    devices are used.

    References
    ----------
    Um et al. 2024, "Metis: Fast Automatic Distributed Training on Heterogeneous GPUs", USENIX ATC, sections 4.2 to 4.4.
    """
    found: list[PipelinePlan] = []
    for problem, ladder in zip(problems, ladders, strict=True):
        check_pipeline(problem)
        for groups in device_groups(problem, ladder):
            placed = _planned(problem, ladder, groups)
            if placed is not None:
                found.append(PipelinePlan(_estimate(problem, placed), problem.unit, placed))
    return sorted(found)[:plans]


def device_groups(problem: PipelineProblem, ladder: Ladder) -> Iterator[tuple[_Stage, ...]]:
    """Every order of types, and every way to cut their devices into stages.

    Parameters
    ----------
    problem : PipelineProblem
    ladder : Ladder

    Yields
    ------
    tuple of _Stage
        First to last.
    """
    kinds = sorted(range(len(problem.types)), key=lambda kind: problem.types[kind].name)
    cuts = {kind: _cuts(problem.types[kind].devices, [size for own, size in ladder if own == kind]) for kind in kinds}
    for order in permutations(kinds):
        for chosen in product(*(cuts[kind] for kind in order)):
            stages = [_Stage(kind, size) for kind, sizes in zip(order, chosen, strict=True) for size in sizes]
            if len(stages) <= problem.most_stages:
                yield tuple(stages)


def _cuts(devices: int, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Stages of a size and of half that size, larger ones first, that use all devices.

    >>> _cuts(12, [2, 4, 8])
    [(8, 4), (4, 4, 4), (4, 4, 2, 2), (4, 2, 2, 2, 2), (2, 2, 2, 2, 2, 2)]
    """
    found = []
    for size in sorted(sizes, reverse=True):
        for large in range(devices // size, 0, -1):
            rest = devices - large * size
            if rest == 0:
                found.append((size,) * large)
            elif size % 2 == 0 and size // 2 in sizes and rest % (size // 2) == 0:
                found.append((size,) * large + (size // 2,) * (rest // (size // 2)))
    return found[:MOST_GROUPS]


def _planned(problem: PipelineProblem, ladder: Ladder, stages: tuple[_Stage, ...]) -> tuple[PlacedStage, ...] | None:
    """Layers and options of some stages; None if no way fits."""
    while True:
        options = [ladder[stage.kind, stage.devices][stage.rung] for stage in stages]
        layers = proportional([_speed(problem, option) for option in options], problem.layers)
        lacks: list[int] = []
        for _ in range(REPAIRS + 1):
            placed = _placed(options, layers)
            lacks = [
                held_bytes(problem, stage, len(placed) - 1 - place) - problem.options[stage.option].capacity_bytes
                for place, stage in enumerate(placed)
            ]
            if max(lacks) <= 0:
                return placed
            if not _repair(lacks, layers):
                break
        worst = max(range(len(stages)), key=lambda place: (lacks[place], -place))
        stage = stages[worst]
        if stage.rung + 1 >= len(ladder[stage.kind, stage.devices]):
            return None
        stages = (*stages[:worst], stage._replace(rung=stage.rung + 1), *stages[worst + 1 :])


def _speed(problem: PipelineProblem, option: int) -> float:
    """Layers in a second."""
    one = problem.options[option]
    return problem.layers / (sum(one.forward_s) + sum(one.backward_s))


def proportional(speeds: Sequence[float], layers: int) -> list[int]:
    """Layers in proportion to speeds, at least one each, the largest remainders rounded up.

    Examples
    --------
    >>> proportional([3.0, 1.0], 8), proportional([10.0, 1.0, 1.0], 6)
    ([6, 2], [4, 1, 1])
    """
    total = sum(speeds)
    exact = [layers * speed / total for speed in speeds]
    found = [max(1, int(part)) for part in exact]
    while sum(found) != layers:
        step = 1 if sum(found) < layers else -1
        rest = [step * (part - own) for part, own in zip(exact, found, strict=True)]
        possible = [place for place, own in enumerate(found) if step > 0 or own > 1]
        found[max(possible, key=lambda place: (rest[place], -place))] += step
    return found


def _placed(options: Sequence[int], layers: Sequence[int]) -> tuple[PlacedStage, ...]:
    first, found = 0, []
    for option, count in zip(options, layers, strict=True):
        found.append(PlacedStage(option, first, count))
        first += count
    return tuple(found)


def _repair(lacks: Sequence[int], layers: list[int]) -> bool:
    """Move a layer from each stage that lacks memory to the one with most room; whether any could move."""
    moved = False
    for place, lack in enumerate(lacks):
        if lack > 0 and layers[place] > 1:
            most = min(range(len(lacks)), key=lambda other: (lacks[other], other))
            if lacks[most] < 0:
                layers[place] -= 1
                layers[most] += 1
                moved = True
    return moved


def _estimate(problem: PipelineProblem, placed: Sequence[PlacedStage]) -> float:
    """Metis' own estimate of the step [s]."""
    times = stage_times(problem, placed)
    stages = Stages(times.forward_s, times.backward_s, times.transfer_s)
    return upper_estimate(stages, problem.micro_batches) + times.update_s
