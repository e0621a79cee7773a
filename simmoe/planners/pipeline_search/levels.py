"""Stages are placed from the last to the first: all partial plans of k stages become all of k + 1 at once."""

from typing import NamedTuple

import numpy as np

from simmoe.planners.pipeline_search.frontier import FloatArray, IntArray, spread
from simmoe.planners.pipeline_search.limits import SAFE, Counts, Front, Level, Setting, front_of


class Labels(NamedTuple):
    """Partial plans: the last k stages. One row each.

    Attributes
    ----------
    left : array of int
        Layers not placed, the first ones of the model.
    devices : array of int, rows x types
        Devices not used.
    kind, size : array of int
        Type and devices of the stage placed last, which is the frontmost; -1 = none.
    bound, serial, update : array of float
        Y, the bound L' of the suffix; S, the seconds of one micro-batch down and up; D, the longest end of the step
        [s].
    hope : array of float
        No plan with these stages takes less [s].
    parent, option, start : array of int
        The label it came from (a row of the level before), the option (a row of `Tables`) and the first layer of its
        stage.
    """

    left: IntArray
    devices: IntArray
    kind: IntArray
    size: IntArray
    bound: FloatArray
    serial: FloatArray
    update: FloatArray
    hope: FloatArray
    parent: IntArray
    option: IntArray
    start: IntArray

    def rows(self, which: IntArray) -> "Labels":
        """Some of the rows."""
        return Labels(
            self.left[which],
            self.devices[which],
            self.kind[which],
            self.size[which],
            self.bound[which],
            self.serial[which],
            self.update[which],
            self.hope[which],
            self.parent[which],
            self.option[which],
            self.start[which],
        )


class Steps(NamedTuple):
    """Transitions: the pair of a label and an option each belongs to, and the first layer of its stage."""

    label: IntArray
    option: IntArray
    pair: IntArray
    start: IntArray


def start_labels(setting: Setting) -> Labels:
    """The empty plan."""
    none, zero = np.array([-1]), np.zeros(1)
    left, counts = np.array([setting.problem.layers]), setting.tables.counts[None, :]
    return Labels(left, counts, none, none, zero, zero, zero, zero, none, none, none)


def allowed_groups(setting: Setting, labels: Labels) -> tuple[IntArray, IntArray]:
    """Pairs of a label and a group of options that may stand before it."""
    tables, shape = setting.tables, setting.shape
    kind, size = tables.group_kind, tables.group_size
    same = labels.kind[:, None] == kind
    fresh = labels.devices == tables.counts
    ok = labels.devices[:, kind] >= size
    if shape.one_block:
        ok &= same | fresh[:, kind]
    if shape.one_block and shape.all_devices:
        own = np.take_along_axis(labels.devices, np.maximum(labels.kind, 0)[:, None], axis=1)
        ok &= same | (labels.kind[:, None] < 0) | (own == 0)
    if shape.one_size:
        ok &= ~same | (labels.size[:, None] == size)
    if setting.window is not None:
        ok &= (setting.window.boundary[kind[None, :], labels.kind[:, None]] > 0.0) | (labels.kind[:, None] < 0)
    label, group = np.nonzero(ok)
    return label, group


def steps_of(setting: Setting, labels: Labels, level: Level, counts: Counts) -> tuple[Steps, Front, Counts]:
    """All stages that may stand before some labels, as ragged runs of first layers."""
    tables = setting.tables
    label, group = allowed_groups(setting, labels)
    front = front_of(setting, level, labels.devices[label], group)
    pair, option = spread(tables.group_start[group], np.diff(tables.group_start)[group])
    end = labels.left[label[pair]]
    # Without devices before it a stage must begin at layer 0.
    first, last = np.zeros_like(end), np.where(front.stages[pair] > level.placed + 1, end - 1, 0)
    first, fit = _raised(first, level.memory[option, end], last)
    first, slow = _raised(first, level.clock.first[-1][option, end], last)
    last, beaten = _lowered(last, level.useful[option, end], first)
    most = np.searchsorted(tables.weight, front.capacity[:, -1] * SAFE, side="right") - 1
    last, late = _lowered(last, most[pair], first)
    if setting.window is not None:
        window, of_pair = setting.window, group[pair]
        first, large = _raised(first, np.ceil(end - window.most[of_pair]).astype(np.int64), last)
        last, small = _lowered(last, np.floor(end - window.fewest[of_pair]).astype(np.int64), first)
        counts = counts.plus(by_window=large + small)
    counts = counts.plus(by_memory=fit, by_time=slow, by_options=beaten, by_capacity=late)
    run, start = spread(first, np.maximum(0, last - first + 1))
    return _no_idle(setting, Steps(label[pair][run], option[run], pair[run], start), front), front, counts


def _raised(first: IntArray, limit: IntArray, last: IntArray) -> tuple[IntArray, int]:
    """First layers no earlier than a limit, and how many that leaves out."""
    raised = np.maximum(first, limit)
    return raised, int((np.maximum(0, last - first + 1) - np.maximum(0, last - raised + 1)).sum())


def _lowered(last: IntArray, limit: IntArray, first: IntArray) -> tuple[IntArray, int]:
    """First layers no later than a limit, and how many that leaves out."""
    lowered = np.minimum(last, limit)
    return lowered, int((np.maximum(0, last - first + 1) - np.maximum(0, lowered - first + 1)).sum())


def _no_idle(setting: Setting, steps: Steps, front: Front) -> Steps:
    """Without complete plans that leave devices idle which must not be."""
    if not setting.shape.all_devices:
        return steps
    kept = (steps.start > 0) | (front.devices.sum(axis=1) == 0)[steps.pair]
    return Steps(*(column[kept] for column in steps))


def step_labels(setting: Setting, labels: Labels, steps: Steps, front: Front, level: Level) -> Labels:
    """The labels of some transitions."""
    tables, many, placed = setting.tables, setting.problem.micro_batches, level.placed
    option, start, end = steps.option, steps.start, labels.left[steps.label]
    kind = tables.kind[option]
    forward = tables.forward[option, end] - tables.forward[option, start] + tables.every.forward[option]
    total = tables.total[option, end] - tables.total[option, start] + tables.every.total[option]
    update = tables.update[option, end] - tables.update[option, start] + tables.every.update[option]
    opens = start == 0
    for extras, there in ((tables.first, opens), (tables.last, np.full(len(start), placed == 0))):
        forward, total, update = (
            values + np.where(there, extra[option], 0.0)
            for values, extra in zip((forward, total, update), extras[:3], strict=True)
        )
    trip = 2.0 * tables.transfer[kind, labels.kind[steps.label]] if placed else 0.0
    behind = labels.serial[steps.label] + trip
    serial, bound = behind + total, labels.bound[steps.label] + total + trip
    ahead = min(many - 1, placed)
    rounds, rest = divmod(many - 1, ahead + 1)
    own = np.maximum(
        many * total + np.maximum(0.0, behind - ahead * forward), rest * forward + (rounds + 1) * (total + behind)
    )
    bound = serial if setting.additive else np.maximum(bound, own)
    update = np.maximum(labels.update[steps.label], update)
    devices, size = front.devices[steps.pair], tables.size[option]
    made = Labels(start, devices, kind, size, bound, serial, update, serial, steps.label, option, start)
    return made if setting.additive else made._replace(hope=_completions(setting, made, front, level, steps.pair))


def _completions(setting: Setting, made: Labels, front: Front, level: Level, pair: IntArray) -> FloatArray:
    """A lower bound of the objective of every plan that ends with these stages.

    The stages before take at least ``least``; one of them does its share of the work left or more, in time t: the step
    is at least M t, and at least all stages once, M - 1 times t, less the forwards that stage is ahead.
    """
    tables, many = setting.tables, setting.problem.micro_batches
    left = made.left
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(left > 0, tables.weight[left] / front.rate[pair], 0.0)
    if len(level.clock.shares) > 1:
        # The longest of the times in which the devices left cannot do the work left.
        short = (front.capacity[pair] * SAFE < tables.weight[left][:, None]).sum(axis=1)
        share = np.maximum(share, np.append(0.0, level.clock.shares)[short])
    most = np.minimum(np.minimum(front.stages[pair], level.placed + 1 + left) - 1, many - 1)
    ahead = many - 1 - tables.ahead_share * most
    least = tables.least[left]
    one_after_another = np.maximum(many * share, made.serial + least + ahead * share)
    seconds: FloatArray = np.maximum(made.bound + least, one_after_another) + made.update
    return seconds
