"""Fit the expert products of `hardware_db` to published measurements, and test them on shapes held out.

    python -m tools.fits.grouped_gemm [--check]

It rewrites the measured rows of ``efficiency/*/grouped_gemm.csv`` and this table's rows of ``residuals.csv``. With
``--check`` nothing is written: the exit status is 1 if a median error on shapes held out is over the limit.

Inference kernels were measured with what surrounds the products: local rows are gathered, activated and scattered, and
all rows of the group are sorted and summed even where most of their experts are elsewhere. These copies are fitted
beside the products, as bytes over the memory bandwidth (`COPIES`), and not kept: the simulator has operators for them.
"""

import argparse
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from simmoe.cost.device import LOOP, Device, device_of, select_experts
from simmoe.specs import catalog
from simmoe.specs.hardware import Dtype
from simmoe.specs.residuals_file import Residual
from tools.fits import regression
from tools.fits.grouped_gemm_data import Mlps, frontier, frontier_projections, serving, transformer_engine
from tools.fits.report import (
    Errors,
    Parameter,
    errors,
    report_over,
    residual,
    write_residuals,
    write_variant,
)
from tools.fits.split import held_out
from tools.fits.tables import Origin

Values = dict[str, float]
Reader = Callable[[], tuple[Mlps, Origin]]
LIMIT = 0.12  # of the median error on shapes held out
COPIES = ("gathered", "sorted", "activated")
START = {
    "launch": 15e-6,
    "compute": 0.7,
    "memory": 0.8,
    "token_fill": 64.0,
    "width_fill": 150.0,
    "gathered": 0.5,
    "sorted": 0.2,
    "activated": 0.2,
}
BOUNDS = {
    "launch": (0.0, 300e-6),
    "expert_launch": (0.0, 50e-6),
    "compute": (0.03, 0.9),
    "memory": (0.1, 1.0),
    "token_fill": (0.0, 600.0),
    "width_fill": (0.0, 2000.0),
    "gathered": (0.0, 20.0),
    "sorted": (0.0, 20.0),
    "activated": (0.0, 40.0),
    "wgrad": (0.3, 1.2),
}
SPREAD = {"launch": "0.3", "compute": "0.1", "memory": "0.15", "token_fill": "0.3", "width_fill": "0.5"}
TRTLLM = "trtllm/1.3.0rc20"
VLLM = "vllm/0.24.0"
CUTLASS = "moe_torch_flow_cutlass"


class Source(NamedTuple):
    """Measurements of one variant, and which of the `COPIES` they hold."""

    part: str
    kernel: str
    dtype: Dtype
    read: Reader
    copies: tuple[str, ...] = COPIES

    @property
    def variant(self) -> str:
        """As the table names it."""
        return f"{self.kernel}:{self.dtype.value}"


def _source(part: str, kernel: str, dtype: Dtype, path: str, said: str, measured: str) -> Source:
    return Source(part, kernel, dtype, lambda: serving(path, said, measured))


def _sources() -> list[Source]:
    found = [
        Source(
            "a100-sxm4-80gb",
            "triton",
            Dtype.BF16,
            lambda: frontier("a800/qwen3-a3b-30b-moe/moe.csv.xz"),
            ("gathered", "sorted"),
        ),
    ]
    for part, folder in (("h100-sxm5-80gb", "h100_sxm"), ("h200-sxm-141gb", "h200_sxm")):
        path = f"{folder}/moe/{TRTLLM}"
        found.append(_source(part, "trtllm", Dtype.BF16, path, "bfloat16", CUTLASS))
        found.append(_source(part, "trtllm", Dtype.FP8, path, "fp8", CUTLASS))
        found.append(_source(part, "trtllm-block", Dtype.FP8, path, "fp8_block", CUTLASS))
    for part, folder in (("b200", "b200_sxm"), ("gb200", "gb200"), ("gb300", "gb300")):
        path = f"{folder}/moe/{TRTLLM}"
        found.append(_source(part, "trtllm", Dtype.BF16, path, "bfloat16", CUTLASS))
        found.append(_source(part, "trtllm", Dtype.FP8, path, "fp8", CUTLASS))
        found.append(_source(part, "deepgemm", Dtype.FP8, path, "fp8_block", "deepgemm"))
        found.append(_source(part, "trtllm", Dtype.FP4, path, "nvfp4", CUTLASS))
    path, triton = f"l40s/moe/{VLLM}", "triton_tritonexperts"
    found.append(_source("l40s", "triton", Dtype.BF16, path, "bfloat16", f"vllm_unquantizedfusedmoe_{triton}"))
    found.append(_source("l40s", "triton", Dtype.FP8, path, "fp8", f"vllm_modeloptfp8moe_{triton}"))
    part, path = "rtx-pro-6000-blackwell-server", f"rtx_pro_6000_server/moe/{VLLM}"
    flashinfer = "flashinfer_cutlass_flashinferexperts"
    found.append(_source(part, "flashinfer", Dtype.BF16, path, "bfloat16", f"vllm_unquantizedfusedmoe_{flashinfer}"))
    found.append(_source(part, "flashinfer", Dtype.FP8, path, "fp8", f"vllm_modeloptfp8moe_{flashinfer}"))
    return found


SOURCES = _sources()


class Model(NamedTuple):
    """A device and the peak of the arithmetic."""

    device: Device
    peak: float

    def product(self, shapes: Mlps, n: np.ndarray, k: np.ndarray, values: Values) -> np.ndarray:
        """Seconds of `simmoe.cost.kernels.grouped_gemm_time`, forward, for all shapes at once."""
        experts, tokens = shapes.experts, shapes.tokens
        filled = 2.0 * experts * n * (tokens + values["token_fill"]) * (k + values["width_fill"])
        moved = shapes.element * experts * (tokens * k + k * n) + max(shapes.element, 2.0) * experts * tokens * n
        memory = moved / (self.device.bandwidth * values["memory"])
        seconds: np.ndarray = values["launch"] + np.maximum(filled / (self.peak * values["compute"]), memory)
        return seconds

    def __call__(self, shapes: Mlps, values: Values) -> np.ndarray:
        """Seconds of the expert MLPs with the copies around their products."""
        rows = shapes.experts * shapes.tokens
        copies = (
            values["gathered"] * rows * (4 * shapes.hidden + 3 * shapes.width)
            + values["sorted"] * shapes.routed * 2 * shapes.hidden
            + values["activated"] * shapes.routed * 3 * shapes.width
        )
        up = self.product(shapes, 2 * shapes.width, shapes.hidden, values)
        down = self.product(shapes, shapes.hidden, shapes.width, values)
        seconds: np.ndarray = up + down + 2.0 * copies / self.device.bandwidth
        return seconds


def model_of(part: str, dtype: Dtype) -> Model:
    """The model of a dtype on a part of the database."""
    device = device_of(catalog.accelerator(part), sustained=False)
    return Model(device, device.peaks[dtype])


class Fitted(NamedTuple):
    """Parameters from the shapes that were not held out, and how they do on those that were."""

    values: Values
    error: Errors
    rows: int
    origin: Origin


def fitted(source: Source) -> Fitted:
    """Fit one variant."""
    model = model_of(source.part, source.dtype)
    shapes, origin = source.read()
    out = held_out(shapes.keys)
    seen, unseen = shapes.where(~out), shapes.where(out)
    bounds = BOUNDS | {name: (0.0, 1e-9) for name in COPIES if name not in source.copies}
    start = START | {name: 0.0 for name in COPIES if name not in source.copies}
    values = regression.fit(lambda found: model(seen, found), seen.seconds, start, bounds)
    return Fitted(values, errors(model(unseen, values), unseen.seconds), len(out), origin)


def _text(name: str, value: float) -> str:
    if name.endswith("launch"):
        return f"{value * 1e6:.1f} us"
    return f"{value:.0f}" if name.endswith("_fill") else f"{value:.3f}"


def write_inference() -> list[Residual]:
    """Fit and write every kernel of inference servers; what it was not measured for comes from ``te``."""
    rows = []
    for source, found in [(source, fitted(source)) for source in SOURCES]:
        origin = found.origin
        made = {
            name: Parameter(_text(name, found.values[name]), "measured", origin.source, origin.locator, spread)
            for name, spread in SPREAD.items()
        }
        write_variant(source.part, "grouped_gemm", source.variant, made)
        key = (source.part, "grouped_gemm", source.variant, origin.source)
        rows.append(residual(key, found.rows, found.error))
    return rows


# Transformer Engine's loop over experts: SimuMax's A100 is a 300 W card and its B200 ran warm, so the asymptote is left
# to the database and only what comes on top of it is taken.
ENGINES = (("a100-sxm4-80gb", "a100_pcie"), ("b200", "b200_bf16_ceperm"))
ENGINE_START = {
    "expert_launch": 2e-6,
    "compute": 0.6,
    "memory": 0.7,
    "token_fill": 64.0,
    "wgrad": 0.8,
}


def engine_seconds(table: pd.DataFrame, peak: float, bandwidth: float, values: Values) -> np.ndarray:
    """Seconds of `simmoe.cost.kernels.grouped_gemm_time` for a table of `transformer_engine`."""
    groups, tokens, n, k = (table[name].to_numpy(float) for name in ("groups", "tokens", "n", "k"))
    wgrad = (table["pass_"] == "wgrad").to_numpy()
    rate = peak * values["compute"] * np.where(wgrad, values["wgrad"], 1.0)
    filled = 2.0 * groups * n * (tokens + values["token_fill"]) * (k + values.get("width_fill", 0.0))
    weights = np.where(wgrad, table["accumulate"].to_numpy(float), 2.0) * groups * k * n
    moved = 2.0 * groups * tokens * (n + k) + weights
    seconds: np.ndarray = groups * values["expert_launch"] + np.maximum(
        filled / rate, moved / (bandwidth * values["memory"])
    )
    return seconds


def fitted_engine(part: str, name: str) -> tuple[Values, Errors, int, Origin]:
    """Values of Transformer Engine's loop with the error on the products held out."""
    model = model_of(part, Dtype.BF16)
    table, origin = transformer_engine(name)
    shapes = list(table[["groups", "tokens", "n", "k", "pass_", "accumulate"]].itertuples(index=False, name=None))
    out = held_out(shapes)
    seen, unseen = table[~out], table[out]
    values = regression.fit(
        lambda found: engine_seconds(seen, model.peak, model.device.bandwidth, found),
        seen["seconds"].to_numpy(),
        ENGINE_START,
        BOUNDS,
    )
    error = errors(engine_seconds(unseen, model.peak, model.device.bandwidth, values), unseen["seconds"])
    return values, error, len(table), origin


def write_engines() -> list[Residual]:
    """Fit and write what Transformer Engine's loop adds to a dense product."""
    rows = []
    for part, name in ENGINES:
        values, error, count, origin = fitted_engine(part, name)
        for dtype in ("bf16", "fp16"):
            made = {
                parameter: Parameter(
                    _text(parameter, values[parameter]), "measured", origin.source, origin.locator, spread
                )
                for parameter, spread in (("expert_launch", "0.3"), ("token_fill", "0.3"), ("wgrad", "0.1"))
            }
            write_variant(part, "grouped_gemm", dtype, made)
        rows.append(residual((part, "grouped_gemm", "te:bf16", origin.source), count, error))
    return rows


def cross_engine() -> Residual:
    """The shipped values of Transformer Engine's loop on A100 on single experts that Frontier measured."""
    part = "a100-sxm4-80gb"
    device = device_of(catalog.accelerator(part))
    fit = select_experts(device, LOOP, Dtype.BF16)
    names = ("expert_launch", "compute", "memory", "token_fill", "width_fill", "wgrad")
    values = {name: getattr(fit, name).value for name in names}
    table, origin = frontier_projections("a100/mixtral_8x7b_moe/moe.csv.xz")
    error = errors(engine_seconds(table, device.peaks[Dtype.BF16], device.bandwidth, values), table["seconds"])
    return residual((part, "grouped_gemm", "te:bf16", f"simumax-a100 -> {origin.source}"), len(table), error)


def main() -> int:
    """Entry point of ``python -m tools.fits.grouped_gemm``."""
    parser = argparse.ArgumentParser(description="fit the expert products of accelerators, or check the fits")
    parser.add_argument("--check", action="store_true", help="test only, write nothing")
    if parser.parse_args().check:
        found = [(f"{one.part} {one.variant}", fitted(one).error) for one in SOURCES]
        found += [(f"{part} te", fitted_engine(part, name)[1]) for part, name in ENGINES]
        return report_over(LIMIT, found)
    rows = [*write_inference(), *write_engines(), cross_engine()]
    write_residuals(rows)
    for row in rows:
        print(*row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
