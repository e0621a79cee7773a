"""``simmoe plan``: search for a plan of a scenario's cluster, model and batch."""

import json as json_text
import shlex
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simmoe.cli.options import JsonFile, OverlayFile, Overrides, ScenarioFile
from simmoe.cli.plan_search import asked
from simmoe.planners.registry import PURPOSE, Mode, Planner, Request

if TYPE_CHECKING:
    from simmoe.planners.proposal import Proposal, Ranking

NO_PLAN = 3
_STDOUT = "-"
_PLANNERS = "; ".join(f"{planner}: {purpose}" for planner, purpose in PURPOSE.items()) + "."


def plan(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    overlay: OverlayFile = None,
    planner: Annotated[Planner, typer.Option(help=_PLANNERS)] = Planner.HAPMOE,
    mode: Annotated[
        Mode, typer.Option(help="Of hapmoe: the exact search, the paper's, or all plans of a small cluster.")
    ] = Mode.EXACT,
    top: Annotated[int, typer.Option(min=1, help="Plans to simulate and to show.")] = 5,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the best plan to this file.", show_default=False),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Search for the fastest plan that fits; of the scenario's own plan only sharding, overlaps and the like are kept.

    Exits with 3 if no plan fits. Ctrl-C ends the search with the best plan found so far.
    """
    from simmoe.specs.overlay_file import load_overlaid

    _check_outputs(output, json)
    loaded = load_overlaid(scenario, overrides or [], overlay)
    start = perf_counter()
    ranking = asked(planner, loaded, Request(top, mode.value))
    seconds = perf_counter() - start
    if output is not None and ranking.proposals:
        _write_plan(ranking.best, output)
    if json is not None:
        _write_json(ranking, planner, json)
    if json != _STDOUT:
        from simmoe.cli.plan_report import print_ranking

        print_ranking(ranking, loaded, seconds)
        if output is not None and ranking.proposals:
            _say_how(ranking.best, scenario, overrides or [], output, overlay)
    if not ranking.proposals:
        raise typer.Exit(NO_PLAN)


def _check_outputs(output: Path | None, json: str | None) -> None:
    """Refuse before the search what could not be written after it."""
    from simmoe.cli.output_check import check_writable

    for path in (output, Path(json) if json not in (None, _STDOUT) and json is not None else None):
        if path is not None:
            check_writable(path)


def _write_plan(best: "Proposal", path: Path) -> None:
    """The plan as a file that a scenario may name as its plan."""
    from simmoe.report.output import replacing
    from simmoe.specs.reader import dump_plan

    with replacing(path) as temporary:
        temporary.write_text(dump_plan(best.plan), encoding="utf-8")


def _say_how(best: "Proposal", scenario: Path, overrides: list[str], path: Path, overlay: Path | None) -> None:
    """How the plan is simulated; the micro-batch belongs to the training, not to the plan."""
    from simmoe.cli.remedies import set_options

    changes = [*overrides, f"plan={path.resolve()}", f"training.micro_batch_size={best.micro_batch_size}"]
    typer.echo(f"Wrote {path}; simulate it with")
    laid = "" if overlay is None else f" --overlay {shlex.quote(str(overlay))}"
    typer.echo(f"  simmoe simulate {shlex.quote(str(scenario))} {set_options(changes)}{laid}")


def _write_json(ranking: "Ranking", planner: Planner, target: str) -> None:
    """The ranking for programs, to a file or the output."""
    text = json_text.dumps(_summary(ranking, planner), indent=2, allow_nan=False) + "\n"
    if target == _STDOUT:
        typer.echo(text, nl=False)
        return
    from simmoe.report.output import replacing

    with replacing(Path(target)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _summary(ranking: "Ranking", planner: Planner) -> dict[str, Any]:
    """Times in s, sizes in B, shares of 1; the same input gives the same bytes."""
    return {
        "planner": planner.value,
        "proposals": [
            {
                "name": one.name,
                "predicted_s": one.predicted_s,
                "simulated_s": one.simulated_s,
                "tokens_per_s": one.tokens_per_s,
                "mfu": one.mfu,
                "bubble_fraction": one.bubble_fraction,
                "exposed_communication_s": one.exposed_s,
                "free_bytes": one.free_bytes,
                "micro_batch_size": one.micro_batch_size,
                "plan": one.plan.model_dump(mode="json", exclude_defaults=True),
                "why": list(one.why),
            }
            for one in ranking.proposals
        ],
        "remarks": list(ranking.remarks),
        "rejected": [one._asdict() for one in ranking.rejected],
    }
