"""What ``simmoe reproduce`` prints: every value beside the paper's, the headlines, the misses, the sweeps."""

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simmoe.cli.screen import console, heading, indented, percent, table

if TYPE_CHECKING:
    from simmoe.cli.reproduce_run import Simulated
    from simmoe.explore.reproduction import Outcome, Value
    from simmoe.explore.study import Sheet, Study
    from simmoe.explore.sweeps import Sensitivity
    from simmoe.specs.paper_rows_reader import PaperRow


def print_all(study: "Study", found: "Simulated", swept: "Sequence[Sensitivity]", written: Sequence[Path]) -> None:
    """Print the tables of a reproduction.

    Parameters
    ----------
    study : Study
    found : Simulated
    swept : sequence of Sensitivity
    written : sequence of Path
        Files that were written.
    """
    print_rows(study.title, found.outcomes)
    print_misses(found.outcomes)
    if swept:
        print_sensitivity(swept)
        print_sheets(study.swept_sheets(swept))
    print_sheets(study.sheets(found.known))
    print_headlines(study.headlines(found.outcomes))
    print_score(found.outcomes)
    print_written(written)


def print_rows(title: str, found: "Sequence[Outcome]") -> None:
    """One line a value, row by row."""
    screen = console()
    remark = "C = chosen to agree, T = test, R = reported; strict = before tolerances were widened; * = derived"
    screen.print(heading(title, remark))
    lines = table(
        "row", "", "what", "paper", "simulated", "off by", "allowed", "", "strict", right="rllrrrrll", grow="what"
    )
    for number, group in groupby(found, key=lambda one: one.row.row):
        for place, one in enumerate(group):
            lines.add_row(
                "" if place else str(number),
                one.row.use,
                what(one.row),
                one.row.published + ("*" if one.row.derived else ""),
                shown(one.simulated),
                off_by(one),
                allowed(one.row),
                *verdicts(one),
            )
        lines.add_section()
    screen.print(indented(lines))


def what(row: "PaperRow") -> str:
    """A row in words.

    Examples
    --------
    >>> from simmoe.specs.paper_rows_reader import paper_rows
    >>> print(what(next(row for row in paper_rows("hetermoe") if row.id == "13.d2-32k")))
    HeterMoE / EP; D2 on O3, 32K
    """
    return f"{row.metric}; {row.model} on {row.cluster}, {row.lengths}"


def shown(value: "Value") -> str:
    """A simulated value in three or four digits.

    Examples
    --------
    >>> shown(1.2345), shown(21.72), shown("none"), shown(float("nan"))
    ('1.23', '21.7', 'none', '-')
    """
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "-"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def off_by(one: "Outcome") -> str:
    """The error: in percent where it is relative, else in the unit of the value."""
    if not math.isfinite(one.error):
        return ""
    return f"{one.error:+.1%}".replace("%", " %") if one.row.kind == "relative" else f"{one.error:+.2f}"


def allowed(row: "PaperRow") -> str:
    """The tolerance."""
    if row.kind == "exact":
        return "equal"
    return f"{100 * row.tolerance:g} %" if row.kind == "relative" else f"{row.tolerance:g}"


def verdicts(one: "Outcome") -> tuple[str, str]:
    """Inside the tolerance, and inside the strict one, in a word each."""
    if one.row.use == "R":
        return "-", "-"
    return "yes" if one.within else "NO", "yes" if one.within_strict else "NO"


def print_headlines(claims: Sequence[dict[str, Any]]) -> None:
    """What becomes of the claims of the abstract, those whose rows were simulated."""
    if not claims:
        return
    screen = console()
    screen.print(heading("Headlines", "claims of the abstract"))
    lines = table("claim", "paper", "simulated", "", right="lrrl")
    for claim in claims:
        inside = "yes" if claim["within"] else "NO"
        lines.add_row(claim["claim"], printed(claim["published"]), shown(claim["simulated"] or math.nan), inside)
    screen.print(indented(lines))


def printed(value: "Value") -> str:
    """A published value, or an interval in words.

    Examples
    --------
    >>> printed(2.29), printed("1.55..1.95")
    ('2.29', '1.55..1.95')
    """
    return value if isinstance(value, str) else f"{value:g}"


def print_misses(found: "Sequence[Outcome]") -> None:
    """The values outside their tolerance, with what is known of the reason, and what fits nowhere."""
    noted = [one for one in found if one.row.use != "R" and (one.note or not one.within)]
    if not noted:
        return
    screen = console()
    screen.print(heading("Remarks", "values outside their tolerance, and runs that fit nowhere"))
    lines = table("row", "", "off by", "remark", right="llrl")
    for one in noted:
        remark = "; ".join(filter(None, (one.note, one.row.note)))
        lines.add_row(one.row.id, "" if one.within else "NO", off_by(one), remark)
    screen.print(indented(lines))


def print_sensitivity(swept: "Sequence[Sensitivity]") -> None:
    """How many values stay inside their tolerance under other assumptions, and which change."""
    screen = console()
    screen.print(heading("Sensitivity", "one assumption changed at a time; values inside their tolerance"))
    lines = table("assumption", "", "T", "strict", "C", "changes", right="lrrrrl")
    for one in swept:
        changes = [*(f"+{id}" for id in one.gained), *(f"-{id}" for id in one.lost)]
        tests, calibration = one.tests, one.calibration
        lines.add_row(
            one.setting.name, one.setting.value, f"{tests.within} of {tests.of}", str(tests.strict),
            f"{calibration.within} of {calibration.of}", "as shipped" if one.shipped else " ".join(changes) or "none",
        )  # fmt: skip
    screen.print(indented(lines))


def print_sheets(sheets: "Sequence[Sheet]") -> None:
    """Tables of a paper's own."""
    screen = console()
    for sheet in sheets:
        screen.print(heading(sheet.title, sheet.remark))
        lines = table(*sheet.columns, right=sheet.align) if sheet.columns else table("")
        for line in sheet.lines:
            lines.add_row(*line)
        screen.print(indented(lines))


def print_score(found: "Sequence[Outcome]") -> None:
    """How many tests are inside their tolerance."""
    from simmoe.explore.reproduction import score

    tests, calibration = score(found, "T"), score(found, "C")
    words = []
    if tests.of:
        words.append(
            f"T sub-rows within: {tests.within} of {tests.of} ({percent(tests.share, 0)}), "
            f"strictly {tests.strict} ({percent(tests.strict / tests.of, 0)})"
        )
    if calibration.of:
        words.append(f"C sub-rows within: {calibration.within} of {calibration.of}")
    console().print("; ".join(words), soft_wrap=True)


def print_written(files: Sequence[Path]) -> None:
    """The files that were written."""
    if files:
        console().print(f"Written: {', '.join(map(str, files))}", soft_wrap=True)
