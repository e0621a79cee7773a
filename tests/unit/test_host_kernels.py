"""Operators of a processor that trains stand for kernels: which of them, and with what time."""

from pathlib import Path

from simmoe.calibration.breakdown import row_classes
from simmoe.calibration.collective_calls import collectives
from simmoe.calibration.host_kernels import DISPATCH_NS, Span, working
from simmoe.calibration.kernel_classes import COMMUNICATION
from simmoe.calibration.trace import read_trace

HERE, THERE = ("1", "1"), ("1", "2")


def span(name: str, start: int, end: int, thread: tuple[str, str] = HERE) -> Span:
    return Span(name, start, end, thread, {})


def found(*spans: Span) -> list[tuple[str, int, int]]:
    return [(one.name, one.start_ns, one.end_ns) for one in working(spans)]


def test_the_outermost_operator_that_works_itself_counts():
    nested = [span("aten::linear", 0, 100), span("aten::matmul", 1, 99), span("aten::mm", 2, 98)]
    assert found(*nested, span("aten::resolve_conj", 3, 4)) == [("aten::mm", 2, 98)]
    assert found(span("aten::softmax", 0, 100), span("aten::_softmax", 60, 99)) == [("aten::softmax", 0, 100)]


def test_threads_do_not_nest_in_each_other():
    assert found(span("a", 0, 100), span("b", 10, 90, THERE)) == [("a", 0, 100), ("b", 10, 90)]


def test_an_operator_begins_where_the_one_before_ended():
    assert found(span("a", 0, 100), span("b", 140, 200)) == [("a", 0, 100), ("b", 100, 200)]
    far = 100 + DISPATCH_NS
    assert found(span("a", 0, 100), span("b", far, far + 1)) == [("a", 0, 100), ("b", far, far + 1)]


def test_what_calls_a_collective_waits_and_is_none():
    spans = [span("a", 0, 10), span("Exchange", 20, 500), span("c10d::alltoall_base_", 25, 30), span("b", 510, 600)]
    assert found(*spans) == [("a", 0, 10), ("b", 510, 600)]


def test_a_capture_of_gloo_is_read_only_if_the_processor_trains(shared: Path):
    path = shared / "traces" / "torch_cpu_moe_rank0.json.gz"
    assert len(read_trace(path)) == 0
    trace = read_trace(path, on_host=True)
    classes = row_classes(trace).tolist()
    assert classes.count("gemm") == 44
    calls = collectives(trace, row_classes(trace) == COMMUNICATION)
    assert {call.kind for call in calls} == {"all_to_all", "all_reduce"}
    assert all(call.bytes for call in calls)
