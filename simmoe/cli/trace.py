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
    json: JsonFile = None,
) -> None:
    """Compute, communication, what of it is exposed, copies and idle time of traces; several ranks are matched."""
    from simmoe.calibration.breakdown import breakdown, steps_of
    from simmoe.calibration.classes_file import read_classes
    from simmoe.calibration.kernel_classes import TABLE
    from simmoe.calibration.trace import read_trace

    if json not in (None, "-") and json is not None:
        from simmoe.cli.output_check import check_writable

        check_writable(Path(json))
    table = read_classes(classes) if classes is not None else TABLE
    traces = [read_trace(path) for path in files]
    found = [(one, breakdown(one, table=table), steps_of(one, table)) for one in traces]
    if not write_texts({json: _text(found, table)} if json is not None else {}):
        from simmoe.cli.trace_report import print_traces

        print_traces(found, table, by.value, steps=steps)


def _text(found: "list[tuple[Trace, Breakdown, list[Step]]]", table: "tuple[KernelClass, ...]") -> str:
    """All as JSON."""
    from simmoe.calibration.ranks import match_ranks
    from simmoe.calibration.trace_summary import matching_figures, summary

    said: dict[str, object] = {"traces": [summary(*one) for one in found]}
    if len(found) > 1:
        said["ranks"] = matching_figures(match_ranks([one for one, *_ in found], table))
    return json_text.dumps(said, indent=2, allow_nan=False) + "\n"
