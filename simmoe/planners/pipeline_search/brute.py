"""The oracle: every plan of a small problem, one after another."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.planners.pipeline_search.bounds import (
    Stages,
    lower_bound,
    replay,
    tight_bound,
    upper_estimate,
)
from simmoe.planners.pipeline_search.paper import equation_4_and_5
from simmoe.planners.pipeline_search.problem import (
    ONE_BLOCK,
    PipelinePlan,
    PipelineProblem,
    PlacedStage,
    Shape,
    fits,
    stage_times,
)

JUDGES: dict[str, Callable[[Stages, int], float]] = {
    "tight": tight_bound,
    "lower": lower_bound,
    "upper": upper_estimate,
    "equation 5": equation_4_and_5,
    "additive": lambda stages, _: upper_estimate(stages, 1),
    "replay": replay,
}
"""What a plan may be judged by; the longest end of the step is added to each."""


class _Partial(NamedTuple):
    """Stages so far, first to last, and what they used."""

    stages: tuple[PlacedStage, ...]
    layers: int
    devices: tuple[int, ...]


def all_plans(problem: PipelineProblem, shape: Shape = ONE_BLOCK) -> Iterator[tuple[PlacedStage, ...]]:
    """Every plan that fits, each once.

    Parameters
    ----------
    problem : PipelineProblem
        Small: the number of plans grows with (options x layers) to the power of the stages.
    shape : Shape

    Yields
    ------
    tuple of PlacedStage

    Examples
    --------
    Two layers on two devices: one stage, or one layer on each.

    >>> from simmoe.planners.pipeline_search.problem import DeviceType, StageOption
    >>> option = StageOption(0, 1, "", (1.0,) * 2, (2.0,) * 2, (0.0,) * 2, (1,) * 2, (0,) * 2, 9)
    >>> problem = PipelineProblem((DeviceType("a", 2),), 2, 4, (option,), ((0.0,),))
    >>> [[stage.layers for stage in stages] for stages in all_plans(problem)]
    [[2], [1, 1]]
    """
    waiting = [_Partial((), 0, (0,) * len(problem.types))]
    while waiting:
        partial = waiting.pop()
        if partial.layers < problem.layers:
            waiting += _longer(problem, shape, partial)
        elif not (shape.all_devices and _idle(problem, partial)) and fits(problem, partial.stages):
            yield partial.stages


def _idle(problem: PipelineProblem, partial: _Partial) -> bool:
    return any(used < kind.devices for used, kind in zip(partial.devices, problem.types, strict=True))


def _longer(problem: PipelineProblem, shape: Shape, partial: _Partial) -> Iterator[_Partial]:
    """The partial plan with one more stage."""
    if len(partial.stages) == problem.most_stages:
        return
    before = problem.options[partial.stages[-1].option] if partial.stages else None
    for number, option in enumerate(problem.options):
        kind, used = option.device_type, list(partial.devices)
        used[kind] += option.devices
        same = before is not None and before.device_type == kind
        if (
            used[kind] > problem.types[kind].devices
            or (shape.sizes and option.devices not in shape.sizes)
            or (shape.one_block and partial.devices[kind] and not same)
            or (shape.one_size and before is not None and same and before.devices != option.devices)
        ):
            continue
        for layers in range(1, problem.layers - partial.layers + 1):
            stage = PlacedStage(number, partial.layers, layers)
            yield _Partial((*partial.stages, stage), partial.layers + layers, tuple(used))


def judged(problem: PipelineProblem, stages: Sequence[PlacedStage], judge: str = "tight") -> float:
    """Seconds of a step by one of `JUDGES`, with the end of the step.

    Parameters
    ----------
    problem : PipelineProblem
    stages : sequence of PlacedStage
    judge : str

    Returns
    -------
    float
        [s].

    Raises
    ------
    SpecError
        An unknown judge.
    """
    if judge not in JUDGES:
        raise SpecError([f"unknown judge {judge}; use one of {', '.join(JUDGES)}"])
    times = stage_times(problem, stages)
    seconds = JUDGES[judge](Stages(times.forward_s, times.backward_s, times.transfer_s), problem.micro_batches)
    return seconds + times.update_s


def brute_force(
    problems: Sequence[PipelineProblem], shape: Shape = ONE_BLOCK, judge: str = "tight", *, plans: int = 1
) -> tuple[PipelinePlan, ...]:
    """The best plans by enumeration.

    Parameters
    ----------
    problems : sequence of PipelineProblem
    shape : Shape
    judge : str
        One of `JUDGES`.
    plans : int
        How many.

    Returns
    -------
    tuple of PipelinePlan
        Best first; empty if nothing fits.
    """
    found = (
        PipelinePlan(judged(problem, stages, judge), problem.unit, stages)
        for problem in problems
        for stages in all_plans(problem, shape)
    )
    return tuple(sorted(found)[:plans])
