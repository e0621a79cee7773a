"""Memory over the step: its peak is the reported one, its level follows the micro-batches in flight."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from simmoe.cost.memory import chunk_activations
from simmoe.cost.shard import shard_of
from simmoe.pipeline import run
from simmoe.report.chrome_trace import write_trace
from simmoe.report.gantt import gantt_figure, write_gantt
from simmoe.report.result import Result
from tests.scenarios import small

INTERLEAVED = ("plan.virtual_pipeline=2", "plan.schedule=interleaved")
PLANS = [
    (),
    INTERLEAVED,
    (*INTERLEAVED, "plan.overlap_moe_expert_parallel_comm=true"),
    (*INTERLEAVED, "plan.pipeline_layout=Ett|ttt|tt|tL"),
    ("plan.pipeline_parallel=1", "plan.overlap_moe_expert_parallel_comm=true"),
    ("plan.pipeline_parallel=4", "plan.expert_parallel=4", "plan.schedule=gpipe"),
    ("plan.tensor_parallel=2", "plan.expert_tensor_parallel=2", "plan.expert_parallel=4"),
    ("plan.schedule=zb-h1",),
    ("plan.schedule=zb-v",),
    ("plan.schedule=dualpipe",),
    ("plan.schedule=dualpipe-v",),
    ("plan.recompute=full",),
    ("model=deepseek-v2-lite", "plan.stage_layers=[14, 13]", "plan.expert_parallel=8"),
]


@pytest.fixture(scope="module")
def result() -> Result:
    return run(small())


@pytest.mark.parametrize("overrides", PLANS)
def test_the_peak_is_the_reported_one(overrides):
    result = run(small(*overrides))
    for found, memory in zip(result.memory_timelines, result.memory, strict=True):
        assert found.peak == pytest.approx(memory.total, rel=1e-12)


@pytest.mark.parametrize("overrides", PLANS)
def test_the_step_starts_and_ends_with_what_stays(overrides):
    result = run(small(*overrides))
    for found, memory in zip(result.memory_timelines, result.memory, strict=True):
        framework = result.scenario.training.software.framework_memory.value
        stays = memory.weights + memory.gradients + memory.optimizer + framework
        assert found.bytes[-1] == pytest.approx(stays, rel=1e-12)
        assert found.bytes.min() >= stays
        assert found.time[0] == 0.0
        assert np.all(np.diff(found.time) > 0)
        assert found.time[-1] <= result.timeline.makespan


def test_the_level_follows_the_micro_batches_in_flight(result):
    """Counted pass by pass in plain Python from the tasks of each stage, between the passes."""
    scenario, software = result.scenario, result.scenario.training.software
    for rank, (found, memory) in enumerate(zip(result.memory_timelines, result.memory, strict=True)):
        stage = scenario.plan.stages[rank]
        shard = shard_of(stage, scenario.plan, scenario.training, scenario.routing)
        kept = chunk_activations(scenario, stage.chunks[0], shard, stage.recompute)[0]
        first, last = {}, {}
        for view in result.timeline:
            if view.rank == rank and view.stream == "compute" and view.micro_batch >= 0:
                first.setdefault(view.micro_batch, view.start)
                last[view.micro_batch] = view.end
        static = memory.weights + memory.gradients + memory.optimizer + software.framework_memory.value
        for (start, end), level in zip(pairwise(found.time), found.bytes, strict=False):
            middle = (start + end) / 2
            alive = sum(first[batch] < middle < last[batch] for batch in first)
            idle = static + (1 + software.allocator_waste.value) * kept * alive
            busy = idle + (1 + software.allocator_waste.value) * memory.working
            assert min(abs(level - idle), abs(level - busy)) < 1.0


def test_memory_is_a_counter_of_the_trace(result, tmp_path: Path):
    memory = result.memory_timelines
    write_trace(result.timeline, result.ranks, tmp_path / "trace.json", memory)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for rank, part in zip(result.ranks, memory, strict=True):
        counters = [event for event in events if event["ph"] == "C" and event["pid"] == rank.first_rank]
        assert [event["ts"] for event in counters] == pytest.approx((part.time * 1e6).tolist(), abs=1e-3)
        levels = [event["args"]["memory"] for event in counters]
        assert levels == pytest.approx((part.bytes / 2**30).tolist(), abs=1e-3)
    folder = write_trace(result.timeline, result.ranks, tmp_path / "folder", memory)
    assert len(folder) == len(result.ranks)


def test_without_memory_a_trace_has_no_counter(result, tmp_path: Path):
    write_trace(result.timeline, result.ranks, tmp_path / "trace.json")
    assert '"ph": "C"' not in (tmp_path / "trace.json").read_text()


def test_memory_is_drawn_below_the_step(result, tmp_path: Path):
    memory = result.memory_timelines
    drawn = gantt_figure(result.timeline, result.ranks, "test", memory)
    stairs = [line for line in drawn.axes[1].lines if line.get_label().startswith("stage")]
    for line, part in zip(stairs, memory, strict=True):
        assert line.get_ydata().max() == pytest.approx(part.peak / 2**30)
        assert line.get_xdata()[-1] == result.timeline.makespan
    assert len(gantt_figure(result.timeline, result.ranks).axes) == 1
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        write_gantt(result.timeline, result.ranks, file, "test", memory)
    assert files[0].read_bytes() == files[1].read_bytes()
