"""Which passes a pipeline stage runs in a step, and in which order."""

from collections.abc import Callable
from functools import lru_cache

from simmoe.graph.custom_schedule import ScheduleTable, check_schedule, parse_schedule
from simmoe.graph.dualpipe import dualpipe, dualpipe_v
from simmoe.graph.overlapped import overlapped
from simmoe.graph.schedules import Action, gpipe, interleaved, one_f_one_b
from simmoe.graph.zero_bubble import zb_h1, zb_v
from simmoe.specs.plan import Plan, Schedule
from simmoe.specs.scenario import Scenario


def stage_actions(plan: Plan, stage: int, micro_batches: int) -> tuple[Action, ...]:
    """The order of passes of one stage of an expanded plan."""
    stages, schedule = len(plan.stages), plan.schedule
    if schedule is Schedule.INTERLEAVED or plan.overlap_moe_expert_parallel_comm:
        chunks = len(plan.stages[stage].chunks)
        actions = interleaved(stage, stages, micro_batches, chunks, plan.microbatch_group_size)
        return overlapped(actions) if plan.overlap_moe_expert_parallel_comm else actions
    if schedule is Schedule.CUSTOM:
        return _checked_table(plan.schedule_table or "", micro_batches).actions[stage]
    return _SCHEDULES[schedule](stage, stages, micro_batches)


@lru_cache(maxsize=8)
def _checked_table(text: str, micro_batches: int) -> ScheduleTable:
    """A table of actions, read and checked as a whole."""
    table = parse_schedule(text, "plan.schedule_table")
    check_schedule(table.actions, table.places, micro_batches, "plan.schedule_table")
    return table


_SCHEDULES: dict[Schedule, Callable[[int, int, int], tuple[Action, ...]]] = {
    Schedule.GPIPE: gpipe,
    Schedule.ONE_F_ONE_B: one_f_one_b,
    Schedule.ZB_H1: zb_h1,
    Schedule.ZB_V: zb_v,
    Schedule.DUALPIPE: dualpipe,
    Schedule.DUALPIPE_V: dualpipe_v,
}


def micro_batches(scenario: Scenario) -> int:
    """Passes of a step: micro-batches of plain stages, R micro-batches each of zebra stages."""
    training = scenario.training
    return training.global_batch_size // (training.micro_batch_size * scenario.plan.widest)
