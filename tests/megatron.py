"""Launch scripts written and read back, for tests."""

from pathlib import Path

from simmoe.specs.expand import expand
from simmoe.specs.megatron.from_arguments import Imported, from_arguments
from simmoe.specs.megatron.script import launch_script
from simmoe.specs.megatron.source_file import read_source
from simmoe.specs.model import Model
from simmoe.specs.plan import Plan
from simmoe.specs.scenario import Scenario

# Of a model a launch script holds all but its names.
NAMES = {"id", "name", "source", "published_parameters"}
# The same split of layers may be written in four ways; the stages say what comes of it.
WAYS_TO_SPLIT = {
    "stage_layers": None,
    "pipeline_layout": None,
    "account_for_embedding": False,
    "account_for_loss": False,
}


def canonical(plan: Plan, *, moe: bool = True) -> Plan:
    """A plan without what has no effect on it: two plans that train in the same way become equal."""
    first = 0
    stages = []
    for stage in plan.stages:
        whole = stage.sharding_group == stage.data_parallel * stage.context_parallel
        group = None if whole else stage.sharding_group
        stages.append(stage.model_copy(update={"first_device": first, "sharding_group": group}))
        first += stage.devices
    stage = stages[0]
    changes: dict[str, object] = {"stages": tuple(stages), "sharding_group": stage.sharding_group, **WAYS_TO_SPLIT}
    for name in ("tensor", "context", "data", "expert", "expert_tensor"):
        changes[f"{name}_parallel"] = getattr(stage, f"{name}_parallel")
    changes |= {"pipeline_parallel": len(stages), "recompute": stage.recompute}
    if stage.tensor_parallel == 1:
        changes |= {"sequence_parallel": True, "tp_comm_overlap": False}
    if plan.schedule != "interleaved":
        changes["microbatch_group_size"] = None
    if not plan.optimizer_offload_fraction:
        changes["overlap_cpu_optimizer_d2h_h2d"] = True
    if plan.sharding in {"none", "zero2"}:
        changes["overlap_param_gather"] = True
    if not moe:
        changes |= {"dispatcher": "alltoall", "overlap_dispatch_backward_with_experts_wgrad": False}
    return plan.model_copy(update=changes)


def imported(scenario: Scenario, path: Path) -> Imported:
    """What is read from the script that is written for a scenario."""
    path.write_text(launch_script(scenario), encoding="utf-8")
    source = read_source(path)
    assert source.world == sum(stage.devices for stage in scenario.plan.stages)
    assert source.remarks == ()
    return from_arguments(source.arguments, source.world, source.environment)


def plan_of(found: Imported, scenario: Scenario) -> Plan:
    """The plan that was read, with its stages, on the cluster of the scenario."""
    model = Model.model_validate(found.model)
    return expand(Plan.model_validate(found.plan), model, scenario.cluster, scenario.training)


def assert_unchanged(scenario: Scenario, path: Path) -> None:
    """A scenario that is written as a launch script and read back trains the same model in the same way."""
    found = imported(scenario, path)
    moe = scenario.model.moe is not None
    assert canonical(plan_of(found, scenario), moe=moe) == canonical(scenario.plan, moe=moe)
    training = scenario.training
    for name in ("sequence_length", "micro_batch_size", "global_batch_size", "precision"):
        assert found.training[name] == getattr(training, name)
    assert found.training.get("gradient_dtype", "fp32") == training.gradient_dtype
    assert found.training.get("optimizer", "adam") == training.optimizer
    model = scenario.model if training.mtp else scenario.model.model_copy(update={"mtp_layers": 0})
    assert Model.model_validate(found.model).model_dump(exclude=NAMES) == model.model_dump(exclude=NAMES)
