"""How long a step takes without a simulation: stages as sums over their layers, and bounds of their pipeline."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from simmoe.cost.groups import domain_of_devices
from simmoe.graph.actions import micro_batches
from simmoe.graph.stage_settings import send_operator
from simmoe.planners.pipeline_search.bounds import Stages, gpipe_s, lower_bound, tight_bound, upper_estimate
from simmoe.planners.stage_model import PartCost, StageBench, StageModel, parts_of
from simmoe.specs.plan import Chunk, Plan, Schedule
from simmoe.specs.scenario import Scenario


class Prediction(NamedTuple):
    """A step by the planners' own model.

    Attributes
    ----------
    seconds : float
        What planners expect: of 1F1B the bound L' [s].
    lower_s, upper_s : float
        Of 1F1B, the bound L and the familiar estimate U of the same stages [s]; U is no bound where transfers take
        time. Of other schedules, what is expected.
    """

    seconds: float
    lower_s: float
    upper_s: float


class StageSeconds(NamedTuple):
    """What a stage takes.

    Attributes
    ----------
    forward_s, backward_s : float
        One micro-batch [s].
    ends_s : float
        Once a step: what is seen of gathers and reductions, and the optimizer [s].
    send_s : float
        A micro-batch to the next stage [s].
    """

    forward_s: float
    backward_s: float
    ends_s: float
    send_s: float


def predict(scenario: Scenario, model: StageModel | None = None) -> Prediction:
    """The step of a plan by the planners' own model.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan, as `simmoe.planners.proposal.planned` returns it.
    model : StageModel or None
        Of the same model, training and cluster, to keep what is found.

    Returns
    -------
    Prediction

    Notes
    -----
    Of stages with f + b = t and M micro-batches, v chunks each:

    ========== ===============================================
    1f1b       L', see `pipeline_search.bounds.tight_bound`
    gpipe      sum f + (M-1) max f + sum b + (M-1) max b
    interleaved  M max t + (sum t - max t) / v
    ========== ===============================================

    with 2 sum c for transfers in the last two, and the longest end of a step of any stage. Other schedules are taken
    for 1F1B. Valid where `StageModel` is.
    """
    model = model or StageModel(scenario)
    found = [stage_seconds(scenario, number, model) for number in range(len(scenario.plan.stages))]
    forward, backward, ends, sends = ([getattr(one, name) for one in found] for name in StageSeconds._fields)
    stages, count = Stages(forward, backward, sends[:-1]), micro_batches(scenario)
    expected = _expected(scenario.plan, stages, count)
    if scenario.plan.schedule is Schedule.ONE_F_ONE_B:
        bounds = lower_bound(stages, count), upper_estimate(stages, count)
    else:
        bounds = expected, expected
    return Prediction(*(seconds + max(ends) for seconds in (expected, *bounds)))


def _expected(plan: Plan, stages: Stages, count: int) -> float:
    """The passes of a step under a schedule [s]."""
    trips = sum(stages.round_trips)
    if plan.schedule is Schedule.GPIPE:
        return gpipe_s(stages, count) + trips
    if plan.schedule is Schedule.INTERLEAVED:
        total = [f + b for f, b in zip(stages.forward_s, stages.backward_s, strict=True)]
        return count * max(total) + (sum(total) - max(total)) / len(plan.stages[0].chunks) + trips
    return tight_bound(stages, count)


def stage_seconds(scenario: Scenario, number: int, model: StageModel) -> StageSeconds:
    """What a stage takes; of unlike devices the slower ones count, for the others wait for them."""
    stage = scenario.plan.stages[number]
    devices = slice(stage.first_device, stage.first_device + stage.devices)
    groups = np.unique(domain_of_devices(scenario.cluster)[1][devices]).tolist()
    benches = [model.bench(scenario, number, group) for group in groups]
    each = [_on(bench, scenario, stage.chunks) for bench in benches]
    send = send_operator(scenario, number, stage.chunks[0], backward=False)
    send_s = max(bench.cost.seconds(send) for bench in benches) if send is not None else 0.0
    forward, backward, ends = (max(column) for column in zip(*each, strict=True))
    return StageSeconds(forward, backward, ends, send_s)


def _on(bench: StageBench, scenario: Scenario, chunks: Sequence[Chunk]) -> tuple[float, float, float]:
    """Forward, backward and the end of the step on one kind of device [s]."""
    parts = [bench.part(part) for chunk in chunks for part in parts_of(chunk, scenario.model)]
    ends = reduce(StepEnd.plus, (step_end(part, scenario.plan) for part in parts), StepEnd(0.0, 0.0, 0.0))
    return sum(part.forward_s for part in parts), sum(part.backward_s for part in parts), ends.seconds


class StepEnd(NamedTuple):
    """What is seen of the ends of a step.

    Attributes
    ----------
    serial_s : float
        What adds up over the parts of a stage [s].
    gather_s, reduce_s : float
        The longest gather and reduction of a part: the first of the one and the last of the other hide nowhere [s].
    """

    serial_s: float
    gather_s: float
    reduce_s: float

    def plus(self, other: "StepEnd") -> "StepEnd":
        """Of both parts together."""
        return StepEnd(
            self.serial_s + other.serial_s,
            max(self.gather_s, other.gather_s),
            max(self.reduce_s, other.reduce_s),
        )

    @property
    def seconds(self) -> float:
        """The sum [s]."""
        return sum(self)


def step_end(part: PartCost, plan: Plan) -> StepEnd:
    """What a part of a stage adds to the end of its step; hidden communication counts where it outlasts the pass."""
    reduce_s = max(0.0, part.reduce_s - part.backward_s) if plan.overlap_grad_reduce else part.reduce_s
    gather_s = max(0.0, part.gather_s - part.forward_s)
    seen = part.reduce_s - reduce_s if plan.overlap_grad_reduce else 0.0
    return StepEnd(part.update_s + reduce_s + gather_s, part.gather_s - gather_s, seen)
