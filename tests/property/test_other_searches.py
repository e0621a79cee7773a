"""What Alpa's and Metis' searches find on tables: the least of their own estimates, plans that fit."""

import random

import pytest

from simmoe.errors import SpecError
from simmoe.planners.pipeline_search.alpa import GAP, alpa_search
from simmoe.planners.pipeline_search.bounds import Stages, upper_estimate
from simmoe.planners.pipeline_search.brute import all_plans
from simmoe.planners.pipeline_search.metis import device_groups, metis_search, proportional
from simmoe.planners.pipeline_search.problem import PipelinePlan, PipelineProblem, Shape, fits, stage_times
from tests.stage_problems import random_problem

WHOLE = Shape(all_devices=True)


def of_one_type(seed: int) -> PipelineProblem:
    """A random problem with the first of its types alone, and no transfers."""
    problem = random_problem(seed)
    options = tuple(option for option in problem.options if option.device_type == 0)
    return problem._replace(types=problem.types[:1], options=options, transfer_s=((0.0,),))


def alpas_estimate(problem: PipelineProblem, stages) -> float:
    times = stage_times(problem, stages)
    return upper_estimate(Stages(times.forward_s, times.backward_s), problem.micro_batches)


@pytest.mark.parametrize("part", range(4))
def test_alpa_finds_the_least_of_its_own_estimates(part):
    found = 0
    for seed in range(100 * part, 100 * part + 25):
        problem = of_one_type(seed)
        every = [alpas_estimate(problem, stages) for stages in all_plans(problem, WHOLE)]
        plan = alpa_search(problem)
        assert (plan is None) == (not every)
        if plan is not None:
            assert fits(problem, plan.stages)
            assert plan.seconds == pytest.approx(alpas_estimate(problem, plan.stages), rel=1e-12)
            # Limits that lie close together are one: the last stage may be longer by as much, M times.
            assert min(every) <= plan.seconds * (1 + 1e-12) <= min(every) * (1 + 40 * GAP)
            found += 1
    assert found >= 8


def test_alpa_knows_one_type_of_device():
    with pytest.raises(SpecError, match="one type of device"):
        alpa_search(random_problem(3))


def ladder_of(problem: PipelineProblem) -> dict[tuple[int, int], list[int]]:
    ladder: dict[tuple[int, int], list[int]] = {}
    for number, option in enumerate(problem.options):
        ladder.setdefault((option.device_type, option.devices), []).append(number)
    return ladder


def metis_plans(seed: int) -> tuple[PipelineProblem, list[PipelinePlan]]:
    problem = random_problem(seed, layers=8)
    return problem, metis_search([problem], [ladder_of(problem)], plans=50)


def test_metis_plans_fit_use_all_devices_and_come_best_first():
    found = 0
    for seed in range(60):
        problem, plans = metis_plans(seed)
        found += len(plans)
        assert [plan.seconds for plan in plans] == sorted(plan.seconds for plan in plans)
        for plan in plans:
            assert fits(problem, plan.stages)
            devices = sum(problem.options[stage.option].devices for stage in plan.stages)
            assert devices == sum(kind.devices for kind in problem.types)
            assert sum(stage.layers for stage in plan.stages) == problem.layers
    assert found > 100


def test_metis_groups_differ_by_a_factor_of_two_at_most():
    for seed in range(30):
        problem = random_problem(seed, layers=8)
        for groups in device_groups(problem, ladder_of(problem)):
            for kind in {group.kind for group in groups}:
                sizes = [group.devices for group in groups if group.kind == kind]
                assert max(sizes) <= 2 * min(sizes)


def test_layers_in_proportion_add_up():
    draw = random.Random(7)
    for _ in range(200):
        speeds = [draw.uniform(0.1, 10.0) for _ in range(draw.randint(1, 6))]
        layers = draw.randint(len(speeds), 60)
        shares = proportional(speeds, layers)
        assert sum(shares) == layers
        assert min(shares) >= 1
        exact = [layers * speed / sum(speeds) for speed in speeds]
        if min(exact) >= 1:
            assert all(abs(own - part) < 1 + 1e-9 for own, part in zip(shares, exact, strict=True))
