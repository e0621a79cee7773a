"""A scenario as an argument list of Megatron-LM: model, training, parallelism, environment."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.specs.layout import split_evenly
from simmoe.specs.megatron.arguments import Arguments, parse_words
from simmoe.specs.megatron.model_options import Option, model_differences, model_options, moe_options
from simmoe.specs.plan import Chunk, Plan, Recompute, Schedule
from simmoe.specs.scenario import Scenario
from simmoe.specs.workload import Precision

_VENDORS = {"NVIDIA", "AMD"}
# Transformer Engine and its grouped GEMMs need Ampere or later.
_OLD = {"Pascal", "Volta", "Turing"}
_FP8 = {
    Precision.FP8_DELAYED: ("hybrid", "delayed"),
    Precision.FP8_CURRENT: ("hybrid", "tensorwise"),
    Precision.FP8_BLOCKWISE: ("e4m3", "blockwise"),
    Precision.MXFP8: ("e4m3", "mxfp8"),
}
DISPATCHERS = {
    "alltoall": ("alltoall", ""),
    "allgather": ("allgather", ""),
    "deepep": ("flex", "deepep"),
    "hybridep": ("flex", "hybridep"),
}


class Export(NamedTuple):
    """An argument list in parts, and what surrounds it.

    Attributes
    ----------
    model, moe, training, parallel : tuple of option
        Each a flag with its values.
    environment : mapping
        Variables that every process needs.
    remarks : tuple of str
        What Megatron-LM does differently, a sentence each.
    """

    model: tuple[Option, ...]
    moe: tuple[Option, ...]
    training: tuple[Option, ...]
    parallel: tuple[Option, ...]
    environment: Mapping[str, str]
    remarks: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The whole argument list."""
        parts = (*self.model, *self.moe, *self.training, *self.parallel)
        return tuple(word for option in parts for word in option)

    @property
    def arguments(self) -> Arguments:
        """The argument list as Megatron-LM reads it."""
        return parse_words(self.words)


def to_arguments(scenario: Scenario) -> Export:
    """What to say to Megatron-LM so that it trains a scenario whose stages are all alike.

    Parameters
    ----------
    scenario : Scenario
        With its plan expanded; `simmoe.specs.megatron.expressible.reasons` says what cannot be said.

    Notes
    -----
    Names and values as in Megatron-Core 0.19.2 (PyPI, Apache-2.0).
    """
    model = scenario.model
    moe = model.moe
    return Export(
        model=tuple(model_options(model)),
        moe=() if moe is None else (*moe_options(model, moe, grouped=not old(scenario)), *_capacity(scenario)),
        training=tuple(_training(scenario)),
        parallel=tuple(_parallel(scenario)),
        environment=dict(_environment(scenario)),
        remarks=(*model_differences(model), *_ports(scenario)),
    )


def _ports(scenario: Scenario) -> Iterator[str]:
    """Accelerators on which stock Megatron-LM does not run."""
    for part in scenario.cluster.accelerators:
        if part.vendor not in _VENDORS:
            yield f"{part.name}: needs a port of Megatron-LM by {part.vendor}, which itself runs with CUDA or ROCm"


def old(scenario: Scenario) -> bool:
    """Some accelerator is older than Transformer Engine knows."""
    return any(part.architecture in _OLD for part in scenario.cluster.accelerators)


def blackwell(scenario: Scenario) -> bool:
    """All accelerators are of NVIDIA's Blackwell generation."""
    return all(part.architecture.startswith("Blackwell") for part in scenario.cluster.accelerators)


def _capacity(scenario: Scenario) -> Iterator[Option]:
    routing = scenario.routing
    if routing.capacity_factor is not None:
        yield "--moe-expert-capacity-factor", f"{routing.capacity_factor:g}"
        if routing.pad_to_capacity:
            yield ("--moe-pad-expert-input-to-capacity",)


def _training(scenario: Scenario) -> Iterator[Option]:
    training, model = scenario.training, scenario.model
    yield "--seq-length", str(training.sequence_length)
    yield "--micro-batch-size", str(training.micro_batch_size)
    yield "--global-batch-size", str(training.global_batch_size)
    if training.mtp and model.mtp_layers:
        yield "--mtp-num-layers", str(model.mtp_layers)
    yield from _precision(training.precision, training.gradient_dtype)
    yield "--optimizer", training.optimizer
    yield "--attention-dropout", "0.0"
    yield "--hidden-dropout", "0.0"
    if old(scenario):
        yield "--transformer-impl", "local"
        yield ("--no-rope-fusion",)


def _precision(precision: Precision, gradients: str) -> Iterator[Option]:
    activations = precision.activation_dtype.value
    if activations in {"bf16", "fp16"}:
        yield (f"--{activations}",)
        if activations == "bf16" and gradients != "fp32":
            yield ("--grad-reduce-in-bf16",)
        elif gradients == "fp32":
            yield ("--accumulate-allreduce-grads-in-fp32",)
    if precision in _FP8:
        form, recipe = _FP8[precision]
        yield "--fp8-format", form
        yield "--fp8-recipe", recipe
    if precision is Precision.NVFP4:
        yield "--fp4-format", "e2m1"
        yield "--fp4-recipe", "nvfp4"


def _parallel(scenario: Scenario) -> Iterator[Option]:
    plan, stage = scenario.plan, scenario.plan.stages[0]
    yield "--tensor-model-parallel-size", str(stage.tensor_parallel)
    yield "--pipeline-model-parallel-size", str(len(plan.stages))
    if stage.context_parallel > 1:
        yield "--context-parallel-size", str(stage.context_parallel)
    if plan.sequence_parallel and stage.tensor_parallel > 1:
        yield ("--sequence-parallel",)
        if plan.tp_comm_overlap:
            yield ("--tp-comm-overlap",)
    if scenario.model.moe is not None:
        yield from _experts(scenario)
    yield from split(scenario)
    if plan.schedule is Schedule.INTERLEAVED and plan.microbatch_group_size is not None:
        yield "--microbatch-group-size-per-virtual-pipeline-stage", str(plan.microbatch_group_size)
    yield from _recompute(stage.recompute)
    yield from _sharding(plan)
    yield from _offload(plan)
    if "full_iteration" in plan.cuda_graph_scope:
        yield "--cuda-graph-impl", "full_iteration"
        yield ("--no-check-for-nan-in-loss-and-grad",)  # a graph cannot stop to look
    elif plan.cuda_graph_scope:
        yield "--cuda-graph-impl", "transformer_engine"
        yield "--cuda-graph-modules", *plan.cuda_graph_scope


def _experts(scenario: Scenario) -> Iterator[Option]:
    plan, stage = scenario.plan, scenario.plan.stages[0]
    yield "--expert-model-parallel-size", str(stage.expert_parallel)
    # Megatron's own default is the tensor-parallel size.
    yield "--expert-tensor-parallel-size", str(stage.expert_tensor_parallel)
    kind, backend = DISPATCHERS.get(plan.dispatcher, DISPATCHERS["alltoall"])
    yield "--moe-token-dispatcher-type", kind
    if backend:
        yield "--moe-flex-dispatcher-backend", backend
    if plan.overlap_moe_expert_parallel_comm:
        yield ("--overlap-moe-expert-parallel-comm",)
    if plan.overlap_dispatch_backward_with_experts_wgrad:
        yield ("--overlap-dispatch-backward-with-experts-wgrad",)


def virtual_stages(plan: Plan) -> list[Chunk]:
    """The virtual stages of one copy of the model, in its order."""
    chunks = [chunk for stage in plan.stages for chunk in stage.chunks if chunk.replica == 0]
    return sorted(chunks, key=lambda chunk: chunk.position)


def split(scenario: Scenario) -> Iterator[Option]:
    """How layers are divided over virtual stages: a layout, unless Megatron divides them so by itself."""
    plan, chunks = scenario.plan, virtual_stages(scenario.plan)
    virtual = len(chunks) // len(plan.stages)
    ends = (plan.account_for_embedding, plan.account_for_loss)
    if not _even(scenario, chunks, *ends):
        if not _even(scenario, chunks, embedding=False, loss=False):
            yield "--pipeline-model-parallel-layout", layout_text(chunks)
            return
        ends = (False, False)
    if virtual > 1:
        yield "--num-virtual-stages-per-pipeline-rank", str(virtual)
    if ends[0]:
        yield ("--account-for-embedding-in-pipeline-split",)
    if ends[1]:
        yield ("--account-for-loss-in-pipeline-split",)


def _even(scenario: Scenario, chunks: list[Chunk], embedding: bool, loss: bool) -> bool:
    model = scenario.model
    mtp = model.mtp_layers if scenario.training.mtp else 0
    if (model.num_layers + embedding + loss) % len(chunks):
        return False
    try:
        even = split_evenly(model.num_layers, len(chunks), count_embedding=embedding, count_loss=loss, mtp_layers=mtp)
    except SpecError:
        return False
    return [(c.layers, c.mtp_layers, c.embedding, c.head) for c in chunks] == [tuple(stage) for stage in even]


def layout_text(chunks: list[Chunk]) -> str:
    """Megatron's layout of virtual stages, equal ones written once.

    Examples
    --------
    >>> ends = {"embedding": True}, {}, {}, {"head": True}
    >>> layout_text([Chunk(first_layer=0, layers=n, **end) for n, end in zip((1, 2, 2, 0), ends)])
    'Et|(t*2|)*2L'
    """
    pieces = []
    for chunk in chunks:
        layers = "" if chunk.layers == 0 else "t" if chunk.layers == 1 else f"t*{chunk.layers}"
        pieces.append("E" * chunk.embedding + layers + "m" * chunk.mtp_layers + "L" * chunk.head)
    found, place = "", 0
    while place < len(pieces) - 1:
        piece = pieces[place]
        count = next((n for n in range(1, len(pieces) - place) if pieces[place + n] != piece), len(pieces) - place)
        count = min(count, len(pieces) - 1 - place)
        found += f"({piece}|)*{count}" if count > 1 else f"{piece}|"
        place += count
    return found + pieces[-1]


def _recompute(recompute: Recompute) -> Iterator[Option]:
    if recompute.granularity == "none":
        return
    yield "--recompute-granularity", recompute.granularity
    if recompute.granularity == "selective":
        yield "--recompute-modules", *recompute.modules
        return
    whole = recompute.num_layers is None
    yield "--recompute-method", "uniform" if whole else "block"
    yield "--recompute-num-layers", "1" if whole else str(recompute.num_layers)


def _sharding(plan: Plan) -> Iterator[Option]:
    stage = plan.stages[0]
    if plan.sharding == "zero2":
        yield ("--use-torch-fsdp2",)
        yield ("--torch-fsdp2-no-reshard-after-forward",)
        yield ("--no-gradient-accumulation-fusion",)
    elif plan.sharding != "none":
        yield ("--use-distributed-optimizer",)
        copies = stage.data_parallel * stage.context_parallel // stage.shards
        if copies > 1:
            yield "--num-distributed-optimizer-instances", str(copies)
    if plan.sharding == "zero3":
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", "optim_grads_params"
        yield "--ckpt-format", "fsdp_dtensor"
    if plan.overlap_grad_reduce:
        yield ("--overlap-grad-reduce",)
        if plan.overlap_param_gather and plan.sharding in {"zero1", "zero3"}:
            yield ("--overlap-param-gather",)


def _offload(plan: Plan) -> Iterator[Option]:
    if not plan.optimizer_offload_fraction:
        return
    yield ("--optimizer-cpu-offload",)
    yield "--optimizer-offload-fraction", repr(plan.optimizer_offload_fraction)
    yield ("--use-precision-aware-optimizer",)
    if plan.overlap_cpu_optimizer_d2h_h2d:
        yield ("--overlap-cpu-optimizer-d2h-h2d",)


def _environment(scenario: Scenario) -> Iterator[tuple[str, str]]:
    plan, stage = scenario.plan, scenario.plan.stages[0]
    if scenario.training.precision is Precision.TF32:
        yield "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"
    if plan.layerwise:
        return  # FSDP needs more than one connection, which is what CUDA has by default
    if plan.overlap_moe_expert_parallel_comm:
        yield "CUDA_DEVICE_MAX_CONNECTIONS", "32"
    elif stage.tensor_parallel * stage.context_parallel > 1 and not blackwell(scenario):
        yield "CUDA_DEVICE_MAX_CONNECTIONS", "1"
