"""The trace file: what a viewer and an analyser of real traces need to find in it."""

import gzip
import importlib.util
import itertools
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from simmoe.engine.record import Timeline
from simmoe.engine.simulate import simulate
from simmoe.errors import InternalError, OutputError
from simmoe.graph.ranks import RankClass
from simmoe.report.chrome_trace import write_trace
from simmoe.report.intervals import overlap_length, union_length
from simmoe.report.metrics import rank_metrics
from tests.graphs import Row, classes, graph_of, pipeline_rows, rows

ROWS = [
    Row(2e-6, "host", name="launch"),
    Row(3e-6, after=(0,), name="attention.core", category="attention", layer=1, micro_batch=2),
    Row(1e-6, "ep", (1,), name="moe.dispatch", category="all_to_all", bytes=4096.0),
    Row(1e-6, "dp", (1,), name="gradients", phase="", category="all_reduce"),
    Row(1e-6, "pp_forward", (1,), name="send"),
    Row(2e-6, after=(4,), rank=1),
]
RANKS = (RankClass(0, "h100-sxm", 4, 0), RankClass(1, "a100-sxm-80gb", 2, 4))


@pytest.fixture
def timeline() -> Timeline:
    return simulate(graph_of(ROWS))


def read(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    trace: dict[str, Any] = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return trace


def events(trace: dict[str, Any], **wanted: object) -> list[dict[str, Any]]:
    """The events whose fields have the values wanted."""
    return [e for e in trace["traceEvents"] if wanted.items() <= e.items()]


# ---------------------------------------------------------------- one file for a viewer


def test_one_file_holds_every_rank_as_a_process(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert write_trace(timeline, RANKS, path) == (path,)
    trace = read(path)
    names = [e["args"]["name"] for e in events(trace, name="process_name")]
    assert names == [
        "rank 0: stage 0, h100-sxm, one of 4",
        "rank 4: stage 1, a100-sxm-80gb, one of 2",
    ]
    assert {e["pid"] for e in trace["traceEvents"]} == {0, 4}
    assert len(events(trace, cat="kernel")) == 5
    assert "rank" not in trace["distributedInfo"]


def test_arrows_join_tasks_of_different_ranks(timeline: Timeline, tmp_path: Path) -> None:
    """From inside the send, 5 to 6 us, to the start of the work behind it."""
    write_trace(timeline, RANKS, tmp_path / "trace.json")
    trace = read(tmp_path / "trace.json")
    (leaves,), (arrives,) = events(trace, ph="s"), events(trace, ph="f")
    assert leaves["id"] == arrives["id"]
    assert (leaves["pid"], leaves["ts"]) == (0, 5.999)
    assert (arrives["pid"], arrives["tid"], arrives["ts"]) == (4, 7, 6.0)


def test_a_kernel_says_what_it_is(timeline: Timeline, tmp_path: Path) -> None:
    write_trace(timeline, RANKS, tmp_path / "trace.json")
    trace = read(tmp_path / "trace.json")
    (kernel,) = events(trace, name="attention.core forward")
    assert (kernel["ph"], kernel["cat"], kernel["pid"], kernel["tid"]) == ("X", "kernel", 0, 7)
    assert (kernel["ts"], kernel["dur"]) == (2.0, 3.0)
    wanted = {
        "device": 0, "stream": 7, "correlation": 1, "layer": 1, "micro_batch": 2, "stage": 0,
        "category": "attention", "phase": "forward", "bytes": 0.0,
    }  # fmt: skip
    assert kernel["args"] == wanted


def test_collectives_bear_the_names_of_nccl(timeline: Timeline, tmp_path: Path) -> None:
    """Analysers know communication by a name that begins with nccl, and by nothing else."""
    write_trace(timeline, RANKS, tmp_path / "trace.json")
    kernels = events(read(tmp_path / "trace.json"), cat="kernel")
    named = {e["args"]["operation"]: e for e in kernels if e["name"].startswith("ncclDevKernel_")}
    assert sorted(named) == ["gradients", "moe.dispatch", "send"]
    assert named["moe.dispatch"]["name"].startswith("ncclDevKernel_SendRecv(")
    assert named["moe.dispatch"]["args"]["Collective name"] == "all_to_allv"
    assert named["moe.dispatch"]["args"]["bytes"] == 4096.0
    assert named["gradients"]["name"].startswith("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(")


def test_host_work_is_no_kernel(timeline: Timeline, tmp_path: Path) -> None:
    """An event with a stream counts as device work, whatever its category."""
    write_trace(timeline, RANKS, tmp_path / "trace.json")
    (launch,) = events(read(tmp_path / "trace.json"), name="launch forward")
    assert (launch["cat"], launch["tid"]) == ("cpu_op", 0)
    assert "stream" not in launch["args"]


def test_streams_are_named_and_ordered(timeline: Timeline, tmp_path: Path) -> None:
    write_trace(timeline, RANKS, tmp_path / "trace.json")
    trace = read(tmp_path / "trace.json")
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events(trace, name="thread_name")}
    assert threads == {
        (0, 0): "host", (0, 7): "stream 7 (compute)", (0, 8): "stream 8 (ep)",
        (0, 9): "stream 9 (dp)", (0, 10): "stream 10 (pp_forward)",
        (4, 0): "host", (4, 7): "stream 7 (compute)",
    }  # fmt: skip
    order = {e["tid"]: e["args"]["sort_index"] for e in events(trace, name="thread_sort_index")}
    assert order == {7: 7, 8: 8, 9: 9, 10: 10}


# ---------------------------------------------------------------- a folder for an analyser


def test_a_folder_gets_a_file_for_each_rank(timeline: Timeline, tmp_path: Path) -> None:
    files = write_trace(timeline, RANKS, tmp_path / "a" / "traces")
    assert [file.name for file in files] == ["rank0.json.gz", "rank4.json.gz"]
    traces = [read(file) for file in files]
    assert [t["distributedInfo"] for t in traces] == [
        {"backend": "nccl", "world_size": 6, "rank": 0},
        {"backend": "nccl", "world_size": 6, "rank": 4},
    ]
    assert traces[1]["deviceProperties"] == [{"id": 4, "name": "a100-sxm-80gb"}]
    assert [t["schemaVersion"] for t in traces] == [1, 1]
    assert [len(events(t, cat="kernel")) for t in traces] == [4, 1]


def test_every_rank_holds_the_whole_step(timeline: Timeline, tmp_path: Path) -> None:
    for file in write_trace(timeline, RANKS, tmp_path):
        (step,) = events(read(file), name="ProfilerStep#0")
        assert (step["cat"], step["ts"], step["dur"]) == ("user_annotation", 0.0, 8.0)


def test_traces_of_other_ranks_are_not_mixed_in(timeline: Timeline, tmp_path: Path) -> None:
    (tmp_path / "rank7.json.gz").touch()
    with pytest.raises(OutputError, match=r"rank7\.json\.gz is there from another run"):
        write_trace(timeline, RANKS, tmp_path)


def test_traces_of_the_same_ranks_are_replaced(timeline: Timeline, tmp_path: Path) -> None:
    write_trace(simulate(graph_of(ROWS[:1])), RANKS, tmp_path)
    write_trace(timeline, RANKS, tmp_path)
    assert len(events(read(tmp_path / "rank0.json.gz"), cat="kernel")) == 4


def test_ranks_that_share_a_name_are_a_defect(timeline: Timeline, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="same first rank"):
        write_trace(timeline, (RANKS[0], RANKS[0]), tmp_path)


# ---------------------------------------------------------------- numbers


@given(drawn=rows())
def test_an_analyser_finds_the_times_that_are_reported(
    drawn: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Kernels by name, as HolisticTraceAnalysis does it; each time is rounded to 1 ns."""
    timeline, ranks = simulate(graph_of(drawn)), classes(1, 1, 1)
    files = write_trace(timeline, ranks, tmp_path_factory.mktemp("trace"))
    for file, metrics in zip(files, rank_metrics(timeline, ranks), strict=True):
        kernels = [e for e in read(file)["traceEvents"] if "stream" in e.get("args", {})]
        sums = {}
        for nccl in (False, True):
            found = [e for e in kernels if e["name"].startswith("nccl") == nccl]
            start = np.array([e["ts"] for e in found])
            sums[nccl] = start / 1e6, (start + np.array([e["dur"] for e in found])) / 1e6
        slack = 1e-8 * (len(kernels) + 1)
        assert abs(union_length(*sums[False]) - metrics.compute_s) < slack
        assert abs(union_length(*sums[True]) - metrics.communication_s) < slack
        assert abs(overlap_length(*sums[False], *sums[True]) - metrics.overlapped_s) < slack


def test_what_touches_in_the_simulation_touches_in_the_trace(tmp_path: Path) -> None:
    """Rounding each duration alone would let tasks of one stream overlap or drift apart."""
    timeline = simulate(graph_of([Row(1e-6 / 3)] * 100))
    write_trace(timeline, classes(1), tmp_path / "trace.json")
    found = events(read(tmp_path / "trace.json"), cat="kernel")
    times = [(round(1e3 * e["ts"]), round(1e3 * e["dur"])) for e in found]
    assert all(a + length == b for (a, length), (b, _) in itertools.pairwise(times))
    assert sum(times[-1]) == 33333


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_equal_timelines_give_equal_files(name: str, tmp_path: Path) -> None:
    written = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_trace(simulate(graph_of(ROWS)), RANKS, tmp_path / folder / name)
        written.append((tmp_path / folder / name).read_bytes())
    assert written[0] == written[1]


def test_a_compressed_file_holds_no_time_and_no_name(timeline: Timeline, tmp_path: Path) -> None:
    """Bytes 3 to 7 of gzip's header: flags (a name follows) and time (RFC 1952, section 2.3)."""
    write_trace(timeline, RANKS, tmp_path / "trace.json.gz")
    assert (tmp_path / "trace.json.gz").read_bytes()[3:8] == bytes(5)


def test_many_chunks_are_one_document(tmp_path: Path) -> None:
    timeline = simulate(graph_of(pipeline_rows(4, 32, layers=16)))
    write_trace(timeline, classes(1, 1, 1, 1), tmp_path / "trace.json")
    assert len(events(read(tmp_path / "trace.json"), cat="kernel")) == len(timeline) > 2 * 4096


def test_no_tasks_and_no_ranks_are_still_a_document(tmp_path: Path) -> None:
    write_trace(simulate(graph_of([])), (), tmp_path / "trace.json")
    assert read(tmp_path / "trace.json")["traceEvents"] == []


def test_a_folder_that_is_missing_is_named(timeline: Timeline, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"folder .*/missing does not exist; create it"):
        write_trace(timeline, RANKS, tmp_path / "missing" / "trace.json")


@pytest.mark.parametrize("name", ["file/trace.json", "file/traces"])
def test_a_file_in_the_way_is_named(name: str, timeline: Timeline, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*: not a directory; choose another place"):
        write_trace(timeline, RANKS, tmp_path / name)


def test_a_folder_with_the_name_of_a_file_is_refused(timeline: Timeline, tmp_path: Path) -> None:
    (tmp_path / "trace.json").mkdir()
    with pytest.raises(OutputError, match="it is a folder; name a file"):
        write_trace(timeline, RANKS, tmp_path / "trace.json")


def test_another_suffix_is_refused(timeline: Timeline, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"name a \.json or \.json\.gz file, or a folder"):
        write_trace(timeline, RANKS, tmp_path / "trace.txt")


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """The graph's operation is unknown, so writing fails in the middle of the file."""
    path = tmp_path / "trace.json"
    path.write_text("old")
    timeline = simulate(graph_of(ROWS))
    timeline.graph.operation[5] = 99
    with pytest.raises(IndexError):
        write_trace(timeline, RANKS, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------- tools/check_trace_with_hta.py


@pytest.fixture(scope="module")
def tool(repository: Path) -> ModuleType:
    path = repository / "tools" / "check_trace_with_hta.py"
    spec = importlib.util.spec_from_file_location("check_trace_with_hta", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OURS = {
    "rank": 4, "window_s": 10.0, "compute_s": 6.0, "communication_s": 4.0, "overlapped_s": 1.0,
    "exposed_communication_s": 3.0, "idle_s": 1.0,
}  # fmt: skip
THEIRS = {
    "window_s": 10.0, "compute_s": 6.0, "exposed_communication_s": 3.0, "idle_s": 1.0,
    "overlap_percent": 25.0, "compute_kernels_s": 6.0, "communication_kernels_s": 5.0,
}  # fmt: skip


def test_the_check_is_content_with_equal_times(tool: ModuleType) -> None:
    assert list(tool.differences([OURS], {"4": THEIRS}, 1e-3)) == []


@pytest.mark.parametrize("key", sorted(THEIRS))
def test_the_check_finds_a_difference_in(key: str, tool: ModuleType) -> None:
    wrong = THEIRS | {key: THEIRS[key] * 0.5}
    assert len(list(tool.differences([OURS], {"4": wrong}, 1e-3))) == 1
    assert len(list(tool.differences([OURS], {"4": THEIRS | {key: float("nan")}}, 1e-3))) == 1


def test_the_check_finds_missing_ranks(tool: ModuleType) -> None:
    (sentence,) = tool.differences([OURS], {"0": THEIRS}, 1e-3)
    assert "ranks" in sentence
