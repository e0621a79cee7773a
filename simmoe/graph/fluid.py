"""Work that shares: what each task of a graph needs of links whose capacity others need too.

A link is anything with a capacity: a port, an uplink, the multiprocessors of a device, its memory. A route says how
much of which links a task takes while it runs. The graph layer fills this in, the engine divides the links.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simmoe.errors import InternalError
from simmoe.graph.task import FloatArray, IntArray

NETWORK, COMPUTE = 0, 1  # priorities: what crosses the network first, computation gets what is left


class Route(NamedTuple):
    """One row of the route table, for those who fill it.

    Attributes
    ----------
    use : dict of int to float
        For each link, units of its capacity that one unit of work takes: at rate r the route takes r times as many.
    bound : float
        Rate of the work when nothing else runs [units of work/s].
    hold : dict of int to float
        For each link, units of its capacity that the task occupies from start to end, whatever its rate.
    priority : int
        Routes of a lower number are served first; others share what those leave.
    """

    use: dict[int, float]
    bound: float
    hold: dict[int, float] = {}  # noqa: RUF012 (never written to)
    priority: int = NETWORK


@dataclass(frozen=True, slots=True, eq=False)
class Fluid:
    """How the tasks of a graph share links; row i is task i.

    Attributes
    ----------
    latency : array of float64, shape (tasks,)
        Time before a task begins to progress [s].
    volume : array of float64, shape (tasks,)
        Work [units of the task's route: bytes, or seconds of the task alone].
    route : array of int32, shape (tasks,)
        Row of the route table; -1 = the task shares nothing and lasts its duration in the graph.
    bound : array of float64, shape (routes,)
        Rate of a route on links that nobody else uses [units of work/s].
    priority : array of int32, shape (routes,)
        From 0; lower ones are served first.
    use_start, use_link, use : arrays
        Route r takes ``use[k]`` units of link ``use_link[k]`` a unit of work, for k in
        ``range(use_start[r], use_start[r + 1])`` (CSR).
    hold_start, hold_link, hold : arrays
        What a running task of route r occupies whatever its rate, in the same form.
    capacity : array of float64, shape (links,)
        [units/s, or units where links are held]
    links : tuple of str
        Names of the links.
    """

    latency: FloatArray
    volume: FloatArray
    route: IntArray
    bound: FloatArray
    priority: IntArray
    use_start: IntArray
    use_link: IntArray
    use: FloatArray
    hold_start: IntArray
    hold_link: IntArray
    hold: FloatArray
    capacity: FloatArray
    links: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.route)

    def uses(self, route: int) -> tuple[IntArray, FloatArray]:
        """The links of a route and what a unit of work takes of each."""
        row = slice(self.use_start[route], self.use_start[route + 1])
        return self.use_link[row], self.use[row]

    def holds(self, route: int) -> tuple[IntArray, FloatArray]:
        """The links that a running task of a route occupies, and how much of each."""
        row = slice(self.hold_start[route], self.hold_start[route + 1])
        return self.hold_link[row], self.hold[row]


def make_fluid(
    duration: FloatArray,
    latency: FloatArray,
    route: IntArray,
    routes: Sequence[Route],
    links: Sequence[tuple[str, float]],
) -> Fluid:
    """Fluid work that takes exactly the durations of the graph when nothing is shared.

    Parameters
    ----------
    duration : array of float64, shape (tasks,)
        Of the graph [s].
    latency : array of float64, shape (tasks,)
        Part of it that no bandwidth shortens [s]; what exceeds the duration is cut.
    route : array of int32, shape (tasks,)
        Index into `routes`, -1 for none.
    routes : sequence of Route
    links : sequence of (name, capacity)

    Returns
    -------
    Fluid

    Raises
    ------
    InternalError
        If a route has no finite positive bound, names an unknown link, uses nothing of a link it names, or needs more
        of a link than there is.

    Notes
    -----
    volume = (duration - latency) bound.

    Examples
    --------
    Two 1 GB messages of 10 ms on a 100 GB/s wire, 1 ms of it latency:

    >>> wire = Route({0: 1.0}, 100e9)
    >>> fluid = make_fluid(np.full(2, 11e-3), np.full(2, 1e-3), np.zeros(2, np.int32), [wire], [("port", 100e9)])
    >>> [round(volume) for volume in fluid.volume]
    [1000000000, 1000000000]
    """
    capacity = np.array([size for _, size in links], dtype=np.float64)
    for number, one in enumerate(routes):
        _check(number, one, capacity)
    bound = np.array([one.bound for one in routes], dtype=np.float64)
    fluid = route >= 0
    wait = np.where(fluid, np.minimum(latency, duration), 0.0)
    rate = np.where(fluid, bound[route], 1.0) if len(routes) else np.ones(len(route))
    use, hold = _rows([one.use for one in routes]), _rows([one.hold for one in routes])
    return Fluid(
        latency=wait,
        volume=np.where(fluid, (duration - wait) * rate, 0.0),
        route=route.astype(np.int32),
        bound=bound,
        priority=np.array([one.priority for one in routes], dtype=np.int32),
        use_start=use[0],
        use_link=use[1],
        use=use[2],
        hold_start=hold[0],
        hold_link=hold[1],
        hold=hold[2],
        capacity=capacity,
        links=tuple(name for name, _ in links),
    )


def _check(number: int, route: Route, capacity: FloatArray) -> None:
    """Refuse a route that could never reach its bound: its durations would not be those of the graph."""
    named = {**route.use, **route.hold}
    if not 0.0 < route.bound < np.inf or route.priority < 0:
        raise InternalError(f"route {number} has bound {route.bound:g} and priority {route.priority}")
    if any(not 0 <= link < len(capacity) for link in named) or any(not 0.0 < part < np.inf for part in named.values()):
        raise InternalError(f"route {number} uses links {named}, there are {len(capacity)} links")
    for link in named:
        needed = route.use.get(link, 0.0) * route.bound + route.hold.get(link, 0.0)
        if needed > capacity[link] * (1 + 1e-9):
            raise InternalError(f"route {number} alone needs {needed:g} of link {link}, which has {capacity[link]:g}")


def _rows(parts: Sequence[dict[int, float]]) -> tuple[IntArray, IntArray, FloatArray]:
    """Compressed rows of (link, amount), links ascending inside a row."""
    start = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int32)
    pairs = [pair for part in parts for pair in sorted(part.items())]
    link = np.array([link for link, _ in pairs], dtype=np.int32)
    return start, link, np.array([amount for _, amount in pairs], dtype=np.float64)
