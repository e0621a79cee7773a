"""Why a zebra plan is proposed, in sentences with numbers."""

from collections.abc import Iterator, Sequence

from simmoe.planners.baselines import Ideal
from simmoe.planners.proposal import Proposal, free_bytes
from simmoe.planners.zebra_candidate import Candidate
from simmoe.planners.zebra_shapes import short_name
from simmoe.report.result import Result
from simmoe.specs.hardware import Cluster
from simmoe.specs.scenario import Scenario

_GIB = 2.0**30


def candidate_name(candidate: Candidate) -> str:
    """For example ``8 H100 : 8 A100, 4 groups, R 4 x 1, 6 % of experts moved``."""
    shape = candidate.shape.name(candidate.scenario.cluster)
    again = candidate.scenario.plan.stages[0].recompute.granularity
    full = ", recomputation" if again == "full" else ""
    share = moved_share(candidate)
    moved = f", {100 * share:.0f} % of experts moved" if share else ""
    return f"{shape}, R {candidate.batch.together} x {candidate.batch.size}{moved}{full}"


def moved_share(candidate: Candidate) -> float:
    """Experts that attention devices hold, over all [1]."""
    moe = candidate.scenario.model.moe
    if moe is None or not candidate.moved:
        return 0.0
    return sum(candidate.moved) * candidate.shape.expert_devices / (moe.num_experts * len(candidate.moved))


def reasons(candidate: Candidate, result: Result) -> tuple[str, ...]:
    """What a candidate's step rests on: groups, bottleneck, moved experts, exchanges, memory, idle devices.

    Parameters
    ----------
    candidate : Candidate
    result : Result
        Of its simulation.
    """
    return (
        _cut(candidate),
        _bottleneck(result),
        _moves(candidate),
        _exchanges(result),
        _memory(result),
        *_idle(candidate),
    )


def _cut(candidate: Candidate) -> str:
    """Groups and passes."""
    shape, training = candidate.shape, candidate.scenario.training
    passes = training.global_batch_size // (shape.replicas * candidate.batch.size * candidate.batch.together)
    groups = f"{shape.groups} groups of " if shape.groups > 1 else ""
    again = f", {passes} passes a step" if passes > 1 else ""
    return (
        f"{groups}{shape.name(candidate.scenario.cluster).split(',')[0]}: each layer is passed by "
        f"{candidate.batch.together} micro-batches of {candidate.batch.size} x {training.sequence_length} "
        f"tokens a rank{again}."
    )


def _bottleneck(result: Result) -> str:
    """Which side is the slower one, and how much the other waits."""
    busy = {role: _busy(result, role) for role in ("attention", "experts")}
    names = {"attention": "attention devices", "experts": "expert devices"}
    slow, fast = sorted(busy, key=lambda role: -busy[role])
    return (
        f"The {names[slow]} set the pace, they compute {100 * busy[slow]:.0f} % of the step; the {names[fast]} compute "
        f"{100 * busy[fast]:.0f} % and wait for the rest."
    )


def _busy(result: Result, role: str) -> float:
    """Share of the step that the devices of a role compute [1]."""
    found = [
        (rank.count, metrics.compute_s)
        for rank, metrics in zip(result.ranks, result.metrics.ranks, strict=True)
        if rank.role == role
    ]
    return sum(count * seconds for count, seconds in found) / sum(count for count, _ in found) / result.step_time_s


def _moves(candidate: Candidate) -> str:
    """What moved, or that nothing did."""
    if not any(candidate.moved):
        return "No experts move to the attention devices."
    layers = sum(count > 0 for count in candidate.moved)
    return (
        f"{100 * moved_share(candidate):.1f} % of the experts move to the attention devices, in {layers} of "
        f"{len(candidate.moved)} layers."
    )


def _exchanges(result: Result) -> str:
    """Exchanges and other communication that nothing hides, and bubbles."""
    step, metrics = result.step_time_s, result.metrics
    exposed = metrics.exposed_by_collective_s.get("all_to_all", 0.0)
    return (
        f"The mean device spends {100 * exposed / step:.1f} % of the step in expert exchanges that nothing hides, and "
        f"idles {100 * metrics.bubble_fraction:.1f} %."
    )


def _memory(result: Result) -> str:
    return f"The fullest device has {free_bytes(result) / _GIB:.1f} GiB left."


def _idle(candidate: Candidate) -> Iterator[str]:
    """Devices that no group can use."""
    for name, count in candidate.shape.idle(candidate.scenario.cluster).items():
        yield f"{count} {name} stay idle: they do not make up another group."


def verdict(scenario: Scenario, zebra: Sequence[Proposal], plain: Sequence[Proposal], apart: Ideal) -> tuple[str, ...]:
    """Whether disaggregation pays, in sentences.

    Parameters
    ----------
    scenario : Scenario
    zebra : sequence of Proposal
        Best first.
    plain : sequence of Proposal
        Plans that keep experts beside attention, on all devices.
    apart : Ideal
        Expert parallelism on each type of device alone.
    """
    every = " + ".join(_devices(scenario.cluster))
    others = [(f"{one.name} on {every}", one.tokens_per_s) for one in plain]
    for one in apart.parts:
        (devices,) = _devices(one.scenario.cluster)
        others.append((f"{one.name} on {devices} alone", one.tokens_per_s))
    others.sort(key=lambda other: -other[1])
    first = _pays(zebra[0].tokens_per_s if zebra else 0.0, others)
    total = apart.tokens_per_s
    together = [f"{total:,.0f} tokens/s: all types alone, added up, which is no single run."]
    return (
        first,
        *(f"{rate:,.0f} tokens/s: {name}." for name, rate in others),
        *(together if len(apart.parts) > 1 else []),
    )


def _devices(cluster: Cluster) -> list[str]:
    """How many of each type."""
    counts: dict[str, int] = {}
    for index, group in enumerate(cluster.groups):
        name = short_name(cluster, index)
        counts[name] = counts.get(name, 0) + group.devices
    return [f"{count} {name}" for name, count in counts.items()]


def _pays(ours: float, others: Sequence[tuple[str, float]]) -> str:
    """The verdict in one sentence."""
    if not ours:
        return "No plan that takes attention and experts apart fits this cluster."
    if not others:
        return f"Disaggregation is the only way that fits: {ours:,.0f} tokens/s."
    ratio = ours / others[0][1]
    if ratio > 1:
        return f"Disaggregation pays: {ratio:.2f} times the best plan without it, {ours:,.0f} tokens/s."
    return f"Disaggregation does not pay: {100 * ratio:.0f} % of the best plan without it, {ours:,.0f} tokens/s."
