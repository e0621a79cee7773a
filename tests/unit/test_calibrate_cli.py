"""``simmoe calibrate`` and ``simmoe validate --trace``: files in, an overlay out, a verdict."""

from pathlib import Path

import pytest

from simmoe.calibration.fitted_numbers import with_values
from simmoe.pipeline import run
from simmoe.report.chrome_trace import write_trace
from simmoe.specs.numbers import numbers_of
from simmoe.specs.overlay_file import load_overlaid
from simmoe.specs.scenario_parts import parts_of
from tests.command_line import Simmoe, in_folder
from tests.scenarios import SMALL, small

PART = "accelerator h100-sxm5-80gb"


@pytest.fixture
def simmoe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simmoe:
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Of the small scenario on accelerators whose products are a quarter slower."""
    scenario = small()
    slow = [n for n in numbers_of(parts_of(scenario)[PART], PART) if "gemm" in n.name and n.name.endswith("sustained")]
    slower = with_values(scenario, slow, [number.quantity.value * 0.75 for number in slow])
    result = run(slower)
    return write_trace(result.timeline, result.ranks, tmp_path_factory.mktemp("traces") / "slower")


def test_the_overlay_explains_the_traces(simmoe: Simmoe, traces: tuple[Path, ...], tmp_path: Path):
    first = simmoe("calibrate", *traces, "--scenario", SMALL, "-o", "own.yaml")
    assert (first.status, first.err) == (0, "")
    assert "efficiency.gemm[bf16].sustained" in first.out
    assert "-25.0 %" in first.out
    text = (tmp_path / "own.yaml").read_bytes()
    assert simmoe("calibrate", *traces, "--scenario", SMALL, "-o", "again.yaml").status == 0
    assert (tmp_path / "again.yaml").read_bytes() == text
    fitted = load_overlaid(SMALL, overlay=tmp_path / "own.yaml").cluster.groups[0].node.accelerator.efficiency
    assert fitted.gemm[0].sustained.value == pytest.approx(0.823 * 0.75, rel=0.005)
    assert str(traces[0].parent) not in text.decode(), "folders are not told"

    options = [option for path in traces for option in ("--trace", path)]
    before = simmoe("validate", SMALL, *options)
    assert before.status == 1
    assert "beyond the tolerance" in before.out
    after = simmoe("validate", SMALL, *options, "--overlay", "own.yaml", "--tolerance", "0.01", "--plot", "step.svg")
    assert (after.status, after.err) == (0, "")
    assert "within the tolerance" in after.out
    assert "matrix products" in (tmp_path / "step.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "calibrate: nothing that was measured is given, name a TRACE, --runs, --nccl-log or --gemm-csv"),
        (("none.json",), "none.json: no such file, check its name"),
        (("empty.json",), "empty.json: no kernels here"),
        (("other.json",), "other.json: distributedInfo.world_size: a job of 8 ranks, the scenario has 16 devices"),
    ],
)
def test_wrong_input(simmoe: Simmoe, tmp_path: Path, arguments: tuple[str, ...], message: str):
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    event = '{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1, "pid": 0, "tid": 7}'
    (tmp_path / "other.json").write_text(f'{{"distributedInfo": {{"world_size": 8}}, "traceEvents": [{event}]}}')
    outcome = simmoe("calibrate", *arguments, "--scenario", SMALL, "-o", "own.yaml")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(message)
    assert not (tmp_path / "own.yaml").exists()


def test_a_trace_of_something_else_is_refused(simmoe: Simmoe, tmp_path: Path):
    event = '{"ph": "X", "cat": "kernel", "name": "my_own", "ts": 1, "dur": 1, "pid": 0, "tid": 7}'
    (tmp_path / "other.json").write_text(f'{{"traceEvents": [{event}]}}')
    outcome = simmoe("calibrate", "other.json", "--scenario", SMALL, "-o", "own.yaml")
    assert outcome.status == 2
    assert "no measured kernel has a counterpart in the scenario" in outcome.err
    assert not (tmp_path / "own.yaml").exists()


@pytest.mark.parametrize(
    "arguments", [("--trace", "x.json"), (SMALL,), (SMALL, "--log", "a", "--trace", "b"), ("--log", "x.log")]
)
def test_validate_wants_a_scenario_and_one_kind_of_measurement(simmoe: Simmoe, arguments: tuple[str, ...]):
    outcome = simmoe("validate", *arguments)
    assert outcome.status == 2
    assert "write validate SCENARIO --log FILE, --trace FILE or --runs CSV" in outcome.err


def test_trace_draws_the_step(simmoe: Simmoe, traces: tuple[Path, ...], tmp_path: Path):
    assert simmoe("trace", traces[0], "--plot", "step.png").status == 0
    assert (tmp_path / "step.png").stat().st_size > 10_000
    assert simmoe("trace", traces[0], "--plot", "step.bmp").status != 0
