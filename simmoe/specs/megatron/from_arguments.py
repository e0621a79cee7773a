"""An argument list of Megatron-LM as the model, training, routing and plan of a scenario."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from simmoe.errors import SpecError
from simmoe.specs.megatron.arguments import Arguments
from simmoe.specs.megatron.flags import FLAGS
from simmoe.specs.megatron.from_model import REQUIRED, Tell, model_of
from simmoe.specs.megatron.groups import orders_agree
from simmoe.specs.megatron.rules import problems
from simmoe.specs.megatron.settings import Settings
from simmoe.specs.model import Model
from simmoe.specs.plan import Plan
from simmoe.specs.workload import Routing

_RECIPES = {
    "delayed": "fp8-delayed",
    "tensorwise": "fp8-current",
    "blockwise": "fp8-blockwise",
    "mxfp8": "mxfp8",
}
_MODULES = {"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"}
_GRAPHS = {"attn", "mlp", "moe", "moe_router", "moe_preprocess"}


class Imported(NamedTuple):
    """Parts of a scenario as plain data, without what equals the default.

    Attributes
    ----------
    model, training, routing, plan : dict
        As a scenario file writes them.
    remarks : tuple of str
        Flags that are unknown or not simulated, and what was assumed, a sentence each.
    """

    model: dict[str, Any]
    training: dict[str, Any]
    routing: dict[str, Any]
    plan: dict[str, Any]
    remarks: tuple[str, ...]


def from_arguments(
    arguments: Arguments, world: int, environment: Mapping[str, str] | None = None, source: str = ""
) -> Imported:
    """What an argument list trains, and how.

    Parameters
    ----------
    arguments : Arguments
    world : int
        GPUs of the job.
    environment : mapping or None
        Environment variables, as far as they are known.
    source : str
        Where the arguments stood, for people.

    Raises
    ------
    SpecError
        If Megatron-LM would refuse the arguments, or build something that is not known here; a sentence each.

    Notes
    -----
    Defaults are those of Megatron-Core 0.19.2 (PyPI, Apache-2.0).

    Examples
    --------
    Four GPUs in two stages leave two data-parallel ranks, with micro-batches of 3 a step of 6:

    >>> from simmoe.specs.megatron.arguments import parse_words
    >>> words = "--num-layers 8 --hidden-size 512 --num-attention-heads 4 --seq-length 1024 --micro-batch-size 3"
    >>> found = from_arguments(parse_words([*words.split(), "--pipeline-model-parallel-size", "2"]), world=4)
    >>> found.training["global_batch_size"], found.plan["pipeline_parallel"], found.plan["sharding"]
    (6, 2, 'none')
    """
    s = Settings(arguments, world, environment)
    _refuse(s)
    remarks = _remarks(arguments)
    model = model_of(s, remarks.append)
    training = _training(s, remarks.append)
    return Imported(
        model=_named(model, source),
        training=training,
        routing=_routing(s),
        plan=_plan(s, remarks.append),
        remarks=tuple(remarks),
    )


def _refuse(s: Settings) -> None:
    """Everything that makes an import impossible, at once."""
    found = list(s.given.problems)
    unread = {sentence.split(":")[0] for sentence in found}
    found += [
        f"--{name} is missing, add it" for name in REQUIRED if not s.given.given(name) and f"--{name}" not in unread
    ]
    found += [
        f"--{name}: such models or groups are not known here, import a run without it"
        for name, flag in FLAGS.items()
        if flag.effect == "refused" and s.given.given(name)
    ]
    if not found:
        known = s.given._replace(unknown=())
        found = [problem.sentence for problem in problems(known, s.world)]
    if found:
        raise SpecError(found)
    _check_order(s)


def _check_order(s: Settings) -> None:
    """Pipeline before data parallelism in the order of ranks is known only where it makes no difference."""
    if not s.given.on("use-tp-pp-dp-mapping") or s.pipeline == 1 or s.data == 1:
        return
    dense = {"tp": s.tensor, "cp": s.context, "dp": s.data, "pp": s.pipeline}
    copies = s.world // (s.expert_tensor * s.expert * s.pipeline)
    experts = {"tp": s.expert_tensor, "ep": s.expert, "dp": copies, "pp": s.pipeline}
    if not orders_agree(dense, experts):
        raise SpecError(
            ["--use-tp-pp-dp-mapping: stages whose ranks do not follow one another are not known, remove it"]
        )


def _remarks(arguments: Arguments) -> list[str]:
    found = [f"unknown flag, ignored: {text}" for text in arguments.unknown]
    unmodelled = [name for name in arguments.values if FLAGS[name].effect == "unmodelled" and _differs(arguments, name)]
    return [*found, *(f"--{name} changes a step, and is not simulated" for name in unmodelled)]


def _differs(arguments: Arguments, name: str) -> bool:
    """A flag has another value than Megatron's default, which a log states as well."""
    value = arguments.values[name]
    words = value if isinstance(value, tuple) else (str(value).removeprefix("AttnBackend."),)
    return " ".join(words) != FLAGS[name].default


def _named(model: dict[str, Any], source: str) -> dict[str, Any]:
    kind = "MoE" if "moe" in model else "dense"
    names = {
        "id": "imported",
        "name": f"{model['num_layers']}-layer {kind} model",
        "source": f"arguments of Megatron-LM{f', {source}' if source else ''}",
    }
    made = Model.model_validate(names | model)
    return names | made.model_dump(mode="json", exclude_defaults=True, exclude=set(names))


def _training(s: Settings, tell: Tell) -> dict[str, Any]:
    given = s.given
    found: dict[str, Any] = {
        "sequence_length": given.size("seq-length"),
        "micro_batch_size": s.micro_batch,
        "global_batch_size": s.batch,
        "precision": _precision(s, tell),
    }
    half = given.on("bf16") or given.on("fp16")
    in_full = given.on("accumulate-allreduce-grads-in-fp32") or (
        given.on("bf16") and not given.on("grad-reduce-in-bf16")
    )
    if half and not (in_full and not given.on("grad-reduce-in-bf16")):
        found["gradient_dtype"] = "bf16"
    optimizer = given.text("optimizer")
    if optimizer == "sgd":
        found["optimizer"] = "sgd"
    elif optimizer != "adam":
        tell(f"--optimizer {optimizer} is not known, adam is simulated")
    return found


def _precision(s: Settings, tell: Tell) -> str:
    given = s.given
    if given.given("fp4-format"):
        return "nvfp4"
    if given.given("fp8-format"):
        recipe = given.text("fp8-recipe")
        if recipe not in _RECIPES:
            tell(f"--fp8-recipe {recipe} is not known, tensorwise is simulated")
        return _RECIPES.get(recipe, "fp8-current")
    if given.on("bf16") or given.on("fp16"):
        return "bf16" if given.on("bf16") else "fp16"
    tensor_cores = (s.environment or {}).get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") == "1"
    return "tf32" if tensor_cores else "fp32"


def _routing(s: Settings) -> dict[str, Any]:
    factor = s.given.real("moe-expert-capacity-factor")
    made = Routing(
        capacity_factor=factor,
        pad_to_capacity=factor is not None and s.given.on("moe-pad-expert-input-to-capacity"),
    )
    return made.model_dump(mode="json", exclude_defaults=True)


def _plan(s: Settings, tell: Tell) -> dict[str, Any]:
    given = s.given
    moe = bool(s.experts)
    found: dict[str, Any] = {
        "tensor_parallel": s.tensor,
        "pipeline_parallel": s.pipeline,
        "virtual_pipeline": max(1, s.virtual),
        "context_parallel": s.context,
        "expert_parallel": s.expert if moe else 1,
        "expert_tensor_parallel": s.expert_tensor if moe else 1,
        "schedule": "interleaved" if s.virtual > 1 else "1f1b",
        # Without tensor parallelism Megatron switches it off, here it has no effect.
        "sequence_parallel": s.sequence_parallel or s.tensor == 1,
        "dispatcher": _dispatcher(s, tell) if moe else "alltoall",
        "overlap_moe_expert_parallel_comm": given.on("overlap-moe-expert-parallel-comm"),
        "overlap_dispatch_backward_with_experts_wgrad": given.on("overlap-dispatch-backward-with-experts-wgrad"),
        "overlap_grad_reduce": given.on("overlap-grad-reduce"),
        "tp_comm_overlap": given.on("tp-comm-overlap"),
        "cuda_graph_scope": _graphs(s, tell),
        "recompute": _recompute(s, tell),
        **_split(s),
        **_sharding(s, tell),
        **_offload(s),
    }
    size = given.number("microbatch-group-size-per-virtual-pipeline-stage")
    if s.virtual > 1 and size is not None:
        found["microbatch_group_size"] = size
    return Plan.model_validate(found).model_dump(mode="json", exclude_defaults=True)


def _dispatcher(s: Settings, tell: Tell) -> str:
    kind = s.given.text("moe-token-dispatcher-type")
    if kind != "flex":
        return kind
    backend = "deepep" if s.given.on("moe-enable-deepep") else s.given.text("moe-flex-dispatcher-backend")
    if backend == "ncclep":
        tell("--moe-flex-dispatcher-backend ncclep is not known, hybridep is simulated")
        return "hybridep"
    return backend


def _graphs(s: Settings, tell: Tell) -> tuple[str, ...]:
    implementation = s.given.text("cuda-graph-impl")
    if implementation == "none":
        return ()
    if implementation == "full_iteration":
        return ("full_iteration",)
    known = tuple(name for name in s.graph_modules if name in _GRAPHS)
    if len(known) < len(s.graph_modules) or not s.graph_modules:
        tell("--cuda-graph-modules: graphs of other parts than attn, mlp, moe and the router are not simulated")
    return known


def _recompute(s: Settings, tell: Tell) -> dict[str, Any]:
    if s.granularity == "full":
        count = s.given.size("recompute-num-layers")
        if s.given.text("recompute-method") == "block":
            return {"granularity": "full", "num_layers": count}
        if count > 1:
            tell(f"--recompute-num-layers {count}: layers are recomputed one by one here, which keeps more memory")
        return {"granularity": "full"}
    known = tuple(name for name in s.modules if name in _MODULES)
    if s.granularity == "selective" and len(known) < len(s.modules):
        tell("--recompute-modules gdn_norm_out is not simulated")
    return {"granularity": "selective", "modules": known} if s.granularity and known else {}


def _split(s: Settings) -> dict[str, Any]:
    """How layers are divided, unless evenly."""
    given = s.given
    if s.layout is not None:
        return {"pipeline_layout": given.text("pipeline-model-parallel-layout")}
    if not s.uneven:
        names = {"account_for_embedding": "embedding", "account_for_loss": "loss"}
        return {name: True for name, end in names.items() if given.on(f"account-for-{end}-in-pipeline-split")}
    ends = [count for count in (s.first, s.last) if count is not None]
    stages = s.pipeline - len(ends)
    middle = (s.layers - sum(ends)) // stages if stages else 0
    counts = [middle] * stages
    counts = ([] if s.first is None else [s.first]) + counts + ([] if s.last is None else [s.last])
    return {"stage_layers": [count // max(1, s.virtual) for count in counts] * max(1, s.virtual)}


def _sharding(s: Settings, tell: Tell) -> dict[str, Any]:
    given = s.given
    found: dict[str, Any] = {"overlap_param_gather": given.on("overlap-param-gather")}
    copies = given.size("num-distributed-optimizer-instances")
    if given.on("use-torch-fsdp2"):
        kept = given.on("torch-fsdp2-no-reshard-after-forward")
        return {"sharding": "zero2" if kept else "zero3", "overlap_param_gather": True}
    if given.on("use-megatron-fsdp"):
        strategy = given.text("data-parallel-sharding-strategy")
        kinds = {"no_shard": "none", "optim": "zero1", "optim_grads": "zero1", "optim_grads_params": "zero3"}
        found["sharding"] = kinds[strategy] if s.pipeline == 1 or strategy == "no_shard" else "zero1"
        if strategy == "optim_grads":
            tell("--data-parallel-sharding-strategy optim_grads is simulated as zero1, which keeps more memory")
    else:
        found["sharding"] = "zero1" if given.on("use-distributed-optimizer") else "none"
    if found["sharding"] == "none":
        found["overlap_param_gather"] = True  # there is nothing to gather
    elif copies > 1:
        found["sharding_group"] = s.data * s.context // copies
    return found


def _offload(s: Settings) -> dict[str, Any]:
    """What the host keeps and updates of the optimizer."""
    share = s.given.real("optimizer-offload-fraction") if s.given.on("optimizer-cpu-offload") else 0.0
    if not share:
        return {}
    return {
        "optimizer_offload_fraction": share,
        "overlap_cpu_optimizer_d2h_h2d": s.given.on("overlap-cpu-optimizer-d2h-h2d"),
    }
