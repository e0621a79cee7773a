"""Laws of asymmetric expert assignment, and two second opinions: the engine on zebra's order, and the solver."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simmoe.engine.fast import simulate_fast
from simmoe.graph.schedules import Action, Kind
from simmoe.graph.zebra_order import Block, Part, block_graph, zebra_order
from simmoe.planners.assignment import best_fraction, gather_and_squeeze, squeeze_s
from simmoe.planners.assignment_problem import AssignmentProblem, chunk_bounds, layer_times
from simmoe.planners.optimal_assignment import assignment_gap, exact_assignment, milp_assignment
from simmoe.planners.zebra_recursion import Step, zebra_seconds

DEVICES = [(1, 1), (2, 2), (4, 2), (2, 4), (3, 1)]
TIMES = st.integers(0, 40).map(lambda tenths: tenths / 10)


@st.composite
def problems(draw: st.DrawFn, layers: int = 10) -> AssignmentProblem:
    """Groups that have chunks, with experts of at most three chunks a layer and bounds that may contradict."""
    attention, experts = draw(st.sampled_from(DEVICES))
    per_device = draw(st.integers(1, 3)) * max(1, attention // experts)
    return AssignmentProblem(
        experts=per_device * experts,
        layers=draw(st.integers(1, layers)),
        attention_devices=attention,
        expert_devices=experts,
        attention_s=draw(TIMES),
        expert_s=draw(TIMES),
        expert_on_attention_s=draw(TIMES),
        least_moved=draw(st.sampled_from([0, 0, 0, 1, 3])),
        most_moved=draw(st.sampled_from([-1, -1, -1, 2, 5])),
        most_in_layer=draw(st.sampled_from([-1, -1, per_device])),
    )


@st.composite
def steps(draw: st.DrawFn) -> Step:
    ratios = [draw(st.sampled_from([-1.0, -1.0, 1.5, 4.0])) for _ in range(2)]
    backward = draw(st.sampled_from([0.0, 2.0, 3.0]))
    return Step(draw(st.integers(1, 4)), *(draw(TIMES) / 4 for _ in range(4)), backward, *ratios)


few = settings(max_examples=40, deadline=None, derandomize=True)


@given(problems())
@few
def test_the_bounds_are_kept_or_nothing_moves(problem: AssignmentProblem) -> None:
    result = gather_and_squeeze(problem)
    if result.reason:
        assert set(result.moved) == {0}
        assert result.feasible == (problem.least_moved == 0)
        return
    assert result.feasible
    least, most, in_layer = chunk_bounds(problem)
    assert least <= sum(result.chunks) <= most
    assert max(result.chunks) <= in_layer
    assert max(result.moved) <= problem.cap <= problem.held
    assert sum(result.moved) >= problem.least_moved
    assert problem.most_moved < 0 or sum(result.moved) <= problem.most_moved


@given(problems())
@few
def test_only_one_bound_scales_the_bubbles(problem: AssignmentProblem) -> None:
    result = gather_and_squeeze(problem)
    assert result.alpha <= 1.0 <= result.beta
    assert result.alpha == 1.0 or result.beta == 1.0


@given(problems())
@few
def test_no_more_moves_than_balances_both_sides(problem: AssignmentProblem) -> None:
    free = problem._replace(least_moved=0)
    moved = sum(gather_and_squeeze(free).moved)
    held = problem.experts // problem.expert_devices * problem.layers
    assert moved / held <= best_fraction(free) + 1e-9


@given(problems())
@few
def test_the_bubble_that_is_left_is_what_the_chunks_did_not_squeeze(problem: AssignmentProblem) -> None:
    result = gather_and_squeeze(problem)
    squeezed = sum(result.chunks) * squeeze_s(problem)
    assert result.bubble_after_s == pytest.approx(result.bubble_before_s - squeezed, abs=1e-9)
    if problem.least_moved == 0 and result.bubble_before_s > 0:
        assert result.bubble_after_s >= -1e-9


@given(problems())
@few
def test_both_formulas_agree_where_both_sides_are_equally_many(problem: AssignmentProblem) -> None:
    equal = problem._replace(attention_devices=problem.expert_devices)
    assert gather_and_squeeze(equal) == gather_and_squeeze(equal, "printed")


@given(problems())
@few
def test_after_every_layer_what_moved_is_what_the_bubbles_are_worth(problem: AssignmentProblem) -> None:
    """The running sum that the paper's loop keeps: never a whole chunk left over, unless the layer is full."""
    free = problem._replace(least_moved=0, most_moved=-1)
    result, in_layer = gather_and_squeeze(free), chunk_bounds(free)[2]
    left = 0.0
    for count in result.chunks:
        left += max(free.expert_s - free.attention_s, 0.0) - count * squeeze_s(free)
        assert left >= -1e-9
        assert count == in_layer or left < squeeze_s(free) or squeeze_s(free) == 0.0


@given(problems(), st.sampled_from([1 / 1024, 4.0]))
@few
def test_the_unit_of_time_changes_nothing(problem: AssignmentProblem, unit: float) -> None:
    scaled = problem._replace(
        attention_s=problem.attention_s * unit,
        expert_s=problem.expert_s * unit,
        expert_on_attention_s=problem.expert_on_attention_s * unit,
    )
    assert gather_and_squeeze(scaled).moved == gather_and_squeeze(problem).moved


# ---------------------------------------------------------------- the recursion


def factor(step: Step, ratio: float, block: Block) -> float:
    """Of the time in the problem: a module's share of its two passes, times both."""
    if not step.backward:
        return 1.0
    own = step.backward if ratio == -1.0 else ratio
    return (1.0 + step.backward) * (own if block.backward else 1.0) / (1.0 + own)


@given(problems(layers=4), steps(), st.data())
@few
def test_the_recursion_is_the_engine_on_the_order_of_zebra(
    problem: AssignmentProblem, step: Step, data: st.DataObject
) -> None:
    most = problem.experts // problem.expert_devices
    moved = tuple(data.draw(st.integers(0, most)) for _ in range(problem.layers))
    times = layer_times(problem, moved)

    def seconds(block: Block) -> float:
        if block.part is Part.ATTENTION:
            if block.place == problem.layers:
                return step.head_backward_s if block.backward else step.head_forward_s
            return problem.attention_s * factor(step, step.attention_backward, block)
        if block.part is Part.MOVED:
            added = times[block.place].attention_s - problem.attention_s
            return added * factor(step, step.moved_backward, block)
        if block.part is Part.EXPERTS:
            return times[block.place].experts_s * factor(step, -1.0, block)
        return step.dispatch_s if (block.part is Part.DISPATCH) != block.backward else step.combine_s

    actions = [Action(Kind.FORWARD, 0), Action(Kind.BACKWARD, 0)][: 2 if step.backward else 1]
    order = zebra_order([count > 0 for count in moved], step.micro_batches, actions)
    assert zebra_seconds(problem, step, moved) == pytest.approx(simulate_fast(block_graph(order, seconds)).makespan)


@given(problems(layers=4), steps())
@few
def test_a_step_is_at_least_the_work_of_either_side(problem: AssignmentProblem, step: Step) -> None:
    moved = gather_and_squeeze(problem).moved
    factor = step.micro_batches * (1.0 + step.backward)
    times = layer_times(problem, moved)
    head = step.head_forward_s + (step.head_backward_s if step.backward else 0.0)
    attention = factor * sum(each.attention_s for each in times) + step.micro_batches * head
    experts = factor * sum(each.experts_s for each in times)
    assert zebra_seconds(problem, step, moved) >= max(attention, experts) * (1 - 1e-9)


# ---------------------------------------------------------------- the optimum


@given(problems(layers=3), steps())
@few
def test_integer_programming_finds_what_trying_all_finds(problem: AssignmentProblem, step: Step) -> None:
    exact, milp = exact_assignment(problem, step), milp_assignment(problem, step)
    assert milp.proven
    assert milp.reason == exact.reason
    assert milp.seconds_s == pytest.approx(exact.seconds_s, rel=1e-5)
    assert milp.bound_s <= milp.seconds_s
    assert milp.seconds_s == math.inf or milp.bound_s == pytest.approx(milp.seconds_s, rel=1e-4)


@given(problems(layers=4), steps(), st.sampled_from(["exact", "milp"]), st.sampled_from(["consistent", "printed"]))
@few
def test_gather_and_squeeze_is_never_better_than_the_optimum(
    problem: AssignmentProblem, step: Step, method: str, formula: str
) -> None:
    gap = assignment_gap(problem, step, method, formula)
    assert gap.gap >= -1e-5
    assert gap.greedy_s >= gap.optimal_s * (1 - 1e-5)
    assert gap.greedy.feasible == (gap.optimal_s < math.inf)


@given(problems(layers=3), steps())
@few
def test_looser_bounds_never_hurt_the_optimum(problem: AssignmentProblem, step: Step) -> None:
    free = problem._replace(least_moved=0, most_moved=-1)
    assert exact_assignment(free, step).seconds_s <= exact_assignment(problem, step).seconds_s
