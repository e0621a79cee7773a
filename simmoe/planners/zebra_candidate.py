"""Candidates of the HeterMoE planner, judged block by block."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from simmoe.planners.assignment import best_fraction
from simmoe.planners.proposal import Rejected
from simmoe.planners.zebra_assign import assignments, too_large, unbounded
from simmoe.planners.zebra_bench import Batch, Bench
from simmoe.planners.zebra_shapes import Shape, batches
from simmoe.planners.zebra_times import StepTimes
from simmoe.specs.plan import Plan
from simmoe.specs.scenario import Scenario


class Candidate(NamedTuple):
    """A zebra plan that fits.

    Attributes
    ----------
    shape : Shape
    batch : Batch
    moved : tuple of int
        Experts that each expert device gives up, by MoE layer; empty = none.
    predicted_s : float
        The step, block by block [s].
    plan : Plan
    scenario : Scenario
        Expanded.
    """

    shape: Shape
    batch: Batch
    moved: tuple[int, ...]
    predicted_s: float
    plan: Plan
    scenario: Scenario


def candidates(
    bench: Bench, shape: Shape, worst_s: float, rejected: list[Rejected], *, keep: int = 0, every: bool = False
) -> Iterator[Candidate]:
    """The plans of a shape that fit and may be faster than a step already found.

    Parameters
    ----------
    bench : Bench
    shape : Shape
    worst_s : float
        Steps that are longer are of no interest [s].
    rejected : list of Rejected
        Gets the shape if nothing of it fits.
    keep : int
        How many of them are of interest; 0 = all.
    every : bool
        As in `assignments`.
    """
    reason, tally = too_large(bench, shape), _Tally(worst_s, keep)
    for batch_round in [] if reason else _rounds(bench, shape, every=every):
        for least, batch in sorted((least_s(bench, shape, batch), batch) for batch in batch_round):
            limit = tally.limit_s
            if least >= limit:
                return
            if tally.is_full(batch) or not (every or _promising(bench, shape, batch, tally)):
                continue
            choices, reason = assignments(bench, shape, batch, every=every)
            if not choices:
                tally.full[batch.size] = batch.together
            for moved, scenario in choices:
                predicted = predict_s(bench, shape, batch, moved, limit)
                tally.steps.append(predicted)
                if predicted < limit:
                    plan = bench.plan_of(shape, batch.together, moved)
                    yield Candidate(shape, batch, moved, predicted, plan, scenario)
        if tally.steps:
            return
    if reason:
        rejected.append(Rejected(bench.name(shape), f"does not fit: {reason}"))


class _Tally:
    """Steps of one shape that were predicted, and what did not fit.

    Attributes
    ----------
    steps : list of float
        Predicted [s].
    full : dict of int to int
        By sequences of a micro-batch, the smallest R that does not fit.
    """

    def __init__(self, worst_s: float, keep: int) -> None:
        self._worst_s, self._keep = worst_s, keep
        self.steps: list[float] = []
        self.full: dict[int, int] = {}

    @property
    def limit_s(self) -> float:
        """Steps that are longer are of no interest [s]."""
        if 0 < self._keep <= len(self.steps):
            return min(self._worst_s, sorted(self.steps)[self._keep - 1])
        return self._worst_s

    def is_full(self, batch: Batch) -> bool:
        """Fewer micro-batches of the same size did not fit."""
        return batch.together >= self.full.get(batch.size, math.inf)


def _promising(bench: Bench, shape: Shape, batch: Batch, tally: _Tally) -> bool:
    """Whether something that may move if memory were no matter makes a step short enough."""
    limit = tally.limit_s
    if limit == math.inf or any(
        predict_s(bench, shape, batch, moved, limit) < limit for moved in unbounded(bench, shape, batch)
    ):
        return True
    tally.steps.append(limit)
    return False


def _rounds(bench: Bench, shape: Shape, *, every: bool) -> list[list[Batch]]:
    """Batches to try, and those to try only if none of these fits.

    A micro-batch alone in its layer hides nothing; only the largest one, whose kernels are the most efficient and the
    host least in the way, is tried beside those that overlap.
    """
    tried = [Batch(*each) for each in batches(bench.scenario, shape, bench.limits)]
    single = sorted(batch for batch in tried if batch.together == 1)
    overlapping = [batch for batch in tried if batch.together > 1]
    return [tried] if every or not overlapping else [overlapping + single[-1:], single[:-1]]


def least_s(bench: Bench, shape: Shape, batch: Batch) -> float:
    """A step in which neither side waits, with experts balanced at will, or exchanges follow one another [s].

    Parameters
    ----------
    bench : Bench
    shape : Shape
    batch : Batch

    Returns
    -------
    float
        B / (M G b R) passes of R micro-batches at the slower side's rate; of several stages, the slowest's.
    """
    problem, slowest = bench.problem(shape, batch), 0.0
    for one in bench.times(shape, batch):
        attention, experts = one.whole
        slower = max(attention, experts)
        if experts > attention and bench.chunk(shape):
            mean = problem._replace(attention_s=attention / one.layers, expert_s=experts / one.layers)
            slower = experts * (1.0 - best_fraction(mean))
        slowest = max(slowest, slower, one.exchanges * (1.0 - bench.most(shape) * shape.expert_devices / bench.experts))
    return slowest * bench.scenario.training.global_batch_size / (shape.replicas * batch.size)


def predict_s(bench: Bench, shape: Shape, batch: Batch, moved: Sequence[int], worst_s: float = math.inf) -> float:
    """Seconds of a step, its passes simulated block by block.

    Parameters
    ----------
    bench : Bench
    shape : Shape
    batch : Batch
    moved : sequence of int
        Empty = none.
    worst_s : float
        A step that is surely longer comes out as infinite [s].

    Returns
    -------
    float
        P passes through stages of t_s: sum of t_s + (P - 1) max t_s, and what frames them [s]. With one stage that is
        exact but for the host and the frame: a pass ends where the next begins, on the attention devices.
    """
    passes = bench.scenario.training.global_batch_size // (shape.replicas * batch.size * batch.together)
    whole = tuple(moved) or (0,) * bench.layers
    ends = accumulate((one.layers for one in bench.times(shape, batch)), initial=0)
    moves = [whole[first:last] for first, last in pairwise(ends)]
    stages = [
        StepTimes({o: bench.times(shape, batch, o)[number] for o in {0, *own}}, bench.limits.degree)
        for number, own in enumerate(moves)
    ]
    bounds = [stage.bound(own, batch.together) for stage, own in zip(stages, moves, strict=True)]
    if sum(bounds) + (passes - 1) * max(bounds) >= worst_s:
        return math.inf
    runs = [stage.run(own, batch.together) for stage, own in zip(stages, moves, strict=True)]
    frames = (
        took.framed(*one.frame(took.seconds, own))
        for one, took, own in zip(bench.times(shape, batch), runs, moves, strict=True)
    )
    seconds = [took.seconds for took in runs]
    return sum(seconds) + (passes - 1) * max(seconds) + max(frames)
