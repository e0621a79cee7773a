"""When every task runs if tasks share links: the readable reference, and the choice between it and the quick loop.

A task starts as in `simmoe.engine.simulate`. From then on it occupies what its route holds; after its latency it
progresses at the max-min fair rate of `simmoe.engine.fairshare`, which changes at every instant at which a task starts,
begins to progress or ends. All that happens at one instant counts as simultaneous.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import simpy
from simpy.events import EventPriority

from simmoe.engine.fairshare import shared_rates
from simmoe.engine.fluid_loop import INSTANT
from simmoe.engine.record import Timeline
from simmoe.engine.simulate import _by_stream, _check, _name, _Run, _stuck, _waits
from simmoe.errors import InternalError
from simmoe.graph.fluid import Fluid
from simmoe.graph.task import FloatArray, IntArray, TaskGraph

Watch = Callable[[float, IntArray, FloatArray], None]
_LAST = EventPriority(2)  # SimPy's priority of what happens after everything else of an instant


def simulate_fluid(
    graph: TaskGraph, fluid: Fluid, engine: Literal["simpy", "fast"] = "fast", *, watch: Watch | None = None
) -> Timeline:
    """Start and end of every task when tasks share links.

    Parameters
    ----------
    graph : TaskGraph
        Durations count only for tasks without a route.
    fluid : Fluid
        What each task needs of which links.
    engine : str
        ``simpy`` is the reference; ``fast`` gives the same times to 1e-9 relative, by compiled code if numba is
        installed (the ``[fast]`` extra) and the graph is large, else by the same code interpreted.
    watch : callable, optional
        Called with (time, tasks that progress, their rates) whenever rates change; only the reference can.

    Returns
    -------
    Timeline

    Raises
    ------
    InternalError
        As `simmoe.engine.simulate.simulate`; if the arrays do not belong together; if tasks occupy so much of a link
        that those which need it never end.

    Examples
    --------
    Two messages of 100 B share a 10 B/s wire; the second starts 5 s later. Alone for 5 s, the first has 50 B left,
    which at half the rate take 10 s; then the second has 50 B left and the wire for itself:

    >>> from simmoe.graph.fluid import Route, make_fluid
    >>> from simmoe.graph.task import Operation, Stream, compressed_rows
    >>> none, start = np.full(3, -1, np.int32), np.array([0, 1, 1], np.int32)
    >>> rows, names = compressed_rows(none[:0], none[:0], 3), (Stream(0, "dp"), Stream(0, "ep"))
    >>> graph = TaskGraph(none * 0, start, np.array([10.0, 5.0, 10.0]), none, none, *rows, (), names)
    >>> route = np.array([0, -1, 0])
    >>> fluid = make_fluid(graph.duration, np.zeros(3), route, [Route({0: 1.0}, 10.0)], [("wire", 10.0)])
    >>> simulate_fluid(graph, fluid, "simpy").end.tolist()
    [15.0, 5.0, 20.0]
    """
    _check(graph)
    _check_fluid(graph, fluid)
    if engine == "fast" and watch is None:
        from simmoe.engine.fluid_numba import simulate_quickly  # noqa: PLC0415 (the reference needs none of it)

        times = simulate_quickly(graph, fluid)
        if times is not None:
            return Timeline(graph, *times)
    return _reference(graph, fluid, watch)


def _reference(graph: TaskGraph, fluid: Fluid, watch: Watch | None) -> Timeline:
    environment = simpy.Environment(initial_time=0.0)
    sharing = _Sharing(environment, fluid, watch)
    run = _FluidRun(graph.duration.tolist(), _waits(graph), _by_stream(graph), sharing=sharing)
    for queue in run.queues:
        environment.process(run.serve(environment, queue))
    environment.run()
    if sharing.left:
        task = min(sharing.left)
        raise InternalError(f"{_name(graph, task)} never ends: others occupy all of a link that it needs")
    if not all(run.done):
        raise InternalError(_stuck(graph, run))
    return Timeline(graph, np.array(run.start, dtype=np.float64), np.array(run.end, dtype=np.float64))


class _Settle(simpy.Event):
    """Happens after all other events of this instant."""

    def __init__(self, environment: simpy.Environment) -> None:
        super().__init__(environment)
        self._ok, self._value = True, None
        environment.schedule(self, priority=_LAST)


@dataclass(slots=True)
class _Sharing:
    """The tasks that run now, what is left of those that progress [units of work], and at which rates."""

    environment: simpy.Environment
    fluid: Fluid
    watch: Watch | None
    running: dict[int, None] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    ended: dict[int, simpy.Event] = field(default_factory=dict)
    since: float = 0.0
    pending: bool = False
    version: int = 0

    def run(self, task: int) -> Generator[simpy.Event, None, None]:
        """Hold, wait, progress, release."""
        self.running[task] = None
        self.change()
        latency, volume = float(self.fluid.latency[task]), float(self.fluid.volume[task])
        if latency:
            yield simpy.Timeout(self.environment, latency)
        if volume:
            self.left[task] = volume
            self.ended[task] = simpy.Event(self.environment)
            self.change()
            yield self.ended[task]
        del self.running[task]
        self.change()

    def change(self) -> None:
        """Rates have to be found anew at the end of this instant."""
        if not self.pending:
            self.pending = True
            _Settle(self.environment).callbacks.append(lambda _: self.settle())

    def settle(self) -> None:
        """Book the progress since the last change, find the rates from now on, and wait for the next end."""
        self.pending, now = False, self.environment.now
        for task, rate in self.rates.items():
            if task in self.left:
                left = self.left[task] - rate * (now - self.since)
                self.left[task] = left if left > rate * now * INSTANT else 0.0
        self.since, self.version = now, self.version + 1
        flowing = np.array(sorted(self.left), dtype=np.int32)
        rates = shared_rates(self.fluid, flowing, np.array(sorted(self.running), dtype=np.int32))
        self.rates = dict(zip(flowing.tolist(), rates.tolist(), strict=True))
        if self.watch is not None:
            self.watch(now, flowing, rates)
        needed = {task: left / self.rates[task] for task, left in self.left.items() if self.rates[task] > 0.0}
        needed |= {task: 0.0 for task, left in self.left.items() if left == 0.0}
        if needed:
            shortest, version = min(needed.values()), self.version
            first = [task for task, seconds in needed.items() if seconds == shortest]
            simpy.Timeout(self.environment, shortest).callbacks.append(lambda _: self.finish(first, version))

    def finish(self, tasks: list[int], version: int) -> None:
        """End tasks, unless the rates have changed in the meantime."""
        if version != self.version:
            return
        for task in tasks:
            del self.left[task]
            self.ended.pop(task).succeed()
        self.change()


@dataclass(slots=True, kw_only=True)
class _FluidRun(_Run):
    """A simulation whose tasks with a route share."""

    sharing: _Sharing

    def serve(self, environment: simpy.Environment, queue: list[int]) -> Generator[simpy.Event, None, None]:
        """Run the tasks of one stream in order; an event exists only while someone waits for it."""
        route = self.sharing.fluid.route
        for task in queue:
            for predecessor in self.waits[task]:
                if not self.done[predecessor]:
                    event = self.awaited.get(predecessor)
                    if event is None:
                        event = self.awaited[predecessor] = simpy.Event(environment)
                    yield event
            self.start[task] = environment.now
            if route[task] >= 0:
                yield from self.sharing.run(task)
            elif self.duration[task]:
                yield simpy.Timeout(environment, self.duration[task])
            self.end[task] = environment.now
            self.done[task] = True
            if task in self.awaited:
                self.awaited.pop(task).succeed()


def _check_fluid(graph: TaskGraph, fluid: Fluid) -> None:
    """Refuse what would make the clock run backwards or read outside an array."""
    if len(fluid) != len(graph):
        raise InternalError(f"fluid work of {len(fluid)} tasks for a graph of {len(graph)}")
    if len(fluid) and not (fluid.route.min() >= -1 and fluid.route.max() < len(fluid.bound)):
        raise InternalError(f"a task takes a route outside the {len(fluid.bound)} that exist")
    for name in ("latency", "volume"):
        column = getattr(fluid, name)
        wrong = np.flatnonzero(~(np.isfinite(column) & (column >= 0)))
        if len(wrong):
            task = int(wrong[0])
            raise InternalError(f"{_name(graph, task)} has a {name} of {column[task]:g}; it is finite, not negative")
