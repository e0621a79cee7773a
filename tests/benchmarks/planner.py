"""Speed of HAPMoE's planner on real models: the twelve clusters, its modes and prunings, clusters of thousands.

    python -m tests.benchmarks.planner [clusters] [modes] [prunings] [large] [huge] [evaluation]

What is searched is what the simulator's cost layer says (`simmoe.planners.pipeline_tables`); the same searches on
tables that are made up are in `pipeline_search`. Processor times on this machine. Exit status 1 if a target is missed.
"""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from simmoe.planners.pipeline_candidates import SIMULATED, candidates, shape_for, sizes_for
from simmoe.planners.pipeline_search.exact import search
from simmoe.planners.pipeline_search.limits import ALL_PRUNINGS, Prunings
from simmoe.planners.pipeline_search.paper import paper_search
from simmoe.planners.pipeline_search.warm import plan_seconds
from simmoe.planners.pipeline_tables import Sizes, Tables, tables_of
from simmoe.planners.stage_model import StageModel
from simmoe.planners.step_model import predict
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
PAPER = sorted((SCENARIOS / "papers" / "hapmoe").glob("??-*.yaml"))
SMALL_S, LARGE_S, HUGE_S, MEMORY_MIB, EVALUATION_MS = 1.0, 10.0, 60.0, 1024.0, 1.0
NODES = {"large": (64, 32, 32), "huge": (640, 320, 320)}
missed: list[str] = []


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def took(call: Callable[[], object]) -> tuple[object, float]:
    """An answer and its processor time [s]."""
    begin = time.process_time()
    answer = call()
    return answer, time.process_time() - begin


def aim(what: str, value: float, limit: float) -> None:
    """Remember a target that is missed."""
    if value > limit:
        missed.append(f"{what}: {value:.2f} > {limit:g}")


def peak_mib() -> float:
    """The most memory that this process has had so far [MiB]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def mixed(size: str) -> Scenario:
    """DeepSeek-V3 on H100, H800 and A100."""
    new, middle, old = NODES[size]
    groups = (
        f"{{node: dgx-h100, count: {new}}}, {{node: hgx-h800, count: {middle}}}, {{node: dgx-a100-80gb, count: {old}}}"
    )
    return load_scenario(
        SCENARIOS / "examples" / "deepseek-v3-2048xh800.yaml",
        [
            f"cluster.groups=[{groups}]",
            "cluster.cross_group={link: infiniband-hdr-200}",
            "training.precision=bf16",
            "plan.expert_parallel=8",
        ],
    )


def tables_for(scenario: Scenario, sizes: Sizes | None = None) -> Tables:
    """Every way to run a stage."""
    return tables_of(scenario, sizes=sizes or sizes_for(scenario), model=StageModel(scenario))


def clusters() -> None:
    """The search on each of the twelve clusters, both models."""
    say(f"{'':10} {'tables':>8} {'best':>8} {f'best {SIMULATED}':>8}  states/s  partial plans/s  bound")
    for path in PAPER:
        scenario = load_scenario(path)
        tables, made_s = took(lambda scenario=scenario: tables_for(scenario))
        shape = shape_for(scenario)
        one, one_s = took(lambda tables=tables, shape=shape: search(tables.problems, shape))
        _, ten_s = took(lambda tables=tables, shape=shape: search(tables.problems, shape, plans=SIMULATED))
        rates = (one.counts.states / one_s, one.counts.transitions / one_s)
        say(
            f"{path.stem:10} {made_s:6.2f} s {one_s:6.2f} s {ten_s:6.2f} s {rates[0]:9.0f} {rates[1]:16.0f}  "
            f"{one.plans[0].seconds:.3f} s"
        )
        aim(f"search on {path.stem}", one_s, SMALL_S)


def modes() -> None:
    """The paper's search against the exact one; brute force where it is possible."""
    for path in PAPER[::4]:
        scenario = load_scenario(path)
        tables, shape = tables_for(scenario), shape_for(scenario)
        exact, exact_s = took(lambda tables=tables, shape=shape: search(tables.problems, shape))
        printed, printed_s = took(lambda tables=tables, shape=shape: paper_search(tables.problems, shape=shape))
        model = StageModel(scenario)
        best = [min(one.predicted_s for one in candidates(tables, found.plans, model)[0]) for found in (exact, printed)]
        say(
            f"{path.stem:10} exact {exact_s:5.2f} s: {best[0]:.3f} s a step; paper {printed_s:5.2f} s: {best[1]:.3f} s "
            f"a step, {best[1] / best[0] - 1:+.1%}"
        )


def prunings() -> None:
    """Each pruning switched off, on one cluster with two sizes of micro-batches."""
    scenario = load_scenario(SCENARIOS / "papers" / "hapmoe" / "16-1-s.yaml")
    tables = tables_for(scenario, Sizes(stages=(4, 8), units=(4, 8)))
    cases = {"all": ALL_PRUNINGS} | {
        f"without {name}": ALL_PRUNINGS._replace(**{name: False}) for name in Prunings._fields
    }
    for name, chosen in cases.items():
        found, seconds = took(lambda chosen=chosen: search(tables.problems, shape_for(scenario), chosen))
        counts = found.counts
        say(f"{name:20} {seconds:7.2f} s {counts.labels:9,} labels {counts.transitions:11,} partial plans")


def one_of(size: str, limit: float) -> None:
    """A cluster of thousands."""
    scenario = mixed(size)
    tables, made_s = took(lambda: tables_for(scenario))
    found, seconds = took(lambda: search(tables.problems, shape_for(scenario)))
    say(
        f"{scenario.cluster.devices:,} GPUs: tables {made_s:.1f} s, search {seconds:.1f} s, "
        f"{found.counts.transitions / seconds:,.0f} partial plans/s, bound {found.plans[0].seconds:.3f} s, "
        f"{len(found.plans[0].stages)} stages; {peak_mib():.0f} MiB at most so far"
    )
    aim(f"search on {size}", seconds, limit)
    aim("memory [MiB]", peak_mib(), MEMORY_MIB)


def evaluation() -> None:
    """One plan by the planner's own model: on the tables, and from a plan, whose stages must be costed first."""
    scenario = load_scenario(SCENARIOS / "papers" / "hapmoe" / "32-1-l.yaml")
    tables, model = tables_for(scenario), StageModel(scenario)
    found = search(tables.problems, shape_for(scenario), plans=SIMULATED).plans
    _, on_tables = took(lambda: [plan_seconds(tables.problem(one.unit)[0], one.stages) for one in found * 20])
    chosen = candidates(tables, found, model)[0]
    _, alone = took(lambda: [predict(one.scenario, model) for one in chosen * 5])
    stages = sum(len(one.stages) for one in found) / len(found)
    each = on_tables / 20 / len(found) * 1e3
    say(f"one plan of {stages:.1f} stages: {each:.2f} ms on tables, {alone / 5 / len(chosen) * 1e3:.2f} ms from a plan")
    aim("evaluation on tables [ms]", each, EVALUATION_MS)


PARTS: dict[str, Callable[[], None]] = {
    "clusters": clusters,
    "modes": modes,
    "prunings": prunings,
    "evaluation": evaluation,
    "large": lambda: one_of("large", LARGE_S),
    "huge": lambda: one_of("huge", HUGE_S),
}


def main() -> int:
    """Run the parts that are asked for, or all."""
    for name in sys.argv[1:] or PARTS:
        say(f"--- {name}")
        PARTS[name]()
    for text in missed:
        say(f"MISSED {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
