"""The order in which a pipeline stage works on its micro-batches: pure functions, no times.

Every schedule returns, for one stage, the actions its compute stream issues, first to last. `in_flight` replays
such a list and says how many micro-batches a stage must keep activations for.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from simmoe.errors import InternalError


class Kind(IntEnum):
    """What an action computes."""

    FORWARD = 0
    BACKWARD = 1
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage.

    Attributes
    ----------
    kind : Kind
        A backward pass is whole, or split into its input gradient and, any time later, its weight gradient.
    micro_batch, chunk : int
    with_next : bool
        Issued in alternation with the next action, so that the communication of one runs beneath the computation of
        the other.
    """

    kind: Kind
    micro_batch: int
    chunk: int = 0
    with_next: bool = False

    def __str__(self) -> str:
        return f"{'FBIW'[self.kind]}{self.micro_batch}.{self.chunk}{'+' if self.with_next else ''}"


def written(actions: Sequence[Action]) -> str:
    """A schedule in short: F forward, B backward, I and W its halves, micro-batch.chunk, + joined with the next."""
    return " ".join(str(action) for action in actions)


def gpipe(stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """All forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965, figure 2c).

    Backwards run in the order of the forwards. Without communication equal stages idle for (p-1)/(m+p-1) of the
    step, and every stage holds m micro-batches.

    Examples
    --------
    >>> written(gpipe(0, 2, 2))
    'F0.0 F1.0 B0.0 B1.0'
    """
    del stage, stages  # the same order on every stage
    forward = [Action(Kind.FORWARD, index) for index in range(micro_batches)]
    return tuple(forward + [Action(Kind.BACKWARD, index) for index in range(micro_batches)])


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """Warm-up forwards, then one forward and one backward in turn, then the remaining backwards.

    PipeDream-flush (Narayanan et al. 2021, arXiv 2104.04473, figure 4 top); stage s warms up with
    min(p - 1 - s, m) forwards and holds at most that many + 1 micro-batches.

    Examples
    --------
    >>> written(one_f_one_b(0, 2, 3))
    'F0.0 F1.0 B0.0 F2.0 B1.0 B2.0'
    """
    forward = [Action(Kind.FORWARD, index) for index in range(micro_batches)]
    backward = [Action(Kind.BACKWARD, index) for index in range(micro_batches)]
    return _in_turn(forward, backward, stages - 1 - stage)


def interleaved(
    stage: int, stages: int, micro_batches: int, chunks: int, group: int | None = None
) -> tuple[Action, ...]:
    """Interleaved 1F1B in Megatron-LM's order (Narayanan et al. 2021, section 2.2, figure 4 bottom).

    Parameters
    ----------
    stage, stages : int
        Pipeline stage s, of how many (p).
    micro_batches, chunks : int
        m, and v chunks a stage.
    group : int, optional
        Megatron's ``microbatch_group_size_per_vp_stage`` N, p unless given: how many micro-batches go through a chunk
        before the next chunk has its turn. p <= N <= m, and m mod N is 0 or at least p.

    Returns
    -------
    tuple of Action
        Stage s warms up with 2 (p - 1 - s) + (v - 1) N passes; then a forward and a backward pass in turn.

    Notes
    -----
    The bubble of equal stages is (p - 1) / (v m + p - 1) of the step, whatever N; it holds one pass more than it warms
    up with. Micro-batches and chunks follow ``get_schedule_table`` of Megatron-Core; the last group may be smaller.

    Examples
    --------
    >>> written(interleaved(1, 2, 2, 2))
    'F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0'
    >>> written(interleaved(0, 2, 5, 2, 3)[:7])
    'F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 B0.1'
    """
    size = stages if group is None else group
    forward, backward = _passes(micro_batches, chunks, size)
    return _in_turn(forward, backward, 2 * (stages - 1 - stage) + (chunks - 1) * size)


@lru_cache(maxsize=2)
def _passes(micro_batches: int, chunks: int, size: int) -> tuple[list[Action], list[Action]]:
    """The forward and the backward passes of every stage, in their order."""
    starts = range(0, micro_batches, size)
    groups = [range(start, min(start + size, micro_batches)) for start in starts]
    order = [(index, chunk) for part in groups for chunk in range(chunks) for index in part]
    forward = [Action(Kind.FORWARD, index, chunk) for index, chunk in order]
    return forward, [Action(Kind.BACKWARD, index, chunks - 1 - chunk) for index, chunk in order]


def _in_turn(forward: list[Action], backward: list[Action], warm_up: int) -> tuple[Action, ...]:
    """`warm_up` forwards, then a forward and a backward in turn, then what is left."""
    first = min(warm_up, len(forward))
    actions = forward[:first]
    for index in range(len(forward) - first):
        actions += [forward[first + index], backward[index]]
    return tuple(actions + backward[len(forward) - first :])


def in_flight(actions: Sequence[Action], chunks: int, weights: Sequence[float] | None = None) -> tuple[int, ...]:
    """Micro-batches of each chunk that are alive when the stage holds most at once.

    A micro-batch is alive from its forward pass to its backward pass or, where that is split, to its weight gradient.
    It counts as `weights` says of its chunk, such as the bytes it keeps there; as much in every chunk unless given.

    Raises
    ------
    InternalError
        If a micro-batch goes backward before forward, or does not go both ways exactly once.

    Examples
    --------
    >>> in_flight(one_f_one_b(0, 4, 8), 1)
    (4,)
    >>> in_flight(interleaved(0, 2, 4, 2), 2), in_flight(interleaved(0, 2, 4, 2), 2, [1.5, 1.0])
    ((3, 2), (4, 1))
    """
    alive: list[dict[int, Kind]] = [{} for _ in range(chunks)]
    weighed = [1.0] * chunks if weights is None else weights
    peak = tuple(0 for _ in range(chunks))
    seen: set[tuple[int, ...]] = set()
    for action in actions:
        part = alive[action.chunk]
        before = part.pop(action.micro_batch, None)
        if before is not _BEFORE[action.kind]:
            raise InternalError(f"schedule: {action} does not follow the pass it needs, or repeats it")
        if action.kind in _STAYS:
            part[action.micro_batch] = action.kind
        if action.kind is Kind.FORWARD:  # nothing else adds
            held = tuple(map(len, alive))
            if held not in seen:
                seen.add(held)
                peak = max(peak, held, key=lambda counts: sum(map(mul, counts, weighed)))
    if any(alive):
        raise InternalError("schedule: a micro-batch is left without its backward pass")
    return peak


# After which a micro-batch is still alive.
_STAYS = {Kind.FORWARD, Kind.INPUT_GRADIENT}
# What must have happened last to a micro-batch in a chunk before each kind of action.
_BEFORE = {
    Kind.FORWARD: None,
    Kind.BACKWARD: Kind.FORWARD,
    Kind.INPUT_GRADIENT: Kind.FORWARD,
    Kind.WEIGHT_GRADIENT: Kind.INPUT_GRADIENT,
}
