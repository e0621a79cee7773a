"""How much memory a GPU of each stage holds at every moment of the step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.memory import RankMemory, chunk_activations
from simmoe.cost.shard import shard_of
from simmoe.engine.record import Timeline
from simmoe.graph.ranks import RankClass
from simmoe.graph.task import FloatArray, Operation, TaskGraph
from simmoe.report.intervals import active, segment_edges
from simmoe.specs.plan import Stage
from simmoe.specs.scenario import Scenario

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTimeline:
    """Memory of one device of a rank class as a staircase.

    Attributes
    ----------
    time : array of float64
        When the level changes [s]; the first is 0.
    bytes : array of float64
        The level from then on [B].
    capacity : float
        What the device has [B].
    """

    time: FloatArray
    bytes: FloatArray
    capacity: float

    @property
    def peak(self) -> float:
        """The highest level [B]."""
        return float(self.bytes.max())


def memory_timelines(
    scenario: Scenario, timeline: Timeline, ranks: Sequence[RankClass], memory: Sequence[RankMemory]
) -> tuple[MemoryTimeline, ...]:
    """The memory of every rank class over the step.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan.
    timeline : Timeline
        Of its step.
    ranks : sequence of RankClass
        Indexed by ``Stream.rank``.
    memory : sequence of RankMemory
        One a rank class, from `simmoe.cost.memory.rank_memory`.

    Returns
    -------
    tuple of MemoryTimeline
        The peak of each is `RankMemory.total`.

    Notes
    -----
    Weights, gradients, optimizer and framework stay. The activations of a micro-batch in a chunk are there from the
    first kernel of its forward pass to the last of its backward pass or, where that is split, of its weight gradient;
    they are counted whole from the start, as `simmoe.graph.schedules.in_flight` does; of zebra stages each of the R
    micro-batches of a pass counts on its own. The working memory (recomputed
    activations, exchange buffers) is there while a pass runs. What the allocator loses is a share of both. Under skewed
    routing every micro-batch keeps the same, so much that the peak is that of the worst rank.
    """
    capacity = {part.id: part.memory.value for part in scenario.cluster.accelerators}
    order = np.argsort(timeline.graph.stream, kind="stable")
    cuts = np.searchsorted(timeline.graph.stream[order], np.arange(len(timeline.graph.streams) + 1))
    found = []
    for number, (rank, held) in enumerate(zip(ranks, memory, strict=True)):
        queues = [i for i, stream in enumerate(timeline.graph.streams) if stream == (number, "compute")]
        tasks = np.concatenate([np.zeros(0, dtype=np.int64), *(order[cuts[i] : cuts[i + 1]] for i in queues)])
        time, level = _levels(scenario, scenario.plan.stages[rank.stage], timeline, tasks, held)
        found.append(MemoryTimeline(time, level, capacity[rank.accelerator]))
    return tuple(found)


def _levels(
    scenario: Scenario, stage: Stage, timeline: Timeline, tasks: Ids, memory: RankMemory
) -> tuple[FloatArray, FloatArray]:
    """The staircase of one rank from the tasks of its compute stream."""
    software, shard = scenario.training.software, shard_of(stage, scenario.plan, scenario.training, scenario.routing)
    zebra = stage.experts is not None
    chunk = _chunk_of_tasks(scenario, stage, timeline.graph, tasks)
    mine, chunk = tasks[chunk >= 0], chunk[chunk >= 0]
    spans = [_lifetimes(timeline, mine[chunk == place]) for place in range(len(stage.chunks))]
    passes = _passes(timeline, mine, chunk)
    edges = segment_edges(np.zeros(1), *passes, *(points for span in spans for points in span))
    alive = np.zeros(len(edges) - 1)
    for part, span in zip(stage.chunks, spans, strict=True):
        each = 1.0 if zebra else chunk_activations(scenario, part, shard, stage.recompute)[0]
        alive += each * active(edges, *span)
    if (zebra or scenario.routing.skewed) and alive.any():
        alive *= memory.activations / alive.max()
    kept = alive + np.where(active(edges, *passes) > 0, memory.working, 0.0)
    static = memory.weights + memory.gradients + memory.optimizer + software.framework_memory.value
    levels = static + kept + software.allocator_waste.value * kept
    return edges, np.append(levels, static)


def _chunk_of_tasks(scenario: Scenario, stage: Stage, graph: TaskGraph, tasks: Ids) -> Ids:
    """The chunk that each task of a pass works on, -1 for tasks of no pass."""
    layers = scenario.model.num_layers
    of_layer = np.full(layers + scenario.model.mtp_layers + 1, -1, dtype=np.int64)  # the last for layer -1
    ends = {"embedding": -1, "head": -1}
    for place, chunk in enumerate(stage.chunks):
        of_layer[chunk.first_layer : chunk.first_layer + chunk.layers] = place
        of_layer[layers : layers + chunk.mtp_layers] = place
        ends["embedding"] = place if chunk.embedding else ends["embedding"]
        ends["head"] = place if chunk.head else ends["head"]
    beside = np.array([_end_of_model(operation, ends) for operation in graph.operations], dtype=np.int64)
    layer = graph.layer[tasks]
    found = np.where(layer >= 0, of_layer[layer], beside[graph.operation[tasks]])
    return np.where(graph.micro_batch[tasks] >= 0, found, -1)


def _end_of_model(operation: Operation, ends: dict[str, int]) -> int:
    """The chunk of an operation outside the layers."""
    return next((place for name, place in ends.items() if operation.name.startswith(name)), -1)


def _lifetimes(timeline: Timeline, tasks: Ids) -> tuple[FloatArray, FloatArray]:
    """From the first to the last kernel of each micro-batch in a chunk [s]."""
    batch = timeline.graph.micro_batch[tasks]
    batches, number = np.unique(batch, return_inverse=True)
    first, last = np.full(len(batches), np.inf), np.zeros(len(batches))
    np.minimum.at(first, number, timeline.start[tasks])
    np.maximum.at(last, number, timeline.end[tasks])
    return first, last


def _passes(timeline: Timeline, tasks: Ids, chunk: Ids) -> tuple[FloatArray, FloatArray]:
    """Start and end of every run of kernels of one micro-batch in one chunk and direction [s]."""
    graph = timeline.graph
    forward = np.array([operation.phase == "forward" for operation in graph.operations], dtype=np.bool_)
    keys = np.stack([graph.micro_batch[tasks], chunk, forward[graph.operation[tasks]]])
    change = np.flatnonzero(np.any(np.diff(keys, axis=1) != 0, axis=0)) + 1
    first = np.concatenate([np.zeros(min(len(tasks), 1), dtype=np.int64), change])
    last = np.append(change, len(tasks))[: len(first)] - 1
    return timeline.start[tasks[first]], timeline.end[tasks[last]]
