"""How fast fluid work is simulated, as multiples of the SimPy reference on the same graph in the same process.

Run it on an idle machine: ``python -m tests.benchmarks.fluid`` from the top folder (two minutes; numba is measured if
it is installed). Seconds are processor time of this process. Exits with 1 if a target is missed.
"""

import time
from pathlib import Path

import numpy as np

from simmoe.engine.fairshare import bottleneck_time
from simmoe.engine.fast import simulate_fast
from simmoe.engine.fluid import simulate_fluid
from simmoe.engine.fluid_numba import simulate_quickly
from simmoe.engine.numba_pass import installed
from simmoe.graph.build import build_step
from simmoe.graph.routes import fluid_of
from simmoe.specs.reader import load_scenario
from tests.benchmarks.engine import say, seconds_of

DEEPSEEK = Path(__file__).parents[2] / "scenarios" / "examples" / "deepseek-v3-2048xh800.yaml"
MICRO_BATCHES = 30  # as many as the reference can do in half a minute
TARGET, LIMIT_SECONDS = 20.0, 0.1


def measure_step() -> bool:
    """DeepSeek-V3 on 16 stages; whether the compiled loop meets its target."""
    scenario = load_scenario(DEEPSEEK, (f"training.global_batch_size={128 * MICRO_BATCHES}",))
    graph = (step := build_step(scenario)).graph
    begin = time.process_time()
    fluid = fluid_of(step, scenario)
    tasks, routed = len(graph), time.process_time() - begin
    say(f"DeepSeek-V3, 16 stages x {MICRO_BATCHES} micro-batches: {tasks:,} tasks, {len(fluid.bound):,} routes")
    say(f"{'routes and links of every task':44} {routed:8.3f} s {1e6 * routed / tasks:9.2f} us/task")
    begin = time.process_time()
    reference = simulate_fluid(graph, fluid, "simpy")
    unit = time.process_time() - begin
    say(f"{'SimPy':44} {unit:8.3f} s {1e6 * unit / tasks:9.2f} us/task")
    analytic = simulate_fast(graph).makespan
    say(f"{'step, fluid over analytic':44} {reference.makespan:8.3f} s {reference.makespan / analytic:9.4f}")
    met = True
    for name, compiled, target in (("interpreted", False, 0.0), ("numba", True, TARGET)):
        if compiled and not installed():
            continue
        begin = time.process_time()
        times = simulate_quickly(graph, fluid, use_numba=compiled)
        if times is None or not np.allclose(times[1], reference.end, rtol=1e-9):
            raise AssertionError(f"{name} does not agree with SimPy")
        say(f"{name + ', first call in this process':44} {time.process_time() - begin:8.3f} s")
        run = {name: lambda compiled=compiled: simulate_quickly(graph, fluid, use_numba=compiled)}
        best = seconds_of(run, 5 if compiled else 1)[name]
        verdict = f"target {target:g} {'met' if unit / best >= target else 'MISSED'}" if target else ""
        met &= unit / best >= target
        say(f"{name:44} {best:8.3f} s {1e6 * best / tasks:9.2f} us/task {unit / best:7.1f} x SimPy  {verdict}")
    return met


def measure_all_to_all() -> bool:
    """The bound of a skewed all-to-all of 1,024 GPUs; whether it takes tens of milliseconds."""
    matrix = np.random.default_rng(1).lognormal(0.0, 1.0, (1024, 1024)) * 1e6
    wires = {"domain": 8, "scale_up": 400e9, "port": 45e9, "leaf": 256, "uplink": 128 * 45e9}
    best = seconds_of({"bound": lambda: bottleneck_time(matrix, **wires)}, 5)["bound"]
    verdict = "met" if best <= LIMIT_SECONDS else "MISSED"
    say(f"{'bound of an all-to-all of 1,024 GPUs':44} {1e3 * best:8.1f} ms  limit {1e3 * LIMIT_SECONDS:g} ms {verdict}")
    return best <= LIMIT_SECONDS


def main() -> int:
    """Measure, print and judge."""
    step, exchange = measure_step(), measure_all_to_all()
    return int(not (step and exchange))


if __name__ == "__main__":
    raise SystemExit(main())
