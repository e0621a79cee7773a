"""Fit what fp8 GEMMs lose with a scale for every block of 128 on parts whose matrix unit does not apply the scales.

    python -m tools.fits.blockwise

Two sources disagree (the kernels of an inference server, with their casts, and DeepGEMM's own figures), so the
parameter is their geometric mean and half their distance its spread. It is written into ``gemm.csv`` as `blockwise`.
On Blackwell the same tables give 1.00 to 1.05: nothing is written.
"""

import sys

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.device import Device, device_of
from simmoe.cost.operators import Gemm
from simmoe.specs import catalog
from simmoe.specs.hardware import Dtype
from tools.fits import report
from tools.fits.gemm import BOUNDS, EXTRA, Values, predict, shipped
from tools.fits.gemm_tables import LEAST_M, Products, aiconfigurator
from tools.fits.regression import fit
from tools.fits.tables import read

FOLDERS = {
    "h100-sxm5-80gb": "h100_sxm/gemm/trtllm/1.3.0rc20",
    "h200-sxm-141gb": "h200_sxm/gemm/trtllm/1.3.0rc20",
}


def deepgemm() -> Products:
    """DeepGEMM's dense figures on H800 [TFLOP/s], with m as in training."""
    table, origin = read("transcribed/deepgemm_h800_fp8.csv")
    table = table[(table.kind == "dense") & (table.m_per_group >= LEAST_M)]
    works = [Gemm(m, n, k) for m, n, k in table[["m_per_group", "n", "k"]].to_numpy().tolist()]
    rates = table.tflops.to_numpy(float) * 1e12
    return Products((origin,), works, np.array([work.flops for work in works]) / rates)


def slowed(products: Products, device: Device, values: Values, factor: float) -> NDArray[np.float64]:
    """`predict` with the fp8 rate times a factor [s]."""
    peaks = device.peaks | {Dtype.FP8: device.peaks[Dtype.FP8] * factor}
    return predict(products, device._replace(peaks=peaks), Dtype.FP8, values)


def factor_of(products: Products, device: Device, values: Values) -> Values:
    """The factor, and the casts of the table if it has them, that fit it best."""
    extra = EXTRA["casts"] if products.casts else {}
    names = {"factor": 0.9} | extra
    bounds = BOUNDS | {"factor": (0.3, 1.3)}
    return fit(
        lambda found: slowed(products, device, values | found, found["factor"]),
        products.seconds,
        names,
        {name: bounds[name] for name in names},
    )


def main() -> int:
    """Entry point of ``python -m tools.fits.blockwise``."""
    rows = []
    for part, folder in FOLDERS.items():
        device = device_of(catalog.accelerator(part))
        values = shipped(device, Dtype.FP8)
        server, own = aiconfigurator(folder, "fp8_block"), deepgemm()
        found = {products.source: factor_of(products.split()[0], device, values) for products in (server,)}
        found[own.source] = factor_of(own, device, values)
        first, second = found[server.source]["factor"], found[own.source]["factor"]
        mean = round(float(np.sqrt(first * second)), 2)
        row = report.Parameter(
            f"{mean:.2f}",
            "derived",
            server.source,
            f"{server.locator}: fp8_block against fp8",
            f"{abs(first - second) / 2:.2f}",
            f"between {first:.2f} there and {second:.2f} in deepgemm",
        )
        report.write_variant(part, "gemm", "fp8", {"blockwise": row})
        for products in (server, own):
            times = slowed(products, device, values | found[products.source], mean)
            key = (part, "gemm", "fp8:blockwise", f"{part} -> {products.source}")
            rows.append(report.residual(key, len(products.works), report.errors(times, products.seconds)))
    report.write_residuals(rows)
    return report.show(rows, {})


if __name__ == "__main__":
    sys.exit(main())
