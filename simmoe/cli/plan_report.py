"""The report of `simmoe plan`."""

from rich.console import Console

from simmoe.cli.compare_report import print_stages
from simmoe.cli.screen import console, count, gib, heading, indented, percent, seconds, table
from simmoe.explore.comparison import picture_row
from simmoe.planners.proposal import Ranking
from simmoe.specs.scenario import Scenario

_MOST_REJECTED = 8


def print_ranking(ranking: Ranking, scenario: Scenario, took_s: float) -> None:
    """Print the plans, why they are what they are, and what was refused.

    Parameters
    ----------
    ranking : Ranking
    scenario : Scenario
        That was planned for.
    took_s : float
        The search [s].
    """
    screen = console()
    groups = " + ".join(f"{group.devices} x {group.node.accelerator.name}" for group in scenario.cluster.groups)
    screen.print(heading(f"Plans for {scenario.model.name} on {groups}", f"searched for {took_s:.1f} s"))
    if ranking.proposals:
        _plans(screen, ranking)
        print_stages(screen, [picture_row(one, str(place)) for place, one in enumerate(ranking.proposals, 1)])
    for line in ranking.remarks:
        screen.print(indented(line))
    _reasons(screen, ranking)
    _rejected(screen, ranking)


def _plans(screen: Console, ranking: Ranking) -> None:
    """A line for each plan, with the error of the planner's own model."""
    rows = table("", "predicted", "simulated", "error", "tokens/s", "MFU", "GiB left", "idle", "exposed")
    for column in rows.columns:
        column.justify = "right"
    for place, one in enumerate(ranking.proposals, 1):
        rows.add_row(
            str(place),
            seconds(one.predicted_s, like=one.simulated_s),
            seconds(one.simulated_s),
            f"{100 * one.planner_error:+.1f} %",
            count(one.tokens_per_s),
            percent(one.mfu),
            gib(one.free_bytes),
            percent(one.bubble_fraction),
            percent(one.exposed_s / one.simulated_s),
        )
    screen.print(indented(rows))


def _reasons(screen: Console, ranking: Ranking) -> None:
    """Why each plan is what it is."""
    for place, one in enumerate(ranking.proposals, 1):
        if one.why:
            screen.print()
            screen.print(heading(f"Plan {place}", one.name))
            screen.print(indented(" ".join(one.why)))


def _rejected(screen: Console, ranking: Ranking) -> None:
    """The first refusals, a line each."""
    if not ranking.rejected:
        return
    screen.print()
    shown = ranking.rejected[:_MOST_REJECTED]
    more = len(ranking.rejected) - len(shown)
    screen.print(heading("Rejected", f"{more} more are in --json" if more else ""))
    for one in shown:
        screen.print(indented(f"{one.what}: {one.reason}"))
