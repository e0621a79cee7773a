"""Fit the attention kernels of `hardware_db` to published measurements, and test them on shapes held out.

    python -m tools.fits.attention [--check]

It rewrites the measured rows of ``efficiency/*/attention.csv`` and this table's rows of ``residuals.csv``. With
``--check`` nothing is written: the exit status is 1 if a median error on shapes held out is over the limit.

The times of serving frameworks hold more than attention: keys and values are copied into a cache, which TensorRT-LLM
does in one kernel with the rotary embedding of the queries. The copies are fitted beside the kernel as bytes over the
memory bandwidth (`copies`) and not kept. What the queries cost looks like a longer walk along the keys, so a part
whose only measurements are TensorRT-LLM's takes its `length_fill` times what SGLang has of it on B200.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from simmoe.cost.attention import BACKWARD_BLOCKS
from simmoe.cost.device import EIGHT_BIT, Device, device_of
from simmoe.specs import catalog
from simmoe.specs.hardware import Dtype
from simmoe.specs.residuals_file import Residual
from tools.fits import regression
from tools.fits.attention_data import Shapes, flash_attention_3, latent, serving, transformer_engine
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
Reader = Callable[[], tuple[Shapes, Origin]]
START = {"launch": 10e-6, "compute": 0.6, "length_fill": 500.0, "block_fill": 0.5, "copies": 1.0}
BOUNDS = {
    "launch": (0.0, 300e-6),
    "compute": (0.02, 1.2),
    "length_fill": (0.0, 6000.0),
    "block_fill": (0.0, 2.0),
    "copies": (0.0, 10.0),
    "window_fill": (0.0, 6000.0),
    "backward": (0.2, 1.5),
}
SPREAD = {"launch": "0.3", "compute": "0.1", "length_fill": "0.2", "block_fill": "0.3", "window_fill": "0.3"}
# A spread of a parameter that another part's or another kernel's stands for.
BORROWED = "0.25"
WINDOW = 128
LIMIT = 0.08  # of the median error on shapes held out
TRTLLM = "trtllm/1.3.0rc20"


class Source(NamedTuple):
    """Measurements of one variant.

    Attributes
    ----------
    part, kernel, width
        The variant they are written to.
    read : callable
        Shapes and their origin, full causal attention.
    window : callable or None
        The same kernel under a window of `WINDOW` tokens.
    prepared : bool
        The times hold the preparation of the queries (TensorRT-LLM).
    note : str
        Written beside the fraction of the peak.
    """

    part: str
    kernel: str
    width: int
    read: Reader
    window: Reader | None = None
    prepared: bool = False
    note: str = ""

    @property
    def variant(self) -> str:
        """As the table names it."""
        return f"{self.kernel}:{self.width}"


def _server(
    part: str, kernel: str, width: int, path: str, measured: str, *, windowed: bool = False, note: str = ""
) -> Source:
    dtype = "fp8" if kernel.endswith(EIGHT_BIT) else "bfloat16"
    full = partial(serving, path, measured, width, dtype=dtype)
    window = partial(full, window=WINDOW) if windowed else None
    return Source(part, kernel, width, full, window, measured == "torch_flow", note)


def _latent(part: str, kernel: str, path: str) -> Source:
    return Source(part, kernel, 192, partial(latent, path), note="MLA: qk 192, v 128")


def _sources() -> list[Source]:
    found = [_server("a100-sxm4-80gb", "fa2", 128, "a100_sxm/attention/sglang/0.5.10", "flash_attention")]
    found.append(_latent("a100-sxm4-80gb", "fa2", "a100_sxm/mla/trtllm/1.0.0"))
    for width in (64, 128, 256):
        found.append(
            _server("l40s", "fa2", width, "l40s/attention/vllm/0.24.0", "vllm_flash_attn_fa2", windowed=width == 64)
        )
        for part, folder in (("h100-sxm5-80gb", "h100_sxm"), ("h200-sxm-141gb", "h200_sxm")):
            path = f"{folder}/attention/vllm/0.24.0"
            found.append(_server(part, "fa3", width, path, "vllm_flash_attn_fa3", windowed=width < 256))
        found.append(
            _server("b200", "cudnn", width, "b200_sxm/attention/sglang/0.5.14", "trtllm_mha", windowed=width == 64)
        )
        found.append(
            _server(
                "rtx-pro-6000-blackwell-server",
                "fa2",
                width,
                f"rtx_pro_6000_server/attention/{TRTLLM}",
                "torch_flow",
                windowed=width == 64,
            )
        )
        for part, folder in (("b300", "b300_sxm"), ("gb200", "gb200"), ("gb300", "gb300")):
            path = f"{folder}/attention/{TRTLLM}"
            found.append(_server(part, "cudnn", width, path, "torch_flow", windowed=width == 64))
            found.append(_server(part, f"cudnn{EIGHT_BIT}", width, path, "torch_flow"))
        found.append(_server("b200", f"cudnn{EIGHT_BIT}", width, f"b200_sxm/attention/{TRTLLM}", "torch_flow"))
    path = "b60/attention/vllm/0.20.0"
    found += [_server("arc-pro-b60", "xpu-flash", width, path, "vllm_flash_attn") for width in (64, 128)]
    for width in (128, 256):
        path = "h100_sxm/attention/sglang/0.5.14"
        found.append(_server("h100-sxm5-80gb", f"fa3{EIGHT_BIT}", width, path, "fa3"))
    found.append(_latent("l40s", "fa2", "l40s/mla/trtllm/1.0.0"))
    found.append(_latent("rtx-pro-6000-blackwell-server", "fa2", f"rtx_pro_6000_server/mla/{TRTLLM}"))
    for kernel in ("fa3", "cudnn"):
        found.append(_latent("h100-sxm5-80gb", kernel, f"h100_sxm/mla/{TRTLLM}"))
        found.append(_latent("h200-sxm-141gb", kernel, f"h200_sxm/mla/{TRTLLM}"))
    for part, folder in (("b200", "b200_sxm"), ("b300", "b300_sxm"), ("gb200", "gb200"), ("gb300", "gb300")):
        found.append(_latent(part, "cudnn", f"{folder}/mla/sglang/0.5.14"))
    return found


SOURCES = _sources()


def predict(shapes: Shapes, peak: float, device: Device, values: Values) -> np.ndarray:
    """Seconds of `simmoe.cost.attention.attention_time` for all shapes at once, and of the copies into a cache."""
    fill = values.get("window_fill", values["length_fill"]) if shapes.windowed else values["length_fill"]
    loss = values["block_fill"] * device.sm_count / shapes.blocks
    rate = peak * values["compute"]
    if shapes.backward:
        rate *= values["backward"]
        loss = loss * BACKWARD_BLOCKS
    walk = shapes.mean + fill / 2.0 + loss * (shapes.most + fill / 2.0)
    copied = values.get("copies", 0.0) * shapes.cache / device.bandwidth
    seconds: np.ndarray = values["launch"] + shapes.flops / rate * walk / shapes.mean + copied
    return seconds


class Model(NamedTuple):
    """A device and the peak of the arithmetic of one kernel."""

    device: Device
    peak: float

    def __call__(self, shapes: Shapes, values: Values) -> np.ndarray:
        """Predicted seconds."""
        return predict(shapes, self.peak, self.device, values)


def model_of(part: str, kernel: str) -> Model:
    """The model of a kernel on a part of the database."""
    device = device_of(catalog.accelerator(part), sustained=False)
    dtype = Dtype.FP8 if kernel.endswith(EIGHT_BIT) else Dtype.BF16
    return Model(device, device.peaks[dtype])


def refit(model: Model, shapes: Shapes, free: tuple[str, ...], fixed: Values) -> Values:
    """Values with the `free` ones fitted to shapes."""
    start = {name: fixed.get(name, START.get(name, 0.8)) for name in free}
    bounds = {name: BOUNDS[name] for name in free}
    found = regression.fit(lambda values: model(shapes, fixed | values), shapes.seconds, start, bounds)
    return fixed | found


class Fitted(NamedTuple):
    """Parameters from the shapes that were not held out, and how they do on those that were."""

    values: Values
    error: Errors
    window_error: Errors | None
    rows: int
    window_rows: int
    origin: Origin


def fitted(source: Source) -> Fitted:
    """Fit one variant: full attention first, then what its walk costs inside a window."""
    model = model_of(source.part, source.kernel)
    shapes, origin = source.read()
    out = held_out(shapes.keys)
    values = refit(model, shapes.where(~out), tuple(START), {})
    error = errors(model(shapes.where(out), values), shapes.where(out).seconds)
    if source.window is None:
        return Fitted(values, error, None, len(out), 0, origin)
    windowed, _ = source.window()
    hidden = held_out(windowed.keys)
    values = refit(model, windowed.where(~hidden), ("window_fill",), values | {"window_fill": values["length_fill"]})
    inside = errors(model(windowed.where(hidden), values), windowed.where(hidden).seconds)
    return Fitted(values, error, inside, len(out), len(hidden), origin)


def kept_of_fill(width: int) -> float:
    """What SGLang has of TensorRT-LLM's `length_fill` on B200: the walk without the preparation of the queries."""
    path = f"b200_sxm/attention/{TRTLLM}"
    prepared = fitted(_server("b200", "cudnn", width, path, "torch_flow"))
    alone = next(source for source in SOURCES if (source.part, source.variant) == ("b200", f"cudnn:{width}"))
    return fitted(alone).values["length_fill"] / prepared.values["length_fill"]


def located(origin: Origin) -> str:
    """Where the numbers stand; a figure of a paper has no hash."""
    return origin.locator if origin.sha256 else origin.path


def _text(name: str, value: float) -> str:
    if name == "launch":
        return f"{value * 1e6:.1f} us"
    return f"{value:.3f}" if name in {"compute", "backward", "block_fill"} else f"{value:.0f}"


def parameters(source: Source, found: Fitted, kept: float) -> dict[str, Parameter]:
    """The rows of a variant."""
    rows: dict[str, Parameter] = {}
    for name in ("launch", "compute", "length_fill", "window_fill", "block_fill"):
        if name not in found.values:
            continue
        value, kind, note = found.values[name], "measured", source.note if name == "compute" else ""
        if name.endswith("_fill") and name != "block_fill" and kept != 1.0:
            note = f"of {value:.0f}, which holds the preparation of the queries"
            value, kind = value * kept, "derived"
        origin = found.origin
        rows[name] = Parameter(_text(name, value), kind, origin.source, located(origin), SPREAD[name], note)
    return rows


def write_forward() -> tuple[list[Residual], dict[tuple[str, str], Values]]:
    """Fit and write every variant; the values by part and variant."""
    scale = {width: kept_of_fill(width) for width in (64, 128, 256)}
    rows, known = [], {}
    for source, found in [(source, fitted(source)) for source in SOURCES]:
        known[source.part, source.variant] = found.values
        kept = scale[source.width] if source.prepared and source.part != "rtx-pro-6000-blackwell-server" else 1.0
        write_variant(source.part, "attention", source.variant, parameters(source, found, kept))
        key = (source.part, "attention", source.variant, found.origin.source)
        rows.append(residual(key, found.rows, found.error))
        if found.window_error is not None:
            key = (source.part, "attention", f"{source.variant} window {WINDOW}", found.origin.source)
            rows.append(residual(key, found.window_rows, found.window_error))
    return rows, known


class Training(NamedTuple):
    """What a kernel of a training stack takes from whom.

    Attributes
    ----------
    part, kernel, width
        The variant.
    forward : callable or None
        Forward shapes to fit the rate and the walk to; None = as the variant stands.
    like : str
        Variant of the same part that lends what is not fitted.
    backward : callable
        Backward shapes to fit the ratio of the rates to.
    tests : tuple of callables
        Shapes of another source, tried with the values found.
    """

    part: str
    kernel: str
    width: int
    forward: Reader | None
    like: str
    backward: Reader
    tests: tuple[Reader, ...] = ()


def _hopper(kernel: str, width: int, tests: tuple[Reader, ...] = ()) -> Training:
    """A kernel on H100 in the figures of FlashAttention-3; only FA3 itself has better data for forward."""
    forward = None if kernel == "fa3" else partial(flash_attention_3, kernel, width, backward=False)
    backward = partial(flash_attention_3, kernel, width, backward=True)
    return Training("h100-sxm5-80gb", kernel, width, forward, f"fa3:{width}", backward, tests)


def _engine(part: str, kernel: str, width: int, name: str) -> Training:
    """A kernel under Transformer Engine, which SimuMax measured; forward comes from the serving frameworks."""
    forward = partial(transformer_engine, name, width, backward=False)
    backward = partial(transformer_engine, name, width, backward=True)
    return Training(part, kernel, width, None, f"{kernel}:{width}", backward, (forward, backward))


def _trainings() -> list[Training]:
    found = [
        _engine("a100-sxm4-80gb", "fa2", 128, "a100_pcie"),
        _engine("a100-sxm4-80gb", "fa2", 192, "a100_pcie"),
        _engine("b200", "cudnn", 128, "b200_bf16_ceperm"),
        _engine("b200", "cudnn", 192, "b200_bf16_ceperm"),
    ]
    for width in (64, 128):
        test = partial(flash_attention_3, "fa3", width, backward=False)
        found += [_hopper("fa3", width, (test,)), _hopper("fa2", width), _hopper("cudnn", width)]
    return found


TRAININGS = _trainings()


def write_training(known: Mapping[tuple[str, str], Values]) -> list[Residual]:
    """Fit and write the backward passes, and the kernels only training stacks use; try them on other sources.

    `known` are the values of part and variant that `write_forward` found.
    """
    rows = []
    for one in TRAININGS:
        model, variant = model_of(one.part, one.kernel), f"{one.kernel}:{one.width}"
        values = {name: known[one.part, one.like][name] for name in START if name != "copies"}
        if one.forward is not None:
            shapes, origin = one.forward()
            values = refit(model, shapes, ("compute", "length_fill"), values)
            made = {name: _borrowed(name, values[name], origin, one.like) for name in values}
            write_variant(one.part, "attention", variant, made)
            rows.append(
                residual(
                    (one.part, "attention", variant, origin.source), 6, errors(model(shapes, values), shapes.seconds)
                )
            )
        shapes, origin = one.backward()
        values = refit(model, shapes, ("backward",), values)
        kind = "paper" if origin.source == "flash-attention-3" else "measured"
        row = Parameter(f"{values['backward']:.3f}", kind, origin.source, located(origin), "0.1")
        write_variant(one.part, "attention", variant, {"backward": row})
        for test in one.tests:
            shapes, origin = test()
            name = f"{variant} backward" if shapes.backward else variant
            key = (one.part, "attention", name, f"aiconfigurator-systems -> {origin.source}")
            rows.append(residual(key, len(shapes.keys), errors(model(shapes, values), shapes.seconds)))
    return rows


def _borrowed(name: str, value: float, origin: Origin, like: str) -> Parameter:
    """A row of a kernel known from a figure: the fitted numbers are the paper's, the others another kernel's."""
    if name in {"compute", "length_fill"}:
        return Parameter(_text(name, value), "paper", origin.source, located(origin), SPREAD[name])
    return Parameter(_text(name, value), "derived", "aiconfigurator-systems", f"as {like}", BORROWED)


def main() -> int:
    """Entry point of ``python -m tools.fits.attention``."""
    parser = argparse.ArgumentParser(description="fit the attention kernels of accelerators, or check the fits")
    parser.add_argument("--check", action="store_true", help="test only, write nothing")
    if parser.parse_args().check:
        return report_over(LIMIT, [(f"{one.part} {one.variant}", fitted(one).error) for one in SOURCES])
    rows, known = write_forward()
    rows += write_training(known)
    write_residuals(rows)
    for row in rows:
        print(*row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
