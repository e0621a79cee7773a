"""How far simulations are from published measurements: one comparison a row, summarised by group."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from math import floor
from statistics import fmean, median
from typing import Literal, NamedTuple

from simmoe.report.output import csv_table

Status = Literal["ok", "infeasible", "unsupported"]
Key = Literal["group", "model", "gpu", "software", "precision"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One published run beside its simulation; the fields up to `reason` are the columns of ``validate --csv``.

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
        ``ok``: simulated; ``infeasible``: simulated, but by the estimate of memory the plan cannot have run, see
        `simmoe.report.league_memory`; ``unsupported``: cannot be described.
    reason : str
        Why the status is not ``ok``, and what had to be assumed or left out, ``assumed:`` before it.
    precision, software : str
        Precision recipe, and the software stack that was simulated.
    cause : str
        What the error most likely comes from, see `simmoe.report.league_causes`.
    memory_gib, peak_mem_gib : float or None
        Estimated and published peak memory of the fullest device, as PyTorch's allocator counts: without what the
        framework takes beside it [GiB].
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
    software: str = ""
    cause: str = ""
    memory_gib: float | None = None
    peak_mem_gib: float | None = None

    @property
    def assumed(self) -> bool:
        """Something was assumed or left out."""
        return self.reason.find(ASSUMED) >= 0


ASSUMED = "assumed: "
CSV_COLUMNS = (
    "id", "group", "model", "gpu", "num_gpus", "moe", "measured_s", "simulated_s", "error", "low_s", "high_s", "status",
    "reason",
)  # fmt: skip


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
    inside : float or None
        Share of the measurements that lie in the predicted interval [1]; None where none was predicted.
    """

    name: str
    rows: int
    median: float
    mean: float
    p90: float
    worst: float
    bias: float
    inside: float | None = None


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
    simulated = [one for one in comparisons if one.error is not None]
    errors = [one.error for one in simulated if one.error is not None]
    if not errors:
        return None
    sizes, held = [abs(error) for error in errors], inside(simulated)
    most, bias = max(sizes), fmean(errors)
    return Summary(name, len(errors), median(sizes), fmean(sizes), quantile(sizes, 0.9), most, bias, held)


def by(comparisons: Sequence[Comparison], key: Key = "group") -> tuple[Summary, ...]:
    """One summary for each value of a key that has simulated rows, in order of appearance.

    Parameters
    ----------
    comparisons : sequence of Comparison
    key : str
        ``group``, ``model``, ``gpu``, ``software`` or ``precision``: leaving out one value at a time shows where a
        parameter set that was fitted on the others still holds.
    """
    parts: dict[str, list[Comparison]] = {}
    for one in comparisons:
        parts.setdefault(getattr(one, key) or "not stated", []).append(one)
    found = (summarise(name, part) for name, part in parts.items())
    return tuple(summary for summary in found if summary is not None)


def totals(comparisons: Sequence[Comparison]) -> tuple[Summary, ...]:
    """The summaries of dense models, of MoE models, and of all, as far as rows were simulated."""
    parts = {
        "dense": [one for one in comparisons if not one.moe],
        "MoE": [one for one in comparisons if one.moe],
        "all": list(comparisons),
    }
    found = (summarise(name, part) for name, part in parts.items())
    return tuple(summary for summary in found if summary is not None)


def memory_summaries(comparisons: Iterable[Comparison]) -> tuple[Summary, ...]:
    """The errors of the estimate of memory, by group and in total, over the rows whose peak is published.

    Examples
    --------
    >>> row = Comparison("a", "g", "m", "h100", 8, True, 1.0, 1.0, 0.0, None, None, "ok", "")
    >>> row = replace(row, memory_gib=55.0, peak_mem_gib=50.0)
    >>> [(summary.name, summary.rows, summary.bias) for summary in memory_summaries([row])]
    [('g', 1, 0.1), ('all', 1, 0.1)]
    """
    known = [
        replace(one, error=relative_error(one.memory_gib, one.peak_mem_gib), low_s=None)
        for one in comparisons
        if one.memory_gib is not None and one.peak_mem_gib is not None
    ]
    total = summarise("all", known)
    return (*by(known), total) if total is not None else ()


def worst(comparisons: Iterable[Comparison], count: int = 10) -> tuple[Comparison, ...]:
    """The comparisons with the largest absolute error, largest first; ties in the order given."""
    return tuple(sorted((one for one in comparisons if one.error is not None), key=_size, reverse=True)[:count])


def _size(comparison: Comparison) -> float:
    return abs(comparison.error or 0.0)


def assumptions(comparisons: Iterable[Comparison]) -> tuple[tuple[str, int], ...]:
    """How often each thing was assumed or left out among the simulated rows, most frequent first.

    Examples
    --------
    >>> row = Comparison("a", "g", "m", "h100", 8, True, 1.0, 1.0, 0.0, None, None, "ok", "assumed: x; y")
    >>> assumptions([row, row])
    (('x', 2), ('y', 2))
    """
    counts: dict[str, int] = {}
    for one in comparisons:
        if one.error is not None and one.assumed:
            for note in one.reason.split(ASSUMED, 1)[1].split("; "):
                counts[note] = counts.get(note, 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def refusals(comparisons: Iterable[Comparison]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The rows that were not simulated, by the reason; the reason of most rows first."""
    rows: dict[str, list[str]] = {}
    for one in comparisons:
        if one.error is None:
            rows.setdefault(one.reason, []).append(one.id)
    found = ((reason, tuple(ids)) for reason, ids in rows.items())
    return tuple(sorted(found, key=lambda item: (-len(item[1]), item[0])))


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
    rows = (astuple(one)[: len(CSV_COLUMNS)] for one in comparisons)
    return csv_table(CSV_COLUMNS, rows, digits=10, flags=("0", "1"))


def markdown_table(comparisons: Sequence[Comparison], key: Key = "group") -> str:
    """The summaries by a key and in total as a table in Markdown."""
    return "\n".join(_markdown_lines(comparisons, key)) + "\n"


def _markdown_lines(comparisons: Sequence[Comparison], key: Key) -> Iterator[str]:
    yield f"| {key} | rows | median | mean | P90 | max | bias | inside |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for one in by(comparisons, key):
        yield _markdown_line(one, "")
    for one in totals(comparisons):
        yield _markdown_line(one, "**")


def _markdown_line(one: Summary, mark: str) -> str:
    sizes = " | ".join(f"{100 * size:.1f} %" for size in (one.median, one.mean, one.p90, one.worst))
    inside = "" if one.inside is None else f"{100 * one.inside:.0f} %"
    return f"| {mark}{one.name}{mark} | {one.rows} | {sizes} | {100 * one.bias:+.1f} % | {inside} |"
