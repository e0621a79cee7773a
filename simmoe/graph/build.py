"""One training iteration of a scenario as a task graph.

Devices that do identical work are simulated once (a rank class), so the graph grows with stages x micro-batches x
layers, not with devices. A stage that spans unlike accelerators has one class for each; their shared collectives wait
for all of them. So it is with devices that faults make unlike.
"""

from collections.abc import Sequence

from simmoe.cost.gradients import move_gradients
from simmoe.cost.model import StageCost
from simmoe.graph.actions import micro_batches, stage_actions
from simmoe.graph.blocking import with_blocking_launches, with_receive
from simmoe.graph.classes import DeviceClass, device_classes
from simmoe.graph.fsdp import beside_collectives, sharding_of, sharing_the_port, with_sharded_parameters
from simmoe.graph.moved_gradients import with_moved_gradients
from simmoe.graph.multiprocessors import exchange_multiprocessors, sharding_share
from simmoe.graph.passes import Pass, Settings, backward_pass, forward_pass
from simmoe.graph.ranks import RankClass, StepGraph
from simmoe.graph.repeats import Repeats, StageWork
from simmoe.graph.schedules import Action, Kind
from simmoe.graph.skew import with_skew
from simmoe.graph.split import split_backward
from simmoe.graph.stage_settings import send_operator, stage_settings
from simmoe.graph.stamp import RankPlan, stamp
from simmoe.graph.step_ends import Bucket, buckets, step_ends
from simmoe.graph.template import OperationTable, Template, make_template
from simmoe.graph.zebra_step import build_zebra_step
from simmoe.specs.scenario import Scenario


def build_step(scenario: Scenario, *, fold: bool = True, contention: bool = True) -> StepGraph:
    """Build the task graph of one iteration.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan.
    fold : bool
        Simulate devices that do the same once; False gives every device its own rank (for tests: the times are equal).
    contention : bool
        Slow down what shares multiprocessors or the network port; False where the engine divides them itself.

    Returns
    -------
    StepGraph
    """
    table, repeats = OperationTable(), Repeats(scenario.model)
    count, stages = micro_batches(scenario), scenario.plan.stages
    plain: dict[int, list[tuple[RankClass, RankPlan]]] = {}
    for number, parts in enumerate(device_classes(scenario.plan, scenario.cluster, fold=fold)):
        if stages[number].experts is not None:
            continue
        actions = stage_actions(scenario.plan, number, count)
        for part in parts:
            accelerator = scenario.cluster.groups[part.group].node.accelerator.id
            rank = RankClass(number, accelerator, part.devices, part.first)
            settings = stage_settings(scenario, stages[number])
            if contention:
                share = _exchange_share(scenario, part.group)
                settings = settings._replace(contention=True, exchange_share=share)
            made = _rank_plan(scenario, number, part, settings, actions, table, repeats)
            plain.setdefault(number, []).append((rank, made))
    if len(plain) < len(stages):
        return build_zebra_step(scenario, plain, table, contention=contention)
    ranks, plans = zip(*(pair for made in plain.values() for pair in made), strict=True)
    return with_skew(StepGraph(stamp(plans, table.operations), ranks, table.operators), scenario)


def _rank_plan(
    scenario: Scenario,
    number: int,
    part: DeviceClass,
    settings: Settings,
    actions: tuple[Action, ...],
    table: OperationTable,
    repeats: Repeats,
) -> RankPlan:
    """Everything about one rank class that stamping needs."""
    stage = scenario.plan.stages[number]
    cost = StageCost(scenario, number, part.group, part.first)
    cost.share(repeats.seconds)
    settings = _beside_sharding(settings, scenario, part.group, cost)
    needed = sorted({(action.kind, action.chunk) for action in actions})
    sends = tuple(
        send_operator(scenario, number, chunk, backward=backward)
        for chunk in stage.chunks
        for backward in (False, True)
    )
    work = repeats.work(
        stage,
        (tuple(needed), sends, settings[1:], cost.likeness),
        lambda: _stage_work(scenario, number, needed, settings, cost, table),
    )
    split = bool(part.teams)
    shared = frozenset(kind for kind, shape in cost.shapes.items() if shape.size > 1 and (shape.unlike or split))
    return RankPlan(
        stage=number,
        span=(part.spans[0][0], part.spans[-1][1]),
        places=tuple((chunk.replica, chunk.position) for chunk in stage.chunks),
        actions=actions,
        templates=work.templates,
        ends=work.ends,
        before=work.before,
        after=work.after,
        shared=shared - {"pp"},
        overlap_gradients=scenario.plan.overlap_grad_reduce,
        spans=part.spans,
        teams=part.teams,
    )


def _beside_sharding(settings: Settings, scenario: Scenario, group: int, cost: StageCost) -> Settings:
    """The settings with the multiprocessors that sharded parameters keep from computing."""
    if not (settings.contention and scenario.plan.layerwise):
        return settings
    node = scenario.cluster.groups[group].node
    return settings._replace(sharding_share=sharding_share(scenario.plan, cost.shapes, node))


def _stage_work(
    scenario: Scenario,
    number: int,
    needed: Sequence[tuple[Kind, int]],
    settings: Settings,
    cost: StageCost,
    table: OperationTable,
) -> StageWork:
    """What a rank of a stage does: its passes, and what frames them."""
    stage = scenario.plan.stages[number]
    apart = scenario.training.software.weight_gradients != "fused"
    layers = buckets(scenario.model, stage) if scenario.plan.layerwise or apart else []
    templates = {key: _template(scenario, number, key, settings, cost, table, layers) for key in needed}
    ends = step_ends(scenario, stage, cost.shapes)
    before, after = (make_template(part, None, cost.seconds, table) for part in (ends.before, ends.after))
    return StageWork(templates, ends, before, after)


def _template(
    scenario: Scenario,
    number: int,
    key: tuple[Kind, int],
    settings: Settings,
    cost: StageCost,
    table: OperationTable,
    layers: Sequence[Bucket],
) -> Template:
    """The template of one kind of pass through one chunk of a stage, whose weights stand in `layers`."""
    kind, place = key
    backward, plan, software = kind is not Kind.FORWARD, scenario.plan, scenario.training.software
    chunk = plan.stages[number].chunks[place]
    passed = _pass(scenario, number, key, settings, cost, [bucket for bucket in layers if bucket.chunk == place])
    if software.blocking_launches:
        passed = with_blocking_launches(passed)
    send = None
    if kind is not Kind.WEIGHT_GRADIENT:
        send = send_operator(scenario, number, chunk, backward=backward)
        received = send_operator(scenario, number, chunk, backward=not backward)
        if software.blocking_transfers and received is not None:
            passed = with_receive(passed, received)
    template = make_template(passed, send, cost.seconds, table, settings.exchange_share)
    if plan.layerwise and settings.contention:
        return beside_collectives(sharing_the_port(template, cost.shapes), settings.sharding_share)
    return template


def _pass(
    scenario: Scenario,
    number: int,
    key: tuple[Kind, int],
    settings: Settings,
    cost: StageCost,
    layers: Sequence[Bucket],
) -> Pass:
    """One kind of pass through one chunk of a stage, with what its layers do to their weights and gradients."""
    kind, place = key
    backward, plan, training = kind is not Kind.FORWARD, scenario.plan, scenario.training
    chunk = plan.stages[number].chunks[place]
    passed = backward_pass(chunk, settings) if backward else forward_pass(chunk, settings)
    if kind in {Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT}:
        passed = split_backward(passed)[kind is Kind.WEIGHT_GRADIENT]
    if backward and kind is not Kind.INPUT_GRADIENT and training.software.weight_gradients != "fused":
        moves = {bucket.layer: move_gradients(bucket.weights, training) for bucket in layers}
        passed = with_moved_gradients(passed, moves)
    if plan.layerwise:
        sharding = sharding_of(layers, place, plan, training, cost.shapes, backward=backward)
        passed = with_sharded_parameters(passed, sharding, backward=backward)
    return passed


def _exchange_share(scenario: Scenario, group: int) -> float:
    """The share of an accelerator's multiprocessors that an expert exchange occupies, where it overlaps computation."""
    if not scenario.plan.overlap_moe_expert_parallel_comm:
        return 0.0
    node = scenario.cluster.groups[group].node
    return exchange_multiprocessors(scenario.plan, node) / node.accelerator.sm_count.value
