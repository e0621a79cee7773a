"""Reproduce HAPMoE: which runs its rows need, what they amount to, what its headlines become."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simmoe.explore import hapmoe_systems
from simmoe.explore.hapmoe_bench import (
    AS_SHIPPED,
    NAMES,
    Assumptions,
    Bench,
    Case,
    KeptBench,
    Measurement,
    cases_of,
)
from simmoe.explore.hapmoe_charts import figures_of
from simmoe.explore.hapmoe_reports import entries, sheets, swept_sheets
from simmoe.explore.hapmoe_rows import QUESTIONS
from simmoe.explore.hapmoe_scenarios import alike
from simmoe.explore.reproduction import Headline, Outcome, headline_entries
from simmoe.explore.study import Study
from simmoe.explore.sweeps import Setting
from simmoe.report.charts import Chart
from simmoe.specs.paper_rows_reader import PaperRow, paper_rows

PAPER = "hapmoe"
_TIMED = frozenset({30})  # seconds of this machine
_SLOWEST_FIRST = ("uniform", "equal", "hetermoe", "hapmoe", "metis", "hand", "published")

# Why a value is off, where the reason is known and does not depend on how far it is off.
_HOST = (
    "MI (hand) gives each device an eighth of a sequence, and the host takes as long as ever to launch a MoE layer; "
    "without host time, which the assumptions allow and --sensitivity shows, the baseline is far less slow"
)
EXPLANATIONS: Mapping[str, str] = {"24.hapmoe-hand": _HOST, "25.hapmoe-hand": _HOST}
_NO_MODEL = "not evaluated: the split depends on the model, which is not stated here"
NOTES: Mapping[str, str] = {
    "34.split-4k": _NO_MODEL,
    "34.split-16k": _NO_MODEL,
    "34.trend": "where a layer of Mixtral-S takes both sides equally long; the paper's model is not stated here",
}

HEADLINES = (
    Headline("up to 3.2x the throughput of a baseline", "29.largest-any"),
    Headline("up to 78 % more from unequal stages", "28.largest-gain"),
    Headline("a plan in less than a minute", "30.search"),
)

_RATES = "910B / MI300X"
SWEEPS: tuple[tuple[str, tuple[Setting, ...]], ...] = (
    (
        "rates of a layer on 910B and MI300X against H800",
        (
            Setting(_RATES, ".35/.74", AS_SHIPPED),
            Setting(f"{_RATES}, both declared", ".31/.74", Assumptions(ascend_rate=0.31)),
            Setting(f"{_RATES}, both of the database", ".35/.86", Assumptions(mi300x_rate=0.0)),
            Setting(_RATES, ".27/.74", Assumptions(ascend_rate=0.27)),
            Setting(_RATES, ".36/.74", Assumptions(ascend_rate=0.36)),
            Setting(_RATES, ".35/.70", Assumptions(mi300x_rate=0.70)),
            Setting(_RATES, ".35/.80", Assumptions(mi300x_rate=0.80)),
        ),
    ),
    ("host time of a MoE layer", (Setting("host time of a MoE layer", "no host", Assumptions(host=0.0)),)),
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
        values = dict.fromkeys(QUESTIONS, 1.0)
        drawings = [figure.draw for figure in figures_of(row.row for row in kept)]
        needed |= dict.fromkeys(cases_of(_drawn(draw, values) for draw in drawings))
    return tuple(needed)


def _drawn(
    draw: Callable[[Bench, Mapping[str, float]], Chart], values: Mapping[str, float]
) -> Callable[[Bench], Chart]:
    return lambda bench: draw(bench, values)


def slowest_first(cases: Iterable[Case]) -> list[Case]:
    """The order in which cases are run, so that none is waited for alone."""
    return sorted(cases, key=lambda case: _SLOWEST_FIRST.index(case.system))


def measure(case: Case, assumptions: Assumptions) -> Measurement:
    """The best plan of a system for a case, see `simmoe.explore.hapmoe_systems`."""
    return hapmoe_systems.measure(case, assumptions)


def unaffected(case: Case, assumptions: Assumptions) -> bool:
    """Whether a case runs under assumptions as it does as shipped: no device of its cluster differs."""
    return case.system == "published" or alike(case, assumptions, AS_SHIPPED)


def outcomes(table: Iterable[PaperRow], bench: KeptBench) -> tuple[Outcome, ...]:
    """Every row beside its simulated value; what has no plan is named, it is in no mean.

    Parameters
    ----------
    table : iterable of PaperRow
    bench : KeptBench
    """
    found = []
    for row in table:
        bench.asked.clear()
        outcome = Outcome(row, QUESTIONS[row.id](bench))
        why = "" if outcome.within else EXPLANATIONS.get(row.id, "")
        # A search that ends without a plan has been timed all the same.
        lost = "" if row.row in _TIMED else left_out(bench.asked)
        notes = (NOTES.get(row.id, ""), why, lost)
        found.append(outcome._replace(note="; ".join(filter(None, notes))))
    return tuple(found)


def left_out(asked: Mapping[Case, Measurement]) -> str:
    """The cases without a plan, in words.

    Examples
    --------
    >>> nothing = Measurement(float("nan"), float("nan"), "does not fit")
    >>> left_out({Case("metis", id, "Mixtral-L"): nothing for id in ("16-1", "16-3")})
    'left out, no plan: Metis-style, Mixtral-L on 16-1 16-3'
    """
    clusters: dict[str, list[str]] = {}
    for case, one in asked.items():
        if not one.fits:
            clusters.setdefault(f"{NAMES[case.system]}, {case.model} on", []).append(case.cluster)
    named = "; ".join(f"{name} {' '.join(sorted(each))}" for name, each in clusters.items())
    return f"left out, no plan: {named}" if named else ""


def charts(table: Iterable[PaperRow], bench: KeptBench) -> tuple[Chart, ...]:
    """The figures that show a value of some rows, with what is printed in them as marks."""
    values = {row.id: sum(row.bounds) / 2 for row in paper_rows(PAPER) if row.kind != "exact"}
    return tuple(figure.draw(bench, values) for figure in figures_of(row.row for row in table))


STUDY = Study(
    paper=PAPER,
    title="HAPMoE, arXiv 2609.39350",
    as_shipped=AS_SHIPPED,
    sweeps=SWEEPS,
    cases_for=cases_for,
    slowest_first=slowest_first,
    measure=measure,
    unaffected=unaffected,
    bench=hapmoe_systems.bench,
    outcomes=outcomes,
    headlines=headlines,
    charts=charts,
    unsteady=_TIMED,
    sheets=sheets,
    swept_sheets=swept_sheets,
    entries=entries,
)
