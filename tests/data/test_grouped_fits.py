"""Expert products in the database are what the published measurements say, on shapes that the fits never saw."""

import csv
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from simmoe.cost.device import ELEMENT_BYTES, LOOP, device_of, select_experts
from simmoe.cost.kernels import grouped_gemm_time
from simmoe.cost.operators import GroupedGemm
from simmoe.errors import SpecError
from simmoe.specs import catalog
from simmoe.specs.hardware import Dtype, GroupedGemmEfficiency
from simmoe.specs.residuals_file import residuals
from tools.fits import grouped_gemm
from tools.fits.grouped_gemm_data import Mlps, transformer_engine
from tools.fits.report import read_residuals

BOUND = 0.12  # median error on shapes kept out of a fit
DATABASE = Path(__file__).resolve().parents[2] / "hardware_db"
REFITTED = {("h100-sxm5-80gb", "trtllm:bf16"), ("b200", "deepgemm:fp8"), ("a100-sxm4-80gb", "triton:bf16")}


def shipped(part: str, kernel: str, dtype: Dtype) -> GroupedGemmEfficiency:
    rows = catalog.accelerator(part).efficiency.grouped_gemm
    return next(row for row in rows if (row.kernel, row.dtype) == (kernel, dtype))


def own() -> list[tuple[str, str, float]]:
    """Part, variant and median held-out error of every fit."""
    return [(r.part, r.variant, r.median_error) for r in read_residuals() if r.table == "grouped_gemm"]


@pytest.mark.parametrize(("part", "variant", "median"), own())
def test_held_out_shapes_are_met(part: str, variant: str, median: float) -> None:
    assert median <= BOUND


def test_every_measured_kernel_says_how_well_it_does() -> None:
    measured = set()
    for path in DATABASE.glob("efficiency/*/grouped_gemm.csv"):
        if catalog.accelerator(path.parent.name).efficiency_of:
            continue
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["parameter"] == "compute"]
        measured |= {(path.parent.name, row["variant"]) for row in rows if row["kind"] == "measured"}
    assert measured <= {(part, variant) for part, variant, _ in own()}
    assert {part for part, _, _ in own()} >= {"a100-sxm4-80gb", "l40s", "h100-sxm5-80gb", "h200-sxm-141gb", "b200"}


@pytest.mark.parametrize(("part", "variant"), sorted(REFITTED))
def test_a_fit_can_be_repeated(shared: Path, monkeypatch: pytest.MonkeyPatch, part: str, variant: str) -> None:
    monkeypatch.setenv("SIMMOE_SHARED", str(shared))
    source = next(one for one in grouped_gemm.SOURCES if (one.part, one.variant) == (part, variant))
    found, fit = grouped_gemm.fitted(source), shipped(part, source.kernel, source.dtype)
    for name in ("launch", "compute", "memory"):
        assert getattr(fit, name).value == pytest.approx(found.values[name], rel=0.02)
    recorded = next(median for *key, median in own() if tuple(key) == (part, variant))
    assert found.error.median == pytest.approx(recorded, abs=0.003)


@pytest.mark.parametrize("name", [name for _, name in grouped_gemm.ENGINES])
def test_training_products_are_met(shared: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Transformer Engine's loop with the shipped parameters, all three products, at the clocks of that run.

    The measured parts are a 300 W card and a warm B200: their dense products, measured in the same run, say by how
    much. `sustained` is not theirs but of published steps, and has no part in this.
    """
    monkeypatch.setenv("SIMMOE_SHARED", str(shared))
    part = next(part for part, known in grouped_gemm.ENGINES if known == name)
    device = device_of(catalog.accelerator(part), sustained=False)
    fit = select_experts(device, LOOP, Dtype.BF16)
    table, origin = transformer_engine(name)
    dense = [r.bias for r in residuals() if r.table == "gemm" and r.sources[-1] == origin.source]
    assert dense
    clock = 1.0 + sum(dense) / len(dense)
    predicted = [
        grouped_gemm_time(
            GroupedGemm(groups, float(tokens), n, k, pass_),
            peak=device.peaks[Dtype.BF16],
            bandwidth=device.bandwidth,
            element_bytes=2,
            efficiency=fit,
        )
        for groups, tokens, n, k, pass_ in table[["groups", "tokens", "n", "k", "pass_"]].itertuples(index=False)
    ]
    ratio = np.array(predicted) / clock / table["seconds"].to_numpy() - 1.0
    assert np.median(np.abs(ratio)) < 0.15


def test_the_fitted_form_is_the_one_that_is_used() -> None:
    part, kernel, dtype = "h100-sxm5-80gb", "trtllm", Dtype.FP8
    fit = shipped(part, kernel, dtype)
    values = {name: getattr(fit, name).value for name in ("launch", "compute", "memory", "token_fill", "width_fill")}
    model = grouped_gemm.model_of(part, dtype)
    one = np.ones(1)
    for tokens in (16.0, 700.0):
        shapes = Mlps(((0,),), 8 * one, tokens * one, 4096 * one, 1536 * one, tokens * one, 1.0, one)
        short = select_experts(device_of(catalog.accelerator(part), sustained=False), kernel, dtype)
        expected = grouped_gemm_time(
            GroupedGemm(8, tokens, 3072, 4096),
            peak=model.peak,
            bandwidth=model.device.bandwidth,
            element_bytes=ELEMENT_BYTES[dtype],
            efficiency=short,
        )
        assert model.product(shapes, 3072 * one, 4096 * one, values)[0] == pytest.approx(expected, rel=1e-12)


def test_a_stack_names_its_kernel_and_falls_back_on_the_loop() -> None:
    device = device_of(catalog.accelerator("b200"))
    assert select_experts(device, "deepgemm", Dtype.FP8).kernel == "deepgemm"
    assert select_experts(device, "deepgemm", Dtype.BF16).kernel == LOOP
    assert select_experts(device, LOOP, Dtype.FP16).dtype in {Dtype.FP16, Dtype.BF16}
    with pytest.raises(SpecError, match="lacks a row with dtype tf32"):
        select_experts(device, LOOP, Dtype.TF32)
