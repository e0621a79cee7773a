"""The plan nearest to a given one that stock Megatron-LM can run."""

from collections.abc import Iterator, Sequence
from itertools import product

from simmoe.specs import checks
from simmoe.specs.document import Document, Position
from simmoe.specs.hardware import Dtype
from simmoe.specs.megatron.expressible import reasons
from simmoe.specs.megatron.to_arguments import DISPATCHERS, virtual_stages
from simmoe.specs.plan import Chunk, Plan, Recompute, Schedule, Stage
from simmoe.specs.scenario import Scenario

_WIDEST = 8  # most sequences of a micro-batch that is tried, where the plan's own does not divide


def nearest(scenario: Scenario) -> Scenario | None:
    """The scenario under the first plan of a list, most alike first, that Megatron-LM can run; None if there is none.

    Parameters
    ----------
    scenario : Scenario
        With its plan expanded.

    Notes
    -----
    Kept, where it is possible: the devices, the number of stages and the layers of each, virtual stages, tensor,
    context and expert parallelism of some stage, the micro-batch. Of unlike recomputation the strongest is taken
    everywhere.
    """
    plan = scenario.plan
    devices = _devices(plan)
    if devices is None:
        return None
    first, world = devices
    for stages, size in product(_stage_counts(plan, world), _micro_batches(scenario)):
        for split in _splits(scenario, stages):
            for settings in _settings(plan, split):
                for sizes in _sizes(scenario, world // stages):
                    made = _made(scenario, settings, _laid_out(split, sizes, first, world // stages, plan), size)
                    if _runs(made):
                        return made
    return None


def _devices(plan: Plan) -> tuple[int, int] | None:
    """The first device and the number of devices; None if they do not follow one another."""
    parts = sorted((part.first_device, part.devices) for stage in plan.stages for part in stage.roles)
    end = parts[0][0]
    for first, count in parts:
        if first != end:
            return None
        end = first + count
    return parts[0][0], end - parts[0][0]


def _stage_counts(plan: Plan, world: int) -> list[int]:
    """Divisors of the devices, the nearest to the number of stages first."""
    wanted = len(plan.stages)
    divisors = [count for count in range(1, min(world, 2 * wanted) + 1) if world % count == 0]
    return sorted(divisors, key=lambda count: (abs(count - wanted), count))[:4]


def _micro_batches(scenario: Scenario) -> list[int]:
    own = scenario.training.micro_batch_size
    return [own, *(size for size in range(min(own - 1, _WIDEST), 0, -1) if own % size == 0)]


def _splits(scenario: Scenario, stages: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Layers of each virtual stage, by stage: as in the plan, then without virtual stages, then evenly."""
    plan, layers = scenario.plan, scenario.model.num_layers
    if stages == len(plan.stages):
        chunks = virtual_stages(plan)
        each = len(chunks) // stages
        if each > 1 and len(chunks) == each * stages:
            yield tuple(
                tuple(chunks[turn * stages + number].layers for turn in range(each)) for number in range(stages)
            )
        held = [sum(chunk.layers for chunk in stage.chunks if chunk.replica == 0) for stage in plan.stages]
        yield tuple((count,) for count in held)
    share, rest = divmod(layers, stages)
    if share:
        yield tuple((share + (number < rest),) for number in range(stages))


def _settings(plan: Plan, split: Sequence[Sequence[int]]) -> Iterator[dict[str, object]]:
    """All that a plan says beside its stages; first as it is, then without what Megatron-LM ties to conditions."""
    interleaved = len(split[0]) > 1
    kept: dict[str, object] = {
        "schedule": Schedule.INTERLEAVED if interleaved else Schedule.ONE_F_ONE_B,
        "dispatcher": plan.dispatcher if plan.dispatcher in DISPATCHERS else "deepep",
        "sharding": plan.sharding if len(split) == 1 else "none" if plan.sharding == "none" else "zero1",
        "sequence_parallel": plan.sequence_parallel,
        "overlap_moe_expert_parallel_comm": plan.overlap_moe_expert_parallel_comm and (interleaved or len(split) == 1),
        "overlap_dispatch_backward_with_experts_wgrad": plan.overlap_dispatch_backward_with_experts_wgrad,
        "microbatch_group_size": plan.microbatch_group_size if interleaved else None,
        "overlap_grad_reduce": plan.overlap_grad_reduce,
        "overlap_param_gather": plan.overlap_param_gather and plan.overlap_grad_reduce,
        "optimizer_offload_fraction": 0.0 if plan.sharding == "none" else plan.optimizer_offload_fraction,
        "overlap_cpu_optimizer_d2h_h2d": plan.overlap_cpu_optimizer_d2h_h2d,
        "tp_comm_overlap": plan.tp_comm_overlap,
        "cuda_graph_scope": plan.cuda_graph_scope,
    }
    yield kept
    yield kept | {
        "sharding": "none" if plan.sharding == "none" else "zero1",
        "sequence_parallel": True,
        "overlap_moe_expert_parallel_comm": False,
        "microbatch_group_size": None,
        "cuda_graph_scope": (),
    }


def _sizes(scenario: Scenario, devices: int) -> Iterator[dict[str, int]]:
    """Sizes of a stage that stages of the plan have, then what is usual."""
    stages = scenario.plan.stages
    ordered = sorted(stages, key=lambda stage: -stage.devices)
    tensors = _distinct([stage.tensor_parallel for stage in ordered], 1)
    contexts = _distinct([stage.context_parallel for stage in ordered], 1)
    slices = _distinct([stage.expert_tensor_parallel for stage in ordered], 1)
    for tensor, context, expert_tensor in product(tensors, contexts, slices):
        if devices % (tensor * context):
            continue
        for expert in _experts(scenario, devices // expert_tensor):
            yield {
                "tensor_parallel": tensor,
                "context_parallel": context,
                "data_parallel": devices // (tensor * context),
                "expert_parallel": expert,
                "expert_tensor_parallel": expert_tensor,
            }


def _experts(scenario: Scenario, most: int) -> list[int]:
    """Expert-parallel sizes: those of the plan, then the largest that divides experts and devices."""
    moe = scenario.model.moe
    if moe is None:
        return [1]
    found = [size for size in range(min(most, moe.num_experts), 0, -1) if most % size == moe.num_experts % size == 0]
    own = [stage.expert_parallel for stage in scenario.plan.stages if stage.experts is None]
    return _distinct([size for size in own if size in found], *found[:1], 1)


def _distinct(sizes: Sequence[int], *more: int) -> list[int]:
    return list(dict.fromkeys([*sizes, *more]))


def _laid_out(
    split: Sequence[Sequence[int]], sizes: dict[str, int], first: int, devices: int, plan: Plan
) -> tuple[Stage, ...]:
    """The stages with consecutive devices, layers numbered through."""
    stages, turns = len(split), len(split[0])
    mtp = sum(chunk.mtp_layers for chunk in virtual_stages(plan))
    last = stages * turns - 1
    starts, layer = {}, 0
    for position in range(last + 1):
        starts[position] = layer
        layer += split[position % stages][position // stages]
    alike = stages == len(plan.stages) and all(s.devices == devices and s.experts is None for s in plan.stages)
    return tuple(
        Stage(
            first_device=plan.stages[number].first_device if alike else first + number * devices,
            devices=devices,
            recompute=_strongest(plan),
            sharding_group=plan.sharding_group if alike else None,
            chunks=tuple(
                Chunk(
                    position=turn * stages + number,
                    first_layer=starts[turn * stages + number],
                    layers=split[number][turn],
                    embedding=turn == number == 0,
                    mtp_layers=mtp if turn * stages + number == last else 0,
                    head=turn * stages + number == last,
                )
                for turn in range(turns)
            ),
            tensor_parallel=sizes["tensor_parallel"],
            context_parallel=sizes["context_parallel"],
            data_parallel=sizes["data_parallel"],
            expert_parallel=sizes["expert_parallel"],
            expert_tensor_parallel=sizes["expert_tensor_parallel"],
        )
        for number in range(stages)
    )


def _strongest(plan: Plan) -> Recompute:
    """Full recomputation if a stage has it, else all modules that some stage recomputes."""
    found = [stage.recompute for stage in plan.stages]
    full = [one for one in found if one.granularity == "full"]
    if full:
        return max(full, key=lambda one: one.num_layers or 10_000)
    modules = tuple(dict.fromkeys(name for one in found for name in one.modules))
    return Recompute(granularity="selective", modules=modules) if modules else Recompute()


def _made(scenario: Scenario, settings: dict[str, object], stages: tuple[Stage, ...], size: int) -> Scenario:
    plan = Plan.model_validate(
        {
            **settings,
            "stages": stages,
            "pipeline_parallel": len(stages),
            "virtual_pipeline": len(stages[0].chunks),
            "sharding_group": stages[0].sharding_group,
            **{name: getattr(stages[0], name) for name in _UNIFORM},
        }
    )
    full = scenario.training.precision.activation_dtype in {Dtype.FP32, Dtype.TF32}
    gradients = "fp32" if full else scenario.training.gradient_dtype
    batch = {"micro_batch_size": size, "fp8_attention": False, "gradient_dtype": gradients}
    training = scenario.training.model_copy(update=batch)
    routing = scenario.routing.model_copy(update={"expert_replicas": 0})
    changed = {"plan": plan, "training": training, "routing": routing, "published": ()}
    return scenario.model_copy(update=changed)


_UNIFORM = ("tensor_parallel", "context_parallel", "data_parallel", "expert_parallel", "expert_tensor_parallel")


def _runs(scenario: Scenario) -> bool:
    """The scenario breaks no rule of ours, and Megatron-LM can run it."""
    document = Document(Position("nearest"), {})
    kinds = (("plan", scenario.plan), ("scenario", scenario), ("expanded", scenario))
    return not any(checks.run(kind, spec, document) for kind, spec in kinds) and not reasons(scenario)
