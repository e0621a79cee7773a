"""Bare pipelines for the theory tests: one task a pass, no communication unless asked for, times chosen by the test."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from simmoe.graph.passes import Pass
from simmoe.graph.schedules import Action, Kind
from simmoe.graph.stamp import Place, RankPlan, stamp
from simmoe.graph.step_ends import StepEnds
from simmoe.graph.task import Operation, TaskGraph
from simmoe.graph.template import STREAMS, Template

Schedule = Callable[[int, int, int], tuple[Action, ...]]
Placement = Callable[[int, int], tuple[Place, ...]]

OPERATIONS = (
    Operation("work", "forward", "gemm"),
    Operation("work", "backward", "gemm"),
    Operation("send", "forward", "send_recv", "pp"),
    Operation("optimizer", "optimizer", "optimizer"),
    Operation("exchange", "forward", "all_to_all", "ep"),
)
NO_STEPS = Pass((), (), {}, {})


class Times(NamedTuple):
    """Times of a chunk [s]; a whole backward pass takes both gradients.

    After the work of a forward pass comes an exchange that nothing hides but the pass it is joined with; the
    forward pass of a pair ends with the pair.
    """

    forward: float
    input_gradient: float
    weight_gradient: float
    exchange: float = 0.0

    def of(self, kind: Kind) -> float:
        """Time on the compute stream [s]."""
        whole = self.input_gradient + self.weight_gradient
        return (self.forward, whole, self.input_gradient, self.weight_gradient)[kind]

    def alone(self, kind: Kind) -> float:
        """Time of a pass that is not joined [s]."""
        return self.of(kind) + (self.exchange if kind is Kind.FORWARD else 0.0)


def looped(chunks: int) -> Placement:
    """Chunk c of stage s is virtual stage c p + s."""
    return lambda stage, stages: tuple((0, chunk * stages + stage) for chunk in range(chunks))


def v_shape(stage: int, stages: int) -> tuple[Place, ...]:
    """Down the stages with chunk 0 and back with chunk 1."""
    return ((0, stage), (0, 2 * stages - 1 - stage))


def two_ways(stage: int, stages: int) -> tuple[Place, ...]:
    """Chunk 0 of a copy that enters at stage 0, chunk 1 of one that enters at the last stage."""
    return ((0, stage), (1, stages - 1 - stage))


def template(seconds: Sequence[float], operations: Sequence[int], streams: Sequence[str], *, sends: bool) -> Template:
    """Steps one after another; what the pass waits for is needed by its first step."""
    steps = len(seconds)
    return Template(
        operation=np.array(operations, dtype=np.int32),
        stream=np.array([STREAMS.index(name) for name in streams], dtype=np.int32),
        layer=np.zeros(steps, dtype=np.int32),
        duration=np.array(seconds, dtype=np.float64),
        source=np.arange(steps - 1, dtype=np.int32),
        target=np.arange(1, steps, dtype=np.int32),
        entry=np.zeros(min(steps, 1), dtype=np.int32),
        tail=(max(0, steps - 1 - sends),),
        sends=steps - 1 if sends else None,
        groups=tuple("ep" if name == "ep" else "" for name in streams),
    )


def work(times: Times, kind: Kind, send: float | None) -> Template:
    """A pass of one kernel, with its exchange if there are any, and a transfer unless it stays on the stage."""
    backward = int(kind is not Kind.FORWARD)
    steps = [(times.of(kind), backward, "compute")]
    if times.exchange and kind is Kind.FORWARD:
        steps += [(times.exchange, 4, "ep"), (0.0, backward, "compute")]
    if times.exchange and kind in {Kind.BACKWARD, Kind.INPUT_GRADIENT}:
        steps = [(0.0, backward, "compute"), (0.0, 4, "ep"), *steps]
    if send is not None:
        steps.append((send, 2, "pp_backward" if backward else "pp_forward"))
    seconds, operations, streams = zip(*steps, strict=True)
    return template(seconds, operations, streams, sends=send is not None)


def bare(
    schedule: Schedule, placement: Placement, times: Sequence[Times], micro_batches: int, send: float = 0.0
) -> TaskGraph:
    """A pipeline of one device a stage; a transfer to another stage takes `send` [s], to the same stage nothing."""
    stages, last = len(times), last_position(placement, len(times))
    nothing = template([], [], [], sends=False)
    plans = []
    for stage in range(stages):
        places, actions = placement(stage, stages), schedule(stage, stages, micro_batches)
        passes = {}
        for kind, chunk in {(action.kind, action.chunk): None for action in actions}:
            sends = send if leaves(kind, places, chunk, last) else None
            passes[kind, chunk] = work(times[stage], kind, sends)
        plans.append(
            RankPlan(
                stage=stage,
                span=(0.0, 1.0),
                places=places,
                actions=actions,
                templates=passes,
                ends=StepEnds(NO_STEPS, NO_STEPS, (), ()),
                before=nothing,
                after=template([0.0], [3], ["compute"], sends=False),
                shared=frozenset(),
                overlap_gradients=True,
            )
        )
    return stamp(plans, OPERATIONS)


def last_position(placement: Placement, stages: int) -> int:
    """The virtual stage where micro-batches turn around."""
    return max(position for stage in range(stages) for _, position in placement(stage, stages))


def leaves(kind: Kind, places: Sequence[Place], chunk: int, last: int) -> bool:
    """Whether a pass hands its result to another stage."""
    replica, position = places[chunk]
    target = position + (1 if kind is Kind.FORWARD else -1)
    return kind is not Kind.WEIGHT_GRADIENT and 0 <= target <= last and (replica, target) not in places


def pipeline(
    schedule: Schedule, forward: Sequence[float], backward: Sequence[float], micro_batches: int, send: float = 0.0
) -> TaskGraph:
    """A pipeline of whole backward passes with the given times of a forward and a backward pass [s]."""
    stages = len(forward)
    chunks = 1 + max(action.chunk for action in schedule(0, stages, micro_batches))
    times = [Times(f, b, 0.0) for f, b in zip(forward, backward, strict=True)]
    return bare(schedule, looped(chunks), times, micro_batches, send)


def replay(
    schedule: Schedule, forward: Sequence[float], backward: Sequence[float], micro_batches: int, send: float = 0.0
) -> float:
    """The makespan of `pipeline`, one chunk a stage."""
    times = [Times(f, b, 0.0) for f, b in zip(forward, backward, strict=True)]
    return replay_bare(schedule, looped(1), times, micro_batches, send)


def replay_bare(
    schedule: Schedule, placement: Placement, times: Sequence[Times], micro_batches: int, send: float = 0.0
) -> float:
    """The makespan of `bare` by repeated relaxation over (stage, pass): shares no code with graph or engine."""
    stages = len(times)
    queues = [list(schedule(stage, stages, micro_batches)) for stage in range(stages)]
    run = _Replay(placement, times, send)
    moved = True
    while moved:
        moved = False
        for stage, queue in enumerate(queues):
            while queue and run.run(stage, queue[: 1 + queue[0].with_next]):
                del queue[: 1 + queue[0].with_next]
                moved = True
    assert not any(queues), "the schedule is stuck"
    return max(run.free)


class _Replay:
    """When each stage and each wire is free, when each pass ended and when its result was there."""

    def __init__(self, placement: Placement, times: Sequence[Times], send: float) -> None:
        stages = len(times)
        self.times, self.send, self.last = times, send, last_position(placement, stages)
        self.places = [placement(stage, stages) for stage in range(stages)]
        self.free = [0.0] * stages
        self.wire: dict[tuple[bool, int], float] = {}
        self.ended: dict[tuple[str, Place, int], float] = {}
        self.arrived: dict[tuple[str, Place, int], float] = {}

    def run(self, stage: int, actions: Sequence[Action]) -> bool:
        """Run a pass, or a joined pair, if its input is there."""
        ready = [self.ready(stage, action) for action in actions]
        if None in ready:
            return False
        ends, exchanged = [], 0.0
        if len(actions) > 1 and self.times[stage].exchange:  # the backward pass is issued first, up to its exchange
            self.free[stage] = max(self.free[stage], *(start or 0.0 for start in ready))
        for action, start in zip(actions, ready, strict=True):
            self.free[stage] = max(self.free[stage], start or 0.0) + self.times[stage].of(action.kind)
            ends.append(self.free[stage])
            if self.times[stage].exchange and action.kind is Kind.FORWARD:
                exchanged = self.free[stage] + self.times[stage].exchange
        if self.times[stage].exchange:
            self.free[stage] = max(self.free[stage], exchanged)
            ends = [self.free[stage] if a.kind is Kind.FORWARD else end for a, end in zip(actions, ends, strict=True)]
        for action, end in zip(actions, ends, strict=True):
            self.finish(stage, action, end)
        return True

    def ready(self, stage: int, action: Action) -> float | None:
        """When the input of a pass is there; None if it is not yet."""
        replica, position = place = self.places[stage][action.chunk]
        if action.kind is Kind.WEIGHT_GRADIENT:
            return self.ended.get(("gradient", place, action.micro_batch))
        if action.kind is Kind.FORWARD:
            return self.arrived.get(("forward", (replica, position - 1), action.micro_batch)) if position else 0.0
        if position == self.last:
            return self.ended.get(("forward", place, action.micro_batch))
        return self.arrived.get(("gradient", (replica, position + 1), action.micro_batch))

    def finish(self, stage: int, action: Action, end: float) -> None:
        """Note the end of a pass and send its result on, one transfer of a direction at a time."""
        if action.kind is Kind.WEIGHT_GRADIENT:
            return
        forward = action.kind is Kind.FORWARD
        key = ("forward" if forward else "gradient", self.places[stage][action.chunk], action.micro_batch)
        self.ended[key] = self.arrived[key] = end
        if leaves(action.kind, self.places[stage], action.chunk, self.last):
            sent = max(end, self.wire.get((forward, stage), 0.0)) + self.send
            self.wire[forward, stage] = self.arrived[key] = sent
