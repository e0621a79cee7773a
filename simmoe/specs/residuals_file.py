"""Read ``efficiency/residuals.csv``: how well each fit meets measurements that it was not made from."""

import csv
import math
from pathlib import Path
from typing import NamedTuple

from simmoe.specs.data_folders import hardware_roots
from simmoe.specs.document import Position, Problem, raise_problems
from simmoe.specs.text_file import MEBIBYTE, got, one_line, read_text, refuse

_LARGEST = 4 * MEBIBYTE
_MOST_ROWS = 10**9  # measurements of one table; more is a slip


class Residual(NamedTuple):
    """The errors of one fit.

    Attributes
    ----------
    part, table, variant : str
        Accelerator or link; kernel table or collective; dtype, kernel and head width, operator or number of ranks.
    source : str
        Key of ``sources.yaml`` of the measurements, with a remark in brackets; ``first -> second`` = fitted to the
        first (a source, or another part), tested on the second.
    rows, held_out_rows : int
        Measurements in all, and those that the errors are of.
    median_error, p90_error : float
        Of the absolute relative error [1].
    bias : float
        Median relative error, positive where the prediction is too slow [1].
    """

    part: str
    table: str
    variant: str
    source: str
    rows: int
    held_out_rows: int
    median_error: float
    p90_error: float
    bias: float

    @property
    def crosses_sources(self) -> bool:
        """Whether the fit was made from another source than it was tested on."""
        return "->" in self.source

    @property
    def sources(self) -> tuple[str, ...]:
        """The keys that `source` names, without remarks."""
        return tuple(name.partition("(")[0].strip() for name in self.source.split("->"))


def residuals() -> tuple[Residual, ...]:
    """The residuals of every hardware folder; a user's own replace the shipped ones of the same fit.

    Raises
    ------
    SpecError
        If a file is wrong (`read_residuals`).
    """
    found: dict[tuple[str, str, str, str], Residual] = {}
    for root in reversed(hardware_roots()):
        path = root / "efficiency" / "residuals.csv"
        if path.is_file():
            found |= {(one.part, one.table, one.variant, one.source): one for one in read_residuals(path)}
    return tuple(found[key] for key in sorted(found))


def read_residuals(path: Path) -> list[Residual]:
    """The rows of one file, in its order.

    Parameters
    ----------
    path : Path
        A CSV file of at most 4 MiB whose columns are the fields of `Residual`.

    Raises
    ------
    SpecError
        With every problem, each with its file and line.
    """
    name = one_line(str(path), 4096)
    columns = list(Residual._fields)
    rows = csv.reader(read_text(path, _LARGEST).splitlines(), strict=True)
    found: dict[tuple[str, ...], Residual] = {}
    problems: list[Problem] = []
    try:
        header = next(rows)
        if header != columns:
            refuse(f"{name}:1", f"not the header {','.join(columns)} {got(','.join(header))}, correct it")
        for row in rows:
            position = Position(name, rows.line_num, 1)
            problems += _wrong(row, position)
            if len(row) == len(columns) and tuple(row[:4]) in found:
                problems.append(Problem(position, row[0], "the fit is given twice, remove one of the two"))
            elif not problems:
                found[tuple(row[:4])] = _residual(row)
    except csv.Error as error:
        refuse(f"{name}:{rows.line_num}", f"not valid CSV ({error}), correct the quotes")
    raise_problems(problems)
    return list(found.values())


def _residual(row: list[str]) -> Residual:
    part, table, variant, source, rows, held, median, p90, bias = row
    return Residual(part, table, variant, source, int(rows), int(held), float(median), float(p90), float(bias))


def _wrong(row: list[str], position: Position) -> list[Problem]:
    """What is wrong with a row, cell by cell."""
    columns = Residual._fields
    if len(row) != len(columns):
        return [Problem(position, "", f"{len(columns)} columns are expected (got {len(row)}), correct the row")]
    cells = dict(zip(columns, row, strict=True))
    problems = [
        Problem(position, name, "is empty, name it") for name in ("part", "table", "source") if not cells[name].strip()
    ]
    problems += [
        Problem(position, name, f"a whole number is expected {got(cells[name])}, write for example 8")
        for name in ("rows", "held_out_rows")
        if _count(cells[name]) is None
    ]
    for name, least in (("median_error", 0.0), ("p90_error", 0.0), ("bias", -1.0)):
        value = _number(cells[name])
        if value is None or value < least:
            sentence = f"a number of at least {least:g} is expected {got(cells[name])}, write for example 0.05"
            problems.append(Problem(position, name, sentence))
    rows, held = _count(cells["rows"]), _count(cells["held_out_rows"])
    if rows is not None and held is not None and held > rows:
        problems.append(Problem(position, "held_out_rows", f"more than the {rows} rows (got {held}), correct one"))
    return problems


def _count(text: str) -> int | None:
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        return None
    return int(text) if int(text) <= _MOST_ROWS else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
