"""What is said of a zebra plan: the role wherever devices are named, what either side waits for, what would help."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from simmoe import pipeline
from simmoe.cli.remedies import remedies
from simmoe.engine.simulate import simulate
from simmoe.errors import SpecError
from simmoe.graph.ranks import RankClass
from simmoe.report.bubbles import CAUSES, bubbles
from simmoe.report.chrome_trace import write_trace
from simmoe.report.draws import draw_steps
from simmoe.report.evidence import numbers_used
from simmoe.report.gantt import gantt_figure
from simmoe.report.result import Result
from simmoe.report.summary import summarise
from simmoe.report.uncertainty import class_spreads, step_interval
from simmoe.report.wires import used_wires
from tests.command_line import Simmoe, in_folder
from tests.graphs import Row, graph_of
from tests.scenarios import ZEBRA, zebra

MOVED = "plan.zebra.moved_experts=[0, 1, 0, 1]"
SIDES = (RankClass(0, "new", 1, 0, "attention"), RankClass(0, "old", 3, 1, "experts"))


@pytest.fixture
def simmoe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simmoe:
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def result() -> Result:
    return pipeline.run(zebra(MOVED))


# ---------------------------------------------------------------- the report


def test_the_header_tells_groups_micro_batches_and_moved_experts(simmoe: Simmoe) -> None:
    out = " ".join(simmoe("simulate", ZEBRA, "--set", MOVED).out.split())
    assert "parallel: zebra 4:4 x 2 groups, R 2, data 8, 8 of 32 experts on attention GPUs, micro-batch 1" in out
    assert "GPUs used" not in out


def test_the_header_tells_of_idle_devices(simmoe: Simmoe) -> None:
    out = " ".join(simmoe("simulate", ZEBRA, "--set", "plan.zebra.groups=1").out.split())
    assert "parallel: zebra 4:4, R 2, data 4, micro-batch 1, schedule 1f1b, 8 of 16 GPUs used" in out


def test_tables_name_the_role(simmoe: Simmoe) -> None:
    lines = simmoe("simulate", ZEBRA).out.splitlines()
    assert any(line.split()[:4] == ["0", "attention", "8", "h100-sxm5-80gb"] for line in lines)
    assert any(line.split()[:4] == ["0", "experts", "8", "a100-sxm4-80gb"] for line in lines)
    waits = next(line for line in lines if "experts on other GPUs" in line)
    assert waits.split()[-2:] == ["0", "attention"]


def test_json_names_the_role(result: Result) -> None:
    found = summarise(result)
    assert [rank["role"] for rank in found["ranks"]] == ["attention", "experts"]
    assert [stage["role"] for stage in found["peak_memory_bytes"]["per_stage"]] == ["attention", "experts"]
    assert found["bubbles_s"]["experts"] > 0
    assert set(found["ranks"][0]["stream_utilization"]) >= {"compute", "dispatch", "combine"}


def test_figures_count_the_devices_in_use() -> None:
    """Expectation: half of the devices at half of the batch, so as much a device and the same share of its peak."""
    whole, half = (
        pipeline.run(zebra("plan.sharding=none", *overrides))
        for overrides in ((), ("plan.zebra.groups=1", "training.global_batch_size=16"))
    )
    assert (whole.devices, half.devices) == (16, 8)
    assert half.mfu == pytest.approx(whole.mfu, rel=0.02)
    assert half.tokens_per_s == pytest.approx(whole.tokens_per_s / 2, rel=0.02)


# ---------------------------------------------------------------- trace and picture


def test_a_trace_names_roles_and_streams(result: Result, tmp_path: Path) -> None:
    (file,) = write_trace(result.timeline, result.ranks, tmp_path / "t.json.gz", result.memory_timelines)
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    labels = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert labels == [
        "rank 0: stage 0 attention, h100-sxm5-80gb, one of 8",
        "rank 8: stage 0 experts, a100-sxm4-80gb, one of 8",
    ]
    threads = [event["args"]["name"].split("(")[-1] for event in events if event["name"] == "thread_name"]
    assert threads.count("dispatch)") == threads.count("combine)") == 2
    roles = {(event["pid"], event["args"]["role"]) for event in events if "role" in event.get("args", {})}
    assert roles == {(0, "attention"), (8, "experts")}


def test_a_picture_names_roles(result: Result) -> None:
    figure = gantt_figure(result.timeline, result.ranks, memory=result.memory_timelines)
    rows, memory = figure.axes
    names = [label.get_text() for label in rows.get_yticklabels()]
    assert names == ["stage 0 attention\n8 x h100-sxm5-80gb", "stage 0 experts\n8 x a100-sxm4-80gb"]
    assert [text.get_text() for text in memory.get_legend().get_texts()] == ["stage 0 attention", "stage 0 experts"]


# ---------------------------------------------------------------- what a side waits for


def exchange(stream: str, after: int, rank: int, seconds: float = 1.0) -> Row:
    return Row(seconds, stream, (after,), rank, name=f"moe.{stream}", category="all_to_all")


def test_each_side_waits_for_work_and_exchanges_of_the_other() -> None:
    """Attention 0-2, dispatch 2-3, experts 3-7, combine 7-8, attention 8-9: idle 0-3 and 8-9, and 2-8."""
    rows = [
        Row(2.0),
        exchange("dispatch", 0, 0),
        exchange("dispatch", 0, 1),
        Row(4.0, after=(2,), rank=1),
        exchange("combine", 3, 0),
        exchange("combine", 3, 1),
        Row(1.0, after=(4,)),
    ]
    graph = graph_of(rows)
    groups = tuple(
        operation._replace(group="ep" if operation.category == "all_to_all" else "") for operation in graph.operations
    )
    found = bubbles(simulate(type(graph)(**{**_columns(graph), "operations": groups})), SIDES).ranks
    held = [{cause: seconds for cause, seconds in table.items() if seconds} for table in found]
    assert held == [{"experts": 4.0, "all_to_all": 2.0}, {"attention": 2.0, "all_to_all": 2.0, "drain": 1.0}]


def _columns(graph) -> dict[str, object]:
    return {name: getattr(graph, name) for name in graph.__dataclass_fields__}


@pytest.mark.parametrize(
    "overrides",
    [(), (MOVED, "plan.recompute=full"), ("plan.pipeline_parallel=2", "plan.zebra.groups=1")],
    ids=str,
)
def test_causes_add_up_to_the_idle_time(overrides: tuple[str, ...]) -> None:
    found = pipeline.run(zebra(*overrides))
    graph = found.timeline.graph
    for number, table in enumerate(found.bubbles.ranks):
        streams = [i for i, stream in enumerate(graph.streams) if stream == (number, "compute")]
        busy = graph.duration[np.isin(graph.stream, streams)].sum()
        assert list(table) == list(CAUSES)
        assert sum(table.values()) == pytest.approx(found.step_time_s - busy, rel=1e-9)
        assert table["imbalance" if len(found.ranks) == 2 else "dependency"] == 0.0


# ---------------------------------------------------------------- what it relies on


def test_exchanges_are_priced_with_the_network(result: Result) -> None:
    """Expectation: no all-to-all over NVLink, and no gather of token counts, which zebra exchanges leave out."""
    wires = used_wires(result)
    fits = {(link.id, fit.collective) for link, fit in wires.fits if hasattr(fit, "collective")}
    assert {link for link, collective in fits if collective == "all_to_all"} == {"infiniband-ndr-400"}
    assert {node.id for node in wires.nodes} == {"dgx-h100", "dgx-a100-80gb-as-ndr"}
    near = "plan.zebra={attention_devices: 4, expert_devices: 4, expert_group: 0, micro_batches: 2}"
    inside = used_wires(pipeline.run(zebra(near)))
    assert {link.id for link, fit in inside.fits if getattr(fit, "collective", "") == "all_to_all"} == {"nvlink-4"}
    assert not inside.nodes


def test_each_side_sums_its_own_gradients(result: Result) -> None:
    """Expectation: 8 H100 of a node share dense weights; on A100 two groups of 4 share experts, pairs in a node."""
    fits = {
        (link.id, fit.ranks) for link, fit in used_wires(result).fits if getattr(fit, "collective", "") == "all_gather"
    }
    assert max(ranks for link, ranks in fits if link == "nvlink-4") == 8
    assert {ranks for link, ranks in fits if link == "nvlink-3"} == {2}


def test_numbers_of_both_sides_are_cited(result: Result, simmoe: Simmoe) -> None:
    parts = {number.part for number in numbers_used(result)}
    assert {"accelerator h100-sxm5-80gb", "accelerator a100-sxm4-80gb", "link infiniband-ndr-400"} <= parts
    found = simmoe("cite", ZEBRA)
    assert found.status == 0
    assert "a100-sxm4-80gb" in found.out


def test_the_interval_knows_the_spreads_of_both_sides(result: Result) -> None:
    spreads = class_spreads(result)
    assert spreads["all_to_all", "h100-sxm5-80gb"] == spreads["all_to_all", "a100-sxm4-80gb"] > 0
    low, high, _ = step_interval(result)
    assert low < result.step_time_s < high


# ---------------------------------------------------------------- what is refused, what would help


def test_draws_are_refused_before_the_simulation(simmoe: Simmoe, result: Result) -> None:
    message = "plan: draws do not know zebra parallelism, leave --draws out"
    assert simmoe("simulate", ZEBRA, "--draws", "3") == (2, "", f"{message}\n")
    with pytest.raises(SpecError, match="draws do not know zebra"):
        draw_steps(result, 3)


def test_a_fluid_network_is_refused(simmoe: Simmoe) -> None:
    message = "plan: a fluid network does not know zebra parallelism, use --network analytic"
    assert simmoe("simulate", ZEBRA, "--network", "fluid") == (2, "", f"{message}\n")


def test_the_side_that_does_not_fit_is_named(simmoe: Simmoe) -> None:
    found = simmoe("simulate", ZEBRA, "--set", "model.num_layers=20", "--set", "plan.recompute=full")
    memory = pipeline.run(zebra("model.num_layers=20", "plan.recompute=full")).memory[1].total / 2**30
    first, second, *changes = found.err.splitlines()
    assert found.status == 3
    assert first == (
        f"Stage 0 does not fit: each of its 8 NVIDIA A100 SXM4 80 GB with experts needs {memory:.1f} GiB, "
        f"{memory - 80:.1f} GiB more than the 80.0 GiB it has."
    )
    assert second == "Each of these pairs of changes makes it fit:"
    assert "  --set plan.zebra.expert_devices=8 --set plan.zebra.groups=1" in changes


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.num_layers=20", "plan.recompute=full"),
        ("model.num_layers=8", "plan.zebra.groups=1", "plan.zebra.micro_batches=8"),
    ],
    ids=str,
)
def test_every_remedy_makes_it_fit(overrides: tuple[str, ...]) -> None:
    assert not pipeline.run(zebra(*overrides)).fits
    found = list(remedies(zebra(*overrides), ZEBRA, overrides))
    assert found
    for change in found:
        assert pipeline.run(zebra(*overrides, *change)).fits, change
