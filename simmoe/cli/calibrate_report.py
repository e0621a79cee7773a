"""What ``simmoe calibrate`` prints: matched time, fitted numbers, what is left open, residuals."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from simmoe.calibration.calibrate import Calibration
from simmoe.calibration.coverage import Coverage, measured_coverage, simulated_coverage
from simmoe.calibration.fit import FIRM, NOT_SEEN
from simmoe.calibration.kernel_classes import KernelClass
from simmoe.calibration.observations import MatchedStep
from simmoe.calibration.overlay_text import residuals_by_class
from simmoe.cli.screen import console, heading, indented, percent, seconds, table
from simmoe.units import format_si


def print_calibration(found: Calibration, steps: Sequence[MatchedStep], classes: tuple[KernelClass, ...]) -> None:
    """Print a calibration.

    Parameters
    ----------
    found : Calibration
    steps : sequence of MatchedStep
    classes : tuple of KernelClass
    """
    screen = console()
    if steps:
        print_coverage(screen, steps, classes)
    _numbers(screen, found)
    _left(screen, found)
    _residuals(screen, found)


def print_coverage(screen: Console, steps: Sequence[MatchedStep], classes: tuple[KernelClass, ...]) -> None:
    """What of the measured kernels has a counterpart, and what of the simulated tasks."""
    ranks = len({str(step.trace.path) for step in steps})
    screen.print(heading("Matched", f"{len(steps)} steps of {ranks} traces beside the simulated ranks"))
    rows = table("", "class", "time", "matched", "not matched", right="llrrr")
    for side, parts in (
        ("measured", measured_coverage(steps, classes)),
        ("simulated", simulated_coverage(steps)),
    ):
        _sides(rows, side, parts)
    screen.print(indented(rows))
    screen.print()


def _sides(rows: Table, side: str, parts: Mapping[str, Coverage]) -> None:
    for name, one in parts.items():
        total = one.matched_s + one.unmatched_s
        cells = (side, name, seconds(total), percent(one.share), seconds(one.unmatched_s) if one.unmatched_s else "")
        rows.add_row(*cells)
        side = ""


def _numbers(screen: Console, found: Calibration) -> None:
    """Each fitted number beside what it was."""
    firm = sum(one.half_width <= FIRM for one in found.fit.fitted)
    remark = f"{len(found.fit.fitted)} numbers, {firm} of them within {percent(FIRM, 0)}; intervals of 95 %"
    screen.print(heading("Fitted", remark))
    rows = table("", "was", "is", "change", "within", right="lrrrr")
    part = ""
    for one in sorted(found.fit.fitted, key=lambda fitted: found.numbers[fitted.number].part):
        number = found.numbers[one.number]
        if number.part != part:
            part = number.part
            rows.add_row(part, style="bold")
        value = number.quantity.value * one.factor
        shown = f"{value:.4g}" if number.quantity.unit == "1" else format_si(value, number.quantity.unit)
        change = f"{100 * (one.factor - 1):+.1f} %"
        rows.add_row(f"  {number.name}", number.quantity.text, shown, change, percent(one.half_width))
    screen.print(indented(rows))


def _left(screen: Console, found: Calibration) -> None:
    """What the measurements cannot tell, and why; what they never touch is only counted."""
    touched = [one for one in found.fit.left if one.reason != NOT_SEEN]
    if not found.fit.left:
        return
    screen.print()
    screen.print(heading("Not told by these measurements", "left as they are"))
    rows = table("", "because", grow="because")
    part = ""
    for one in sorted(touched, key=lambda left: found.numbers[left.number].part):
        number = found.numbers[one.number]
        if number.part != part:
            part = number.part
            rows.add_row(part, style="bold")
        rows.add_row(f"  {number.name}", one.reason.replace(f"{part}: ", ""))
    if touched:
        screen.print(indented(rows))
    if len(found.fit.left) > len(touched):
        untouched = len(found.fit.left) - len(touched)
        screen.print(indented(f"{untouched} more, which nothing measured depends on; the overlay lists them."))


def _residuals(screen: Console, found: Calibration) -> None:
    """How far simulated durations are from measured ones."""
    screen.print()
    screen.print(heading("Simulated against measured durations", "median of absolute differences"))
    rows = table("class", "kinds of work", "before", "after", right="lrrr")
    for name, one in residuals_by_class(found).items():
        rows.add_row(
            name,
            str(one["measurements"]),
            percent(one["median_error_before"]),
            percent(one["median_error_after"]),
        )
    screen.print(indented(rows))
    if found.fit.scale > 1.0 + FIRM:
        screen.print(indented(f"Note: residuals are {found.fit.scale:.1f} times the scatter of what was measured."))
