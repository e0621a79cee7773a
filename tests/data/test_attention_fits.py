"""Attention in the database is what the published measurements say, on shapes that the fits never saw."""

import csv
import math
from pathlib import Path

import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from simmoe.cost.attention import attention_time
from simmoe.cost.device import device_of
from simmoe.cost.operators import AttentionCore
from simmoe.specs import catalog
from simmoe.specs.hardware import AttentionEfficiency, Dtype
from tools.fits import attention
from tools.fits.attention_data import flash_attention_3, shapes_of
from tools.fits.report import errors, read_residuals
from tools.fits.split import held_out

BOUND = 0.08  # median error on shapes kept out of a fit
WINDOWED = 0.11  # FA3 chooses between two ways to share key heads, which a window makes visible
DATABASE = Path(__file__).resolve().parents[2] / "hardware_db"
# One of each architecture, kernel and width, so that the test takes seconds.
REFITTED = {
    ("a100-sxm4-80gb", "fa2:128"),
    ("l40s", "fa2:256"),
    ("h100-sxm5-80gb", "fa3:64"),
    ("h100-sxm5-80gb", "fa3-fp8:128"),
    ("b200", "cudnn:192"),
}


def shipped(part: str, variant: str) -> AttentionEfficiency:
    kernel, width = variant.split(":")
    rows = catalog.accelerator(part).efficiency.attention
    return next(row for row in rows if (row.kernel, row.head_dim) == (kernel, int(width)))


def own() -> list[tuple[str, str, float]]:
    """Part, variant and median held-out error of every fit tested on its own source."""
    return [
        (r.part, r.variant, r.median_error) for r in read_residuals() if r.table == "attention" and "->" not in r.source
    ]


@pytest.mark.parametrize(("part", "variant", "median"), own())
def test_held_out_shapes_are_met(part: str, variant: str, median: float) -> None:
    assert median <= (WINDOWED if "window" in variant else BOUND)


def test_every_measured_kernel_says_how_well_it_does() -> None:
    tested = {(part, variant) for part, variant, _ in own()}
    measured = set()
    for path in DATABASE.glob("efficiency/*/attention.csv"):
        if catalog.accelerator(path.parent.name).efficiency_of:
            continue
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["parameter"] == "compute"]
        measured |= {(path.parent.name, row["variant"]) for row in rows if row["kind"] in {"measured", "paper"}}
    assert measured <= tested


@pytest.mark.parametrize(("part", "variant"), sorted(REFITTED))
def test_a_fit_can_be_repeated(shared: Path, monkeypatch: pytest.MonkeyPatch, part: str, variant: str) -> None:
    """The script gives the shipped numbers, and the shipped numbers the recorded error."""
    monkeypatch.setenv("SIMMOE_SHARED", str(shared))
    source = next(one for one in attention.SOURCES if (one.part, one.variant) == (part, variant))
    found, fit = attention.fitted(source), shipped(part, variant)
    for name in ("launch", "compute", "length_fill", "block_fill"):
        assert getattr(fit, name).value == pytest.approx(found.values[name], rel=0.02, abs=1e-7)
    shapes, _ = source.read()
    kept = shapes.where(held_out(shapes.keys))
    values = {name: getattr(fit, name).value for name in attention.START if name != "copies"}
    model = attention.model_of(part, source.kernel)
    again = errors(model(kept, values | {"copies": found.values["copies"]}), kept.seconds)
    recorded = next(median for *key, median in own() if tuple(key) == (part, variant))
    assert again.median == pytest.approx(recorded, abs=0.003)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("window", [None, 1024])
def test_the_fitted_form_is_the_one_that_is_used(window: int | None, backward: bool) -> None:
    part, variant = "h100-sxm5-80gb", "fa3:128"
    fit, model = shipped(part, variant), attention.model_of(part, "fa3")
    core = AttentionCore(2, 24, 8, 5000, 5000, 128, 128, True, window, backward)
    names = ("launch", "compute", "length_fill", "window_fill", "block_fill", "backward")
    values = {name: getattr(fit, name).value for name in names}
    device = device_of(catalog.accelerator(part), sustained=False)
    short = next(row for row in device.efficiency.attention if (row.kernel, row.head_dim) == ("fa3", 128))
    expected = attention_time(core, peak=device.peaks[Dtype.BF16], sm_count=device.sm_count, efficiency=short)
    assert model(shapes_of([core], [1.0]), values)[0] == pytest.approx(expected, rel=1e-12)


def test_other_sources_are_met_too() -> None:
    """Fitted on serving frameworks, tried on Transformer Engine and on the figures of FlashAttention-3."""
    crossed = {
        (r.part, r.variant): r.median_error for r in read_residuals() if "->" in r.source and r.table == "attention"
    }
    assert crossed["a100-sxm4-80gb", "fa2:128"] < 0.03
    assert crossed["b200", "cudnn:128"] < 0.10
    assert crossed["b200", "cudnn:192"] < 0.05
    assert crossed["h100-sxm5-80gb", "fa3:64"] < 0.05
    assert len(crossed) >= 8


def test_figures_of_a_paper_read_back_as_printed(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashAttention-3, causal, width 128, 16k tokens: 616 TFLOP/s; the forward bars stand in its repository too."""
    monkeypatch.setenv("SIMMOE_SHARED", str(shared))
    shapes, origin = flash_attention_3("fa3", 128, backward=False)
    assert origin.source == "flash-attention-3"
    assert shapes.flops[-1] / shapes.seconds[-1] == pytest.approx(616e12)
    with (shared / "profiles/transcribed/flash_attention.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            row for row in csv.DictReader(file) if (row["kernel"], row["pass"], row["causal"]) == ("FA3", "fwd", "1")
        ]
    for width in (64, 128):
        shapes, _ = flash_attention_3("fa3", width, backward=False)
        rates = [float(row["tflops"]) for row in rows if row["head_dim"] == str(width)]
        assert [math.floor(rate / 1e12 + 0.5) for rate in shapes.flops / shapes.seconds] == rates
