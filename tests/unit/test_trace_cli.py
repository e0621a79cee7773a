"""``simmoe trace``: the tables, the JSON object, wrong input."""

import json
from pathlib import Path

import pytest

from tests.command_line import Simmoe, in_folder

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def row(ts: float, dur: float, name: str, **more: object) -> dict[str, object]:
    """A row of a stream."""
    args = {"device": 0, "stream": more.pop("stream", 7), "correlation": more.pop("correlation", 0), **more}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 7, "args": args}


def host(ts: float, dur: float, name: str, cat: str, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": args}


def rank(number: int, late: float) -> str:
    """Two steps of a GEMM, half of it beside an all-reduce that begins late on one rank."""
    events = []
    for step in range(2):
        start = 1000.0 * step
        size = {"Collective name": "allreduce", "In msg nelems": 2**20, "dtype": "BFloat16", "Group size": 2}
        events += [
            host(start, 900, f"ProfilerStep#{step}", "user_annotation"),
            host(start + 1, 1, "cudaLaunchKernel", "cuda_runtime", correlation=10 * step + 1),
            host(start + 3, 1, "cudaLaunchKernel", "cuda_runtime", correlation=10 * step + 2),
            row(start + 10, 400, "sm90_xmma_gemm_bf16", correlation=10 * step + 1),
            row(start + 210 + late, 400 - late, NCCL, stream=21, correlation=10 * step + 2, **size),
        ]
    return json.dumps({"traceEvents": events, "distributedInfo": {"rank": number, "world_size": 2}})


@pytest.fixture
def simmoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Simmoe:
    """Runs `simmoe` in a folder with the traces of two ranks."""
    for number, late in enumerate((0.0, 100.0)):
        (tmp_path / f"rank{number}.json").write_text(rank(number, late), encoding="utf-8")
    return in_folder(tmp_path, monkeypatch, capsys)


def test_the_report_names_what_is_exposed(simmoe: Simmoe) -> None:
    found = simmoe("trace", "rank0.json", "--steps", "--by", "collective")
    assert found.status == 0
    for words in ("rank 0 of 2", "communication, exposed", "ProfilerStep#1", "allreduce"):
        assert words in found.out


def test_figures_add_up(simmoe: Simmoe) -> None:
    said = json.loads(simmoe("trace", "rank0.json", "--json", "-").out)["traces"][0]
    whole, steps = said["trace"], said["steps"]
    assert whole["window_s"] == pytest.approx(1600e-6)
    assert whole["compute_s"] == pytest.approx(800e-6)
    assert whole["exposed_communication_s"] == whole["overlapped_communication_s"] == pytest.approx(400e-6)
    parts = ("compute_s", "exposed_communication_s", "exposed_memory_s", "idle_s")
    assert sum(whole[part] for part in parts) == pytest.approx(whole["window_s"])
    assert [step["window_s"] for step in steps] == pytest.approx([600e-6, 600e-6])
    assert whole["by_class"]["gemm"] == {"rows": 2, "seconds": pytest.approx(800e-6)}


def test_ranks_are_matched_and_waiting_is_told_from_transfer(simmoe: Simmoe) -> None:
    ranks = json.loads(simmoe("trace", "rank0.json", "rank1.json", "--json", "-").out)["ranks"]
    assert ranks["clocks_agree"]
    first, second = ranks["collectives"]
    assert first == second
    assert first["transfer_s"] == pytest.approx(300e-6)
    assert first["waiting_s"] == pytest.approx([100e-6, 0.0])
    assert first["bus_bandwidth"] == pytest.approx(2**21 / 300e-6)
    assert "Collectives over ranks" in simmoe("trace", "rank0.json", "rank1.json").out


def test_kernels_of_ones_own(simmoe: Simmoe) -> None:
    Path("mine.txt").write_text("expert ^sm90_xmma\n", encoding="utf-8")
    said = json.loads(simmoe("trace", "rank0.json", "--classes", "mine.txt", "--json", "-").out)
    assert set(said["traces"][0]["trace"]["by_class"]) == {"expert", "comm"}


def test_a_capture_without_kernels_is_empty_not_wrong(simmoe: Simmoe) -> None:
    Path("none.json").write_text('{"traceEvents": []}', encoding="utf-8")
    found = simmoe("trace", "none.json")
    assert found.status == 0
    assert "the capture holds no kernels" in found.out


@pytest.mark.parametrize(
    ("text", "words"),
    [("{}", "has no traceEvents"), ("", "is empty"), ('{"nodes": [], "schema": 1}', "execution trace")],
)
def test_what_is_no_trace_ends_with_one_line(simmoe: Simmoe, text: str, words: str) -> None:
    Path("wrong.json").write_text(text, encoding="utf-8")
    found = simmoe("trace", "rank0.json", "wrong.json", "--json", "out.json")
    assert found.status == 2
    assert len(found.err.strip().splitlines()) == 1
    assert "wrong.json" in found.err
    assert words in found.err
    assert not Path("out.json").exists()
