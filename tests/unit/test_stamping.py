"""What makes building fast must not change what is built: rows that gain edges, repeated stages, known placements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simmoe.cost.groups import group_shape
from simmoe.cost.model import StageCost
from simmoe.engine.fast import simulate_fast
from simmoe.errors import InternalError
from simmoe.graph.build import build_step
from simmoe.graph.repeats import Repeats
from simmoe.graph.task import compressed_rows, with_edges
from tests.scenarios import small

TASKS = 7
EDGES = st.lists(st.tuples(st.integers(0, TASKS - 1), st.integers(0, TASKS - 1)), max_size=12)


def columns(edges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets."""
    table = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(EDGES, EDGES)
def test_edges_added_to_rows_give_the_rows_of_all(known: list[tuple[int, int]], new: list[tuple[int, int]]) -> None:
    start, predecessor = compressed_rows(*columns(known), TASKS)
    found = with_edges(np.diff(start), predecessor, *columns(new))
    expected = compressed_rows(*columns(known + new), TASKS)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]
    assert {part.dtype for part in found} == {np.dtype(np.int32)}


@pytest.mark.parametrize("edge", [(0, 3), (-1, 0), (3, 0)])
def test_an_edge_of_a_task_that_does_not_exist_is_refused(edge: tuple[int, int]) -> None:
    nothing = np.zeros(0, dtype=np.int32)
    with pytest.raises(InternalError, match="does not exist"):
        with_edges(np.zeros(3, dtype=np.int32), nothing, *columns([edge]))


PLANS = [
    ("plan.pipeline_parallel=4", "plan.expert_parallel=4"),
    ("plan.pipeline_parallel=4", "plan.expert_parallel=4", "plan.schedule=zb-v"),
    ("plan.pipeline_parallel=4", "plan.expert_parallel=4", "plan.schedule=dualpipe"),
    ("plan.virtual_pipeline=2", "plan.schedule=interleaved"),
    ("plan.pipeline_parallel=4", "plan.expert_parallel=4", "plan.overlap_param_gather=false"),
    ("plan.pipeline_parallel=4", "plan.expert_parallel=4", "cluster.faults=[{device: 5, slowdown: 1.5}]"),
    ("model=deepseek-v2-lite", "model.num_layers=8", "plan.pipeline_parallel=4", "plan.expert_parallel=4"),
]


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("overrides", PLANS)
def test_a_repeated_stage_is_what_it_would_be_on_its_own(
    overrides: tuple[str, ...], fold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = small(*overrides)
    made: list[int] = []
    work = Repeats.work

    def counted(self, stage, likeness, make):
        return work(self, stage, likeness, lambda: (made.append(1), make())[1])

    monkeypatch.setattr(Repeats, "work", counted)
    found = build_step(scenario, fold=fold)
    monkeypatch.setattr(Repeats, "work", lambda self, stage, likeness, make: make())
    alone = build_step(scenario, fold=fold)
    assert simulate_fast(found.graph).digest() == simulate_fast(alone.graph).digest()
    assert found.graph.operations == alone.graph.operations
    assert found.ranks == alone.ranks
    assert len(made) <= len(found.ranks)
    if len(found.ranks) > 4:
        assert len(made) < len(found.ranks)


@pytest.mark.parametrize("overrides", [(), PLANS[0]])
def test_known_placements_are_those_of_each_stage(overrides: tuple[str, ...]) -> None:
    scenario = small(*overrides)
    for number, stage in enumerate(scenario.plan.stages):
        shapes = StageCost(scenario, number, 0).shapes
        for kind in ("tp", "cp", "dp", "etp", "ep", "edp"):
            assert shapes[kind] == group_shape(stage, kind, scenario.cluster)


def test_placements_of_unlike_sizes_are_not_mixed_up() -> None:
    inside = small("plan.expert_parallel=8")
    across = small("plan.pipeline_parallel=1", "plan.expert_parallel=8", "plan.expert_tensor_parallel=2")
    for scenario in (inside, across, inside):
        shape = StageCost(scenario, 0, 0).shapes["ep"]
        assert shape == group_shape(scenario.plan.stages[0], "ep", scenario.cluster)
