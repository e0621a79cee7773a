"""Placement under zebra parallelism: which devices hold attention and which experts, in what groups (HeterMoE)."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from simmoe.pipeline import run
from simmoe.planners.baselines import expert_parallel, ideal, recomputations
from simmoe.planners.hetero_pipeline import hetero_pipeline
from simmoe.planners.proposal import Proposal, Ranking, Rejected, proposal_of, ranked
from simmoe.planners.zebra_bench import Batch, Bench
from simmoe.planners.zebra_candidate import Candidate, candidates
from simmoe.planners.zebra_reasons import candidate_name, reasons, verdict
from simmoe.planners.zebra_shapes import Limits, Shape, batches, pairs, shapes
from simmoe.specs.scenario import Scenario

NAME = "hetermoe"
_SLACK = 1.05  # the block-level model and the simulator disagree by less; a candidate within it stays
_FAR = 1.5  # times the best step: no candidate that is slower is worth naming
_OF_A_SHAPE = 2  # candidates of one shape that are simulated


class _Rates(NamedTuple):
    """Device seconds of one sequence, at the best micro-batch [s].

    Attributes
    ----------
    attention, experts : float
        Attention on attention devices; experts on expert devices.
    moved : float
        The experts on attention devices; infinite if none can move.
    """

    attention: float
    experts: float
    moved: float

    def bound_s(self, shape: Shape, sequences: int, most: float) -> float:
        """A step of a shape whose devices never wait, experts balanced at will up to a share of them that moves [s]."""
        attention = self.attention / (shape.replicas * shape.stages)
        experts = self.experts / (shape.expert_devices * shape.groups * shape.stages)
        slower = max(attention, experts)
        if experts > attention and most and math.isfinite(self.moved):
            extra = self.moved / (shape.replicas * shape.stages)
            slower = (1 - min(most, (experts - attention) / (experts + extra))) * experts
        return sequences * slower


def plan(scenario: Scenario, *, limits: Limits | None = None, top: int = 5, compare: bool = True) -> Ranking:
    """The best zebra plans of a cluster of unlike devices, and whether taking attention and experts apart pays.

    Parameters
    ----------
    scenario : Scenario
        Gives cluster, model, batch and software. Of its plan only recomputation, sharding and overlaps are taken.
    limits : Limits or None
        What is fixed in advance; None = nothing.
    top : int
        Plans to simulate whole and to return.
    compare : bool
        Also plan without disaggregation, and say which is faster.

    Returns
    -------
    Ranking
        By simulated throughput; only plans that fit. Its remarks compare with expert parallelism over all devices, with
        pipelines of unlike stages, and with expert parallelism on each type of device alone.

    Notes
    -----
    For every ordered pair of node groups, every N that divides the experts and every number of groups, M is as large as
    devices and batch allow; R and the micro-batch divide the sequences of a rank. Shapes are visited in the order of a
    bound (devices never wait, experts balanced at will) until it exceeds what was found. Each candidate's experts move
    by gather and squeeze within what memory allows, its passes are simulated block by block
    (`simmoe.graph.zebra_order.block_graph`), and the best candidates as whole steps.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, sections 4.1, 4.2 and 6.4.1.
    """
    if scenario.model.moe is None:
        return Ranking((), (Rejected(scenario.model.name, "has no experts to take apart from attention"),))
    limits = limits or Limits()
    rejected: list[Rejected] = []
    kept = _search(scenario, limits, top, rejected)
    found = [_simulated(one) for one in kept[:top]]
    ranking = ranked([*found, *rejected], top)
    if not compare:
        return ranking
    plain = [*expert_parallel(scenario, top=1).proposals, *hetero_pipeline(scenario, top=1).proposals]
    return ranking._replace(remarks=verdict(scenario, ranking.proposals, plain, ideal(scenario)))


def _simulated(candidate: Candidate) -> Proposal | Rejected:
    """A candidate as a whole step."""
    result = run(candidate.scenario)
    why = reasons(candidate, result)
    return proposal_of(NAME, candidate_name(candidate), candidate.plan, result, candidate.predicted_s, why)


def _search(scenario: Scenario, limits: Limits, top: int, rejected: list[Rejected]) -> list[Candidate]:
    """The candidates with the shortest predicted steps, a few of each shape; more stages only if nothing fits."""
    late: list[Rejected] = []  # what is told last
    for stages in limits.stages:
        found: list[Candidate] = []
        order = _in_order(scenario, limits, stages, late)
        for place, (bound, shape, bench) in enumerate(order):
            worst = _threshold(found, top)
            if bound >= worst:
                late.append(_hopeless(len(order) - place, bound, worst))
                break
            found += _best(list(candidates(bench, shape, worst, rejected, keep=_OF_A_SHAPE)))
        if found:
            break
    rejected += late
    return sorted(found, key=lambda one: one.predicted_s)


def _hopeless(count: int, bound: float, worst: float) -> Rejected:
    """Shapes whose bound alone is too long."""
    reason = f"even if no device waited a step would take {bound:.3f} s or more, the plans found take {worst:.3f} s"
    return Rejected(f"{count} other shapes", reason)


def _threshold(found: list[Candidate], top: int) -> float:
    """Steps that are longer are of no interest [s]."""
    steps = sorted(one.predicted_s for one in found)
    if len(steps) < top:
        return _FAR * steps[0] if steps else math.inf
    return min(_FAR * steps[0], max(_SLACK * steps[0], steps[top - 1]))


def _best(found: list[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda one: one.predicted_s)[:_OF_A_SHAPE]


def _in_order(
    scenario: Scenario, limits: Limits, stages: int, rejected: list[Rejected]
) -> list[tuple[float, Shape, Bench]]:
    """All shapes with their bounds, the most promising first."""
    found = []
    for recompute in recomputations(scenario):
        bench = Bench(scenario, limits, recompute)
        for pair in pairs(scenario.cluster, limits.attention_group):
            made = list(shapes(scenario, pair, stages, limits, rejected))
            if made and not (refusal := bench.refusal(made[0])):
                rates = _rates(bench, made)
                found += [(bound, shape, bench) for bound, shape in _worth_trying(bench, rates, made)]
            elif made:
                rejected.append(Rejected(bench.name(made[0]), refusal))
    return sorted(found, key=lambda item: item[:2])


def _rates(bench: Bench, made: list[Shape]) -> _Rates:
    """What a sequence costs, read off the shape with the most rows for each expert."""
    shape = max(made, key=lambda one: (one.attention_devices, one.expert_devices))
    chunked = max((one for one in made if bench.chunk(one)), default=None, key=lambda one: one.attention_devices)
    best = [math.inf, math.inf, math.inf]
    for size in sorted({size for size, _ in batches(bench.scenario, shape, bench.limits)}):
        batch = Batch(size, 1)
        whole = [one.whole for one in bench.times(shape, batch)]
        best[0] = min(best[0], sum(one.attention for one in whole) / size)
        share = shape.expert_devices / (shape.attention_devices * size)
        best[1] = min(best[1], sum(one.experts for one in whole) * share)
        if chunked is not None:
            problem = bench.problem(chunked, batch)
            share = chunked.expert_devices / (chunked.attention_devices * size)
            best[2] = min(best[2], problem.expert_on_attention_s * problem.layers * share)
    return _Rates(*best)


def _worth_trying(bench: Bench, rates: _Rates, made: list[Shape]) -> Iterator[tuple[float, Shape]]:
    """The shapes with their bounds; of the same groups a smaller M only if more experts can move, or more overlaps."""
    sequences = bench.scenario.training.global_batch_size
    found: dict[tuple[int, int], tuple[float, int]] = {}
    for shape in made:
        most = bench.most(shape) * shape.expert_devices / bench.experts
        bound, overlapped = rates.bound_s(shape, sequences, most), shape.overlapped(sequences)
        groups = (shape.expert_devices, shape.groups)
        least, best = found.get(groups, (math.inf, 0))
        if bound < least or overlapped > best:
            found[groups] = min(bound, least), max(overlapped, best)
            size = max(size for size, _ in batches(bench.scenario, shape, bench.limits))
            exchanges = bench.exchange_s(shape, size) * sequences / (shape.replicas * shape.stages)
            yield max(bound, exchanges), shape


def exhaustive(scenario: Scenario, *, limits: Limits | None = None, top: int = 1) -> Ranking:
    """Every candidate simulated as a whole step: the oracle of the planner, for small clusters.

    Parameters
    ----------
    scenario : Scenario
    limits : Limits or None
    top : int
        Plans to return.

    Returns
    -------
    Ranking
        Over all M, N, groups, R and micro-batches; with nothing moved, what gather and squeeze moves, and every equal
        number of chunks in all layers.
    """
    limits = limits or Limits()
    rejected: list[Rejected] = []
    found: list[Proposal | Rejected] = []
    for stages in limits.stages:
        for recompute in recomputations(scenario):
            bench = Bench(scenario, limits, recompute)
            for pair in pairs(scenario.cluster, limits.attention_group):
                for shape in shapes(scenario, pair, stages, limits, rejected, every=True):
                    found += map(_simulated, candidates(bench, shape, math.inf, rejected, every=True))
        if found:
            break
    return ranked([*found, *rejected], top)
