"""The tasks of a simulated rank as rows that measured kernels can be matched with."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simmoe.calibration.trace import IntArray
from simmoe.graph.task import Operation, TaskGraph
from simmoe.report.metrics import is_communication
from simmoe.report.result import Result

FloatArray = NDArray[np.float64]
COMPUTE, HOST, COMM = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRank:
    """The tasks of one rank class in the order in which they start.

    Attributes
    ----------
    rank : int
        Index of the rank class.
    task : array of int
        Of the graph.
    operation : array of int
        Index into `operations`.
    layer, micro_batch : array of int
        -1 where none.
    start_s, seconds : array of float
        [s]
    lane : array of int
        `COMPUTE`, `HOST` or `COMM`.
    stream : array of int
        Index into `streams`.
    streams : tuple of str
    operations : tuple of Operation
    experts : int
        Experts that the rank holds: the products behind one grouped GEMM; 1 without any.
    fused : bool
        Attention is one kernel; else products around a softmax.
    """

    rank: int
    task: IntArray
    operation: IntArray
    layer: IntArray
    micro_batch: IntArray
    start_s: FloatArray
    seconds: FloatArray
    lane: IntArray
    stream: IntArray
    streams: tuple[str, ...]
    operations: tuple[Operation, ...]
    experts: int
    fused: bool

    def __len__(self) -> int:
        """Tasks."""
        return len(self.operation)

    def label(self, operation: int) -> str:
        """What the task is called in the traces that SimMoE writes."""
        return operation_label(self.operations[operation])


def operation_label(operation: Operation) -> str:
    """Name and phase.

    Parameters
    ----------
    operation : Operation

    Examples
    --------
    >>> operation_label(Operation("attention.qkv", "forward", "gemm"))
    'attention.qkv forward'
    """
    return f"{operation.name} {operation.phase}".strip()


def simulated_rank(result: Result, rank: int) -> SimulatedRank:
    """The tasks of a rank class.

    Parameters
    ----------
    result : Result
    rank : int
        Index into `Result.ranks`.
    """
    graph, timeline = result.timeline.graph, result.timeline
    tasks = np.flatnonzero(_owner(graph) == rank)
    tasks = tasks[np.argsort(timeline.start[tasks], kind="stable")]
    lanes = np.array([_lane(operation) for operation in graph.operations], dtype=np.int64)
    stage, model = result.scenario.plan.stages[result.ranks[rank].stage], result.scenario.model
    return SimulatedRank(
        rank=rank,
        task=tasks,
        operation=graph.operation[tasks].astype(np.int64),
        layer=graph.layer[tasks].astype(np.int64),
        micro_batch=graph.micro_batch[tasks].astype(np.int64),
        start_s=timeline.start[tasks],
        seconds=timeline.end[tasks] - timeline.start[tasks],
        lane=lanes[graph.operation[tasks]],
        stream=graph.stream[tasks].astype(np.int64),
        streams=tuple(stream.name for stream in graph.streams),
        operations=graph.operations,
        experts=max(1, model.moe.num_experts // stage.expert_parallel) if model.moe is not None else 1,
        fused=result.scenario.training.software.attention == "fused",
    )


def _owner(graph: TaskGraph) -> IntArray:
    """The rank class of each task."""
    return np.array([stream.rank for stream in graph.streams], dtype=np.int64)[graph.stream]


def _lane(operation: Operation) -> int:
    if operation.category == "host":
        return HOST
    return COMM if is_communication(operation) else COMPUTE
