"""The best assignment of experts, by trying all or by integer programming, and what gather and squeeze loses to it."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from simmoe.errors import SpecError
from simmoe.planners.assignment import Assignment, Formula, gather_and_squeeze
from simmoe.planners.assignment_problem import AssignmentProblem, chunk_bounds, chunk_sizes, why_not
from simmoe.planners.zebra_recursion import Block, Step, check_step, replay, zebra_blocks, zebra_seconds

Method = Literal["auto", "exact", "milp"]

_FEW = 1_000  # assignments that are quicker tried than programmed
_SAME = 1e-12  # of the step: times closer than this differ by rounding
_SCALE = 100.0  # the solver's absolute tolerances, about 1e-6, are small against a step of this length


class Optimum(NamedTuple):
    """The best assignment that was found.

    Attributes
    ----------
    moved : tuple of int
        Experts that each expert device gives up in each layer.
    seconds_s : float
        Of its step [s]; infinite if no assignment keeps the bounds.
    bound_s : float
        No assignment is faster than this [s].
    proven : bool
        It is the best one (integer programming: up to about 1e-6 of the step).
    tried : int
        Assignments that were judged, or nodes of the integer programme.
    reason : str
        Why no chunks can move; empty if they can.
    """

    moved: tuple[int, ...]
    seconds_s: float
    bound_s: float
    proven: bool
    tried: int
    reason: str


class Gap(NamedTuple):
    """Gather and squeeze beside the best assignment.

    Attributes
    ----------
    greedy : Assignment
    optimal : Optimum
    greedy_s, optimal_s : float
        Seconds of a step [s].
    gap : float
        greedy_s / optimal_s - 1; 0 if no assignment keeps the bounds.
    """

    greedy: Assignment
    optimal: Optimum
    greedy_s: float
    optimal_s: float
    gap: float


def exact_assignment(
    problem: AssignmentProblem,
    step: Step,
    seconds: Callable[[tuple[int, ...]], float] | None = None,
    limit: int = 100_000,
) -> Optimum:
    """The best assignment of whole chunks within the bounds, found by trying all.

    Parameters
    ----------
    problem : AssignmentProblem
    step : Step
    seconds : callable
        Judges moved experts per layer [s]; default `zebra_seconds`.
    limit : int
        Most assignments to try.

    Returns
    -------
    Optimum
        Of equally good ones, the one that moves least, and latest.

    Raises
    ------
    SpecError
        If there are more than `limit` assignments.

    Notes
    -----
    A layer that may give up o experts a device (`AssignmentProblem.most_in_layer`) has q = floor(o/n2) + 1 choices, L
    layers q^L.

    Examples
    --------
    The forward pass of figure 6 of HeterMoE without transfers: 3 s until the experts start, then 12, 10 and 8 s.

    >>> best = exact_assignment(AssignmentProblem(6, 3, 1, 1, 3.0, 4.0, 3.2), Step(3, backward=0.0))
    >>> best.moved, round(best.seconds_s, 6), best.tried
    ((0, 1, 2), 33.0, 216)
    """
    check_step(step)
    reason = why_not(problem)
    if reason:
        return _nothing(problem, step, seconds, reason)
    count = _choices(problem)
    if count > limit:
        raise SpecError([f"{count} assignments are more than the {limit} to try; raise the limit or use the MILP"])
    judge = seconds or _judge(problem, step)
    best, best_s, tried = (0,) * problem.layers, math.inf, 0
    for moved in sorted(_within(problem), key=lambda each: (sum(each), each)):
        took, tried = judge(moved), tried + 1
        if took < best_s * (1.0 - _SAME):
            best, best_s = moved, took
    return Optimum(best, best_s, best_s, proven=True, tried=tried, reason="")


def _choices(problem: AssignmentProblem) -> int:
    """How many assignments there are before the bounds on their sum."""
    return int((chunk_bounds(problem)[2] + 1) ** problem.layers)


def _within(problem: AssignmentProblem) -> Iterator[tuple[int, ...]]:
    """Every assignment of whole chunks within the bounds."""
    least, most, in_layer = chunk_bounds(problem)
    given = chunk_sizes(problem.attention_devices, problem.expert_devices)[1]
    for chunks in itertools.product(range(in_layer + 1), repeat=problem.layers):
        if least <= sum(chunks) <= most:
            yield tuple(given * count for count in chunks)


def _judge(problem: AssignmentProblem, step: Step) -> Callable[[tuple[int, ...]], float]:
    """`zebra_seconds` that builds the blocks once for each set of layers that move something."""
    known: dict[tuple[bool, ...], tuple[Block, ...]] = {}

    def seconds(moved: tuple[int, ...]) -> float:
        moving = tuple(count > 0 for count in moved)
        if moving not in known:
            known[moving] = zebra_blocks(problem, step, moving)
        return max(each.end_s for each in replay(known[moving], moved))

    return seconds


def _nothing(
    problem: AssignmentProblem, step: Step, seconds: Callable[[tuple[int, ...]], float] | None, reason: str
) -> Optimum:
    """Nothing moves, because nothing can; that is a solution unless something must."""
    moved = (0,) * problem.layers
    if problem.least_moved:
        return Optimum(moved, math.inf, math.inf, proven=True, tried=0, reason=reason)
    took = (seconds or _judge(problem, step))(moved)
    return Optimum(moved, took, took, proven=True, tried=1, reason=reason)


def milp_assignment(problem: AssignmentProblem, step: Step, nodes: int = 100_000) -> Optimum:
    """The best assignment of whole chunks within the bounds, as a mixed-integer linear programme.

    Parameters
    ----------
    problem : AssignmentProblem
    step : Step
    nodes : int
        Most nodes of the solver's tree; a limit on nodes, not on seconds, gives the same answer everywhere.

    Returns
    -------
    Optimum
        Its seconds are those of `zebra_seconds`. If the nodes ran out, no worse than gather and squeeze.

    Raises
    ------
    SpecError
        If scipy is not installed.

    Notes
    -----
    With chunks c_l integer, y_l binary, start s_i of every block, d_i(c) its seconds, linear in c, and step T ::

        min T      s_j >= s_i + d_i(c)  (j waits for i)      T >= s_i + d_i(c)
                   y_l <= c_l <= q y_l                       least <= sum c_l <= most

    where q chunks are all that a layer can move. Moved blocks exist in every layer. On the attention devices they
    hold nothing up where they are empty, but a combine must not wait for them there, nor they for a dispatch: these
    two waits are relaxed by H (1 - y_l), with H the step that gather and squeeze gives, which also bounds T. It takes
    about a second for 8 layers of 4 micro-batches, and a minute for 32.

    Examples
    --------
    >>> best = milp_assignment(AssignmentProblem(6, 3, 1, 1, 3.0, 4.0, 3.2), Step(3, backward=0.0))
    >>> best.moved, round(best.seconds_s, 6), best.proven
    ((0, 1, 2), 33.0, True)
    """
    check_step(step)
    reason = why_not(problem)
    if reason:
        return _nothing(problem, step, None, reason)
    greedy = gather_and_squeeze(problem).moved
    horizon = zebra_seconds(problem, step, greedy)
    if horizon == 0.0:
        return Optimum(greedy, 0.0, 0.0, proven=True, tried=0, reason="")
    result = _Programme(problem, step, horizon).solve(nodes)
    tried = int(result.mip_node_count or 0)
    bound = (result.mip_dual_bound or 0.0) * horizon / _SCALE
    if result.x is None:
        return Optimum(greedy, horizon, min(bound, horizon), proven=False, tried=tried, reason="")
    given = chunk_sizes(problem.attention_devices, problem.expert_devices)[1]
    moved = tuple(given * round(count) for count in result.x[: problem.layers])
    took = zebra_seconds(problem, step, moved)
    if result.status != 0 and took > horizon:
        moved, took = greedy, horizon
    return Optimum(moved, took, min(bound, took), proven=result.status == 0, tried=tried, reason="")


def _scipy() -> tuple[Any, Any]:
    """Scipy's optimizers and sparse matrices, which only this needs."""
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        message = "the optimal assignment needs scipy, install it with: pip install 'simmoe[plan]'"
        raise SpecError([message]) from error
    return optimize, sparse


class _Programme:
    """Variables: chunks and binaries of each layer, the step, the starts of all blocks; times in units of _SCALE."""

    def __init__(self, problem: AssignmentProblem, step: Step, horizon: float) -> None:
        self._problem = problem
        self._blocks = zebra_blocks(problem, step, [True] * problem.layers)
        self._unit = horizon / _SCALE
        self._given = chunk_sizes(problem.attention_devices, problem.expert_devices)[1]
        self._first = 2 * problem.layers + 1  # the first start
        self._rows: list[tuple[dict[int, float], float, float]] = []  # coefficients, at least, at most

    def solve(self, nodes: int) -> Any:
        """The result of scipy's solver."""
        optimize, sparse = _scipy()
        self._waits()
        self._chunks()
        size = self._first + len(self._blocks)
        entries = [(row, column, value) for row, each in enumerate(self._rows) for column, value in each[0].items()]
        rows, columns, values = zip(*entries, strict=True)
        matrix = sparse.csr_array((values, (rows, columns)), shape=(len(self._rows), size))
        layers, in_layer = self._problem.layers, chunk_bounds(self._problem)[2]
        top = [float(in_layer)] * layers + [1.0] * layers + [_SCALE * (1.0 + _SAME)] * (size - 2 * layers)
        objective = [float(column == 2 * layers) for column in range(size)]
        return optimize.milp(
            objective,
            integrality=[int(column < 2 * layers) for column in range(size)],
            bounds=optimize.Bounds(0.0, top),
            constraints=optimize.LinearConstraint(
                matrix, [row[1] for row in self._rows], [row[2] for row in self._rows]
            ),
            options={"mip_rel_gap": 1e-7, "node_limit": nodes},
        )

    def _waits(self) -> None:
        """Every start after the ends that it waits for; the step after all ends."""
        for number, block in enumerate(self._blocks):
            for cause in block.after:
                before = self._blocks[cause]
                relaxed = (before.part == "moved") != (block.part == "moved") and before.queue != block.queue
                self._after(cause, self._first + number, block.layer if relaxed else -1)
            self._after(number, 2 * self._problem.layers, -1)

    def _after(self, cause: int, target: int, relaxed: int) -> None:
        """A row: the target variable is not before the end of a block, if the layer `relaxed` moves something."""
        block = self._blocks[cause]
        row = {target: 1.0, self._first + cause: -1.0}
        least = block.base_s / self._unit
        if block.expert_s:
            row[block.layer] = -block.expert_s * self._given / self._unit
        if relaxed >= 0:
            row[self._problem.layers + relaxed] = -_SCALE
            least -= _SCALE
        self._rows.append((row, least, math.inf))

    def _chunks(self) -> None:
        """Binaries are 1 where chunks move; the sum of all keeps the bounds."""
        least, most, in_layer = chunk_bounds(self._problem)
        layers = self._problem.layers
        for layer in range(layers):
            self._rows.append(({layer: 1.0, layers + layer: -1.0}, 0.0, math.inf))
            self._rows.append(({layer: -1.0, layers + layer: float(in_layer)}, 0.0, math.inf))
        self._rows.append((dict.fromkeys(range(layers), 1.0), float(least), float(most)))


def best_assignment(problem: AssignmentProblem, step: Step) -> Optimum:
    """The best assignment: by trying all where they are few, else by integer programming.

    Parameters
    ----------
    problem : AssignmentProblem
    step : Step

    Raises
    ------
    SpecError
        If scipy is needed and not installed.
    """
    few = bool(why_not(problem)) or _choices(problem) <= _FEW
    return exact_assignment(problem, step) if few else milp_assignment(problem, step)


def assignment_gap(
    problem: AssignmentProblem, step: Step, method: Method = "auto", formula: Formula = "consistent"
) -> Gap:
    """How much slower a step is with gather and squeeze than with the best assignment.

    Parameters
    ----------
    problem : AssignmentProblem
    step : Step
    method : {"auto", "exact", "milp"}
        How the best one is found; auto tries all if they are few.
    formula : {"consistent", "printed"}
        Of `squeeze_s`.

    Returns
    -------
    Gap

    Raises
    ------
    SpecError
        If scipy is needed and not installed, or there are too many assignments to try.

    Examples
    --------
    Figure 6 of HeterMoE without transfers, forward: 35 s against 33 s.

    >>> gap = assignment_gap(AssignmentProblem(6, 3, 1, 1, 3.0, 4.0, 3.2), Step(3, backward=0.0))
    >>> gap.greedy.moved, gap.optimal.moved, round(gap.gap, 4)
    ((0, 1, 1), (0, 1, 2), 0.0606)
    """
    greedy = gather_and_squeeze(problem, formula)
    judges = {"auto": best_assignment, "exact": exact_assignment, "milp": milp_assignment}
    optimal = judges[method](problem, step)
    greedy_s = zebra_seconds(problem, step, greedy.moved) if greedy.feasible else math.inf
    ratio = greedy_s / optimal.seconds_s - 1.0 if 0.0 < optimal.seconds_s < math.inf else 0.0
    return Gap(greedy, optimal, greedy_s, optimal.seconds_s, ratio)
