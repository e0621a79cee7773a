"""``simmoe sensitivity``: which resource the step time hangs on."""

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simmoe.cli.options import JsonFile, OverlayFile, Overrides, ScenarioFile
from simmoe.cli.write_texts import write_texts

if TYPE_CHECKING:
    from simmoe.explore.sensitivity import Sensitivities
    from simmoe.specs.scenario import Scenario


def sensitivity(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    overlay: OverlayFile = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a tornado: .svg, .png or .pdf.", show_default=False)
    ] = None,
    json: JsonFile = None,
) -> None:
    """What 1 % more, half, and twice as much of every resource do to the step time of this plan."""
    from simmoe.cli.output_check import check_files
    from simmoe.explore.sensitivity import sensitivities
    from simmoe.specs.overlay_file import load_overlaid

    check_files(plot, json)
    loaded = load_overlaid(scenario, overrides or [], overlay)
    found = sensitivities(loaded)
    if plot is not None:
        from simmoe.report.tornado import Bar, write_tornado

        bars = [Bar(one.resource, one.half_s, one.twice_s) for one in found.of]
        write_tornado(bars, found.step_s, plot, loaded.name)
    if not write_texts({json: _text(found)} if json is not None else {}):
        _print(found, loaded)


def _text(found: "Sensitivities") -> str:
    resources = [one._asdict() for one in found.of]
    return json_text.dumps({"step_time_s": found.step_s, "resources": resources}, indent=2, allow_nan=False) + "\n"


def _print(found: "Sensitivities", scenario: "Scenario") -> None:
    """A line for each resource that matters."""
    from simmoe.cli.screen import console, heading, indented, seconds, table

    screen = console()
    screen.print(heading(scenario.name, f"a step takes {seconds(found.step_s)}"))
    rows = table("", "1 % more", "half", "twice", right="lrrr")
    quiet = []
    for one in found.of:
        changes = [one.half_s / found.step_s - 1, one.twice_s / found.step_s - 1]
        if max(map(abs, changes)) < _QUIET:
            quiet.append(one.resource)
            continue
        cells = (f"{one.elasticity:+.3f} %", *(f"{100 * change:+.1f} %" for change in changes))
        rows.add_row(one.resource, *cells)
    screen.print(indented(rows))
    if quiet:
        screen.print(indented(f"Without influence here: {', '.join(quiet)}."))


_QUIET = 0.0005
