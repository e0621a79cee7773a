"""Read a CSV file of matrix products."""

import csv
import math
from pathlib import Path

from simmoe.calibration.bench_rows import DTYPES, ProductRow
from simmoe.errors import SpecError
from simmoe.specs.text_file import got, one_line, read_text

COLUMNS = ("m", "n", "k", "dtype", "seconds")
MOST_BYTES = 64 * 2**20
_MOST_SIZE = 10**7
_LONGEST_S = 1e6


def read_gemm_csv(path: Path) -> tuple[ProductRow, ...]:
    """The products of a file.

    Parameters
    ----------
    path : Path
        A header with the columns m, n, k, dtype and seconds, in any order; others are ignored.

    Returns
    -------
    tuple of ProductRow

    Raises
    ------
    SpecError
        Every wrong row, by number.
    """
    name = one_line(str(path), 4096)
    lines = csv.reader(read_text(path, MOST_BYTES).splitlines())
    header = [word.strip().lower() for word in next(lines, [])]
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise SpecError(
            [f"{name}:1: the columns {', '.join(COLUMNS)} are expected {got(','.join(header))}, write a header"]
        )
    rows, problems = list[ProductRow](), list[str]()
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        try:
            rows.append(_row(dict(zip(header, cells, strict=False))))
        except (ValueError, KeyError) as error:
            problems.append(f"{name}:{lines.line_num}: {error}")
    if not rows and not problems:
        problems = [f"{name}: no products here, give rows of {','.join(COLUMNS)}"]
    if problems:
        raise SpecError(problems[:20])
    return tuple(rows)


def _row(cells: dict[str, str]) -> ProductRow:
    sizes = []
    for column in ("m", "n", "k"):
        text = cells[column].strip()
        if not text.isdecimal() or not 0 < int(text[:12]) <= _MOST_SIZE:
            raise ValueError(f"{column}: a whole number up to {_MOST_SIZE:,} is expected {got(text)}, correct it")
        sizes.append(int(text))
    dtype = cells["dtype"].strip().lower()
    if dtype not in DTYPES:
        raise ValueError(f"dtype: one of {', '.join(DTYPES)} is expected {got(dtype)}, correct it")
    text = cells["seconds"].strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < _LONGEST_S:
        raise ValueError(f"seconds: a time in seconds is expected {got(text)}, correct it")
    return ProductRow(sizes[0], sizes[1], sizes[2], dtype, seconds)
