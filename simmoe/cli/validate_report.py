"""What ``simmoe validate`` prints: errors by source, worst rows, orderings, assumptions, rows left out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from simmoe.cli.screen import console, heading, indented, percent, table

if TYPE_CHECKING:
    from simmoe.report.league import Comparison, Key
    from simmoe.specs.throughput_table_reader import TableRow

_MOST_WRONG = 20
_MOST_REASONS = 25
_MOST_IDS = 40


def print_summary(found: "Sequence[Comparison]") -> None:
    """How many rows were simulated, of what, and how."""
    simulated = [one for one in found if one.error is not None]
    infeasible = sum(one.status == "infeasible" for one in found)
    models, parts = {one.model for one in simulated}, {one.gpu for one in simulated}
    exact = sum(not one.assumed for one in simulated)
    console().print(
        f"{len(simulated)} of {len(found)} published runs simulated: {len(models)} models, {len(parts)} accelerators; "
        f"{exact} exactly as published, {len(simulated) - exact} with something assumed or left out"
        + (f"; {infeasible} need more memory than there is, by the estimate." if infeasible else "."),
        soft_wrap=True,
    )


def print_errors(found: "Sequence[Comparison]", key: str) -> None:
    """The errors by a key, then of dense and MoE models and of all."""
    from simmoe.report.league import by, totals

    screen = console()
    title = "source" if key == "group" else key
    remark = "simulated / measured - 1; median to max of its size; inside = measured in the predicted interval"
    screen.print(heading(f"Error by {title}", remark))
    rows = table(key, "rows", "median", "mean", "P90", "max", "bias", "inside", right="lrrrrrrr", grow=key)
    parts = by(found, cast("Key", key))
    for position, summary in enumerate((*parts, *totals(found))):
        sizes = (summary.median, summary.mean, summary.p90, summary.worst)
        inside = "" if summary.inside is None else percent(summary.inside, 0)
        if position == len(parts):
            rows.add_section()
        rows.add_row(
            summary.name, str(summary.rows), *map(percent, sizes), f"{100 * summary.bias:+.1f} %", inside,
            style="bold" if position >= len(parts) else "",
        )  # fmt: skip
    screen.print(indented(rows))


def print_worst(found: "Sequence[Comparison]", count: int) -> None:
    """The worst rows of each group with what their error may come from."""
    from simmoe.report.league import worst

    screen = console()
    screen.print(heading("Worst rows of each source", "measured [s], simulated [s], error, what it may come from"))
    for name in dict.fromkeys(one.group for one in found):
        for one in worst((one for one in found if one.group == name), count):
            run = f"{one.id:10} {name[:18]:18} {one.model[:22]:22} {one.num_gpus:5} {one.gpu.split('-SXM')[0]:8}"
            times = f"{one.measured_s:7.2f} {one.simulated_s:7.2f} {one.error:+7.1%}"
            screen.print(f"  {run} {times}  {one.cause}", soft_wrap=True)


def print_orderings(rows: "Sequence[TableRow]", found: "Sequence[Comparison]") -> None:
    """How many changes of one choice go the right way, and those that do not."""
    from simmoe.report.league_orderings import APART, pairs, scores

    screen = console()
    compared = pairs(rows, found)
    screen.print(heading("Orderings", f"pairs that differ in one choice and by more than {APART:.0%} in time a token"))
    lines = table("choice", "pairs", "right", "share", right="lrrr")
    for score in scores(compared):
        lines.add_row(score.choice, str(score.pairs), str(score.right), percent(score.right / score.pairs, 0))
    screen.print(indented(lines))
    wrong = sorted((pair for pair in compared if not pair.right), key=lambda pair: -abs(pair.measured))
    if not wrong:
        return
    screen.print(heading("Wrong pairs", "change from the first row to the second; those that differ most"))
    lines = table("choice", "rows", "measured", "simulated", "from, to", right="llrr")
    for pair in wrong[:_MOST_WRONG]:
        change = f"{pair.measured:+.1%}", f"{pair.simulated:+.1%}"
        lines.add_row(pair.choice, f"{pair.first} {pair.second}", *change, f"{pair.before}, {pair.after}")
    screen.print(indented(lines))


def print_memory(found: "Sequence[Comparison]") -> None:
    """How far the estimate of memory is from published peaks, where there are any."""
    from simmoe.report.league import memory_summaries

    summaries = memory_summaries(found)
    if not summaries:
        return
    screen = console()
    screen.print(heading("Peak memory", "estimated / published - 1"))
    rows = table("group", "rows", "median", "mean", "max", "bias", right="lrrrrr")
    for one in summaries:
        rows.add_row(
            one.name, str(one.rows), *map(percent, (one.median, one.mean, one.worst)), f"{100 * one.bias:+.1f} %"
        )
    screen.print(indented(rows))


def print_assumptions(found: "Sequence[Comparison]") -> None:
    """What was assumed or left out, and in how many rows."""
    from simmoe.report.league import assumptions

    counted = assumptions(found)
    if not counted:
        return
    screen = console()
    screen.print(heading("Assumed or left out", "rows"))
    lines = table("", "", right="rl")
    for reason, count in counted[:_MOST_REASONS]:
        lines.add_row(str(count), reason)
    screen.print(indented(lines))


def print_refusals(found: "Sequence[Comparison]") -> None:
    """Every row that was not simulated, by the reason."""
    from simmoe.report.league import refusals

    left_out = refusals(found)
    if not left_out:
        return
    screen = console()
    screen.print(heading("Not simulated", "rows, reason, and which"))
    for reason, ids in left_out:
        more = f" and {len(ids) - _MOST_IDS} more, see --csv" if len(ids) > _MOST_IDS else ""
        screen.print(f"  {len(ids):4d}  {reason}: {', '.join(ids[:_MOST_IDS])}{more}", soft_wrap=True)
