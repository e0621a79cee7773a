"""The systems of HeterMoE's evaluation: what each planner finds for a case, simulated."""

from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple

from simmoe.engine.fast import simulate_fast
from simmoe.errors import SpecError
from simmoe.explore.hetermoe_bench import AS_SHIPPED, Assumptions, Case, KeptBench, Measurement
from simmoe.explore.hetermoe_modules import balance, module_s
from simmoe.explore.hetermoe_scenarios import scenario_of, with_room
from simmoe.graph.build import build_step
from simmoe.pipeline import run
from simmoe.planners.baselines import expert_parallel, ideal
from simmoe.planners.disaggregated import disaggregated
from simmoe.planners.hetermoe import plan
from simmoe.planners.hetero_pipeline import hetero_pipeline
from simmoe.planners.proposal import Proposal, Ranking, Rejected, ranked
from simmoe.planners.zebra_shapes import Limits
from simmoe.report.league_memory import MARGIN
from simmoe.report.metrics import step_metrics
from simmoe.report.result import Result
from simmoe.specs.scenario import Scenario

_PLENTY = 4.0  # times the memory that there is: more than any of the plans needs
_TOP = 3  # plans of HeterMoE that are simulated in full, of which the fastest counts


def measure(case: Case, assumptions: Assumptions = AS_SHIPPED) -> Measurement:
    """The best plan of a system for a case.

    Parameters
    ----------
    case : Case
    assumptions : Assumptions

    Returns
    -------
    Measurement
        Also where nothing fits.

    Notes
    -----
    The paper ran all of these but some pipelines, so plans may need as much more memory as the estimate may be off
    (`simmoe.report.league_memory`). Where even that does not do, they run with micro-batches of one sequence all the
    same, and `Measurement.memory` says so. Pipelines get the memory that there is.
    """
    parts, room, reason = chosen(case, assumptions)
    if not parts:
        return Measurement(float("nan"), False, {}, reason)
    results = [run(part.scenario) for part in parts]
    return Measurement(
        tokens_per_s=sum(part.tokens_per_s for part in parts),
        fits=True,
        utilization={part: share for result in results for part, share in useful_share(result).items()},
        plan="; ".join(part.name for part in parts),
        memory=room * max(map(fullest, results)),
    )


class Chosen(NamedTuple):
    """The best plan of a system.

    Attributes
    ----------
    parts : tuple of Proposal
        Of EP (Ideal) one for each type of device, else one; none if nothing fits.
    room : float
        How many times their memory the devices of the plan's cluster have [1].
    reason : str
        Why nothing fits.
    """

    parts: tuple[Proposal, ...]
    room: float
    reason: str = ""


def chosen(case: Case, assumptions: Assumptions = AS_SHIPPED) -> Chosen:
    """The plan that `measure` measures.

    Parameters
    ----------
    case : Case
    assumptions : Assumptions
    """
    scenario = scenario_of(case, assumptions)
    if case.system == "hetero-pp":
        return _chosen(case, scenario, assumptions, _Memory(1.0))
    found = _chosen(case, scenario, assumptions, _Memory(MARGIN))
    return found if found.parts else _chosen(case, scenario, assumptions, _Memory(_PLENTY, 1))


class _Memory(NamedTuple):
    """How many times their memory devices may fill, and the sequences of a micro-batch, 0 = the best."""

    room: float
    sequences: int = 0


def _chosen(case: Case, scenario: Scenario, assumptions: Assumptions, memory: _Memory) -> Chosen:
    """The best plan under a bound on memory."""
    roomy = scenario.model_copy(update={"cluster": with_room(scenario.cluster, memory.room)})
    try:
        parts, rejected = _proposals(case, roomy, assumptions, memory.sequences)
    except SpecError as error:
        parts, rejected = (), (Rejected(str(case), error.problems[0]),)
    reasons = dict.fromkeys(f"{one.what}: {one.reason}" for one in rejected)
    return Chosen(parts, memory.room, "" if parts else next(reversed(reasons), "no plan"))


def _proposals(
    case: Case, scenario: Scenario, assumptions: Assumptions, size: int
) -> tuple[tuple[Proposal, ...], tuple[Rejected, ...]]:
    """The best plan, of EP (Ideal) one for each type of device; none unless the whole model fits without a pipeline."""
    if case.system == "hetero-pp":
        ranking = hetero_pipeline(scenario, expert_parallel=1, top=1)
        return ranking.proposals, ranking.rejected
    if case.system == "ep-ideal":
        return _ideal(scenario, assumptions, size)
    if case.system == "ep":
        pieces = _pieces(assumptions)
        ranking = _merged([expert_parallel(scenario, degree=one, micro_batch_size=size, top=1) for one in pieces])
    else:
        ranking = _apart(case, scenario, assumptions, size)
    return (ranking.proposals[:1] if _flat(*ranking.proposals) else ()), ranking.rejected


def _pieces(assumptions: Assumptions) -> tuple[int, ...]:
    """Numbers of pieces that an exchange may be cut into: powers of two."""
    return tuple(2**power for power in range(assumptions.most_pieces.bit_length()))


def _merged(rankings: Sequence[Ranking]) -> Ranking:
    """The proposals of all, best first."""
    proposals = chain.from_iterable(one.proposals for one in rankings)
    return ranked([*proposals, *chain.from_iterable(one.rejected for one in rankings)])


def _ideal(
    scenario: Scenario, assumptions: Assumptions, size: int
) -> tuple[tuple[Proposal, ...], tuple[Rejected, ...]]:
    """EP (Ideal): the best plan of each type of device, if the model fits on both."""
    found = [ideal(scenario, degree=one, micro_batch_size=size) for one in _pieces(assumptions)]
    kinds = len(scenario.cluster.accelerators)
    complete = [one for one in found if len(one.parts) == kinds and _flat(*one.parts)]
    if not complete:
        return (), found[0].rejected
    return tuple(
        max(parts, key=lambda part: part.tokens_per_s) for parts in zip(*(o.parts for o in complete), strict=True)
    ), ()


def _flat(*proposals: Proposal) -> bool:
    """No plan has pipeline stages: those of EP and HeterMoE have none in the paper."""
    return all(one.plan.pipeline_parallel == 1 for one in proposals)


def _apart(case: Case, scenario: Scenario, assumptions: Assumptions, size: int) -> Ranking:
    """Plans of HeterMoE or DistEP: one group of all devices, attention on the newer ones, which stand first."""
    attention, experts = (group.devices for group in scenario.cluster.groups)
    whole = Limits(
        attention_devices=attention,
        expert_devices=experts,
        groups=1,
        micro_batch_size=size,
        stages=(1,),
        attention_group=0,
    )
    if case.system == "distep":
        pieces = _pieces(assumptions)
        return _merged([disaggregated(scenario, degree=one, limits=whole, top=1) for one in pieces])
    moving: Literal["greedy", "none"] = "greedy" if case.asymmetric else "none"
    limits = whole._replace(most_micro_batches=assumptions.most_micro_batches, assignment=moving)
    return plan(scenario, limits=limits, top=_TOP, compare=False)


def useful_share(result: Result) -> dict[str, float]:
    """Share of the step in which devices compute, at the rate of kernels that nothing slows down.

    Parameters
    ----------
    result : Result

    Returns
    -------
    dict of str to float
        Accelerator -> share [1]. Kernels that run beside an exchange take longer, which is no more work.
    """
    alone = build_step(result.scenario, contention=False)
    metrics = step_metrics(simulate_fast(alone.graph), alone.ranks)
    return {part: share * metrics.step_time_s / result.step_time_s for part, share in metrics.utilization.items()}


def fullest(result: Result) -> float:
    """Memory that the fullest device needs, of what it has [1]."""
    parts = zip(result.ranks, result.memory, strict=True)
    return max(memory.total / result.accelerator(rank).memory.value for rank, memory in parts)


def bench(known: dict[Case, Measurement] | None = None, assumptions: Assumptions = AS_SHIPPED) -> KeptBench:
    """A bench of the simulator.

    Parameters
    ----------
    known : dict of Case to Measurement
        Cases that have been measured under the same assumptions.
    assumptions : Assumptions
    """
    return KeptBench(
        run=lambda case: measure(case, assumptions),
        module_s=lambda part, accelerator, length: module_s(part, accelerator, length, assumptions),
        balance=lambda cluster, model, length: balance(cluster, model, length, assumptions),
        known=known,
    )
