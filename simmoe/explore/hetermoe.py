"""Reproduce HeterMoE: which runs its rows need, what they amount to, what its headlines become."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from simmoe.explore.hetermoe_bench import AS_SHIPPED, Assumptions, Bench, Case, K, KeptBench, Measurement, cases_of
from simmoe.explore.hetermoe_charts import FIGURES, Figure, printed
from simmoe.explore.hetermoe_rows import QUESTIONS
from simmoe.explore.reproduction import Outcome, Score, Value, score
from simmoe.report.charts import Chart
from simmoe.report.league_memory import MARGIN
from simmoe.specs.paper_rows_reader import PaperRow, paper_rows

PAPER = "hetermoe"

# Why a value is off, where the reason is known and does not depend on how far it is off.
_NO_LOSS = (
    "moved experts cost nothing but their kernels here, so one side is always busy; as printed, both wait for a sixth "
    "of the step"
)
EXPLANATIONS: Mapping[str, str] = {
    "6.on-8k-a40": _NO_LOSS,
    "6.on-16k-a40": _NO_LOSS,
    "9.d1-4k": _NO_LOSS,
    "18.fits-w1": "whether a V100 holds the 8.6 GB of a layer and a long sequence is within the error of the estimate",
    "17.distep": "DistEP hides nothing here, as its utilization on O1 says; on T4 it may have hidden a part",
    "19.gain-4k": "7 V100 do not divide over 4 A40: no experts can move, and the V100 stay the slower side",
    "23.v100-mean": "every GPU has a host and a port of its own here; four V100 in one host exchange tokens faster",
    "23.v100-4k": "every GPU has a host and a port of its own here; four V100 in one host exchange tokens faster",
    "19.best-12k": "experts can move at 2, 4 and 8 V100 only, which makes the curve uneven",
}


class Headline(NamedTuple):
    """A claim of the abstract, and the row whose value it is."""

    claim: str
    row: str


HEADLINES = (
    Headline("up to 2.3x over EP", "13.d2-32k"),
    Headline("1.4x over EP (Ideal)", "16.max"),
    Headline("95 % of the throughput with half of the A40 replaced by V100", "22.mean"),
)


def headlines(found: Iterable[Outcome]) -> list[dict[str, Any]]:
    """The claims whose rows are among the outcomes, as entries of a JSON object; no number is None."""
    known = {one.row.id: one for one in found}
    return [
        {
            "claim": claim,
            "row": row,
            "published": known[row].row.bounds[0],
            "simulated": _number(known[row].simulated),
            "within": known[row].within,
        }
        for claim, row in HEADLINES
        if row in known
    ]


def _number(value: Value) -> float | None:
    return value if isinstance(value, float) and math.isfinite(value) else None


def cases_for(table: Iterable[PaperRow], *, figures: bool = False) -> tuple[Case, ...]:
    """The runs that rows need, each once.

    Parameters
    ----------
    table : iterable of PaperRow
    figures : bool
        Also those of the figures that show them.
    """
    kept = tuple(table)
    needed = dict.fromkeys(cases_of(QUESTIONS[row.id] for row in kept))
    if figures:
        needed |= dict.fromkeys(cases_of(_drawing(figure) for figure in figures_of(kept)))
    return tuple(needed)


def outcomes(table: Iterable[PaperRow], bench: KeptBench) -> tuple[Outcome, ...]:
    """Every row beside its simulated value; runs that fit nowhere are named.

    Parameters
    ----------
    table : iterable of PaperRow
    bench : KeptBench
    """
    found = []
    for row in table:
        bench.asked.clear()
        outcome = Outcome(row, QUESTIONS[row.id](bench))
        # Kind exact asks just this: what fits.
        lost = [] if row.kind == "exact" else [case for case, one in bench.asked.items() if not one.fits]
        why = "" if outcome.within else EXPLANATIONS.get(row.id, "")
        found.append(outcome._replace(note="; ".join(filter(None, (why, _listed(lost, "fits nowhere"))))))
    return tuple(found)


def overfull(measured: Mapping[Case, Measurement]) -> str:
    """Runs of the paper that need more memory than there is, beyond the doubt of the estimate, in words; may be empty.

    Parameters
    ----------
    measured : mapping of Case to Measurement
    """
    return _listed((case for case, one in measured.items() if one.memory > MARGIN), "").rstrip()


def _listed(cases: Iterable[Case], words: str) -> str:
    """Cases in words, lengths of one system together.

    Examples
    --------
    >>> _listed([Case("ep", "O1", "W2", 4096), Case("ep", "O1", "W2", 8192)], "fits nowhere")
    'ep W2@O1 4K 8K fits nowhere'
    """
    lengths: dict[str, list[str]] = {}
    for case in sorted(cases):
        lengths.setdefault(f"{case.system} {case.model}@{case.cluster}", []).append(f"{case.length / K:g}K")
    named = ", ".join(f"{name} {' '.join(dict.fromkeys(each))}" for name, each in lengths.items())
    return f"{named} {words}" if named else ""


def _drawing(figure: Figure) -> Callable[[Bench], Chart]:
    values = dict.fromkeys(QUESTIONS, 1.0)
    return lambda bench: figure.draw(bench, values)


def figures_of(table: Iterable[PaperRow]) -> tuple[Figure, ...]:
    """The figures that show a value of some rows."""
    wanted = {row.row for row in table}
    return tuple(figure for figure in FIGURES if wanted & set(figure.rows))


def charts(table: Iterable[PaperRow], bench: KeptBench) -> tuple[Chart, ...]:
    """The figures that show a value of some rows, with all that is printed in them as marks."""
    values = printed(paper_rows(PAPER))
    return tuple(figure.draw(bench, values) for figure in figures_of(table))


class Setting(NamedTuple):
    """One set of assumptions of a sweep, and what it changes."""

    name: str
    value: str
    assumptions: Assumptions


# One at a time around the database's values, which are in the middle.
SWEEPS: tuple[tuple[str, tuple[Setting, ...]], ...] = (
    (
        "micro-batches of a layer, at most",
        tuple(Setting("R", str(most), Assumptions(most_micro_batches=most)) for most in (2, 3, 4, 6, 8)),
    ),
    (
        "pieces of an exchange in EP and DistEP, at most: exposed all-to-all",
        tuple(Setting("pieces", str(most), Assumptions(most_pieces=most)) for most in (1, 2, 4)),
    ),
    (
        "bandwidth between hosts",
        tuple(Setting("network", f"x {factor:g}", Assumptions(network=factor)) for factor in (0.6, 0.8, 1.0, 1.2, 1.5)),
    ),
    (
        "width h0 at which products take twice as long",
        tuple(Setting("h0", f"x {factor:g}", Assumptions(narrow=factor)) for factor in (0.0, 0.5, 1.0, 1.5)),
    ),
)


class Sensitivity(NamedTuple):
    """What one setting makes of the rows.

    Attributes
    ----------
    setting : Setting
    tests, calibration : Score
    gained, lost : tuple of str
        Ids that are inside their tolerance here and not in the shipped setting, and the reverse.
    """

    setting: Setting
    tests: Score
    calibration: Score
    gained: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def shipped(self) -> bool:
        """The setting is the shipped one."""
        return self.setting.assumptions == AS_SHIPPED


def sensitivity(setting: Setting, found: Sequence[Outcome], shipped: Sequence[Outcome]) -> Sensitivity:
    """Compare the rows under a setting with those as shipped.

    Parameters
    ----------
    setting : Setting
    found, shipped : sequence of Outcome
        The same rows in the same order.
    """
    pairs = [(one, base) for one, base in zip(found, shipped, strict=True) if one.row.use != "R"]
    return Sensitivity(
        setting,
        score(found, "T"),
        score(found, "C"),
        tuple(one.row.id for one, base in pairs if one.within and not base.within),
        tuple(one.row.id for one, base in pairs if base.within and not one.within),
    )


def sweep_entries(swept: Iterable[Sensitivity]) -> list[dict[str, Any]]:
    """The sweep as entries of a JSON object."""
    return [
        {
            "assumption": one.setting.name,
            "value": one.setting.value,
            "T": one.tests._asdict(),
            "C": one.calibration._asdict(),
            "gained": list(one.gained),
            "lost": list(one.lost),
        }
        for one in swept
    ]
