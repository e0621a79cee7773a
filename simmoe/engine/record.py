"""The immutable outcome of a simulation: when every task started and ended."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simmoe.errors import InternalError
from simmoe.graph.task import FloatArray, TaskGraph


class TaskView(NamedTuple):
    """One task as an object, for people and tests; the simulator itself works on arrays.

    Attributes
    ----------
    task : int
        Row of the task in the graph.
    name, phase, category, group : str
        Of its ``Operation``.
    rank : int
        Index of the rank class.
    stream : str
        Name of its stream.
    layer, micro_batch : int
        -1 where none.
    start, end : float
        When it occupied its stream [s].
    """

    task: int
    name: str
    phase: str
    category: str
    group: str
    rank: int
    stream: str
    layer: int
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Start and end of every task of a graph; indexing and iterating give `TaskView` objects.

    Parameters
    ----------
    graph : TaskGraph
        What was simulated.
    start, end : array of float64, shape (tasks,)
        When each task occupied its stream [s]; time 0 is the start of the iteration. Both become
        read-only.

    Raises
    ------
    InternalError
        If an array has another length than the graph.
    """

    graph: TaskGraph
    start: FloatArray
    end: FloatArray

    def __post_init__(self) -> None:
        if not len(self.graph) == len(self.start) == len(self.end):
            raise InternalError(
                f"a timeline of {len(self.graph)} tasks has {len(self.start)} starts and {len(self.end)} ends"
            )
        self.start.setflags(write=False)
        self.end.setflags(write=False)

    @property
    def makespan(self) -> float:
        """End of the last task [s]; 0 without tasks."""
        return float(self.end.max(initial=0.0))

    def __len__(self) -> int:
        return len(self.graph)

    def __getitem__(self, task: int) -> TaskView:
        graph = self.graph
        index = range(len(self))[task]  # a negative index counts from the end, as in a list
        operation = graph.operations[graph.operation[index]]
        stream = graph.streams[graph.stream[index]]
        return TaskView(
            task=index,
            name=operation.name,
            phase=operation.phase,
            category=operation.category,
            group=operation.group,
            rank=stream.rank,
            stream=stream.name,
            layer=int(graph.layer[index]),
            micro_batch=int(graph.micro_batch[index]),
            start=float(self.start[index]),
            end=float(self.end[index]),
        )

    def __iter__(self) -> Iterator[TaskView]:
        return (self[task] for task in range(len(self)))

    def digest(self) -> str:
        """SHA-256 of the graph and every start and end, as 64 hexadecimal digits.

        Equal digests mean equal timelines to the last bit, on any machine.
        """
        graph = self.graph
        sha = hashlib.sha256()
        tables = (
            [(*op[:4], float(op.flops), float(op.bytes)) for op in graph.operations],
            [(int(stream.rank), stream.name) for stream in graph.streams],
        )
        sha.update(repr(tables).encode())
        indices = (
            graph.operation,
            graph.stream,
            graph.layer,
            graph.micro_batch,
            graph.predecessor_start,
            graph.predecessor,
        )
        # Fixed byte order and width: a digest must not depend on the machine.
        for array in indices:
            sha.update(array.astype("<i4").tobytes())
        for times in (graph.duration, self.start, self.end):
            sha.update((np.asarray(times, dtype="<f8") + 0.0).tobytes())  # -0.0 becomes 0.0
        return sha.hexdigest()
