"""Laws of the pipeline search: it equals enumeration, no pruning changes the optimum, nothing depends on an order."""

import os
import subprocess
import sys

import pytest

from simmoe.planners.pipeline_search import exact
from simmoe.planners.pipeline_search.brute import all_plans, brute_force, judged
from simmoe.planners.pipeline_search.exact import search
from simmoe.planners.pipeline_search.limits import ALL_PRUNINGS, Prunings
from simmoe.planners.pipeline_search.paper import PaperRules, paper_search
from simmoe.planners.pipeline_search.problem import PipelineProblem, Shape, fits, stage_times
from tests.stage_problems import random_problem

SHAPES = (
    Shape(),
    Shape(one_block=False),
    Shape(one_size=True),
    Shape(one_size=True, all_devices=True),
    Shape(one_block=False, one_size=True),
    Shape(one_block=False, all_devices=True),
    Shape(sizes=(1, 2)),
)
OFF = tuple(Prunings(**{name: False}) for name in Prunings._fields)
NONE = Prunings(*(False for _ in Prunings._fields))
LARGE = [(7, 7), (8, 6), (6, 8), (8, 8)]


def optimum(plans) -> list[float]:
    return [round(plan.seconds, 9) for plan in plans]


def equals_enumeration(problem: PipelineProblem, shape: Shape, prunings: Prunings = ALL_PRUNINGS) -> bool:
    """Whether there is a plan; the search must find its seconds, and say truly what it found."""
    every = {stages: judged(problem, stages) for stages in all_plans(problem, shape)}
    found = search([problem], shape, prunings).plans
    assert optimum(found) == [round(seconds, 9) for seconds in sorted(every.values())[:1]]
    for plan in found:
        assert every[plan.stages] == pytest.approx(plan.seconds, rel=1e-12)
    return bool(found)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_search_equals_enumeration(shape):
    feasible = [equals_enumeration(random_problem(seed, 6, 5), shape) for seed in range(12)]
    assert sum(feasible) >= 6, "most must have a plan"


@pytest.mark.parametrize("shape", SHAPES)
def test_limits_that_are_tried_upwards_change_nothing(monkeypatch, shape):
    """As on thousands of devices: first among stages of one size, from a limit that nothing can beat."""
    monkeypatch.setattr(exact, "FEW_DEVICES", 0)
    feasible = [equals_enumeration(random_problem(seed, 5, 5), shape) for seed in range(20, 28)]
    assert sum(feasible) >= 4, "most must have a plan"


def test_plans_met_on_the_way_are_plans(monkeypatch):
    monkeypatch.setattr(exact, "FEW_DEVICES", 0)
    met = 0
    for seed in range(40):
        problem = random_problem(seed)
        found = search([problem])
        met += len(found.on_the_way)
        for plan in found.on_the_way:
            assert fits(problem, plan.stages)
            assert plan.seconds == pytest.approx(judged(problem, plan.stages), rel=1e-12)
            assert plan.seconds >= found.plans[0].seconds
    assert met > 20


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_the_search_equals_enumeration_at_length(part):
    feasible = []
    for seed in range(1000 + 60 * part, 1060 + 60 * part):
        problem = random_problem(seed, *LARGE[seed % 4])
        # Without a limit some instances have more than a million plans.
        problem = problem._replace(max_stages=problem.max_stages or 4)
        feasible.append(equals_enumeration(problem, SHAPES[seed % len(SHAPES)]))
    assert sum(feasible) >= 30


@pytest.mark.parametrize("prunings", [*OFF, NONE])
def test_no_pruning_changes_the_optimum(prunings):
    for seed in range(200, 212):
        problem, shape = random_problem(seed, 6, 5), SHAPES[seed % len(SHAPES)]
        assert optimum(search([problem], shape, prunings).plans) == optimum(search([problem], shape).plans)


@pytest.mark.parametrize(
    ("field", "count"),
    [("bound", "by_bound"), ("dominance", "by_dominance"), ("capacity", "by_capacity"), ("options", "by_options")],
)
def test_every_pruning_does_something(field, count):
    """With it some partial plans are left out, without it none for its reason, and more are made."""
    problems = [random_problem(seed, 7, 7) for seed in range(300, 306)]
    base = Prunings(warm_start=False)
    with_it = [search([problem], Shape(), base).counts for problem in problems]
    without = [search([problem], Shape(), base._replace(**{field: False})).counts for problem in problems]
    assert sum(getattr(counts, count) for counts in with_it) > 0
    if count != "by_capacity":
        assert sum(getattr(counts, count) for counts in without) == 0
    assert sum(counts.transitions for counts in without) > sum(counts.transitions for counts in with_it)


def test_several_plans_are_the_best_ones():
    """Expectation: the four best of all by enumeration; Actual: four labels a state, no option left out."""
    for seed in range(400, 412):
        problem = random_problem(seed, 5, 5)
        shape = SHAPES[seed % len(SHAPES)]
        found = search([problem], shape, Prunings(options=False), plans=4, slack=100.0).plans
        assert optimum(found) == optimum(brute_force([problem], shape, plans=4))
        assert len({plan.stages for plan in found}) == len(found)


def test_slack_bounds_how_much_worse_the_others_are():
    problem = random_problem(19, 7, 7)
    plans = search([problem], plans=50, slack=0.05).plans
    assert 1 < len(plans) < 50
    assert plans[-1].seconds <= 1.05 * plans[0].seconds * (1 + 1e-9)


def test_several_problems_compete():
    """Expectation: the best of the best; Actual: one search over all."""
    for seed in range(500, 508):
        problems = [random_problem(seed + 100 * unit, 6, 5)._replace(unit=unit) for unit in range(1, 4)]
        each = [plan for problem in problems for plan in search([problem]).plans]
        together = search(problems).plans
        assert optimum(together) == optimum(sorted(each)[:1])


def named(problem: PipelineProblem, plans) -> list:
    """Plans without indices."""
    options = problem.options
    rows = [[(options[stage.option], stage.first_layer, stage.layers) for stage in plan.stages] for plan in plans]
    kinds = problem.types
    return [[(kinds[option.device_type].name, *option[1:3], *layers) for option, *layers in row] for row in rows]


def turned(problem: PipelineProblem) -> PipelineProblem:
    """The same problem with types and options in the opposite order."""
    last = len(problem.types) - 1
    options = tuple(option._replace(device_type=last - option.device_type) for option in reversed(problem.options))
    rows = tuple(tuple(reversed(row)) for row in reversed(problem.transfer_s))
    return problem._replace(types=problem.types[::-1], options=options, transfer_s=rows)


def test_the_order_of_types_and_options_does_not_matter():
    for seed in range(600, 606):
        problem, shape = random_problem(seed), SHAPES[seed % len(SHAPES)]
        other = turned(problem)
        for plans in (1, 3):
            assert named(problem, search([problem], shape, plans=plans).plans) == named(
                other, search([other], shape, plans=plans).plans
            )
        first, second = paper_search([problem], shape=shape), paper_search([other], shape=shape)
        assert named(problem, first.plans) == named(other, second.plans)


def test_the_hash_seed_does_not_matter():
    code = (
        "from tests.stage_problems import random_problem as p; "
        "from simmoe.planners.pipeline_search.exact import search; "
        "print([search([p(s)], plans=3) for s in range(4)])"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1] != b""


RULES = [
    PaperRules(),
    PaperRules(window="printed"),
    PaperRules(window="none"),
    PaperRules(type_behind=False),
    PaperRules(eta=0.0),
]


@pytest.mark.parametrize("rules", RULES)
def test_the_printed_algorithm_is_never_better(rules):
    """By the exact search's own objective; and what it finds is a plan."""
    found = 0
    for seed in range(700, 710):
        problem = random_problem(seed)
        best = search([problem]).plans
        plans = paper_search([problem], rules).plans
        found += bool(plans)
        for plan in plans:
            assert fits(problem, plan.stages)
            assert judged(problem, plan.stages) >= best[0].seconds * (1 - 1e-12)
            assert judged(problem, plan.stages, "equation 5") == pytest.approx(plan.seconds, rel=1e-12)
    assert found > 0


def test_the_printed_recursion_finds_the_least_sum_for_every_number_of_stages():
    """Expectation: of all plans with p stages the least sum of times and transfers; Actual: the recursion, unpruned."""
    for seed in range(800, 810):
        problem = random_problem(seed, 6, 5)
        least: dict[int, float] = {}
        for stages in all_plans(problem):
            cost = judged(problem, stages, "additive") - stage_times(problem, stages).update_s
            least[len(stages)] = min(cost, least.get(len(stages), cost))
        found = {}
        for plan in paper_search([problem], PaperRules(window="none", eta=0.0)).plans:
            found[len(plan.stages)] = (
                judged(problem, plan.stages, "additive") - stage_times(problem, plan.stages).update_s
            )
        assert found == pytest.approx(least, rel=1e-12)
