"""A timeline in the format of the torch profiler (Kineto's Chrome trace).

Perfetto draws it; HolisticTraceAnalysis, torch-tb-profiler and every other reader of real traces
take it for one. To be classed as communication a kernel must be named as NCCL names it, so a
collective carries NCCL's kernel name, and its operation in ``args``.

References
----------
Trace Event Format, Google: events X (complete), M (metadata), s and f (flow), C (counter).
pytorch/kineto, ``libkineto/src/output_json.cpp``: top-level keys, categories and ``args``.
"""

import contextlib
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.engine.record import Timeline
from simmoe.errors import InternalError, OutputError
from simmoe.graph.ranks import RankClass
from simmoe.graph.task import Operation
from simmoe.report.memory_timeline import MemoryTimeline
from simmoe.report.metrics import on_device
from simmoe.report.output import make_folder, replacing

# Category -> (kernel name as NCCL 2.19 and later give it, collective as torch.distributed names it).
_ARGUMENTS = "(ncclDevKernelArgsStorage<4096ul>)"
NCCL = {
    "all_to_all": (f"ncclDevKernel_SendRecv{_ARGUMENTS}", "all_to_allv"),
    "send_recv": (f"ncclDevKernel_SendRecv{_ARGUMENTS}", "send"),
    "all_gather": (f"ncclDevKernel_AllGather_RING_LL{_ARGUMENTS}", "_allgather_base"),
    "reduce_scatter": (
        f"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL{_ARGUMENTS}",
        "_reduce_scatter_base",
    ),
    "all_reduce": (f"ncclDevKernel_AllReduce_Sum_bf16_RING_LL{_ARGUMENTS}", "allreduce"),
}
_FIRST_STREAM = 7  # where the CUDA streams of real traces begin; 0 is the host thread
_GIB = 2.0**30
_CHUNK = 4096  # events written at a time


def write_trace(
    timeline: Timeline, ranks: Sequence[RankClass], path: Path, memory: Sequence[MemoryTimeline] = ()
) -> tuple[Path, ...]:
    """Write the timeline for trace viewers and analysers.

    Parameters
    ----------
    timeline : Timeline
    ranks : sequence of RankClass
        Indexed by ``Stream.rank``.
    path : Path
        ``NAME.json`` or ``NAME.json.gz``: one file in which each rank class is a process and arrows
        join tasks of different ranks, for Perfetto. Anything else is a folder, created if need be,
        that gets one ``rank{first_rank}.json.gz`` for each class, for HolisticTraceAnalysis.
    memory : sequence of MemoryTimeline
        One a rank class, drawn as a counter of its process; none if empty.

    Returns
    -------
    tuple of Path
        The files written. Equal timelines give equal bytes.

    Raises
    ------
    OutputError
        If a file cannot be written, or the folder holds trace files of other ranks, which a tool
        would take for a part of this run.

    Notes
    -----
    Times are microseconds from the start of the step, rounded to nanoseconds so that what touches
    in the simulation touches in the trace. Time and size grow linearly with tasks; memory is that of
    one chunk of events and a few arrays.
    """
    trace = _Trace(timeline, ranks, memory)
    if path.name.endswith((".json", ".json.gz")):
        with replacing(path) as temporary, _writer(temporary) as write:
            trace.write(write, range(len(ranks)))
        return (path,)
    if path.suffix and not path.is_dir():
        raise OutputError(f"cannot write a trace to {path}: name a .json or .json.gz file, or a folder without suffix")
    return _write_folder(trace, path)


def _write_folder(trace: "_Trace", folder: Path) -> tuple[Path, ...]:
    """One file for each rank class."""
    make_folder(folder)
    files = tuple(folder / f"rank{rank.first_rank}.json.gz" for rank in trace.ranks)
    strangers = sorted(set(folder.glob("rank*.json*")) - set(files))
    if strangers:
        raise OutputError(
            f"cannot write a trace to {folder}: {strangers[0].name} is there from another run and would "
            "be taken for a part of this one; remove it or choose another folder"
        )
    for position, file in enumerate(files):
        with replacing(file) as temporary, _writer(temporary) as write:
            trace.write(write, [position])
    return files


@contextlib.contextmanager
def _writer(path: Path) -> Iterator[Callable[[str], object]]:
    """A function that appends text to the file, compressed if its name says so."""
    with path.open("wb") as raw:
        if path.suffix != ".gz":
            yield lambda text: raw.write(text.encode())
            return
        # No name and no time inside, so that equal traces are equal files.
        with gzip.GzipFile("", "wb", compresslevel=5, fileobj=raw, mtime=0) as packed:
            yield lambda text: packed.write(text.encode())


class _Queue(NamedTuple):
    """A stream as a thread of the trace."""

    process: int
    thread: int
    device: bool
    name: str


class _Trace:
    """Everything about a timeline that its files share."""

    def __init__(self, timeline: Timeline, ranks: Sequence[RankClass], memory: Sequence[MemoryTimeline] = ()) -> None:
        if len({rank.first_rank for rank in ranks}) != len(ranks):
            raise InternalError("two rank classes have the same first rank")
        self.timeline, self.ranks, self.memory = timeline, tuple(ranks), tuple(memory)
        self.queues = _queues(timeline, ranks)
        graph = timeline.graph
        self.owner = np.array([stream.rank for stream in graph.streams], dtype=np.int64)[graph.stream]
        self.start, self.end = _nanoseconds(timeline.start), _nanoseconds(timeline.end)

    def write(self, write: Callable[[str], object], positions: Sequence[int]) -> None:
        """One complete JSON document holding the rank classes at `positions`."""
        header = json.dumps(self._header(positions))
        write(f'{header[:-1]}, "traceEvents": [\n')
        events = self._events(positions)
        write(next(events, ""))  # the only one without a comma before it
        while chunk := list(islice(events, _CHUNK)):
            write(",\n" + ",\n".join(chunk))
        write("\n]}\n")

    def _header(self, positions: Sequence[int]) -> dict[str, Any]:
        world = sum(rank.count for rank in self.ranks)
        distributed: dict[str, Any] = {"backend": "nccl", "world_size": world}
        if len(positions) == 1:
            distributed["rank"] = self.ranks[positions[0]].first_rank
        return {
            "schemaVersion": 1,
            "displayTimeUnit": "ms",
            "distributedInfo": distributed,
            "deviceProperties": [
                {"id": self.ranks[i].first_rank, "name": self.ranks[i].accelerator} for i in positions
            ],
        }

    def _events(self, positions: Sequence[int]) -> Iterator[str]:
        for position in positions:
            yield from self._metadata(position)
            yield from self._tasks(position)
            yield from self._counters(position)
        if len(positions) > 1:
            yield from self._flows()

    def _metadata(self, position: int) -> Iterator[str]:
        """Names and order of the process and its threads, and the step."""
        rank = self.ranks[position]
        label = f"rank {rank.first_rank}: stage {rank.place}, {rank.accelerator}"
        if rank.count > 1:
            label += f", one of {rank.count}"
        yield _named("process_name", rank.first_rank, 0, name=label)
        yield _named("process_sort_index", rank.first_rank, 0, sort_index=position)
        yield _named("thread_name", rank.first_rank, 0, name="host")
        for stream, queue in zip(self.timeline.graph.streams, self.queues, strict=True):
            if stream.rank == position and queue.device:
                name = f"stream {queue.thread} ({queue.name})"
                yield _named("thread_name", queue.process, queue.thread, name=name)
                yield _named("thread_sort_index", queue.process, queue.thread, sort_index=queue.thread)
        until = _microseconds(int(self.end.max(initial=0)))
        yield (
            '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", '
            f'"pid": {rank.first_rank}, "tid": 0, "ts": 0.000, "dur": {until}}}'
        )

    def _tasks(self, position: int) -> Iterator[str]:
        """The tasks of one rank class in the order of their starts."""
        graph, rank = self.timeline.graph, self.ranks[position]
        tasks = np.flatnonzero(self.owner == position)
        tasks = tasks[np.argsort(self.start[tasks], kind="stable")]
        heads = [_head(operation, rank) for operation in graph.operations]
        columns = (
            tasks, graph.operation[tasks], graph.stream[tasks], graph.layer[tasks],
            graph.micro_batch[tasks], self.start[tasks], self.end[tasks],
        )  # fmt: skip
        for task, operation, stream, layer, micro_batch, start, end in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            name, arguments = heads[operation]
            queue = self.queues[stream]
            where = f'"device": {queue.process}, "stream": {queue.thread}, ' if queue.device else ""
            yield (
                f'{{"ph": "X", "cat": "{"kernel" if queue.device else "cpu_op"}", {name}, '
                f'"pid": {queue.process}, "tid": {queue.thread}, "ts": {_microseconds(start)}, '
                f'"dur": {_microseconds(end - start)}, "args": {{{where}"correlation": {task}, '
                f'"layer": {layer}, "micro_batch": {micro_batch}, {arguments}}}}}'
            )

    def _counters(self, position: int) -> Iterator[str]:
        """The memory of a rank class, one event a change of its level."""
        process = self.ranks[position].first_rank
        for part in self.memory[position : position + 1]:
            times, sizes = _nanoseconds(part.time).tolist(), (part.bytes / _GIB).tolist()
            for time, size in zip(times, sizes, strict=True):
                yield (
                    f'{{"ph": "C", "name": "memory [GiB]", "pid": {process}, "tid": 0, '
                    f'"ts": {_microseconds(time)}, "args": {{"memory": {size:.3f}}}}}'
                )

    def _flows(self) -> Iterator[str]:
        """An arrow for each dependency between ranks: what crosses the network or waits for it."""
        graph = self.timeline.graph
        target = np.repeat(np.arange(len(graph)), np.diff(graph.predecessor_start))
        source = graph.predecessor
        across = self.owner[source] != self.owner[target]
        pairs = zip(source[across].tolist(), target[across].tolist(), strict=True)
        for number, (source_task, target_task) in enumerate(pairs):
            # An arrow is tied to the slice that holds its time; a slice does not hold its own end.
            leaves = max(int(self.end[source_task]) - 1, int(self.start[source_task]))
            yield self._arrow('"s"', number, source_task, leaves)
            yield self._arrow('"f", "bp": "e"', number, target_task, int(self.start[target_task]))

    def _arrow(self, phase: str, number: int, task: int, time: int) -> str:
        """One end of an arrow at a task."""
        queue = self.queues[self.timeline.graph.stream[task]]
        return (
            f'{{"ph": {phase}, "id": {number}, "cat": "dependency", "name": "dependency", '
            f'"pid": {queue.process}, "tid": {queue.thread}, "ts": {_microseconds(time)}}}'
        )


def _queues(timeline: Timeline, ranks: Sequence[RankClass]) -> list[_Queue]:
    """A thread number for each stream: 0 for the host, then the compute stream, then the others."""
    streams = timeline.graph.streams
    threads: dict[int, int] = {}
    order = sorted(range(len(streams)), key=lambda i: (streams[i].name != "compute", i))
    for index in order:
        if on_device(streams[index]):
            rank = streams[index].rank
            taken = sum(streams[i].rank == rank for i in threads)
            threads[index] = _FIRST_STREAM + taken
    return [
        _Queue(ranks[stream.rank].first_rank, threads.get(i, 0), i in threads, stream.name)
        for i, stream in enumerate(streams)
    ]


def _head(operation: Operation, rank: RankClass) -> tuple[str, str]:
    """The name and the arguments that all tasks of this kind on this rank share, as JSON."""
    words = " ".join(word for word in (operation.name, operation.phase) if word)
    arguments: dict[str, Any] = {"stage": rank.stage, "category": operation.category}
    arguments |= {"role": rank.role} if rank.role else {}
    kernel, collective = NCCL.get(operation.category, (words, ""))
    if collective:
        arguments |= {"operation": operation.name, "Collective name": collective}
        arguments["Process Group Description"] = operation.group
    arguments |= {"phase": operation.phase, "bytes": float(operation.bytes)}
    if operation.flops:
        arguments["flops"] = float(operation.flops)
    return f'"name": {json.dumps(kernel)}', json.dumps(arguments)[1:-1]


def _named(event: str, process: int, thread: int, **arguments: Any) -> str:
    """A metadata event."""
    return json.dumps({"ph": "M", "name": event, "pid": process, "tid": thread, "args": arguments})


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole nanoseconds: durations taken from these leave no gap where there is none."""
    return np.rint(seconds * 1e9).astype(np.int64)


def _microseconds(nanoseconds: int) -> str:
    """Nanoseconds as the trace writes them: ``12.345``."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
