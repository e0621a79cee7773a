"""Alpa's search between operators on the same tables: alike devices, the least sum of stages under a limit on each."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simmoe.errors import SpecError
from simmoe.planners.pipeline_search.problem import (
    PipelinePlan,
    PipelineProblem,
    PlacedStage,
    StageOption,
    check_pipeline,
)

GAP = 1e-3
"""Limits on the slowest stage that lie closer than this share of one another are one."""
_MOST_LIMITS = 200


class _Stages(NamedTuple):
    """The quickest way to run every stage that there could be.

    Attributes
    ----------
    sizes : list of int
        Devices of a stage.
    seconds : array of float
        Shape (sizes, stages behind, first layer, layer behind the last one); infinite where nothing fits [s].
    option : array of int
        Same shape: which option that is.
    """

    sizes: list[int]
    seconds: npt.NDArray[np.float64]
    option: npt.NDArray[np.int64]


def alpa_search(problem: PipelineProblem) -> PipelinePlan | None:
    """The pipeline that Alpa's dynamic program finds.

    Parameters
    ----------
    problem : PipelineProblem
        Of one device type; its transfers are not read, as Alpa's program does not.

    Returns
    -------
    PipelinePlan or None
        With Alpa's estimate as `seconds`; None if nothing fits on all devices.

    Raises
    ------
    SpecError
        If the tables describe no pipeline, or several types of device.

    Notes
    -----
    ::

        T = min over t_max of  F(0, all devices; t_max) + (M-1) t_max
        F(k, d; t_max) = min over the next stage, at most t_max long, of  t + F(behind it, d - its devices; t_max)

    from the last stage to the first, so that a stage knows how many micro-batches it keeps. Limits are tried upwards,
    until (M-1) t_max alone is no better than what was found. All devices are used.

    References
    ----------
    Zheng et al. 2022, arXiv 2201.12023, section 5.2, equations 2 to 4 and algorithm 1.

    Examples
    --------
    Two devices, two layers of 3 s: on two stages 6 s + 3 x 3 s.

    >>> from simmoe.planners.pipeline_search.problem import DeviceType, StageOption, alike
    >>> ones = [alike(seconds, 2) for seconds in (1.0, 2.0, 0.0)]
    >>> option = StageOption(0, 1, "", *ones, (0, 0), (1, 1), capacity_bytes=9)
    >>> alpa_search(PipelineProblem((DeviceType("a", 2),), 2, 4, (option,), ((0.0,),)))
    PipelinePlan(seconds=15.0, unit=1, stages=(PlacedStage(option=0, first_layer=0, layers=1), \
PlacedStage(option=0, first_layer=1, layers=1)))
    """
    check_pipeline(problem)
    if len(problem.types) > 1:
        raise SpecError([f"Alpa knows one type of device (got {len(problem.types)}); give tables of one"])
    stages = _stages(problem)
    best: PipelinePlan | None = None
    for limit in _limits(stages.seconds):
        if best is not None and (problem.micro_batches - 1) * limit >= best.seconds:
            break
        placed = _under(problem, stages, limit)
        if placed:
            times = [_seconds(problem, stage) for stage in placed]
            seconds = sum(times) + (problem.micro_batches - 1) * max(times)
            if best is None or seconds < best.seconds:
                best = PipelinePlan(seconds, problem.unit, placed)
    return best


def _stages(problem: PipelineProblem) -> _Stages:
    """Alpa's pass inside operators: for every piece of the model, devices and stages behind it, the quickest option."""
    sizes = sorted({option.devices for option in problem.options})
    behind = np.arange(min(problem.most_stages, problem.types[0].devices // sizes[0]) if sizes else 0)
    shape = (len(sizes), len(behind), problem.layers + 1, problem.layers + 1)
    seconds, chosen = np.full(shape, np.inf), np.zeros(shape, dtype=np.int64)
    flying = np.minimum(problem.micro_batches, behind + 1)[:, None, None]
    for number, option in enumerate(problem.options):
        took, held, kept = (_ranges(option, problem.layers, name) for name in ("seconds", "held_bytes", "kept_bytes"))
        fits = held + flying * kept <= option.capacity_bytes
        size = sizes.index(option.devices)
        better = fits & (took < seconds[size])
        seconds[size] = np.where(better, took, seconds[size])
        chosen[size][better] = number
    return _Stages(sizes, seconds, chosen)


def _ranges(option: StageOption, layers: int, name: str) -> npt.NDArray[np.float64]:
    """Of all layers from one up to another one, what a stage takes or holds; infinite where there are none."""
    columns = ("forward_s", "backward_s") if name == "seconds" else (name,)
    each = np.sum([getattr(option, column) for column in columns], axis=0)
    every, first, last = (
        sum(getattr(extra, column) for column in columns) for extra in (option.every, option.first, option.last)
    )
    total = np.concatenate([[0.0], np.cumsum(each)])
    found = total[None, :] - total[:, None] + every
    found[0, :] += first
    found[:, layers] += last
    found[np.tril_indices(layers + 1)] = np.inf
    return np.asarray(found, dtype=np.float64)


def _limits(seconds: npt.NDArray[np.float64]) -> list[float]:
    """Limits on the slowest stage, ascending; of those that lie close together the largest."""
    every = np.unique(seconds[np.isfinite(seconds)])
    if not every.size:
        return []
    gap = max(GAP, float(np.log(every[-1] / every[0])) / _MOST_LIMITS)
    bins = np.floor(np.log(every / every[0]) / gap)
    last = np.append(bins[1:] != bins[:-1], True)
    return [float(value) for value in every[last]]


def _under(problem: PipelineProblem, stages: _Stages, limit: float) -> tuple[PlacedStage, ...]:
    """The stages with the least sum of times, none longer than a limit; empty if there are none."""
    layers, devices = problem.layers, problem.types[0].devices
    best = np.full((layers + 1, devices + 1), np.inf)
    best[layers, 0] = 0.0
    tables: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for behind in range(stages.seconds.shape[1]):
        found, size_of, next_of = (np.full_like(best, np.inf), np.zeros(best.shape, int), np.zeros(best.shape, int))
        for number, size in enumerate(stages.sizes):
            took = stages.seconds[number, behind]
            took = np.where(took <= limit, took, np.inf)
            rest = best[:, : devices + 1 - size] if size <= devices else best[:, :0]
            total = took[:, :, None] + rest[None, :, :]
            after = np.argmin(total, axis=1)
            least = np.take_along_axis(total, after[:, None, :], axis=1)[:, 0, :]
            view = found[:, size:]
            better = least < view
            view[better] = least[better]
            size_of[:, size:][better] = number
            next_of[:, size:][better] = after[better]
        tables.append((found, size_of, next_of))
        best = found
        if not np.isfinite(best).any():
            break
    return _read_back(stages, tables, devices)


def _read_back(
    stages: _Stages,
    tables: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    devices: int,
) -> tuple[PlacedStage, ...]:
    """The best number of stages, and the choices that lead there."""
    sums = [float(found[0, devices]) for found, _, _ in tables]
    behind = int(np.argmin(sums)) if sums else 0
    if not sums or not np.isfinite(sums[behind]):
        return ()
    placed, first = [], 0
    while devices:
        _, size_of, next_of = tables[behind]
        size, after = int(size_of[first, devices]), int(next_of[first, devices])
        placed.append(PlacedStage(int(stages.option[size, behind, first, after]), first, after - first))
        first, devices, behind = after, devices - stages.sizes[size], behind - 1
    return tuple(placed)


def _seconds(problem: PipelineProblem, stage: PlacedStage) -> float:
    """One micro-batch, there and back [s]."""
    option, end = problem.options[stage.option], stage.first_layer + stage.layers
    return float(_ranges(option, problem.layers, "seconds")[stage.first_layer, end])
