"""Fit the memory-bound parameters of the accelerators with published kernel times.

    python -m tools.fits.memory_bound [--check] [PART ...]

As ``tools.fits.gemm``: the fractions of the bandwidth go into ``hardware_db/efficiency/<part>/memory_bound.csv``,
errors into ``residuals.csv``. Kernels of training frameworks come first, those of inference servers where there are
no others. Only large kernels are used, so the launch stays what it is.
"""

import argparse
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.kernels import memory_bound_time
from simmoe.cost.operators import MemoryBound
from simmoe.specs import catalog
from simmoe.specs.hardware import MemoryBoundEfficiency
from simmoe.specs.residuals_file import Residual
from tools.fits import report
from tools.fits.memory_tables import LAUNCHES, Moves, llmcompass, llmservingsim, sailor, vidur
from tools.fits.regression import fit, trial

LIMIT = 0.10  # median error on held-out shapes
SOFTWARE = 0.15  # kernels of two frameworks differ by about this much where only one was measured
BOUNDS = {"launch": (5e-7, 3e-5), "memory": (0.05, 1.3), "eager": (0.0, 2e-4)}
PRIOR = {"launch": (2e-6, 1e-6)}  # kernels this large say little about it
START = {"launch": 3e-6, "memory": 0.7, "eager": 3e-5}
Values = dict[str, float]
Loader = Callable[[], Moves]


class Test(NamedTuple):
    """Kernels that a part's parameters are tested on and were not fitted to; `measured` names another part."""

    load: Loader
    kernels: tuple[str, ...]
    measured: str = ""


class Job(NamedTuple):
    """One fit: the operator of a part, the table and the kernels it is fitted to; `measured` names another part."""

    part: str
    operator: str
    load: Loader
    kernels: tuple[str, ...]
    tests: tuple[Test, ...] = ()
    measured: str = ""


def _load(function: Callable[..., Moves], *arguments: str) -> Loader:
    return cache(partial(function, *arguments))


_A40 = _load(vidur, "vidur/compute/a40/*/*/mlp.csv.gz")
_A100 = _load(vidur, "vidur/compute/a100/*/*/mlp.csv.gz")
_H100 = _load(vidur, "vidur/compute/h100/*/*/mlp.csv.gz")
_H800 = _load(vidur, "frontier/h800/Llama-3.1-*/linear_op_kernel_only.csv.xz")
_SAILOR = {gpu: _load(sailor, gpu) for gpu in ("A100-40", "GH-96", "RTX-3090", "Titan-RTX", "V100-16")}

JOBS = (
    Job("a40", "elementwise", _A40, ("layer",)),
    Job("a40", "norm", _A40, ("norm",)),
    Job("a40", "permute", _A40, ("gather",)),
    Job(
        "a100-sxm4-80gb",
        "elementwise",
        _load(llmcompass, "A100", "gelu"),
        ("activation",),
        (Test(_SAILOR["A100-40"], ("activation",), "a100-sxm4-40gb"), Test(_A100, ("layer",))),
    ),
    Job(
        "a100-sxm4-80gb",
        "norm",
        _load(llmcompass, "A100", "layernorm"),
        ("norm",),
        (Test(_SAILOR["A100-40"], ("norm",), "a100-sxm4-40gb"), Test(_A100, ("norm",))),
    ),
    Job(
        "h100-sxm5-80gb",
        "elementwise",
        _H100,
        ("layer",),
        (Test(_H800, ("fused layer",), "h800"), Test(_SAILOR["GH-96"], ("activation",), "gh200-96gb")),
    ),
    Job("h100-sxm5-80gb", "norm", _H800, ("norm",), (Test(_H100, ("norm",)),), "h800"),
    Job("v100-sxm2-16gb", "elementwise", _SAILOR["V100-16"], ("activation",)),
    Job("v100-sxm2-16gb", "norm", _SAILOR["V100-16"], ("norm",)),
    Job("titan-rtx", "elementwise", _SAILOR["Titan-RTX"], ("activation",)),
    Job("titan-rtx", "norm", _SAILOR["Titan-RTX"], ("norm",)),
    Job(
        "rtx-3090",
        "elementwise",
        _SAILOR["RTX-3090"],
        ("activation",),
        (Test(_load(llmservingsim, "RTX3090"), ("activation",)),),
    ),
    Job("rtx-a6000", "elementwise", _load(llmservingsim, "A6000"), ("activation",)),
    Job("mi210", "elementwise", _load(llmcompass, "MI210", "gelu"), ("activation",)),
    Job("mi210", "norm", _load(llmcompass, "MI210", "layernorm"), ("norm",)),
)


def predict(moves: Moves, part: str, operator: str, values: Values) -> NDArray[np.float64]:
    """Seconds of every kernel with the cost model's own function [s]; `eager` is added to eager tables."""
    bandwidth = catalog.accelerator(part).memory_bandwidth.value
    efficiency = MemoryBoundEfficiency.model_validate(
        {"operator": operator, "launch": {**_ROW, "value": "1 s"}, "memory": {**_ROW, "value": "1"}}
    ).model_copy(update={"launch": trial(values["launch"]), "memory": trial(values["memory"])})
    works = [
        MemoryBound(efficiency.operator, float(size), kernels=LAUNCHES.get(kernel, 1))
        for kernel, size in zip(moves.kernels, moves.bytes, strict=True)
    ]
    times = np.array([memory_bound_time(work, bandwidth=bandwidth, efficiency=efficiency) for work in works])
    return times + values.get("eager", 0.0) if moves.eager else times


_ROW = {"source": "fit", "kind": "measured"}


def regress(moves: Moves, part: str, operator: str, fixed: Values) -> Values:
    """What `fixed` leaves open of the fraction and, for eager tables, the framework's launch."""
    free = [name for name in START if name not in fixed and (name != "eager" or moves.eager)]
    found = fit(
        lambda values: predict(moves, part, operator, fixed | values),
        moves.seconds,
        {name: START[name] for name in free},
        {name: BOUNDS[name] for name in free},
    )
    return fixed | found


def shipped(part: str, operator: str) -> Values:
    """The parameters in the hardware database."""
    found = next(one for one in catalog.accelerator(part).efficiency.memory_bound if one.operator == operator)
    return {"launch": found.launch.value, "memory": found.memory.value}


def write(job: Job) -> None:
    """Fit one job on the shapes that are not held out and write its rows."""
    moves = job.load().of(job.kernels)
    part = job.measured or job.part
    train, test = moves.split()
    known = next(one for one in catalog.accelerator(job.part).efficiency.memory_bound if one.operator == job.operator)
    values = regress(train, part, job.operator, {"launch": known.launch.value})
    own = report.errors(predict(test, part, job.operator, values), test.seconds)
    biases = [abs(_errors(one, job, values).bias) for one in job.tests]
    spread = f"{np.hypot(own.median, min(0.3, max(biases, default=SOFTWARE))):.2f}"
    cited = (moves.source, f"{moves.locator}: {', '.join(job.kernels)}")
    rows = {"memory": report.Parameter(f"{values['memory']:.3f}", "measured", *cited, spread)}
    launch = report.Parameter(known.launch.text, "guess", "simmoe-judgement", "", "0.5", "as the part it inherits from")
    report.write_variant(job.part, "memory_bound", job.operator, rows, {"launch": launch})
    print(job.part, job.operator, {name: float(f"{value:.4g}") for name, value in values.items()}, flush=True)


def _errors(test: Test, job: Job, values: Values) -> report.Errors:
    moves = test.load().of(test.kernels)
    part = test.measured or job.part
    values = {name: values[name] for name in ("launch", "memory")}
    values = regress(moves, part, job.operator, values) if moves.eager else values
    return report.errors(predict(moves, part, job.operator, values), moves.seconds)


def residuals(job: Job) -> list[Residual]:
    """Errors of the shipped parameters on held-out shapes and on every other source of a job."""
    moves = job.load().of(job.kernels)
    part = job.measured or job.part
    train, test = moves.split()
    values = shipped(job.part, job.operator)
    values = regress(train, part, job.operator, values) if moves.eager else values
    own = report.errors(predict(test, part, job.operator, values), test.seconds)
    key = (job.part, "memory_bound", job.operator)
    rows = [report.residual((*key, moves.source), len(moves.kernels), own)]
    for one in job.tests:
        other = one.load().of(one.kernels)
        source = f"{moves.source} -> {other.source} ({', '.join(one.kernels)})"
        rows.append(report.residual((*key, source), len(other.kernels), _errors(one, job, values)))
    return rows


def main() -> int:
    """Entry point of ``python -m tools.fits.memory_bound``."""
    parser = argparse.ArgumentParser(description="fit memory-bound operators, or check the shipped parameters")
    parser.add_argument("--check", action="store_true", help="test the shipped parameters only, write nothing")
    parser.add_argument("part", nargs="*", help="accelerators, default all")
    options = parser.parse_args()
    rows = []
    for job in JOBS:
        if options.part and job.part not in options.part:
            continue
        if not options.check:
            write(job)
            catalog.refresh()
        rows += residuals(job)
    if not options.check:
        report.write_residuals(rows)
    return report.show(rows, {"memory_bound": LIMIT})


if __name__ == "__main__":
    sys.exit(main())
