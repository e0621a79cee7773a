"""What must hold for zebra parallelism: the uniform form beside the cluster, then the explicit stages."""

from collections.abc import Callable
from operator import attrgetter

from simmoe.specs.expand import moe_layers
from simmoe.specs.plan import Plan, Schedule, Stage, Zebra
from simmoe.specs.rules import divides, rule
from simmoe.specs.scenario import Scenario
from simmoe.specs.stage_rules import stage_problems

_SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.GPIPE)


@rule("plan", "zebra")
def one_form_of_zebra(plan: Plan) -> str | None:
    """Explicit stages say themselves where their experts stand."""
    if plan.zebra is None or not plan.stages or "zebra" not in plan.model_fields_set:
        return None
    return "given beside stages, remove one of the two: stages name their expert devices under experts"


@rule("scenario", "plan.zebra")
def zebra_needs_experts(scenario: Scenario) -> str | None:
    """Without experts there is nothing to put apart."""
    if scenario.plan.zebra is None or scenario.model.moe is not None:
        return None
    return f"{scenario.model.id} has no experts, remove it"


@rule("scenario", "plan.zebra")
def zebra_groups_exist(scenario: Scenario) -> str | None:
    """The node groups that devices are taken from exist and are large enough."""
    zebra, plan, groups = scenario.plan.zebra, scenario.plan, scenario.cluster.groups
    if zebra is None:
        return None
    wanted: dict[int, int] = {}
    for index, devices in (
        (zebra.attention_group, zebra.attention_devices),
        (zebra.expert_group, zebra.expert_devices),
    ):
        if index >= len(groups):
            return f"the cluster has {len(groups)} node groups, counted from 0 (got {index}), choose one of them"
        wanted[index] = wanted.get(index, 0) + devices * zebra.groups * plan.pipeline_parallel
    for index, devices in wanted.items():
        if devices > groups[index].devices:
            return (
                f"{devices} devices are wanted of node group {index}, which has {groups[index].devices}, "
                "use fewer devices, groups or stages"
            )
    return None


@rule("scenario", "plan.data_parallel")
def zebra_data_parallel(scenario: Scenario) -> str | None:
    """The ranks that share the batch are the attention devices."""
    zebra, plan = scenario.plan.zebra, scenario.plan
    if zebra is None or plan.data_parallel is None:
        return None
    count, width = zebra.attention_devices * zebra.groups, plan.tensor_parallel * plan.context_parallel
    if plan.data_parallel * width == count:
        return None
    return (
        f"data_parallel {plan.data_parallel} x tensor_parallel x context_parallel {width} are not the {count} "
        "attention devices of a stage, remove it"
    )


@rule("scenario", "cluster.faults")
def zebra_keeps_its_nodes(scenario: Scenario) -> str | None:
    """A job of zebra groups does not shrink by itself: which groups go is for whoever plans."""
    if scenario.plan.zebra is None or not any(fault.failed for fault in scenario.cluster.faults):
        return None
    return "zebra parallelism does not go on without a node, take it out of the cluster and plan anew"


@rule("scenario", "plan.zebra.moved_experts")
def zebra_moves_of_every_layer(scenario: Scenario) -> str | None:
    """Moved experts are given for every MoE layer."""
    zebra, model = scenario.plan.zebra, scenario.model
    if zebra is None or not zebra.moved_experts:
        return None
    extra = model.mtp_layers if scenario.training.mtp and model.layer(model.num_layers - 1).moe else 0
    layers = sum(layer.moe for layer in model.layers) + extra
    if len(zebra.moved_experts) == layers:
        return None
    return f"{len(zebra.moved_experts)} numbers for {layers} MoE layers, write one for each"


def _assignment_sentence(zebra: Zebra, num_experts: int) -> str | None:
    """What is wrong with the experts that devices hold."""
    attention, experts = zebra.attention_devices, zebra.expert_devices
    sentence = divides(experts, "expert_devices", num_experts, "num_experts")
    if sentence is not None:
        return sentence
    each, most = num_experts // experts, max(zebra.moved_experts, default=0)
    if most >= each:
        return f"moved_experts {most} leaves an expert device without one, it holds {each}, write at most {each - 1}"
    odd = next((moved for moved in zebra.moved_experts if moved * experts % attention), None)
    if odd is not None:
        return (
            f"moved_experts {odd} x expert_devices {experts} do not divide over {attention} attention devices, "
            "move as many that each of them gets the same number"
        )
    return None


@rule("scenario", "plan.zebra")
def zebra_assigns_whole_experts(scenario: Scenario) -> str | None:
    """Every device of a side holds the same number of experts."""
    zebra, moe = scenario.plan.zebra, scenario.model.moe
    return None if zebra is None or moe is None else _assignment_sentence(zebra, moe.num_experts)


def _uniform_form(stage: Stage) -> Zebra | None:
    """The zebra group of an explicit stage."""
    apart = stage.experts
    if apart is None or stage.devices % apart.groups or apart.devices % apart.groups:
        return None
    return Zebra(
        attention_devices=stage.devices // apart.groups,
        expert_devices=apart.group_devices,
        moved_experts=apart.moved_experts,
    )


@rule("expanded", "plan.stages")
def zebra_stages_are_whole(scenario: Scenario) -> str | None:
    """An explicit zebra stage has whole groups, MoE layers, and whole experts on each device."""
    moe = scenario.model.moe
    for number, stage in enumerate(scenario.plan.stages):
        if stage.experts is None or moe is None:
            continue
        zebra = _uniform_form(stage)
        if zebra is None:
            return f"stage {number}: its devices do not divide into {stage.experts.groups} zebra groups, change groups"
        layers = [layer for chunk in stage.chunks for layer in moe_layers(scenario.model, chunk)]
        if not layers:
            return f"stage {number}: has no MoE layer, remove its experts"
        if stage.experts.moved_experts and len(stage.experts.moved_experts) != len(layers):
            given = len(stage.experts.moved_experts)
            return f"stage {number}: {given} moved_experts for {len(layers)} MoE layers, write one for each"
        sentence = _assignment_sentence(zebra, moe.num_experts)
        if sentence is not None:
            return f"stage {number}: {sentence}"
    return None


@rule("expanded", "plan.stages")
def zebra_stages_fit_model(scenario: Scenario) -> str | None:
    """The sizes of zebra stages, which may just have been filled in, divide what they cut."""
    zebra = [stage for stage in scenario.plan.stages if stage.experts is not None]
    return next((text for stage in zebra for text in stage_problems(scenario, stage) if text is not None), None)


def _cut(scenario: Scenario, size: Callable[[Plan | Stage], int]) -> bool:
    """Whether a parallel size is more than 1 in the plan or in any of its zebra stages."""
    zebra = (stage for stage in scenario.plan.stages if stage.experts is not None)
    parts: tuple[Plan | Stage, ...] = (scenario.plan, *zebra)
    return any(size(one) > 1 for one in parts)


def _conflict(scenario: Scenario) -> tuple[str, str] | None:
    """The first thing that zebra parallelism does not go with, and what to write instead."""
    plan, stages = scenario.plan, scenario.plan.stages
    zebra = [stage for stage in stages if stage.experts is not None]
    tensor = _cut(scenario, attrgetter("tensor_parallel"))
    found = (
        (plan.schedule not in _SCHEDULES, f"schedule {plan.schedule}", "1f1b or gpipe"),
        (any(len(stage.chunks) > 1 for stage in stages), "virtual stages", "one chunk a stage"),
        (_cut(scenario, attrgetter("expert_tensor_parallel")), "expert_tensor_parallel", "1"),
        (_cut(scenario, attrgetter("expert_parallel")), "expert_parallel", "1: expert_devices say it"),
        (tensor and not plan.sequence_parallel, "tensor_parallel without sequence_parallel", "sequence_parallel: true"),
        (plan.dispatcher != "alltoall", f"dispatcher {plan.dispatcher}", "alltoall"),
        (plan.layerwise, f"sharding {plan.sharding}", "zero1 or none"),
        (plan.sharding_group is not None, "sharding_group", "nothing"),
        (plan.overlap_moe_expert_parallel_comm, "overlap_moe_expert_parallel_comm", "false"),
        (plan.overlap_dispatch_backward_with_experts_wgrad, "overlap_dispatch_backward_with_experts_wgrad", "false"),
        (any(stage.recompute.num_layers is not None for stage in zebra), "recompute.num_layers", "nothing"),
        (scenario.routing.skewed, f"routing {scenario.routing.kind}", "balanced"),
        (bool(scenario.cluster.faults), "faults", "none"),
        (scenario.training.software.blocking_launches, "a stack of blocking launches", "another stack"),
        (scenario.training.software.blocking_transfers, "a stack of blocking transfers", "another stack"),
        (scenario.training.software.weight_gradients != "fused", "a stack that moves gradients", "another stack"),
    )
    return next(((what, instead) for wrong, what, instead in found if wrong), None)


@rule("expanded", "plan")
def zebra_goes_with(scenario: Scenario) -> str | None:
    """What zebra parallelism is modelled together with."""
    if all(stage.experts is None for stage in scenario.plan.stages):
        return None
    conflict = _conflict(scenario)
    return None if conflict is None else f"zebra parallelism does not go with {conflict[0]}, write {conflict[1]}"
