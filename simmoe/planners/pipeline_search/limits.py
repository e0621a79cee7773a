"""What is known of a level before its stages are tried: where they may begin, what the devices left can do."""

from typing import NamedTuple

import numpy as np

from simmoe.planners.pipeline_search.frontier import FloatArray, IntArray
from simmoe.planners.pipeline_search.problem import PipelineProblem, Shape
from simmoe.planners.pipeline_search.tables import Tables, lowest_start, quicker_pairs, tables_of

SAFE = 1.0 + 1e-9  # bounds and labels are rounded differently; what is cut must be worse by more than that
GRID = 6  # stage times for which the capacity of the devices left is worked out
LEAST_SHARE = 0.7  # the smallest of them, as a share of what a stage may take


class Counts(NamedTuple):
    """What a search looked at.

    Attributes
    ----------
    states : int
        Different (stages behind, layers left, devices left, type behind).
    labels : int
        Partial plans kept.
    transitions : int
        Partial plans made, each with its times.
    by_memory, by_time, by_capacity : int
        Left out before they were made: the stage does not fit; its M t alone is no better than the plan at hand; the
        layers left are too many for the devices left, in memory or within the time of the plan at hand.
    by_bound : int
        Dropped because no completion is better than the plan at hand.
    by_dominance : int
        Dropped because another label of the state is as good in everything.
    by_window : int
        Dropped by HAPMoE's own prunings, which guarantee nothing.
    by_options : int
        Left out before they were made: a quicker option of as many devices fits.
    options : int
        Options left out of the whole search: another one is better in everything.
    """

    states: int = 0
    labels: int = 0
    transitions: int = 0
    by_memory: int = 0
    by_time: int = 0
    by_capacity: int = 0
    by_bound: int = 0
    by_dominance: int = 0
    by_window: int = 0
    by_options: int = 0
    options: int = 0

    def plus(self, **more: int) -> "Counts":
        """With more of some."""
        return self._replace(**{name: getattr(self, name) + number for name, number in more.items()})

    def added(self, other: "Counts") -> "Counts":
        """The sum of two."""
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Prunings(NamedTuple):
    """Which guaranteed prunings are on. None changes the optimum.

    Attributes
    ----------
    options : bool
        Leave out options that another beats in everything, and those that another beats in time where that one fits.
    warm_start : bool
        Begin with balanced and equal splits of the layers, then search among stages of one size.
    bound : bool
        Drop partial plans whose completion cannot beat the plan at hand, and stages that alone cannot.
    capacity : bool
        Drop partial plans whose layers left do not fit on the devices left, in memory, and with `bound` in time.
    dominance : bool
        Drop labels that another of the same state beats; off, every partial plan is kept.
    """

    options: bool = True
    warm_start: bool = True
    bound: bool = True
    capacity: bool = True
    dominance: bool = True


ALL_PRUNINGS = Prunings()


class Window(NamedTuple):
    """HAPMoE's restrictions (`paper.py`): fewest and most layers of a stage of each group, boundaries allowed."""

    fewest: FloatArray
    most: FloatArray
    boundary: FloatArray  # types x types; 0 = not allowed


class Setting(NamedTuple):
    """What stays the same in one search of one problem.

    Attributes
    ----------
    problem, tables, shape, prunings
    quicker : tuple of array of int
        From `tables.quicker_pairs`.
    keep : int
        Labels of a state, and complete plans, that survive beside each other though one beats the others.
    additive : bool
        HAPMoE's recursion (`paper.py`): the only label is S.
    by_kind : bool
        The type behind belongs to the state.
    window : Window or None
        HAPMoE's prunings.
    """

    problem: PipelineProblem
    tables: Tables
    shape: Shape
    prunings: Prunings
    quicker: tuple[IntArray, IntArray]
    keep: int = 1
    additive: bool = False
    by_kind: bool = True
    window: Window | None = None


class Clock(NamedTuple):
    """How long stages may take, for one plan at hand.

    Attributes
    ----------
    limit : float
        The plan at hand [s].
    shares : array of float
        Growing times of a stage [s], the last one as long as the limit allows.
    first : array of int, shares x options x (N + 1)
        The first layer a stage may begin with, by its end, to take no longer.
    """

    limit: float
    shares: FloatArray
    first: IntArray


class Level(NamedTuple):
    """What holds for all stages with as many behind.

    Attributes
    ----------
    placed : int
        Stages behind, k.
    clock : Clock
    memory : array of int, options x (N + 1)
        The first layer a stage may begin with, by its end, to fit.
    useful : array of int, options x (N + 1)
        The last one with which no quicker option fits.
    capacity : array, shares x groups
        The most work that one stage of a group in front does in each of the clock's times, where it fits; all of it, if
        the pruning is off.
    """

    placed: int
    clock: Clock
    memory: IntArray
    useful: IntArray
    capacity: FloatArray


class Front(NamedTuple):
    """What stands before a pair of a label and a group.

    Attributes
    ----------
    devices : array of int, pairs x types
        Devices not used.
    rate : array of float
        The work that the usable ones do in a second at most.
    stages : array of int
        The most stages of the whole plan.
    capacity : array of float, pairs x shares
        The most work they do, by the time that their slowest stage takes.
    """

    devices: IntArray
    rate: FloatArray
    stages: IntArray
    capacity: FloatArray


def clock_of(setting: Setting, limit: float) -> Clock:
    """How long stages may take to beat a plan of `limit` seconds."""
    tables = setting.tables
    if not (setting.prunings.bound and limit < np.inf):
        return Clock(limit, np.array([np.inf]), np.zeros((1, *tables.total.shape), dtype=np.int64))
    shares = limit * SAFE / setting.problem.micro_batches * np.linspace(LEAST_SHARE, 1.0, GRID)
    first = [lowest_start(tables.total, share - tables.every.total) for share in shares.tolist()]
    return Clock(limit, shares, np.array(first))


def level_of(setting: Setting, placed: int, clock: Clock) -> Level:
    """What holds for all stages with `placed` behind."""
    tables = setting.tables
    memory = _earliest_to_fit(setting, placed)
    useful = np.full_like(memory, setting.problem.layers)
    if setting.prunings.options:
        quicker, slower = setting.quicker
        rows, begins = np.unique(slower, return_index=True)
        if len(rows):
            useful[rows] = np.minimum.reduceat(memory[quicker], begins) - 1
    if not setting.prunings.capacity:
        all_work = np.full((len(clock.shares), len(tables.group_kind)), tables.weight[-1])
        return Level(placed, clock, memory, useful, all_work)
    ahead = _earliest_to_fit(setting, placed + 1)
    first = np.minimum(np.maximum(ahead, clock.first), np.arange(ahead.shape[1]))
    most = (tables.weight - tables.weight[first]).max(axis=2)
    return Level(placed, clock, memory, useful, np.maximum.reduceat(most, tables.group_start[:-1], axis=1))


def _earliest_to_fit(setting: Setting, placed: int) -> IntArray:
    tables = setting.tables
    flying = min(setting.problem.micro_batches, placed + 1)
    room = tables.room - (tables.last.held + tables.last.kept if placed == 0 else 0)
    bytes_of_first = tables.held + flying * tables.kept
    first = lowest_start(bytes_of_first, room)
    # The stage with layer 0 also holds the embedding.
    crowded = (first == 0) & (bytes_of_first > (room - tables.first.held - flying * tables.first.kept)[:, None])
    return np.where(crowded, 1, first)


def front_of(setting: Setting, level: Level, devices: IntArray, group: IntArray) -> Front:
    """What stands before a stage of each group.

    Parameters
    ----------
    setting : Setting
    level : Level
    devices : array of int, pairs x types
        Not used before the stage is placed.
    group : array of int
        Of the stage.

    Returns
    -------
    Front
    """
    tables, shape = setting.tables, setting.shape
    pairs, kind, size = np.arange(len(group)), tables.group_kind[group], tables.group_size[group]
    devices = devices.copy()
    devices[pairs, kind] -= size
    usable = devices
    if shape.one_block:
        usable = np.where(devices == tables.counts, devices, 0)
        usable[pairs, kind] = devices[pairs, kind]
    rates, per_device, least = _best_of_types(setting, level)
    rate = usable * rates
    stages = usable // least
    capacity = usable[:, None, :] * per_device
    if shape.one_block and shape.one_size:
        number = usable[pairs, kind] // size
        rate[pairs, kind] = usable[pairs, kind] * tables.rate[group]
        stages[pairs, kind] = number
        capacity[pairs, :, kind] = number[:, None] * level.capacity[:, group].T
    most = np.minimum(level.placed + 1 + stages.sum(axis=1), setting.problem.most_stages)
    return Front(devices, rate.sum(axis=1), most, capacity.sum(axis=2))


def _best_of_types(setting: Setting, level: Level) -> tuple[FloatArray, FloatArray, IntArray]:
    """Of each type: rate and capacity (shares x types) of a device at most, and the fewest devices of a stage."""
    tables = setting.tables
    types = len(tables.counts)
    rates, least = np.zeros(types), np.full(types, 2**40)
    np.maximum.at(rates, tables.group_kind, tables.rate)
    np.minimum.at(least, tables.group_kind, tables.group_size)
    each = level.capacity / tables.group_size
    if setting.shape.one_block and setting.shape.one_size:
        # A whole number of stages of one size; a block that is not begun has all devices of its type.
        counts = tables.counts[tables.group_kind]
        each = level.capacity * (counts // tables.group_size) / counts
    capacity = np.zeros((len(level.clock.shares), types))
    for number, kind in enumerate(tables.group_kind.tolist()):
        capacity[:, kind] = np.maximum(capacity[:, kind], each[:, number])
    return rates, capacity, least


def setting_of(problem: PipelineProblem, options: list[int], shape: Shape, prunings: Prunings) -> Setting:
    """A search of one problem with some of its options."""
    tables = tables_of(problem, options)
    return Setting(problem, tables, shape, prunings, quicker_pairs(tables, problem))
