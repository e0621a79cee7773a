"""The report of `simmoe compare`, and the stages of plans as text."""

from collections.abc import Sequence
from string import ascii_uppercase

from rich.console import Console
from rich.text import Text

from simmoe.cli.screen import console, count, gib, heading, indented, percent, seconds, table
from simmoe.explore.comparison import Entry, picture_row
from simmoe.planners.proposal import Proposal
from simmoe.report.stage_picture import PlanRow, kinds_of
from simmoe.specs.scenario import Scenario

_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
_LONGEST = 64  # layers that are drawn one by one


def print_comparison(found: Sequence[Entry], scenario: Scenario) -> None:
    """Print all planners, the fastest first, the stages of their plans, and why some have none.

    Parameters
    ----------
    found : sequence of Entry
    scenario : Scenario
    """
    screen = console()
    groups = " + ".join(f"{group.devices} x {group.node.accelerator.name}" for group in scenario.cluster.groups)
    screen.print(heading(f"Planners for {scenario.model.name} on {groups}", "every plan simulated, fastest first"))
    ranked = sorted((one for one in found if one.best is not None), key=lambda one: -_best(one).tokens_per_s)
    if ranked:
        _table(screen, ranked)
        print_stages(screen, [picture_row(_best(one)) for one in ranked])
    _without(screen, [one for one in found if one.best is None])


def _best(entry: Entry) -> Proposal:
    assert entry.best is not None
    return entry.best


def _table(screen: Console, ranked: Sequence[Entry]) -> None:
    """A line for each planner."""
    columns = ("predicted", "simulated", "error", "tokens/s", "MFU", "GiB left", "idle", "exposed", "search")
    rows = table("planner", *columns, right="lrrrrrrrrr")
    for entry in ranked:
        one = _best(entry)
        rows.add_row(
            entry.planner,
            seconds(one.predicted_s, like=one.simulated_s),
            seconds(one.simulated_s),
            f"{100 * one.planner_error:+.1f} %",
            count(one.tokens_per_s),
            percent(one.mfu),
            gib(one.free_bytes),
            percent(one.bubble_fraction),
            percent(one.exposed_s / one.simulated_s),
            f"{entry.search_s:.1f} s" if entry.search_s else "-",
        )
    screen.print(indented(rows))


def print_stages(screen: Console, plans: Sequence[PlanRow]) -> None:
    """Which layers of each plan stand on which devices.

    Parameters
    ----------
    screen : Console
    plans : sequence of PlanRow
    """
    kinds = kinds_of(plans)
    legend = ", ".join(f"{letter} = {name}" for letter, name in zip(ascii_uppercase, kinds, strict=False))
    layers = max(plan.layers for plan in plans)
    each = -(-layers // _LONGEST)
    screen.print()
    scale = "a letter a layer" if each == 1 else f"a letter for {each} layers"
    screen.print(heading("Stages", f"{scale}, | between stages; {legend}; a/b = attention on a, experts on b"))
    rows = table("", "")
    for plan in plans:
        rows.add_row(plan.label, stage_line(plan, kinds, each))
        rows.add_row("", Text(plan.name, style="dim"))
    screen.print(indented(rows))


def stage_line(plan: PlanRow, kinds: Sequence[str], each: int = 1) -> Text:
    """The layers of a plan as letters.

    Parameters
    ----------
    plan : PlanRow
    kinds : sequence of str
        Names of devices; the first is A.
    each : int
        Layers that a letter stands for.

    Examples
    --------
    >>> from simmoe.report.stage_picture import StageBox
    >>> plan = PlanRow("", "", "", (StageBox(0, 2, ("8 H100",), ""), StageBox(2, 3, ("4 H100", "4 V100"), "")))
    >>> stage_line(plan, ["H100", "V100"]).plain
    'AA|A/B'
    """
    line = Text()
    for number, box in enumerate(plan.boxes):
        names = [[part.split(" ", 1)[1] for part in devices.split(" + ")] for devices in box.devices]
        letters = "/".join("+".join(ascii_uppercase[kinds.index(name)] for name in part) for part in names)
        colour = _COLOURS[kinds.index(names[0][0]) % len(_COLOURS)]
        line.append("|" if number else "")
        long = max(1, round(box.layers / each))
        line.append(letters * long if len(letters) == 1 else letters.ljust(long, "-"), style=colour)
    return line


def _without(screen: Console, rest: Sequence[Entry]) -> None:
    """Planners that have no plan."""
    if not rest:
        return
    screen.print()
    screen.print(heading("No plan"))
    for one in rest:
        screen.print(indented(f"{one.planner}: {one.reason}"))
