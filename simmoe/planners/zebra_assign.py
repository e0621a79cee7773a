"""Which experts move to the attention devices of a zebra group, as far as memory allows."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from simmoe.planners.assignment import best_fraction, gather_and_squeeze
from simmoe.planners.assignment_problem import AssignmentProblem
from simmoe.planners.zebra_bench import Batch, Bench, Room, room
from simmoe.planners.zebra_shapes import Shape
from simmoe.specs.scenario import Scenario

_FEW = 2  # micro-batches: R max(T_A, T_E) is then seldom as long as a round trip
_TRIES = 6  # of an assignment whose memory was estimated too low


class Choice(NamedTuple):
    """Experts that each expert device gives up, by MoE layer (empty = none), and the scenario, which fits."""

    moved: tuple[int, ...]
    scenario: Scenario


class _Bounds(NamedTuple):
    """Experts that each expert device must and can give up over all layers; bytes that one takes and frees [B]."""

    least: int
    most: int
    taken: float
    freed: float


def assignments(bench: Bench, shape: Shape, batch: Batch, *, every: bool = False) -> tuple[list[Choice], str]:
    """What may move.

    Parameters
    ----------
    bench : Bench
    shape : Shape
    batch : Batch
    every : bool
        Also every equal number of experts in all layers.

    Returns
    -------
    list of Choice
        Nothing, what `Limits.assignment` says, or both; only what fits.
    str
        Why the list is empty.
    """
    made = bench.made(shape, batch)
    left, given = room(made), bench.chunk(shape)
    found = [Choice((), made)] if left.enough else []
    if left.attention < 0 or not given:
        return found, left.lack
    even = list(range(given, bench.most(shape) + 1, given)) if every else []
    if left.experts < 0 and (never := _never(bench, shape, batch, left)):
        return [], never
    if left.experts < 0 or _gathers(bench, shape, batch):
        bounds = _bounds(bench, shape, batch, left)
        if bounds is None:
            return [], f"{left.lack}, even with all experts moved that can"
        found += _within(bench, shape, batch, bounds)
        if bench.limits.assignment == "best":
            least = min(bounds.least, bench.most(shape) * bench.layers)
            even = even or _near(bench, shape, batch, bench.problem(shape, batch)._replace(least_moved=least))
    for moved in even:
        choice = _choice(bench, shape, batch, (moved,) * bench.layers)
        if choice is not None:
            found.append(choice)
    return list({choice.moved: choice for choice in found}.values()), f"{left.lack}, also with experts moved"


def moved_within(bench: Bench, shape: Shape, batch: Batch) -> Choice | None:
    """What `Limits.assignment` moves within memory, whichever side is slower; None if nothing fits.

    Parameters
    ----------
    bench : Bench
    shape : Shape
    batch : Batch
    """
    made = bench.made(shape, batch)
    left = room(made)
    bounds = _bounds(bench, shape, batch, left) if left.attention >= 0 and bench.chunk(shape) else None
    found = () if bounds is None else _within(bench, shape, batch, bounds)
    return next(iter(found), Choice((), made) if left.enough else None)


def unbounded(bench: Bench, shape: Shape, batch: Batch) -> list[tuple[int, ...]]:
    """What would be tried if memory were no matter; the empty tuple moves nothing."""
    found: list[tuple[int, ...]] = [()]
    if bench.chunk(shape) and _gathers(bench, shape, batch):
        problem = bench.problem(shape, batch)
        found.append(gather_and_squeeze(problem, bench.limits.formula).moved)
        found += [(moved,) * bench.layers for moved in _near(bench, shape, batch, problem)]
    return found


def too_large(bench: Bench, shape: Shape) -> str:
    """Why not even one micro-batch of one sequence fits, as a sentence; empty if it may."""
    batch = Batch(1, 1)
    left = room(bench.made(shape, batch))
    if left.enough or left.attention < 0 or not bench.chunk(shape):
        return "" if left.enough else left.lack
    return _never(bench, shape, batch, left)


def _never(bench: Bench, shape: Shape, batch: Batch, left: Room) -> str:
    """Why no number of moved experts makes a plan fit, as a sentence; empty if one may.

    What either side holds changes in proportion to what moves, and its buffers at the first expert: the straight line
    from nothing to all that can move is above what attention devices have left in between.
    """
    most = room(bench.made(shape, batch, (bench.most(shape),) * bench.layers))
    if most.experts < 0:
        return f"{most.lack} even with all experts moved that can"
    needed = -left.experts / (most.experts - left.experts)
    if left.attention + needed * (most.attention - left.attention) < 0:
        return f"{left.lack}, and attention devices have no room for so many experts"
    return ""


def _gathers(bench: Bench, shape: Shape, batch: Batch) -> bool:
    """The experts are the slower side, or there are too few micro-batches in a layer to hide them behind attention."""
    problem = bench.problem(shape, batch)
    return batch.together <= _FEW or problem.expert_s > problem.attention_s


def _choice(bench: Bench, shape: Shape, batch: Batch, moved: tuple[int, ...]) -> Choice | None:
    """The scenario with these experts moved, if it fits."""
    made = bench.made(shape, batch, moved)
    return Choice(moved, made) if room(made).enough else None


def _bounds(bench: Bench, shape: Shape, batch: Batch, left: Room) -> _Bounds | None:
    """HeterMoE's n_min and n_max, measured on the plan in which every layer gives up a chunk; None if none will do."""
    given, layers, most = bench.chunk(shape), bench.layers, bench.most(shape)
    after = room(bench.made(shape, batch, (given,) * layers))
    taken = max((left.attention - after.attention) / (given * layers), 1.0)
    freed = max((after.experts - left.experts) / (given * layers), 1.0)
    least = math.ceil(max(0.0, -left.experts) / freed)
    return (
        _Bounds(least, min(int(left.attention / taken), most * layers), taken, freed)
        if least <= most * layers
        else None
    )


def _within(bench: Bench, shape: Shape, batch: Batch, bounds: _Bounds) -> Iterator[Choice]:
    """What the algorithm moves; where memory was estimated too low, what it moves within corrected bounds."""
    least, most = bounds.least, bounds.most
    for _ in range(_TRIES):
        problem = bench.problem(shape, batch)._replace(least_moved=least, most_moved=max(most, 0))
        moved = _solved(bench, shape, batch, problem)
        if not any(moved):
            return
        made = bench.made(shape, batch, moved)
        left = room(made)
        if left.enough:
            yield Choice(moved, made)
            return
        most -= math.ceil(max(0.0, -left.attention) / bounds.taken)
        least += math.ceil(max(0.0, -left.experts) / bounds.freed)


def _near(bench: Bench, shape: Shape, batch: Batch, problem: AssignmentProblem) -> list[int]:
    """Equal numbers of experts in all layers around the share that would balance both sides.

    A micro-batch that is alone in its layer has its attention behind it when its experts begin.
    """
    problem = problem if batch.together > 1 else problem._replace(attention_s=0.0)
    given, each = bench.chunk(shape), bench.experts // shape.expert_devices
    below = int(best_fraction(problem) * each / given + 1e-9) * given
    return [moved for moved in (below, below + given) if 0 < moved <= bench.most(shape)]


def _solved(bench: Bench, shape: Shape, batch: Batch, problem: AssignmentProblem) -> tuple[int, ...]:
    """The assignment of whole chunks, at least one expert left on every expert device; empty if there is none."""
    if bench.limits.assignment != "optimal":
        answer = gather_and_squeeze(problem, bench.limits.formula)
        return answer.moved if answer.feasible else ()
    from simmoe.planners.optimal_assignment import best_assignment

    asked, step = bench.question(shape, batch)
    best = best_assignment(asked._replace(least_moved=problem.least_moved, most_moved=problem.most_moved), step)
    return best.moved if best.seconds_s < math.inf else ()
