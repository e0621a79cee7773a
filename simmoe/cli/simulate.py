"""``simmoe simulate``: how fast a scenario trains, whether it fits, what holds it back."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simmoe.cli.options import DrawCount, OverlayFile, Overrides, ScenarioFile, Seed

if TYPE_CHECKING:
    from simmoe.report.result import Result
    from simmoe.specs.scenario import Scenario

DOES_NOT_FIT = 3


class Engine(StrEnum):
    """Names of the engines, as `simmoe.pipeline.run` knows them."""

    FAST = "fast"
    SIMPY = "simpy"


class Network(StrEnum):
    """Kinds of network, as `simmoe.pipeline.run` knows them."""

    ANALYTIC = "analytic"
    FLUID = "fluid"


_STDOUT = "-"


def simulate(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    overlay: OverlayFile = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the results as JSON; - prints them alone.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Write the timeline: a .json or .json.gz file for Perfetto, or a folder for HolisticTraceAnalysis.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the timeline as .svg, .png or .pdf (needs the plot extra)."),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="fast, or simpy: the readable reference, equal to the last bit.")
    ] = Engine.FAST,
    network: Annotated[
        Network, typer.Option(help="analytic, or fluid: what shares links or multiprocessors slows each other.")
    ] = Network.ANALYTIC,
    draws: DrawCount = 0,
    seed: Seed = 0,
) -> None:
    """Simulate one training step: how fast it is, whether it fits, what holds it back.

    Exits with 3 if the plan does not fit into memory.
    """
    from simmoe.pipeline import run
    from simmoe.specs.overlay_file import load_overlaid

    json_file = Path(json) if json not in (None, _STDOUT) and json is not None else None
    _check_outputs(json_file, trace, plot)
    _check_draws(draws, network)
    changes = overrides or []
    loaded = load_overlaid(scenario, changes, overlay)
    _check_drawable(loaded, draws)
    result = _with_draws(run(loaded, engine.value, network.value), draws, seed)
    written = _write(result, json_file, trace, plot)
    _print(result, scenario, changes, None if json == _STDOUT else written)
    if not result.fits:
        raise typer.Exit(DOES_NOT_FIT)


def _print(result: "Result", scenario: Path, changes: list[str], written: list[Path] | None) -> None:
    """The report, or the JSON object alone if no list of written files is given; then what is missing to fit."""
    if written is None:
        from simmoe.report.summary import summary_text

        typer.echo(summary_text(result), nl=False)
    else:
        from simmoe.cli.simulate_report import print_report

        print_report(result, scenario, changes, written)
    if not result.fits:
        from simmoe.cli.remedies import print_shortfall

        print_shortfall(result, scenario, changes)


def _check_draws(draws: int, network: Network) -> None:
    """Refuse before the simulation what could not be drawn after it."""
    from simmoe.errors import SpecError

    if draws and network is not Network.ANALYTIC:
        raise SpecError(["--draws: only an analytic network can be drawn, leave --network fluid out"])


def _check_drawable(scenario: "Scenario", draws: int) -> None:
    """The same for what is known only of the scenario."""
    if draws:
        from simmoe.report.draws import check_drawable

        check_drawable(scenario)


def _with_draws(result: "Result", draws: int, seed: int) -> "Result":
    """The result with so many draws of its step time; none are made unless asked for."""
    if not draws:
        return result
    from dataclasses import replace

    from simmoe.report.draws import draw_steps

    return replace(result, draws=draw_steps(result, draws, seed))


def _check_outputs(json_file: Path | None, trace: Path | None, plot: Path | None) -> None:
    """Refuse before the simulation what could not be written after it."""
    from simmoe.cli.output_check import check_writable

    if json_file is not None:
        check_writable(json_file)
    if trace is not None and trace.name.endswith((".json", ".json.gz")):
        check_writable(trace)
    if plot is not None:
        from simmoe.report.figures import check_suffix

        check_suffix(plot)
        check_writable(plot)


def _write(result: "Result", json_file: Path | None, trace: Path | None, plot: Path | None) -> list[Path]:
    """Write the files asked for; each is complete or not there."""
    written: list[Path] = []
    if json_file is not None:
        from simmoe.report.output import replacing
        from simmoe.report.summary import summary_text

        text = summary_text(result)
        with replacing(json_file) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(json_file)
    if trace is not None:
        from simmoe.report.chrome_trace import write_trace

        written += write_trace(result.timeline, result.ranks, trace, result.memory_timelines)
    if plot is not None:
        from simmoe.report.gantt import write_gantt

        write_gantt(result.timeline, result.ranks, plot, result.scenario.name, result.memory_timelines)
        written.append(plot)
    return written
