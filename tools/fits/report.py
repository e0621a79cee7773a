"""Errors of a fit, and the tables of `hardware_db/efficiency` they are written to."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simmoe.specs import residuals_file
from simmoe.specs.kernel_file import COLUMNS
from simmoe.specs.residuals_file import Residual

EFFICIENCY = Path("hardware_db/efficiency")
RESIDUALS = EFFICIENCY / "residuals.csv"
# Fits that miss the limit of their table, each with a limit of its own. cuBLAS and CUTLASS change kernels on L40S from
# one shape to the next: interpolating between a shape's two neighbours along m misses it by 8 % (median), so no smooth
# model gets far below that.
KNOWN_MISSES = {("l40s", "gemm", "bf16"): 0.095, ("l40s", "gemm", "fp8"): 0.095}


class Errors(NamedTuple):
    """Of predicted against measured times.

    Attributes
    ----------
    median, p90 : float
        Median and 90th percentile of |predicted/measured - 1|.
    bias : float
        Median of predicted/measured - 1; positive = predicted too slow.
    rows : int
        Measurements.
    """

    median: float
    p90: float
    bias: float
    rows: int


class Parameter(NamedTuple):
    """One fitted number as a row of an efficiency table writes it; `value` carries its unit (``2.5 us``)."""

    value: str
    kind: str
    source: str
    locator: str
    spread: str = ""
    note: str = ""


def errors(predicted: ArrayLike, measured: ArrayLike) -> Errors:
    """Relative errors of predicted times.

    Examples
    --------
    >>> errors([1.1, 0.8, 1.0], [1.0, 1.0, 1.0])._replace(p90=0)
    Errors(median=0.1, p90=0, bias=0.0, rows=3)
    """
    ratio = np.asarray(predicted, float) / np.asarray(measured, float) - 1.0
    size = np.abs(ratio)
    median, p90, bias = (float(np.round(x, 12)) for x in (np.median(size), np.quantile(size, 0.9), np.median(ratio)))
    return Errors(median, p90, bias, len(ratio))


def residual(key: Sequence[str], rows: int, found: Errors) -> Residual:
    """The row of (part, table, variant, source) with its errors rounded."""
    part, table, variant, source = key
    median, p90, bias = (round(x, 4) for x in (found.median, found.p90, found.bias))
    return Residual(part, table, variant, source, rows, found.rows, median, p90, bias)


def report_over(limit: float, found: Iterable[tuple[str, Errors]]) -> int:
    """Print the errors of named fits; 1 if a median is over the limit, else 0, for an exit status."""
    over = 0
    for name, error in found:
        print(f"{name}: median {error.median:.1%}, P90 {error.p90:.1%}, bias {error.bias:+.1%}, {error.rows} rows")
        over = max(over, int(error.median > limit))
    return over


def read_residuals() -> list[Residual]:
    """The rows of ``residuals.csv``; none when there is no such file."""
    return residuals_file.read_residuals(RESIDUALS) if RESIDUALS.exists() else []


def write_residuals(rows: Iterable[Residual]) -> None:
    """Replace the rows of the same part, table, variant and source; keep the others; sort."""
    known = {row[:4]: row for row in read_residuals()} | {row[:4]: row for row in rows}
    _write(RESIDUALS, Residual._fields, [known[key] for key in sorted(known)])


def show(rows: Iterable[Residual], limits: Mapping[str, float]) -> int:
    """Print residuals as a table; 1 if a fit misses the limit of its table on its own source, else 0.

    Parameters
    ----------
    rows : iterable of Residual
    limits : mapping
        Largest median error by table, but for `KNOWN_MISSES`; tests on another source (``a -> b``) have none.
    """
    missed = 0
    for row in rows:
        limit = KNOWN_MISSES.get((row.part, row.table, row.variant), limits.get(row.table, float("inf")))
        over = "->" not in row.source and row.median_error > limit
        missed |= over
        name = f"{row.part:30s} {row.table:13s} {row.variant:14s} {row.source:62s}"
        figures = f"{row.held_out_rows:6d} median {row.median_error:.3f} p90 {row.p90_error:.3f} bias {row.bias:+.3f}"
        print(name, figures, "OVER THE LIMIT" if over else "")
    return int(missed)


def write_variant(
    part: str,
    table: str,
    variant: str,
    parameters: Mapping[str, Parameter],
    defaults: Mapping[str, Parameter] | None = None,
) -> None:
    """Replace the given parameters of a variant in ``efficiency/<part>/<table>.csv``; keep every other row.

    Parameters
    ----------
    part, table, variant : str
        Accelerator, table, and variant within it.
    parameters : mapping
        By name. A parameter the variant does not have yet goes behind its last row, a new variant to the end.
    defaults : mapping, optional
        Parameters that are written only where the variant has none.
    """
    path = EFFICIENCY / part / f"{table}.csv"
    rows: list[list[str]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))[1:]
    there = {row[1] for row in rows if row[0] == variant}
    left = dict(parameters) | {name: row for name, row in (defaults or {}).items() if name not in there}
    rows = [[*row[:2], *left.pop(row[1])] if row[0] == variant and row[1] in left else row for row in rows]
    end = max((at + 1 for at, row in enumerate(rows) if row[0] == variant), default=len(rows))
    rows[end:end] = [[variant, name, *parameter] for name, parameter in left.items()]
    _write(path, COLUMNS, rows)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    part.replace(path)
