"""What a reader of profiler traces must survive: the public failures, a minimal input each, and hostile files."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simmoe.calibration import trace_file, trace_json
from simmoe.calibration.breakdown import breakdown, row_classes, steps_of
from simmoe.calibration.classes_file import read_classes
from simmoe.calibration.collective_calls import collectives
from simmoe.calibration.kernel_classes import TABLE, class_of
from simmoe.calibration.ranks import match_ranks
from simmoe.calibration.trace import Trace, lanes_overlap, nanoseconds, read_trace
from simmoe.errors import SpecError
from tests.traces import Folder, kernel, launch, step

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture
def at(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def wrapped(event: bytes | str) -> bytes:
    """An event as it is written, between two good ones."""
    good = json.dumps(kernel(ts=100)).encode()
    raw = event.encode() if isinstance(event, str) else event
    return b'{"traceEvents": [' + good + b",\n" + raw + b",\n" + good.replace(b"100", b"200") + b"]}"


# ---------------------------------------------------------------- the 33 public cases


@pytest.mark.parametrize(
    "event",
    [
        b'{"ph":"X","cat":"python_function","name":"{"device": "cpu"}(12): run","ts":1,"dur":1}',  # 1
        b'{"ph":"X","cat":"python_function","name":"a\nb","ts":1,"dur":1}',  # 1
        b'{"ph":"X","cat":"cpu_op","name":"a\x01b","ts":1,"dur":1}',  # 2
        b'{"ph":"X","cat":"cpu_op","name":"torch\\cuda\\__init__.py","ts":1,"dur":1}',  # 3
        b'{"name":"a","ph":"f",tid": 0}',  # 4
    ],
)
def test_1_to_4_events_that_are_no_json_are_left_out_and_told(at: Folder, event: bytes) -> None:
    trace = at.raw(wrapped(event))
    assert trace.start_ns.tolist() == [100_000, 200_000]
    assert "1 events are no JSON" in trace.warnings[0]


def test_3_bytes_that_are_no_utf8(at: Folder) -> None:
    row = json.dumps(kernel(name="caf#")).encode().replace(b"#", b"\xff")
    trace = at.raw(b'{"traceEvents": [' + row + b"]}")
    assert len(trace) == 1


def test_4_a_trailing_comma(at: Folder) -> None:
    assert len(at.raw(b"[" + json.dumps(kernel()).encode() + b",]")) == 1
    assert len(at.raw(b"[" + json.dumps(kernel()).encode() + b",\n")) == 1, "Chrome's list may stay open"


def test_5_cut_off_and_doubled_files(at: Folder) -> None:
    whole = json.dumps({"traceEvents": [kernel(name="k" * 50) for _ in range(20)]})
    with pytest.raises(SpecError, match=r"ends in the midst of an event \(byte 2,000\)"):
        at.raw(whole[:2000])
    with pytest.raises(SpecError, match="two traces"):
        at.raw(whole + whole)


def test_6_integers_beyond_64_bits(at: Folder) -> None:
    trace = at.events(kernel(name=NCCL, **{"Comms Id": 10159970886766084423}))
    assert len(collectives(trace, row_classes(trace) == "comm")) == 1
    assert len(at.raw('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "args": {"a": 1e400}}]}')) == 1


@pytest.mark.parametrize(
    "info", [{}, {"distributedInfo": {}}, {"distributedInfo": {"rank": "x"}}, {"distributedInfo": []}]
)
def test_7_no_rank(at: Folder, info: dict[str, Any]) -> None:
    trace = at.events(kernel(), **info)
    assert (trace.rank, trace.world_size) == (None, None)


def test_8_every_spelling_of_nccl(at: Folder) -> None:
    names = (
        NCCL,
        NCCL.lower(),
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "ncclDevKernel_Generic",
        "void rcclKernel(int)",
    )
    trace = at.events(*(kernel(ts=10 * n, name=name) for n, name in enumerate(names)))
    assert breakdown(trace).by_class["comm"].rows == len(names)
    only = {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "ts": 1, "dur": 5, "pid": 1, "tid": 2}
    assert breakdown(at.events(only)).comm_ns == 0


@pytest.mark.parametrize("category", ["cuda_sync", "cpu_op", "gpu_user_annotation", "overhead", "mtia_ccp_events"])
def test_9_and_11_a_stream_makes_no_kernel(at: Folder, category: str) -> None:
    """Synchronisation, and rows of the host that name a stream."""
    trace = at.events(kernel(), kernel(ts=100, dur=1000, name="Stream Wait Event", cat=category))
    assert len(trace) == 1


@pytest.mark.parametrize(
    ("name", "expected"), [("SyncBatchNorm_fwd", "norm"), ("cudaMemsetsync", "other"), ("MemcpyLike", "elementwise")]
)
def test_10_parts_of_names(name: str, expected: str) -> None:
    assert class_of(name) in {expected, "other"} if expected == "elementwise" else class_of(name) == expected


@pytest.mark.parametrize("name", ["cudaLaunchKernelExC", "cuLaunchKernelEx", "hipExtLaunchKernel", "invented"])
def test_12_any_name_launches(at: Folder, name: str) -> None:
    trace = at.events(launch(5, 1, name), kernel())
    assert trace.launch_ns.tolist() == [5000]


def test_13_many_kernels_of_one_launch(at: Folder) -> None:
    rows = [kernel(ts=10 * n, correlation=3) for n in range(1, 545)]
    trace = at.events(step(1, 0, 8), launch(5, 3, "hipGraphLaunch"), *rows)
    assert steps_of(trace)[0].launched.rows == 544


def test_14_a_kernel_at_the_beginning_of_time(at: Folder) -> None:
    trace = at.events(kernel(ts=0, dur=0), kernel(ts=1.6e15), kernel(ts=1.6e15 + 50))
    assert breakdown(trace).window_ns == 55_000
    assert "ten years" in trace.warnings[0]


def test_15_kernels_without_length(at: Folder) -> None:
    assert breakdown(at.events(kernel(dur=0))).window_ns == 0
    both = breakdown(at.events(kernel(ts=10, dur=10), kernel(ts=15, dur=0)))
    assert (both.busy_ns, both.rows) == (10_000, 2)


def test_16_negative_durations(at: Folder) -> None:
    trace = at.events(kernel(), kernel(dur=-1661948466265125))
    assert len(trace) == 1
    assert "end before they begin" in trace.warnings[0]


def test_17_a_duration_that_outlasts_the_next_kernels(at: Folder) -> None:
    trace = at.events(kernel(ts=0, dur=1.6e6), kernel(ts=10), kernel(ts=20))
    assert [before for _, before in lanes_overlap(trace)] == [0, 0]
    assert breakdown(trace).idle_ns == 0


def test_18_overlaps_on_one_stream_are_kept(at: Folder) -> None:
    trace = at.events(kernel(ts=10, dur=10), kernel(ts=18, dur=10))
    assert (len(trace), breakdown(trace).busy_ns) == (2, 18_000)


def test_19_and_20_nanoseconds_are_exact(at: Folder) -> None:
    trace = at.raw(
        '{"displayTimeUnit": "ns", "traceEvents": ['
        '{"ph":"X","cat":"kernel","name":"a","ts":1712345678901234.567,"dur":0.001},'
        '{"ph":"X","cat":"kernel","name":"b","ts":1712345678997234.568,"dur":1}]}'
    )
    assert (trace.start_ns[1] - trace.start_ns[0], trace.end_ns[0] - trace.start_ns[0]) == (96_000_001, 1)


def test_21_two_epochs_of_two_builds(at: Folder) -> None:
    old = at.events(kernel(ts=1712345678901234, name=NCCL), name="old.json")
    base = 1712345678000000000
    new = at.events(kernel(ts=901234.0, name=NCCL), name="new.json", baseTimeNanoseconds=base)
    assert old.start_ns.tolist() == new.start_ns.tolist()


def test_22_and_23_steps_without_kernels_and_traces_without_steps(at: Folder) -> None:
    trace = at.events(step(1, 0, 10), step(2, 10, 10), launch(12, 1), kernel(ts=15))
    first, second = steps_of(trace)
    assert (first.launched.rows, first.launched.window_ns, second.launched.rows) == (0, 0, 1)
    assert steps_of(at.events(kernel())) == []


def test_24_and_25_collectives_without_metadata_and_with_unknown_names(at: Folder) -> None:
    trace = at.events(
        kernel(ts=1, name=NCCL),
        kernel(ts=10, name=NCCL, **{"Collective name": "allgather_into_tensor_coalesced"}),
        kernel(ts=20, name=NCCL, **{"Collective name": "invented", "In msg nelems": 4, "dtype": "Float"}),
    )
    found = collectives(trace, row_classes(trace) == "comm")
    assert [call.kind for call in found] == ["all_reduce", "all_gather", "invented"]
    assert [call.bytes for call in found] == [None, None, 16]


def two_ranks(at: Folder, change: int = 0) -> list[Trace]:
    """A collective of 4 MiB: the first rank waits 90 us for the second."""
    size = {"Collective name": "allreduce", "In msg nelems": 2**20, "dtype": "Float", "Group size": 2}
    ids = {"correlation": 7, "External id": 9}
    return [
        at.events(kernel(ts=0, dur=100, name=NCCL, **size), name="0.json"),
        at.events(kernel(ts=90, dur=10, name=NCCL, **size | ids | {"correlation": change}), name="1.json"),
    ]


@pytest.mark.parametrize("change", [0, 7])
def test_26_and_27_ranks_are_matched_by_order_not_by_ids(at: Folder, change: int) -> None:
    """AMD's tracer gives all communication kernels correlation 0."""
    matching = match_ranks(two_ranks(at, change))
    (one,) = matching.matched
    assert (one.transfer_ns, one.waiting_ns) == (10_000, (90_000, 0))
    assert one.bus_bandwidth == pytest.approx(2**22 / 10e-6)


def test_28_streams_of_64_bits_and_ranks_without_streams(at: Folder) -> None:
    trace = at.events(kernel(stream=94123456789012))
    assert list(breakdown(trace).by_stream) == ["94123456789012"]
    assert match_ranks([trace, at.events(name="empty.json")]).matched == ()


def test_29_correlations_without_a_launch(at: Folder) -> None:
    trace = at.events(kernel(correlation=-1), kernel(ts=20, correlation=99), kernel(ts=30, name="CopyHostToDevice"))
    assert trace.launch_ns.tolist() == [-1, -1, -1]


def test_30_times_as_strings(at: Folder) -> None:
    trace = at.events(kernel(ts="1715558400123456.789", dur="2.5"))
    assert (trace.start_ns[0], trace.end_ns[0]) == (1715558400123456789, 1715558400123459289)


def test_31_a_collective_that_one_rank_lacks_is_not_matched(at: Folder) -> None:
    first, second = (
        at.events(*(kernel(ts=10 * n, name=NCCL) for n in range(count)), name=f"{count}.json") for count in (3, 2)
    )
    matching = match_ranks([first, second])
    assert (matching.matched, matching.unmatched) == ((), 5)


def test_32_an_execution_trace(at: Folder) -> None:
    with pytest.raises(SpecError, match="is an execution trace"):
        at.raw('{"schema": "1.0.1", "pid": 1, "nodes": [], "start_ts": 1}')


def test_33_old_spellings(at: Folder) -> None:
    """Capitalised categories, streams as words, a list instead of an object."""
    row = {"ph": "X", "cat": "Kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": "stream 7", "args": {}}
    trace = at.raw(json.dumps([row, {**row, "cat": "Memcpy", "ts": 5}]))
    assert list(breakdown(trace).by_stream) == ["7"]
    assert trace.kind.tolist() == [0, 1]


# ---------------------------------------------------------------- files that are none, and hostile ones


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"hello", "is no JSON"),
        (b'{"a": 1}', "has no traceEvents"),
        (b'{"traceEvents": {}}', "has no traceEvents"),
        (b'{"traceEvents": [{"ph": "X"', "ends in the midst"),
        (b"[" * 100_000, "ends in the midst"),
        (b'[{"args": ' + b"[" * 200_000, "ends in the midst"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(at: Folder, text: bytes, words: str) -> None:
    with pytest.raises(SpecError, match=words) as error:
        at.raw(text)
    assert len(error.value.problems) == 1
    assert "trace.json" in error.value.problems[0]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        read_trace(tmp_path / "none.json")


def test_gzip_is_told_by_its_first_bytes_and_truncation_by_its_end(at: Folder) -> None:
    packed = gzip.compress(json.dumps({"traceEvents": [kernel()] * 1000}).encode())
    assert len(read_trace(at.text(packed, "trace.json"))) == 1000
    with pytest.raises(SpecError, match="cut off or damaged"):
        read_trace(at.text(packed[: len(packed) // 2], "short.json.gz"))
    with pytest.raises(SpecError, match="cut off or damaged"):
        read_trace(at.text(packed[:20] + b"\x00" * 50, "bad.json.gz"))


def test_a_gzip_bomb_is_stopped(at: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "FREE_BYTES", 2**20)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = packer.compress(b'{"traceEvents": [' + b" " * 2**25) + packer.flush()
    with pytest.raises(SpecError, match="which no trace does"):
        read_trace(at.text(bomb, "bomb.json.gz"))


def test_an_endless_event_is_stopped(at: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_json, "MOST_HEADER", 2**20)
    with pytest.raises(SpecError, match="longer than"):
        at.raw(b'[{"name": "' + b"x" * 2**23)


def test_numbers_that_are_none(at: Folder) -> None:
    trace = at.raw(
        wrapped(b'{"ph":"X","cat":"kernel","name":"k","ts":NaN,"dur":Infinity,"args":{"a":[NaN,-Infinity]}}')
    )
    assert len(trace) == 2
    assert "have no time" in trace.warnings[0]
    huge = at.events(kernel(dur=1e300), kernel())
    assert len(huge) == 1


def test_keys_that_come_twice_and_keys_behind_the_events(at: Folder) -> None:
    text = '{"traceEvents": [{"ph":"X","ph":"X","cat":"kernel","ts":1,"dur":2}], "distributedInfo": {"rank": 3}}'
    assert at.raw(text).rank == 3


def test_nothing_private_is_kept(at: Folder) -> None:
    """Unknown keys and functions of code are dropped; a whole environment once stood in a trace."""
    function = {"ph": "X", "cat": "python_function", "name": "/home/me/secret.py", "ts": 1, "dur": 1}
    trace = at.events(function, kernel(), metadata={"system": {"TOKEN": "hunter2"}}, username="me")
    assert "secret" not in repr(trace)
    assert "hunter2" not in repr(trace)


def test_blocks_do_not_matter(at: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file cut into many blocks, also within strings that look like ends of events, reads as a whole."""
    names = ["}, {", '"}],"', "plain", "[{", "\\"]
    events = [kernel(ts=n, dur=1, name=names[n % 5], note={"a": [{"b": "},"}]}) for n in range(4000)]
    path = at.text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 1}}))
    whole = read_trace(path)
    monkeypatch.setattr(trace_file, "CHUNK", 1009)
    monkeypatch.setattr(trace_json, "CHUNK", 2003)
    cut = read_trace(path)
    assert len(cut) == 4000
    assert np.array_equal(cut.start_ns, whole.start_ns)
    assert (cut.names, cut.rank) == (whole.names, 1)


@pytest.mark.parametrize("text", [b"1", b"1.5", b'"2.25"', b"0.0001", b"1e3", b"-5", b"123456789.123"])
def test_times_are_rounded_to_nanoseconds_only(text: bytes) -> None:
    expected = round(float(text.strip(b'"')) * 1000)
    assert nanoseconds(text) == expected


def test_classes_of_ones_own_come_first(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text("# mine\nmoe ^my_.*gemm  # before gemm\n", encoding="utf-8")
    table = read_classes(path)
    assert (class_of("my_gemm", table), class_of("my_gemm"), len(table)) == ("moe", "gemm", len(TABLE) + 1)
    path.write_text("alone\nbad [\n", encoding="utf-8")
    with pytest.raises(SpecError) as error:
        read_classes(path)
    assert [text.split(": ")[0].rsplit(":", 1)[1] for text in error.value.problems] == ["1", "2"]
