"""Asymmetric expert assignment, the question: a zebra group, what may move in it, and what moving does (HeterMoE)."""

import math
from typing import NamedTuple

from simmoe.errors import SpecError


class AssignmentProblem(NamedTuple):
    """One zebra group, and how long its modules take for one micro-batch of one layer.

    Attributes
    ----------
    experts : int
        Experts of a layer, n; a multiple of `expert_devices`.
    layers : int
        MoE layers, L.
    attention_devices, expert_devices : int
        Devices of the group, M and N.
    attention_s : float
        Attention and gate on an attention device, T_A [s].
    expert_s : float
        All n/N experts of an expert device on the tokens that reach it, T_E [s].
    expert_on_attention_s : float
        The same tokens through one expert's matrices on an attention device, T_E^Attn [s]. The experts' time goes with
        tokens, not with how many experts share them, so one acquired expert, which sees N/n of these tokens, takes
        N/n of it.
    least_moved, most_moved : int
        Bounds on the sum over layers of the experts that *each expert device* gives up; see `moved_bounds`. -1 = all.
    most_in_layer : int
        Experts that each expert device may give up in one layer; -1 = all but one, as plans demand. The paper's
        algorithm knows no such bound, which is n/N.
    """

    experts: int
    layers: int
    attention_devices: int
    expert_devices: int
    attention_s: float
    expert_s: float
    expert_on_attention_s: float
    least_moved: int = 0
    most_moved: int = -1
    most_in_layer: int = -1

    @property
    def held(self) -> int:
        """Experts of a layer on an expert device before any moves, n/N."""
        return self.experts // self.expert_devices

    @property
    def cap(self) -> int:
        """Experts that each expert device can give up in one layer."""
        return self.held - 1 if self.most_in_layer < 0 else self.most_in_layer


class LayerTimes(NamedTuple):
    """One micro-batch of a layer on an attention device, with the experts it acquired, and on an expert device [s]."""

    attention_s: float
    experts_s: float


def check_problem(problem: AssignmentProblem) -> None:
    """Refuse counts and times that describe no zebra group.

    Raises
    ------
    SpecError
        Counts below 1, experts that do not divide, times that are negative or infinite, a negative lower bound, a layer
        that gives up more than it has.
    """
    counts = (problem.experts, problem.layers, problem.attention_devices, problem.expert_devices)
    times = (problem.attention_s, problem.expert_s, problem.expert_on_attention_s)
    problems = []
    if min(counts) < 1:
        problems.append(f"experts, layers and devices must be at least 1 (got {counts}); correct the count")
    elif problem.experts % problem.expert_devices:
        problems.append(
            f"{problem.experts} experts on {problem.expert_devices} expert devices: the devices must hold equally "
            "many; use a number of expert devices that divides the experts"
        )
    elif problem.most_in_layer > problem.held:
        problems.append(
            f"most_in_layer {problem.most_in_layer}: an expert device holds {problem.held} experts of a layer; "
            "write at most as many, or -1 for all but one"
        )
    if not all(0.0 <= time < math.inf for time in times):
        problems.append(f"times must be finite and not negative (got {times} s)")
    if problem.least_moved < 0:
        problems.append(f"least_moved must not be negative (got {problem.least_moved}); 0 = no lower bound")
    if problems:
        raise SpecError(problems)


def chunk_sizes(attention_devices: int, expert_devices: int) -> tuple[int, int]:
    """The smallest group of experts that moves: what each device of either side acquires and gives up.

    Parameters
    ----------
    attention_devices, expert_devices : int
        M and N.

    Returns
    -------
    tuple of int
        n1, that an attention device acquires, and n2, that an expert device gives up; M n1 = N n2.

    Raises
    ------
    SpecError
        If neither number divides the other.

    Notes
    -----
    ::

        n1 = max(1, N/M)        n2 = n1 M/N

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 4.2, algorithm 1.

    Examples
    --------
    Of 8 expert devices one expert each goes to 4 attention devices, two to each.

    >>> chunk_sizes(4, 8), chunk_sizes(6, 3), chunk_sizes(6, 6)
    ((2, 1), (1, 2), (1, 1))
    """
    large, small = max(attention_devices, expert_devices), min(attention_devices, expert_devices)
    if small < 1 or large % small:
        raise SpecError([_uneven(attention_devices, expert_devices)])
    acquired = max(1, expert_devices // attention_devices)
    return acquired, acquired * attention_devices // expert_devices


def _uneven(attention_devices: int, expert_devices: int) -> str:
    return (
        f"{attention_devices} attention and {expert_devices} expert devices: neither number divides the other, so no "
        "chunk of experts is equal on all of them; use a group where one does, or move no experts"
    )


def moved_bounds(
    least_in_group: int, most_per_attention_device: int, attention_devices: int, expert_devices: int
) -> tuple[int, int]:
    """Bounds on the experts that each expert device gives up, from what the memory of the devices says.

    Parameters
    ----------
    least_in_group : int
        Experts of all layers that do not fit on the expert devices together, n_min.
    most_per_attention_device : int
        Experts of all layers that fit on one attention device, n_max.
    attention_devices, expert_devices : int
        M and N.

    Returns
    -------
    tuple of int
        ceil(n_min / N) and floor(n_max M / N): `least_moved` and `most_moved`.

    Notes
    -----
    The paper's text counts n_min over all expert devices and n_max on one attention device, while its algorithm bounds
    the sum of o_l, which is counted on one expert device. Hence the conversion.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, sections 4.2 and 5.

    Examples
    --------
    4 attention devices with room for 5 experts each take 20, at most 2 from each of 8 expert devices.

    >>> moved_bounds(9, 5, 4, 8)
    (2, 2)
    """
    most = most_per_attention_device * attention_devices // expert_devices
    return -(-least_in_group // expert_devices), most


def chunk_bounds(problem: AssignmentProblem) -> tuple[int, int, int]:
    """How many chunks may move: at least and at most in all layers together, and at most in one layer.

    Parameters
    ----------
    problem : AssignmentProblem

    Returns
    -------
    tuple of int
        The first exceeds the second if the bounds on moved experts cannot be met with whole chunks.

    Raises
    ------
    SpecError
        If there is no chunk (see `chunk_sizes`), or the problem is none: counts below 1, times that are negative.

    Examples
    --------
    4 experts a device, of which one stays, and two of them a chunk: 1 chunk a layer; at least 3 experts are 2 chunks,
    at most 7 are 3. Were none to stay, 2 chunks a layer.

    >>> problem = AssignmentProblem(12, 3, 6, 3, 3.0, 4.0, 3.0, least_moved=3, most_moved=7)
    >>> chunk_bounds(problem), chunk_bounds(problem._replace(most_in_layer=4))
    ((2, 3, 1), (2, 3, 2))
    """
    check_problem(problem)
    given = chunk_sizes(problem.attention_devices, problem.expert_devices)[1]
    in_layer = problem.cap // given
    most = in_layer * problem.layers
    if problem.most_moved >= 0:
        most = min(most, problem.most_moved // given)
    return -(-problem.least_moved // given), most, in_layer


def why_not(problem: AssignmentProblem) -> str:
    """Why no chunks of experts can move within the bounds, as a sentence; empty if they can.

    Parameters
    ----------
    problem : AssignmentProblem

    Returns
    -------
    str

    Raises
    ------
    SpecError
        If the problem is none: counts below 1, experts that do not divide, times that are negative.

    Examples
    --------
    >>> why_not(AssignmentProblem(6, 3, 1, 1, 3.0, 4.0, 3.2, least_moved=5, most_moved=4))
    'at least 5 experts of each expert device must move, but at most 4 can in chunks of 1; use more expert devices'
    """
    check_problem(problem)
    attention, experts = problem.attention_devices, problem.expert_devices
    if max(attention, experts) % min(attention, experts):
        return _uneven(attention, experts)
    least, most, in_layer = chunk_bounds(problem)
    given = chunk_sizes(attention, experts)[1]
    if not in_layer:
        return (
            f"of the {problem.held} experts of a layer on an expert device {problem.cap} can move, which is no chunk "
            f"of {given}; use fewer expert devices"
        )
    if least > most:
        return (
            f"at least {problem.least_moved} experts of each expert device must move, but at most {most * given} can "
            f"in chunks of {given}; use more expert devices"
        )
    return ""


def layer_times(problem: AssignmentProblem, moved: tuple[int, ...]) -> tuple[LayerTimes, ...]:
    """What a micro-batch takes in each layer on both sides, after some experts have moved.

    Parameters
    ----------
    problem : AssignmentProblem
    moved : tuple of int
        Experts that each expert device gives up in each layer, o_l.

    Returns
    -------
    tuple of LayerTimes

    Raises
    ------
    SpecError
        If `moved` has not one number from 0 to n/N for each layer.

    Notes
    -----
    With f = o N/n the share of the layer's experts that moved ::

        T_E' = T_E (1 - f)        T_A' = T_A + T_E^Attn f N/M

    for c chunks, o = c n2, the latter is T_A + T_E^Attn c n1 N/n. Valid for balanced routing.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 4.2.

    Examples
    --------
    One expert of six moved: 4 s x 5/6 remain, 3.2 s / 6 are added.

    >>> [layer] = layer_times(AssignmentProblem(6, 1, 1, 1, 3.0, 4.0, 3.2), (1,))
    >>> round(layer.attention_s, 3), round(layer.experts_s, 3)
    (3.533, 3.333)
    """
    check_moved(problem, moved)
    share, per_device = problem.expert_devices / problem.experts, problem.expert_devices / problem.attention_devices
    return tuple(
        LayerTimes(
            problem.attention_s + problem.expert_on_attention_s * count * per_device * share,
            problem.expert_s * (1.0 - count * share),
        )
        for count in moved
    )


def check_moved(problem: AssignmentProblem, moved: tuple[int, ...]) -> None:
    """Refuse moved experts that are not one number from 0 to n/N for each layer.

    Raises
    ------
    SpecError
    """
    check_problem(problem)
    most = problem.held
    if len(moved) != problem.layers or not all(0 <= count <= most for count in moved):
        raise SpecError([f"moved experts {list(moved)}: give {problem.layers} numbers from 0 to {most}, one a layer"])
