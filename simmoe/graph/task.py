"""Tasks, streams and the graph they form: the whole vocabulary that the graph and the engine share.

A task sits on one stream. A stream runs its tasks one after another in ascending task id (the order of issue, as
a CUDA stream does). A task starts when all its predecessors and the task before it on its stream have ended.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.errors import InternalError

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float64]


class Operation(NamedTuple):
    """What tasks of one kind have in common; a task holds only an index into the table of these.

    Attributes
    ----------
    name : str
        ``attention.core``, ``moe.dispatch``, ... (stable: it sets the colour in a trace).
    phase : str
        ``forward``, ``backward``, ``recompute``, ``optimizer`` or ``""``.
    category : str
        Class for breakdowns: ``gemm``, ``attention``, ``grouped_gemm``, ``memory``, ``optimizer``, ``host`` or,
        for communication, the NCCL collective: ``all_to_all``, ``all_gather``, ``reduce_scatter``, ``all_reduce``,
        ``send_recv``.
    group : str
        Communication group (``tp``, ``cp``, ``ep``, ``etp``, ``dp``, ``edp``, ``pp``), else ``""``.
    flops : float
        Arithmetic of one task [FLOP].
    bytes : float
        Bytes moved in memory, or the message size of a collective [B].
    """

    name: str
    phase: str
    category: str
    group: str = ""
    flops: float = 0.0
    bytes: float = 0.0


class Stream(NamedTuple):
    """One in-order queue of one rank.

    Attributes
    ----------
    rank : int
        Index of the simulated rank (rank class) it belongs to.
    name : str
        ``compute``, ``host``, ``tp``, ``cp``, ``ep``, ``dp``, ``pp_forward``, ``pp_backward``; of zebra parallelism
        also ``dispatch`` (towards expert devices) and ``combine`` (back).
    """

    rank: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class TaskGraph:
    """One iteration as a structure of arrays; row i is task i.

    Attributes
    ----------
    operation : array of int32, shape (tasks,)
        Index into `operations`.
    stream : array of int32, shape (tasks,)
        Index into `streams`.
    duration : array of float64, shape (tasks,)
        Time the task occupies its stream [s].
    layer : array of int32, shape (tasks,)
        Model layer, -1 where none.
    micro_batch : array of int32, shape (tasks,)
        Micro-batch, -1 where none.
    predecessor_start : array of int32, shape (tasks + 1,)
        Row i's predecessors are ``predecessor[predecessor_start[i]:predecessor_start[i + 1]]`` (CSR).
    predecessor : array of int32
        Task ids, ascending inside a row.
    operations, streams : tuple
        The tables that the indices point into.
    """

    operation: IntArray
    stream: IntArray
    duration: FloatArray
    layer: IntArray
    micro_batch: IntArray
    predecessor_start: IntArray
    predecessor: IntArray
    operations: tuple[Operation, ...]
    streams: tuple[Stream, ...]

    def __len__(self) -> int:
        return len(self.operation)

    def predecessors(self, task: int) -> IntArray:
        """The tasks that `task` waits for, besides the one before it on its stream."""
        return self.predecessor[self.predecessor_start[task] : self.predecessor_start[task + 1]]


def compressed_rows(source: IntArray, target: IntArray, tasks: int) -> tuple[IntArray, IntArray]:
    """Turn edges source -> target into CSR rows of predecessors, one row a target, without duplicates.

    Parameters
    ----------
    source, target : array of int, shape (edges,)
        Task ids.
    tasks : int
        Number of tasks.

    Returns
    -------
    start : array of int32, shape (tasks + 1,)
    predecessor : array of int32, shape (distinct edges,)

    Raises
    ------
    InternalError
        If an edge names a task that does not exist.

    Examples
    --------
    >>> start, predecessor = compressed_rows(np.array([0, 0, 1]), np.array([1, 2, 2]), 3)
    >>> start.tolist(), predecessor.tolist()
    ([0, 0, 1, 3], [0, 0, 1])
    """
    _check_ends(source, target, tasks)
    owner, predecessor = np.divmod(_distinct_keys(source, target, tasks), max(tasks, 1))
    start = np.zeros(tasks + 1, dtype=np.int32)
    np.cumsum(np.bincount(owner, minlength=tasks), out=start[1:])
    return start, predecessor.astype(np.int32)


def with_edges(
    degree: IntArray, predecessor: IntArray, source: NDArray[np.integer], target: NDArray[np.integer]
) -> tuple[IntArray, IntArray]:
    """CSR rows of predecessors, most of which are known.

    Parameters
    ----------
    degree : array of int32, shape (tasks,)
        Known predecessors of each task. Is overwritten.
    predecessor : array of int32
        Those, one task after another, ascending inside a row.
    source, target : array of int, shape (edges,)
        Task ids of further edges; equal edges count once.

    Returns
    -------
    start, predecessor : array of int32
        As `compressed_rows`.

    Raises
    ------
    InternalError
        If an edge names a task that does not exist.

    Notes
    -----
    Only the rows that gain an edge are sorted, so a few edges more cost little more than a copy.

    Examples
    --------
    Task 1 waits for 0 and task 2 for 1; now task 2 waits for 0, too:

    >>> degree, known = np.array([0, 1, 1], dtype=np.int32), np.array([0, 1], dtype=np.int32)
    >>> start, predecessor = with_edges(degree, known, np.array([0, 1]), np.array([2, 2]))
    >>> start.tolist(), predecessor.tolist()
    ([0, 0, 1, 3], [0, 0, 1])
    """
    tasks = len(degree)
    _check_ends(source, target, tasks)
    gains = np.zeros(tasks, dtype=np.bool_)
    gains[target] = True
    rows = np.flatnonzero(gains)
    moved = spread_runs(_before(degree, rows), degree[rows])
    keys = _distinct_keys(
        np.concatenate([predecessor[moved], source]), np.concatenate([np.repeat(rows, degree[rows]), target]), tasks
    )
    owner, edges = np.divmod(keys, max(tasks, 1))
    opens = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]])) if len(keys) else owner
    degree[rows] = np.diff(opens, append=len(keys))
    start = np.zeros(tasks + 1, dtype=np.int32)
    np.cumsum(degree, out=start[1:])
    return start, _exchanged(predecessor, moved, edges.astype(np.int32), spread_runs(start[rows], degree[rows]))


def _before(degree: IntArray, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of the degrees before each of some rows, without the sums before all others."""
    if not len(rows):
        return rows
    cuts = np.concatenate([[0], rows[rows > 0]])
    sums = np.concatenate([[0], np.cumsum(np.add.reduceat(degree, cuts))[:-1]])
    found: NDArray[np.int64] = sums[len(sums) - len(rows) :]
    return found


def spread_runs(first: NDArray[np.integer], length: NDArray[np.integer]) -> NDArray[np.int64]:
    """The numbers of runs of consecutive numbers, one run after another.

    Examples
    --------
    >>> spread_runs(np.array([7, 2]), np.array([2, 3])).tolist()
    [7, 8, 2, 3, 4]
    """
    behind = np.cumsum(length, dtype=np.int64)
    return np.arange(behind[-1] if len(behind) else 0) + np.repeat(first - (behind - length), length)


def _exchanged(values: IntArray, left_out: NDArray[np.int64], new: IntArray, places: NDArray[np.int64]) -> IntArray:
    """Values without some of them, and with new ones at the given places of the result."""
    found = np.empty(len(values) - len(left_out) + len(new), dtype=np.int32)
    old = np.ones(len(found), dtype=np.bool_)
    old[places] = False
    found[places] = new
    if len(left_out):
        kept = np.ones(len(values), dtype=np.bool_)
        kept[left_out] = False
        values = values[kept]
    found[old] = values
    return found


def _check_ends(source: NDArray[np.integer], target: NDArray[np.integer], tasks: int) -> None:
    """Refuse edges of tasks that do not exist."""
    for ends in (source, target):
        if len(ends) and (ends.min() < 0 or ends.max() >= tasks):
            raise InternalError("an edge of the task graph names a task that does not exist")


def _distinct_keys(source: NDArray[np.integer], target: NDArray[np.integer], tasks: int) -> NDArray[np.int64]:
    """Edges as target x tasks + source, ascending, each once."""
    keys = target.astype(np.int64)
    keys *= tasks
    keys += source
    keys.sort()  # np.unique would hash: 20 times slower
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys
