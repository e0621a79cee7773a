"""The fast engine against the event engine: every start and end to the last bit, on every way through it."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simmoe.engine import fast, numba_pass
from simmoe.engine.fast import makespans, simulate_batch, simulate_fast
from simmoe.engine.levels import levels_of
from simmoe.engine.lockstep import lockstep, row_ends, walk
from simmoe.engine.numba_pass import PLAIN, compiled, installed, run_compiled
from simmoe.engine.record import Timeline
from simmoe.engine.rows import rows_of
from simmoe.engine.simulate import simulate
from simmoe.errors import InternalError, SpecError
from simmoe.graph.build import build_step
from simmoe.graph.schedules import gpipe, interleaved, one_f_one_b
from simmoe.graph.task import TaskGraph
from simmoe.specs.reader import load_scenario
from tests.benchmarks.engine import SEND, one_f_one_b_graph, stage_seconds
from tests.graphs import Row, graph_of, pipeline_rows, renumbered, rows, shuffled
from tests.pipelines import pipeline

EXAMPLES = sorted((Path(__file__).parents[2] / "scenarios" / "examples").glob("*.yaml"))
SCHEDULES = {
    "gpipe": ("plan.schedule=gpipe", "plan.virtual_pipeline=1"),
    "1f1b": ("plan.schedule=1f1b", "plan.virtual_pipeline=1"),
    "interleaved": ("plan.schedule=interleaved", "plan.virtual_pipeline=2"),
}
Times = tuple[np.ndarray, np.ndarray]


def by_rows(passed: Callable[..., np.ndarray]) -> Callable[[TaskGraph], Times]:
    """Start and end by one of the numpy or Python passes."""

    def run(graph: TaskGraph) -> Times:
        rows = rows_of(graph)
        ends = passed(rows, rows.spread(graph.duration))
        ends[rows.barrier] = 0.0
        return rows.starts(ends), ends[rows.task]

    return run


def times_of(timeline: Timeline) -> Times:
    return timeline.start, timeline.end


def by_batch(graph: TaskGraph) -> Times:
    start, end = simulate_batch(graph, graph.duration[None])
    return start[0], end[0]


def by_machine_code(graph: TaskGraph) -> Times:
    pytest.importorskip("numba", reason="the [fast] extra is not installed")
    return run_compiled(graph, compiled())


WAYS = {
    "default": lambda graph: times_of(simulate_fast(graph, use_numba=False)),
    "lockstep": by_rows(lockstep),
    "walk": by_rows(walk),
    "batch": by_batch,
    "uncompiled": lambda graph: run_compiled(graph, PLAIN),
    "numba": by_machine_code,
}


def same(times: Times, timeline: Timeline) -> bool:
    """Equal to the last bit."""
    return bool((times[0] == timeline.start).all() and (times[1] == timeline.end).all())


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None)  # the first example starts numba
@given(drawn=rows(max_tasks=24, max_ranks=4).filter(len))
def test_random_graphs(way: str, drawn: list[Row]) -> None:
    graph = graph_of(drawn)
    assert same(WAYS[way](graph), simulate(graph))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b, lambda s, p, m: interleaved(s, p, m, 2)])
def test_pipelines(way: str, schedule: Callable) -> None:
    seconds = np.random.default_rng(5).uniform(0.5, 1.5, (2, 4))
    graph = pipeline(schedule, seconds[0].tolist(), seconds[1].tolist(), 12, 0.07)
    assert same(WAYS[way](graph), simulate(graph))


@pytest.mark.parametrize("way", WAYS)
def test_layers_with_all_to_all(way: str) -> None:
    graph = graph_of(pipeline_rows(6, 12, layers=3, forward=0.1, send=0.003))
    assert same(WAYS[way](graph), simulate(graph))


@pytest.mark.parametrize("way", WAYS)
def test_a_task_that_waits_for_many(way: str) -> None:
    """Each wait beyond the first takes a row of its own."""
    fan = [Row(0.1 * (i % 7), rank=i) for i in range(50)]
    graph = graph_of([*fan, Row(1.0, after=tuple(range(50)), rank=3), Row(2.0, after=(50, 7, 8), rank=50)])
    assert same(WAYS[way](graph), simulate(graph))


@pytest.mark.parametrize("way", WAYS)
def test_more_streams_or_levels_than_16_bits_count(way: str) -> None:
    many = 70_000
    none = np.full(many, -1, dtype=np.int32)
    wide = one_f_one_b_graph(2, 3)
    wide = replace(wide, streams=wide.streams * 20_000, stream=wide.stream + 65_530)
    chain = TaskGraph(
        operation=np.zeros(many, dtype=np.int32),
        stream=np.zeros(many, dtype=np.int32),
        duration=np.random.default_rng(1).uniform(size=many),
        layer=none,
        micro_batch=none,
        predecessor_start=np.zeros(many + 1, dtype=np.int32),
        predecessor=np.zeros(0, dtype=np.int32),
        operations=wide.operations,
        streams=wide.streams[:1],
    )
    assert same(WAYS[way](wide), simulate(wide))
    assert same(WAYS[way](chain), simulate(chain))


def test_no_tasks() -> None:
    graph = graph_of([])
    assert len(simulate_fast(graph)) == 0
    assert simulate_batch(graph, np.zeros((3, 0)))[1].shape == (3, 0)
    assert makespans(graph, np.zeros((3, 0))).tolist() == [0.0, 0.0, 0.0]


# ---------------------------------------------------------------- shipped scenarios


@pytest.mark.parametrize("schedule", ["its own", *SCHEDULES])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_shipped_scenarios(path: Path, schedule: str) -> None:
    """With another schedule on a quarter of the batch, which is enough micro-batches to fill the pipeline."""
    scenario = load_scenario(path)
    if schedule != "its own":
        batch = f"training.global_batch_size={scenario.training.global_batch_size // 4}"
        try:
            scenario = load_scenario(path, (*SCHEDULES[schedule], batch))
        except SpecError as error:
            pytest.skip(f"the plan does not run {schedule}: {error}")
    graph = build_step(scenario).graph
    timeline = simulate(graph)
    assert same(WAYS["default"](graph), timeline)
    assert not installed() or same(WAYS["numba"](graph), timeline)


def test_there_are_shipped_scenarios() -> None:
    assert EXAMPLES


# ---------------------------------------------------------------- many durations at once


@given(drawn=rows().filter(len), seed=st.integers(0, 99), draws=st.integers(0, 5), size=st.integers(1, 3))
def test_a_batch_equals_single_runs(drawn: list[Row], seed: int, draws: int, size: int) -> None:
    graph = graph_of(drawn)
    durations = np.random.default_rng(seed).choice([0.0, 0.1, 0.3, 0.7], (draws, len(graph)))
    singles = [simulate(replace(graph, duration=row)) for row in durations]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "_CHUNK_DRAWS", size)
        patch.setattr(fast, "_BLOCK", size)
        start, end = simulate_batch(graph, durations, levels=levels_of(graph))
        last = makespans(graph, durations), makespans(graph, iter(durations))
    assert all(same((start[i], end[i]), single) for i, single in enumerate(singles))
    assert [one.tolist() for one in last] == [[single.makespan for single in singles]] * 2


@pytest.mark.parametrize("kilobytes", [1, 10, 1000])
def test_the_size_of_a_chunk_changes_nothing(monkeypatch: pytest.MonkeyPatch, kilobytes: int) -> None:
    graph = one_f_one_b_graph(4, 8)
    durations = np.random.default_rng(3).uniform(size=(20, len(graph)))
    expected = makespans(graph, durations)
    monkeypatch.setattr(fast, "_CHUNK_BYTES", kilobytes << 10)
    assert (makespans(graph, durations) == expected).all()


@pytest.mark.parametrize(
    ("durations", "complaint"),
    [
        (np.ones((2, 4)), r"draw 0 has durations of shape \(4,\), the graph has 3 tasks"),
        ([np.ones(3), np.array([1.0, -1.0, 1.0])], "draw 1 holds a duration that is negative or not finite"),
        (np.array([[1.0, np.nan, 1.0]]), "draw 0 holds a duration that is negative or not finite"),
        (np.array([[1.0, np.inf, 1.0]]), "draw 0 holds a duration that is negative or not finite"),
    ],
)
def test_wrong_draws_are_refused(durations: np.ndarray, complaint: str) -> None:
    with pytest.raises(InternalError, match=complaint):
        makespans(graph_of([Row(1.0)] * 3), durations)


@given(drawn=rows(max_tasks=24, max_ranks=4))
def test_a_level_waits_for_lower_levels_only(drawn: list[Row]) -> None:
    levels = levels_of(graph_of(drawn))
    level = np.append(np.repeat(np.arange(len(levels.bounds) - 1), np.diff(levels.bounds)), -1)
    for other in (levels.before, levels.awaited):
        assert (level[other] < level[:-1]).all()
    assert (np.diff(levels.bounds) > 0).all()


# ---------------------------------------------------------------- what cannot run


def complaint(run: Callable[[TaskGraph], object], graph: TaskGraph) -> str:
    """The text of the error, "" if there is none."""
    try:
        run(graph)
    except InternalError as error:
        return str(error)
    return ""


@given(drawn=rows(max_tasks=6, max_ranks=2, any_edges=True).filter(len))
def test_circles_are_named_as_by_the_event_engine(drawn: list[Row]) -> None:
    graph = graph_of(drawn)
    expected = complaint(simulate, graph)
    assert complaint(simulate_fast, graph) == expected
    assert complaint(lambda graph: makespans(graph, graph.duration[None]), graph) == expected
    assert (run_compiled(graph, PLAIN) is None) == bool(expected)
    ends = [by_rows(passed)(graph)[1] for passed in (lockstep, walk, row_ends)]
    assert all(np.isinf(end).any() == bool(expected) for end in ends)
    assert all((end == ends[0]).all() for end in ends), "the passes agree on what still ends"


@pytest.mark.parametrize("seconds", [-1.0, np.nan, np.inf])
def test_durations_without_meaning_are_refused(seconds: float) -> None:
    graph = graph_of([Row(1.0), Row(seconds)])
    assert complaint(simulate_fast, graph) == complaint(simulate, graph) != ""


@pytest.mark.parametrize("stream", [-1, 1])
def test_streams_that_do_not_exist_are_refused(stream: int) -> None:
    graph = replace(graph_of([Row(1.0), Row(2.0)]), stream=np.array([0, stream], dtype=np.int32))
    for run in (simulate_fast, lambda graph: makespans(graph, np.ones((1, 2)))):
        assert complaint(run, graph) == complaint(simulate, graph) != ""


def test_times_beyond_the_largest_number() -> None:
    """Infinite ends look as if the graph could not finish; the event engine decides."""
    graph = graph_of([Row(1.5e308), Row(1.5e308), Row(1.0)])
    assert simulate_fast(graph).end.tolist() == simulate(graph).end.tolist() == [1.5e308, np.inf, np.inf]


# ---------------------------------------------------------------- order and size do not matter


@given(rows(), st.randoms(use_true_random=False))
def test_ids_of_independent_streams_do_not_matter(drawn: list[Row], random) -> None:
    graph = graph_of(drawn)
    new, streams = shuffled(graph, random)
    timeline, other = simulate_fast(graph), simulate_fast(renumbered(graph, new, streams))
    assert (other.start[new] == timeline.start).all()
    assert (other.end[new] == timeline.end).all()


def test_memory_stays_below_200_bytes_a_task() -> None:
    graph = one_f_one_b_graph(16, 200)
    timeline, levels = simulate_fast(graph), levels_of(graph)
    columns = ("operation", "stream", "duration", "layer", "micro_batch", "predecessor_start", "predecessor")
    held = sum(getattr(graph, name).nbytes for name in columns)
    held += timeline.start.nbytes + timeline.end.nbytes + levels.nbytes
    assert held <= 200 * len(graph)


def test_a_narrow_graph_is_walked_and_a_wide_one_goes_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for passed in (lockstep, walk):
        monkeypatch.setattr(f"simmoe.engine.lockstep.{passed.__name__}", spy(passed, taken))
    simulate_fast(graph_of([Row(1.0)] * 5000), use_numba=False)
    assert taken == ["walk"]
    taken.clear()
    simulate_fast(one_f_one_b_graph(64, 128), use_numba=False)
    assert taken == ["lockstep"]
    taken.clear()
    # Short streams, but each task waits for the one before: only the rounds show that nothing goes side by side.
    relay = graph_of([Row(1.0, rank=i % 100, after=(i - 1,) if i else ()) for i in range(5000)])
    simulate_fast(relay, use_numba=False)
    assert taken == ["lockstep", "walk"]


def spy(passed: Callable, taken: list[str]) -> Callable:
    """The pass, noting its name."""

    def run(*arguments: object) -> object:
        taken.append(passed.__name__)
        return passed(*arguments)

    return run


# ---------------------------------------------------------------- numba


@pytest.fixture
def no_numba_yet(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A numba that compiles nothing and says what it was asked for, in a process that has simulated nothing."""
    asked = []

    def njit(function: Callable | None = None, *, cache: bool = False) -> Callable:
        if function is None:
            return lambda function: njit(function, cache=True)
        asked.append(cache)
        if cache and module.read_only:
            raise RuntimeError("cannot cache function: no locator available")
        return function

    module = SimpleNamespace(njit=njit, asked=asked, read_only=False)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    monkeypatch.setattr(fast, "installed", lambda: True)
    monkeypatch.setattr(fast, "_process", fast._Process())
    compiled.cache_clear()
    yield module
    compiled.cache_clear()


def test_numba_is_started_once_it_pays(no_numba_yet: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = one_f_one_b_graph(4, 10)
    monkeypatch.setattr(fast, "_WORTH_COMPILING", 3 * len(graph))
    timelines = [simulate_fast(graph) for _ in range(2)]
    assert no_numba_yet.asked == []
    timelines += [simulate_fast(graph) for _ in range(2)]
    assert no_numba_yet.asked == [True, True]
    assert len({timeline.digest() for timeline in timelines}) == 1


def test_numba_can_be_forbidden(no_numba_yet: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_WORTH_COMPILING", 0)
    simulate_fast(one_f_one_b_graph(4, 10), use_numba=False)
    assert no_numba_yet.asked == []


def test_where_nothing_can_be_written_nothing_is_cached(no_numba_yet: SimpleNamespace) -> None:
    no_numba_yet.read_only = True
    graph = one_f_one_b_graph(4, 10)
    assert same(WAYS["default"](graph), simulate_fast(graph, use_numba=True))
    assert no_numba_yet.asked == [True, False, False]


def test_whether_numba_is_installed_is_found_without_importing_it() -> None:
    assert numba_pass.installed() == (importlib.util.find_spec("numba") is not None)


@settings(max_examples=20, deadline=None)
@given(drawn=rows(max_tasks=24, max_ranks=4))
def test_with_numba_on_request(drawn: list[Row]) -> None:
    pytest.importorskip("numba", reason="the [fast] extra is not installed")
    graph = graph_of(drawn)
    assert simulate_fast(graph, use_numba=True).digest() == simulate(graph).digest()


# ---------------------------------------------------------------- the benchmark's graph


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 5), (3, 2), (4, 4), (5, 13)])
def test_the_benchmark_measures_the_graph_that_stamping_makes(stages: int, micro_batches: int) -> None:
    graph = one_f_one_b_graph(stages, micro_batches)
    stamped = pipeline(one_f_one_b, *stage_seconds(stages), micro_batches, SEND)
    assert graph.streams == stamped.streams
    assert (graph.stream == stamped.stream).all()
    assert (graph.duration == stamped.duration).all()
    assert same(WAYS["default"](graph), simulate(stamped))
