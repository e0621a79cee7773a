"""What the fits of kernels leave over: the table of residuals, its limits, and a check against the raw tables."""

import csv
import math

import pytest

from simmoe.specs import catalog
from tools.fits.report import KNOWN_MISSES
from tools.fits.split import draw, held_out, thin

LIMITS = {"gemm": 0.07, "memory_bound": 0.10}
MEASURED = (
    *("a100-sxm4-80gb", "a40", "arc-pro-b60", "b200", "b300", "gb200", "gb300", "h100-sxm5-80gb", "h200-sxm-141gb"),
    *("l40s", "rtx-3090", "rtx-4090", "rtx-a6000", "rtx-pro-6000-blackwell-server", "titan-rtx", "tpu-v6e"),
    "v100-sxm2-16gb",
)


@pytest.fixture(scope="module")
def residuals(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    path = request.config.rootpath / "hardware_db/efficiency/residuals.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def own(row: dict[str, str]) -> bool:
    """Tested on held-out shapes of the table fitted to, not on another source."""
    return "->" not in row["source"]


def test_residuals_are_one_row_for_each_test_in_order(residuals: list[dict[str, str]]) -> None:
    keys = [tuple(row[name] for name in ("part", "table", "variant", "source")) for row in residuals]
    assert keys == sorted(set(keys))


def test_residuals_are_numbers_of_known_sources(residuals: list[dict[str, str]]) -> None:
    known = set(catalog.sources()) | set(catalog.list_ids("accelerator"))
    for row in residuals:
        if row["table"] not in LIMITS:
            continue
        assert {side.split(" (")[0] for side in row["source"].split(" -> ")} <= known, row
        assert 0 < int(row["held_out_rows"]) <= int(row["rows"]), row
        median, p90, bias = (float(row[name]) for name in ("median_error", "p90_error", "bias"))
        assert math.isfinite(p90), row
        assert abs(bias) <= median <= p90, row


@pytest.mark.parametrize("table", sorted(LIMITS))
def test_held_out_shapes_are_within_the_limits(table: str, residuals: list[dict[str, str]]) -> None:
    over = [
        (row["part"], table, row["variant"], row["median_error"])
        for row in residuals
        if row["table"] == table
        and own(row)
        and float(row["median_error"]) > KNOWN_MISSES.get((row["part"], table, row["variant"]), LIMITS[table])
    ]
    assert not over


def test_known_misses_are_still_misses(residuals: list[dict[str, str]]) -> None:
    errors = {(row["part"], row["table"], row["variant"]): float(row["median_error"]) for row in residuals if own(row)}
    assert all(errors[key] > LIMITS[key[1]] for key in KNOWN_MISSES)


@pytest.mark.parametrize("part", MEASURED)
def test_every_measured_part_has_a_test_of_its_gemms(part: str, residuals: list[dict[str, str]]) -> None:
    tested = {row["variant"] for row in residuals if (row["part"], row["table"]) == (part, "gemm") and own(row)}
    assert tested & {"bf16", "fp16"}


def test_fitted_parameters_cite_a_file_and_its_hash() -> None:
    for part in MEASURED:
        fits = {fit.dtype.value: fit for fit in catalog.accelerator(part).efficiency.gemm}
        fit = fits.get("bf16") or fits["fp16"]
        for quantity in (fit.compute, fit.memory, fit.k_fill, fit.tile_overhead):
            assert quantity is not None
            assert quantity.kind == "measured"
            path, digest = (quantity.locator or "").split(" sha256:")
            assert path
            assert len(bytes.fromhex(digest)) == 8


# ---------------------------------------------------------------- the split


def test_the_split_does_not_depend_on_anything_but_the_shape() -> None:
    """sha256 of "simmoe-1:(1024, 4096, 4096)" begins with 64 bits that are this fraction of 2^64."""
    assert draw((1024, 4096, 4096)) == pytest.approx(0.0462299397818048, abs=1e-15)
    shapes = [(m, 4096, 4096) for m in range(2000)]
    out = held_out(shapes)
    assert 0.17 < out.mean() < 0.23
    assert held_out(shapes[::-1]).tolist() == out.tolist()[::-1]
    assert held_out(shapes, seed="another").tolist() != out.tolist()


def test_thinning_keeps_about_as_many_as_asked_for() -> None:
    shapes = [(m, 4096, 4096) for m in range(2000)]
    assert 120 < thin(shapes, 200).sum() < 280
    assert thin(shapes, 5000).all()


# ---------------------------------------------------------------- against the raw tables


@pytest.mark.parametrize(
    ("module", "part"), [("gemm", "rtx-4090"), ("gemm", "v100-sxm2-16gb"), ("memory_bound", "mi210")]
)
def test_the_shipped_parameters_have_the_errors_on_record(
    module: str, part: str, residuals: list[dict[str, str]], shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads the raw tables again: the same files, the same split, the same errors to the last digit on record."""
    pytest.importorskip("pandas")
    pytest.importorskip("scipy")
    monkeypatch.setenv("SIMMOE_SHARED", str(shared))
    from importlib import import_module

    fits = import_module(f"tools.fits.{module}")
    jobs = [job for job in fits.JOBS if job.part == part][:1]
    again = [row for job in jobs for row in fits.residuals(job)]
    recorded = {tuple(row.values())[:4]: row for row in residuals}
    assert again
    for row in again:
        known = recorded[row[:4]]
        assert (row.rows, row.held_out_rows) == (int(known["rows"]), int(known["held_out_rows"]))
        for name in ("median_error", "p90_error", "bias"):
            assert getattr(row, name) == pytest.approx(float(known[name]), abs=2e-4)
