"""``simmoe report``: a scenario's result as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from simmoe.cli.options import OverlayFile, Overrides, ScenarioFile
from simmoe.planners.registry import Planner


def report(
    scenario: ScenarioFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write (HTML).", show_default=False)
    ],
    overrides: Overrides = None,
    overlay: OverlayFile = None,
    planners: Annotated[
        list[Planner] | None,
        typer.Option("--planners", metavar="NAME", help="Compare this planner, too. May repeat.", show_default=False),
    ] = None,
) -> None:
    """Simulate a scenario and write a page about it: one file, no scripts, nothing from elsewhere."""
    from simmoe.cli.labels import CAUSES, CLASSES
    from simmoe.cli.output_check import check_writable
    from simmoe.cli.write_texts import write_texts
    from simmoe.explore.comparison import entries, own_plan, record
    from simmoe.explore.html_report import html_report
    from simmoe.explore.sensitivity import sensitivities
    from simmoe.pipeline import run
    from simmoe.planners.registry import Request, ask
    from simmoe.specs.overlay_file import load_overlaid

    check_writable(output)
    loaded = load_overlaid(scenario, overrides or [], overlay)
    plans = []
    if planners:
        answers = entries(loaded, planners, lambda planner, about: ask(planner, about, Request(top=1)))
        plans = [record(entry) for entry in (own_plan(loaded), *answers)]
    page = html_report(run(loaded), sensitivities(loaded), {"classes": CLASSES, "causes": CAUSES}, plans)
    write_texts({str(output): page})
    typer.echo(f"Wrote {output}")
