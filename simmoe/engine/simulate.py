"""When every task runs: one SimPy process a stream, tasks in their order of issue.

The rule, for every task::

    start = max(end of the task before it on its stream, ends of its predecessors, 0)
    end = start + duration

A stream's order is fixed by the task ids, so simultaneous events cannot change any time, and
whoever applies the rule in another order with the same two operations gets the same bits.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import simpy

from simmoe.engine.record import Timeline
from simmoe.errors import InternalError
from simmoe.graph.task import TaskGraph

_NAMED = 5  # stuck tasks that an error names


def simulate(graph: TaskGraph) -> Timeline:
    """Start and end of every task.

    Parameters
    ----------
    graph : TaskGraph
        Durations in [s]; tasks of a stream run in ascending task id.

    Returns
    -------
    Timeline

    Raises
    ------
    InternalError
        If a duration is negative or not finite, a stream does not exist, or tasks wait for each
        other in a circle: through predecessors alone, or because a stream's order contradicts them.

    Notes
    -----
    A stream serves one task at a time. Nothing else is shared, so the result is the longest path
    through the graph. Time and memory grow linearly with tasks and edges.

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
    >>> timeline = simulate(graph)
    >>> timeline.start.tolist(), timeline.end.tolist()
    ([0.0, 3.0], [3.0, 5.0])
    """
    _check(graph)
    run = _Run(graph.duration.tolist(), _waits(graph), _by_stream(graph))
    # A float from the start: SimPy's clock is then only ever changed by `now + duration`.
    environment = simpy.Environment(initial_time=0.0)
    for queue in run.queues:
        environment.process(run.serve(environment, queue))
    environment.run()
    if not all(run.done):
        raise InternalError(_stuck(graph, run))
    start = np.array(run.start, dtype=np.float64)
    return Timeline(graph, start, np.array(run.end, dtype=np.float64))


@dataclass(slots=True)
class _Run:
    """The state of one simulation, in Python lists: SimPy touches one task at a time."""

    duration: list[float]
    waits: list[Sequence[int]]
    queues: list[list[int]]
    start: list[float] = field(init=False)
    end: list[float] = field(init=False)
    done: list[bool] = field(init=False)
    awaited: dict[int, simpy.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks = len(self.duration)
        self.start, self.end, self.done = [0.0] * tasks, [0.0] * tasks, [False] * tasks

    def serve(self, environment: simpy.Environment, queue: list[int]) -> Generator[simpy.Event, None, None]:
        """Run the tasks of one stream in order; an event exists only while someone waits for it."""
        duration, waits, done, awaited = self.duration, self.waits, self.done, self.awaited
        for task in queue:
            for predecessor in waits[task]:
                if not done[predecessor]:
                    event = awaited.get(predecessor)
                    if event is None:
                        event = awaited[predecessor] = simpy.Event(environment)
                    yield event
            self.start[task] = environment.now
            if duration[task]:
                yield simpy.Timeout(environment, duration[task])
            self.end[task] = environment.now
            done[task] = True
            if task in awaited:
                awaited.pop(task).succeed()


def _check(graph: TaskGraph) -> None:
    """Refuse what would make the clock run backwards or the result silently wrong."""
    wrong = np.flatnonzero(~(np.isfinite(graph.duration) & (graph.duration >= 0)))
    if len(wrong):
        task = int(wrong[0])
        raise InternalError(
            f"{_name(graph, task)} lasts {graph.duration[task]:g} s; a duration is finite and not negative"
        )
    if len(graph) and not (graph.stream.min() >= 0 and graph.stream.max() < len(graph.streams)):
        raise InternalError(f"a task sits on a stream outside the {len(graph.streams)} that exist")


def _by_stream(graph: TaskGraph) -> list[list[int]]:
    """The tasks of every stream that has any, ascending."""
    order = np.argsort(graph.stream, kind="stable")
    cuts = np.flatnonzero(np.diff(graph.stream[order])) + 1
    return [part.tolist() for part in np.split(order, cuts) if len(part)]


def _waits(graph: TaskGraph) -> list[Sequence[int]]:
    """For every task the predecessors that the order of its own stream does not already ensure."""
    target = np.repeat(np.arange(len(graph)), np.diff(graph.predecessor_start))
    source = graph.predecessor
    kept = (graph.stream[source] != graph.stream[target]) | (source >= target)
    bounds = np.searchsorted(target[kept], np.arange(len(graph) + 1)).tolist()
    sources = source[kept].tolist()
    return [sources[a:b] if a < b else () for a, b in pairwise(bounds)]


def _name(graph: TaskGraph, task: int) -> str:
    """A task in words."""
    operation = graph.operations[graph.operation[task]]
    stream = graph.streams[graph.stream[task]]
    words = " ".join(word for word in (operation.name, operation.phase) if word)
    return (
        f"task {task} ({words}, layer {graph.layer[task]}, micro-batch {graph.micro_batch[task]}, "
        f"rank {stream.rank} stream {stream.name})"
    )


def _stuck(graph: TaskGraph, run: _Run) -> str:
    """The sentence for a deadlock: the task each stream stands at and what that task waits for."""
    heads = sorted(
        next(task for task in queue if not run.done[task]) for queue in run.queues if not run.done[queue[-1]]
    )
    lines = []
    for task in heads[:_NAMED]:
        missing = next(p for p in run.waits[task] if not run.done[p])
        lines.append(f"{_name(graph, task)} waits for {_name(graph, missing)}")
    more = f"; and {len(heads) - _NAMED} more streams stand" if len(heads) > _NAMED else ""
    return (
        f"the task graph cannot finish, {run.done.count(False)} of {len(graph)} tasks never start: "
        + "; ".join(lines)
        + more
    )
