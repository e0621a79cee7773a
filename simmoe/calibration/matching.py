"""Measured kernels beside the simulator's operators: by name, by class and order, by what lies between."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.calibration.alignment import align, cut_to_fit
from simmoe.calibration.breakdown import row_classes
from simmoe.calibration.collective_calls import CollectiveCall, collectives
from simmoe.calibration.kernel_classes import COMMUNICATION, TABLE, KernelClass
from simmoe.calibration.simulated import COMM, COMPUTE, SimulatedRank
from simmoe.calibration.trace import IntArray, Trace

Words = NDArray[np.object_]
FloatArray = NDArray[np.float64]
_ANCHORS = {"gemm": ("gemm",), "grouped_gemm": ("gemm",), "attention": ("attention",)}
"""Of a simulated category, the measured classes whose order is followed; what lies between follows them."""
_LEAST = 0.25
_SHARPNESS = 2.0
_SENDS = {"all_to_all", "send_recv"}


class Match(NamedTuple):
    """Measured rows and the simulated tasks that do the same work; either may be several, where kernels are fused.

    Attributes
    ----------
    rows : tuple of int
        Of the trace.
    tasks : tuple of int
        Of the `SimulatedRank`.
    """

    rows: tuple[int, ...]
    tasks: tuple[int, ...]


class Matches(NamedTuple):
    """What was matched of one rank and step.

    Attributes
    ----------
    pairs : tuple of Match
    unmatched_rows : array of int
        Rows of the trace without a counterpart.
    unmatched_tasks : array of int
        Tasks of the simulated rank without one; they may be fused into others, or not be in the trace.
    """

    pairs: tuple[Match, ...]
    unmatched_rows: IntArray
    unmatched_tasks: IntArray


def match_rank(
    trace: Trace, rows: IntArray, simulated: SimulatedRank, table: tuple[KernelClass, ...] = TABLE
) -> Matches:
    """Match the kernels of a step with the tasks of a simulated rank.

    Parameters
    ----------
    trace : Trace
    rows : array of int
        Those of the step.
    simulated : SimulatedRank
    table : tuple of KernelClass

    Returns
    -------
    Matches

    Notes
    -----
    What bears the name of an operator (traces that SimMoE wrote) is matched by name: the n-th with the n-th. Of the
    rest, GEMMs and attention kernels are aligned in order (`align`); the score of a pair is `closeness` of their
    durations, relative to the sums of both sides. Experts that run as one grouped product in the simulation may be one
    kernel an expert in the trace: both readings are tried, the better one is kept. Where experts do their products in
    another order, those of a layer pass are matched as a whole. Memory-bound kernels between two anchors belong to the
    operators between the same two, norms to norms. Collectives are aligned in order, each kind for itself, by size
    where it is recorded. A trace with no more GEMMs and attention kernels than the forward passes is taken for these.
    """
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    calls = {call.row: call for call in collectives(trace, np.isin(np.arange(len(trace)), rows) & _talks(trace, table))}
    pairs, classes = _by_name(trace, rows, simulated, calls), row_classes(trace, table)
    rest_rows, rest_tasks = _rest(rows, simulated, pairs)
    there = _of_passes(classes[rest_rows], simulated, rest_tasks)
    pairs += _compute(trace, rest_rows, simulated, there, classes)
    pairs += _collectives(trace, rest_rows, simulated, there, calls)
    rest_rows, rest_tasks = _rest(rows, simulated, pairs)
    return Matches(tuple(pairs), rest_rows, rest_tasks)


def _talks(trace: Trace, table: tuple[KernelClass, ...]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = row_classes(trace, table) == COMMUNICATION
    return found


def _rest(rows: IntArray, simulated: SimulatedRank, pairs: list[Match]) -> tuple[IntArray, IntArray]:
    """Rows and tasks on a device that are in no pair."""
    used_rows = [row for pair in pairs for row in pair.rows]
    used_tasks = [task for pair in pairs for task in pair.tasks]
    on_device = np.flatnonzero((simulated.lane == COMPUTE) | (simulated.lane == COMM))
    return rows[~np.isin(rows, used_rows)], on_device[~np.isin(on_device, used_tasks)]


def _of_passes(classes: Words, simulated: SimulatedRank, tasks: IntArray) -> IntArray:
    """Tasks of the forward passes, if the trace holds no more anchors than these; else all."""
    forward = np.array([operation.phase == "forward" for operation in simulated.operations])[simulated.operation[tasks]]
    categories = [simulated.operations[operation].category for operation in simulated.operation[tasks].tolist()]
    anchors = sum(
        len(_parts(simulated, task, name, simulated.experts))
        for task, name, first in zip(tasks.tolist(), categories, forward.tolist(), strict=True)
        if first
    )
    measured = int(np.isin(classes, ["gemm", "attention"]).sum())
    return tasks[forward] if 0 < measured <= anchors else tasks


def _by_name(trace: Trace, rows: IntArray, simulated: SimulatedRank, calls: dict[int, CollectiveCall]) -> list[Match]:
    """The n-th row that bears a name with the n-th task of that name."""
    labels = {simulated.label(i): i for i in range(len(simulated.operations))}
    named: dict[str, list[int]] = defaultdict(list)
    for row in rows.tolist():
        args = trace.args.get(row, {})
        name = f"{args.get('operation')} {args.get('phase')}".strip() if row in calls else trace.names[trace.name[row]]
        if name in labels:
            named[name].append(row)
    tasks: dict[str, list[int]] = defaultdict(list)
    for task, operation in enumerate(simulated.operation.tolist()):
        tasks[simulated.label(operation)].append(task)
    return [Match((row,), (task,)) for name, own in named.items() for row, task in zip(own, tasks[name], strict=False)]


def _compute(trace: Trace, rows: IntArray, simulated: SimulatedRank, tasks: IntArray, classes: Words) -> list[Match]:
    """Anchors in order, then what lies between them."""
    talks = classes[rows] == COMMUNICATION
    rows, tasks = rows[~talks], tasks[simulated.lane[tasks] == COMPUTE]
    categories = np.array([operation.category for operation in simulated.operations], dtype=object)
    category = categories[simulated.operation[tasks]]
    readings = {1, simulated.experts} if "grouped_gemm" in category else {1}
    anchors = max(
        (_anchors(trace, rows, classes, simulated, tasks, category, each) for each in sorted(readings)),
        key=lambda pairs: sum(int((trace.end_ns - trace.start_ns)[list(pair.rows)].sum()) for pair in pairs),
    )
    anchors = _whole_blocks(rows, classes, tasks, category, anchors)
    return anchors + _between(rows, classes, simulated, tasks, category, anchors)


def _anchors(
    trace: Trace,
    rows: IntArray,
    classes: Words,
    simulated: SimulatedRank,
    tasks: IntArray,
    category: Words,
    each: int,
) -> list[Match]:
    """GEMMs and attention in order, with `each` kernels for a grouped product."""
    own_rows = rows[np.isin(classes[rows], ["gemm", "attention"])]
    tokens = [
        (task, kind, simulated.seconds[task] / len(parts))
        for task, name in zip(tasks.tolist(), category.tolist(), strict=True)
        for parts in [_parts(simulated, task, name, each)]
        for kind in parts
    ]
    own_tasks = np.array([task for task, _, _ in tokens], dtype=np.int64)
    kinds, wanted = np.array([kind for _, kind, _ in tokens], dtype=object), np.array([took for _, _, took in tokens])
    took = (trace.end_ns - trace.start_ns)[own_rows] * 1e-9
    first, second = cut_to_fit(len(own_rows), len(own_tasks))
    wanted, took, kinds = wanted[:second], took[:first], kinds[:second]
    wanted = wanted * (took.sum() / wanted.sum() if wanted.sum() > 0 and took.sum() > 0 else 1.0)

    def score(row: int) -> FloatArray:
        return np.where(kinds == classes[own_rows[row]], closeness(float(took[row]), wanted), 0.0)

    found: dict[int, list[int]] = defaultdict(list)
    for row, task in align(first, second, score):
        found[int(own_tasks[task])].append(int(own_rows[row]))
    return [Match(tuple(members), (task,)) for task, members in found.items()]


def _parts(simulated: SimulatedRank, task: int, category: str, each: int) -> tuple[str, ...]:
    """The classes of the anchors that a task may be in a trace."""
    if category == "grouped_gemm":
        return ("gemm",) * each
    if category == "attention" and not simulated.fused:
        around = ("gemm",) * (2 if simulated.operations[simulated.operation[task]].phase == "backward" else 1)
        return (*around, "attention", *around)
    return _ANCHORS.get(category, ())


def _whole_blocks(
    rows: IntArray, classes: Words, tasks: IntArray, category: Words, anchors: list[Match]
) -> list[Match]:
    """Anchors, the grouped products of a layer pass as one where GEMMs between its neighbours are left over."""
    chosen = np.isin(category, list(_ANCHORS))
    block_of, block = dict[int, int](), 0
    for task, name in zip(tasks[chosen].tolist(), category[chosen].tolist(), strict=True):
        if name == "grouped_gemm":
            block_of[task] = block
        else:
            block += 1
    used = {row for pair in anchors for row in pair.rows}
    own = [row for row in rows.tolist() if classes[row] in ("gemm", "attention")]
    place = {row: number for number, row in enumerate(own)}
    found, groups = list[Match](), defaultdict[int, list[Match]](list)
    for pair in anchors:
        if pair.tasks[0] in block_of:
            groups[block_of[pair.tasks[0]]].append(pair)
        else:
            found.append(pair)
    ends = np.array(sorted(place[row] for pair in found for row in pair.rows), dtype=np.int64)
    for pairs in groups.values():
        here = np.searchsorted(ends, place[pairs[0].rows[0]])
        first = int(ends[here - 1]) + 1 if here > 0 else 0
        last = int(ends[here]) if here < len(ends) else len(own)
        inside = [row for row in own[first:last] if classes[row] == "gemm"]
        number = block_of[pairs[0].tasks[0]]
        whole = Match(tuple(inside), tuple(task for task, own in block_of.items() if own == number))
        found += [whole] if any(row not in used for row in inside) else pairs
    return sorted(found, key=lambda pair: pair.tasks)


def closeness(measured: float, simulated: FloatArray) -> FloatArray:
    """How well two sizes agree: 1.25 for equal ones, 0.25 for others by orders of magnitude.

    Parameters
    ----------
    measured : float
    simulated : array of float

    Examples
    --------
    >>> closeness(1.0, np.array([1.0, 2.0])).tolist()
    [1.25, 0.5]
    """
    distance = np.abs(np.log(np.maximum(measured, 1e-12) / np.maximum(simulated, 1e-12)))
    found: FloatArray = _LEAST + np.exp(-_SHARPNESS * distance)
    return found


def _between(
    rows: IntArray, classes: Words, simulated: SimulatedRank, tasks: IntArray, category: Words, anchors: list[Match]
) -> list[Match]:
    """Memory-bound kernels with the operators between the same two anchors."""
    row_place = {row: number for number, row in enumerate(rows.tolist())}
    task_place = {task: number for number, task in enumerate(tasks.tolist())}
    ends = sorted((max(row_place[row] for row in pair.rows), task_place[pair.tasks[0]]) for pair in anchors)
    if not ends:
        return []
    row_cuts, task_cuts = [end for end, _ in ends], np.maximum.accumulate([task for _, task in ends])
    other_rows = rows[~np.isin(classes[rows], ["gemm", "attention"])]
    other_tasks = tasks[~np.isin(category, list(_ANCHORS))]
    found: dict[tuple[int, bool], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for row in other_rows.tolist():
        found[int(np.searchsorted(row_cuts, row_place[row])), classes[row] == "norm"][0].append(row)
    for task in other_tasks.tolist():
        norm = ".norm" in simulated.operations[simulated.operation[task]].name
        found[int(np.searchsorted(task_cuts, task_place[task])), norm][1].append(task)
    return [Match(tuple(own), tuple(theirs)) for own, theirs in found.values() if own and theirs]


def _collectives(
    trace: Trace, rows: IntArray, simulated: SimulatedRank, tasks: IntArray, calls: dict[int, CollectiveCall]
) -> list[Match]:
    """Collectives of each kind in order."""
    tasks = tasks[simulated.lane[tasks] == COMM]
    own = [calls[row] for row in rows.tolist() if row in calls]
    found: list[Match] = []
    for kind in dict.fromkeys(_kinds(call) for call in own):
        here = [call for call in own if _kinds(call) == kind]
        there = [task for task in tasks.tolist() if simulated.operations[simulated.operation[task]].category in kind]
        found += _in_order(trace, here, simulated, there)
        used = {task for pair in found for task in pair.tasks}
        tasks = np.array([task for task in tasks.tolist() if task not in used], dtype=np.int64)
    return found


def _kinds(call: CollectiveCall) -> frozenset[str]:
    """The simulated collectives that a measured one may be."""
    if call.kind.startswith("ep:"):
        return frozenset({"all_to_all"})
    return frozenset(_SENDS) if call.kind == "kernel:SendRecv" else frozenset({call.kind})


def _in_order(trace: Trace, calls: list[CollectiveCall], simulated: SimulatedRank, tasks: Iterable[int]) -> list[Match]:
    there = list(tasks)
    first, second = cut_to_fit(len(calls), len(there))
    sizes = np.array([simulated.operations[simulated.operation[task]].bytes for task in there[:second]])
    took = simulated.seconds[there[:second]] if second else np.array([])

    def score(row: int) -> FloatArray:
        size = calls[row].bytes
        if size is not None:
            return closeness(float(size), sizes)
        own = calls[row].row
        return closeness(float(trace.end_ns[own] - trace.start_ns[own]) * 1e-9, took)

    return [Match((calls[row].row,), (there[task],)) for row, task in align(first, second, score)]
