"""What a whole simulation costs, part by part, as a multiple of SimPy's time on the same graph in the same process.

Run it on an idle machine: ``python -m tests.benchmarks.end_to_end`` from the top folder (two minutes, 2 GB). Seconds
are processor time of this process, the best of several rounds in which all parts and SimPy take turns. Exits with 1 if
a target is missed.
"""

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from simmoe.engine.fast import simulate_fast
from simmoe.engine.numba_pass import installed
from simmoe.engine.simulate import simulate
from simmoe.graph.build import build_step
from simmoe.pipeline import stage_memory
from simmoe.report.critical_path import critical_path
from simmoe.report.metrics import step_metrics
from simmoe.report.result import Result
from simmoe.report.summary import summarise
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "scenarios" / "examples" / "deepseek-v3-2048xh800.yaml"
BATCH, RANKS = 15_360, 128  # global batch of the example; its data-parallel ranks, each one sequence a micro-batch
EIGHTFOLD = ("cluster.groups.0.count=2048", f"training.global_batch_size={8 * BATCH}")  # 16,384 GPUs
ROUNDS, COLD_RUNS = 7, 3
FASTER = 20.0  # whole simulation against SimPy
GROWTH = 1.3  # 16,384 GPUs against 2,048
LIMIT_BYTES = 200  # a task, at the peak
MICRO_BATCHES = (175, 700)  # 1 and 4 million tasks
LINEAR = 1.5  # time a task at four times the tasks: linear, but for what no longer fits into the caches
COUNTED = ("build", "engine", "metrics", "critical path", "summary")

_Found = TypeVar("_Found")


class Clock:
    """The best processor time of everything it has timed, by name [s]."""

    def __init__(self) -> None:
        self.best: dict[str, float] = {}

    def time(self, name: str, call: Callable[[], _Found]) -> _Found:
        """The result of a call, timed."""
        begin = time.process_time()
        found = call()
        self.best[name] = min(self.best.get(name, float("inf")), time.process_time() - begin)
        return found

    @property
    def counted(self) -> float:
        """All parts of a simulation [s]."""
        return sum(self.best[name] for name in COUNTED)


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def simulated(scenario: Scenario, clock: Clock) -> Result:
    """What `simmoe.pipeline.run` does, with every part timed, and the summary."""
    step = clock.time("build", lambda: build_step(scenario))
    timeline = clock.time("engine", lambda: simulate_fast(step.graph))
    metrics = clock.time("metrics", lambda: step_metrics(timeline, step.ranks))
    path = clock.time("critical path", lambda: critical_path(timeline))
    memory = clock.time("memory", lambda: stage_memory(scenario))
    result = Result(
        scenario=scenario,
        ranks=step.ranks,
        timeline=timeline,
        metrics=metrics,
        critical_path=path,
        memory=tuple(memory[rank.stage] for rank in step.ranks),
        engine="fast",
        network="analytic",
    )
    clock.time("summary", lambda: summarise(result))
    return result


def measure_parts(scenario: Scenario) -> Clock:
    """Every part and SimPy on one scenario; SimPy's times must be those of the fast engine."""
    clock = Clock()
    for _ in range(ROUNDS):
        timeline = simulated(scenario, clock).timeline
        reference = clock.time("SimPy", lambda graph=timeline.graph: simulate(graph))
        clock.time("engine without numba", lambda graph=timeline.graph: simulate_fast(graph, use_numba=False))
        assert (reference.end == timeline.end).all()
    say(f"  {len(timeline.graph):,} tasks, {len(timeline.graph.predecessor):,} edges")
    unit = clock.best["SimPy"]
    for name in (*COUNTED, "memory", "engine without numba", "SimPy"):
        say(f"  {name:22} {1e3 * clock.best[name]:9.1f} ms")
    say(
        f"  {'whole simulation':22} {1e3 * clock.counted:9.1f} ms, SimPy takes {unit / clock.counted:.1f} times as long"
    )
    return clock


def measure_sizes() -> bool:
    """Time and peak memory a task of growing steps; whether both stay within their limits."""
    met, each = True, []
    for micro_batches in MICRO_BATCHES:
        scenario = load_scenario(EXAMPLE, (f"training.global_batch_size={RANKS * micro_batches}",))
        clock = Clock()
        for _ in range(3):
            tasks = len(simulated(scenario, clock).timeline)
        tracemalloc.start()
        simulated(scenario, Clock())
        peak = tracemalloc.get_traced_memory()[1] / tasks
        tracemalloc.stop()
        each.append(1e9 * clock.counted / tasks)
        say(f"{tasks:,} tasks: {each[-1]:.0f} ns/task")
        met &= verdict(f"{tasks:,} tasks, peak memory", peak, LIMIT_BYTES, "bytes/task")
    return verdict("time a task, most over fewest tasks", each[-1] / each[0], LINEAR, "times") and met


def cold_seconds() -> float:
    """Wall time of the command in a process of its own, the best of several [s]."""
    command = [sys.executable, "-m", "simmoe", "simulate", str(EXAMPLE)]
    found = []
    for _ in range(COLD_RUNS):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY)
        found.append(time.perf_counter() - begin)
    return min(found)


def verdict(name: str, value: float, limit: float, unit: str) -> bool:
    """Print a figure against its upper limit."""
    met = value <= limit
    say(f"{name}: {value:.3g} {unit}, limit {limit:.3g} {'met' if met else 'MISSED'}")
    return met


def main() -> int:
    """Measure, print and judge."""
    say(f"numba is {'installed' if installed() else 'not installed'}")
    say("DeepSeek-V3 on 2,048 H800")
    small = measure_parts(load_scenario(EXAMPLE))
    say("the same plan on 16,384 H800, eight times the batch")
    large = measure_parts(load_scenario(EXAMPLE, EIGHTFOLD))
    met = [
        verdict("whole simulation over SimPy", small.counted / small.best["SimPy"], 1 / FASTER, "times"),
        verdict("16,384 over 2,048 GPUs", large.counted / small.counted, GROWTH, "times"),
        measure_sizes(),
    ]
    say(f"simmoe simulate, cold: {cold_seconds():.2f} s of wall time")
    return int(not all(met))


if __name__ == "__main__":
    raise SystemExit(main())
