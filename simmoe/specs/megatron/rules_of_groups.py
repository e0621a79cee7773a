"""What makes Megatron-LM fail after it has accepted its arguments: groups, schedule, layers; see `rules`.

References
----------
Megatron-Core 0.19.2 (PyPI, Apache-2.0): ``parallel_state.initialize_model_parallel``,
``pipeline_parallel.schedules.forward_backward_pipelining_with_interleaving``, ``transformer.moe.moe_layer``,
``transformer.transformer_block.get_num_layers_to_build``.
"""

from collections.abc import Callable

from simmoe.specs.megatron.settings import Settings

Check = Callable[[Settings], str | None]


def _expert_groups(s: Settings) -> str | None:
    size = s.expert_tensor * s.expert * s.pipeline
    if s.world % size == 0:
        return None
    return (
        f"world size {s.world} is not divisible by --expert-tensor-parallel-size {s.expert_tensor} x "
        f"--expert-model-parallel-size {s.expert} x --pipeline-model-parallel-size {s.pipeline} = {size}, "
        "change one of them"
    )


def _instances(s: Settings) -> str | None:
    count = s.given.size("num-distributed-optimizer-instances")
    replicas = s.data * s.context
    if count == 1 or replicas % count == 0:
        return None
    return (
        f"--num-distributed-optimizer-instances {count} does not divide data x context parallel {replicas}, change it"
    )


def _sequence_parallel(s: Settings) -> str | None:
    if not s.experts or s.tensor == 1 or s.sequence_parallel:
        return None
    return f"--num-experts with --tensor-model-parallel-size {s.tensor} needs --sequence-parallel, add it"


def _rounds(s: Settings) -> str | None:
    if s.virtual <= 1 or not s.micro_batches:
        return None
    size = s.given.number("microbatch-group-size-per-virtual-pipeline-stage") or s.pipeline
    count = s.micro_batches
    name = "--microbatch-group-size-per-virtual-pipeline-stage"
    if size < s.pipeline:
        return f"{name} {size} is less than --pipeline-model-parallel-size {s.pipeline}, raise it"
    if size > count:
        return f"{count} micro-batches are fewer than a group of {size} of the interleaved schedule, raise the batch"
    if 0 < count % size < s.pipeline:
        return (
            f"{count} micro-batches leave a group of {count % size} of {size}, fewer than the {s.pipeline} stages, "
            "change --global-batch-size"
        )
    return None


def _even_virtual(s: Settings) -> str | None:
    if s.layout is not None or s.uneven or s.given.given("pipeline-model-parallel-layout"):
        return None
    stages = s.pipeline * max(1, s.virtual)
    if s.units % stages == 0:
        return None
    return f"--num-layers: {s.units} layers are not divisible by {stages} virtual stages, write a layout"


def _pattern(s: Settings) -> str | None:
    if not s.experts or not s.moe_pattern or len(s.moe_pattern) == s.layers:
        return None
    return f"--moe-layer-freq names {len(s.moe_pattern)} layers, --num-layers is {s.layers}, make them equal"


def _top_k(s: Settings) -> str | None:
    top = s.given.size("moe-router-topk")
    if not s.experts or top <= s.experts:
        return None
    return f"--moe-router-topk {top} is more than --num-experts {s.experts}, write less"


LATE: dict[str, Check] = {
    "expert groups": _expert_groups,
    "instances": _instances,
    "sequence parallel": _sequence_parallel,
    "rounds": _rounds,
    "even virtual stages": _even_virtual,
    "layer pattern": _pattern,
    "top k": _top_k,
}
