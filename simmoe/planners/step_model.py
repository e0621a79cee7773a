"""How long a step takes without a simulation: stages as sums over their layers, and bounds of their pipeline."""

from functools import reduce
from typing import NamedTuple

import numpy as np

from simmoe.cost.groups import domain_of_devices
from simmoe.graph.actions import micro_batches
from simmoe.graph.stage_settings import send_operator
from simmoe.planners.interleaved_replay import StageChunks, interleaved_s
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
    Of stages with f + b = t and M micro-batches:

    ========== ===============================================
    1f1b       L', see `pipeline_search.bounds.tight_bound`
    gpipe      sum f + (M-1) max f + sum b + (M-1) max b
    interleaved  `interleaved_replay.interleaved_s` of chunks
    ========== ===============================================

    with 2 sum c for transfers of gpipe, and the longest end of a step of any stage. Other schedules are taken
    for 1F1B. Valid where `StageModel` is.
    """
    model = model or StageModel(scenario)
    found = [stage_seconds(scenario, number, model) for number in range(len(scenario.plan.stages))]
    schedule, count, ends = scenario.plan.schedule, micro_batches(scenario), max(stage.ends_s for stage in found)
    if schedule is Schedule.INTERLEAVED:
        return Prediction(*[interleaved_s(scenario, found)] * 3)
    stages = Stages(
        [sum(stage.forward_s) for stage in found],
        [sum(stage.backward_s) for stage in found],
        [stage.transfer_s for stage in found[:-1]],
    )
    if schedule is Schedule.GPIPE:
        return Prediction(*[gpipe_s(stages, count) + sum(stages.round_trips) + ends] * 3)
    bounds = (tight_bound(stages, count), lower_bound(stages, count), upper_estimate(stages, count))
    return Prediction(*(seconds + ends for seconds in bounds))


def stage_seconds(scenario: Scenario, number: int, model: StageModel) -> StageChunks:
    """What a stage takes; of unlike devices the slower ones count, for the others wait for them."""
    stage = scenario.plan.stages[number]
    devices = slice(stage.first_device, stage.first_device + stage.devices)
    groups = np.unique(domain_of_devices(scenario.cluster)[1][devices]).tolist()
    benches = [model.bench(scenario, number, group) for group in groups]
    each = [[_on(bench, scenario, chunk) for chunk in stage.chunks] for bench in benches]
    send = send_operator(scenario, number, stage.chunks[0], backward=False)
    return StageChunks(
        forward_s=np.max([[chunk.forward_s for chunk in chunks] for chunks in each], axis=0).tolist(),
        backward_s=np.max([[chunk.backward_s for chunk in chunks] for chunks in each], axis=0).tolist(),
        transfer_s=max(bench.cost.seconds(send) for bench in benches) if send is not None else 0.0,
        ends_s=max(reduce(StepEnd.plus, (chunk.end for chunk in chunks)).seconds for chunks in each),
    )


def _on(bench: StageBench, scenario: Scenario, chunk: Chunk) -> "_ChunkSeconds":
    """A chunk on one kind of device."""
    parts = [bench.part(part) for part in parts_of(chunk, scenario.model)]
    end = reduce(StepEnd.plus, (step_end(part, scenario.plan) for part in parts), StepEnd(0.0, 0.0, 0.0))
    return _ChunkSeconds(sum(part.forward_s for part in parts), sum(part.backward_s for part in parts), end)


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


class _ChunkSeconds(NamedTuple):
    """One micro-batch there and back [s], and what is seen of the end of the step."""

    forward_s: float
    backward_s: float
    end: StepEnd
