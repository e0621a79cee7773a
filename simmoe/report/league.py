"""How far simulations are from published measurements: one comparison a row, summarised by group."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from math import floor
from statistics import fmean, median
from typing import Literal, NamedTuple

Status = Literal["ok", "approximate", "unsupported", "failed"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One published run beside its simulation; the fields are the columns of ``validate --csv``.

    Attributes
    ----------
    id, group, model, gpu : str
        Name of the row, of its source, of the model and of the accelerator.
    num_gpus : int or None
        Accelerators of the job.
    moe : bool
        The model has routed experts.
    measured_s, simulated_s : float or None
        Time of a step [s]; None where there is none.
    error : float or None
        simulated_s / measured_s - 1 [1]: positive = the simulation is slower than the machine.
    low_s, high_s : float or None
        Where the measurement should lie, see `simmoe.report.uncertainty.step_interval` [s].
    status : str
        ``ok``: simulated as published; ``approximate``: something was assumed or left out, `reason` says what;
        ``unsupported``: cannot be described; ``failed``: SimMoE itself failed.
    reason : str
        Why the status is not ``ok``.
    precision : str
        Precision recipe.
    """

    id: str
    group: str
    model: str
    gpu: str
    num_gpus: int | None
    moe: bool
    measured_s: float | None
    simulated_s: float | None
    error: float | None
    low_s: float | None
    high_s: float | None
    status: Status
    reason: str
    precision: str = ""


CSV_COLUMNS = tuple(field.name for field in fields(Comparison) if field.name != "precision")


class Summary(NamedTuple):
    """The errors of a set of rows.

    Attributes
    ----------
    name : str
        The group.
    rows : int
        Rows that were simulated.
    median, mean, p90, worst : float
        Of the absolute error [1].
    bias : float
        Mean of the signed error [1].
    """

    name: str
    rows: int
    median: float
    mean: float
    p90: float
    worst: float
    bias: float


def relative_error(simulated: float, measured: float) -> float:
    """Simulated over measured - 1 [1].

    Examples
    --------
    >>> relative_error(9.0, 10.0)
    -0.1
    """
    return round(simulated / measured - 1, 12)


def quantile(values: Iterable[float], level: float) -> float:
    """A quantile of a sample, linear between its order statistics (Hyndman and Fan's type 7, as numpy's).

    Parameters
    ----------
    values : iterable of float
        At least one.
    level : float
        0 = smallest, 1 = largest.

    References
    ----------
    R. J. Hyndman and Y. Fan, Sample quantiles in statistical packages, The American Statistician 50 (1996), 361-365.

    Examples
    --------
    Of 1, 2, 3, 4 the 90 % point lies at position 0.9 x 3 = 2.7, between 3 and 4:

    >>> round(quantile([4, 1, 3, 2], 0.9), 9)
    3.7
    """
    ordered = sorted(values)
    position = level * (len(ordered) - 1)
    below = floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def summarise(name: str, comparisons: Iterable[Comparison]) -> Summary | None:
    """The errors of those comparisons that have one; None if none has.

    Examples
    --------
    >>> def run(error):
    ...     return Comparison("a", "g", "m", "h100", 8, True, 1.0, 1 + error, error, None, None, "ok", "")
    >>> summary = summarise("g", [run(0.1), run(-0.3)])
    >>> summary.rows, round(summary.mean, 9), round(summary.bias, 9), summary.worst
    (2, 0.2, -0.1, 0.3)
    """
    errors = [one.error for one in comparisons if one.error is not None]
    if not errors:
        return None
    sizes = [abs(error) for error in errors]
    return Summary(name, len(errors), median(sizes), fmean(sizes), quantile(sizes, 0.9), max(sizes), fmean(errors))


def by_group(comparisons: Sequence[Comparison]) -> tuple[Summary, ...]:
    """One summary for each group that has simulated rows, in order of appearance."""
    names = dict.fromkeys(one.group for one in comparisons)
    found = (summarise(name, [one for one in comparisons if one.group == name]) for name in names)
    return tuple(summary for summary in found if summary is not None)


def worst(comparisons: Iterable[Comparison], count: int = 10) -> tuple[Comparison, ...]:
    """The comparisons with the largest absolute error, largest first; ties in the order given."""
    return tuple(sorted((one for one in comparisons if one.error is not None), key=_size, reverse=True)[:count])


def _size(comparison: Comparison) -> float:
    return abs(comparison.error or 0.0)


def reasons(comparisons: Iterable[Comparison], status: Status) -> tuple[tuple[str, int], ...]:
    """How often each reason of a status occurs, most frequent first."""
    counts: dict[str, int] = {}
    for one in comparisons:
        if one.status == status:
            for reason in one.reason.split("; "):
                counts[reason] = counts.get(reason, 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def representative(comparisons: Iterable[Comparison]) -> tuple[Comparison, ...]:
    """The first row of each model, accelerator, job size and precision, whatever its error.

    Returns
    -------
    tuple of Comparison
        Simulated rows only, in order of model, accelerator and job size.
    """
    first: dict[tuple[str, str, int, str], Comparison] = {}
    for one in comparisons:
        if one.error is not None:
            first.setdefault((one.model, one.gpu, one.num_gpus or 0, one.precision), one)
    return tuple(first[key] for key in sorted(first))


def inside(comparisons: Iterable[Comparison]) -> float | None:
    """Share of the measurements that lie in the predicted interval [1]; None if nothing was simulated."""
    held = [
        one.low_s <= one.measured_s <= one.high_s
        for one in comparisons
        if one.low_s is not None and one.high_s is not None and one.measured_s is not None
    ]
    return sum(held) / len(held) if held else None


def csv_text(comparisons: Iterable[Comparison]) -> str:
    """The comparisons as CSV, one line each after a line of column names; floats to ten significant digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    writer.writerows([_cell(value) for value in astuple(one)[: len(CSV_COLUMNS)]] for one in comparisons)
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def markdown_table(comparisons: Iterable[Comparison]) -> str:
    """A table of comparisons in Markdown."""
    return "\n".join(_markdown_lines(comparisons)) + "\n"


def _markdown_lines(comparisons: Iterable[Comparison]) -> Iterator[str]:
    yield "| model | GPUs | precision | measured [s] | simulated [s] | error | row |"
    yield "|---|---|---|---:|---:|---:|---|"
    for one in comparisons:
        note = "" if one.status == "ok" else " *"
        yield (
            f"| {one.model} | {one.num_gpus} {one.gpu} | {one.precision} | {one.measured_s:.3g} | "
            f"{one.simulated_s:.3g} | {one.error:+.1%} | {one.id}{note} |"
        )
