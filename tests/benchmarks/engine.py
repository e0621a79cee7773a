"""How fast the engines are, as multiples of SimPy on the same graph in the same process.

Run it on an idle machine: ``python -m tests.benchmarks.engine`` from the top folder (two minutes, 5 GB; numba is
measured if it is installed). Seconds are processor time of this process, the best of several runs that take turns.
Exits with 1 if a ratio misses its target.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from simmoe.engine.fast import makespans, simulate_batch, simulate_fast
from simmoe.engine.levels import levels_of
from simmoe.engine.numba_pass import installed
from simmoe.engine.simulate import simulate
from simmoe.graph.task import Operation, Stream, TaskGraph, compressed_rows

STAGES, SEND = 64, 0.03
MILLION = 3937  # micro-batches that make 1.0 million tasks
SIZES = (394, 1181, 3937, 11_811, 39_370)  # 0.1 to 10 million tasks
DRAWS = 64
LIMIT_BYTES = 200  # a task
OPERATIONS = (
    Operation("work", "forward", "gemm"),
    Operation("work", "backward", "gemm"),
    Operation("send", "forward", "send_recv", "pp"),
    Operation("optimizer", "optimizer", "optimizer"),
)
Ids = np.ndarray


class Part(NamedTuple):
    """The tasks of one stage: columns of the graph, and the first task of each pass by direction and micro-batch."""

    columns: tuple[np.ndarray, ...]
    works: tuple[Ids, Ids]
    sends: tuple[bool, bool]
    streams: tuple[Stream, ...]


def stage_seconds(stages: int) -> tuple[list[float], list[float]]:
    """Seconds of a forward and a backward pass of every stage; uneven, so that a wrong order shows."""
    forward, backward = np.random.default_rng(1).uniform(0.9, 1.1, (2, stages))
    return forward.tolist(), (2 * backward).tolist()


def one_f_one_b_graph(stages: int, micro_batches: int) -> TaskGraph:
    """A 1F1B pipeline of one task a pass, one a transfer and an optimizer step: what stamping makes, but quicker."""
    parts: list[Part] = []
    for stage in range(stages):
        first = (sum(len(part.columns[0]) for part in parts), sum(len(part.streams) for part in parts))
        parts.append(_stage(stage, stages, micro_batches, first))
    operation, stream, duration, micro_batch = (
        np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)
    )
    source, target = _edges(parts)
    start, predecessor = compressed_rows(source, target, len(operation))
    return TaskGraph(
        operation=operation.astype(np.int32),
        stream=stream.astype(np.int32),
        duration=duration,
        layer=np.zeros(len(operation), dtype=np.int32),
        micro_batch=micro_batch.astype(np.int32),
        predecessor_start=start,
        predecessor=predecessor,
        operations=OPERATIONS,
        streams=tuple(stream for part in parts for stream in part.streams),
    )


def _stage(stage: int, stages: int, micro_batches: int, first: tuple[int, int]) -> Part:
    """One stage; `first` are its first task id and its first stream."""
    warm_up = min(stages - 1 - stage, micro_batches)
    steady = np.tile([0, 1], micro_batches - warm_up)
    backward = np.concatenate([np.zeros(warm_up, int), steady, np.ones(warm_up, int)])
    order = np.where(backward, np.cumsum(backward), np.cumsum(1 - backward)) - 1
    sends = (stage < stages - 1, stage > 0)
    size = 1 + np.array(sends)[backward]
    work = np.cumsum(size) - size
    is_send = np.ones(int(size.sum()), dtype=bool)
    is_send[work] = False
    direction = np.repeat(backward, size)
    seconds = np.array([times[stage] for times in stage_seconds(stages)])
    wires = first[1] + np.array([1, 1 + sends[0]])
    columns = (
        np.append(np.where(is_send, 2, direction), 3),
        np.append(np.where(is_send, wires[direction], first[1]), first[1]),
        np.append(np.where(is_send, SEND, seconds[direction]), 0.0),
        np.append(np.repeat(order, size), -1),
    )
    names = ("compute", *(name for name, there in zip(("pp_forward", "pp_backward"), sends, strict=True) if there))
    works = (first[0] + work[backward == 0], first[0] + work[backward == 1])
    return Part(columns, works, sends, tuple(Stream(stage, name) for name in names))


def _edges(parts: Sequence[Part]) -> tuple[Ids, Ids]:
    """Pass to transfer, transfer to the same pass of the neighbour, and forward to backward on the last stage."""
    source, target = [parts[-1].works[0]], [parts[-1].works[1]]
    for stage, part in enumerate(parts):
        for direction, step in enumerate((1, -1)):
            if part.sends[direction]:
                mine, theirs = part.works[direction], parts[stage + step].works[direction]
                source += [mine, mine + 1]
                target += [mine + 1, theirs]
    return np.concatenate(source), np.concatenate(target)


# ---------------------------------------------------------------- measuring


def seconds_of(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best processor time of each call; they take turns, so that a slow moment meets all of them."""
    best = dict.fromkeys(calls, np.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - begin)
    return best


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def held_bytes(graph: TaskGraph) -> int:
    """Memory of a graph, its timeline and its levels [B]."""
    timeline, levels = simulate_fast(graph, use_numba=False), levels_of(graph)
    columns = ("operation", "stream", "duration", "layer", "micro_batch", "predecessor_start", "predecessor")
    arrays = [getattr(graph, name) for name in columns] + [timeline.start, timeline.end]
    return sum(array.nbytes for array in arrays) + (levels.nbytes if levels else 0)


def peak_bytes(call: Callable[[], object]) -> int:
    """Memory that a call needs at most, with its result [B]."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def measure_million() -> bool:
    """Every engine on one graph of a million tasks; whether all targets are met."""
    graph = one_f_one_b_graph(STAGES, MILLION)
    tasks, levels = len(graph), levels_of(graph)
    say(f"1F1B, {STAGES} stages x {MILLION} micro-batches: {tasks:,} tasks, {len(graph.predecessor):,} edges")
    one, many = graph.duration[None], np.random.default_rng(2).uniform(0.5, 1.5, (DRAWS, tasks))
    many[0] = graph.duration
    timeline = simulate(graph)
    assert (simulate_fast(graph, use_numba=False).end == timeline.end).all()
    assert makespans(graph, many, levels=levels)[0] == timeline.makespan
    unit = seconds_of({"simpy": lambda: simulate(graph)}, 2)["simpy"]
    say(f"{'SimPy':44} {unit:8.3f} s {1e9 * unit / tasks:9.1f} ns/task")
    cases: dict[str, tuple[Callable[[], object], int, float]] = {
        "numpy, levels known": (lambda: simulate_batch(graph, one, levels=levels), 1, 40.0),
        "numpy, order found on the way": (lambda: simulate_fast(graph, use_numba=False), 1, 0.0),
        "levels alone": (lambda: levels_of(graph), 1, 0.0),
        f"numpy, {DRAWS} makespans, levels known": (lambda: makespans(graph, many, levels=levels), DRAWS, 300.0),
        f"numpy, {DRAWS} makespans, levels included": (lambda: makespans(graph, many), DRAWS, 0.0),
    }
    if installed():
        begin = time.process_time()
        assert (simulate_fast(graph, use_numba=True).end == timeline.end).all()
        say(f"{'numba, first call in this process':44} {time.process_time() - begin:8.3f} s")
        cases["numba, order found on the way"] = (lambda: simulate_fast(graph, use_numba=True), 1, 150.0)
    best = seconds_of({name: call for name, (call, _, _) in cases.items()}, 7)
    met = True
    for name, (_, draws, target) in cases.items():
        each = best[name] / draws
        verdict = f"target {target:g} {'met' if unit / each >= target else 'MISSED'}" if target else ""
        met &= unit / each >= target
        say(f"{name:44} {best[name]:8.3f} s {1e9 * each / tasks:9.1f} ns/task {unit / each:7.1f} x SimPy  {verdict}")
    return met


def measure_sizes() -> bool:
    """Cost and memory a task against the number of tasks; whether the memory stays below its limit."""
    say(f"{'tasks':>12} {'numpy':>9} {'levels':>9} {'numba':>9}  ns/task {'held':>9} {'peak':>9}  bytes/task")
    met = True
    for micro_batches in SIZES:
        graph = one_f_one_b_graph(STAGES, micro_batches)
        calls: dict[str, Callable[[], object]] = {
            "numpy": lambda graph=graph: simulate_fast(graph, use_numba=False),
            "levels": lambda graph=graph: levels_of(graph),
        }
        if installed():
            calls["numba"] = lambda graph=graph: simulate_fast(graph, use_numba=True)
        each = {name: 1e9 * best / len(graph) for name, best in seconds_of(calls, 3).items()}
        held = held_bytes(graph) / len(graph)
        peak = peak_bytes(calls["numpy"]) / len(graph)
        met &= held <= LIMIT_BYTES
        numba = f"{each['numba']:9.1f}" if "numba" in each else f"{'-':>9}"
        say(f"{len(graph):12,} {each['numpy']:9.1f} {each['levels']:9.1f} {numba} {'':8} {held:9.1f} {peak:9.1f}")
    return met


def main() -> int:
    """Measure, print and judge."""
    million, sizes = measure_million(), measure_sizes()
    return int(not (million and sizes))


if __name__ == "__main__":
    raise SystemExit(main())
