"""A measured step beside the simulated one, class by class."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.calibration.breakdown import Breakdown, breakdown, row_classes
from simmoe.calibration.collective_calls import collective_names, plain_kind
from simmoe.calibration.kernel_classes import COMMUNICATION, TABLE, KernelClass
from simmoe.calibration.observations import step_rows
from simmoe.calibration.simulated import COMM, HOST, SimulatedRank
from simmoe.calibration.trace import KINDS, Trace

Words = NDArray[np.object_]
PRODUCTS, ATTENTION, OTHER, COPIES = "matrix products", "attention", "memory-bound", "copies"
WAITING = "waiting for ranks"
_CLASSES = {"gemm": PRODUCTS, "grouped_gemm": PRODUCTS, "attention": ATTENTION, "memcpy": COPIES, "memset": COPIES}


class Figures(NamedTuple):
    """A step of one rank [s].

    Attributes
    ----------
    step_s : float
        From the begin of the step to that of the next.
    compute_s, exposed_s, overlapped_s, idle_s : float
        As unions of intervals, see `simmoe.calibration.breakdown.Breakdown`.
    by_class : dict of str to float
        Sums of durations; collectives by kind.
    """

    step_s: float
    compute_s: float
    exposed_s: float
    overlapped_s: float
    idle_s: float
    by_class: dict[str, float]


def measured_figures(
    trace: Trace, table: tuple[KernelClass, ...] = TABLE, transfers: Mapping[int, int] | None = None
) -> list[Figures]:
    """Each step of a trace.

    Parameters
    ----------
    trace : Trace
    table : tuple of KernelClass
    transfers : mapping of int to int, optional
        Row of a collective -> its duration without waiting, where that is known [ns]; the rest is a class of its own.
    """
    known = transfers or {}
    classes = step_classes(trace, table)
    found = []
    for step in step_rows(trace):
        chosen = np.isin(np.arange(len(trace)), step.rows)
        one = _figures(trace, breakdown(trace, chosen, table=table), classes, chosen, step.step_ns)
        sums, waiting = dict(one.by_class), 0.0
        for row in (row for row in step.rows.tolist() if row in known):
            waited = int(trace.end_ns[row] - trace.start_ns[row]) - known[row]
            sums[classes[row]] -= waited * 1e-9
            waiting += waited * 1e-9
        found.append(one._replace(by_class={**sums, WAITING: waiting} if waiting > 0 else sums))
    return found


def simulated_figures(simulated: SimulatedRank, step_s: float) -> Figures:
    """A simulated rank, counted as a trace is.

    Parameters
    ----------
    simulated : SimulatedRank
    step_s : float
        Of the whole step [s].
    """
    trace = as_trace(simulated)
    everything = np.ones(len(trace), dtype=bool)
    part = breakdown(trace)
    return _figures(trace, part, step_classes(trace), everything, round(step_s * 1e9))


def combined(parts: Sequence[Figures], how: Callable[[Iterable[float]], float]) -> Figures:
    """Several steps or ranks as one.

    Parameters
    ----------
    parts : sequence of Figures
        At least one.
    how : callable
        Of each figure of all of them: `statistics.median` of steps, `statistics.fmean` of ranks.
    """
    names = dict.fromkeys(name for part in parts for name in part.by_class)
    return Figures(
        step_s=how(part.step_s for part in parts),
        compute_s=how(part.compute_s for part in parts),
        exposed_s=how(part.exposed_s for part in parts),
        overlapped_s=how(part.overlapped_s for part in parts),
        idle_s=how(part.idle_s for part in parts),
        by_class={name: how(part.by_class.get(name, 0.0) for part in parts) for name in names},
    )


def _figures(trace: Trace, part: Breakdown, classes: Words, rows: NDArray[np.bool_], step_ns: int) -> Figures:
    took = (trace.end_ns - trace.start_ns) * 1e-9
    sums = {name: float(took[rows & (classes == name)].sum()) for name in dict.fromkeys(classes[rows].tolist())}
    return Figures(
        step_ns * 1e-9,
        part.compute_ns * 1e-9,
        part.exposed_ns * 1e-9,
        part.overlapped_ns * 1e-9,
        max(0, step_ns - part.busy_ns) * 1e-9,
        sums,
    )


def step_classes(trace: Trace, table: tuple[KernelClass, ...] = TABLE) -> Words:
    """The classes in which measured and simulated steps are compared, of every row.

    Parameters
    ----------
    trace : Trace
    table : tuple of KernelClass
    """
    own = row_classes(trace, table)
    talks = own == COMMUNICATION
    names = collective_names(trace, talks)
    found = np.array([_CLASSES.get(name, OTHER) for name in own.tolist()], dtype=object)
    found[talks] = [plain_kind(name).replace("kernel:", "") for name in names[talks].tolist()]
    return found


def as_trace(simulated: SimulatedRank) -> Trace:
    """A simulated rank in the form of a trace that was read, without its host.

    Parameters
    ----------
    simulated : SimulatedRank
    """
    device = simulated.lane != HOST
    operation, start = simulated.operation[device], np.rint(simulated.start_s[device] * 1e9).astype(np.int64)
    end = np.rint((simulated.start_s + simulated.seconds)[device] * 1e9).astype(np.int64)
    categories = [one.category for one in simulated.operations]
    comm = simulated.lane[device] == COMM
    stated = {
        number: COMMUNICATION if number in set(operation[comm].tolist()) else categories[number]
        for number in set(operation.tolist())
    }
    nothing = np.full(len(operation), -1, dtype=np.int64)
    return Trace(
        path=Path(),
        start_ns=start,
        end_ns=end,
        kind=np.full(len(operation), KINDS.index("kernel"), dtype=np.int64),
        name=operation,
        names=tuple(simulated.label(number) for number in range(len(simulated.operations))),
        lane=simulated.stream[device],
        lanes=tuple(("0", name) for name in simulated.streams),
        correlation=nothing,
        launch_ns=nothing,
        launcher=nothing,
        threads=(),
        args={row: {"Collective name": categories[operation[row]]} for row in np.flatnonzero(comm).tolist()},
        steps=(),
        calls=(),
        host=(),
        stated=stated,
        rank=None,
        world_size=None,
        warnings=(),
    )
