"""Speed of the pipeline search: the twelve clusters of HAPMoE, each pruning on and off, and clusters of thousands.

    python -m tests.benchmarks.pipeline_search [small] [prunings] [large] [huge]

The tables are made up (`tests/stage_problems.py`): only times, memory and counts mean anything here. Exit status 1 if a
time or memory target is missed.
"""

import resource
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from simmoe.planners.pipeline_search.brute import judged
from simmoe.planners.pipeline_search.exact import SearchResult, search
from simmoe.planners.pipeline_search.limits import ALL_PRUNINGS, Prunings
from simmoe.planners.pipeline_search.paper import PaperRules, paper_search
from simmoe.planners.pipeline_search.problem import ONE_BLOCK, PipelinePlan, PipelineProblem, Shape
from tests.stage_problems import LARGE, SMALL, Training, cluster_problems, large_cluster, paper_clusters

UNITS, SIZES = (1, 2, 4, 8, 16), (2, 4, 8, 16)
WHOLE = Shape(one_block=True, one_size=True, all_devices=True)
SMALL_S, LARGE_S, HUGE_S, MEMORY_MIB = 1.0, 10.0, 60.0, 1024.0
READINGS = {
    "paper: normalised window": PaperRules(),
    "paper: window as printed": PaperRules(window="printed"),
    "paper: no window": PaperRules(window="none"),
    "paper: no test of transfers": PaperRules(eta=0.0),
    "paper: type behind not in state": PaperRules(type_behind=False),
}


class Measured(NamedTuple):
    """A search and its processor time [s]."""

    result: SearchResult
    seconds: float


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def measured(problems: Sequence[PipelineProblem], shape: Shape, prunings: Prunings = ALL_PRUNINGS) -> Measured:
    """One exact search."""
    begin = time.process_time()
    result = search(problems, shape, prunings)
    return Measured(result, time.process_time() - begin)


def peak_mib() -> float:
    """The most memory that this process has had so far [MiB]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def step(problems: Sequence[PipelineProblem], plan: PipelinePlan, judge: str) -> float:
    """Seconds of a plan's step."""
    (problem,) = (problem for problem in problems if problem.unit == plan.unit)
    return judged(problem, plan.stages, judge)


def described(problems: Sequence[PipelineProblem], plan: PipelinePlan) -> str:
    """A plan in short: layers of its stages, by type and devices."""
    (problem,) = (problem for problem in problems if problem.unit == plan.unit)
    words: list[str] = []
    before = None
    for stage in plan.stages:
        option = problem.options[stage.option]
        name = f"{problem.types[option.device_type].name}x{option.devices}"
        words.append(f"{'' if name == before else name + ': '}{stage.layers}")
        before = name
    return f"u={plan.unit} " + " ".join(words)


def rate_of(found: Measured) -> str:
    """States and transitions, and per second."""
    counts, seconds = found.result.counts, max(found.seconds, 1e-9)
    return (
        f"{counts.states:9,} states {counts.labels:10,} labels {counts.transitions:12,} transitions "
        f"{found.seconds:8.2f} s {counts.states / seconds:9,.0f} states/s "
        f"{counts.transitions / seconds:11,.0f} transitions/s"
    )


def small() -> bool:
    """Twelve clusters, two models: exact against the printed algorithm, both judged by the replay."""
    met = True
    for title, training in (("Mixtral-S", SMALL), ("Mixtral-L", LARGE)):
        say(f"--- {title}: {training.layers} layers, {training.batch} sequences")
        for name, kinds in paper_clusters().items():
            problems = cluster_problems(kinds, training, UNITS, SIZES)
            found = measured(problems, ONE_BLOCK)
            met &= found.seconds <= SMALL_S
            if not found.result.plans:
                say(f"{name:8} nothing fits {found.seconds:6.2f} s")
                continue
            (best,) = found.result.plans
            say(f"{name:8} {rate_of(found)}  {described(problems, best)}")
            exact = step(problems, best, "replay")
            few = search(problems, plans=10, slack=0.02).plans
            say(f"{'':10}{'best of ten by replay':34} {min(step(problems, p, 'replay') for p in few) / exact:6.3f}")
            for reading, rules in READINGS.items():
                begin = time.process_time()
                result = paper_search(problems, rules)
                seconds = time.process_time() - begin
                share = f"{step(problems, result.plans[0], 'replay') / exact:6.3f}" if result.plans else "  none"
                counts = result.counts
                say(f"{'':10}{reading:34} {share} of its step, {counts.transitions:10,} transitions {seconds:6.2f} s")
    return met


def prunings() -> bool:
    """Every pruning alone switched off, and all of them, on some clusters; the optimum must stay."""
    same = True
    for name, training in (("16-1", SMALL), ("16-2", SMALL), ("16-3", SMALL)):
        problems = cluster_problems(paper_clusters()[name], training, UNITS, SIZES)
        base = measured(problems, ONE_BLOCK)
        say(f"--- {name}: all prunings\n{'':22}{rate_of(base)}")
        cases = {f"without {field}": ALL_PRUNINGS._replace(**{field: False}) for field in Prunings._fields}
        cases["without all but dominance"] = Prunings(False, False, False, False, True)
        for case, chosen in cases.items():
            found = measured(problems, ONE_BLOCK, chosen)
            (best,), (expected,) = found.result.plans, base.result.plans
            equal = abs(best.seconds / expected.seconds - 1.0) < 1e-9
            same &= equal
            say(f"{case:26}{rate_of(found)} {'same optimum' if equal else 'ANOTHER OPTIMUM'}")
    return same


def large(scale: int, batch: int, units: Sequence[int], limit: float) -> bool:
    """Three types, 61 layers, one stage size for each type, all devices in use."""
    kinds = large_cluster(scale)
    problems = cluster_problems(kinds, Training(61, batch), units, [8 * 2**power for power in range(8)])
    options = sum(len(problem.options) for problem in problems)
    devices = sum(kind.count for kind in kinds)
    say(f"--- {devices:,} devices, {batch:,} sequences, {len(problems)} units, {options} options")
    found = measured(problems, WHOLE)
    say(rate_of(found))
    say(f"{'':4}{found.result.counts}")
    (best,) = found.result.plans
    peak = peak_mib()
    say(f"{'':4}{described(problems, best)}")
    say(
        f"{'':4}L' {best.seconds:.3f} s, replay {step(problems, best, 'replay'):.3f} s; "
        f"search {found.seconds:.1f} s (target {limit:g}), peak memory {peak:.0f} MiB (target {MEMORY_MIB:g})"
    )
    return found.seconds <= limit and peak <= MEMORY_MIB


def main(arguments: Sequence[str]) -> int:
    """Measure, print and judge."""
    parts = {
        "small": small,
        "prunings": prunings,
        "large": lambda: large(1, 4096, (4, 8, 16, 32, 64, 128, 256), LARGE_S),
        "huge": lambda: large(10, 16384, (32, 64, 128, 256, 512, 1024), HUGE_S),
    }
    verdicts = [parts[name]() for name in arguments or parts]
    return int(not all(verdicts))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
