"""The ends of all tasks by compiled code, if numba is installed (``pip install simmoe[fast]``)."""

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from simmoe.graph.task import FloatArray, IntArray, TaskGraph


def link_streams(stream: IntArray, streams: int) -> tuple[IntArray, IntArray]:
    """The task after each on its stream, and the first task of each stream; -1 for none.

    Examples
    --------
    >>> following, head = link_streams(np.array([0, 2, 0], dtype=np.int32), 3)
    >>> following.tolist(), head.tolist()
    ([2, -1, -1], [0, -1, 1])
    """
    following = np.full(len(stream), -1, np.int32)
    head, last = np.full(streams, -1, np.int32), np.full(streams, -1, np.int32)
    for task in range(len(stream)):
        own = stream[task]
        if last[own] < 0:
            head[own] = task
        else:
            following[last[own]] = task
        last[own] = task
    return following, head


def run_streams(
    duration: FloatArray,
    predecessor_start: IntArray,
    predecessor: IntArray,
    following: IntArray,
    head: IntArray,
    start: FloatArray,
    end: FloatArray,
) -> int:
    """Run one stream until it must wait, then another; written so that numba compiles it.

    Parameters
    ----------
    duration, predecessor_start, predecessor : array
        Of a `TaskGraph`.
    following, head : array of int32
        From `link_streams`; `head` is used up.
    start, end : array of float64, shape (tasks,)
        Filled with times [s]; `end` comes with -1 and keeps it where a task never ends.

    Returns
    -------
    int
        How many tasks have ended.
    """
    # Streams that wait for a task form a linked list: parked[task] is the first, behind[stream] the next.
    parked, behind = np.full(len(end), -1, np.int32), np.full(len(head), -1, np.int32)
    ready, clock = np.arange(len(head), dtype=np.int32), np.zeros(len(head))
    waiting, done = len(head), 0
    while waiting > 0:
        waiting -= 1
        own = ready[waiting]
        task, time = head[own], clock[own]
        while task >= 0:
            missing = -1
            for edge in range(predecessor_start[task], predecessor_start[task + 1]):
                other = end[predecessor[edge]]
                if other < 0.0:
                    missing = predecessor[edge]
                    break
                time = max(time, other)
            if missing >= 0:
                behind[own], parked[missing] = parked[missing], own
                break
            start[task] = time
            time += duration[task]
            end[task] = time
            done += 1
            woken = parked[task]
            while woken >= 0:
                ready[waiting] = woken
                waiting += 1
                woken = behind[woken]
            task = following[task]
        head[own], clock[own] = task, time
    return done


class Kernels(NamedTuple):
    """The two functions above, as they stand or compiled."""

    link: Callable[[IntArray, int], tuple[IntArray, IntArray]]
    run: Callable[[FloatArray, IntArray, IntArray, IntArray, IntArray, FloatArray, FloatArray], int]


PLAIN = Kernels(link_streams, run_streams)


@cache
def installed() -> bool:
    """Whether numba can be imported; it is not imported to find out."""
    return importlib.util.find_spec("numba") is not None


@cache
def compiled() -> Kernels:
    """The kernels as machine code, kept on disk where that is possible.

    Raises
    ------
    ModuleNotFoundError
        If numba is not installed.
    """
    # By name: numba has no type stubs, and takes half a second to import.
    njit: Any = importlib.import_module("numba").njit
    try:
        return Kernels(*map(njit(cache=True), PLAIN))
    except RuntimeError:  # neither NUMBA_CACHE_DIR, nor the folder of this file, nor the user's cache can be written
        return Kernels(*map(njit, PLAIN))


def run_compiled(graph: TaskGraph, kernels: Kernels) -> tuple[FloatArray, FloatArray] | None:
    """Start and end of every task [s]; None if some never end."""
    following, head = kernels.link(graph.stream, len(graph.streams))
    start, end = np.empty(len(graph)), np.full(len(graph), -1.0)
    edges = graph.predecessor_start, graph.predecessor
    done = kernels.run(graph.duration, *edges, following, head, start, end)
    return (start, end) if done == len(graph) else None
