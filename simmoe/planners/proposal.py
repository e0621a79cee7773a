"""What a planner answers: plans that fit, best first, and what it refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simmoe.errors import SpecError
from simmoe.pipeline import run, stage_memory
from simmoe.planners.watch import saw
from simmoe.report.result import Result
from simmoe.specs import checks
from simmoe.specs.expand import expand
from simmoe.specs.hardware import Cluster
from simmoe.specs.plan import Plan
from simmoe.specs.scenario import Scenario

# What a plan of a planner takes over from the plan of the scenario, which is only a starting point.
_KEPT = (
    "recompute",
    "sharding",
    "sequence_parallel",
    "dispatcher",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "optimizer_offload_fraction",
    "overlap_cpu_optimizer_d2h_h2d",
    "cuda_graph_scope",
)
_GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan that fits, and what the simulator says of it.

    Attributes
    ----------
    planner, name : str
        Who proposes it; the plan in a few words.
    plan : Plan
        As a file states it.
    scenario : Scenario
        With the plan expanded; its cluster, batch and micro-batch are those of the proposal.
    predicted_s, simulated_s : float
        The step by the planner's own model, and by `simmoe.pipeline.run` [s].
    tokens_per_s : float
        Simulated [tokens/s].
    mfu, bubble_fraction : float
        Simulated [1].
    exposed_s : float
        Communication of the mean device that no computation hides [s].
    free_bytes : float
        Memory that the fullest device has left [B].
    why : tuple of str
        What the plan rests on, a sentence each.
    """

    planner: str
    name: str
    plan: Plan
    scenario: Scenario
    predicted_s: float
    simulated_s: float
    tokens_per_s: float
    mfu: float
    bubble_fraction: float
    exposed_s: float
    free_bytes: float
    why: tuple[str, ...] = ()

    @property
    def planner_error(self) -> float:
        """Predicted over simulated step time - 1 [1]."""
        return self.predicted_s / self.simulated_s - 1

    @property
    def micro_batch_size(self) -> int:
        """Sequences of one micro-batch of a rank; the plan's file does not hold it."""
        return self.scenario.training.micro_batch_size


class Rejected(NamedTuple):
    """A plan, or a family of plans, that is no proposal, and why."""

    what: str
    reason: str


class Ranking(NamedTuple):
    """Proposals, best first, and what was refused.

    Attributes
    ----------
    proposals : tuple of Proposal
    rejected : tuple of Rejected
    remarks : tuple of str
        What is to be said of the cluster as a whole, a sentence each.
    """

    proposals: tuple[Proposal, ...]
    rejected: tuple[Rejected, ...]
    remarks: tuple[str, ...] = ()

    @property
    def best(self) -> Proposal:
        """The fastest proposal.

        Raises
        ------
        SpecError
            If there is none, with the reasons.
        """
        if self.proposals:
            return self.proposals[0]
        raise SpecError([f"no plan: {one.what}: {one.reason}" for one in self.rejected] or ["no plan was tried"])


def plan_like(scenario: Scenario, **changes: Any) -> Plan:
    """A uniform plan that recomputes, shards and overlaps as the scenario's own does, with changes."""
    kept = {name: getattr(scenario.plan, name) for name in _KEPT}
    return Plan(**(kept | changes))


def planned(
    scenario: Scenario,
    plan: Plan,
    *,
    micro_batch_size: int = 0,
    global_batch_size: int = 0,
    cluster: Cluster | None = None,
) -> Scenario:
    """The scenario under another plan, checked as a file would be.

    Parameters
    ----------
    scenario : Scenario
    plan : Plan
        Uniform or explicit.
    micro_batch_size, global_batch_size : int
        0 = as they are [sequences].
    cluster : Cluster or None
        Instead of the scenario's.

    Returns
    -------
    Scenario
        With the plan expanded; without published results, which belong to the scenario's own plan.

    Raises
    ------
    SpecError
        With every rule that is broken.
    """
    sizes = {"micro_batch_size": micro_batch_size, "global_batch_size": global_batch_size}
    training = scenario.training.model_copy(update={name: size for name, size in sizes.items() if size})
    changed = {"plan": plan, "training": training, "cluster": cluster or scenario.cluster, "published": ()}
    made = scenario.model_copy(update=changed)
    _check("plan", plan)
    _check("scenario", made)
    expanded = made.model_copy(update={"plan": expand(plan, made.model, made.cluster, training)})
    _check("expanded", expanded)
    return expanded


def _check(kind: str, spec: Plan | Scenario) -> None:
    """Raise what the rules of a kind of spec find."""
    found = ((".".join(map(str, rule.path)), rule.check(spec)) for rule in checks.rules_of(kind))
    problems = [f"{key}: {sentence}" for key, sentence in found if sentence is not None]
    if problems:
        raise SpecError(problems)


def propose(
    planner: str, name: str, plan: Plan, scenario: Scenario, predicted_s: float = 0.0, why: Sequence[str] = ()
) -> Proposal | Rejected:
    """Simulate a plan: a proposal, or, if it does not fit, its refusal.

    Parameters
    ----------
    planner, name, plan
        As in `Proposal`.
    scenario : Scenario
        As `planned` returns it.
    predicted_s : float
        By the planner's own model; 0 = it has none, the simulation stands for it [s].
    why : sequence of str
    """
    return proposal_of(planner, name, plan, run(scenario), predicted_s, why)


def proposal_of(
    planner: str, name: str, plan: Plan, result: Result, predicted_s: float = 0.0, why: Sequence[str] = ()
) -> Proposal | Rejected:
    """The same of a plan that has been simulated."""
    if not result.fits:
        return Rejected(name, shortage(result))
    found = Proposal(
        planner=planner,
        name=name,
        plan=plan,
        scenario=result.scenario,
        predicted_s=predicted_s or result.step_time_s,
        simulated_s=result.step_time_s,
        tokens_per_s=result.tokens_per_s,
        mfu=result.mfu,
        bubble_fraction=result.metrics.bubble_fraction,
        exposed_s=result.metrics.exposed_communication_s,
        free_bytes=free_bytes(result),
        why=tuple(why),
    )
    saw(found)
    return found


def free_bytes(result: Result) -> float:
    """Memory that the fullest device has left; negative if it does not fit [B]."""
    parts = zip(result.ranks, result.memory, strict=True)
    return min(result.accelerator(rank).memory.value - memory.total for rank, memory in parts)


def lacking_bytes(scenario: Scenario) -> list[float]:
    """Of each stage, the memory that its smallest device lacks before anything is simulated; not positive if it fits.

    Parameters
    ----------
    scenario : Scenario
        As `planned` returns it, without zebra stages [B].
    """
    groups = scenario.cluster.groups
    sizes = np.repeat([group.node.accelerator.memory.value for group in groups], [group.devices for group in groups])
    found = []
    for stage, memory in zip(scenario.plan.stages, stage_memory(scenario), strict=True):
        smallest = sizes[stage.first_device : stage.first_device + stage.devices].min()
        found.append(float(memory.total - smallest))
    return found


def shortage(result: Result) -> str:
    """Which devices lack how much memory, as a sentence."""
    rank, excess = max(result.overflows, key=lambda pair: pair[1])
    return f"does not fit: {result.accelerator(rank).name} of stage {rank.stage} lacks {excess / _GIB:.1f} GiB"


def ranked(found: Sequence[Proposal | Rejected], top: int = 0) -> Ranking:
    """The fastest proposals first; equal ones in the order in which they were found.

    Parameters
    ----------
    found : sequence of Proposal or Rejected
    top : int
        Proposals to keep, 0 = all.
    """
    proposals = sorted((one for one in found if isinstance(one, Proposal)), key=lambda one: -one.tokens_per_s)
    rejected = tuple(one for one in found if isinstance(one, Rejected))
    return Ranking(tuple(proposals[: top or None]), rejected)


def divisors(number: int, most: int = 0) -> list[int]:
    """The divisors of a number in ascending order, up to a largest one; 0 = all.

    Examples
    --------
    >>> divisors(12), divisors(12, 4)
    ([1, 2, 3, 4, 6, 12], [1, 2, 3, 4])
    """
    return [size for size in range(1, min(number, most or number) + 1) if number % size == 0]
