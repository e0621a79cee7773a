"""Simulate the points of a sweep: each on its own, in any order, in any process."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import simmoe
from simmoe.errors import SimmoeError
from simmoe.explore.planned import planned
from simmoe.pipeline import run
from simmoe.planners.registry import Planner
from simmoe.report.ledger import Entry
from simmoe.report.result import Result
from simmoe.specs.overlay_file import load_overlaid
from simmoe.specs.reader import dump_plan
from simmoe.specs.sweep_file import ReadSweep, as_overrides
from simmoe.specs.sweep_points import Point

OK, DOES_NOT_FIT, INFEASIBLE = "ok", "does not fit", "infeasible"


class Task(NamedTuple):
    """What a process needs to know to simulate a point; small and picklable.

    Attributes
    ----------
    hash : str
    scenario : str
    overlay : str
        Empty = none.
    planner : str
        Empty = the scenario's own plan.
    point : dict
    """

    hash: str
    scenario: str
    overlay: str
    planner: str
    point: Point


def tasks_of(read: ReadSweep, shard: tuple[int, int] = (1, 1)) -> list[Task]:
    """A task for every point, of which a shard takes its share.

    Parameters
    ----------
    read : ReadSweep
    shard : (int, int)
        The i-th of n; points are dealt by hash, so shards are disjoint and together complete.
    """
    overlay = "" if read.overlay is None else str(read.overlay)
    found = [Task(_hash(read, point), str(read.scenario), overlay, read.sweep.planner, point) for point in read.points]
    number, parts = shard
    return [task for task in found if int(task.hash[:12], 16) % parts == number - 1]


def _hash(read: ReadSweep, point: Point) -> str:
    """Of everything that the result depends on: file texts, values, version."""
    text = json.dumps([simmoe.__version__, read.identity, point], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def simulate_points(
    scenario: Path, overlay: Path | None, overrides: Sequence[str], points: Sequence[Point]
) -> list[Entry]:
    """The results of some points in this process, with other overrides before theirs.

    Parameters
    ----------
    scenario : Path
    overlay : Path or None
    overrides : sequence of str
    points : sequence of dict
    """
    found = []
    for point in points:
        task = Task("", str(scenario), "" if overlay is None else str(overlay), "", point)
        found.append(simulate_task(task, overrides))
    return found


def simulate_tasks(tasks: Sequence[Task]) -> list[Entry]:
    """The results of some points.

    Parameters
    ----------
    tasks : sequence of Task
    """
    return [simulate_task(task) for task in tasks]


def simulate_task(task: Task, overrides: Sequence[str] = ()) -> Entry:
    """The result of a point; one that cannot be simulated is a result that says why.

    Parameters
    ----------
    task : Task
    overrides : sequence of str, optional
        Before those of the point.
    """
    try:
        overlay = Path(task.overlay) if task.overlay else None
        scenario = load_overlaid(Path(task.scenario), [*overrides, *as_overrides(task.point)], overlay)
        result = planned(scenario, Planner(task.planner)) if task.planner else run(scenario)
    except SimmoeError as error:
        return Entry(task.hash, task.point, INFEASIBLE, "; ".join(str(error).splitlines()), {})
    more = {"planner_plan": dump_plan(result.scenario.plan)} if task.planner else {}
    return _entry(task, result, more)


def _entry(task: Task, result: Result, more: dict[str, Any]) -> Entry:
    status = OK if result.fits else DOES_NOT_FIT
    reason = ""
    if not result.fits:
        rank, missing = max(result.overflows, key=lambda pair: pair[1])
        reason = f"stage {rank.place} needs {missing / 2**30:.1f} GiB more than {rank.accelerator} has"
    return Entry(task.hash, task.point, status, reason, figures(result) | more)


def figures(result: Result) -> dict[str, Any]:
    """What a sweep keeps of a result: times in s, sizes in B.

    Parameters
    ----------
    result : Result
    """
    metrics = result.metrics
    return {
        "step_time_s": result.step_time_s,
        "tokens_per_s": result.tokens_per_s,
        "tokens_per_s_per_gpu": result.tokens_per_s / result.devices,
        "model_tflops_per_gpu": result.model_tflops_per_gpu,
        "mfu": result.mfu,
        "bubble_fraction": metrics.bubble_fraction,
        "exposed_communication_s": metrics.exposed_communication_s,
        "peak_memory_bytes": max(memory.total for memory in result.memory),
        "devices": result.devices,
        "cost_usd_per_million_tokens": result.cost_usd_per_million_tokens,
        "energy_kwh_per_million_tokens": result.energy_kwh_per_million_tokens,
    }
