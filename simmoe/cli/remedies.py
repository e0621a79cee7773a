"""What to say, and what to try, when a plan does not fit."""

import shlex
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from simmoe.cli.screen import console, gib
from simmoe.cost.memory import RankMemory
from simmoe.errors import SimmoeError
from simmoe.graph.ranks import RankClass
from simmoe.report.result import Result
from simmoe.specs.hardware import Accelerator
from simmoe.specs.plan import ExpertDevices
from simmoe.specs.scenario import Scenario

_MOST = 4


def print_shortfall(result: Result, path: Path, overrides: Sequence[str]) -> None:
    """Say on the error stream which GPUs lack how much memory, and which single changes would help.

    Parameters
    ----------
    result : Result
        One that does not fit.
    path : Path
        The scenario file.
    overrides : sequence of str
        As given to ``--set``.
    """
    screen = console(stderr=True)
    for rank, excess in result.overflows:
        part = result.accelerator(rank)
        screen.print(
            f"Stage {rank.stage} does not fit: each of its {_devices(rank, part)} needs "
            f"{gib(part.memory.value + excess)} GiB, "
            f"{gib(excess)} GiB more than the {gib(part.memory.value)} GiB it has.",
            soft_wrap=True,
        )
    found = list(remedies(result.scenario, path, overrides))
    if not found:
        screen.print("No change of the plan that was tried makes it fit: take more or larger GPUs.", soft_wrap=True)
        return
    alone = "Each of these changes alone makes it fit:"
    screen.print(alone if len(found[0]) == 1 else "Each of these pairs of changes makes it fit:")
    for change in found[:_MOST]:
        screen.print(f"  {set_options(change)}", soft_wrap=True)


def _devices(rank: RankClass, part: Accelerator) -> str:
    """How many devices of which kind, in a zebra stage with what they hold."""
    return f"{rank.count} {part.name}" + (f" with {rank.role}" if rank.role else "")


def set_options(overrides: Sequence[str]) -> str:
    """Overrides as they are typed.

    Examples
    --------
    >>> set_options(["plan.recompute=full", "plan.recompute={granularity: full}"])
    "--set plan.recompute=full --set 'plan.recompute={granularity: full}'"
    """
    return " ".join(f"--set {shlex.quote(override)}" for override in overrides)


def remedies(scenario: Scenario, path: Path, overrides: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Changes that make a scenario fit, from the cheapest to the dearest.

    Parameters
    ----------
    scenario : Scenario
        As it is read from `path` with `overrides`.

    Yields
    ------
    tuple of str
        Overrides; each set was read, checked and its memory computed. Single changes if any helps, else pairs.
    """
    single = list(_candidates(scenario))
    helpful = [change for change in single if _helps((change,), path, overrides)]
    if not helpful:
        yield from (pair for pair in combinations(single, 2) if _helps(pair, path, overrides))
    yield from ((change,) for change in helpful)


def _helps(changes: Sequence[str], path: Path, overrides: Sequence[str]) -> bool:
    """The changed scenario is valid and fits."""
    from simmoe.pipeline import role_memory
    from simmoe.specs.reader import load_scenario

    try:
        scenario = load_scenario(path, [*overrides, *changes])
    except SimmoeError:
        return False  # the sizes do not divide
    return _fits(scenario, role_memory(scenario))


def _fits(scenario: Scenario, memory: Sequence[Sequence[RankMemory]]) -> bool:
    """Every device of every stage holds what its stage needs."""
    capacities = [g.node.accelerator.memory.value for g in scenario.cluster.groups for _ in range(g.devices)]
    return all(
        need.total <= min(capacities[part.first_device : part.first_device + part.devices])
        for stage, needs in zip(scenario.plan.stages, memory, strict=True)
        for part, need in zip(stage.roles, needs, strict=True)
    )


def _candidates(scenario: Scenario) -> Iterator[str]:
    """Single changes worth trying, the one that costs the least time first."""
    plan, training = scenario.plan, scenario.training
    if plan.sharding == "none":
        yield "plan.sharding=zero1"
    if training.micro_batch_size > 1:
        yield "training.micro_batch_size=1"
    if plan.recompute.granularity == "none":
        yield "plan.recompute={granularity: selective, modules: [moe_act, layernorm]}"
    zebra = plan.stages[0].experts
    if zebra is not None:
        yield from _zebra_candidates(zebra)
    names = ("pipeline_parallel", "tensor_parallel", "context_parallel")
    for name in names if zebra is not None else ("expert_parallel", *names):
        size = getattr(plan, name)
        yield from (f"plan.{name}={size * factor}" for factor in (2, 4, 8))
    if plan.recompute.granularity != "full":
        yield "plan.recompute=full"


def _zebra_candidates(zebra: ExpertDevices) -> Iterator[str]:
    """More expert devices for a group, in fewer groups if need be; fewer micro-batches that are alive together."""
    size, batches, groups = zebra.group_devices, zebra.micro_batches, zebra.groups
    yield from (f"plan.zebra.expert_devices={size * factor}" for factor in (2, 4, 8))
    yield from (f"plan.zebra.micro_batches={batches // factor}" for factor in (2, 4) if batches % factor == 0)
    yield from (f"plan.zebra.groups={groups // factor}" for factor in (2, 4) if groups % factor == 0)
    if zebra.moved_experts:
        yield "plan.zebra.moved_experts=[]"
