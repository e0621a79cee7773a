"""What must hold between the cluster, the model, the training and the uniform form of a plan.

Names and divisibility are Megatron-Core 0.19's (``validate_args``, ``TransformerConfig.__post_init__`` and
the process groups), plus what it leaves unchecked (expert groups, top_k).
"""

from simmoe.specs.hardware import Dtype
from simmoe.specs.hardware_rules import LARGEST_CLUSTER
from simmoe.specs.plan import Plan, Recompute, Schedule
from simmoe.specs.rules import divides, limit, rule
from simmoe.specs.scenario import Scenario
from simmoe.specs.workload import Precision

limit("scenario", "training.sequence_length", 2**30, lambda s: s.training.sequence_length)
limit("scenario", "training.global_batch_size", 2**24, lambda s: s.training.global_batch_size)
limit("scenario", "training.micro_batch_size", 2**20, lambda s: s.training.micro_batch_size)
limit("scenario", "plan.virtual_pipeline", 10_000, lambda s: s.plan.virtual_pipeline)
# Tutel's own limit (microsoft/tutel@f0706ee, tutel/impls/communicate.py: max_num_split).
limit("scenario", "plan.a2a_ffn_overlap_degree", 32, lambda s: s.plan.a2a_ffn_overlap_degree)


def _uniform(scenario: Scenario) -> bool:
    """Whether the stages still have to be made from the sizes of the plan; zebra has rules of its own."""
    return not scenario.plan.stages and scenario.plan.zebra is None


def _width(plan: Plan) -> int:
    return plan.tensor_parallel * plan.pipeline_parallel * plan.context_parallel


def _data_parallel(scenario: Scenario) -> int | None:
    """Data-parallel size of the uniform form, None if there is none."""
    world, width = scenario.cluster.devices, _width(scenario.plan)
    countable = world <= LARGEST_CLUSTER
    return world // width if _uniform(scenario) and countable and world % width == 0 else None


def _micro_batches(scenario: Scenario) -> int | None:
    """Micro-batches of a step, None if the batch does not divide."""
    data_parallel = _data_parallel(scenario)
    if data_parallel is None:
        return None
    count, rest = divmod(scenario.training.global_batch_size, scenario.training.micro_batch_size * data_parallel)
    return count if count and not rest else None


@rule("scenario", "plan")
def world_divides(scenario: Scenario) -> str | None:
    """The world size is a multiple of tp * pp * cp."""
    plan, world = scenario.plan, scenario.cluster.devices
    if not _uniform(scenario) or world % _width(plan) == 0:
        return None
    return (
        f"{world} accelerators are not divisible by tensor_parallel {plan.tensor_parallel} x "
        f"pipeline_parallel {plan.pipeline_parallel} x context_parallel {plan.context_parallel} = "
        f"{_width(plan)}, change one of them or the number of nodes"
    )


@rule("scenario", "plan.data_parallel")
def data_parallel_agrees(scenario: Scenario) -> str | None:
    """A data-parallel size that is written is the one that follows."""
    written, follows = scenario.plan.data_parallel, _data_parallel(scenario)
    if written is None or follows is None or written == follows:
        return None
    world, width = scenario.cluster.devices, _width(scenario.plan)
    return f"{world} accelerators / {width} leave {follows} (got {written}), write {follows} or leave it out"


@rule("scenario", "plan.expert_parallel")
def expert_parallel_needs_experts(scenario: Scenario) -> str | None:
    """Expert parallelism needs a MoE model."""
    plan = scenario.plan
    size = max(plan.expert_parallel, plan.expert_tensor_parallel)
    if scenario.model.moe is not None or size == 1:
        return None
    return f"{scenario.model.id} has no experts (got {size}), write 1"


@rule("scenario", "plan.expert_parallel")
def expert_parallel_divides_experts(scenario: Scenario) -> str | None:
    """Every rank of an expert-parallel group holds the same number of experts."""
    moe = scenario.model.moe
    if moe is None:
        return None
    return divides(scenario.plan.expert_parallel, "expert_parallel", moe.num_experts, "num_experts")


@rule("scenario", "plan.expert_parallel")
def stage_divides_into_expert_groups(scenario: Scenario) -> str | None:
    """The devices of a stage are a multiple of ep * etp; Megatron fails late on this one."""
    plan, world = scenario.plan, scenario.cluster.devices
    group = plan.expert_parallel * plan.expert_tensor_parallel
    experts = scenario.model.moe.num_experts if scenario.model.moe else 1
    if not _uniform(scenario) or world % plan.pipeline_parallel or experts % plan.expert_parallel:
        return None
    stage = world // plan.pipeline_parallel
    if stage % group == 0:
        return None
    return (
        f"stages of size {stage} are not divisible by expert_parallel {plan.expert_parallel} x "
        f"expert_tensor_parallel {plan.expert_tensor_parallel} = {group}, choose a divisor of {stage}"
    )


@rule("scenario", "plan.expert_tensor_parallel")
def expert_tensor_parallel_divides_expert(scenario: Scenario) -> str | None:
    """An expert is cut into equal slices."""
    moe, size = scenario.model.moe, scenario.plan.expert_tensor_parallel
    if moe is None:
        return None
    return divides(size, "expert_tensor_parallel", moe.moe_ffn_hidden_size, "moe_ffn_hidden_size")


@rule("scenario", "plan.tensor_parallel")
def tensor_parallel_within_heads(scenario: Scenario) -> str | None:
    """Attention heads are spread evenly over the tensor-parallel group."""
    tensor, heads = scenario.plan.tensor_parallel, scenario.model.attention.num_heads
    if tensor > heads:
        return f"tensor_parallel {tensor} is more than the {heads} attention heads, choose at most {heads}"
    return divides(tensor, "tensor_parallel", heads, "num_heads")


@rule("scenario", "plan.tensor_parallel")
def tensor_parallel_matches_kv_heads(scenario: Scenario) -> str | None:
    """Key/value heads are spread or replicated evenly."""
    attention, tensor = scenario.model.attention, scenario.plan.tensor_parallel
    kv_heads = attention.num_kv_heads
    if attention.num_heads % tensor or attention.kind == "mla":
        return None
    if kv_heads % tensor == 0 or tensor % kv_heads == 0:
        return None
    return (
        f"tensor_parallel {tensor} and num_kv_heads {kv_heads} do not divide one another, "
        f"choose a divisor or a multiple of {kv_heads}"
    )


@rule("scenario", "plan.tensor_parallel")
def tensor_parallel_divides_mlp(scenario: Scenario) -> str | None:
    """Dense MLPs and shared experts are cut into equal slices."""
    model, tensor = scenario.model, scenario.plan.tensor_parallel
    shared = model.moe.shared_expert_ffn_hidden_size if model.moe else 0
    if shared % tensor:
        return divides(tensor, "tensor_parallel", shared, "shared_expert_ffn_hidden_size")
    all_moe = model.moe and model.moe.first_dense_layers == 0 and model.moe.layer_period == 1
    return None if all_moe else divides(tensor, "tensor_parallel", model.ffn_hidden_size, "ffn_hidden_size")


@rule("scenario", "training.sequence_length")
def sequence_divides(scenario: Scenario) -> str | None:
    """Context parallelism gives every rank two equal chunks; sequence parallelism cuts them on."""
    plan, length = scenario.plan, scenario.training.sequence_length
    parts = 2 * plan.context_parallel if plan.context_parallel > 1 else 1
    if length % parts:
        return (
            f"{length} is not divisible by 2 x context_parallel {plan.context_parallel} = {parts}, "
            f"write a multiple of {parts}"
        )
    pieces = plan.context_parallel * plan.tensor_parallel
    cut = plan.sequence_parallel and plan.tensor_parallel > 1
    if cut and length % pieces and scenario.model.attention.num_heads % plan.tensor_parallel == 0:
        return (
            f"{length} is not divisible by context_parallel x tensor_parallel = {pieces}, "
            f"write a multiple of {pieces} or set plan.sequence_parallel: false"
        )
    return None


@rule("scenario", "training.sequence_length")
def sequence_within_positions(scenario: Scenario) -> str | None:
    """The model knows the positions of the sequence."""
    length, most = scenario.training.sequence_length, scenario.model.max_position_embeddings
    if length <= most:
        return None
    return (
        f"{length} is more than the {most} positions of {scenario.model.id}, "
        f"shorten it or --set model.max_position_embeddings={length}"
    )


@rule("scenario", "training.global_batch_size")
def batch_divides(scenario: Scenario) -> str | None:
    """Every data-parallel rank gets the same number of whole micro-batches."""
    data_parallel = _data_parallel(scenario)
    if data_parallel is None:
        return None
    training = scenario.training
    share = training.micro_batch_size * data_parallel
    if training.global_batch_size % share == 0:
        return None
    below = training.global_batch_size // share * share
    choice = f"{below} or {below + share}" if below else f"{share}"
    return (
        f"{training.global_batch_size} is not divisible by micro_batch_size {training.micro_batch_size} x "
        f"data_parallel {data_parallel} = {share}, choose {choice}"
    )


@rule("scenario", "training.global_batch_size")
def micro_batches_are_countable(scenario: Scenario) -> str | None:
    """A step of a hundred thousand micro-batches is a slip."""
    count = _micro_batches(scenario) or 0
    if count <= 2**16:
        return None
    return f"{count} micro-batches a step are more than {2**16}, write a smaller batch"


@rule("scenario", "plan.pipeline_parallel")
def layers_fill_stages(scenario: Scenario) -> str | None:
    """Every virtual stage of an even split has a layer, and they have equally many."""
    plan, layers = scenario.plan, scenario.model.num_layers
    if not _uniform(scenario) or plan.stage_layers is not None or plan.pipeline_layout is not None:
        return None
    if plan.schedule is Schedule.CUSTOM:
        return None  # its table says how many virtual stages there are
    each = 2 if plan.schedule.v_shaped else plan.virtual_pipeline
    stages = plan.pipeline_parallel * each
    named = f"pipeline_parallel {plan.pipeline_parallel} x virtual_pipeline {each} = {stages}"
    units = layers + plan.account_for_embedding + plan.account_for_loss
    if units < stages:
        return f"{layers} layers are fewer than the stages, {named}, choose fewer stages"
    if units % stages == 0:
        return None
    return f"{units} layers are not divisible by {named}, choose a divisor or write plan.stage_layers"


@rule("scenario", "plan.stage_layers")
def stage_layers_cover_model(scenario: Scenario) -> str | None:
    """A written split names every virtual stage and every layer."""
    plan, layers = scenario.plan, scenario.model.num_layers
    if not _uniform(scenario) or plan.stage_layers is None:
        return None
    stages = plan.pipeline_parallel * plan.virtual_pipeline
    if len(plan.stage_layers) != stages:
        return (
            f"{len(plan.stage_layers)} entries for pipeline_parallel x virtual_pipeline = {stages} stages, "
            "write one for each"
        )
    total = sum(plan.stage_layers)
    return None if total == layers else f"the sum is {total}, the model has {layers} layers, make them equal"


@rule("plan", "stage_layers")
def one_way_to_split(plan: Plan) -> str | None:
    """Layers are split in one way."""
    if plan.stage_layers is None:
        return None
    if plan.pipeline_layout is not None:
        return "given beside pipeline_layout, remove one of the two"
    if plan.account_for_embedding or plan.account_for_loss:
        return "given beside account_for_embedding or account_for_loss, remove one of the two"
    return None


@rule("plan", "pipeline_layout")
def layout_places_the_ends(plan: Plan) -> str | None:
    """A layout places embedding and loss itself."""
    if plan.pipeline_layout is None or not (plan.account_for_embedding or plan.account_for_loss):
        return None
    return "places embedding and loss itself, remove account_for_embedding and account_for_loss"


@rule("plan", "schedule")
def schedule_matches_virtual_pipeline(plan: Plan) -> str | None:
    """Virtual stages are what the interleaved schedule interleaves."""
    interleaved = plan.schedule is Schedule.INTERLEAVED
    if plan.schedule.v_shaped and plan.virtual_pipeline == 2:
        return None
    if plan.schedule is Schedule.CUSTOM:
        return None
    if plan.virtual_pipeline > 1 and not interleaved:
        return f"virtual_pipeline {plan.virtual_pipeline} needs schedule: interleaved (got {plan.schedule}), set it"
    if interleaved and plan.virtual_pipeline == 1 and plan.pipeline_layout is None and not plan.stages:
        return "interleaved needs virtual_pipeline above 1, set it or write 1f1b"
    return None


@rule("plan", "schedule_table")
def table_and_custom_schedule_go_together(plan: Plan) -> str | None:
    """A table of actions is what a custom schedule is."""
    if (plan.schedule is Schedule.CUSTOM) == (plan.schedule_table is not None):
        return None
    if plan.schedule_table is None:
        return "schedule: custom needs a table of actions, write one row a stage: 0F0,0F1,0B0,0B1"
    return f"is for schedule: custom (got {plan.schedule}), set it or remove the table"


@rule("plan", "virtual_pipeline")
def virtual_pipeline_needs_pipeline(plan: Plan) -> str | None:
    """Interleaving needs stages to interleave."""
    stages = len(plan.stages) or plan.pipeline_parallel
    if plan.virtual_pipeline == 1 or stages > 1:
        return None
    return f"{plan.virtual_pipeline} needs pipeline_parallel above 1, set it or write 1"


@rule("plan", "tp_comm_overlap")
def overlap_needs_sequence_parallel(plan: Plan) -> str | None:
    """Overlapping tensor-parallel collectives exist with sequence parallelism only."""
    if not plan.tp_comm_overlap or plan.sequence_parallel:
        return None
    return "needs sequence_parallel: true, set it or write false"


@rule("plan", "a2a_ffn_overlap_degree")
def pieces_have_one_way_to_overlap(plan: Plan) -> str | None:
    """Pieces are sent by all-to-alls of their own, and are not hidden beneath another micro-batch as well."""
    if plan.a2a_ffn_overlap_degree == 1:
        return None
    if plan.dispatcher != "alltoall":
        return f"needs dispatcher: alltoall (got {plan.dispatcher}), set it or write 1"
    if plan.overlap_moe_expert_parallel_comm:
        return "does not go with overlap_moe_expert_parallel_comm, write 1 or leave that overlap out"
    if plan.schedule in {Schedule.DUALPIPE, Schedule.DUALPIPE_V}:
        return f"does not go with schedule: {plan.schedule}, which hides exchanges by itself, write 1"
    return None


@rule("plan", "cuda_graph_scope")
def a_graph_of_the_iteration_is_alone(plan: Plan) -> str | None:
    """A graph of the whole iteration leaves nothing for others, and what prepares a dispatch follows the router."""
    scope = plan.cuda_graph_scope
    if "full_iteration" in scope and len(set(scope)) > 1:
        return "full_iteration covers the other scopes, write [full_iteration] alone"
    if "moe_preprocess" in scope and "moe_router" not in scope:
        return "moe_preprocess needs moe_router, add it"
    return None


@rule("scenario", "plan.cuda_graph_scope")
def a_graph_of_experts_needs_static_shapes(scenario: Scenario) -> str | None:
    """Graphs that hold the experts need a token count known beforehand."""
    if "moe" not in scenario.plan.cuda_graph_scope or scenario.routing.pad_to_capacity:
        return None
    return "moe needs routing.pad_to_capacity: true, set it or write [moe_router, moe_preprocess]"


@rule("recompute", "modules")
def modules_need_selective(recompute: Recompute) -> str | None:
    """Modules are chosen in selective recomputation, and at least one."""
    selective = recompute.granularity == "selective"
    if recompute.modules and not selective:
        return f"modules are for granularity: selective (got {recompute.granularity}), remove them"
    if selective and not recompute.modules:
        return "selective needs a module, write for example [core_attn]"
    return None


@rule("recompute", "num_layers")
def recompute_layers_need_full(recompute: Recompute) -> str | None:
    """Counting layers is for full recomputation."""
    if recompute.num_layers is None or recompute.granularity == "full":
        return None
    return f"num_layers is for granularity: full (got {recompute.granularity}), remove it"


@rule("scenario", "training.precision")
def precision_is_supported(scenario: Scenario) -> str | None:
    """Every accelerator computes in the dtypes of the recipe."""
    precision = scenario.training.precision
    wanted = (precision.gemm_dtype, precision.activation_dtype)
    for accelerator in scenario.cluster.accelerators:
        has = accelerator.peak_flops.supported()
        lacking = next((dtype for dtype in wanted if dtype not in has), None)
        if lacking is not None:
            what = lacking if precision.value == lacking.value else f"{precision} needs {lacking}, which"
            return (
                f"{what} is not supported by {accelerator.id} ({', '.join(has)}), "
                f"set training.precision: {_best_precision(scenario)}"
            )
    return None


def _best_precision(scenario: Scenario) -> Precision:
    """The best plain precision that all accelerators have."""
    parts = scenario.cluster.accelerators
    for dtype in (Dtype.BF16, Dtype.FP16):
        if all(part.peak_flops.get(dtype) is not None for part in parts):
            return Precision(dtype.value)
    return Precision.FP32
