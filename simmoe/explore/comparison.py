"""Planners side by side on one scenario: every plan simulated, every refusal with its reason."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING, Any

from simmoe.errors import SpecError
from simmoe.pipeline import run
from simmoe.planners.proposal import Proposal, Ranking, Rejected, proposal_of
from simmoe.report.stage_picture import PlanRow, StageBox
from simmoe.specs.plan import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from simmoe.planners.registry import Planner
    from simmoe.specs.scenario import Scenario

OWN = "(this file)"
"""Name of the plan that the scenario itself has."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one planner answered.

    Attributes
    ----------
    planner : str
    best : Proposal or None
    reason : str
        Why there is no plan.
    search_s : float
        The search with its simulations, on this machine [s].
    """

    planner: str
    best: Proposal | None
    reason: str = ""
    search_s: float = 0.0


def own_plan(scenario: "Scenario") -> Entry:
    """The plan that the scenario itself has.

    Parameters
    ----------
    scenario : Scenario
    """
    found = proposal_of(OWN, "the plan of the file", scenario.plan, run(scenario))
    return Entry(OWN, None, found.reason) if isinstance(found, Rejected) else Entry(OWN, found)


def entries(
    scenario: "Scenario", planners: Iterable["Planner"], ask: "Callable[[Planner, Scenario], Ranking]"
) -> Iterator[Entry]:
    """The best plan of each planner, in the order in which they are asked.

    Parameters
    ----------
    scenario : Scenario
    planners : iterable of Planner
    ask : callable
        The ranking of a planner.

    Yields
    ------
    Entry
        A planner that cannot be asked about such a scenario is an entry with the reason.
    """
    for planner in planners:
        start = perf_counter()
        try:
            ranking = ask(planner, scenario)
        except SpecError as error:
            yield Entry(planner.value, None, error.problems[0])
            continue
        spent = perf_counter() - start
        if ranking.proposals:
            yield Entry(planner.value, ranking.best, "", spent)
        else:
            reasons = [f"{one.what}: {one.reason}" for one in ranking.rejected]
            yield Entry(planner.value, None, next(iter(reasons), "no plan was found"), spent)


COLUMNS = (
    "planner",
    "plan",
    "micro_batch_size",
    "predicted_s",
    "simulated_s",
    "planner_error",
    "tokens_per_s",
    "mfu",
    "free_bytes",
    "bubble_fraction",
    "exposed_communication_s",
    "reason",
)
"""Of the table that `record` gives the rows of."""


def record(entry: Entry) -> dict[str, Any]:
    """An entry as figures: times in s, sizes in B, shares of 1; the search time, which differs, is left out.

    Parameters
    ----------
    entry : Entry
    """
    best = entry.best
    if best is None:
        return dict.fromkeys(COLUMNS) | {"planner": entry.planner, "reason": entry.reason}
    return {
        "planner": entry.planner,
        "plan": best.name,
        "micro_batch_size": best.micro_batch_size,
        "predicted_s": best.predicted_s,
        "simulated_s": best.simulated_s,
        "planner_error": best.planner_error,
        "tokens_per_s": best.tokens_per_s,
        "mfu": best.mfu,
        "free_bytes": best.free_bytes,
        "bubble_fraction": best.bubble_fraction,
        "exposed_communication_s": best.exposed_s,
        "reason": None,
    }


def picture_row(best: Proposal, label: str = "") -> PlanRow:
    """The stages of a plan as boxes for `simmoe.report.stage_picture`.

    Parameters
    ----------
    best : Proposal
    label : str
        Left of the row; empty = the planner.
    """
    boxes = [box for stage in best.scenario.plan.stages for box in _boxes(best.scenario, stage)]
    ordered = tuple(sorted(boxes, key=lambda box: box.first))
    return PlanRow(label or best.planner, best.name, f"{best.simulated_s:.3g} s", ordered)


def _boxes(scenario: "Scenario", stage: Stage) -> Iterator[StageBox]:
    """A box for each chunk of a stage."""
    parts = [devices_of(scenario, role) for role in stage.roles]
    for chunk in stage.chunks:
        if chunk.replica == 0 and chunk.layers:
            yield StageBox(chunk.first_layer, chunk.layers, tuple(parts), sizes_of(stage))


def devices_of(scenario: "Scenario", stage: Stage) -> str:
    """The devices of a stage in words, such as 8 H800 SXM5 80 GB.

    Parameters
    ----------
    scenario : Scenario
    stage : Stage
    """
    names = [
        group.node.accelerator.name.removeprefix("NVIDIA ").removeprefix("AMD ").removeprefix("Huawei ")
        for group in scenario.cluster.groups
        for _ in range(group.devices)
    ][stage.first_device : stage.first_device + stage.devices]
    return " + ".join(f"{len(list(alike))} {name}" for name, alike in groupby(names))


def sizes_of(stage: Stage) -> str:
    """How the devices of a stage share the work, sizes of 1 left out.

    Parameters
    ----------
    stage : Stage
    """
    if stage.experts is not None:
        return f"{stage.experts.groups} zebra groups" if stage.experts.groups > 1 else "a zebra group"
    sizes = {
        "TP": stage.tensor_parallel,
        "CP": stage.context_parallel,
        "DP": stage.data_parallel,
        "EP": stage.expert_parallel,
        "ETP": stage.expert_tensor_parallel,
    }
    return " ".join(f"{name}{size}" for name, size in sizes.items() if size > 1)
