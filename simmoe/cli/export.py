"""``simmoe export``: a plan in the words of the software that runs it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simmoe.cli.options import Overrides, ScenarioFile

if TYPE_CHECKING:
    from simmoe.specs.scenario import Scenario

app = typer.Typer(no_args_is_help=True, help="Write a plan for the software that runs it.")


@app.callback()
def _options() -> None:
    """A command of its own for each target, also while there is one."""


@app.command()
def megatron(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The script; printed if left out.", show_default=False),
    ] = None,
    nearest: Annotated[
        bool, typer.Option("--nearest", help="Where stock Megatron-LM cannot run the plan, export the closest it can.")
    ] = False,
) -> None:
    """Write a launch script for Megatron-LM (Megatron-Core 0.19): bash, torchrun, hosts in the order of ranks.

    Exits with 2, and says why, if stock Megatron-LM cannot run the plan.
    """
    from simmoe.specs.megatron.script import launch_script
    from simmoe.specs.reader import load_scenario

    if output is not None:
        from simmoe.cli.output_check import check_writable

        check_writable(output)
    loaded = load_scenario(scenario, overrides or [])
    chosen, remarks = _choose(loaded, scenario, nearest)
    text = launch_script(chosen, remarks)
    for remark in remarks:
        typer.echo(remark, err=output is None)
    if output is None:
        typer.echo(text, nl=False)
        return
    from simmoe.report.output import replacing

    with replacing(output) as temporary:
        temporary.write_text(text, encoding="utf-8")
    typer.echo(f"Wrote {output}; run it on every host: HOSTFILE=... MEGATRON_PATH=... bash {output}")


def _choose(scenario: "Scenario", path: Path, nearest: bool) -> "tuple[Scenario, list[str]]":
    """The scenario itself if Megatron-LM can run it, else the nearest, with what is to be said about it."""
    from simmoe.errors import SpecError
    from simmoe.specs.megatron.expressible import reasons

    found = reasons(scenario)
    if not found:
        return scenario, []
    problems = [f"{path}: stock Megatron-LM cannot run this plan: {sentence}" for sentence in found]
    if not nearest:
        raise SpecError([*problems, f"{path}: --nearest exports the closest plan that it can run, and what it loses"])
    from simmoe.specs.megatron import nearest as search

    other = search.nearest(scenario)
    if other is None:
        raise SpecError([*problems, f"{path}: no plan near it was found that Megatron-LM can run, change it"])
    return other, [*found, *_loss(scenario, other)]


def _loss(scenario: "Scenario", other: "Scenario") -> list[str]:
    """What the nearest plan is, and how much longer its step is."""
    from simmoe.cli.screen import seconds
    from simmoe.pipeline import run

    own, near = run(scenario), run(other)
    before, after = own.metrics.step_time_s, near.metrics.step_time_s
    change = 100 * (after / before - 1)
    stage, count = other.plan.stages[0], len(other.plan.stages)
    virtual = f" x {len(stage.chunks)} virtual" if len(stage.chunks) > 1 else ""
    layers = "-".join(str(one.layers) for one in other.plan.stages[:16])
    what = (
        f"pipeline {count}{virtual} (layers {layers}{'-...' if count > 16 else ''}), tensor {stage.tensor_parallel}, "
        f"context {stage.context_parallel}, data {stage.data_parallel}, expert {stage.expert_parallel}, "
        f"micro-batch {other.training.micro_batch_size}"
    )
    fits = "" if near.fits else ", and it does not fit into memory"
    return [
        f"nearest plan: {what}",
        f"predicted loss: {seconds(after)} a step instead of {seconds(before)}, {change:+.1f} %{fits}",
    ]
