"""Fluid work by the quick event loop, compiled if numba is installed (``pip install simmoe[fast]``)."""

import importlib
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np

from simmoe.engine import fluid_loop
from simmoe.engine.fluid_loop import State, Work
from simmoe.engine.numba_pass import installed
from simmoe.graph.fluid import Fluid
from simmoe.graph.task import FloatArray, TaskGraph

_WORTH_COMPILING = 30_000  # tasks that take Python longer than the start of numba; its first start ever takes 8 s
# The loop divides by nothing that is zero and allocates nothing, and only `run` is called from Python: without the code
# for these, compiling takes a third of the time.
_ALL = {"error_model": "numpy", "_nrt": False}
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def simulate_quickly(
    graph: TaskGraph, fluid: Fluid, *, use_numba: bool | None = None
) -> tuple[FloatArray, FloatArray] | None:
    """Start and end of every task when tasks share links.

    Parameters
    ----------
    graph : TaskGraph
    fluid : Fluid
        Of the same tasks; both are taken to be sound.
    use_numba : bool, optional
        By default, if it is installed and has started, or the graph is large enough to make up for its start.

    Returns
    -------
    start, end : array of float64, shape (tasks,) or None
        [s]; None if some task never ends.

    Raises
    ------
    ModuleNotFoundError
        If `use_numba` is true and numba is not installed.

    Notes
    -----
    The times are those of `simmoe.engine.fluid` to 1e-9 relative: rates are found for fewer flows at once, so sums are
    made in another order. Compiled or not, they are equal to the last bit.
    """
    work, state = tables(graph, fluid)
    if use_numba is None:
        started = compiled.cache_info().currsize > 0
        use_numba = (started or len(graph) >= _WORTH_COMPILING) and installed()
    if use_numba:
        done = compiled()(work, state)
    else:  # Python is several times quicker on lists than on the elements of arrays
        work = Work(*(column.tolist() for column in work))
        state = State(*(column.tolist() for column in state))
        done = fluid_loop.run(work, state)
    return (np.asarray(state.start), np.asarray(state.end)) if done == len(graph) else None


def tables(graph: TaskGraph, fluid: Fluid) -> tuple[Work, State]:
    """What the loop works on, as arrays."""
    tasks, streams, links = len(graph), len(graph.streams), len(fluid.capacity)
    following, head = _order(graph)
    priorities = int(fluid.priority.max(initial=0)) + 1
    width = int(np.diff(fluid.use_start).max(initial=1))
    work = Work(
        *(graph.duration, graph.predecessor_start, graph.predecessor, following),
        *(fluid.latency, fluid.volume, fluid.route, fluid.bound, fluid.priority),
        *(fluid.use_start, fluid.use_link, fluid.use, fluid.hold_start, fluid.hold_link, fluid.hold, fluid.capacity),
        sizes=np.array([priorities, links, width]),
    )
    count = np.zeros(5, dtype=np.int64)
    count[fluid_loop.READY] = streams

    def none(size: int) -> Any:
        return np.full(size, -1)

    def zeros(size: int) -> Any:
        return np.zeros(size)

    def ints(size: int) -> Any:
        return np.zeros(size, dtype=np.int64)

    state = State(
        *(zeros(tasks), np.full(tasks, -1.0), np.full(tasks, -1, dtype=np.int32), head, none(streams)),
        *(np.append(np.arange(streams), ints(streams)), ints(streams)),
        *(zeros(streams), zeros(streams), zeros(streams), zeros(streams), ints(streams), zeros(streams)),
        *(none(streams), ints(streams), ints(streams), ints(links)),
        *(zeros(links), zeros(links), zeros(links), zeros(links)),
        *(zeros(priorities * links), none(priorities * links), ints(priorities * links), ints(priorities * links)),
        *(ints(priorities), none(streams * width), none(streams * width), count),
    )
    return work, state


def _order(graph: TaskGraph) -> tuple[Any, Any]:
    """The task after each on its stream, and the first of each stream; -1 for none."""
    order = np.argsort(graph.stream, kind="stable").astype(np.int32)
    same = graph.stream[order[1:]] == graph.stream[order[:-1]]
    following = np.full(len(graph), -1, dtype=np.int32)
    following[order[:-1][same]] = order[1:][same]
    head = np.full(len(graph.streams), -1, dtype=np.int64)
    opens = order[np.append(True, ~same)] if len(order) else order
    head[graph.stream[opens]] = opens
    return following, head


@cache
def compiled() -> Callable[[Work, State], int]:
    """`simmoe.engine.fluid_loop.run` as machine code, kept on disk where that is possible.

    Raises
    ------
    ModuleNotFoundError
        If numba is not installed.

    Notes
    -----
    The functions of the loop call each other; each copy is made to find the compiled copies of the others, so that the
    module itself stays plain Python and numba is imported by those who want it.
    """
    njit = importlib.import_module("numba").njit
    names = [name for name, thing in vars(fluid_loop).items() if isinstance(thing, FunctionType)]
    space = dict(vars(fluid_loop))
    for name in names:
        plain = FunctionType(space[name].__code__, space, name)
        plain.__module__ = fluid_loop.__name__
        options = _ALL if name == "run" else _ALL | _INNER
        try:
            space[name] = njit(cache=True, **options)(plain)
        except RuntimeError:  # no place for a cache can be written to
            space[name] = njit(**options)(plain)
    result: Callable[[Work, State], int] = space["run"]
    return result
