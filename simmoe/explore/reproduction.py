"""How far simulated values are from those a paper states, and whether that is near enough."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from simmoe.report.output import csv_table
from simmoe.specs.paper_rows_reader import PaperRow

Value = float | str
_ROUNDING = 1e-9  # a value on the edge of its tolerance is inside it, however it was added up

CSV_COLUMNS = (
    "row", "name", "use", "locator", "cluster", "model", "lengths", "baseline", "metric", "published", "unit",
    "simulated", "error", "kind", "tolerance", "within", "strict_tolerance", "within_strict", "derived", "note",
)  # fmt: skip


class Outcome(NamedTuple):
    """One value of a paper beside the simulated one.

    Attributes
    ----------
    row : PaperRow
    simulated : float or str
        A number in the unit of the row, NaN if there is none; words for kind ``exact``.
    note : str
        What the simulation met on the way, such as plans that do not fit.
    """

    row: PaperRow
    simulated: Value
    note: str = ""

    @property
    def error(self) -> float:
        """How far the simulated value is off, see `error_of`."""
        return error_of(self.row, self.simulated)

    @property
    def within(self) -> bool:
        """Inside the tolerance."""
        return within(self.row, self.simulated, self.row.tolerance)

    @property
    def within_strict(self) -> bool:
        """Inside the strict tolerance; for kind ``sign`` also on the same side of 1."""
        return within(self.row, self.simulated, self.row.strict_tolerance) and same_side(self.row, self.simulated)


def error_of(row: PaperRow, simulated: Value) -> float:
    """How far a value is from a published one.

    Parameters
    ----------
    row : PaperRow
    simulated : float or str

    Returns
    -------
    float
        Positive where the simulation is larger; relative for kind ``relative``, else in the unit of the row; NaN for
        words.

    Examples
    --------
    >>> row = PaperRow(
    ...     7, "a", "Table 3", "O1", "D1", "8K", "", "ratio", "1.6..2.0", "1", "interval", "T", 0.1, 0.1, False, ""
    ... )
    >>> error_of(row, 1.8), round(error_of(row, 1.5), 9), error_of(row._replace(published="2.0", kind="relative"), 2.2)
    (0.0, -0.1, 0.10000000000000009)
    """
    if isinstance(simulated, str):
        return math.nan
    low, high = row.bounds
    if row.kind == "relative":
        return simulated / low - 1
    return simulated - high if simulated > high else simulated - low if simulated < low else 0.0 * simulated


def within(row: PaperRow, simulated: Value, tolerance: float) -> bool:
    """Whether a value is near enough to a published one; words must be equal; NaN never is."""
    if row.kind == "exact":
        return str(simulated) == row.published
    return abs(error_of(row, simulated)) <= tolerance + _ROUNDING


def same_side(row: PaperRow, simulated: Value) -> bool:
    """Whether a ratio is better, or worse, than 1 as published; true for every kind but ``sign``."""
    if row.kind != "sign" or isinstance(simulated, str):
        return True
    return (simulated - 1) * (row.bounds[0] - 1) > 0


class Score(NamedTuple):
    """How many values are inside their tolerance, of how many."""

    within: int
    strict: int
    of: int

    @property
    def share(self) -> float:
        """Inside the tolerance, of all [1]; 1 for none."""
        return self.within / self.of if self.of else 1.0


def score(outcomes: Iterable[Outcome], use: str = "T") -> Score:
    """The score of the values of one use.

    Examples
    --------
    >>> row = PaperRow(
    ...     8, "a", "Table 3", "O1", "D1", "8K", "", "ratio", "1.15", "1", "absolute", "T", 0.08, 0.06, False, ""
    ... )
    >>> score([Outcome(row, 1.2), Outcome(row, 1.22), Outcome(row, 1.3)])
    Score(within=2, strict=1, of=3)
    """
    chosen = [one for one in outcomes if one.row.use == use]
    return Score(sum(one.within for one in chosen), sum(one.within_strict for one in chosen), len(chosen))


def missed(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The tests outside their tolerance."""
    return tuple(one for one in outcomes if one.row.use == "T" and not one.within)


class Headline(NamedTuple):
    """A claim of an abstract, and the row whose value it is."""

    claim: str
    row: str


def headline_entries(claims: Iterable[Headline], found: Iterable[Outcome]) -> list[dict[str, Any]]:
    """The claims whose rows are among the outcomes, as entries of a JSON object; no number is None."""
    known = {one.row.id: one for one in found}
    return [
        {
            "claim": claim,
            "row": row,
            "published": _printed(known[row].row),
            "simulated": _number(known[row].simulated),
            "within": known[row].within,
        }
        for claim, row in claims
        if row in known
    ]


def _printed(row: PaperRow) -> Value:
    """What is published: a number, or an interval in words."""
    low, high = row.bounds
    return low if low == high else row.published


def _number(value: Value) -> float | None:
    return value if isinstance(value, float) and math.isfinite(value) else None


def _fields(one: Outcome) -> tuple[Any, ...]:
    """The cells of `CSV_COLUMNS`; None where there is no number."""
    row, error = one.row, one.error
    simulated = one.simulated
    number = None if isinstance(simulated, float) and not math.isfinite(simulated) else simulated
    words = row.kind == "exact"
    return (
        row.row, row.name, row.use, row.locator, row.cluster, row.model, row.lengths, row.baseline, row.metric,
        row.published, row.unit, number, error if math.isfinite(error) else None, row.kind,
        None if words else row.tolerance, one.within, None if words else row.strict_tolerance, one.within_strict,
        row.derived, "; ".join(filter(None, (row.note, one.note))),
    )  # fmt: skip


def csv_text(outcomes: Iterable[Outcome]) -> str:
    """The outcomes as CSV, one line each after a line of column names; floats to six significant digits."""
    return csv_table(CSV_COLUMNS, map(_fields, outcomes), digits=6)


def json_text(paper: str, outcomes: Sequence[Outcome], extra: dict[str, Any] | None = None) -> str:
    """The outcomes and their scores as one JSON object.

    Parameters
    ----------
    paper : str
        Its name.
    outcomes : sequence of Outcome
    extra : dict
        More entries of the object.
    """
    scores = {use: score(outcomes, use)._asdict() for use in ("T", "C")}
    rows = [dict(zip(CSV_COLUMNS, map(_rounded, _fields(one)), strict=True)) for one in outcomes]
    body = {"schema": 1, "paper": paper, "scores": scores, "rows": rows, **(extra or {})}
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
