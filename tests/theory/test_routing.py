"""Loads of experts and ranks against their definitions, hand-solved cases and measured costs of imbalance."""

import math
import statistics
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from simmoe.cost.device import device_of, kernel_time
from simmoe.cost.groups import GroupShape
from simmoe.cost.loads import Loads, busiest_ports, draw_loads, group_loads, rows_in_flight
from simmoe.cost.operators import GroupedGemm, MemoryBound
from simmoe.cost.placement import copy_counts, place_experts
from simmoe.cost.routing import (
    busiest,
    capped_shares,
    drop_fraction,
    exchange_factor,
    exchange_matrix,
    expert_shares,
    gini,
    kept_shares,
    rank_loads,
)
from simmoe.cost.shard import shard_of
from simmoe.specs import catalog
from simmoe.specs.model import MoE
from simmoe.specs.routing import ExpertCounts, LayerCounts
from simmoe.specs.workload import Precision, Routing
from tests.scenarios import small

MOE = MoE(num_experts=128, top_k=8, moe_ffn_hidden_size=1536)
TOKENS = 32768.0
KINDS = {
    "zipf": Routing(kind="zipf", exponent=0.8),
    "power_law": Routing(kind="power_law", exponent=1.2),
    "dirichlet": Routing(kind="dirichlet", concentration=5.0),
}


def shares(routing: Routing, layer: int = 0, micro_batch: int = 0, moe: MoE = MOE) -> np.ndarray:
    return expert_shares(routing, moe, TOKENS, layer, micro_batch)


def loads_of(ranks: list[list[float]]) -> Loads:
    """The loads of one layer, a row of ranks for each micro-batch; one expert a rank."""
    held = np.array([ranks])
    return Loads(np.ones(held.shape[:2]), held, held[..., None])


def counts(*layers: tuple[int, tuple[tuple[int, ...], ...]]) -> ExpertCounts:
    return ExpertCounts(layers=tuple(LayerCounts(layer=layer, samples=samples) for layer, samples in layers))


# ---------------------------------------------------------------- shares of experts


@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_a_distribution_in_which_no_token_visits_an_expert_twice(kind):
    for layer in range(20):
        found = shares(KINDS[kind], layer)
        assert found.sum() == pytest.approx(1.0, rel=1e-12)
        assert found.min() >= 0.0
        assert found.max() <= (1.0 + 1e-12) / MOE.top_k


@pytest.mark.parametrize("kind", KINDS)
def test_draws_depend_on_seed_layer_and_micro_batch_and_on_nothing_else(kind):
    routing = KINDS[kind]
    np.random.seed(1)  # noqa: NPY002 - the global generator must not matter
    first = shares(routing, 3, 5)
    np.random.seed(2)  # noqa: NPY002
    assert (shares(routing, 3, 5) == first).all()
    assert not (shares(routing, 3, 6) == first).all()
    assert not (shares(routing, 4, 5) == first).all()
    assert not (shares(routing.model_copy(update={"seed": 1}), 3, 5) == first).all()
    a_step = routing.model_copy(update={"resample": "step"})
    assert (shares(a_step, 3, 5) == shares(a_step, 3, 6)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_does_not_depend_on_how_many_are_drawn(kind):
    few = draw_loads(KINDS[kind], MOE, 8, TOKENS, layers=2, micro_batches=3)
    many = draw_loads(KINDS[kind], MOE, 8, TOKENS, layers=4, micro_batches=9)
    assert (many.ranks[:2, :3] == few.ranks).all()


def test_zipf_is_by_rank():
    """Below the limit of 1 / top_k, share i over share 1 is i ** -a."""
    found = np.sort(shares(Routing(kind="zipf", exponent=0.5)))[::-1]
    assert found / found[0] == pytest.approx(np.arange(1, 129) ** -0.5)


def test_zipf_of_exponent_0_is_even():
    assert shares(Routing(kind="zipf", exponent=0.0)) == pytest.approx(np.full(128, 1 / 128))


@pytest.mark.parametrize("concentration", [0.5, 2.0, 5.0, 20.0])
def test_dirichlet_has_the_gini_coefficient_of_gamma_variates(concentration):
    """Expectation Gamma(c + 1/2) / (sqrt(pi) Gamma(c + 1)): 0.64, 0.375, 0.246, 0.126. Some shares meet the limit."""
    expected = math.gamma(concentration + 0.5) / (math.sqrt(math.pi) * math.gamma(concentration + 1))
    routing = Routing(kind="dirichlet", concentration=concentration)
    actual = statistics.mean(gini(shares(routing, layer)) for layer in range(60))
    assert actual == pytest.approx(expected, rel=0.02)


def test_counts_are_taken_as_they_were_measured():
    moe = MoE(num_experts=4, top_k=1, moe_ffn_hidden_size=1)
    measured = counts((1, ((3, 1), (0, 2))), (5, ((1, 1, 1, 1),)))
    routing = Routing(kind="counts", counts=measured)
    assert shares(routing, 1, 0, moe).tolist() == [0.75, 0.25, 0.0, 0.0]
    assert shares(routing, 1, 1, moe).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert shares(routing, 1, 2, moe).tolist() == [0.75, 0.25, 0.0, 0.0]  # samples in turn
    assert shares(routing, 5, 7, moe).tolist() == [0.25] * 4
    assert shares(routing, 2, 0, moe).tolist() == [0.75, 0.25, 0.0, 0.0]  # layer 2 takes the first of two
    whole = routing.model_copy(update={"resample": "step"})
    assert shares(whole, 1, 1, moe).tolist() == [0.5, 0.5, 0.0, 0.0]


def test_what_is_over_the_limit_goes_to_the_others_in_proportion():
    assert capped_shares(np.array([8.0, 4.0, 2.0, 2.0]), 0.4) == pytest.approx([0.4, 0.3, 0.15, 0.15])
    assert capped_shares(np.array([8.0, 7.0, 1.0, 0.0]), 0.4) == pytest.approx([0.4, 0.4, 0.2, 0.0])
    assert capped_shares(np.array([1.0, 0.0, 0.0]), 0.5) == pytest.approx([0.5, 0.25, 0.25])
    assert capped_shares(np.array([[1.0, 1.0], [3.0, 1.0]]), 0.5) == pytest.approx(np.full((2, 2), 0.5))


def literal_power_law(rng, tokens: int, experts: int, top_k: int, exponent: float) -> np.ndarray:
    """Whole-number loads as aiconfigurator@095f58a describes them: drawn, scaled, rounded, limited to one a token, and
    the difference to tokens x top_k dealt out one by one to the smallest or taken from the largest.
    """
    low, high, power = 1.0, 0.8 * tokens, 1.0 - exponent
    drawn = (low**power + rng.random(experts) * (high**power - low**power)) ** (1.0 / power)
    loads = np.minimum(np.rint(drawn / drawn.sum() * tokens * top_k), tokens)
    while (missing := tokens * top_k - loads.sum()) != 0:
        part = min(experts, int(abs(missing)))
        order = np.argsort(loads)
        chosen = order[:part] if missing > 0 else order[-part:]
        loads[chosen] += np.sign(missing)
        loads = np.minimum(loads, tokens)
    return loads


@pytest.mark.parametrize(("exponent", "ranks"), [(1.01, 8), (1.2, 8), (1.2, 32)])
def test_power_law_loads_the_busiest_rank_as_aiconfigurator_does(exponent, ranks):
    """Mean over 400 draws; what is over one copy a token is dealt out differently, hence not exactly."""
    rng = np.random.default_rng(7)
    literal = np.array([literal_power_law(rng, 8192, 128, 8, exponent) for _ in range(400)])
    expected = rank_loads(literal, ranks).max(axis=-1).mean()
    ours = draw_loads(Routing(kind="power_law", exponent=exponent), MOE, ranks, 8192.0, 20, 20)
    assert ours.ranks.max(axis=-1).mean() == pytest.approx(expected, rel=0.04)


# ---------------------------------------------------------------- ranks, exchanges, capacity


def test_ranks_hold_experts_in_order():
    found = rank_loads(np.array([[4.0, 2.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]) / 8.0, 2)
    assert found == pytest.approx(np.array([[1.5, 0.5], [1.0, 1.0]]))


@pytest.mark.parametrize("ranks", [2, 4, 16, 64])
def test_the_exchange_takes_as_long_as_its_busiest_port(ranks):
    """Sums over rows and columns of the matrix without its diagonal, against the balanced all-to-all."""
    for layer in range(10):
        loads = rank_loads(shares(KINDS["power_law"], layer), ranks)
        moved = exchange_matrix(loads)
        assert moved.sum() == pytest.approx(1.0)
        assert moved.sum(axis=0) * ranks == pytest.approx(loads)
        np.fill_diagonal(moved, 0.0)
        busiest_port = max(moved.sum(axis=0).max(), moved.sum(axis=1).max())
        balanced = (ranks - 1) / ranks**2
        assert exchange_factor(loads) == pytest.approx(busiest_port / balanced)


def test_balanced_ranks_have_no_busiest_one():
    assert exchange_factor(np.ones(64)) == 1.0
    assert exchange_factor(np.ones(1)) == 1.0


def test_a_domain_is_as_busy_as_its_ranks_together():
    """8 ranks in 2 nodes; the second node has the busiest rank and is itself less busy than the first."""
    loads = loads_of([[1.2, 1.2, 1.2, 1.2, 1.6, 0.8, 0.4, 0.4]])
    found = busiest_ports(loads, GroupShape(8, 4, 2))
    assert [float(part[0, 0]) for part in found] == pytest.approx([1.6, 1.2])
    assert busiest_ports(loads, GroupShape(8, 8, 1)).domain[0, 0] == 1.0
    assert busiest_ports(loads, GroupShape(8, 5, 2)).domain[0, 0] == pytest.approx(1.6)  # unequal: an upper bound


def test_deduplicated_traffic_saturates_at_every_token_once():
    """A place visited by half of the tokens takes at most all of them, however busy."""
    assert busiest(4.0, 8, 1.0) == 4.0
    assert busiest(4.0, 8, 1e9) == 8.0
    rng = np.random.default_rng(3)  # 4 picks with replacement, one of 8 places 2.5 times as likely as 1/8
    chance = np.r_[2.5 / 8, np.full(7, (1 - 2.5 / 8) / 7)]
    picks = rng.choice(8, size=(40_000, 4), p=chance)
    visited = 8 * (1 - (1 - 1 / 8) ** 4)
    assert busiest(visited, 8, 2.5) == pytest.approx(8 * (picks == 0).any(axis=1).mean(), rel=0.06)


def test_tokens_over_the_capacity_are_dropped():
    routed = np.array([0.5, 0.25, 0.125, 0.125])
    assert kept_shares(routed, 1.0).tolist() == [0.25, 0.25, 0.125, 0.125]
    assert drop_fraction(routed, 1.0) == pytest.approx(0.25)
    assert drop_fraction(routed, 1.6) == pytest.approx(0.1)
    assert drop_fraction(routed, 2.0) == 0.0
    assert drop_fraction(routed, None) == 0.0


def test_a_capacity_bounds_the_busiest_rank():
    """A rank keeps at most the capacity of its experts; `sent` and `ranks` together are the rows."""
    routing = KINDS["power_law"].model_copy(update={"capacity_factor": 1.25})
    loads = draw_loads(routing, MOE, 8, TOKENS, 6, 4)
    rows = loads.sent[..., None] * loads.ranks
    assert rows.max() <= 1.25 + 1e-12
    free = draw_loads(KINDS["power_law"], MOE, 8, TOKENS, 6, 4)
    dropped = 1.0 - loads.sent[2, 3]
    assert dropped == pytest.approx(drop_fraction(shares(KINDS["power_law"], 2, 3), 1.25))
    assert (free.sent == 1.0).all()


def test_one_expert_a_rank_without_skew_is_balanced():
    loads = draw_loads(Routing(kind="zipf", exponent=0.0), MOE, 128, TOKENS, 2, 2)
    assert loads.ranks == pytest.approx(np.ones((2, 2, 128)))


# ---------------------------------------------------------------- copies of experts


def test_extra_slots_go_to_the_most_loaded_copies():
    """0.5 -> 0.25 each, then 0.3 -> 0.15 each, then 0.25 -> 0.167 each."""
    assert copy_counts(np.array([0.5, 0.3, 0.1, 0.1]), 3, most=4).tolist() == [3, 2, 1, 1]
    assert copy_counts(np.array([0.9, 0.1]), 2, most=2).tolist() == [2, 2]


@pytest.mark.parametrize("replicas", [0, 1, 2, 4])
def test_every_token_finds_its_expert(replicas):
    for layer in range(5):
        placed = place_experts(shares(KINDS["zipf"], layer), 8, replicas)
        assert placed.sum(axis=0) == pytest.approx(np.ones(128))
        assert (np.count_nonzero(placed, axis=1) <= 16 + replicas).all()


def test_copies_even_out_what_stays_and_not_what_changes():
    """Skew that holds for the step nearly vanishes with two copies a rank; redrawn each micro-batch it hardly moves."""
    zipf = Routing(kind="zipf", exponent=0.8)
    without, with_copies, redrawn = (
        draw_loads(zipf.model_copy(update=change), MOE, 8, TOKENS, 10, 16).ranks.max(axis=-1).mean()
        for change in (
            {"resample": "step"},
            {"resample": "step", "expert_replicas": 2},
            {"expert_replicas": 2},
        )
    )
    assert without > 1.5
    assert with_copies < 1.02
    assert redrawn > 1.4


def test_longest_first_meets_grahams_bound():
    """At most 4/3 - 1/(3m) of the best; exhaustive search over 8 experts on 2 ranks of 4."""
    best = {}
    for layer in range(20):
        routed = expert_shares(KINDS["zipf"], MoE(num_experts=8, top_k=1, moe_ffn_hidden_size=1), TOKENS, layer)
        placed = rank_loads(routed, 2, place_experts(routed, 2, 0)).max()
        best = min(
            max(part, 1.0 - part)
            for chosen in product((0, 1), repeat=8)
            if sum(chosen) == 4
            for part in [float(np.dot(chosen, routed))]
        )
        assert placed / 2.0 <= best * (4 / 3 - 1 / 6) + 1e-12


# ---------------------------------------------------------------- memory of the worst rank


def test_rows_in_flight_are_those_of_the_worst_window():
    """Rank 0 over four micro-batches: 2, 1, 0, 1; rank 1: 0, 1, 2, 1. Three in flight: at worst (1 + 2 + 1) / 3."""
    loads = loads_of([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 1.0]])
    found = [rows_in_flight(loads, [0], alive) for alive in (1, 2, 3, 4, 9)]
    assert found == pytest.approx([2.0, 1.5, 4 / 3, 1.0, 1.0])
    assert rows_in_flight(loads, [], 2) == 1.0


def test_the_tokens_of_a_group_are_those_of_all_its_ranks():
    """Under tensor parallelism the group sees as many tokens as its ranks have between them."""
    scenario = small("plan.tensor_parallel=2", "routing={kind: power_law, exponent: 1.2}")
    shard = shard_of(scenario.plan.stages[0], scenario.plan, scenario.training, scenario.routing)
    loads = group_loads(scenario.routing, scenario.model, shard, 16)
    assert shard.local_tokens == 2048
    assert loads is draw_loads(scenario.routing, scenario.model.moe, 8, 8 * 2048.0, 8, 16)


# ---------------------------------------------------------------- measured costs of imbalance

# Median time of the most loaded rank over the balanced time, by expert-parallel size 1, 2, 4, ... 256; 16-bit experts
# in TensorRT-LLM's CUTLASS kernels with power-law loads, 10^3 to 5 x 10^3 shapes a line: aiconfigurator@095f58a,
# systems/data/{h100_sxm,b200_sxm}/moe/trtllm/1.3.0rc20/moe_perf. Key: part, exponent, least tokens an expert.
MEASURED = {
    ("h100-sxm5-80gb", 1.01, 64): (1.10, 1.16, 1.28, 1.41, 1.54, 1.71, 1.99, 2.26, 2.27),
    ("h100-sxm5-80gb", 1.01, 512): (1.08, 1.25, 1.50, 1.67, 1.81, 2.13, 2.58, 3.28, 3.64),
    ("h100-sxm5-80gb", 1.2, 64): (1.12, 1.22, 1.38, 1.62, 1.79, 2.18, 2.60, 3.17, 3.56),
    ("h100-sxm5-80gb", 1.2, 512): (1.09, 1.35, 1.74, 2.16, 2.23, 2.86, 3.66, 4.93, 6.53),
    ("b200", 1.01, 64): (1.05, 1.13, 1.23, 1.33, 1.40, 1.48, 1.58, 1.63, 1.53),
    ("b200", 1.2, 512): (1.04, 1.24, 1.52, 1.84, 2.02, 2.34, 2.90, 3.72, 4.02),
}
SHAPES = (  # hidden, width of an expert, matrices of an expert, top_k, experts of the models measured
    (2048, 512, 3, 8, 256), (2048, 768, 3, 8, 128), (2816, 704, 3, 8, 128), (3072, 1024, 3, 8, 256),
    (4096, 1024, 3, 10, 512), (4096, 1536, 3, 8, 128), (4096, 2048, 3, 8, 256), (4096, 14336, 3, 2, 8),
    (5120, 8192, 3, 1, 16), (5120, 8192, 3, 1, 128), (6144, 2048, 3, 8, 256), (6144, 2560, 3, 8, 160),
    (6144, 3072, 3, 4, 128), (6144, 16384, 3, 2, 8), (2048, 5120, 2, 22, 512), (2688, 1856, 2, 6, 128),
    (8192, 5120, 2, 22, 512),
)  # fmt: skip
DRAWS = 16
BATCHES = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)


def widths(ffn: int, ranks: int) -> list[int]:
    """Widths of an expert's slice under the tensor-parallel sizes measured."""
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size * ranks <= 256 and ffn % (16 * size) == 0]
    return [ffn // size for size in sizes]


def by_expert(work: GroupedGemm, seconds: Callable[[GroupedGemm], float]) -> Callable[[np.ndarray], np.ndarray]:
    """The time of a grouped GEMM by the rows of its experts (last axis): for each the larger of two straight lines."""
    alone = {rows: seconds(work._replace(groups=1, tokens=rows)) for rows in (0.5, 1.0, 1e6, 2e6)}
    launch = 2 * alone[0.5] - seconds(work._replace(groups=2, tokens=0.5))
    weights, arithmetic = 2 * (alone[1.0] - alone[0.5]), (alone[2e6] - alone[1e6]) / 1e6

    def total(rows: np.ndarray) -> np.ndarray:
        lines = alone[0.5] + weights * (rows - 0.5), alone[1e6] + arithmetic * (rows - 1e6)
        return launch + np.where(rows < 0.5, 0.0, np.maximum(*lines) - launch).sum(axis=-1)

    return total


def imbalance_costs(part: str, exponent: float, least: int) -> dict[int, float]:
    """Median cost of imbalance for each expert-parallel size, over the shapes and batches that were measured."""
    device = device_of(catalog.accelerator(part))
    stack = catalog.software("megatron-core-2025").model_copy(update={"grouped_gemm": "trtllm"})  # as measured
    found: dict[int, list[float]] = {2**power: [] for power in range(9)}

    def seconds(work: GroupedGemm | MemoryBound) -> float:
        return kernel_time(work, device, Precision.BF16, stack)

    for hidden, ffn, matrices, top_k, experts in SHAPES:
        moe = MoE(num_experts=experts, top_k=top_k, moe_ffn_hidden_size=ffn)
        kernels = {
            width: (
                by_expert(GroupedGemm(1, 1.0, (matrices - 1) * width, hidden), seconds),
                by_expert(GroupedGemm(1, 1.0, hidden, width), seconds),
            )
            for width in widths(ffn, 1)
        }
        for tokens, ranks in product(BATCHES, found):
            if tokens * top_k / experts < least or experts % ranks:
                continue
            loads = draw_loads(Routing(kind="power_law", exponent=exponent), moe, ranks, float(tokens), 1, DRAWS)
            even = np.full((1, experts // ranks), tokens * top_k / experts)
            worst = loads.slots[0, np.arange(DRAWS), loads.ranks[0].argmax(axis=-1)] * even.sum()
            for width in widths(ffn, ranks):
                up, down = kernels[width]
                costs = [up(rows) + down(rows) + activation(seconds, matrices * width, rows) for rows in (worst, even)]
                found[ranks].append(float(np.median(costs[0]) / costs[1][0]))
    return {ranks: statistics.median(costs) for ranks, costs in found.items() if costs}


def activation(seconds: Callable[[MemoryBound], float], columns: int, rows: np.ndarray) -> np.ndarray:
    """The time of the activation between the products of a rank."""
    return np.array([seconds(MemoryBound("elementwise", 2.0 * columns * total)) for total in rows.sum(axis=-1)])


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_the_cost_of_imbalance_is_the_measured_one(case):
    """No number is fitted to these: the loads are drawn, the kernels have the shipped parameters.

    Each expert-parallel size up to 128 is met within 17 %, their median within 6 %: 1, what uneven experts cost inside
    one GPU, within 5 %. 256 is left out: of few shapes and single draws, with one expert a rank, and ours is up to
    1.9 times the measured. The rates are those of a long step; at those of the benchmark itself the experts with few
    tokens wait for their weights longer than measured, and imbalance costs up to 19 % too little.
    """
    predicted, measured = imbalance_costs(*case), MEASURED[case]
    errors = [found / known - 1.0 for found, known in zip(predicted.values(), measured, strict=True)][:-1]
    assert statistics.median(abs(error) for error in errors) < 0.06, errors
    assert max(abs(error) for error in errors) < 0.17, errors
    assert abs(errors[0]) < 0.05, errors
