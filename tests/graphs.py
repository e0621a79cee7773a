"""Small task graphs: from readable lists, drawn by hypothesis, and a pipeline of any size."""

from random import Random
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from simmoe.graph.ranks import RankClass
from simmoe.graph.task import Operation, Stream, TaskGraph, compressed_rows


class Row(NamedTuple):
    """One task in words; `after` are positions of rows in the list."""

    seconds: float
    stream: str = "compute"
    after: tuple[int, ...] = ()
    rank: int = 0
    name: str = "mlp"
    phase: str = "forward"
    category: str = ""  # "": gemm on the compute stream, send_recv on others
    layer: int = -1
    micro_batch: int = -1
    bytes: float = 0.0


def graph_of(rows: list[Row]) -> TaskGraph:
    """The task graph of the rows; row i is task i."""
    operations: dict[Operation, int] = {}
    streams: dict[Stream, int] = {}
    for row in rows:
        operations.setdefault(operation_of(row), len(operations))
        streams.setdefault(Stream(row.rank, row.stream), len(streams))
    source = np.array([s for row in rows for s in row.after], dtype=np.int32)
    target = np.array([i for i, row in enumerate(rows) for _ in row.after], dtype=np.int32)
    start, predecessor = compressed_rows(source, target, len(rows))
    return TaskGraph(
        operation=np.array([operations[operation_of(row)] for row in rows], dtype=np.int32),
        stream=np.array([streams[Stream(row.rank, row.stream)] for row in rows], dtype=np.int32),
        duration=np.array([row.seconds for row in rows], dtype=np.float64),
        layer=np.array([row.layer for row in rows], dtype=np.int32),
        micro_batch=np.array([row.micro_batch for row in rows], dtype=np.int32),
        predecessor_start=start,
        predecessor=predecessor,
        operations=tuple(operations),
        streams=tuple(streams),
    )


def operation_of(row: Row) -> Operation:
    communication = row.stream not in ("compute", "host")
    usual = {"compute": "gemm", "host": "host"}.get(row.stream, "send_recv")
    group = "ep" if communication else ""
    return Operation(row.name, row.phase, row.category or usual, group, 0.0, row.bytes)


def classes(*counts: int, accelerators: tuple[str, ...] = ("h100-sxm",)) -> tuple[RankClass, ...]:
    """One rank class a stage; the accelerators are used in turn."""
    firsts = np.cumsum([0, *counts])
    return tuple(
        RankClass(stage, accelerators[stage % len(accelerators)], count, int(firsts[stage]))
        for stage, count in enumerate(counts)
    )


STREAMS = ("compute", "host", "ep", "dp", "pp_forward")
CATEGORIES = {
    "compute": ("gemm", "attention"),
    "host": ("host",),
    "ep": ("all_to_all",),
    "dp": ("all_reduce", "reduce_scatter"),
    "pp_forward": ("send_recv",),
}
# Quantised seconds make ties, arbitrary ones make rounding; both have to be right.
SECONDS = st.one_of(
    st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]),
    st.floats(min_value=1e-7, max_value=10.0),
)


@st.composite
def rows(draw: st.DrawFn, max_tasks: int = 16, max_ranks: int = 3, any_edges: bool = False) -> list[Row]:
    """Rows that can always finish: edges lead from lower to higher ids, unless `any_edges`."""
    tasks = draw(st.integers(0, max_tasks))
    drawn: list[Row] = []
    for task in range(tasks):
        stream = draw(st.sampled_from(STREAMS))
        others = range(tasks) if any_edges else range(task)
        after = draw(st.sets(st.sampled_from(others), max_size=3)) if others else set()
        drawn.append(
            Row(
                seconds=draw(SECONDS),
                stream=stream,
                after=tuple(sorted(after)),
                rank=draw(st.integers(0, max_ranks - 1)),
                category=draw(st.sampled_from(CATEGORIES[stream])),
                micro_batch=draw(st.integers(-1, 2)),
            )
        )
    return drawn


def pipeline_rows(
    stages: int, micro_batches: int, layers: int = 1, forward: float = 1.0, send: float = 0.0
) -> list[Row]:
    """GPipe: every stage runs all forwards, then all backwards (twice as long); all-to-all inside.

    Per layer and micro-batch: attention, dispatch, experts; a send joins the stages.
    """
    built: list[Row] = []
    last: dict[tuple[str, int, int], int] = {}
    for phase, order in (("forward", 1), ("backward", -1)):
        time = forward if phase == "forward" else 2 * forward
        for stage in range(stages)[::order]:
            for micro_batch in range(micro_batches):
                before = last.get((phase, stage - order, micro_batch))
                after = () if before is None else (before,)
                common = {"rank": stage, "phase": phase, "micro_batch": micro_batch}
                for layer in range(stage * layers, (stage + 1) * layers)[::order]:
                    here = common | {"layer": layer}
                    a = len(built)
                    built += [
                        Row(
                            time / 2,
                            "compute",
                            after,
                            name="attention",
                            category="attention",
                            **here,
                        ),
                        Row(time / 8, "ep", (a,), name="dispatch", category="all_to_all", **here),
                        Row(time / 2, "compute", (a + 1,), name="experts", **here),
                    ]
                    after = (a + 2,)
                built.append(Row(send, f"pp_{phase}", after, name="send", bytes=1e6, **common))
                last[phase, stage, micro_batch] = len(built) - 1
    return built


def shuffled(graph: TaskGraph, random: Random) -> tuple[np.ndarray, np.ndarray]:
    """New task ids that keep the order inside every stream, and new numbers of the streams."""
    turns = graph.stream.tolist()
    random.shuffle(turns)
    queues = {s: iter(np.flatnonzero(graph.stream == s).tolist()) for s in set(turns)}
    new = np.empty(len(graph), dtype=np.int32)
    for number, stream in enumerate(turns):
        new[next(queues[stream])] = number
    streams = np.arange(len(graph.streams), dtype=np.int32)
    random.shuffle(streams)
    return new, streams


def renumbered(graph: TaskGraph, new: np.ndarray, streams: np.ndarray) -> TaskGraph:
    """The same tasks under new ids and with the table of streams in another order."""
    old = np.argsort(new)
    target = np.repeat(np.arange(len(graph)), np.diff(graph.predecessor_start))
    start, predecessor = compressed_rows(new[graph.predecessor], new[target], len(graph))
    return TaskGraph(
        operation=graph.operation[old],
        stream=streams[graph.stream[old]],
        duration=graph.duration[old],
        layer=graph.layer[old],
        micro_batch=graph.micro_batch[old],
        predecessor_start=start,
        predecessor=predecessor,
        operations=graph.operations,
        streams=tuple(graph.streams[i] for i in np.argsort(streams)),
    )
