"""What stock Megatron-LM cannot be told to do, reason by reason."""

from collections.abc import Callable, Iterator

from simmoe.errors import SpecError
from simmoe.specs.hardware import Dtype
from simmoe.specs.megatron.hosts import hosts_of
from simmoe.specs.megatron.rules import problems
from simmoe.specs.megatron.to_arguments import DISPATCHERS, blackwell, to_arguments
from simmoe.specs.plan import Schedule, Stage
from simmoe.specs.scenario import Scenario

_SCHEDULES = {Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED}
_SIZES: tuple[tuple[str, Callable[[Stage], int]], ...] = (
    ("devices", lambda stage: stage.devices),
    ("tensor_parallel", lambda stage: stage.tensor_parallel),
    ("context_parallel", lambda stage: stage.context_parallel),
    ("data_parallel", lambda stage: stage.data_parallel),
    ("expert_parallel", lambda stage: stage.expert_parallel),
    ("expert_tensor_parallel", lambda stage: stage.expert_tensor_parallel),
)


def reasons(scenario: Scenario) -> tuple[str, ...]:
    """Why stock Megatron-LM cannot run a scenario, a sentence each; empty if it can.

    Parameters
    ----------
    scenario : Scenario
        With its plan expanded.

    Notes
    -----
    Megatron-Core 0.19.2 knows one tensor-, context-, data- and expert-parallel size for all stages, equal
    micro-batches, one recomputation, experts in equal consecutive parts, and the schedules 1F1B and interleaved 1F1B.
    Of unlike GPUs it knows nothing: which of them hold a stage is the order of hosts, how many layers they get the
    pipeline layout.
    """
    found = (*_of_stages(scenario), *_of_plan(scenario), *_of_training(scenario))
    return found or tuple(_of_arguments(scenario))


def world_of(scenario: Scenario) -> int:
    """Devices that the stages of a plan use."""
    return sum(part.devices for stage in scenario.plan.stages for part in stage.roles)


def _of_stages(scenario: Scenario) -> Iterator[str]:
    stages = scenario.plan.stages
    if any(stage.experts is not None for stage in stages):
        yield "zebra stages: Megatron-LM keeps attention and experts of a layer on the same GPUs"
        return
    for name, read in _SIZES:
        sizes = sorted({read(stage) for stage in stages})
        if len(sizes) > 1:
            shown = " and ".join(map(str, sizes[:3]))
            yield f"stages of unlike {name} ({shown}): Megatron-LM has one size for all pipeline stages"
    if len({stage.recompute for stage in stages}) > 1:
        yield "stages that recompute differently: Megatron-LM has one --recompute-granularity for all pipeline stages"


def _of_plan(scenario: Scenario) -> Iterator[str]:
    plan = scenario.plan
    if plan.schedule not in _SCHEDULES:
        yield f"schedule {plan.schedule}: Megatron-LM knows 1f1b and interleaved"
    elif any(c.position != i * len(plan.stages) + n for n, s in enumerate(plan.stages) for i, c in enumerate(s.chunks)):
        yield "virtual stages out of order: Megatron-LM deals them out to the stages in turns"
    if plan.dispatcher not in DISPATCHERS:
        yield f"dispatcher {plan.dispatcher}: Megatron-LM knows {', '.join(DISPATCHERS)}"
    if plan.a2a_ffn_overlap_degree > 1:
        yield f"a2a_ffn_overlap_degree {plan.a2a_ffn_overlap_degree}: Megatron-LM does not cut exchanges into pieces"
    if plan.overlap_param_gather and not plan.overlap_grad_reduce and plan.sharding in {"zero1", "zero3"}:
        yield "overlap_param_gather without overlap_grad_reduce: Megatron-LM overlaps the gather only with both"
    if plan.optimizer_offload_fraction and plan.sharding != "zero1":
        yield f"optimizer_offload_fraction with sharding {plan.sharding}: Megatron-LM offloads only the shards of zero1"
    if plan.sharding == "zero2" and plan.sharding_group is not None:
        yield "sharding zero2 in groups: Megatron-LM has groups of FSDP only with zero3"
    if scenario.routing.expert_replicas:
        yield f"routing.expert_replicas {scenario.routing.expert_replicas}: Megatron-LM holds every expert once a group"


def _of_training(scenario: Scenario) -> Iterator[str]:
    model, training = scenario.model, scenario.training
    if model.encoder_layers:
        yield f"{model.id} has an encoder: only decoder models are exported"
    if training.gradient_dtype == "bf16" and training.precision.activation_dtype in {Dtype.FP32, Dtype.TF32}:
        yield "gradient_dtype bf16 in full precision: Megatron-LM keeps gradients in fp32 there"
    if training.fp8_attention:
        yield "fp8_attention: no flag of Megatron-LM sets it"


def _of_arguments(scenario: Scenario) -> Iterator[str]:
    """What Megatron-LM itself would refuse."""
    export = to_arguments(scenario)
    environment = export.environment
    found = problems(export.arguments, world_of(scenario), environment, blackwell=blackwell(scenario))
    yield from (problem.sentence for problem in found)
    try:
        hosts_of(scenario)
    except SpecError as error:
        yield error.problems[0]
