"""What Megatron-LM refuses of experts, recomputation, routers and overlaps; see `rules`."""

from collections.abc import Callable

from simmoe.specs.megatron.settings import Settings

Check = Callable[[Settings], str | None]
# Megatron-Core 0.19.2, TransformerConfig.recompute_modules.
RECOMPUTABLE = (
    "core_attn",
    "gdn_norm_out",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "moe_act",
    "shared_experts",
)


def _experts_divide(s: Settings) -> str | None:
    if s.expert == 1:
        return None
    if not s.experts:
        return f"--expert-model-parallel-size {s.expert} needs --num-experts, add it"
    if s.experts % s.expert == 0:
        return None
    return f"--num-experts {s.experts} is not divisible by --expert-model-parallel-size {s.expert}, change one of them"


def _expert_width(s: Settings) -> str | None:
    if s.experts or not s.given.given("moe-ffn-hidden-size"):
        return None
    return "--moe-ffn-hidden-size needs --num-experts, add it"


def _delayed_gradients(s: Settings) -> str | None:
    if not s.given.on("delay-wgrad-compute") or s.given.text("transformer-impl") == "transformer_engine":
        return None
    return "--delay-wgrad-compute needs --transformer-impl transformer_engine, set it"


def _latent(s: Settings) -> str | None:
    if s.given.on("multi-latent-attention") and s.given.on("group-query-attention"):
        return "--multi-latent-attention and --group-query-attention cannot be given together, keep one"
    return None


def _method(s: Settings) -> str | None:
    if s.granularity == "selective" and s.given.given("recompute-method"):
        return "--recompute-method is not for --recompute-granularity selective, remove it"
    return None


def _distributed_activations(s: Settings) -> str | None:
    if not s.given.on("distribute-saved-activations"):
        return None
    wrong = (
        (s.tensor == 1, "needs --tensor-model-parallel-size above 1, set it"),
        (s.granularity != "full", "needs --recompute-granularity full, set it"),
        (not s.given.given("recompute-method"), "needs --recompute-method, add it"),
        (s.sequence_parallel, "does not go with --sequence-parallel, remove one"),
    )
    return next((f"--distribute-saved-activations {what}" for there, what in wrong if there), None)


def _expert_bias(s: Settings) -> str | None:
    biases = not s.given.on("disable-bias-linear")
    if not s.experts or not biases or s.expert_tensor == 1:
        return None
    return (
        f"--expert-tensor-parallel-size {s.expert_tensor} does not go with biases of experts, "
        "add --disable-bias-linear or write 1"
    )


def _layer_list(s: Settings) -> str | None:
    if s.moe_pattern or not s.given.given("moe-layer-freq"):
        return None
    return "--moe-layer-freq is no number and no list of 0 and 1, write ([0]*3+[1]*58)"


EXPERTS: dict[str, Check] = {
    "layer list": _layer_list,
    "distributed activations": _distributed_activations,
    "recompute method": _method,
    "experts divide": _experts_divide,
    "delayed gradients": _delayed_gradients,
    "latent attention": _latent,
    "expert width": _expert_width,
}


def _heads(s: Settings) -> str | None:
    heads, groups = s.given.size("num-attention-heads"), s.given.size("num-query-groups")
    if heads % s.tensor:
        return f"--num-attention-heads {heads} is not divisible by --tensor-model-parallel-size {s.tensor}, change one"
    grouped = s.given.on("group-query-attention")
    if grouped and groups % s.tensor and s.tensor % groups:
        return f"--num-query-groups {groups} and --tensor-model-parallel-size {s.tensor} do not divide one another"
    width = s.given.size("hidden-size")
    if heads and not s.given.given("kv-channels") and width % heads:
        return f"--hidden-size {width} is not divisible by --num-attention-heads {heads}, add --kv-channels"
    return None


def _full_method(s: Settings) -> str | None:
    if s.granularity != "full" or s.given.given("recompute-method"):
        return None
    return "--recompute-granularity full needs --recompute-method uniform or block, add it"


def _full_layers(s: Settings) -> str | None:
    if s.granularity != "full" or s.given.given("recompute-num-layers"):
        return None
    return "--recompute-granularity full needs --recompute-num-layers, add it"


def _selective_layers(s: Settings) -> str | None:
    if s.granularity == "selective" and s.given.given("recompute-num-layers"):
        return "--recompute-num-layers is not for --recompute-granularity selective, remove it"
    return None


def _recompute_modules(s: Settings) -> str | None:
    if s.granularity != "selective":
        return None
    unknown = next((name for name in s.modules if name not in RECOMPUTABLE), None)
    delayed = s.given.given("fp8-format") and s.given.text("fp8-recipe") == "delayed"
    given = s.given
    wrong = (
        (unknown is not None, f"{unknown} is none of {', '.join(RECOMPUTABLE)}, choose one"),
        ("moe_act" in s.modules and not given.on("moe-grouped-gemm"), "moe_act needs --moe-grouped-gemm, add it"),
        (
            "mla_up_proj" in s.modules and not given.on("multi-latent-attention"),
            "mla_up_proj needs --multi-latent-attention, remove it",
        ),
        (
            "shared_experts" in s.modules and given.on("moe-shared-expert-overlap"),
            "shared_experts does not go with --moe-shared-expert-overlap, remove one",
        ),
        (
            delayed and bool({"moe_act", "layernorm"} & set(s.modules)),
            "moe_act and layernorm do not go with --fp8-recipe delayed, remove them",
        ),
    )
    return next((f"--recompute-modules {what}" for there, what in wrong if there), None)


def _router(s: Settings) -> str | None:
    given, balance = s.given, s.given.words("moe-router-load-balancing-type")
    score = given.text("moe-router-score-function")
    if not s.experts:
        return None
    if given.on("moe-router-enable-expert-bias") and score == "softmax":
        return "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid or sqrtsoftplus, set it"
    plain = score == "softmax" and not given.on("moe-router-pre-softmax")
    if given.size("moe-router-topk") == 1 and plain and balance != ("sinkhorn",):
        return "--moe-router-topk 1 needs --moe-router-pre-softmax, add it"
    if len(balance) > 1 and len(balance) != len(given.words("moe-aux-loss-coeff")):
        return "--moe-aux-loss-coeff needs one number for each --moe-router-load-balancing-type, add them"
    return None


def _router_groups(s: Settings) -> str | None:
    limit, groups = s.given.size("moe-router-group-topk"), s.given.size("moe-router-num-groups")
    if not s.experts or not limit:
        return None
    if not groups:
        return "--moe-router-group-topk needs --moe-router-num-groups, add it"
    if s.experts % groups:
        return f"--num-experts {s.experts} is not divisible by --moe-router-num-groups {groups}, change one of them"
    return None if limit <= groups else f"--moe-router-group-topk {limit} is more than --moe-router-num-groups {groups}"


def _capacity(s: Settings) -> str | None:
    given, factor = s.given, s.given.real("moe-expert-capacity-factor")
    padded = given.on("moe-pad-expert-input-to-capacity")
    if padded and factor is None:
        return "--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor, add it"
    allowed = {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}
    if factor is not None and not set(given.words("moe-router-load-balancing-type")) <= allowed:
        return f"--moe-expert-capacity-factor {factor:g} needs another --moe-router-load-balancing-type, write aux_loss"
    dispatcher, backend = given.text("moe-token-dispatcher-type"), given.text("moe-flex-dispatcher-backend")
    if padded and dispatcher == "flex" and backend == "deepep":
        return "--moe-pad-expert-input-to-capacity does not go with --moe-flex-dispatcher-backend deepep, change one"
    return None


def _dispatcher(s: Settings) -> str | None:
    dispatcher = s.given.text("moe-token-dispatcher-type")
    if s.given.on("moe-enable-deepep") and dispatcher != "flex":
        return "--moe-enable-deepep needs --moe-token-dispatcher-type flex, set it"
    if s.given.on("moe-shared-expert-overlap") and dispatcher == "allgather":
        return "--moe-shared-expert-overlap needs --moe-token-dispatcher-type alltoall or flex, set it"
    return None


def _graphs(s: Settings) -> str | None:
    modules, implementation = set(s.graph_modules), s.given.text("cuda-graph-impl")
    if implementation == "none":
        return None
    whole = implementation == "full_iteration"
    if whole and not s.given.given("no-check-for-nan-in-loss-and-grad") and not s.given.on("fp16"):
        return "--cuda-graph-impl full_iteration needs --no-check-for-nan-in-loss-and-grad, add it"
    dense = not s.experts or 0 in s.moe_pattern
    padded = s.given.on("moe-pad-expert-input-to-capacity")
    wrong = (
        (whole and bool(modules), "is not for --cuda-graph-impl full_iteration, remove it"),
        ("moe_preprocess" in modules and "moe_router" not in modules, "moe_preprocess needs moe_router, add it"),
        ({"moe", "moe_router"} <= modules, "moe and moe_router cannot be given together, keep one"),
        (bool({"moe", "moe_router"} & modules) and not s.experts, "moe and moe_router need --num-experts, remove them"),
        ("mlp" in modules and not dense, "mlp needs dense layers, remove it"),
        ("moe" in modules and not padded, "moe needs --moe-pad-expert-input-to-capacity, add it"),
        (s.granularity == "full" and not whole, "does not go with --recompute-granularity full, remove it"),
        (
            s.granularity == "selective" and "moe" in s.modules and "moe_router" in modules,
            "moe_router does not go with --recompute-modules moe, remove one",
        ),
    )
    return next((f"--cuda-graph-modules {what}" for there, what in wrong if there), None)


def _overlap_experts(s: Settings) -> str | None:
    given = s.given
    if not given.on("overlap-moe-expert-parallel-comm"):
        return None
    wrong = (
        (
            s.pipeline > 1 and s.virtual <= 1,
            "needs virtual stages where --pipeline-model-parallel-size is above 1, add",
        ),
        (s.expert == 1, "needs --expert-model-parallel-size above 1, set it"),
        (
            given.text("moe-token-dispatcher-type") == "allgather",
            "needs --moe-token-dispatcher-type alltoall or flex, set it",
        ),
        (s.granularity == "full", "does not go with --recompute-granularity full, change it"),
        (given.given("recompute-method"), "does not go with --recompute-method, remove it"),
        (given.given("recompute-num-layers"), "does not go with --recompute-num-layers, remove it"),
        ("moe" in given.words("recompute-modules"), "does not go with --recompute-modules moe, remove it"),
        (not given.on("bf16") and not given.on("fp16"), "needs --bf16 or --fp16, add one"),
        (given.on("moe-shared-expert-overlap"), "does not go with --moe-shared-expert-overlap, remove it"),
        (given.size("mtp-num-layers") > 1, "needs --mtp-num-layers of at most 1, change it"),
        (
            bool({"moe", "mlp"} & set(s.graph_modules)) and given.text("cuda-graph-impl") == "transformer_engine",
            "does not go with --cuda-graph-modules moe or mlp, remove them",
        ),
    )
    return next((f"--overlap-moe-expert-parallel-comm {what}" for there, what in wrong if there), None)


def _overlap_gradients(s: Settings) -> str | None:
    given = s.given
    both = given.on("overlap-moe-expert-parallel-comm")
    if given.on("delay-wgrad-compute") and not both:
        return "--delay-wgrad-compute needs --overlap-moe-expert-parallel-comm, add it"
    if given.on("overlap-dispatch-backward-with-experts-wgrad") and both:
        return (
            "--overlap-dispatch-backward-with-experts-wgrad does not go with --overlap-moe-expert-parallel-comm, "
            "remove one"
        )
    return None


MODEL: dict[str, Check] = {
    "expert bias": _expert_bias,
    "heads": _heads,
    "capacity": _capacity,
    "dispatcher": _dispatcher,
    "full method": _full_method,
    "full layers": _full_layers,
    "selective layers": _selective_layers,
    "recompute modules": _recompute_modules,
    "router": _router,
    "router groups": _router_groups,
    "graphs": _graphs,
    "overlap experts": _overlap_experts,
    "overlap gradients": _overlap_gradients,
}
