"""Asymmetric expert assignment, the answer of HeterMoE: gather bubbles over the layers, squeeze them with experts."""

import itertools
import math
from typing import Literal, NamedTuple

from simmoe.planners.assignment_problem import (
    AssignmentProblem,
    check_problem,
    chunk_bounds,
    chunk_sizes,
    layer_times,
    why_not,
)

Formula = Literal["consistent", "printed"]

# A sum of bubbles that reaches a chunk's worth only up to rounding has reached it (a chunk, relative to itself).
_TIE = 1e-9


class Assignment(NamedTuple):
    """Experts that move to the attention devices.

    Attributes
    ----------
    moved : tuple of int
        o_l: experts that each expert device gives up in each layer [1].
    chunks : tuple of int
        The same in chunks: o_l / n2 [1].
    alpha, beta : float
        Scale of the gathered bubbles by the upper (at most 1) and the lower bound (at least 1); at most one is not 1.
        beta is infinite where experts must move though there is no bubble.
    bubble_before_s, bubble_after_s : float
        Sum over layers of experts' minus attention devices' time of one micro-batch [s]; negative = the attention
        devices are the slower side.
    feasible : bool
        The bounds are met.
    reason : str
        Why nothing could be moved; empty if chunks exist and the bounds can be met.
    """

    moved: tuple[int, ...]
    chunks: tuple[int, ...]
    alpha: float
    beta: float
    bubble_before_s: float
    bubble_after_s: float
    feasible: bool
    reason: str


def squeeze_s(problem: AssignmentProblem, formula: Formula = "consistent") -> float:
    """Seconds of bubble that one moved chunk removes from a layer.

    Parameters
    ----------
    problem : AssignmentProblem
    formula : {"consistent", "printed"}
        The one that the paper's text implies, or the one it prints.

    Returns
    -------
    float
        T_squeeze [s]

    Raises
    ------
    SpecError
        If there is no chunk (see `chunk_sizes`).

    Notes
    -----
    ::

        T_squeeze = N/n (n2 T_E + n1 T_E^Attn)      consistent
        T_squeeze = N/n (n1 T_E + n2 T_E^Attn)      printed

    Erratum: the paper prints the second. Its text saves N/n T_E for each expert that an expert device gives up, which
    are n2, and adds N/n T_E^Attn for each that an attention device acquires, which are n1. Both agree where M = N.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 4.2, algorithm 1.

    Examples
    --------
    6 experts on one device of each side, 4 s and 3.2 s for all tokens: (4 + 3.2) / 6.

    >>> round(squeeze_s(AssignmentProblem(6, 3, 1, 1, 3.0, 4.0, 3.2)), 6)
    1.2
    >>> wide = AssignmentProblem(24, 3, 4, 8, 3.0, 4.0, 3.0)
    >>> round(squeeze_s(wide), 6), round(squeeze_s(wide, "printed"), 6)
    (3.333333, 3.666667)
    """
    acquired, given = chunk_sizes(problem.attention_devices, problem.expert_devices)
    if formula == "printed":
        acquired, given = given, acquired
    share = problem.expert_devices / problem.experts
    return share * (given * problem.expert_s + acquired * problem.expert_on_attention_s)


def best_fraction(problem: AssignmentProblem) -> float:
    """The share of experts that would balance both sides if experts could be cut at will.

    Parameters
    ----------
    problem : AssignmentProblem

    Returns
    -------
    float
        f* of all n L experts [1], within the bounds on what moves; the iteration gets at most 1/(1 - f*) times faster.

    Notes
    -----
    T_A + f (N/M) T_E^Attn = T_E (1 - f), hence ::

        f* = (T_E - T_A) / (T_E + (N/M) T_E^Attn)

    References
    ----------
    Follows from the effect of moved experts in HeterMoE, arXiv 2504.03871v1, section 4.2.

    Examples
    --------
    (4 - 3) / (4 + 3.2)

    >>> round(best_fraction(AssignmentProblem(6, 3, 1, 1, 3.0, 4.0, 3.2)), 4)
    0.1389
    """
    check_problem(problem)
    ratio = problem.expert_devices / problem.attention_devices
    gather = problem.expert_s - problem.attention_s
    free = gather / (problem.expert_s + ratio * problem.expert_on_attention_s) if gather > 0 else 0.0
    held, most = problem.held * problem.layers, problem.cap * problem.layers
    if problem.most_moved >= 0:
        most = min(most, problem.most_moved)
    return max(min(free, most / held), problem.least_moved / held)


def gather_and_squeeze(problem: AssignmentProblem, formula: Formula = "consistent") -> Assignment:
    """Move a chunk of experts in every layer at which the bubbles gathered since the last one are worth a chunk.

    Parameters
    ----------
    problem : AssignmentProblem
    formula : {"consistent", "printed"}
        Of `squeeze_s`.

    Returns
    -------
    Assignment
        Nothing moved, with a reason, where the group has no chunk or the bounds cannot be met.

    Raises
    ------
    SpecError
        If the problem is none: counts below 1, experts that do not divide, times that are negative.

    Notes
    -----
    With T_gather = T_E - T_A and T_squeeze from `squeeze_s` ::

        t = 0;  for every layer:  t += alpha beta T_gather;  c = floor(t / T_squeeze);  o = c n2;  t -= c T_squeeze
        alpha = min(floor(n_max / n2) T_squeeze / (L T_gather), 1)
        beta  = max(ceil (n_min / n2) T_squeeze / (L T_gather), 1)

    so after l layers floor(l alpha beta T_gather / T_squeeze) chunks have moved, which is what is computed: it adds up
    no rounding, and a sum that reaches a chunk up to 1e-9 of it counts. Beyond the paper: n_max is at most what all
    layers may give up (`AssignmentProblem.most_in_layer`), so that at a constant rate none is asked for more; without a
    bubble, what must move is spread evenly over the layers. There is no chunk where neither of M and N divides the
    other.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 4.2, algorithm 1; figure 6 is the example.

    Examples
    --------
    Bubbles of 1 s a layer, 1.2 s a chunk: 1 s is too little, 2 s pay one, the 0.8 s left and 1 s another.

    >>> result = gather_and_squeeze(AssignmentProblem(6, 3, 1, 1, 3.0, 4.0, 3.2))
    >>> result.moved, round(result.bubble_before_s, 6), round(result.bubble_after_s, 6)
    ((0, 1, 1), 3.0, 0.6)
    """
    reason = why_not(problem)
    before = problem.layers * (problem.expert_s - problem.attention_s)
    if reason:
        nothing = (0,) * problem.layers
        return Assignment(nothing, nothing, 1.0, 1.0, before, before, problem.least_moved == 0, reason)
    least, most, _ = chunk_bounds(problem)
    alpha = beta = 1.0
    earned = 0.0  # chunks that the bubbles of all layers are worth
    if before > 0:
        earned = before / squeeze_s(problem, formula)
        # min and max rather than a product with alpha or beta: the bounds are whole chunks and stay so
        alpha, beta = min(most / earned, 1.0), max(least / earned, 1.0)
    elif least:
        beta = math.inf
    chunks = _spread(max(min(earned, most), least), problem.layers)
    moved = tuple(count * chunk_sizes(problem.attention_devices, problem.expert_devices)[1] for count in chunks)
    after = sum(times.experts_s - times.attention_s for times in layer_times(problem, moved))
    return Assignment(moved, chunks, alpha, beta, before, after, feasible=True, reason="")


def _spread(total: float, layers: int) -> tuple[int, ...]:
    """Whole chunks as they fall due at a constant rate, `total` in all."""
    due = [math.floor(total * layer / layers + _TIE) for layer in range(layers + 1)]
    return tuple(after - before for before, after in itertools.pairwise(due))
