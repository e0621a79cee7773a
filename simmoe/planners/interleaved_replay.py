"""The interleaved schedule on the seconds of whole chunks: a step without its operators."""

from collections.abc import Sequence
from typing import NamedTuple

from simmoe.graph.actions import micro_batches, stage_actions
from simmoe.graph.schedules import Action, Kind
from simmoe.specs.scenario import Scenario


class StageChunks(NamedTuple):
    """Seconds of a stage: of each of its chunks one micro-batch there and back, to the next stage, at the end."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    transfer_s: float
    ends_s: float


def interleaved_s(scenario: Scenario, stages: Sequence[StageChunks]) -> float:
    """A step under the interleaved schedule.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan of that schedule.
    stages : sequence of StageChunks
        First to last.

    Returns
    -------
    float
        When the last stage has ended its step [s].

    Notes
    -----
    Every pass is placed in Megatron-LM's order (`simmoe.graph.schedules.interleaved`) as soon as its stage is free and
    its input has arrived; transfers of a stage in one direction take turns. ``2 p v M`` steps of interpreted code.
    """
    count = micro_batches(scenario)
    orders = [stage_actions(scenario.plan, number, count) for number in range(len(stages))]
    ends = _replay(orders, stages)
    return max(end + stage.ends_s for end, stage in zip(ends, stages, strict=True))


def _replay(orders: Sequence[Sequence[Action]], stages: Sequence[StageChunks]) -> list[float]:
    """When each stage has done all its passes [s]."""
    known: dict[tuple[Kind, int, int], float] = {}
    free, place = [0.0] * len(stages), [0] * len(stages)
    wires = [0.0] * len(stages), [0.0] * len(stages)  # when the next transfer up, and down, may begin
    waiting = list(range(len(stages)))
    while waiting:
        stage = waiting.pop()
        for action in orders[stage][place[stage] :]:
            needed = _needed(action, stage, stages)
            arrived = 0.0 if needed is None else known.get(needed)
            if arrived is None:
                break
            forward = action.kind is Kind.FORWARD
            one = stages[stage]
            seconds = (one.forward_s if forward else one.backward_s)[action.chunk]
            end = free[stage] = max(free[stage], arrived) + seconds
            place[stage] += 1
            trip = one.transfer_s if forward else stages[stage - 1].transfer_s
            wires[forward][stage] = there = max(end, wires[forward][stage]) + trip
            known[action.kind, action.micro_batch, action.chunk * len(stages) + stage] = there
            other = (stage + (1 if forward else -1)) % len(stages)
            if other not in waiting:
                waiting.insert(0, other)
    return free


def _needed(action: Action, stage: int, stages: Sequence[StageChunks]) -> tuple[Kind, int, int] | None:
    """The pass whose output a pass takes; None for what comes from the stage itself."""
    count, chunks = len(stages), len(stages[0].forward_s)
    position = action.chunk * count + stage
    if action.kind is Kind.FORWARD:
        return (Kind.FORWARD, action.micro_batch, position - 1) if position else None
    last = position == count * chunks - 1
    return None if last else (Kind.BACKWARD, action.micro_batch, position + 1)
