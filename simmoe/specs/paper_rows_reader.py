"""Read what a paper states in figures: one value a line, with the tolerance at which a simulation reproduces it."""

import csv
import math
from pathlib import Path
from typing import NamedTuple

from simmoe.specs.data_folders import data_root
from simmoe.specs.document import Position, Problem, raise_problems
from simmoe.specs.text_file import MEBIBYTE, got, one_line, read_text, refuse

KINDS = ("relative", "absolute", "interval", "sign", "exact")
USES = {"C": "calibration", "T": "test", "R": "reported only"}
_RANGE = ".."


class PaperRow(NamedTuple):
    """One value of a paper.

    Attributes
    ----------
    row : int
        Number of the statement that the value belongs to.
    name : str
        Tells the values of a row apart.
    locator : str
        Figure, table or section.
    cluster, model, lengths, baseline, metric : str
        What was measured, in words.
    published : str
        The value, ``low..high``, or words for kind ``exact``.
    unit : str
        ``1`` for shares and ratios; empty for words.
    kind : str
        ``relative``, ``absolute``; ``interval``: inside, or off by at most the tolerance; ``sign``: as absolute,
        strictly also on the same side of 1; ``exact``.
    use : str
        ``C`` chosen to agree, ``T`` a test, ``R`` reported only.
    tolerance, strict_tolerance : float
        Largest error; the strict one is that from before tolerances were widened.
    derived : bool
        Follows from printed values, is not printed.
    note : str
        What was inferred, what is a misprint.
    """

    row: int
    name: str
    locator: str
    cluster: str
    model: str
    lengths: str
    baseline: str
    metric: str
    published: str
    unit: str
    kind: str
    use: str
    tolerance: float
    strict_tolerance: float
    derived: bool
    note: str

    @property
    def id(self) -> str:
        """``row.name``."""
        return f"{self.row}.{self.name}"

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest published value; equal for a single one, NaN for words."""
        if self.kind == "exact":
            return math.nan, math.nan
        low, _, high = self.published.partition(_RANGE)
        return float(low), float(high or low)


def paper_rows(paper: str) -> tuple[PaperRow, ...]:
    """The rows of a paper that SimMoE brings along, in the order of its file.

    Parameters
    ----------
    paper : str
        A folder of ``scenarios/papers``.
    """
    return read_paper_rows(data_root() / "scenarios" / "papers" / paper / "rows.csv")


def read_paper_rows(path: Path) -> tuple[PaperRow, ...]:
    """The rows of a file, in its order.

    Parameters
    ----------
    path : Path
        A CSV file of at most 1 MiB whose columns are the fields of `PaperRow`; lines that start with ``#`` are
        comments.

    Raises
    ------
    SpecError
        With every problem, each with its file and line.
    """
    name, columns = one_line(str(path), 4096), list(PaperRow._fields)
    lines = read_text(path, MEBIBYTE).splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    records = csv.reader([line for _, line in numbered], strict=True)
    found: dict[str, PaperRow] = {}
    problems: list[Problem] = []
    try:
        header = next(records, [])
        if header != columns:
            refuse(name, f"not the header {','.join(columns)} {got(','.join(header))}, correct it")
        for record in records:
            position = Position(name, numbered[records.line_num - 1][0], 1)
            wrong = _wrong(record, position)
            problems += wrong
            if not wrong:
                row = _row(record)
                if row.id in found:
                    problems.append(Problem(position, row.id, "is given twice, name one of the two otherwise"))
                found[row.id] = row
    except csv.Error as error:
        refuse(name, f"not valid CSV ({error}), correct the quotes")
    raise_problems(problems)
    return tuple(found.values())


def _row(record: list[str]) -> PaperRow:
    number, name, locator, cluster, model, lengths, baseline, metric, published, unit, kind, use, *rest = record
    tolerance, strict, derived, note = rest
    return PaperRow(
        int(number), name, locator, cluster, model, lengths, baseline, metric, published, unit, kind, use,
        float(tolerance or 0), float(strict or 0), derived == "yes", note,
    )  # fmt: skip


def _wrong(record: list[str], position: Position) -> list[Problem]:
    """What is wrong with a line, cell by cell."""
    columns = PaperRow._fields
    if len(record) != len(columns):
        sentence = f"{len(columns)} cells are expected (got {len(record)}), quote cells that hold commas"
        return [Problem(position, "", sentence)]
    cells = dict(zip(columns, record, strict=True))
    words = {"kind": KINDS, "use": tuple(USES), "derived": ("yes", "no")}
    problems = [
        Problem(position, name, f"is none of {', '.join(known)} {got(cells[name])}, write one of them")
        for name, known in words.items()
        if cells[name] not in known
    ]
    if not (cells["row"].isascii() and cells["row"].isdigit()):
        problems.append(Problem(position, "row", f"a whole number is expected {got(cells['row'])}, write one"))
    numbers = [] if cells["kind"] == "exact" else ["tolerance", "strict_tolerance"]
    problems += [
        Problem(position, name, f"a number of at least 0 is expected {got(cells[name])}, write for example 0.1")
        for name in numbers
        if not _number(cells[name]) >= 0
    ]
    parts = cells["published"].split(_RANGE)
    if cells["kind"] != "exact" and (len(parts) > 2 or any(math.isnan(_number(part)) for part in parts)):
        sentence = f"a number or low..high is expected {got(cells['published'])}, correct it"
        problems.append(Problem(position, "published", sentence))
    return problems


def _number(text: str) -> float:
    """A finite number, NaN for what is none."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
