"""``simmoe trace``: where the time of a profiler trace went."""

import json as json_text
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simmoe.cli.options import JsonFile
from simmoe.cli.write_texts import write_texts

if TYPE_CHECKING:
    from simmoe.calibration.breakdown import Breakdown, Step
    from simmoe.calibration.kernel_classes import KernelClass
    from simmoe.calibration.trace import Trace


class By(StrEnum):
    """What sums are shown by."""

    CLASS = "class"
    STREAM = "stream"
    COLLECTIVE = "collective"


def trace(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Traces of the torch profiler, one a rank.", show_default=False),
    ],
    steps: Annotated[bool, typer.Option("--steps", help="A line for each step.")] = False,
    by: Annotated[By, typer.Option(help="What the sums are shown by.")] = By.CLASS,
    classes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lines 'class pattern' for kernels of your own.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the first step of each trace: .svg, .png or .pdf.", show_default=False),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Compute, communication, what of it is exposed, copies and idle time of traces; several ranks are matched."""
    from simmoe.calibration.breakdown import breakdown, steps_of
    from simmoe.calibration.classes_file import read_classes
    from simmoe.calibration.kernel_classes import TABLE
    from simmoe.calibration.trace import read_trace
    from simmoe.cli.output_check import check_files

    check_files(plot, json)
    table = read_classes(classes) if classes is not None else TABLE
    traces = [read_trace(path) for path in files]
    found = [(one, breakdown(one, table=table), steps_of(one, table)) for one in traces]
    if plot is not None:
        _draw(traces, table, plot)
    if not write_texts({json: _text(found, table)} if json is not None else {}):
        from simmoe.cli.trace_report import print_traces

        print_traces(found, table, by.value, steps=steps)


def _draw(traces: "list[Trace]", table: "tuple[KernelClass, ...]", plot: Path) -> None:
    """The first step of each trace that has rows."""
    from simmoe.calibration.observations import step_rows
    from simmoe.calibration.step_picture import trace_panel
    from simmoe.errors import SpecError
    from simmoe.report.lanes_picture import write_lanes

    panels = []
    for one in traces:
        rank = "" if one.rank is None else f"rank {one.rank}, "
        panels += [trace_panel(one, step.rows, f"{rank}{one.path.name}", table) for step in step_rows(one)[:1]]
    if not panels:
        raise SpecError([f"{traces[0].path}: no kernels here, so there is nothing to draw: leave --plot out"])
    write_lanes(panels, plot)


def _text(found: "list[tuple[Trace, Breakdown, list[Step]]]", table: "tuple[KernelClass, ...]") -> str:
    """All as JSON."""
    from simmoe.calibration.ranks import match_ranks
    from simmoe.calibration.trace_summary import matching_figures, summary

    said: dict[str, object] = {"traces": [summary(*one) for one in found]}
    if len(found) > 1:
        said["ranks"] = matching_figures(match_ranks([one for one, *_ in found], table))
    return json_text.dumps(said, indent=2, allow_nan=False) + "\n"
