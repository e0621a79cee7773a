"""Small pipelines, found by search, where another objective than the exact search's chooses a slower plan.

A fast and a slow device, layers alike, no memory limit. Of the plans that an objective likes equally well the fastest
counts. The step of a plan is its exact replay.
"""

from typing import NamedTuple

import pytest

from simmoe.errors import SpecError
from simmoe.planners.pipeline_search.brute import all_plans, brute_force, judged
from simmoe.planners.pipeline_search.exact import search
from simmoe.planners.pipeline_search.paper import PaperRules, paper_search
from simmoe.planners.pipeline_search.problem import DeviceType, PipelineProblem, Shape, StageOption, alike


class Two(NamedTuple):
    """Layers, micro-batches, forward and backward seconds of a layer on either device, and of a transfer."""

    layers: int
    micro_batches: int
    first: tuple[float, float]
    second: tuple[float, float]
    transfer_s: float = 0.0


def problem(two: Two) -> PipelineProblem:
    columns = [alike(seconds, two.layers) for seconds in (*two.first, *two.second)]
    nothing = (alike(0.0, two.layers), alike(0, two.layers), alike(0, two.layers), 1)
    options = (
        StageOption(0, 1, "", columns[0], columns[1], *nothing),
        StageOption(1, 1, "", columns[2], columns[3], *nothing),
    )
    transfer = ((0.0, two.transfer_s), (two.transfer_s, 0.0))
    types = (DeviceType("first", 1), DeviceType("second", 1))
    return PipelineProblem(types, two.layers, two.micro_batches, options, transfer)


def step_of_choice(two: Two, judge: str) -> float:
    """The replay of what an objective chooses."""
    asked = problem(two)
    plans = list(all_plans(asked))
    least = min(judged(asked, stages, judge) for stages in plans)
    return min(judged(asked, stages, "replay") for stages in plans if judged(asked, stages, judge) == least)


def step_found(two: Two) -> float:
    """The replay of what the exact search finds."""
    asked = problem(two)
    return judged(asked, search([asked]).plans[0].stages, "replay")


CASES = [
    # A sum knows no bottleneck: all layers on one device.
    ("additive", Two(4, 8, (2.0, 4.0), (2.0, 4.0), 1.0), 192.0, 116.0),
    # M - s - 1 repetitions are too few where the slowest stage is the last: a layer on the slow device looks good.
    ("equation 5", Two(2, 3, (2.0, 1.0), (1.0, 8.0)), 30.0, 18.0),
    # A transfer costs more than its latency: two micro-batches in flight do not fill the round trip.
    ("upper", Two(3, 6, (1.0, 1.0), (1.0, 3.0), 3.0), 46.0, 36.0),
    ("lower", Two(2, 8, (1.0, 1.0), (1.0, 2.0), 3.0), 47.0, 32.0),
]


@pytest.mark.parametrize(("judge", "case", "chosen", "best"), CASES)
def test_another_objective_chooses_a_slower_plan(judge, case, chosen, best):
    assert step_of_choice(case, judge) == chosen
    assert step_of_choice(case, "replay") == step_found(case) == best


def test_the_printed_recursion_without_its_window_uses_one_device():
    """The window is what keeps the sum near the balanced split: with it two layers on either device, as is best."""
    asked = problem(CASES[0][1])
    alone = min(paper_search([asked], PaperRules(window="none")).plans, key=lambda plan: len(plan.stages))
    assert [stage.layers for stage in alone.stages] == [4]
    balanced = paper_search([asked]).plans[0]
    assert [stage.layers for stage in balanced.stages] == [2, 2]


def test_the_bound_may_miss_the_fastest_plan_and_a_replay_of_the_best_few_finds_it():
    """L' calls a plan of 40 s the best, at 35 s; a plan of 36 s is the second."""
    two = Two(3, 4, (1.0, 2.0), (1.0, 4.0), 3.0)
    assert step_of_choice(two, "tight") == 40.0
    few = search([problem(two)], plans=5, slack=0.1).plans
    assert min(judged(problem(two), plan.stages, "replay") for plan in few) == step_of_choice(two, "replay") == 36.0


def test_the_printed_window_has_no_room_for_two_stages_of_a_type():
    """Four equal devices, eight layers: w_h N = 8 for every stage as printed, 2 once the type's share is divided."""
    option = StageOption(0, 1, "", alike(1.0, 8), alike(2.0, 8), alike(0.0, 8), alike(2, 8), alike(0, 8), 4)
    asked = PipelineProblem((DeviceType("a", 4),), 8, 4, (option,), ((0.0,),))
    assert paper_search([asked], PaperRules(window="printed")).plans == ()
    assert [stage.layers for stage in paper_search([asked]).plans[0].stages] == [2, 2, 2, 2]


def test_a_slow_wire_between_types_is_pruned():
    """Two transfers of 12 s against 2 mean stages of 8 layers by 2 devices of 3 s: allowed; a bit more is not."""
    two = Two(8, 4, (1.0, 2.0), (1.0, 2.0), 12.0)
    assert {len(plan.stages) for plan in paper_search([problem(two)], PaperRules(window="none")).plans} == {1, 2}
    slower = problem(two._replace(transfer_s=12.01))
    assert [len(plan.stages) for plan in paper_search([slower], PaperRules(window="none")).plans] == [1]


WRONG = [
    ({"layers": 0}, "must be at least 1"),
    ({"micro_batches": 0}, "must be at least 1"),
    ({"options": ()}, "there are no options"),
    ({"types": (DeviceType("first", 1), DeviceType("first", 1))}, "different names"),
    ({"transfer_s": ((0.0,),)}, "a row and a column"),
    ({"transfer_s": ((0.0, -1.0), (0.0, 0.0))}, "not negative"),
]
WRONG_OPTION = [
    ({"device_type": 2}, "device_type must be below 2"),
    ({"devices": 0}, "devices must be at least 1"),
    ({"forward_s": (1.0,)}, "every column must have 2 layers"),
    ({"kept_bytes": (-1, 0)}, "not negative"),
    ({"update_s": (float("inf"), 0.0)}, "finite"),
    ({"forward_s": (0.0, 1.0), "backward_s": (0.0, 1.0)}, "a layer must take time"),
    ({"device_type": 1}, "different names"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
@pytest.mark.parametrize("searched", [search, paper_search])
def test_tables_that_describe_no_pipeline_are_refused(searched, change, words):
    with pytest.raises(SpecError, match=words):
        searched([problem(Two(2, 4, (1.0, 2.0), (2.0, 4.0)))._replace(**change)])


@pytest.mark.parametrize(("change", "words"), WRONG_OPTION)
def test_an_option_that_is_none_is_refused(change, words):
    asked = problem(Two(2, 4, (1.0, 2.0), (2.0, 4.0)))
    with pytest.raises(SpecError, match=words):
        search([asked._replace(options=(asked.options[0]._replace(**change), asked.options[1]))])


@pytest.mark.parametrize("rules", [PaperRules(window="wide"), PaperRules(delta=-0.1), PaperRules(eta=-1.0)])
def test_unknown_rules_are_refused(rules):
    with pytest.raises(SpecError, match="window must be one of"):
        paper_search([problem(Two(2, 4, (1.0, 2.0), (2.0, 4.0)))], rules)


def test_an_unknown_judge_is_refused():
    asked = problem(Two(2, 4, (1.0, 2.0), (2.0, 4.0)))
    with pytest.raises(SpecError, match="unknown judge best"):
        judged(asked, next(all_plans(asked)), "best")


def test_nothing_that_fits_is_an_answer():
    asked = problem(Two(2, 4, (1.0, 2.0), (2.0, 4.0)))
    options = tuple(option._replace(held_bytes=(9, 9)) for option in asked.options)
    assert search([asked._replace(options=options)]).plans == ()
    assert paper_search([asked._replace(options=options)]).plans == ()
    assert search([asked], Shape(sizes=(3,))).plans == ()


def test_a_state_of_more_than_64_bits_is_told_apart():
    """Twelve types of 1,000 devices: the same plan as with one device each, of which no stage uses more."""
    few = PipelineProblem(
        tuple(DeviceType(f"t{kind:02}", 1) for kind in range(12)),
        3,
        4,
        tuple(
            StageOption(kind, 1, "", alike(1.0 + kind, 3), alike(2.0, 3), alike(0.0, 3), alike(0, 3), alike(0, 3), 1)
            for kind in range(12)
        ),
        ((0.0,) * 12,) * 12,
    )
    many = few._replace(types=tuple(kind._replace(devices=1000) for kind in few.types))
    free = Shape(one_block=False)
    assert judged(few, search([few], free).plans[0].stages) == brute_force([few], free)[0].seconds
    assert search([many], free).plans[0].seconds == 3.0 * (4 + 3 - 1)
