"""``simmoe whatif``: a scenario before and after some changes, and what the difference is made of."""

import json as json_text
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simmoe.cli.options import JsonFile, OverlayFile, ScenarioFile
from simmoe.cli.write_texts import write_texts
from simmoe.planners.registry import Planner

if TYPE_CHECKING:
    from rich.console import Console

    from simmoe.report.result import Result

_LEAST_SHARE = 0.001
_Changes = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="What is different, such as cluster.fabric.bandwidth=800Gb/s. May be given several times.",
        show_default=False,
    ),
]
_Both = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="KEY=VALUE",
        help="What holds on both sides. May be given several times.",
        show_default=False,
    ),
]


def whatif(
    scenario: ScenarioFile,
    changes: _Changes,
    both: _Both = None,
    overlay: OverlayFile = None,
    planner: Annotated[
        Planner | None,
        typer.Option(help="Plan either side anew, instead of the plan of the file.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw both steps on one scale: .svg, .png or .pdf.", show_default=False),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Simulate a scenario before and after some changes: step, cost, memory, and where the time is won or lost."""
    from simmoe.cli.output_check import check_files
    from simmoe.explore.planned import planned
    from simmoe.pipeline import run
    from simmoe.specs.overlay_file import load_overlaid

    check_files(plot, json)
    kept = both or []
    sides = [load_overlaid(scenario, [*kept, *own], overlay) for own in ([], changes)]
    before, after = (run(side) if planner is None else planned(side, planner) for side in sides)
    if plot is not None:
        _draw(before, after, plot)
    if not write_texts({json: _text(before, after, changes)} if json is not None else {}):
        _print(before, after, changes)


def _text(before: "Result", after: "Result", changes: Sequence[str]) -> str:
    """Both results as `simmoe simulate --json` gives them."""
    from simmoe.report.summary import summarise

    found = {"changes": list(changes), "before": summarise(before), "after": summarise(after)}
    return json_text.dumps(found, indent=2, allow_nan=False) + "\n"


def _print(before: "Result", after: "Result", changes: Sequence[str]) -> None:
    """Three tables: the figures, the chain that sets the step, why devices idle."""
    from simmoe.cli.labels import CAUSES, class_name
    from simmoe.cli.screen import console, heading

    screen = console()
    screen.print(heading(before.scenario.name, f"before and after {', '.join(changes)}"))
    _headline(screen, before, after)
    step = max(before.step_time_s, after.step_time_s)
    _differences(
        screen,
        "What the step is made of: the chain of waiting tasks that sets its time",
        (before.critical_path.by_category_s, after.critical_path.by_category_s),
        class_name,
        step,
    )
    _differences(
        screen,
        "Why GPUs idle: what the compute stream of the mean GPU waits for",
        (before.bubbles.mean, after.bubbles.mean),
        lambda cause: CAUSES.get(cause, cause),
        step,
    )


def _headline(screen: "Console", before: "Result", after: "Result") -> None:
    from simmoe.cli.screen import count, gib, indented, percent, seconds, table

    rows = table("", "before", "after", "change", right="lrrr")

    def add(name: str, value: "Callable[[Result], float | None]", show: Callable[[float], str]) -> None:
        old, new = value(before), value(after)
        if old is None or new is None:
            return
        change = f"{100 * (new / old - 1):+.1f} %" if old > 0 else ""
        rows.add_row(name, show(old), show(new), change)

    add("step time", lambda result: result.step_time_s, lambda value: seconds(value, like=before.step_time_s))
    add("tokens/s", lambda result: result.tokens_per_s, count)
    add("model TFLOP/s per GPU", lambda result: result.model_tflops_per_gpu, lambda value: f"{value:.1f}")
    add("MFU", lambda result: result.mfu, percent)
    add("peak memory [GiB]", lambda result: max(memory.total for memory in result.memory), gib)
    add("USD per million tokens", lambda result: result.cost_usd_per_million_tokens, lambda value: f"{value:.3f}")
    add("kWh per million tokens", lambda result: result.energy_kwh_per_million_tokens, lambda value: f"{value:.3f}")
    screen.print(indented(rows))
    for name, result in (("before", before), ("after", after)):
        if not result.fits:
            screen.print(indented(f"Note: the plan does not fit into memory {name} the change."))


def _differences(
    screen: "Console",
    title: str,
    sides: tuple[dict[str, float], dict[str, float]],
    named: Callable[[str], str],
    step: float,
) -> None:
    """What takes part in the step on either side, the largest difference first."""
    from simmoe.cli.screen import heading, indented, seconds, table

    old, new = sides
    screen.print()
    screen.print(heading(title))
    rows = table("", "before", "after", "difference", right="lrrr")
    names = sorted({*old, *new}, key=lambda name: (-abs(new.get(name, 0.0) - old.get(name, 0.0)), name))
    for name in names:
        first, second = old.get(name, 0.0), new.get(name, 0.0)
        if max(first, second) >= _LEAST_SHARE * step:
            difference = f"{1e3 * (second - first):+,.1f} ms"
            rows.add_row(named(name), seconds(first, like=step), seconds(second, like=step), difference)
    screen.print(indented(rows))


def _draw(before: "Result", after: "Result", plot: Path) -> None:
    from simmoe.report.figures import save
    from simmoe.report.gantt import Step, gantt_comparison

    steps = [Step(name, one.timeline, one.ranks) for name, one in (("before", before), ("after", after))]
    save(gantt_comparison(steps), plot)
