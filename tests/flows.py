"""Networks for tests: links by name, and messages that start at a time and cross some of them."""

from typing import NamedTuple

import numpy as np

from simmoe.graph.fluid import Fluid, Route, make_fluid
from simmoe.graph.task import TaskGraph
from tests.graphs import Row, graph_of


class Flow(NamedTuple):
    """A message: its volume [B], the links it crosses (with how much of each a byte takes), and when it starts [s]."""

    volume: float
    links: dict[str, float] | tuple[str, ...]
    at: float = 0.0
    bound: float = np.inf  # the narrowest link, unless lower
    hold: dict[str, float] = {}  # noqa: RUF012
    priority: int = 0
    latency: float = 0.0


def network(capacity: dict[str, float], flows: list[Flow]) -> tuple[TaskGraph, Fluid]:
    """A graph of two tasks a flow: waiting for its start, and the flow (tasks 1, 3, 5, ...)."""
    numbers = {name: number for number, name in enumerate(capacity)}
    routes, rows = [], []
    for number, flow in enumerate(flows):
        use = flow.links if isinstance(flow.links, dict) else dict.fromkeys(flow.links, 1.0)
        bound = min([flow.bound, *(capacity[name] / part for name, part in use.items())])
        routes.append(
            Route(
                {numbers[name]: part for name, part in use.items()},
                bound,
                {numbers[name]: part for name, part in flow.hold.items()},
                flow.priority,
            )
        )
        rows += [
            Row(flow.at, "host", rank=number),
            Row(flow.latency + flow.volume / bound, "ep", (2 * number,), number),
        ]
    graph = graph_of(rows)
    route = np.array([task // 2 if task % 2 else -1 for task in range(len(rows))])
    latency = np.array([flow.latency for flow in flows]).repeat(2)
    return graph, make_fluid(graph.duration, latency, route, routes, list(capacity.items()))


def all_to_all(
    matrix: np.ndarray, *, domain: int, scale_up: float, port: float, leaf: int = 0, uplink: float = 0.0
) -> tuple[dict[str, float], list[Flow]]:
    """The links and messages that `simmoe.engine.fairshare.bottleneck_time` speaks of."""
    ranks = len(matrix)
    capacity = {f"{name} {way} {rank}": size for name, size in (("near", scale_up), ("far", port))
                for way in ("out", "in") for rank in range(ranks)}  # fmt: skip
    if leaf:
        capacity |= {f"leaf {way} {number}": uplink for way in ("out", "in") for number in range(ranks // leaf)}
    flows = []
    for i, j in zip(*np.nonzero(matrix), strict=True):
        if i == j:
            continue
        name = "near" if i // domain == j // domain else "far"
        links = [f"{name} out {i}", f"{name} in {j}"]
        if leaf and i // leaf != j // leaf:
            links += [f"leaf out {i // leaf}", f"leaf in {j // leaf}"]
        flows.append(Flow(float(matrix[i, j]), tuple(links)))
    return capacity, flows
