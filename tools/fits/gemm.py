"""Fit the GEMM parameters of every accelerator with published kernel times.

    python -m tools.fits.gemm [--check] [PART ...]

It fits all parts, or the ones named, writes the parameters into ``hardware_db/efficiency/<part>/gemm.csv`` and the
errors on the shapes held out, and on other sources, into ``hardware_db/efficiency/residuals.csv``. With ``--check``
nothing is fitted or written: the shipped parameters are tested, and the exit status is 1 if a median error on held-out
shapes is over the limit. `sustained` is not touched: it is read off training steps (``tools.fits.steps``).
"""

import argparse
import sys
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.device import Device, device_of, select_fit
from simmoe.cost.kernels import gemm_time, memory_bound_time
from simmoe.cost.operators import MemoryBound
from simmoe.specs import catalog
from simmoe.specs.hardware import Dtype, GemmEfficiency, MemoryBoundEfficiency
from simmoe.specs.residuals_file import Residual
from tools.fits import report
from tools.fits.gemm_jobs import CHECKS, JOBS, Check, Job, Test, rows_of
from tools.fits.gemm_tables import Products
from tools.fits.regression import fit, trial

LIMIT = 0.07  # median error on held-out shapes
INPUT_BYTES = {Dtype.FP32: 4.0, Dtype.TF32: 4.0, Dtype.FP16: 2.0, Dtype.BF16: 2.0, Dtype.FP8: 1.0, Dtype.FP4: 0.5625}
# Machines, clocks and libraries of one GPU differ by about this much where only one was measured.
MACHINE = 0.10

START = {"launch": 3e-6, "compute": 0.75, "memory": 0.75, "k_fill": 80.0, "tile_overhead": 0.1}
BOUNDS = {
    "launch": (0.0, 4e-5),
    "compute": (0.05, 1.0),
    "memory": (0.2, 1.0),
    "k_fill": (0.0, 5000.0),
    "tile_overhead": (0.0, 4.0),
    "cast_launch": (0.0, 6e-5),
    "cast_memory": (0.05, 3.0),
    "eager": (0.0, 2e-4),
}
# Used only where a table has nothing to say: centre, and width of a belief as weak as ten measurements.
PRIOR = {"memory": (0.75, 0.15), "k_fill": (100.0, 100.0), "tile_overhead": (0.0, 0.3), "cast_memory": (0.5, 0.5)}
EXTRA = {"casts": {"cast_launch": 1e-5, "cast_memory": 0.5}, "eager": {"eager": 5e-5}}
Values = dict[str, float]


def _efficiency(values: Values, dtype: Dtype) -> GemmEfficiency:
    return GemmEfficiency.model_construct(
        dtype=dtype,
        launch=trial(values["launch"]),
        compute=trial(values["compute"]),
        memory=trial(values["memory"]),
        k_fill=trial(values["k_fill"]),
        tile_overhead=trial(values["tile_overhead"]),
        sustained=trial(1.0),
    )


def predict(products: Products, device: Device, dtype: Dtype, values: Values) -> NDArray[np.float64]:
    """Seconds of every product with the cost model's own functions [s].

    Parameters
    ----------
    products : Products
        With `casts` or `eager`, `values` also says what these cost.
    device : Device
    dtype : Dtype
        What runs.
    values : dict
        `launch`, `compute`, `memory`, `k_fill`, `tile_overhead`; `cast_launch` and `cast_memory`; `eager`.
    """
    efficiency = _efficiency(values, dtype)
    size = INPUT_BYTES[dtype]
    one_time = partial(
        gemm_time,
        peak=device.peaks[dtype],
        bandwidth=device.bandwidth,
        sm_count=device.sm_count,
        element_bytes=size,
        efficiency=efficiency,
    )
    times = np.array([one_time(work) for work in products.works])
    if products.casts:
        quantise = MemoryBoundEfficiency.model_construct(
            operator="cast", launch=trial(values["cast_launch"]), memory=trial(values["cast_memory"])
        )
        moved = [MemoryBound("cast", (2.0 + size) * one.m * one.k) for one in products.works]
        times += [memory_bound_time(one, bandwidth=device.bandwidth, efficiency=quantise) for one in moved]
    return times + values.get("eager", 0.0) if products.eager else times


def regress(products: Products, device: Device, dtype: Dtype, fixed: Values, free: Iterable[str]) -> Values:
    """The free parameters fitted to the products, with the fixed ones.

    Parameters
    ----------
    products : Products
    device : Device
    dtype : Dtype
    fixed : dict
    free : iterable of str
        Names in `START` and `EXTRA`.
    """
    start = START | EXTRA["casts"] | EXTRA["eager"]
    names = list(free)
    found = fit(
        lambda values: predict(products, device, dtype, fixed | values),
        products.seconds,
        {name: start[name] for name in names},
        {name: BOUNDS[name] for name in names},
        {name: PRIOR[name] for name in names if name in PRIOR},
    )
    return fixed | found


def free_names(products: Products, *, launch: bool) -> list[str]:
    """What a table determines: the five of the kernel, its casts, the framework's launch."""
    names = [name for name in START if launch or name != "launch"]
    return names + [name for flag in EXTRA if getattr(products, flag) for name in EXTRA[flag]]


def shipped(device: Device, dtype: Dtype) -> Values:
    """The parameters in the hardware database."""
    found = select_fit(device, "gemm", device.efficiency.gemm, dtype)
    names = ("launch", "compute", "memory", "k_fill")
    overhead = found.tile_overhead.value if found.tile_overhead else 0.0
    return {name: getattr(found, name).value for name in names} | {"tile_overhead": overhead}


def complete(products: Products, device: Device, dtype: Dtype, values: Values) -> Values:
    """The parameters with what only the table's harness costs (its casts, its eager launches) fitted to it."""
    extra = [name for flag in EXTRA if getattr(products, flag) for name in EXTRA[flag]]
    return regress(products, device, dtype, values, extra) if extra else values


class Fitted(NamedTuple):
    """Parameters of a job, and what the fits to its other sources say of `compute`."""

    job: Job
    values: Values
    spread: float


def fit_job(job: Job) -> Fitted:
    """Fit one job on the shapes that are not held out."""
    device = device_of(catalog.accelerator(job.device))
    train, test = job.load().split()
    fixed = {}
    if job.launch_from:
        fixed["launch"] = shipped(device, Dtype(job.launch_from))["launch"]
    values = _rounded(regress(train, device, job.dtype, fixed, free_names(train, launch=not job.launch_from)))
    own = report.errors(predict(test, device, job.dtype, values), test.seconds)
    biases = [abs(_errors(one.load(), device, job.dtype, values).bias) for one in job.tests if one.counts]
    return Fitted(job, values, float(np.hypot(own.median, max(biases, default=MACHINE))))


def _errors(products: Products, device: Device, dtype: Dtype, values: Values) -> report.Errors:
    train, _ = products.split()
    values = complete(train, device, dtype, values)
    return report.errors(predict(products, device, dtype, values), products.seconds)


def _rounded(values: Values) -> Values:
    """As the tables write them."""
    digits = {"launch": 7, "compute": 3, "memory": 2, "k_fill": 0, "tile_overhead": 2}
    return {name: round(value, digits.get(name, 9)) for name, value in values.items()}


def write(fitted: Fitted) -> None:
    """Put the parameters into the table of the part, for each of the job's variants."""
    job, values = fitted.job, fitted.values
    products = job.load()
    texts = {
        "compute": f"{values['compute']:.3f}",
        "memory": f"{values['memory']:.2f}",
        "k_fill": f"{values['k_fill']:.0f}",
        "tile_overhead": f"{values['tile_overhead']:.2f}",
    }
    if not job.launch_from:
        texts = {"launch": f"{values['launch'] * 1e6:.1f} us"} | texts
    spreads = {"compute": f"{fitted.spread:.2f}"}
    notes = {"memory": "near the prior: no product of the table waits for memory"} if _at_prior(values) else {}
    rows = {
        name: report.Parameter(
            text, "measured", products.source, products.locator, spreads.get(name, "0.2"), notes.get(name, "")
        )
        for name, text in texts.items()
    }
    for variant in job.variants:
        report.write_variant(job.part, "gemm", variant, rows, _defaults(job) if variant == "fp4" else None)


def _defaults(job: Job) -> dict[str, report.Parameter]:
    """What a new variant needs besides the fit."""
    part = catalog.accelerator(job.part)
    gemms = {one.dtype.value: one for one in part.efficiency.gemm}
    launch, sustained = gemms[job.launch_from].launch, gemms["fp8"].sustained
    cited = (launch.source, launch.locator or "")
    return {
        "launch": report.Parameter(launch.text, "derived", *cited, "0.3", f"as {job.launch_from}"),
        "sustained": report.Parameter(sustained.text, "guess", "simmoe-judgement", "", "0.15", "as fp8"),
    }


def _at_prior(values: Values) -> bool:
    return abs(values["memory"] - PRIOR["memory"][0]) < 0.01


def residuals(job: Job) -> list[Residual]:
    """Errors of the shipped parameters on held-out shapes and on every other source of a job."""
    device = device_of(catalog.accelerator(job.device))
    products = job.load()
    train, test = products.split()
    values = complete(train, device, job.dtype, shipped(device, job.dtype))
    variant = job.variants[0]
    own = report.errors(predict(test, device, job.dtype, values), test.seconds)
    rows = [report.residual((job.part, "gemm", variant, products.source), rows_of(products), own)]
    for one in job.tests:
        rows.append(_cross(job.part, variant, products.source, one, device, job.dtype, values))
        if one.counts:
            rows.append(_reverse(job, one, device, test))
    return rows


def _cross(part: str, variant: str, source: str, test: Test, device: Device, dtype: Dtype, values: Values) -> Residual:
    products = test.load()
    key = (part, "gemm", variant, f"{source} -> {products.source}{test.name and f' ({test.name})'}")
    return report.residual(key, rows_of(products), _errors(products, device, dtype, values))


def _reverse(job: Job, test: Test, device: Device, held: Products) -> Residual:
    """The other table's own fit on the held-out shapes of the job's."""
    train, _ = test.load().split()
    fixed = {"launch": shipped(device, job.dtype)["launch"]} if train.eager else {}
    values = regress(train, device, job.dtype, fixed, free_names(train, launch=not train.eager))
    found = report.errors(predict(held, device, job.dtype, values), held.seconds)
    source = f"{train.source}{test.name and f' ({test.name})'} -> {held.source}"
    return report.residual((job.part, "gemm", job.variants[0], source), rows_of(held), found)


def inherited(check: Check) -> Residual:
    """Errors of a part without a fit of its own."""
    device = device_of(catalog.accelerator(check.part))
    values = shipped(device, check.dtype)
    source = catalog.accelerator(check.part).efficiency_of or check.part
    return _cross(check.part, check.dtype.value, source, check.test, device, check.dtype, values)


def main() -> int:
    """Entry point of ``python -m tools.fits.gemm``."""
    parser = argparse.ArgumentParser(description="fit the GEMM parameters of accelerators, or check the shipped ones")
    parser.add_argument("--check", action="store_true", help="test the shipped parameters only, write nothing")
    parser.add_argument("part", nargs="*", help="accelerators, default all")
    options = parser.parse_args()
    jobs = [job for job in JOBS if not options.part or job.part in options.part]
    rows = []
    for job in jobs:
        if not options.check:
            fitted = fit_job(job)
            write(fitted)
            catalog.refresh()
            values = {name: float(f"{value:.4g}") for name, value in fitted.values.items()}
            print(job.part, job.dtype.value, f"spread {fitted.spread:.3f}", values, flush=True)
        rows += residuals(job)
    rows += [inherited(check) for check in CHECKS if not options.part or check.part in options.part]
    if not options.check:
        report.write_residuals(rows)
    return report.show(rows, {"gemm": LIMIT})


if __name__ == "__main__":
    sys.exit(main())
