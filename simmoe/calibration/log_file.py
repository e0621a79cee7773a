"""Training logs: the lines in which a framework says how long a step took."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from simmoe.errors import SpecError

MOST_BYTES, MOST_LINE = 2**32, 2**14
_NUMBER = r"\s*([0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class LoggedStep(NamedTuple):
    """What one line says.

    Attributes
    ----------
    framework : str
    step : int or None
        Its number.
    seconds : float or None
        Of the step [s].
    samples_per_s : float or None
        Of the whole job [1/s].
    tokens_per_s_per_gpu : float or None
        [tokens/s].
    tflops_per_gpu : float or None
        Model FLOPs by the framework's own count [TFLOP/s].
    batch : int or None
        Sequences of the step.
    """

    framework: str
    step: int | None = None
    seconds: float | None = None
    samples_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    batch: int | None = None


class _Format(NamedTuple):
    """Lines of a framework: what they all hold, and where their figures are; `scale` makes seconds of a time."""

    framework: str
    mark: re.Pattern[str]
    scale: float
    figures: dict[str, re.Pattern[str]]


def _format(framework: str, mark: str, scale: float = 1.0, **figures: str) -> _Format:
    return _Format(framework, re.compile(mark), scale, {name: re.compile(text) for name, text in figures.items()})


FORMATS = (
    # Megatron-LM, and Megatron-DeepSpeed: training.py, training_log.
    _format(
        "Megatron-LM",
        r"elapsed time per iteration \(ms\):",
        1e-3,
        step=r"\biteration" + _NUMBER + r"\s*/",
        seconds=r"elapsed time per iteration \(ms\):" + _NUMBER,
        tflops_per_gpu=r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs):" + _NUMBER,
        batch=r"global batch size:" + _NUMBER,
    ),
    # Megatron-Bridge: train_utils.py.
    _format(
        "Megatron-Bridge",
        r"Step Time\s*:",
        step=r"\b(?:iteration|[Ss]tep)\s+" + _NUMBER,
        seconds=r"Step Time\s*:" + _NUMBER + r"\s*s",
        tflops_per_gpu=r"GPU utilization:" + _NUMBER + r"\s*MODEL_TFLOP/s/GPU",
    ),
    # NeMo with PyTorch Lightning.
    _format(
        "NeMo",
        r"train_step_timing in s",
        step=r"global_step[:=]" + _NUMBER,
        seconds=r"train_step_timing in s[:=]?" + _NUMBER,
    ),
    # torchtitan: components/metrics.py; its tps is that of one device.
    _format(
        "torchtitan",
        r"\bstep:.*\btps:",
        step=r"\bstep:" + _NUMBER,
        tokens_per_s_per_gpu=r"\btps:" + _NUMBER,
        tflops_per_gpu=r"\btflops:" + _NUMBER,
    ),
    # DeepSpeed: the pipeline engine, and ThroughputTimer.
    _format(
        "DeepSpeed",
        r"iter time \(s\):",
        step=r"\bsteps?:" + _NUMBER,
        seconds=r"iter time \(s\):" + _NUMBER,
        samples_per_s=r"samples/sec:" + _NUMBER,
    ),
    _format(
        "DeepSpeed",
        r"CurrSamplesPerSec=",
        step=r"global_step=" + _NUMBER,
        samples_per_s=r"CurrSamplesPerSec=" + _NUMBER,
    ),
)
"""In this order; the first whose mark a line holds reads it."""


def logged_steps(path: Path) -> list[LoggedStep]:
    """The steps of a training log.

    Parameters
    ----------
    path : Path
        Text, of any encoding that agrees with ASCII.

    Returns
    -------
    list of LoggedStep
        In the order of the file; a step that several ranks report comes several times.

    Raises
    ------
    SpecError
        If the file cannot be read or no line is one of `FORMATS`.
    """
    found = [step for line in _lines(path) if (step := read_line(line)) is not None]
    if not found:
        names = ", ".join(dict.fromkeys(one.framework for one in FORMATS))
        raise SpecError([f"{path}: no line tells the time of a step, give a log of {names}"])
    return found


def read_line(line: str) -> LoggedStep | None:
    """What a line of a log says of a step; None if it says nothing.

    Parameters
    ----------
    line : str

    Examples
    --------
    >>> read_line(" iteration 10/ 500 | elapsed time per iteration (ms): 5444.9 | global batch size: 128 |").seconds
    5.4449
    >>> read_line("step:  10  loss:  7.0  memory: 40GiB  tps: 5,432  tflops: 101.0  mfu: 30%").tokens_per_s_per_gpu
    5432.0
    """
    for one in FORMATS:
        if not one.mark.search(line):
            continue
        values = {name: _value(pattern.search(line)) for name, pattern in one.figures.items()}
        if all(values.get(name) is None for name in ("seconds", "samples_per_s", "tokens_per_s_per_gpu")):
            return None
        seconds, step, batch = (values.pop(name, None) for name in ("seconds", "step", "batch"))
        return LoggedStep(
            framework=one.framework,
            step=None if step is None else int(step),
            seconds=None if seconds is None else seconds * one.scale,
            batch=None if batch is None else int(batch),
            **values,
        )
    return None


def _value(found: re.Match[str] | None) -> float | None:
    return float(found[1].replace(",", "")) if found else None


def _lines(path: Path) -> Iterator[str]:
    """Lines of a file, long ones cut."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SpecError([f"{path}: is larger than {MOST_BYTES // 2**30} GiB, cut the log"])
        with path.open(encoding="utf-8", errors="replace") as file:
            while line := file.readline(MOST_LINE):
                yield _COLOUR.sub("", line)
    except OSError as error:
        raise SpecError([f"{path}: cannot be read ({error.strerror or error}), check its name"]) from None
