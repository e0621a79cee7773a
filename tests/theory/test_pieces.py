"""Expert exchanges in pieces: closed forms, what must not change, skew, and what the host launches."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simmoe.cost.layers import layer_operators
from simmoe.cost.operators import Gemm, Operator
from simmoe.engine.simulate import simulate
from simmoe.errors import InternalError
from simmoe.graph.build import build_step
from simmoe.graph.host import host_times
from simmoe.graph.passes import Pass, backward_pass, forward_pass
from simmoe.graph.pieces import one_piece, share_of
from simmoe.graph.stage_settings import stage_settings
from simmoe.pipeline import run
from simmoe.specs.plan import Chunk
from simmoe.specs.scenario import Scenario
from tests.command_line import in_folder
from tests.graphs import Row, graph_of
from tests.scenarios import small
from tests.theory import test_skew
from tests.theory.test_skew import makespan, unfolded

EXAMPLES = Path(__file__).parents[2] / "scenarios" / "examples"
ONE_LAYER = Chunk(first_layer=0, layers=1)
NO_HOST = "plan.cuda_graph_scope=[full_iteration]"
ONE_STAGE = ("plan.pipeline_parallel=1", "model.num_layers=4", "training.global_batch_size=32")
UNEVEN = "routing={kind: power_law, exponent: 1.2}"
ZIPF = "routing={kind: zipf, exponent: 0.7}"


def pieces(degree: int) -> str:
    return f"plan.a2a_ffn_overlap_degree={degree}"


def layer_pass(degree: int, *, backward: bool = False) -> Pass:
    """The pass of a micro-batch through one MoE layer."""
    scenario = small(pieces(degree), NO_HOST)
    found = stage_settings(scenario, scenario.plan.stages[0])
    return (backward_pass if backward else forward_pass)(ONE_LAYER, found)


def seconds_of(passed: Pass, whole: dict[str, float], degree: int) -> float:
    """When a pass ends whose operators take the times of their names, those of a piece their share, others none."""
    times = {name: seconds / degree for name, seconds in whole.items()}
    steps = [(step.operator, step.after) for step in passed.steps]
    rows = [Row(times.get(one.name, 0.0), one.stream, after, name=one.name) for one, after in steps]
    return float(simulate(graph_of(rows)).makespan)


def closed_form(out: float, work: float, back: float, n: int) -> float:
    """Expectation: the longest of all exchanges, and of every chain that changes streams after pieces i and j."""
    d, w, c = out / n, work / n, back / n
    chains = (i * d + (j - i + 1) * w + (n - j + 1) * c for j in range(1, n + 1) for i in range(1, j + 1))
    return max(out + back, *chains)


# ---------------------------------------------------------------- theory


@pytest.mark.parametrize(
    ("degree", "out", "work", "back", "expected"),
    [
        (1, 6.0, 12.0, 6.0, 24.0),  # one after another
        (2, 6.0, 12.0, 6.0, 18.0),  # 3 + 12 + 3
        (3, 6.0, 12.0, 6.0, 16.0),  # 2 + 12 + 2
        (3, 12.0, 3.0, 12.0, 24.0),  # the exchanges alone: pieces of 4, 1 and 4
        (2, 4.0, 2.0, 10.0, 14.0),  # both dispatches, then both combines: the first product ends beneath them
        (2, 2.0, 8.0, 10.0, 15.0),  # 1 + 4 + 10: the first combine waits for the first product
    ],
)
def test_a_layer_takes_what_its_streams_leave(degree, out, work, back, expected):
    """Worked by hand, all else for free."""
    times = {"moe.dispatch": out, "moe.expert_up": work, "moe.combine": back}
    assert seconds_of(layer_pass(degree), times, degree) == pytest.approx(expected)
    assert closed_form(out, work, back, degree) == pytest.approx(expected)


PASSES = {(degree, late): layer_pass(degree, backward=late) for degree in (1, 2, 4) for late in (False, True)}
SECONDS = st.floats(0.0, 100.0)


@settings(deadline=None, max_examples=40)
@given(SECONDS, SECONDS, SECONDS, st.sampled_from((1, 2, 4)))
def test_both_passes_follow_the_closed_form(out, work, back, degree):
    """In backward, gradients of results go out, both gradients of an expert are work, those of tokens come back."""
    exchanges = {"moe.dispatch": out, "moe.combine": back}
    found = seconds_of(PASSES[degree, False], exchanges | {"moe.expert_down": work}, degree)
    assert found == pytest.approx(closed_form(out, work, back, degree), abs=1e-9)
    half = {"moe.expert_down.dgrad": 0.5 * work, "moe.expert_up.wgrad": 0.5 * work}
    found = seconds_of(PASSES[degree, True], exchanges | half, degree)
    assert found == pytest.approx(closed_form(back, work, out, degree), abs=1e-9)


def test_exchanges_are_issued_as_tutel_issues_them():
    """All that go out, then all that come back; work in the order of the pieces."""
    steps = layer_pass(3).steps
    exchanges = [step.operator.name for step in steps if step.operator.stream == "ep"]
    assert exchanges == ["moe.dispatch"] * 3 + ["moe.combine"] * 3
    late = [step.operator.name for step in layer_pass(3, backward=True).steps if step.operator.stream == "ep"]
    assert late == ["moe.combine"] * 3 + ["moe.dispatch"] * 3
    products = [step.operator.name for step in steps if step.operator.category == "grouped_gemm"]
    assert products == ["moe.expert_up", "moe.expert_down"] * 3
    assert sum(step.operator.name == "moe.permute" for step in steps) == 1


# ---------------------------------------------------------------- laws


@settings(deadline=None, max_examples=40)
@given(SECONDS, SECONDS, SECONDS, st.booleans())
def test_more_pieces_never_expose_more_of_exchanges_without_latency(out, work, back, late):
    times = {"moe.dispatch": out, "moe.expert_up.dgrad" if late else "moe.expert_up": work, "moe.combine": back}
    exposed = [seconds_of(PASSES[degree, late], times, degree) - work for degree in (1, 2, 4)]
    assert exposed[0] + 1e-9 >= exposed[1]
    assert exposed[1] + 1e-9 >= exposed[2]
    assert exposed[0] == pytest.approx(out + back, abs=1e-9)


PLANS = [
    (),
    ("plan.pipeline_parallel=1", "plan.expert_parallel=4", "plan.expert_tensor_parallel=2"),
    ("plan.recompute=full",),
    ("plan.recompute={granularity: selective, modules: [moe]}",),
    ("plan.recompute={granularity: selective, modules: [moe_act]}",),
    ("plan.schedule=zb-h1",),
    ("plan.overlap_dispatch_backward_with_experts_wgrad=true",),
    ("plan.pipeline_parallel=1", "plan.sharding=zero3"),
    ("model=deepseek-v2-lite", "plan.stage_layers=[14, 13]"),
    ("model=gpt-oss-20b", "plan.expert_parallel=4"),
    ("training.precision=mxfp8", "cluster.groups.0.node=dgx-b200"),
]


def totals(*overrides: str) -> dict[tuple[str, str, str], np.ndarray]:
    """FLOPs and bytes of all tasks of a step, by name, phase and stream."""
    graph = build_step(small(*overrides)).graph
    found: Counter[tuple[str, str, str]] = Counter()
    for number, count in enumerate(np.bincount(graph.operation, minlength=len(graph.operations)).tolist()):
        one = graph.operations[number]
        found[one.name, one.phase, "FLOP"] += one.flops * count
        found[one.name, one.phase, "B"] += one.bytes * count
    return dict(found)


@pytest.mark.parametrize("overrides", PLANS, ids=str)
def test_pieces_do_the_same_work(overrides):
    """Expectation: FLOPs and bytes of every operator in every phase are those of whole exchanges; nothing is new."""
    assert totals(*overrides, pieces(3)) == pytest.approx(totals(*overrides), rel=1e-12)


def test_what_is_recomputed_alone_is_recomputed_in_pieces():
    scenario = small(pieces(3), "plan.recompute={granularity: selective, modules: [moe_act]}")
    steps = backward_pass(ONE_LAYER, stage_settings(scenario, scenario.plan.stages[0])).steps
    again = [step.operator for step in steps if step.phase == "recompute"]
    assert again == [share_of(one, 1 / 3) for one in moe_activation(scenario)] * 3


def moe_activation(scenario: Scenario) -> list[Operator]:
    """The activation of the experts of a rank."""
    found = stage_settings(scenario, scenario.plan.stages[0])
    return [one for one in layer_operators(found.model, found.shard, 0) if one.name == "moe.activation"]


@pytest.mark.parametrize("overrides", PLANS[:2], ids=str)
def test_pieces_hide_exchanges(overrides):
    whole, cut = (run(small(NO_HOST, *overrides, pieces(degree))).metrics for degree in (1, 2))
    exposed = [found.exposed_by_collective_s["all_to_all"] for found in (whole, cut)]
    assert 0.4 * exposed[0] < exposed[1] < 0.7 * exposed[0]


def test_one_piece_is_the_plan_as_it_was():
    one, plain = build_step(small(pieces(1))).graph, build_step(small()).graph
    assert one.operations == plain.operations
    assert (one.duration == plain.duration).all()
    assert (one.predecessor == plain.predecessor).all()


def test_launches_and_weights_are_paid_for_each_piece():
    """Expectation: products of a piece take more than their share of the whole, for their launch and their fill."""

    def products(degree: int) -> float:
        graph = build_step(small(pieces(degree))).graph
        chosen = np.array([one.category == "grouped_gemm" for one in graph.operations])[graph.operation]
        return float(graph.duration[chosen].sum())

    assert products(1) < products(2) < products(8)


def test_a_product_without_tokens_of_its_own_is_not_shared():
    with pytest.raises(InternalError, match="no share"):
        share_of(Operator("mlp.up", "gemm", Gemm(8, 4, 2)), 0.5)


# ---------------------------------------------------------------- skew


def times_of(name: str, *overrides: str) -> dict[tuple[int, int, str], set[float]]:
    """The times of the tasks of a name by layer, micro-batch and phase."""
    graph = build_step(small(*overrides)).graph
    found: dict[tuple[int, int, str], set[float]] = {}
    for task in range(len(graph)):
        one = graph.operations[graph.operation[task]]
        if one.name == name:
            key = (int(graph.layer[task]), int(graph.micro_batch[task]), one.phase)
            found.setdefault(key, set()).add(float(graph.duration[task]))
    return found


@pytest.mark.parametrize("name", ["moe.dispatch", "moe.expert_up", "moe.expert_down.wgrad", "moe.activation"])
def test_a_piece_of_a_loaded_rank_is_a_smaller_micro_batch_of_it(name):
    """Half of two sequences takes what one sequence does: the shares of Zipf do not depend on their number."""
    act = "plan.recompute={granularity: selective, modules: [moe_act]}"
    halves = times_of(name, ZIPF, act, pieces(2), "training.micro_batch_size=2")
    whole = times_of(name, ZIPF, act, "training.global_batch_size=32")
    assert halves.keys() == whole.keys()
    for key, seconds in whole.items():
        assert len(halves[key]) == 1
        assert max(halves[key]) == pytest.approx(max(seconds), rel=1e-9)


@pytest.mark.parametrize("overrides", [(), ("plan.recompute=full",), ("plan.expert_parallel=4",)], ids=str)
def test_folded_is_unfolded_with_pieces(overrides, monkeypatch):
    """Eight ranks of unequal work in pieces end when one class with the work of the slowest does."""
    whole = test_skew.moe_layer
    monkeypatch.setattr(test_skew, "moe_layer", lambda model, shard: one_piece(whole(model, shard), 3))
    shape = ("cluster.groups.0.count=1", *ONE_STAGE, *overrides, pieces(3))
    scenario, balanced = small(*shape, UNEVEN), small(*shape)
    folded = makespan(build_step(scenario))
    assert folded == pytest.approx(makespan(unfolded(scenario, balanced)), rel=1e-9)
    assert folded > 1.1 * makespan(build_step(balanced))


# ---------------------------------------------------------------- unlike devices


def test_unlike_devices_wait_for_each_other_piece_by_piece():
    """Expectation: each device on its own ends as one class a kind does; the slower one hides the exchanges."""
    unlike = (
        "cluster.groups=[{node: dgx-h100, count: 1}, {node: dgx-a100-80gb, count: 1}]",
        "cluster.cross_group={link: ethernet-100}",
        "plan.expert_parallel=8",
        "plan.expert_tensor_parallel=2",
        *ONE_STAGE,
    )
    whole, cut = small(*unlike), small(*unlike, pieces(2))
    assert len(build_step(cut).ranks) == 2
    assert makespan(build_step(cut)) == makespan(build_step(cut, fold=False))
    assert makespan(build_step(cut)) < makespan(build_step(whole))


# ---------------------------------------------------------------- the host


def test_the_host_launches_every_piece():
    """Expectation: dispatch, experts and combine are launched once for each, the router and attention once."""
    times = []
    for degree in (1, 4):
        scenario = small(pieces(degree))
        times.append(host_times(scenario, scenario.plan.stages[0]))
    assert times[1] == times[0]._replace(experts=4 * times[0].experts)
    replayed = [
        small(
            "routing.capacity_factor=1", "routing.pad_to_capacity=true", "plan.cuda_graph_scope=[moe]", pieces(degree)
        )
        for degree in (1, 4)
    ]
    assert len({host_times(one, one.plan.stages[0]) for one in replayed}) == 1


def launches(degree: int) -> list[float]:
    """The launches of a forward pass through one layer."""
    scenario = small(pieces(degree))
    steps = forward_pass(ONE_LAYER, stage_settings(scenario, scenario.plan.stages[0])).steps
    return [step.operator.work.seconds for step in steps if step.operator.stream == "host"]


def test_launches_add_up_whatever_the_pieces():
    scenario = small()
    experts = host_times(scenario, scenario.plan.stages[0]).experts
    assert sum(launches(3)) == pytest.approx(sum(launches(1)) + 2 * experts)


def test_the_first_kernel_waits_for_its_own_launch_alone():
    """Of permute, dispatch, two products, activation, combine, unpermute, residual five are launched three times."""
    assert launches(1)[-1] == pytest.approx(7 * launches(1)[-2])
    assert launches(3)[-1] == pytest.approx(17 * launches(3)[-2])


# ---------------------------------------------------------------- the command line


def test_an_example_runs_in_pieces(tmp_path, monkeypatch, capsys):
    example = EXAMPLES / "mixtral-8x7b-64xh100.yaml"
    simmoe = in_folder(tmp_path, monkeypatch, capsys)
    outcomes = [simmoe("simulate", example, "--json", "-", "--set", pieces(degree)) for degree in (1, 2)]
    assert [one.status for one in outcomes] == [0, 0]
    exposed = [json.loads(one.out)["exposed_communication_s"]["all_to_all"] for one in outcomes]
    assert exposed[1] < 0.7 * exposed[0]
