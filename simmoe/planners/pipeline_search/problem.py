"""The question: which stages, on which devices, with how many layers each. Tables of numbers, no models or GPUs.

Whoever asks fills in the tables; how seconds and bytes come about is not known here.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from simmoe.errors import SpecError


class DeviceType(NamedTuple):
    """Devices that are alike.

    Attributes
    ----------
    name : str
        Unique in a problem; equally good plans are put in order by it.
    devices : int
        How many there are.
    power : float
        Profiled speed of one device, P_h, in any unit; only HAPMoE's load-balance window reads it. 0 = the best rate of
        the type's own options.
    """

    name: str
    devices: int
    power: float = 0.0


class Extra(NamedTuple):
    """What a stage does besides its layers.

    Attributes
    ----------
    forward_s, backward_s : float
        For one micro-batch [s].
    update_s : float
        At the end of the step [s].
    held_bytes, kept_bytes : int
        On each of its devices, and of each micro-batch in flight [bytes]; what any stage keeps stands in its layers.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0
    held_bytes: int = 0
    kept_bytes: int = 0


class StageOption(NamedTuple):
    """One way to run a stage: devices of one type, and how they share the work (tensor, data, expert parallelism, ...).

    Attributes
    ----------
    device_type : int
        Index into `PipelineProblem.types`.
    devices : int
        Devices of the stage.
    name : str
        What the way is; unique among options of as many devices of the type.
    forward_s, backward_s : tuple of float
        Of each layer of the model in order, for one micro-batch of the pipeline [s]; recomputation is backward.
    update_s : tuple of float
        Of each layer: synchronisation of gradients and the optimizer at the end of the step [s].
    held_bytes : tuple of int
        Of each layer: weights, gradients and optimizer states on one device [bytes].
    kept_bytes : tuple of int
        Of each layer: activations of one micro-batch in flight on one device [bytes].
    capacity_bytes : int
        What a device can hold [bytes].
    every, first, last : Extra
        What any stage, the first (embedding) and the last (output head, loss) does beside its layers.
    """

    device_type: int
    devices: int
    name: str
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    held_bytes: tuple[int, ...]
    kept_bytes: tuple[int, ...]
    capacity_bytes: int
    every: Extra = Extra()
    first: Extra = Extra()
    last: Extra = Extra()


class PipelineProblem(NamedTuple):
    """One pipeline to be divided, for one size of its micro-batches.

    Attributes
    ----------
    types : tuple of DeviceType
    layers : int
        N.
    micro_batches : int
        M that pass the pipeline in a step.
    options : tuple of StageOption
    transfer_s : tuple of tuple of float
        Seconds that a micro-batch takes from a stage of one type to a stage of another, and its gradient back:
        ``transfer_s[front][behind]`` [s].
    unit : int
        Sequences of one micro-batch of the pipeline (HAPMoE's stages may split them differently); a name of the
        problem.
    max_stages : int
        0 = as many as there are layers.
    """

    types: tuple[DeviceType, ...]
    layers: int
    micro_batches: int
    options: tuple[StageOption, ...]
    transfer_s: tuple[tuple[float, ...], ...]
    unit: int = 1
    max_stages: int = 0

    @property
    def most_stages(self) -> int:
        """The largest number of stages [1]."""
        return min(self.layers, self.max_stages or self.layers)


class Shape(NamedTuple):
    """What plans are looked for; every restriction may cost the best plan.

    Attributes
    ----------
    one_block : bool
        The stages of a type stand side by side.
    one_size : bool
        Neighbours of one type have equally many devices; with `one_block`: one stage size for each type.
    all_devices : bool
        No device stays idle.
    sizes : tuple of int
        Devices that a stage may have; empty = what the options have.
    """

    one_block: bool = True
    one_size: bool = False
    all_devices: bool = False
    sizes: tuple[int, ...] = ()


ONE_BLOCK = Shape()


class PlacedStage(NamedTuple):
    """A stage of a plan: its option (index into `PipelineProblem.options`) and its layers."""

    option: int
    first_layer: int
    layers: int


class PipelinePlan(NamedTuple):
    """An answer.

    Attributes
    ----------
    seconds : float
        Its step by the objective of the search [s].
    unit : int
        `PipelineProblem.unit` of the problem it answers.
    stages : tuple of PlacedStage
        First to last.
    """

    seconds: float
    unit: int
    stages: tuple[PlacedStage, ...]


class StageTimes(NamedTuple):
    """What a plan's stages take, first to last.

    Attributes
    ----------
    forward_s, backward_s : tuple of float
        One micro-batch [s].
    transfer_s : tuple of float
        Between each stage and the next, one way [s].
    update_s : float
        The longest end of the step of any stage: gradients and optimizer [s].
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    update_s: float


def alike(seconds: float, layers: int) -> tuple[float, ...]:
    """A column of `StageOption` for layers that are all alike.

    Examples
    --------
    >>> alike(0.5, 3)
    (0.5, 0.5, 0.5)
    """
    return (seconds,) * layers


def check_pipeline(problem: PipelineProblem) -> None:
    """Refuse tables that describe no pipeline.

    Raises
    ------
    SpecError
        Every problem found: counts below 1, columns of another length than the model, negative or infinite values,
        an index or a name used twice.
    """
    problems = list(_wrong_counts(problem))
    for number, option in enumerate(problem.options):
        problems += [f"options[{number}] ({option.name}): {text}" for text in _wrong_option(problem, option)]
    keys = [(option.device_type, option.devices, option.name) for option in problem.options]
    if len(set(keys)) < len(keys):
        twice = next(key for number, key in enumerate(keys) if key in keys[:number])
        problems.append(f"two options are {twice}; give options of as many devices of a type different names")
    if problems:
        raise SpecError(problems)


def _wrong_counts(problem: PipelineProblem) -> Iterator[str]:
    names = [kind.name for kind in problem.types]
    counts = (problem.layers, problem.micro_batches, *(kind.devices for kind in problem.types))
    if not problem.types or min(counts) < 1 or problem.max_stages < 0:
        yield f"layers, micro-batches and devices must be at least 1 (got {counts}); correct the count"
    if len(set(names)) < len(names):
        yield f"types must have different names (got {names}); rename one"
    if not problem.options:
        yield "there are no options; add at least one way to run a stage"
    rows = problem.transfer_s
    if len(rows) != len(names) or any(len(row) != len(names) for row in rows):
        yield f"transfer_s must have a row and a column for each of {len(names)} types; complete it"
    elif not all(0.0 <= value < math.inf for row in rows for value in row):
        yield f"transfer_s must be finite and not negative (got {rows}); correct it"


def _wrong_option(problem: PipelineProblem, option: StageOption) -> Iterator[str]:
    columns = (option.forward_s, option.backward_s, option.update_s, option.held_bytes, option.kept_bytes)
    if not 0 <= option.device_type < len(problem.types):
        yield f"device_type must be below {len(problem.types)} (got {option.device_type})"
    if option.devices < 1:
        yield f"devices must be at least 1 (got {option.devices})"
    if any(len(column) != problem.layers for column in columns):
        yield f"every column must have {problem.layers} layers (got {[len(column) for column in columns]})"
    every = (*columns, option.every, option.first, option.last)
    # A sum is finite only if all of it is.
    if not all(math.isfinite(sum(column)) and min(column, default=0.0) >= 0.0 for column in every):
        yield "seconds and bytes must be finite and not negative"
    if min(f + b for f, b in zip(option.forward_s, option.backward_s, strict=False)) <= 0.0:
        yield "a layer must take time"


def stage_times(problem: PipelineProblem, stages: Sequence[PlacedStage]) -> StageTimes:
    """What the stages of a plan take.

    Parameters
    ----------
    problem : PipelineProblem
    stages : sequence of PlacedStage
        First to last.

    Returns
    -------
    StageTimes
        [s].

    Examples
    --------
    Three layers of 1 s forward and 2 s backward on two stages; the head adds half a second to the last.

    >>> option = StageOption(0, 1, "", (1.0,) * 3, (2.0,) * 3, (0.25,) * 3, (0,) * 3, (0,) * 3, 1, last=Extra(0.5))
    >>> problem = PipelineProblem((DeviceType("a", 2),), 3, 4, (option,), ((0.1,),))
    >>> stage_times(problem, (PlacedStage(0, 0, 2), PlacedStage(0, 2, 1)))
    StageTimes(forward_s=(2.0, 1.5), backward_s=(4.0, 2.0), transfer_s=(0.1,), update_s=0.5)
    """
    forward, backward, update = [], [], []
    for stage in stages:
        option = problem.options[stage.option]
        extras = _extras(problem, stage)
        layers = slice(stage.first_layer, stage.first_layer + stage.layers)
        forward.append(sum(option.forward_s[layers]) + sum(extra.forward_s for extra in extras))
        backward.append(sum(option.backward_s[layers]) + sum(extra.backward_s for extra in extras))
        update.append(sum(option.update_s[layers]) + sum(extra.update_s for extra in extras))
    kinds = [problem.options[stage.option].device_type for stage in stages]
    transfers = tuple(problem.transfer_s[front][behind] for front, behind in pairwise(kinds))
    return StageTimes(tuple(forward), tuple(backward), transfers, max(update))


def _extras(problem: PipelineProblem, stage: PlacedStage) -> tuple[Extra, ...]:
    option = problem.options[stage.option]
    first = (option.first,) if stage.first_layer == 0 else ()
    last = (option.last,) if stage.first_layer + stage.layers == problem.layers else ()
    return (option.every, *first, *last)


def held_bytes(problem: PipelineProblem, stage: PlacedStage, behind: int) -> int:
    """Memory that one device of a stage needs under 1F1B.

    Parameters
    ----------
    problem : PipelineProblem
    stage : PlacedStage
    behind : int
        Stages behind it.

    Returns
    -------
    int
        [bytes].

    Notes
    -----
    ::

        held + min(M, behind + 1) kept,    of its layers and of what it does beside them

    References
    ----------
    Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1: micro-batches in flight.
    """
    option = problem.options[stage.option]
    layers = slice(stage.first_layer, stage.first_layer + stage.layers)
    flying = min(problem.micro_batches, behind + 1)
    extra = sum(extra.held_bytes + flying * extra.kept_bytes for extra in _extras(problem, stage))
    return sum(option.held_bytes[layers]) + flying * sum(option.kept_bytes[layers]) + extra


def fits(problem: PipelineProblem, stages: Sequence[PlacedStage]) -> bool:
    """Whether no device of a plan holds more than it can."""
    behind = range(len(stages) - 1, -1, -1)
    return all(
        held_bytes(problem, stage, number) <= problem.options[stage.option].capacity_bytes
        for stage, number in zip(stages, behind, strict=True)
    )
