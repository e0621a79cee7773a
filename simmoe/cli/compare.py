"""``simmoe compare``: planners side by side on one scenario."""

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simmoe.cli.options import JsonFile, OverlayFile, Overrides, ScenarioFile
from simmoe.cli.write_texts import check_outputs, write_texts
from simmoe.planners.registry import PURPOSE, Planner

if TYPE_CHECKING:
    from simmoe.explore.comparison import Entry
    from simmoe.planners.proposal import Ranking
    from simmoe.specs.scenario import Scenario

NO_PLAN = 3
_PLANNERS = (
    Planner.HAPMOE,
    Planner.HETERMOE,
    Planner.JOINT,
    Planner.METIS,
    Planner.ALPA,
    Planner.UNIFORM,
    Planner.DEEPSPEED_MOE,
    Planner.TUTEL,
    Planner.FSDP_EP,
    Planner.RANDOM,
)


def compare(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    overlay: OverlayFile = None,
    planners: Annotated[
        list[Planner] | None,
        typer.Option(
            "--planners",
            metavar="NAME",
            help=f"Only this planner; may be given several times. One of {', '.join(PURPOSE)}.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the stages of all plans.", show_default=False)
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one line a planner; - for the screen.", show_default=False),
    ] = None,
    json: JsonFile = None,
) -> None:
    """The best plan of each planner, all simulated by the same simulator.

    The plan of the file stands beside them. Ctrl-C ends the comparison with what has been found. Exits with 3 if no
    plan fits.
    """
    from simmoe.specs.overlay_file import load_overlaid

    check_outputs(csv, json, None)
    _check_plot(plot)
    loaded = load_overlaid(scenario, overrides or [], overlay)
    found = _asked(loaded, list(dict.fromkeys(planners or _PLANNERS)))
    if plot is not None and any(entry.best for entry in found):
        _draw(found, loaded, plot)
    if not write_texts(_texts(found, csv, json)):
        from simmoe.cli.compare_report import print_comparison

        print_comparison(found, loaded)
    if not any(entry.best for entry in found):
        raise typer.Exit(NO_PLAN)


def _check_plot(plot: Path | None) -> None:
    """Refuse before the search what could not be drawn after it."""
    if plot is not None:
        from simmoe.cli.output_check import check_writable
        from simmoe.report.figures import check_suffix, new_figure

        check_suffix(plot)
        check_writable(plot)
        new_figure(1.0, 1.0)


def _asked(scenario: "Scenario", planners: list[Planner]) -> "list[Entry]":
    """What the planners answer; after Ctrl-C, what those have answered that were asked until then."""
    from simmoe.cli.plan_search import STOPPED, asked
    from simmoe.explore.comparison import entries, own_plan
    from simmoe.planners.registry import Request

    found = [own_plan(scenario)]
    stopped = False

    def ask(planner: Planner, about: "Scenario") -> "Ranking":
        nonlocal stopped
        ranking = asked(planner, about, Request(top=1))
        stopped = STOPPED in ranking.remarks
        return ranking

    try:
        for entry in entries(scenario, planners, ask):
            found.append(entry)
            if stopped:
                break
    except KeyboardInterrupt:
        if len(found) == 1:
            raise
    return found


def _texts(found: "list[Entry]", csv: Path | None, json: str | None) -> dict[str, str]:
    """What is written, by the file it is written to."""
    from simmoe.explore.comparison import COLUMNS, record
    from simmoe.report.output import csv_table

    records = [record(entry) for entry in found]
    texts = {}
    if csv is not None:
        texts[str(csv)] = csv_table(COLUMNS, [one.values() for one in records])
    if json is not None:
        texts[json] = json_text.dumps(records, indent=2, allow_nan=False) + "\n"
    return texts


def _draw(found: "list[Entry]", scenario: "Scenario", path: Path) -> None:
    from simmoe.explore.comparison import picture_row
    from simmoe.report.stage_picture import write_stages

    plans = sorted((entry.best for entry in found if entry.best is not None), key=lambda one: -one.tokens_per_s)
    rows = [picture_row(one) for one in plans]
    write_stages(rows, scenario.name, path)
