"""When every task runs, without events: the default engine.

It applies the rule of `simmoe.engine.simulate` with the same two operations to every task, many streams at a time, and
gives the same bits. `simulate_batch` and `makespans` run many durations of one graph in one pass.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from simmoe.engine.levels import Levels, levels_of
from simmoe.engine.lockstep import row_ends
from simmoe.engine.numba_pass import compiled, installed, run_compiled
from simmoe.engine.record import Timeline
from simmoe.engine.rows import rows_of
from simmoe.errors import InternalError
from simmoe.graph.task import FloatArray, TaskGraph

_WORTH_COMPILING = 1_500_000  # tasks that numpy does in the half second that numba takes to start
_CHUNK_BYTES, _CHUNK_DRAWS = 1 << 28, 128  # draws worked on at once
_BLOCK = 256  # tasks whose times are turned from rows into columns while they are in the cache


@dataclass(slots=True)
class _Process:
    """How many tasks this process has simulated; decides when numba pays, never what comes out."""

    tasks: int = 0


_process = _Process()


def simulate_fast(graph: TaskGraph, *, use_numba: bool | None = None) -> Timeline:
    """Start and end of every task, equal to `simmoe.engine.simulate.simulate` to the last bit.

    Parameters
    ----------
    graph : TaskGraph
        Durations in [s]; tasks of a stream run in ascending task id.
    use_numba : bool, optional
        Run compiled code (the ``[fast]`` extra). By default, if it is installed and has paid, or will pay, for its
        start of half a second. The times are the same.

    Returns
    -------
    Timeline

    Raises
    ------
    InternalError
        As `simmoe.engine.simulate.simulate`, with the same words.
    ModuleNotFoundError
        If `use_numba` is true and numba is not installed.

    Notes
    -----
    Time and memory grow linearly with tasks and edges.

    Examples
    --------
    A 2 s send starts when the 3 s kernel on the other stream has ended:

    >>> from simmoe.graph.task import Operation, Stream, compressed_rows
    >>> start, predecessor = compressed_rows(np.array([0]), np.array([1]), 2)
    >>> pair, none = np.arange(2, dtype=np.int32), np.full(2, -1, dtype=np.int32)
    >>> graph = TaskGraph(
    ...     pair, pair, np.array([3.0, 2.0]), none, none, start, predecessor,
    ...     (Operation("mlp", "forward", "gemm"), Operation("send", "forward", "send_recv", "pp")),
    ...     (Stream(0, "compute"), Stream(0, "pp_forward")),
    ... )
    >>> timeline = simulate_fast(graph)
    >>> timeline.start.tolist(), timeline.end.tolist()
    ([0.0, 3.0], [3.0, 5.0])
    """
    if not len(graph):
        return Timeline(graph, np.zeros(0), np.zeros(0))
    if not (_is_time(graph.duration) and _is_sound(graph)):
        return simulate_reference(graph)
    _process.tasks += len(graph)
    if use_numba is None:
        use_numba = _process.tasks >= _WORTH_COMPILING and installed()
    times = run_compiled(graph, compiled()) if use_numba else _interpreted(graph)
    return Timeline(graph, *times) if times is not None else simulate_reference(graph)


def simulate_batch(
    graph: TaskGraph, durations: FloatArray, *, levels: Levels | None = None
) -> tuple[FloatArray, FloatArray]:
    """Start and end of every task under many durations.

    Parameters
    ----------
    graph : TaskGraph
        Its own durations are not used.
    durations : array of float64, shape (draws, tasks)
        [s]
    levels : Levels, optional
        Of this graph, if they are at hand.

    Returns
    -------
    start, end : array of float64, shape (draws, tasks)
        [s]; row i equals a simulation of the graph with ``durations[i]`` to the last bit.

    Raises
    ------
    InternalError
        As `simulate_fast`.

    Examples
    --------
    >>> from simmoe.graph.task import Operation, Stream, compressed_rows
    >>> rows, pair = compressed_rows(np.array([0]), np.array([1]), 2), np.arange(2, dtype=np.int32)
    >>> streams = (Stream(0, "compute"), Stream(0, "ep"))
    >>> graph = TaskGraph(pair, pair, np.ones(2), pair, pair, *rows, (), streams)
    >>> start, end = simulate_batch(graph, np.array([[3.0, 2.0], [1.0, 4.0]]))
    >>> start.tolist(), end.tolist()
    ([[0.0, 3.0], [0.0, 1.0]], [[3.0, 5.0], [1.0, 5.0]])
    """
    levels = _known(graph, levels)
    start, end = (np.empty((len(durations), len(graph))) for _ in range(2))
    low = 0
    for work in _relaxed(graph, durations, levels):
        high = low + work.shape[1]
        for first in range(0, len(graph), _BLOCK):
            tasks = slice(first, first + _BLOCK)
            row = levels.task[tasks]
            end[low:high, tasks] = work[row].T
            start[low:high, tasks] = np.maximum(work[levels.before[row]], work[levels.awaited[row]]).T
        low = high
    return start, end


def makespans(graph: TaskGraph, durations: Iterable[FloatArray], *, levels: Levels | None = None) -> FloatArray:
    """End of the last task under many durations, in memory that does not grow with their number.

    Parameters
    ----------
    graph : TaskGraph
        Its own durations are not used.
    durations : iterable of arrays of float64, shape (tasks,)
        [s]; the rows of a two-dimensional array, or a generator that draws them one by one.
    levels : Levels, optional
        Of this graph, if they are at hand.

    Returns
    -------
    array of float64, shape (draws,)
        [s]

    Raises
    ------
    InternalError
        As `simulate_fast`.

    Examples
    --------
    >>> from simmoe.graph.task import Stream, compressed_rows
    >>> none = np.zeros(2, dtype=np.int32)
    >>> graph = TaskGraph(none, none, np.ones(2), none, none, *compressed_rows(none[:0], none[:0], 2), (),
    ...     (Stream(0, "compute"),))
    >>> makespans(graph, (np.array([1.0, factor]) for factor in (1.0, 2.0, 3.0))).tolist()
    [2.0, 3.0, 4.0]
    """
    levels = _known(graph, levels)
    return np.concatenate([np.zeros(0), *(work.max(axis=0) for work in _relaxed(graph, durations, levels))])


def _relaxed(graph: TaskGraph, durations: Iterable[FloatArray], levels: Levels) -> Iterator[FloatArray]:
    """Ends by row of one chunk of draws after another; each is overwritten by the next."""
    rows = len(levels.before) + 1
    chunk = max(1, min(_CHUNK_DRAWS, _CHUNK_BYTES // (8 * rows)))
    space, drawn = np.zeros(0), 0
    for part in _parts(durations, chunk):
        for draw, duration in enumerate(part, drawn):
            _check_draw(graph, duration, draw)
        drawn += len(part)
        if not len(space):
            space = np.zeros(rows * len(part))  # the first chunk is the largest
        work = space[: rows * len(part)].reshape(rows, len(part))
        work[:] = 0.0
        work[levels.task] = np.asarray(part).T
        levels.relax(work)
        yield work


def _parts(durations: Iterable[FloatArray], size: int) -> Iterator[FloatArray | list[FloatArray]]:
    """Cut draws into portions, without a copy where they are one array."""
    if isinstance(durations, np.ndarray):
        for low in range(0, len(durations), size):
            yield durations[low : low + size]
        return
    draws = iter(durations)
    while part := list(islice(draws, size)):
        yield part


def _interpreted(graph: TaskGraph) -> tuple[FloatArray, FloatArray] | None:
    """Start and end of every task; None if some never end."""
    rows = rows_of(graph)
    ends = row_ends(rows, rows.spread(graph.duration))
    end = ends[rows.task]
    return (rows.starts(ends), end) if end.max() < np.inf else None


def _known(graph: TaskGraph, levels: Levels | None) -> Levels:
    """The levels of a graph, or the reference engine's explanation why there are none."""
    found = levels or (levels_of(graph) if _is_sound(graph) else None)
    if found is None:
        simulate_reference(replace(graph, duration=np.zeros(len(graph))))
        raise InternalError("the fast engine finds no order of the tasks, but the reference engine does")
    return found


def _check_draw(graph: TaskGraph, duration: FloatArray, draw: int) -> None:
    """Refuse durations of the wrong number or without meaning."""
    if duration.shape != (len(graph),):
        raise InternalError(f"draw {draw} has durations of shape {duration.shape}, the graph has {len(graph)} tasks")
    if not _is_time(duration):
        raise InternalError(f"draw {draw} holds a duration that is negative or not finite")


def _is_time(duration: FloatArray) -> bool:
    """Whether all durations are finite and not negative."""
    return bool(duration.min(initial=0.0) >= 0.0 and duration.max(initial=0.0) < np.inf)  # false for NaN, too


def _is_sound(graph: TaskGraph) -> bool:
    """Whether all streams and predecessors exist: the passes do not check."""
    stream, predecessor = graph.stream, graph.predecessor
    return bool(
        stream.min(initial=0) >= 0
        and stream.max(initial=0) < max(len(graph.streams), 1)
        and predecessor.min(initial=0) >= 0
        and predecessor.max(initial=0) < max(len(graph), 1)
    )


def simulate_reference(graph: TaskGraph) -> Timeline:
    """The reference engine, imported when asked for: it also names what is wrong, which the passes here cannot."""
    from simmoe.engine.simulate import simulate  # noqa: PLC0415 (SimPy is needed in case of trouble only)

    return simulate(graph)
