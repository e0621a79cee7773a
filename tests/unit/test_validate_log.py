"""``simmoe validate SCENARIO --log FILE``: lines of each framework, warm-up, outliers, the verdict."""

from pathlib import Path

import pytest

from simmoe.calibration.log_file import LoggedStep, logged_steps, read_line
from simmoe.calibration.step_times import measured_step
from simmoe.errors import SpecError
from simmoe.pipeline import run
from tests.command_line import Simmoe, in_folder
from tests.scenarios import SMALL, small

LINES = {
    "Megatron-LM": (
        " [2026-01-02 03:04:05] iteration       12/     100 | consumed samples:         1536 | "
        "elapsed time per iteration (ms): 5444.9 | throughput per GPU (TFLOP/s/GPU): 239.8 | "
        "learning rate: 1.0E-05 | global batch size:   128 | "
        "load_balancing_loss: 1.0E+00 | number of nan iterations:   0 |",
        LoggedStep("Megatron-LM", 12, 5.4449, None, None, 239.8, 128),
    ),
    "Megatron-DeepSpeed": (
        " iteration 7/ 10 | elapsed time per iteration (ms): 1200.0 | global batch size: 16 | TFLOPs: 120.50 |",
        LoggedStep("Megatron-LM", 7, 1.2, None, None, 120.5, 16),
    ),
    "Megatron-Bridge": (
        "Step Time : 19.72s GPU utilization: 350.2MODEL_TFLOP/s/GPU",
        LoggedStep("Megatron-Bridge", None, 19.72, None, None, 350.2),
    ),
    "NeMo": (
        "Epoch 0: 5%| | 5/100 [v_num=0, reduced_train_loss=9.8, global_step=4.0, train_step_timing in s=3.210]",
        LoggedStep("NeMo", 4, 3.21),
    ),
    "torchtitan": (
        "\x1b[31mstep: 10  \x1b[32mloss:  7.1  \x1b[33mmemory: 47.2GiB(59%)  \x1b[34mtps: 5,432  "
        "\x1b[36mtflops: 123.45  \x1b[35mmfu: 12.5%",
        LoggedStep("torchtitan", 10, None, None, 5432.0, 123.45),
    ),
    "DeepSpeed pipeline": (
        "steps: 20 loss: 9.7 iter time (s): 0.567 samples/sec: 56.4",
        LoggedStep("DeepSpeed", 20, 0.567, 56.4),
    ),
    "DeepSpeed": (
        "[INFO] epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=9.0, CurrSamplesPerSec=9.5, Mem=1GB",
        LoggedStep("DeepSpeed", 10, None, 9.5),
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_of_every_framework(name: str, tmp_path: Path) -> None:
    line, expected = LINES[name]
    path = tmp_path / "train.log"
    path.write_text(f"starting\n{line}\n", encoding="utf-8")
    (found,) = logged_steps(path)
    assert found._replace(seconds=None) == expected._replace(seconds=None)
    assert found.seconds == (None if expected.seconds is None else pytest.approx(expected.seconds))


@pytest.mark.parametrize(
    "line", ["", "iteration 3/10 | lm loss: 2.0 |", "elapsed time per iteration (ms): soon", "tps"]
)
def test_other_lines_say_nothing(line: str) -> None:
    assert read_line(line) is None


def log(times: list[float], **more: int) -> list[LoggedStep]:
    return [LoggedStep("Megatron-LM", step, took, **more) for step, took in enumerate(times)]  # type: ignore[arg-type]


def test_warm_up_and_outliers_are_left_out_and_counted() -> None:
    times = [23.0, 9.0, 5.0, *[2.0 + 0.01 * (n % 5) for n in range(50)], 90.0, 260.0]
    found = measured_step(log(times), small())
    assert (found.kept, found.warm_up, found.outliers) == (50, 3, 2)
    assert found.median_s == pytest.approx(2.02)
    assert (found.low_s, found.high_s) == pytest.approx((2.0, 2.04))


def test_a_short_log_is_kept_whole_and_steps_of_several_ranks_count_once() -> None:
    assert measured_step(log([2.0]), small()).kept == 1
    assert measured_step(log([2.0, 3.0]) * 8, small()).kept == 2


def test_rates_become_times_by_the_batch_and_the_devices_of_the_scenario() -> None:
    scenario = small()
    batch, tokens = scenario.training.global_batch_size, scenario.training.tokens_per_step
    by_samples = measured_step([LoggedStep("DeepSpeed", 1, samples_per_s=batch / 3.0)], scenario)
    by_tokens = measured_step([LoggedStep("torchtitan", 1, tokens_per_s_per_gpu=tokens / 16 / 3.0)], scenario)
    assert (by_samples.median_s, by_tokens.median_s) == pytest.approx((3.0, 3.0))


def test_another_batch_is_refused() -> None:
    with pytest.raises(SpecError, match="global_batch_size: the log says 7"):
        measured_step(log([2.0], batch=7), small())


@pytest.fixture
def simmoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Simmoe:
    """Runs `simmoe` in a folder with a log whose steps take as long as the simulated ones."""
    took = run(small()).step_time_s * 1e3
    lines = [f" iteration {n}/ 30 | elapsed time per iteration (ms): {took:.1f} |" for n in range(1, 20)]
    (tmp_path / "train.log").write_text("\n".join(lines), encoding="utf-8")
    return in_folder(tmp_path, monkeypatch, capsys)


def test_the_verdict_is_the_exit_status(simmoe: Simmoe) -> None:
    found = simmoe("validate", SMALL, "--log", "train.log")
    assert (found.status, "within the tolerance" in found.out) == (0, True)
    slower = simmoe("validate", SMALL, "--log", "train.log", "--set", "plan.recompute=full", "--tolerance", "0.05")
    assert (slower.status, "beyond the tolerance" in slower.out) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((SMALL,), "--log FILE"),
        (("--log", "train.log"), "SCENARIO"),
        ((SMALL, "--log", "none.log"), "none.log"),
        ((SMALL, "--log", SMALL), "no line tells the time of a step"),
    ],
)
def test_wrong_input_is_one_line(simmoe: Simmoe, arguments: tuple[str | Path, ...], words: str) -> None:
    found = simmoe("validate", *arguments)
    assert found.status == 2
    assert words in found.err
    assert len(found.err.strip().splitlines()) == 1
