"""Fluid work: the quick loop against the SimPy reference, and the laws both obey."""

import importlib.util
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simmoe.engine import fluid_numba
from simmoe.engine.fluid import simulate_fluid
from simmoe.engine.fluid_numba import compiled, simulate_quickly
from simmoe.engine.simulate import simulate
from simmoe.errors import InternalError
from simmoe.graph.build import build_step
from simmoe.graph.fluid import COMPUTE, Fluid, Route, make_fluid
from simmoe.graph.routes import fluid_of
from simmoe.graph.task import TaskGraph
from tests.flows import Flow, network
from tests.graphs import graph_of, renumbered, rows, shuffled
from tests.scenarios import small

AMOUNT = st.one_of(st.sampled_from([0.5, 1.0, 2.0]), st.floats(0.1, 5.0))
has_numba = importlib.util.find_spec("numba") is not None
needs_numba = pytest.mark.skipif(not has_numba, reason="the [fast] extra is not installed")


@st.composite
def routes(draw: st.DrawFn, capacity: list[float]) -> Route:
    links = st.integers(0, len(capacity) - 1)
    use = draw(st.dictionaries(links, AMOUNT, min_size=0, max_size=3))
    held = {} if draw(st.booleans()) else draw(st.dictionaries(links, st.floats(0.01, 0.2), max_size=2))
    hold = {link: part * capacity[link] for link, part in held.items() if link not in use}
    widest = min([capacity[link] / part for link, part in use.items()], default=1.0)
    return Route(use, widest * draw(st.sampled_from([1.0, 0.7, 0.3])), hold, draw(st.integers(0, 2)))


@st.composite
def works(draw: st.DrawFn) -> tuple[TaskGraph, Fluid]:
    """A random graph whose tasks share random links."""
    graph = graph_of(draw(rows(max_tasks=24, max_ranks=4)))
    capacity = draw(st.lists(AMOUNT, min_size=1, max_size=4))
    table = draw(st.lists(routes(capacity), min_size=1, max_size=5))
    tasks = len(graph)
    route = draw(st.lists(st.integers(-1, len(table) - 1), min_size=tasks, max_size=tasks))
    part = draw(st.lists(st.sampled_from([0.0, 0.0, 0.3, 1.0]), min_size=tasks, max_size=tasks))
    links = [(str(number), size) for number, size in enumerate(capacity)]
    fluid = make_fluid(graph.duration, graph.duration * np.array(part), np.array(route, dtype=int), table, links)
    return graph, fluid


def close(times: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.allclose(times, expected, rtol=1e-9, atol=1e-300))


@settings(deadline=None)
@given(works())
def test_both_engines_agree(work: tuple[TaskGraph, Fluid]) -> None:
    reference, quick = (simulate_fluid(*work, engine=engine) for engine in ("simpy", "fast"))
    assert close(quick.start, reference.start)
    assert close(quick.end, reference.end)


@needs_numba
@settings(deadline=None)
@given(works())
def test_compiled_and_interpreted_are_the_same_to_the_last_bit(work: tuple[TaskGraph, Fluid]) -> None:
    once, again = (simulate_quickly(*work, use_numba=chosen) for chosen in (True, False))
    assert (once[0] == again[0]).all()
    assert (once[1] == again[1]).all()


@settings(max_examples=50, deadline=None)
@given(works(), st.randoms(use_true_random=False))
def test_the_order_of_tasks_and_streams_does_not_matter(work: tuple[TaskGraph, Fluid], random) -> None:
    graph, fluid = work
    new, streams = shuffled(graph, random)
    old = np.argsort(new)
    moved = replace(fluid, **{name: getattr(fluid, name)[old] for name in ("latency", "volume", "route")})
    timeline, other = simulate_fluid(graph, fluid), simulate_fluid(renumbered(graph, new, streams), moved)
    assert close(other.start[new], timeline.start)
    assert close(other.end[new], timeline.end)


@settings(deadline=None)
@given(works())
def test_links_carry_no_more_than_they_can_and_tasks_do_all_their_work(work: tuple[TaskGraph, Fluid]) -> None:
    graph, fluid = work
    changes: list[tuple[float, np.ndarray, np.ndarray]] = []
    timeline = simulate_fluid(graph, fluid, "simpy", watch=lambda *change: changes.append(change))
    done = np.zeros(len(graph))
    for (time, tasks, rates), after in zip(changes, [*changes, None][1:], strict=False):
        free, load = fluid.capacity.copy(), np.zeros(len(fluid.capacity))
        for task in np.flatnonzero((timeline.start <= time) & (timeline.end > time) & (fluid.route >= 0)):
            link, held = fluid.holds(fluid.route[task])
            free[link] -= held
        for task, rate in zip(tasks, rates, strict=True):
            link, use = fluid.uses(fluid.route[task])
            load[link] += rate * use
        assert (load <= np.maximum(free, 0.0) + 1e-9 * fluid.capacity).all()
        assert (rates <= fluid.bound[fluid.route[tasks]] * (1 + 1e-12)).all()
        if after is not None:
            done[tasks] += rates * (after[0] - time)
    flowing = np.flatnonzero(fluid.volume > 0)
    assert np.allclose(done[flowing], fluid.volume[flowing], rtol=1e-9, atol=1e-9)


@settings(max_examples=50, deadline=None)
@given(works())
def test_sharing_never_shortens_a_task(work: tuple[TaskGraph, Fluid]) -> None:
    graph, fluid = work
    timeline = simulate_fluid(graph, fluid)
    assert (timeline.end - timeline.start >= graph.duration * (1 - 1e-9) - 1e-12 * timeline.end).all()


@settings(max_examples=50, deadline=None)
@given(works())
def test_without_routes_it_is_the_plain_engine(work: tuple[TaskGraph, Fluid]) -> None:
    graph, fluid = work
    alone = replace(fluid, route=np.full(len(graph), -1, dtype=np.int32))
    expected = simulate(graph)
    for engine in ("simpy", "fast"):
        timeline = simulate_fluid(graph, alone, engine=engine)
        assert (timeline.start == expected.start).all()
        assert (timeline.end == expected.end).all()


# ---------------------------------------------------------------- real graphs

CASES = {
    "pipeline": (),
    "experts over two nodes": ("plan.pipeline_parallel=1", "plan.expert_tensor_parallel=2"),
    "oversubscribed": ("cluster.fabric.topology=fat_tree", "cluster.fabric.oversubscription=4"),
    "pieces": ("plan.a2a_ffn_overlap_degree=2",),
    "overlap": ("plan.overlap_moe_expert_parallel_comm=true", "plan.virtual_pipeline=2", "plan.schedule=interleaved"),
    "dualpipe": ("plan.schedule=dualpipe",),
    "pcie": ("cluster.groups=[{node: a40-x8, count: 2}]",),
    "unlike": (
        "cluster.groups=[{node: dgx-h100, count: 1}, {node: dgx-a100-80gb, count: 1}]",
        "cluster.cross_group={link: ethernet-100}",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_real_steps(case: str) -> None:
    scenario = small("model.num_layers=4", *CASES[case])
    step = build_step(scenario)
    fluid = fluid_of(step, scenario)
    reference, quick = (simulate_fluid(step.graph, fluid, engine=engine) for engine in ("simpy", "fast"))
    assert close(quick.start, reference.start)
    assert close(quick.end, reference.end)
    analytic = simulate(step.graph).makespan
    assert analytic * (1 - 1e-9) <= quick.makespan < 1.5 * analytic


@pytest.mark.parametrize("case", CASES)
def test_one_task_at_a_time_takes_what_the_cost_layer_says(case: str) -> None:
    """Every task on one stream: nothing overlaps, so fluid and analytic times are the same."""
    scenario = small("model.num_layers=4", "training.global_batch_size=32", *CASES[case])
    step = build_step(scenario)
    fluid, none = fluid_of(step, scenario), np.zeros(0, dtype=np.int32)
    alone = replace(
        step.graph,
        stream=np.zeros(len(step.graph), dtype=np.int32),
        predecessor_start=np.zeros(len(step.graph) + 1, dtype=np.int32),
        predecessor=none,
    )
    expected = simulate(alone)
    for engine in ("simpy", "fast"):
        assert close(simulate_fluid(alone, fluid, engine=engine).end, expected.end)


# ---------------------------------------------------------------- what cannot run


def test_a_task_that_others_starve_is_named() -> None:
    """Two tasks hold 60 % of a link each, and each needs the rest: neither ends."""
    graph, fluid = network({"link": 10.0, "other": 1.0}, [Flow(1.0, {"link": 1.0}, bound=4.0)] * 2)
    table = [Route({0: 1.0}, 4.0, {0: 6.0})] * 2
    fluid = make_fluid(graph.duration, fluid.latency, fluid.route, table, [("link", 10.0)])
    for engine in ("simpy", "fast"):
        with pytest.raises(InternalError, match=r"task 1 .* never ends: others occupy all of a link"):
            simulate_fluid(graph, fluid, engine=engine)


@settings(max_examples=50, deadline=None)
@given(rows(max_tasks=6, max_ranks=2, any_edges=True))
def test_circles_are_named_as_by_the_plain_engine(drawn) -> None:
    graph = graph_of(drawn)
    fluid = make_fluid(
        graph.duration, graph.duration * 0, graph.duration.astype(int) * 0, [Route({0: 1.0}, 1.0)], [("", 9.0)]
    )

    def complaint(run) -> str:
        try:
            run()
        except InternalError as error:
            return str(error)
        return ""

    expected = complaint(lambda: simulate(graph))
    assert complaint(lambda: simulate_fluid(graph, fluid)) == expected
    assert complaint(lambda: simulate_fluid(graph, fluid, "simpy")) == expected


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"route": np.zeros(1, dtype=np.int32)}, "fluid work of 1 tasks for a graph of 2"),
        ({"route": np.array([0, 5], dtype=np.int32)}, "a route outside the 1 that exist"),
        ({"volume": np.array([0.0, np.nan])}, "task 1 .* has a volume of nan"),
        ({"latency": np.array([-1.0, 0.0])}, "task 0 .* has a latency of -1"),
    ],
)
def test_work_that_makes_no_sense_is_refused(change: dict[str, np.ndarray], complaint: str) -> None:
    graph, fluid = network({"link": 10.0}, [Flow(1.0, ("link",))])
    with pytest.raises(InternalError, match=complaint):
        simulate_fluid(graph, replace(fluid, **change))


@pytest.mark.parametrize(
    "route", [Route({0: 1.0}, 0.0), Route({1: 1.0}, 1.0), Route({0: 0.0}, 1.0), Route({0: 2.0}, 1.0), Route({}, np.inf)]
)
def test_routes_that_cannot_reach_their_bound_are_refused(route: Route) -> None:
    with pytest.raises(InternalError, match="route 0"):
        make_fluid(np.ones(1), np.zeros(1), np.zeros(1, dtype=int), [route], [("link", 1.0)])


# ---------------------------------------------------------------- numba


def test_large_graphs_are_compiled_if_numba_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, fluid = network({"link": 10.0}, [Flow(1.0, ("link",))])
    asked = []
    monkeypatch.setattr(fluid_numba, "_WORTH_COMPILING", 2)

    @cache
    def machine_code():
        asked.append(1)
        return fluid_numba.fluid_loop.run

    monkeypatch.setattr(fluid_numba, "compiled", machine_code)
    for there, expected in ((False, []), (True, [1])):
        monkeypatch.setattr(fluid_numba, "installed", lambda there=there: there)
        assert simulate_fluid(graph, fluid).end.tolist() == [0.0, 0.1]
        assert asked == expected


@needs_numba
def test_where_nothing_can_be_written_nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Module:
        @staticmethod
        def njit(*, cache: bool = False, **options: bool):
            asked.append((cache, options.get("no_cpython_wrapper", False)))
            if cache:
                raise RuntimeError("cannot cache function: no locator available")
            return lambda function: function

    monkeypatch.setattr("importlib.import_module", lambda name: Module)
    compiled.cache_clear()
    try:
        graph, fluid = network({"link": 10.0}, [Flow(1.0, ("link",)), Flow(1.0, ("link",), priority=COMPUTE)])
        assert simulate_quickly(graph, fluid, use_numba=True)[1].tolist() == pytest.approx([0.0, 0.1, 0.0, 0.2])
    finally:
        compiled.cache_clear()
    assert (False, False) in asked
    assert (True, True) in asked
