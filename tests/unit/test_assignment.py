"""Asymmetric expert assignment on cases worked by hand: HeterMoE's figure 6, its bounds, and what cannot move."""

import math
import sys

import pytest

from simmoe.errors import SpecError
from simmoe.planners.assignment import best_fraction, gather_and_squeeze, squeeze_s
from simmoe.planners.assignment_problem import AssignmentProblem, chunk_sizes, layer_times, moved_bounds
from simmoe.planners.optimal_assignment import assignment_gap, exact_assignment, milp_assignment
from simmoe.planners.zebra_recursion import Interval, Step, replay, zebra_blocks, zebra_seconds

FIGURE_6 = AssignmentProblem(6, 3, 1, 1, attention_s=3.0, expert_s=4.0, expert_on_attention_s=0.8 * 4.0)
FORWARD = Step(3, backward=0.0)  # the figure shows 3 micro-batches, forward, without transfers
UNEVEN = AssignmentProblem(24, 4, 4, 3, 3.0, 4.0, 3.2)


def ran(problem: AssignmentProblem, step: Step, moved: tuple[int, ...]) -> tuple[Interval, ...]:
    return replay(zebra_blocks(problem, step, [count > 0 for count in moved]), moved)


def busy(intervals: tuple[Interval, ...], queue: str) -> float:
    return sum(each.end_s - each.start_s for each in intervals if each.block.queue == queue)


# ---------------------------------------------------------------- figure 6


@pytest.mark.parametrize("formula", ["consistent", "printed"])
def test_figure_6_moves_an_expert_of_layers_2_and_3(formula: str) -> None:
    assert gather_and_squeeze(FIGURE_6, formula).moved == (0, 1, 1)


@pytest.mark.parametrize(("moved", "makespan", "idle"), [((0, 0, 0), 39.0, 12.0), ((0, 1, 1), 35.0, 4.8)])
def test_figure_6_forward_time_and_idle_attention(moved: tuple[int, ...], makespan: float, idle: float) -> None:
    """The paper: 10 % shorter, 60 % of the bubbles gone."""
    assert zebra_seconds(FIGURE_6, FORWARD, moved) == pytest.approx(makespan)
    assert makespan - busy(ran(FIGURE_6, FORWARD, moved), "attention") == pytest.approx(idle)


def test_figure_6_attention_is_busy_three_quarters_of_the_experts_time() -> None:
    intervals = ran(FIGURE_6, FORWARD, (0, 0, 0))
    assert busy(intervals, "attention") / busy(intervals, "experts") == pytest.approx(0.75)


def test_figure_6_an_expert_of_layer_1_too_leaves_experts_idle() -> None:
    """The paper: experts idle 6 %, no gain. Without transfers there is one of 2 %."""
    intervals = ran(FIGURE_6, FORWARD, (1, 1, 1))
    late = [each for each in intervals if each.block.part == "experts" and each.block.layer > 0]
    before = max(each.end_s for each in intervals if each.block.part == "experts" and each.block.layer == 0)
    window, work = late[-1].end_s - before, sum(each.end_s - each.start_s for each in late)
    assert (window, window - work) == pytest.approx((21.2, 1.2))
    assert zebra_seconds(FIGURE_6, FORWARD, (1, 1, 1)) == pytest.approx(34.2)


def test_figure_6_bubbles_of_a_micro_batch() -> None:
    result = gather_and_squeeze(FIGURE_6)
    assert (result.alpha, result.beta, result.feasible, result.reason) == (1.0, 1.0, True, "")
    assert (result.bubble_before_s, result.bubble_after_s) == pytest.approx((3.0, 3.0 - 2 * 1.2))


@pytest.mark.parametrize("scale", [1e-3, 1 / 3, 0.1, 7.7])
def test_a_sum_that_reaches_a_chunk_up_to_rounding_has_reached_it(scale: float) -> None:
    """Bubbles of 0.3 a layer and a chunk worth 0.9: exactly every third layer."""
    problem = AssignmentProblem(10, 9, 1, 1, 4.7 * scale, 5.0 * scale, 4.0 * scale)
    assert gather_and_squeeze(problem).moved == (0, 0, 1) * 3


# ---------------------------------------------------------------- Mixtral-D1 on 6 A40 and 6 V100


def d1(ratio: float) -> AssignmentProblem:
    return AssignmentProblem(24, 8, 6, 6, ratio, 1.0, 0.96)


def d1_ratio(length: int) -> float:
    """T_A / T_E of hidden 1024, 24 experts of 3584, top 2, GQA 4:1, under one set of assumed rates.

    75 and 60 TFLOP/s of wide GEMMs, half of it lost at width 1500, attention cores at 1/1.68 of the former, 48 passes
    over 2-byte elements at 80 % of 696 GB/s.
    """
    narrow = (1024 / (1024 + 1500)) / (4096 / (4096 + 1500))
    gemm = (5 * 1024**2 + 2 * 1024 * 24) / (75e12 * narrow)
    core = 2 * length * 1024 / (75e12 / 1.68)
    memory = 48 * 2 * 1024 / (0.8 * 696e9)
    return (gemm + core + memory) / (2 * 6 * 1024 * 3584 / (60e12 * narrow))


@pytest.mark.parametrize(
    ("length", "ratio", "moved"),
    [
        (4096, 0.37, (1, 1, 1, 2, 1, 1, 1, 2)),
        (8192, 0.51, (0, 1, 1, 1, 1, 1, 1, 1)),
        (16384, 0.80, (0, 0, 1, 0, 1, 0, 0, 1)),
    ],
)
def test_moved_experts_of_d1(length: int, ratio: float, moved: tuple[int, ...]) -> None:
    assert round(d1_ratio(length), 2) == ratio
    assert gather_and_squeeze(d1(d1_ratio(length))).moved == moved


def test_rounded_ratios_of_d1_are_ties() -> None:
    """0.63 / 0.49 = 9/7 and 0.49 / 0.49 = 1: at two digits a chunk falls due one layer earlier than just above them."""
    assert gather_and_squeeze(d1(0.37)).moved == (1, 1, 1, 2, 1, 1, 2, 1)
    assert gather_and_squeeze(d1(0.51)).moved == (1, 1, 1, 1, 1, 1, 1, 1)
    assert gather_and_squeeze(d1(0.80)).moved == (0, 0, 1, 0, 1, 0, 0, 1)


# ---------------------------------------------------------------- chunks, bounds, formulas


@pytest.mark.parametrize(("devices", "chunk"), [((6, 6), (1, 1)), ((4, 8), (2, 1)), ((6, 3), (1, 2)), ((4, 2), (1, 2))])
def test_chunks(devices: tuple[int, int], chunk: tuple[int, int]) -> None:
    assert chunk_sizes(*devices) == chunk
    assert devices[0] * chunk[0] == devices[1] * chunk[1]


def test_bounds_are_counted_on_one_expert_device() -> None:
    assert moved_bounds(least_in_group=13, most_per_attention_device=4, attention_devices=4, expert_devices=8) == (2, 2)
    assert moved_bounds(12, 4, 6, 3) == (4, 8)


@pytest.mark.parametrize("devices", [(4, 8), (6, 3)])
def test_the_consistent_formula_is_what_a_chunk_changes_in_a_layer(devices: tuple[int, int]) -> None:
    problem = AssignmentProblem(24, 1, *devices, 3.0, 4.0, 2.5)
    (without,) = layer_times(problem, (0,))
    (with_chunk,) = layer_times(problem, (chunk_sizes(*devices)[1],))
    removed = without.experts_s - with_chunk.experts_s + with_chunk.attention_s - without.attention_s
    assert squeeze_s(problem) == pytest.approx(removed)
    assert squeeze_s(problem, "printed") != pytest.approx(removed)


def test_the_printed_formula_moves_another_number() -> None:
    problem = AssignmentProblem(24, 8, 4, 8, 1.0, 4.0, 2.0)  # 24/8: chunks of (4 + 2x2)/3 s or (2x4 + 2)/3 s
    assert sum(gather_and_squeeze(problem).chunks) == 9
    assert sum(gather_and_squeeze(problem, "printed").chunks) == 7


def test_an_upper_bound_scales_the_bubbles_down() -> None:
    """12 layers of 1 s at 1.2 s a chunk earn 10; 4 are allowed: every third layer."""
    result = gather_and_squeeze(FIGURE_6._replace(layers=12, most_moved=4))
    assert result.moved == (0, 0, 1) * 4
    assert (result.alpha, result.beta) == (pytest.approx(0.4), 1.0)


def test_a_lower_bound_scales_them_up() -> None:
    result = gather_and_squeeze(FIGURE_6._replace(layers=12, least_moved=18))
    assert result.moved == (1, 2) * 6
    assert (result.alpha, result.beta) == (1.0, pytest.approx(1.8))


def test_half_a_chunk_is_none_of_the_most_and_all_of_the_least() -> None:
    wide = AssignmentProblem(12, 3, 6, 3, 3.0, 4.0, 3.0)  # chunks of 2 experts from each expert device
    assert sum(gather_and_squeeze(wide._replace(attention_s=0.0, most_moved=3)).moved) == 2
    assert sum(gather_and_squeeze(wide._replace(attention_s=4.0, least_moved=3)).moved) == 4


def test_without_a_bubble_nothing_moves() -> None:
    assert gather_and_squeeze(FIGURE_6._replace(attention_s=4.0)).moved == (0, 0, 0)
    assert gather_and_squeeze(FIGURE_6._replace(attention_s=5.0)).moved == (0, 0, 0)


def test_what_must_move_without_a_bubble_is_spread_evenly() -> None:
    result = gather_and_squeeze(FIGURE_6._replace(layers=6, attention_s=5.0, least_moved=3))
    assert (result.moved, result.beta) == ((0, 1, 0, 1, 0, 1), math.inf)
    assert result.bubble_after_s < result.bubble_before_s < 0


def test_a_layer_gives_up_no_more_than_it_has() -> None:
    """3 experts a device in chunks of 2: 1.2 chunks a layer would balance, one is possible."""
    problem = AssignmentProblem(9, 4, 6, 3, 0.0, 4.0, 1.0)
    assert gather_and_squeeze(problem).moved == (2, 2, 2, 2)


def test_an_expert_device_keeps_one_expert_of_each_layer_unless_it_may_give_up_all() -> None:
    """12 s to 1 s: 6 x 11 / 14 = 4.7 experts of 6 would balance a layer; of 2 a device only one is there to move."""
    problem = AssignmentProblem(6, 4, 1, 1, 1.0, 12.0, 2.0)
    assert gather_and_squeeze(problem).moved == (4, 5, 5, 4)
    assert gather_and_squeeze(problem._replace(most_in_layer=2)).moved == (2, 2, 2, 2)
    pair = problem._replace(experts=2)
    assert gather_and_squeeze(pair).moved == (1, 1, 1, 1)
    assert gather_and_squeeze(pair._replace(most_in_layer=2)).moved == (1, 2, 1, 2)
    for judged in (exact_assignment, milp_assignment):
        assert max(judged(pair, FORWARD).moved) == 1
        assert max(judged(pair._replace(most_in_layer=2), FORWARD).moved) == 2


def test_a_layer_that_can_give_up_no_whole_chunk_gives_up_nothing_and_says_why() -> None:
    """Chunks of 2; of 2 experts a device one stays."""
    problem = AssignmentProblem(6, 4, 6, 3, 1.0, 4.0, 1.0)
    result = gather_and_squeeze(problem)
    assert (result.moved, result.feasible) == ((0, 0, 0, 0), True)
    assert result.reason.startswith("of the 2 experts of a layer on an expert device 1 can move")
    assert milp_assignment(problem, FORWARD).moved == (0, 0, 0, 0)
    assert gather_and_squeeze(problem._replace(most_in_layer=2)).reason == ""


def test_a_layer_cannot_give_up_what_it_has_not() -> None:
    with pytest.raises(SpecError, match="most_in_layer 7: an expert device holds 6 experts"):
        gather_and_squeeze(FIGURE_6._replace(most_in_layer=7))


def test_balance_if_experts_could_be_cut() -> None:
    assert best_fraction(FIGURE_6) == pytest.approx(1 / 7.2)
    assert best_fraction(FIGURE_6._replace(most_moved=1)) == pytest.approx(1 / 18)
    assert best_fraction(FIGURE_6._replace(attention_s=0.0, expert_on_attention_s=0.0)) == pytest.approx(5 / 6)
    assert best_fraction(FIGURE_6._replace(attention_s=9.0)) == 0.0
    assert best_fraction(FIGURE_6._replace(attention_s=9.0, least_moved=9)) == pytest.approx(0.5)


# ---------------------------------------------------------------- what cannot move


def test_a_group_without_chunks_moves_nothing_and_says_why() -> None:
    result = gather_and_squeeze(UNEVEN)
    assert (result.moved, result.feasible) == ((0, 0, 0, 0), True)
    assert "neither number divides the other" in result.reason
    gap = assignment_gap(UNEVEN, FORWARD)
    assert (gap.optimal.moved, gap.gap) == ((0, 0, 0, 0), 0.0)
    assert gap.optimal.reason == result.reason
    with pytest.raises(SpecError, match="4 attention and 3 expert devices"):
        chunk_sizes(4, 3)


def test_a_group_without_chunks_is_infeasible_if_experts_must_move() -> None:
    gap = assignment_gap(UNEVEN._replace(least_moved=1), FORWARD, method="milp")
    assert not gap.greedy.feasible
    assert (gap.greedy_s, gap.optimal_s, gap.gap) == (math.inf, math.inf, 0.0)


@pytest.mark.parametrize("most", [-1, 4])
def test_bounds_that_contradict_each_other_or_the_experts_are_a_result(most: int) -> None:
    result = gather_and_squeeze(FIGURE_6._replace(least_moved=19, most_moved=most))
    assert not result.feasible
    assert result.moved == (0, 0, 0)
    assert "at least 19 experts of each expert device must move" in result.reason


def test_what_is_no_problem_is_refused_with_everything_wrong_in_it() -> None:
    wrong = AssignmentProblem(7, 3, 2, 2, -1.0, math.nan, 1.0, least_moved=-1)
    with pytest.raises(SpecError) as caught:
        gather_and_squeeze(wrong)
    assert [problem.split()[0] for problem in caught.value.problems] == ["7", "times", "least_moved"]
    with pytest.raises(SpecError, match="at least 1"):
        best_fraction(FIGURE_6._replace(layers=0))


@pytest.mark.parametrize("moved", [(0, 0), (0, 0, 7), (0, -1, 0)])
def test_moved_experts_fit_the_problem(moved: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="give 3 numbers from 0 to 6"):
        zebra_seconds(FIGURE_6, FORWARD, moved)


def test_a_step_has_micro_batches() -> None:
    with pytest.raises(SpecError, match="at least 1 micro-batch"):
        exact_assignment(FIGURE_6, Step(0))


# ---------------------------------------------------------------- the recursion


@pytest.mark.parametrize("layers", [1, 4])
def test_without_transfers_the_slower_side_never_pauses(layers: int) -> None:
    problem, nothing = FIGURE_6._replace(layers=layers), (0,) * layers
    assert zebra_seconds(problem, Step(5, backward=0.0), nothing) == pytest.approx(3 + layers * 5 * 4)
    slow = problem._replace(attention_s=5.0)
    assert zebra_seconds(slow, Step(5, backward=0.0), nothing) == pytest.approx(layers * 5 * 5 + 4)


def test_an_empty_moved_block_would_delay_every_combine() -> None:
    """The first combine of a layer would wait for its last attention, at 16 s, and the next layer for this combine."""
    problem, step = AssignmentProblem(6, 2, 1, 1, 4.0, 1.0, 1.0), Step(4, 0.5, 0.5, backward=0.0)
    assert zebra_seconds(problem, step, (0, 0)) == pytest.approx(8 * 4 + 0.5 + 1 + 0.5)
    blocks = zebra_blocks(problem, step, [True, True])
    assert max(each.end_s for each in replay(blocks, (0, 0))) == pytest.approx(8 * 4 + 0.5 + 1 + 0.5 + 0.5)
    assert milp_assignment(problem, step).seconds_s == pytest.approx(8 * 4 + 0.5 + 1 + 0.5)


def test_one_micro_batch_passes_in_sequence() -> None:
    """Attention 3, dispatch 1, experts 4 x 5/6 beside 0.53 of moved work, combine 2; head 5 and 6; the same back x3."""
    problem = FIGURE_6._replace(layers=1)
    expected = 3 + 1 + 4 * 5 / 6 + 2 + 5 + 6 + 2 + 3 * 4 * 5 / 6 + 1 + 3 * 3
    assert zebra_seconds(problem, Step(1, 1.0, 2.0, 5.0, 6.0), (1,)) == pytest.approx(expected)


# ---------------------------------------------------------------- the optimum


def test_the_best_forward_pass_of_figure_6_moves_most_in_the_last_layer() -> None:
    """Behind it the attention devices have nothing to do: 3 s until the experts start, then 12, 10 and 8 s."""
    for best in (exact_assignment(FIGURE_6, FORWARD), milp_assignment(FIGURE_6, FORWARD)):
        assert (best.moved, best.proven) == ((0, 1, 2), True)
        assert best.seconds_s == pytest.approx(33.0)
        assert best.bound_s == pytest.approx(33.0)


@pytest.mark.parametrize("transfer", [0.0, 0.16])
@pytest.mark.parametrize(("length", "layers"), [(4096, 4), (8192, 4)])
def test_both_ways_find_the_same_optimum_for_d1(length: int, layers: int, transfer: float) -> None:
    problem = d1(d1_ratio(length))._replace(layers=layers)
    step = Step(3, transfer, transfer, 1.45, 2.9)
    exact, milp = exact_assignment(problem, step), milp_assignment(problem, step)
    assert milp.proven
    assert milp.seconds_s == pytest.approx(exact.seconds_s, rel=1e-6)
    assert 0.0 < assignment_gap(problem, step).gap < 0.15


def test_a_programme_that_presolve_gets_wrong_with_tighter_bounds_on_starts() -> None:
    """Bounds on the starts of blocks, though valid, make HiGHS (scipy 1.17) return (0, 0, 0, 3) here as optimal."""
    problem = AssignmentProblem(9, 4, 3, 1, 1.6467850873772398, 1.9013145809478917, 1.8765217106472751, 3, 3, 9)
    step = Step(4, 0.1580737232278786, 0.1085175911356433, 0.6440741096168668, 1.9680756894538731, 2.0, 1.5, 2.5)
    assert milp_assignment(problem, step).moved == exact_assignment(problem, step).moved == (0, 0, 3, 0)


def test_a_solver_that_ran_out_of_nodes_says_so_and_is_no_worse_than_greedy() -> None:
    problem, step = d1(d1_ratio(4096)), Step(4, 0.16, 0.16, backward=0.0)
    best = milp_assignment(problem, step, nodes=1)
    assert not best.proven
    assert best.bound_s <= best.seconds_s <= zebra_seconds(problem, step, gather_and_squeeze(problem).moved)


def test_bounds_bind_the_optimum() -> None:
    problem = FIGURE_6._replace(most_moved=1)
    for best in (exact_assignment(problem, FORWARD), milp_assignment(problem, FORWARD)):
        assert sum(best.moved) == 1
    problem = FIGURE_6._replace(attention_s=9.0, least_moved=2)
    for best in (exact_assignment(problem, FORWARD), milp_assignment(problem, FORWARD)):
        assert sum(best.moved) == 2


def test_any_judge_may_choose() -> None:
    best = exact_assignment(FIGURE_6, FORWARD, lambda moved: abs(moved[0] - 2) + moved[1] + abs(moved[2] - 1))
    assert (best.moved, best.seconds_s, best.tried) == ((2, 0, 1), 0, 6**3)


def test_of_equally_good_ones_the_one_that_moves_least_and_latest() -> None:
    assert exact_assignment(FIGURE_6, FORWARD, lambda moved: float(sum(moved) < 2)).moved == (0, 0, 2)


def test_too_many_to_try_is_said_before_trying() -> None:
    with pytest.raises(SpecError, match="5764801 assignments are more than the 100000"):
        exact_assignment(d1(0.5)._replace(experts=42, layers=8), FORWARD)


def test_a_missing_solver_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(SpecError, match=r"pip install 'simmoe\[plan\]'"):
        milp_assignment(FIGURE_6, FORWARD)
    assert assignment_gap(FIGURE_6, FORWARD).gap > 0.0
