"""Reproduce HeterMoE: which runs its rows need, what they amount to, what its headlines become."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simmoe.explore import hetermoe_systems
from simmoe.explore.hetermoe_bench import AS_SHIPPED, Assumptions, Bench, Case, K, KeptBench, Measurement, cases_of
from simmoe.explore.hetermoe_charts import FIGURES, Figure, printed
from simmoe.explore.hetermoe_rows import QUESTIONS
from simmoe.explore.reproduction import Headline, Outcome, headline_entries
from simmoe.explore.study import Sheet, Study
from simmoe.explore.sweeps import Setting
from simmoe.report.charts import Chart
from simmoe.report.league_memory import MARGIN
from simmoe.specs.paper_rows_reader import PaperRow, paper_rows

PAPER = "hetermoe"
_SLOWEST_FIRST = ("hetero-pp", "zebra", "distep", "ep-ideal", "ep")

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


HEADLINES = (
    Headline("up to 2.3x over EP", "13.d2-32k"),
    Headline("1.4x over EP (Ideal)", "16.max"),
    Headline("95 % of the throughput with half of the A40 replaced by V100", "22.mean"),
)


def headlines(found: Iterable[Outcome]) -> list[dict[str, Any]]:
    """The claims whose rows are among the outcomes, as entries of a JSON object; no number is None."""
    return headline_entries(HEADLINES, found)


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


def slowest_first(cases: Iterable[Case]) -> list[Case]:
    """The order in which cases are run, so that none is waited for alone."""
    return sorted(cases, key=lambda case: _SLOWEST_FIRST.index(case.system))


def measure(case: Case, assumptions: Assumptions) -> Measurement:
    """The best plan of a system for a case, see `simmoe.explore.hetermoe_systems`."""
    return hetermoe_systems.measure(case, assumptions)


def unaffected(case: Case, assumptions: Assumptions) -> bool:
    """Whether a case runs under assumptions as it does as shipped."""
    return assumptions == AS_SHIPPED


def sheets(known: Mapping[Case, Measurement]) -> tuple[Sheet, ...]:
    """Runs that the estimate of memory would have refused."""
    large, remark = overfull(known), "runs of the paper beyond the doubt of the estimate, simulated all the same"
    return (Sheet("Memory", remark, (), "", ((large,),)),) if large else ()


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

STUDY = Study(
    paper=PAPER,
    title="HeterMoE, arXiv 2504.03871",
    as_shipped=AS_SHIPPED,
    sweeps=SWEEPS,
    cases_for=cases_for,
    slowest_first=slowest_first,
    measure=measure,
    unaffected=unaffected,
    bench=hetermoe_systems.bench,
    outcomes=outcomes,
    headlines=headlines,
    charts=charts,
    sheets=sheets,
)
