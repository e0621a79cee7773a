"""A problem as arrays: what the search looks up, and what it knows of every plan before it looks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.planners.pipeline_search.frontier import FloatArray, IntArray
from simmoe.planners.pipeline_search.problem import Extra, PipelineProblem, Shape, StageOption


class Extras(NamedTuple):
    """`Extra` of each option, a column each."""

    forward: FloatArray
    total: FloatArray
    update: FloatArray
    held: IntArray
    kept: IntArray


class Tables(NamedTuple):
    """Columns over options, in order of (type name, devices, name), and over layers.

    Attributes
    ----------
    option : array of int
        Index into `PipelineProblem.options`.
    kind, size : array of int
        Type (in order of names) and devices.
    group : array of int
        Options of as many devices of a type share a group; they stand side by side.
    group_start, group_kind, group_size : array of int
        Of each group: its first option (one more at the end), type and devices.
    forward, total, update, held, kept : array, options x (N + 1)
        Sums over the first layers.
    every, first, last : Extras
    room : array of int
        Bytes left for layers.
    counts : array of int
        Devices of each type.
    transfer : array, types x types
    weight : array of float
        Work of the first layers: of each layer, the least device-seconds of any option.
    rate : array of float
        Of each group: the most work in a second that a device does.
    least : array of float
        Seconds that the first layers take at least.
    ahead_share : float
        The most that a forward pass takes of forward and backward.
    """

    option: IntArray
    kind: IntArray
    size: IntArray
    group: IntArray
    group_start: IntArray
    group_kind: IntArray
    group_size: IntArray
    forward: FloatArray
    total: FloatArray
    update: FloatArray
    held: IntArray
    kept: IntArray
    every: Extras
    first: Extras
    last: Extras
    room: IntArray
    counts: IntArray
    transfer: FloatArray
    weight: FloatArray
    rate: FloatArray
    least: FloatArray
    ahead_share: float


def kinds_by_name(problem: PipelineProblem) -> list[int]:
    """Indices of the types in order of their names: the answer must not depend on the order they were given in."""
    return sorted(range(len(problem.types)), key=lambda kind: problem.types[kind].name)


def chosen_options(problem: PipelineProblem, shape: Shape, *, dominance: bool) -> tuple[list[int], int]:
    """Options worth trying, in order, and how many were left out because another is better in everything.

    Parameters
    ----------
    problem : PipelineProblem
    shape : Shape
        Only its `sizes` matter here.
    dominance : bool
        Leave out options that another one of as many devices of the type equals or beats in every time and every byte.
        The bound L' grows with f and with b, so no best plan is lost.

    Returns
    -------
    tuple of list of int, int
    """
    order = {kind: place for place, kind in enumerate(kinds_by_name(problem))}
    options = problem.options
    allowed = [
        number
        for number, option in enumerate(options)
        if option.devices <= problem.types[option.device_type].devices
        and (not shape.sizes or option.devices in shape.sizes)
    ]
    allowed.sort(key=lambda number: (order[options[number].device_type], options[number].devices, options[number].name))
    if not dominance:
        return allowed, 0
    groups: dict[tuple[int, int], list[int]] = {}
    for number in allowed:
        groups.setdefault((options[number].device_type, options[number].devices), []).append(number)
    kept = [number for group in groups.values() for number in _undominated(group, options)]
    return kept, len(allowed) - len(kept)


def _undominated(group: list[int], options: tuple[StageOption, ...]) -> list[int]:
    """Of options with as many devices, those that no other equals or beats throughout; of equals the first."""
    rows = np.array([_figures(options[number]) for number in group])
    better = (rows[:, None, :] <= rows[None, :, :]).all(axis=2)
    equal = better & better.T
    beaten = (better & ~equal) | (equal & np.triu(np.ones_like(equal), 1))
    kept = np.flatnonzero(beaten.sum(axis=0) == 0)
    return [group[place] for place in kept.tolist()]


def _figures(option: StageOption) -> list[float]:
    times = (*option.forward_s, *option.backward_s, *option.update_s)
    return [
        *times,
        *option.held_bytes,
        *option.kept_bytes,
        *option.every,
        *option.first,
        *option.last,
        -option.capacity_bytes,
    ]


def tables_of(problem: PipelineProblem, options: list[int]) -> Tables:
    """The arrays of a problem for the options that are tried.

    Parameters
    ----------
    problem : PipelineProblem
    options : list of int
        From `chosen_options`; not empty.

    Returns
    -------
    Tables
    """
    kinds = kinds_by_name(problem)
    place = {kind: number for number, kind in enumerate(kinds)}
    rows = [problem.options[number] for number in options]
    kind = np.array([place[row.device_type] for row in rows], dtype=np.int64)
    size = np.array([row.devices for row in rows], dtype=np.int64)
    opens = np.ones(len(rows), dtype=bool)
    opens[1:] = (kind[1:] != kind[:-1]) | (size[1:] != size[:-1])
    group, starts = np.cumsum(opens) - 1, np.flatnonzero(opens)
    forward = _sums([row.forward_s for row in rows], np.float64)
    backward = _sums([row.backward_s for row in rows], np.float64)
    every, first, last = (_extras(rows, which) for which in (lambda row: row.every, _first, _last))
    seconds = np.diff(forward + backward, axis=1)
    weight = (seconds * size[:, None]).min(axis=0)
    rate = np.maximum.reduceat((weight / (seconds * size[:, None])).max(axis=1), starts)
    return Tables(
        option=np.array(options, dtype=np.int64),
        kind=kind,
        size=size,
        group=group,
        group_start=np.append(starts, len(rows)),
        group_kind=kind[starts],
        group_size=size[starts],
        forward=forward,
        total=forward + backward,
        update=_sums([row.update_s for row in rows], np.float64),
        held=_sums([row.held_bytes for row in rows], np.int64),
        kept=_sums([row.kept_bytes for row in rows], np.int64),
        every=every,
        first=first,
        last=last,
        room=np.array([row.capacity_bytes for row in rows], dtype=np.int64) - every.held,
        counts=np.array([problem.types[number].devices for number in kinds], dtype=np.int64),
        transfer=np.array(problem.transfer_s, dtype=np.float64)[np.ix_(kinds, kinds)],
        weight=np.append(0.0, np.cumsum(weight)),
        rate=rate,
        least=np.append(0.0, np.cumsum(seconds.min(axis=0))),
        ahead_share=_ahead_share(rows),
    )


def _first(row: StageOption) -> Extra:
    return row.first


def _last(row: StageOption) -> Extra:
    return row.last


def _sums(rows: Sequence[tuple[float, ...]], kind: type[np.float64 | np.int64]) -> NDArray[Any]:
    """Sums over the first layers, from none to all."""
    values: NDArray[Any] = np.array(rows, dtype=kind)
    return np.concatenate([np.zeros((len(rows), 1), dtype=kind), np.cumsum(values, axis=1)], axis=1)


def _extras(rows: list[StageOption], which: Callable[[StageOption], Extra]) -> Extras:
    forward, backward, update = (
        np.array([which(row)[column] for row in rows], dtype=np.float64) for column in range(3)
    )
    held, kept = (np.array([which(row)[column] for row in rows], dtype=np.int64) for column in (3, 4))
    return Extras(forward, forward + backward, update, held, kept)


def _ahead_share(rows: list[StageOption]) -> float:
    """The largest f/(f+b) of any part of a stage, and so of any stage."""
    parts = {
        (forward, backward)
        for row in rows
        for forward, backward in (
            *zip(row.forward_s, row.backward_s, strict=True),
            *((extra.forward_s, extra.backward_s) for extra in (row.every, row.first, row.last)),
        )
    }
    return max(forward / (forward + backward) for forward, backward in parts if forward + backward > 0.0)


def lowest_start(sums: NDArray[Any], limit: NDArray[Any]) -> IntArray:
    """How early a stage may begin, by where it ends, for its layers to stay within a limit.

    Parameters
    ----------
    sums : array, options x (N + 1)
        Never falling along a row.
    limit : array
        Of each option.

    Returns
    -------
    array of int, options x (N + 1)
        The first a with ``sums[b] - sums[a] <= limit``; b + 1 if the limit is negative.

    Examples
    --------
    >>> lowest_start(np.array([[0, 2, 4, 6]]), np.array([4])).tolist()
    [[0, 0, 0, 1]]
    """
    low = np.zeros(sums.shape, dtype=np.int64)
    high = np.broadcast_to(np.arange(1, sums.shape[1] + 1), sums.shape).copy()
    high[limit >= 0] -= 1
    for _ in range(int(sums.shape[1]).bit_length()):
        middle = (low + high) // 2
        over = sums - np.take_along_axis(sums, np.minimum(middle, sums.shape[1] - 1), axis=1) > limit[:, None]
        low = np.where(over & (low < high), middle + 1, low)
        high = np.where(over, high, middle)
    return low


def quicker_pairs(tables: Tables, problem: PipelineProblem) -> tuple[IntArray, IntArray]:
    """Rows of options of one group of which the first is as quick as the second or quicker in everything.

    Of options that are equally quick throughout only the earlier one counts as quicker. Sorted by the second.
    """
    better, worse = [], []
    for begin, end in zip(tables.group_start.tolist(), tables.group_start[1:].tolist(), strict=False):
        options = [problem.options[number] for number in tables.option[begin:end].tolist()]
        rows = np.array([_seconds(option) for option in options])
        less = (rows[:, None, :] <= rows[None, :, :]).all(axis=2)
        less &= ~less.T | np.triu(np.ones_like(less), 1)
        second, first = np.nonzero(less.T)
        better.append(first + begin)
        worse.append(second + begin)
    return np.concatenate(better), np.concatenate(worse)


def _seconds(option: StageOption) -> list[float]:
    extras = [value for extra in (option.every, option.first, option.last) for value in extra[:3]]
    return [*option.forward_s, *option.backward_s, *option.update_s, *extras]
