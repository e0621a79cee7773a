"""What a 1F1B pipeline of unlike stages takes: its exact replay, bounds on it, and closed forms where there are any.

Throughout f_s and b_s are the seconds of one micro-batch on stage s = 0..p-1, t = f + b, c_s is a transfer from stage s
to the next one, which its gradient takes again on the way back, and w_s = min(M-1, p-1-s) is how many micro-batches
stage s is ahead when its first gradient arrives.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Stages(NamedTuple):
    """Seconds of one micro-batch on each stage, first to last, and of each transfer to the next stage [s]."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    transfer_s: Sequence[float] = ()

    @property
    def round_trips(self) -> list[float]:
        """2c between each stage and the next [s]; no transfers given = none take time."""
        gaps = len(self.forward_s) - 1
        return [2.0 * seconds for seconds in self.transfer_s] or [0.0] * gaps


def upper_estimate(stages: Stages, micro_batches: int) -> float:
    """The familiar estimate U, an upper bound of the step if no transfer takes time.

    Parameters
    ----------
    stages : Stages
    micro_batches : int
        M.

    Returns
    -------
    float
        [s].

    Notes
    -----
    ::

        U = sum t + 2 sum c + (M-1) max t

    Exact if all stages are equal or the last is the slowest. With transfers it is not a bound: at most w_s + 1
    micro-batches are in flight, and a round trip that they do not fill costs more than is counted here.

    Examples
    --------
    >>> upper_estimate(Stages([1.0, 2.0], [2.0, 4.0]), 4)
    27.0
    """
    total = [f + b for f, b in zip(stages.forward_s, stages.backward_s, strict=True)]
    return sum(total) + sum(stages.round_trips) + (micro_batches - 1) * max(total)


def lower_bound(stages: Stages, micro_batches: int) -> float:
    """The bound L: on some stage all M micro-batches come one after another.

    Parameters
    ----------
    stages : Stages
    micro_batches : int

    Returns
    -------
    float
        [s].

    Notes
    -----
    ::

        L = max_s  sum_{i<s} (t_i + 2 c_i) + M t_s + max(0, sum_{i>s} (t_i + 2 c_{i-1}) - w_s f_s)

    Before stage s works, the first micro-batch passes all in front of it, and its last gradient passes them again;
    the w_s forwards that it is ahead hide what the first one still needs behind it.

    Examples
    --------
    The first stage is the slower one: 4 times 6 s, and 3 s less the 2 s of one forward.

    >>> lower_bound(Stages([2.0, 1.0], [4.0, 2.0]), 4)
    25.0
    """
    return _bound(stages, micro_batches, tight=False)


def tight_bound(stages: Stages, micro_batches: int) -> float:
    """The bound L', which also sees that at most w_s + 1 micro-batches are in flight.

    Parameters
    ----------
    stages : Stages
    micro_batches : int

    Returns
    -------
    float
        [s].

    Notes
    -----
    ::

        M - 1 = q (w_s + 1) + r,    B_s = sum_{i>s} (t_i + 2 c_{i-1})
        X_s = max( M t_s + max(0, B_s - w_s f_s),  r f_s + (q+1) (t_s + B_s) )
        L'  = max_s  sum_{i<s} (t_i + 2 c_i) + X_s

    Micro-batch i + w_s + 1 starts on stage s only when the gradient of i has left it, so each such chain of q + 1
    takes as many round trips. L <= L' <= replay.

    Only round trips to the last stage are counted, and no wire's own queue: one transfer of 1.5 forwards between
    nearly equal stages makes L' as little as 0.76 of the replay, so plans with slow transfers must be replayed.

    Examples
    --------
    Two stages of 1 + 1 s and a transfer of 1 s: with two in flight, five micro-batches need three round trips of 6 s,
    where L counts 2 + 2 s and then 5 * 2 s.

    >>> slow = Stages([1.0, 1.0], [1.0, 1.0], [1.0])
    >>> lower_bound(slow, 5), tight_bound(slow, 5), replay(slow, 5)
    (14.0, 18.0, 18.0)
    """
    return _bound(stages, micro_batches, tight=True)


def _bound(stages: Stages, micro_batches: int, *, tight: bool) -> float:
    total = [f + b for f, b in zip(stages.forward_s, stages.backward_s, strict=True)]
    trips = stages.round_trips
    before = list(accumulate((t + trip for t, trip in zip(total, [*trips, 0.0], strict=True)), initial=0.0))
    best = 0.0
    for stage, (forward, t) in enumerate(zip(stages.forward_s, total, strict=True)):
        behind = sum(total[stage + 1 :]) + sum(trips[stage:])
        ahead = min(micro_batches - 1, len(total) - 1 - stage)
        own = micro_batches * t + max(0.0, behind - ahead * forward)
        if tight:
            rounds, rest = divmod(micro_batches - 1, ahead + 1)
            own = max(own, rest * forward + (rounds + 1) * (t + behind))
        best = max(best, before[stage] + own)
    return best


def equal_stages_s(stage_s: float, stages: int, micro_batches: int) -> float:
    """Seconds of 1F1B or GPipe with equal stages and free transfers, exactly.

    Notes
    -----
    ::

        T = (M + p - 1) t

    References
    ----------
    Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1.

    Examples
    --------
    >>> equal_stages_s(3.0, 4, 8)
    33.0
    """
    return (micro_batches + stages - 1) * stage_s


def gpipe_s(stages: Stages, micro_batches: int) -> float:
    """Seconds of GPipe (all forwards, then all backwards) with unlike stages and free transfers, exactly.

    Notes
    -----
    ::

        T = sum f + (M-1) max f + sum b + (M-1) max b

    References
    ----------
    Huang et al. 2019, arXiv 1811.06965, figure 2c: the order; two flow shops, one after the other.

    Examples
    --------
    >>> gpipe_s(Stages([1.0, 2.0], [4.0, 3.0]), 3)
    22.0
    """
    more = micro_batches - 1
    forward, backward = stages.forward_s, stages.backward_s
    return sum(forward) + more * max(forward) + sum(backward) + more * max(backward)


def replay(stages: Stages, micro_batches: int) -> float:
    """Seconds of 1F1B, exactly: every pass and every transfer is placed.

    Parameters
    ----------
    stages : Stages
    micro_batches : int

    Returns
    -------
    float
        When the last pass ends [s].

    Notes
    -----
    Stage s does min(M, p-1-s) forwards, then forwards and backwards in turn, then the backwards that are left.
    Transfers of one direction between two stages take turns and hold no stage up. ``2 p M`` steps of interpreted code.

    References
    ----------
    Narayanan et al. 2021, arXiv 2104.04473, figure 4 (top): the order.

    Examples
    --------
    Equal stages take (M + p - 1) t.

    >>> replay(Stages([1.0] * 3, [2.0] * 3), 4)
    18.0
    """
    count = len(stages.forward_s)
    run = _Replay(stages)
    # Micro-batch j goes down all stages; then stage s, which is p-1-s ahead, does the backward of j - (p-1-s).
    for micro_batch in range(micro_batches + count - 1):
        if micro_batch < micro_batches:
            run.down()
        for stage in range(count - 1, -1, -1):
            if 0 <= micro_batch - (count - 1 - stage) < micro_batches:
                run.back(stage)
    return max(run.free)


class _Replay:
    """When each stage and each wire is free, and when the newest gradient of each stage was ready."""

    def __init__(self, stages: Stages) -> None:
        gaps = len(stages.forward_s) - 1
        self.forward, self.backward = list(stages.forward_s), list(stages.backward_s)
        self.transfer = list(stages.transfer_s) or [0.0] * gaps
        self.free = [0.0] * (gaps + 1)
        self.down_wire, self.up_wire = [0.0] * gaps, [0.0] * gaps
        # Of the stage behind: one gradient is under way at most when the stage in front takes it.
        self.arrived: list[list[float]] = [[] for _ in range(gaps + 1)]

    def down(self) -> None:
        """One micro-batch forward through all stages."""
        free, wire, transfer = self.free, self.down_wire, self.transfer
        ready = 0.0
        for stage, seconds in enumerate(self.forward):
            end = max(ready, free[stage]) + seconds
            free[stage] = end
            if stage < len(wire):
                ready = max(end, wire[stage]) + transfer[stage]
                wire[stage] = ready

    def back(self, stage: int) -> None:
        """The next backward pass of a stage."""
        waits = self.arrived[stage].pop(0) if stage + 1 < len(self.free) else 0.0
        end = max(waits, self.free[stage]) + self.backward[stage]
        self.free[stage] = end
        if stage:
            there = max(end, self.up_wire[stage - 1]) + self.transfer[stage - 1]
            self.up_wire[stage - 1] = there
            self.arrived[stage - 1].append(there)
