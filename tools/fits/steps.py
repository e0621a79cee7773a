"""Fit what a step keeps of the kernel rates, one number for an accelerator and dtype, on published steps.

``sustained`` is the only parameter of the accelerators that is read off step times: kernel tables are measured in short
runs, a training step runs hot and for hours. That of dense GEMMs comes from dense models alone, that of experts' GEMMs
from Mixture-of-Experts models with the first as it is. No row takes part for which something had to be assumed that
changes its arithmetic. Run as

    python -m tools.fits.steps TABLE.csv [--experts] [--part H100-SXM5-80GB] [--write]

It prints, for each accelerator and dtype, the median of what the sources want, one vote each, and what leaving out one
source does to it: the value without the source, and the error on the rows of that source.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from simmoe.errors import SimmoeError
from simmoe.pipeline import run
from simmoe.specs import catalog
from simmoe.specs.hardware import (
    Accelerator,
    AttentionEfficiency,
    Cluster,
    Dtype,
    GemmEfficiency,
    GroupedGemmEfficiency,
)
from simmoe.specs.scenario import Scenario
from simmoe.specs.throughput_scenario import scenario_of
from simmoe.specs.throughput_table_reader import TableRow, read_table
from tools.fits.report import EFFICIENCY, Parameter, write_variant

FACTORS = (0.75, 1.0, 1.3)  # a step is simulated at these multiples of the shipped value
SCALE = 0.03  # errors above it count linearly
FEWEST = 5  # rows of a source that vote
# Attention whose in-step rate is a figure of its own: unfused products, and kernels known from one stack's steps alone.
OWN_RATE = {"math", "triton-fa1", "deepspeed"}
# What a row may lack or carry without saying anything about its arithmetic.
HARMLESS = (
    "recomputation not stated",
    "fp8 recipe not stated",
    "virtual stages not stated",
    "division of layers",
    "micro-batch not stated",
    "expert tensor parallelism not stated",
)


Fit = TypeVar("Fit", GemmEfficiency, GroupedGemmEfficiency, AttentionEfficiency)


class Sample(NamedTuple):
    """One published step.

    Attributes
    ----------
    id, group : str
    errors : ndarray
        log(simulated / measured) at each of `FACTORS`.
    """

    id: str
    group: str
    errors: NDArray[np.float64]


def scaled(scenario: Scenario, table: str, dtype: Dtype, factor: float) -> Scenario:
    """The scenario with every ``sustained`` of a table and dtype multiplied; 16-bit types go together."""
    dtypes: set[Dtype] = {Dtype.BF16, Dtype.FP16} if dtype is Dtype.BF16 else {dtype}
    groups = []
    for group in scenario.cluster.groups:
        part = _scaled(group.node.accelerator, table, dtypes, factor)
        groups.append(group.model_copy(update={"node": group.node.model_copy(update={"accelerator": part})}))
    cluster: Cluster = scenario.cluster.model_copy(update={"groups": tuple(groups)})
    return scenario.model_copy(update={"cluster": cluster})


def _scaled(part: Accelerator, table: str, dtypes: set[Dtype], factor: float) -> Accelerator:
    fits = {table: tuple(_times(fit, factor, fit.dtype in dtypes) for fit in getattr(part.efficiency, table))}
    if table == "gemm" and Dtype.BF16 in dtypes:  # fused attention runs at the same clocks
        fits["attention"] = tuple(_times(fit, factor, fit.kernel not in OWN_RATE) for fit in part.efficiency.attention)
    return part.model_copy(update={"efficiency": part.efficiency.model_copy(update=fits)})


def _times(fit: Fit, factor: float, applies: bool) -> Fit:
    if not applies:
        return fit
    quantity = fit.sustained.model_copy(update={"value": fit.sustained.value * factor})
    return fit.model_copy(update={"sustained": quantity})


def samples(rows: Iterable[TableRow], table: str) -> dict[tuple[str, Dtype], list[Sample]]:
    """The rows that can tell, by accelerator id and the dtype of their GEMMs."""
    experts = table == "grouped_gemm"
    found: dict[tuple[str, Dtype], list[Sample]] = {}
    for row in rows:
        reading = scenario_of(row)
        scenario = reading.scenario
        if row.moe is not experts or scenario is None or row.measured_s is None or not _tells(reading.assumptions):
            continue
        wanted = scenario.training.precision.gemm_dtype
        dtype = Dtype.BF16 if wanted is Dtype.FP16 else wanted
        try:
            steps = [run(scaled(scenario, table, dtype, factor)).step_time_s for factor in FACTORS]
        except SimmoeError:
            continue
        part = scenario.cluster.groups[0].node.accelerator.id
        sample = Sample(row.id, row.group, np.log(np.array(steps) / row.measured_s))
        found.setdefault((part, dtype), []).append(sample)
    return found


def _tells(assumptions: Sequence[str]) -> bool:
    return all(any(note.startswith(start) for start in HARMLESS) for note in assumptions)


def errors_at(factor: float, chosen: Sequence[Sample]) -> NDArray[np.float64]:
    """log(simulated / measured) of each sample at a factor: a step is linear in 1/factor between two simulated ones."""
    inverse = 1.0 / np.array(FACTORS)
    return np.log([np.interp(1.0 / factor, inverse[::-1], np.exp(one.errors)[::-1]) for one in chosen])


def best_factor(chosen: Sequence[Sample]) -> float:
    """The median of what each source wants, each with one vote however many rows it has; few rows have none."""
    sources = [[one for one in chosen if one.group == group] for group in dict.fromkeys(one.group for one in chosen)]
    voting = [rows for rows in sources if len(rows) >= FEWEST] or sources
    return median(_least_loss(rows) for rows in voting)


def _least_loss(chosen: Sequence[Sample]) -> float:
    """The factor with the least soft-L1 loss over some rows."""

    def loss(factor: float) -> float:
        return float(np.sum(np.sqrt(1.0 + (errors_at(factor, chosen) / SCALE) ** 2) - 1.0))

    found = minimize_scalar(loss, bounds=(FACTORS[0], FACTORS[-1]), method="bounded")
    return float(found.x)


def _percent(errors: NDArray[np.float64]) -> str:
    size = np.abs(np.expm1(errors))
    return f"mean {size.mean():6.1%}  median {np.median(size):6.1%}  bias {np.expm1(errors).mean():+6.1%}"


def _report(part: str, dtype: Dtype, chosen: Sequence[Sample], shipped: float) -> float:
    """Print the fit of one accelerator and dtype; returns the new value."""
    factor = best_factor(chosen)
    print(f"\n{part} {dtype.value}: sustained {shipped:.3f} -> {shipped * factor:.3f}  ({len(chosen)} rows)")
    print(f"  as shipped            {_percent(errors_at(1.0, chosen))}")
    print(f"  fitted                {_percent(errors_at(factor, chosen))}")
    for group in dict.fromkeys(one.group for one in chosen):
        inside = [one for one in chosen if one.group == group]
        outside = [one for one in chosen if one.group != group]
        alone = shipped * best_factor(inside)
        print(f"  {group:22s}{_percent(errors_at(factor, inside))}  ({len(inside)} rows, alone {alone:.3f})")
        if outside:
            without = best_factor(outside)
            print(
                f"    left out            {_percent(errors_at(without, inside))}  (sustained {shipped * without:.3f})"
            )
    return shipped * factor


def _shipped(part: str, table: str, dtype: Dtype) -> float:
    fits = getattr(catalog.accelerator(part).efficiency, table)
    return float(next(fit.sustained.value for fit in fits if fit.dtype is dtype))


def _write(part: str, table: str, dtype: Dtype, value: float, chosen: Sequence[Sample]) -> None:
    groups = ", ".join(dict.fromkeys(one.group for one in chosen))
    cell = Parameter(f"{value:.3f}", "derived", "simmoe-steps", f"{len(chosen)} published steps: {groups}", "0.06")
    for name in ("bf16", "fp16") if dtype is Dtype.BF16 else (dtype.value,):
        _replace(part, table, name, cell)
    if table == "gemm" and dtype is Dtype.BF16:
        for fit in catalog.accelerator(part).efficiency.attention:
            if fit.kernel not in OWN_RATE:
                _replace(part, "attention", f"{fit.kernel}:{fit.head_dim}", cell._replace(note="as the dense GEMM"))


def _replace(part: str, table: str, variant: str, cell: Parameter) -> None:
    """Replace a row the part has; one that it inherits stays inherited."""
    own = EFFICIENCY / part / f"{table}.csv"
    lines = own.read_text(encoding="utf-8").splitlines() if own.exists() else []
    if any(line.startswith(f"{variant},") for line in lines):
        write_variant(part, table, variant, {"sustained": cell})


def main() -> None:
    """Fit, print, and with ``--write`` put the values into the efficiency tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="published steps, columns as scenarios/published/README.md says")
    parser.add_argument("--experts", action="store_true", help="fit the experts' GEMMs on Mixture-of-Experts rows")
    parser.add_argument("--part", default="", help="only accelerators with this name, as the table writes it")
    parser.add_argument("--write", action="store_true", help="write the values into hardware_db/efficiency")
    options = parser.parse_args()
    table = "grouped_gemm" if options.experts else "gemm"
    rows = [row for row in read_table(options.table) if options.part in {"", row.text("accelerator_id")}]
    for (part, dtype), chosen in samples(rows, table).items():
        value = _report(part, dtype, chosen, _shipped(part, table, dtype))
        if options.write:
            _write(part, table, dtype, value, chosen)


if __name__ == "__main__":
    main()
