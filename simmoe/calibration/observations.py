"""What was measured, as numbers that a simulated time can be compared with."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.calibration.breakdown import union_ns
from simmoe.calibration.matching import Match, Matches
from simmoe.calibration.simulated import HOST, SimulatedRank
from simmoe.calibration.trace import IntArray, Trace
from simmoe.graph.task import Operation
from simmoe.report.metrics import COLLECTIVES

FloatArray = NDArray[np.float64]
WAITING = 1.3
"""Of the upper over the lower quartile of a collective's durations: beyond, they are mostly waiting for other ranks."""
OUTLIER = 3.0
"""Times the median: what lasts longer was interrupted."""
_ROUNDING_S = 1e-9
_FLOOR = 1e-5
_MOST_WEIGHT = 4.0


class Unit(NamedTuple):
    """Simulated tasks that take the same time: an operation of a rank class, and its duration [s]."""

    rank: int
    operation: Operation
    seconds: float


class Observation(NamedTuple):
    """A duration that was measured, once or many times.

    Attributes
    ----------
    name : str
        For people.
    category : str
        Of the first operation.
    units : tuple of (Unit, int)
        The tasks that it is the time of, and how many of each.
    seconds : float
        Typical duration [s].
    samples : int
        Of measurements.
    spread : float or None
        Relative standard deviation of one of them [1]; None = there is only one.
    """

    name: str
    category: str
    units: tuple[tuple[Unit, int], ...]
    seconds: float
    samples: int
    spread: float | None


class MatchedStep(NamedTuple):
    """A step of a trace beside a simulated rank.

    Attributes
    ----------
    trace : Trace
    simulated : SimulatedRank
    matches : Matches
    transfers : dict of int to int
        Row of a collective -> its duration without waiting, where that is known [ns].
    first : bool
        The first step of its trace: a simulated host, which knows no steps, is read with it.
    """

    trace: Trace
    simulated: SimulatedRank
    matches: Matches
    transfers: dict[int, int]
    first: bool


def observations(steps: Sequence[MatchedStep]) -> list[Observation]:
    """The durations of matched kernels, equal work taken together over steps and ranks.

    Parameters
    ----------
    steps : sequence of MatchedStep

    Returns
    -------
    list of Observation
        In order of first appearance. Typical is the mean, for sums of durations make a step, with what exceeds
        `OUTLIER` medians counted as so much; of collectives that mostly wait (`WAITING`) and whose waiting is not known
        it is the shortest tenth.
    """
    groups: dict[tuple[tuple[Unit, int], ...], list[float]] = defaultdict(list)
    for step in steps:
        units = _units(step.simulated)
        for pair in step.matches.pairs:
            counted = tuple(sorted(Counter(units[task] for task in pair.tasks).items(), key=lambda one: repr(one[0])))
            groups[counted].append(_seconds(step.trace, pair, step.transfers))
        for counted, spans in _host(step.trace, step.simulated, units).items() if step.first else ():
            groups[counted] += spans
    known = any(step.transfers for step in steps)
    return [_observed(counted, np.array(found), known=known) for counted, found in groups.items()]


def _units(simulated: SimulatedRank) -> list[Unit]:
    """The unit of each task."""
    return [
        Unit(simulated.rank, simulated.operations[operation], float(f"{seconds:.9g}"))
        for operation, seconds in zip(simulated.operation.tolist(), simulated.seconds.tolist(), strict=True)
    ]


def _seconds(trace: Trace, pair: Match, transfers: dict[int, int]) -> float:
    if len(pair.rows) == 1:
        row = pair.rows[0]
        return transfers.get(row, int(trace.end_ns[row] - trace.start_ns[row])) * 1e-9
    rows = np.array(pair.rows)
    return union_ns(trace.start_ns[rows], trace.end_ns[rows]) * 1e-9


def _host(
    trace: Trace, simulated: SimulatedRank, units: Sequence[Unit]
) -> dict[tuple[tuple[Unit, int], ...], list[float]]:
    """Launches of a simulated host in a trace that SimMoE wrote: the n-th with the n-th of its name."""
    tasks: dict[str, list[int]] = defaultdict(list)
    for task in np.flatnonzero(simulated.lane == HOST).tolist():
        tasks[simulated.label(int(simulated.operation[task]))].append(task)
    found: dict[tuple[tuple[Unit, int], ...], list[float]] = defaultdict(list)
    seen: Counter[str] = Counter()
    for span in trace.host:
        own = tasks.get(span.name, [])
        if seen[span.name] < len(own):
            found[(units[own[seen[span.name]]], 1),].append((span.end_ns - span.start_ns) * 1e-9)
        seen[span.name] += 1
    return found


def _observed(counted: tuple[tuple[Unit, int], ...], found: FloatArray, *, known: bool) -> Observation:
    """Equal work as one observation; `known` tells that collectives are without waiting."""
    first = counted[0][0].operation
    low, middle, high = np.quantile(found, [0.25, 0.5, 0.75]).tolist()
    waits = not known and first.category in COLLECTIVES and low > 0 and high / low > WAITING
    bounded = np.minimum(found, OUTLIER * middle)
    typical = float(np.quantile(found, 0.1)) if waits else float(bounded.mean())
    spread = float(bounded.std(ddof=1)) / typical if len(found) > 3 and typical > 0 else None
    words = [f"{unit.operation.name} {unit.operation.phase}".strip() for unit, _ in counted]
    name = words[0] if len(words) == 1 else f"{words[0]} and {len(words) - 1} more"
    return Observation(name, first.category, counted, max(typical, _ROUNDING_S), len(found), spread)


def relative_errors(found: Sequence[Observation]) -> FloatArray:
    """Relative standard error of each observation [1]: its scatter over the root of its count, and the clock's tick.

    Parameters
    ----------
    found : sequence of Observation

    Notes
    -----
    What was measured once scatters as the others do in the median. Divided by the root of its share in all time over
    the mean share, between 1/4 and 4: where the model does not fit, it is to be right where the time goes.
    """
    known = [one.spread for one in found if one.spread is not None]
    usual = float(np.median(known)) if known else 0.05
    scatter = np.array([usual if one.spread is None else one.spread for one in found])
    count, seconds = np.array([one.samples for one in found]), np.array([one.seconds for one in found])
    tick = _ROUNDING_S / 2 / seconds
    share = seconds * count / (seconds * count).sum()
    weight = np.clip(np.sqrt(share * len(found)), 1 / _MOST_WEIGHT, _MOST_WEIGHT)
    error: FloatArray = np.sqrt(scatter**2 / count + tick**2 + _FLOOR**2) / weight
    return error


class StepRows(NamedTuple):
    """The rows of a step, and how long it is from its begin to that of the next, or to its own end [ns]."""

    rows: IntArray
    step_ns: int


def step_rows(trace: Trace) -> list[StepRows]:
    """The rows of each step of a trace.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    list of StepRows
        By the launch where launches are known, else by the begin; all rows where the trace names no step. A step that
        no other one follows at once ends with its row on the host or its last kernel, whichever is later.
    """
    known = trace.launch_ns >= 0
    when = trace.launch_ns if known.sum() * 2 > len(trace) else trace.start_ns
    found = []
    for number, step in enumerate(trace.steps):
        rows = np.flatnonzero((when >= step.start_ns) & (when < step.end_ns))
        if not len(rows):
            continue
        last = number + 1 == len(trace.steps)
        window = int(trace.end_ns[rows].max() - trace.start_ns[rows].min())
        own = step.end_ns - step.start_ns
        begins = None if last else trace.steps[number + 1].start_ns
        follows = begins is not None and begins - step.end_ns < own
        whole = begins - step.start_ns if follows and begins is not None else max(own, window)
        found.append(StepRows(rows, whole))
    if found or not len(trace):
        return found
    return [StepRows(np.arange(len(trace)), int(trace.end_ns.max() - trace.start_ns.min()))]
