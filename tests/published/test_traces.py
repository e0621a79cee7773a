"""Real profiler traces against their known breakdown: `truth.json`, worked out apart from this code."""

import json
from functools import cache
from pathlib import Path
from statistics import median, median_high
from typing import Any

import pytest

from simmoe.calibration.breakdown import Breakdown, breakdown, steps_of
from simmoe.calibration.ranks import match_ranks
from simmoe.calibration.trace import Trace, read_trace
from simmoe.errors import SpecError

TIMES = {
    "window_us": "window_ns",
    "busy_us": "busy_ns",
    "idle_us": "idle_ns",
    "compute_us": "compute_ns",
    "comm_us": "comm_ns",
    "overlapped_comm_us": "overlapped_ns",
    "exposed_comm_us": "exposed_ns",
    "mem_us": "memory_ns",
    "exposed_mem_us": "exposed_memory_ns",
}
SUMS = ("by_class", "by_collective", "by_stream")
NO_STREAM = "hta__large_integer.json.gz"  # its row names no stream; the truth calls that None, we the track it is on


@pytest.fixture(scope="module")
def traces(shared: Path) -> Path:
    return shared / "traces"


@cache
def truth(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    return found


def assert_equal(found: Breakdown, known: dict[str, Any], where: str, *, streams: bool = True) -> None:
    """To 0.1 us, and every row in its class."""
    for name, own in TIMES.items():
        assert getattr(found, own) / 1e3 == pytest.approx(known[name], abs=0.1), (where, name)
    assert found.rows == known["n_gpu_events"], where
    for kind in SUMS if streams else SUMS[:2]:
        mine, theirs = getattr(found, kind), known[kind]
        assert set(mine) == set(theirs), (where, kind)
        for key, share in mine.items():
            assert share.rows == theirs[key]["n"], (where, kind, key)
            assert share.sum_ns / 1e3 == pytest.approx(theirs[key]["sum_us"], abs=0.1), (where, kind, key)


def assert_file(folder: Path, entry: dict[str, Any]) -> int:
    """Rows of a file, all of whose figures are right."""
    path = folder / entry["file"]
    if "not_a_trace" in entry:
        with pytest.raises(SpecError, match="execution trace"):
            read_trace(path)
        return 0
    trace = read_trace(path)
    if entry["trace"] is None:
        assert len(trace) == 0
        assert breakdown(trace).window_ns == 0
        return 0
    assert_equal(breakdown(trace), entry["trace"], entry["file"], streams=entry["file"] != NO_STREAM)
    steps = steps_of(trace)
    assert [step.name for step in steps] == [step["step"] for step in entry["steps"]]
    for step, known in zip(steps, entry["steps"], strict=True):
        if known["launched_in_step"]:
            assert_equal(step.launched, known["launched_in_step"], f"{entry['file']} {step.name}")
        assert_equal(step.clipped, known["wall_clock_window"], f"{entry['file']} {step.name} clipped")
    return len(trace)


SMALL = ("tracelens__b300_moe_01", "megatron-lm-pr1316__tp2_train_rank0", "hta__large", "hta__negative", "hta__minitoy")


def test_a_few_files(traces: Path) -> None:
    chosen = [entry for entry in truth(traces)["files"] if entry["file"].startswith(SMALL)]
    assert sum(assert_file(traces, entry) for entry in chosen) > 250


@pytest.mark.slow
def test_every_file(traces: Path) -> None:
    entries = truth(traces)["files"]
    assert len(entries) >= 60
    assert sum(assert_file(traces, entry) for entry in entries) > 100_000


def group(traces: Path, pattern: str) -> list[Trace]:
    return [read_trace(path) for path in sorted(traces.glob(pattern))]


def test_all_reduces_of_eight_ranks_without_their_waiting(traces: Path) -> None:
    """64 MiB over 8 A100: 192 to 195 GB/s once the last rank has come; 51 ms of the 241 to 495 ms of a rank."""
    ranks = group(traces, "astra-sim__megatron_tp8_rank*.json.gz")
    matching = match_ranks(ranks)
    assert matching.aligned
    assert (len(matching.matched), matching.unmatched) == (84, 0)
    rates = [one.bus_bandwidth for one in matching.matched if one.bytes == 2**26 and one.bus_bandwidth]
    assert len(rates) == 81
    assert 192e9 <= median(rates) <= 195e9
    transfer = sum(one.transfer_ns for one in matching.matched)
    assert transfer == 51_307_000
    for number, trace in enumerate(ranks):
        waited = sum(one.waiting_ns[number] for one in matching.matched)
        assert waited + transfer == pytest.approx(breakdown(trace).comm_ns, rel=0.01)


@pytest.mark.parametrize("number", range(3))
def test_transfer_and_skew_of_matched_ranks(traces: Path, number: int) -> None:
    known = truth(traces)["cross_rank"][number]
    matching = match_ranks([read_trace(traces / file) for file in known["files"]])
    assert matching.aligned == known["clocks_aligned"]
    assert sum(one.transfer_ns for one in matching.matched) / 1e3 == pytest.approx(known["sum_after_last_arrival_us"])
    assert median_high(one.end_skew_ns for one in matching.matched) / 1e3 == pytest.approx(known["median_end_skew_us"])
    assert [one.transfer_ns / 1e3 for one in matching.matched[:10]] == pytest.approx(
        [call["after_last_arrival"] for call in known["first_ten"]]
    )
