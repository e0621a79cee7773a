"""What must hold for a plan that lists its stages: each stage alone, then beside cluster and model."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import attrgetter

from simmoe.specs.plan import Chunk, Plan, Recompute, Schedule, Stage
from simmoe.specs.rules import divides, rule
from simmoe.specs.scenario import Scenario


@rule("stage", "devices")
def sizes_make_devices(stage: Stage) -> str | None:
    """A stage holds tp * cp * dp devices."""
    product = stage.tensor_parallel * stage.context_parallel * stage.data_parallel
    if product == stage.devices:
        return None
    return (
        f"tensor_parallel {stage.tensor_parallel} x context_parallel {stage.context_parallel} x "
        f"data_parallel {stage.data_parallel} = {product} (got {stage.devices}), make them equal"
    )


@rule("stage", "expert_parallel")
def expert_groups_fit_stage(stage: Stage) -> str | None:
    """A stage holds whole expert groups of ep * etp devices."""
    group = stage.expert_parallel * stage.expert_tensor_parallel
    if stage.devices % group == 0:
        return None
    return (
        f"expert_parallel {stage.expert_parallel} x expert_tensor_parallel {stage.expert_tensor_parallel} "
        f"= {group} does not divide the {stage.devices} devices, choose a divisor"
    )


def _chunks_in_order(plan: Plan) -> list[Chunk]:
    """Chunks in model order: all first chunks, then all second ones."""
    most = max((len(stage.chunks) for stage in plan.stages), default=0)
    return [s.chunks[index] for index in range(most) for s in plan.stages if index < len(s.chunks)]


@rule("plan", "stages")
def stages_have_equal_chunks(plan: Plan) -> str | None:
    """Every stage has as many virtual stages as the others."""
    counts = {len(stage.chunks) for stage in plan.stages}
    if len(counts) <= 1:
        return None
    return f"stages of {min(counts)} and of {max(counts)} chunks, give all the same number"


@rule("plan", "stages")
def ends_are_placed(plan: Plan) -> str | None:
    """The embedding stands before the first layer, the head after the last, each once."""
    chunks = _chunks_in_order(plan)
    if not chunks:
        return None
    if [chunk.embedding for chunk in chunks] != [True] + [False] * (len(chunks) - 1):
        return "the embedding belongs to the first chunk alone, set embedding: true there"
    if [chunk.head for chunk in chunks] != [False] * (len(chunks) - 1) + [True]:
        return "the head belongs to the last chunk alone, set head: true there"
    return None


@rule("plan", "stages")
def devices_are_used_once(plan: Plan) -> str | None:
    """No device serves two stages, or attention and experts of one."""
    parts = [(number, part) for number, stage in enumerate(plan.stages) for part in stage.roles]
    ordered = sorted(parts, key=lambda item: item[1].first_device)
    for (one, left), (other, right) in pairwise(ordered):
        end = left.first_device + left.devices
        if right.first_device < end:
            return f"stages {one} and {other} share device {right.first_device}, start at {end} or later"
    return None


def _contradiction(name: str, read: Callable[[Stage], int]) -> None:
    """Register: a uniform size written beside explicit stages equals that of every stage."""

    def check(plan: Plan) -> str | None:
        written = getattr(plan, name)
        if not plan.stages or name not in plan.model_fields_set or written is None:
            return None
        other = next((read(stage) for stage in plan.stages if read(stage) != written), written)
        if other == written:
            return None
        return f"{written} contradicts the stages ({other}), remove one: the size or plan.stages"

    rule("plan", name)(check)


for _name in (
    "tensor_parallel",
    "context_parallel",
    "data_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
):
    _contradiction(_name, attrgetter(_name))
_contradiction("virtual_pipeline", lambda stage: len(stage.chunks))


@rule("plan", "pipeline_parallel")
def pipeline_parallel_counts_stages(plan: Plan) -> str | None:
    """A pipeline size written beside explicit stages is their number."""
    if not plan.stages or "pipeline_parallel" not in plan.model_fields_set:
        return None
    if plan.pipeline_parallel == len(plan.stages):
        return None
    return f"{plan.pipeline_parallel} contradicts the {len(plan.stages)} stages, remove one of the two"


@rule("scenario", "plan.stages")
def stages_inside_cluster(scenario: Scenario) -> str | None:
    """Every device of a stage exists."""
    world = scenario.cluster.devices
    for number, stage in enumerate(scenario.plan.stages):
        end = max(part.first_device + part.devices for part in stage.roles)
        if end > world:
            return f"stage {number} ends at device {end}, the cluster has {world}, use fewer"
    return None


@rule("scenario", "plan.stages")
def stages_cover_layers(scenario: Scenario) -> str | None:
    """The chunks hold the model's layers, in order, each once."""
    chunks = _chunks_in_order(scenario.plan)
    expected = 0
    for chunk in chunks:
        if chunk.first_layer != expected:
            return f"a chunk starts at layer {chunk.first_layer}, layer {expected} is next, correct it"
        expected += chunk.layers
    layers = scenario.model.num_layers
    if not chunks or expected == layers:
        return None
    return f"the stages hold {expected} layers, the model has {layers}, make them equal"


@rule("scenario", "plan.stages")
def stages_hold_mtp_layers(scenario: Scenario) -> str | None:
    """The chunks hold the MTP layers that the run trains."""
    if not scenario.plan.stages:
        return None
    wanted = scenario.model.mtp_layers if scenario.training.mtp else 0
    held = sum(chunk.mtp_layers for chunk in _chunks_in_order(scenario.plan))
    if held == wanted:
        return None
    return f"the stages hold {held} MTP layers, the run trains {wanted}, change them or training.mtp"


def stage_problems(scenario: Scenario, stage: Stage) -> Iterator[str | None]:
    """What the model and the batch ask of one stage."""
    model, training = scenario.model, scenario.training
    yield divides(stage.tensor_parallel, "tensor_parallel", model.attention.num_heads, "num_heads")
    if model.moe is not None:
        yield divides(stage.expert_parallel, "expert_parallel", model.moe.num_experts, "num_experts")
        yield divides(
            stage.expert_tensor_parallel,
            "expert_tensor_parallel",
            model.moe.moe_ffn_hidden_size,
            "moe_ffn_hidden_size",
        )
    elif stage.expert_parallel * stage.expert_tensor_parallel > 1:
        yield f"expert_parallel {stage.expert_parallel} needs experts, write 1"
    widest = scenario.plan.widest if scenario.plan.stages else stage.width
    together = " x zebra micro_batches" if any(one.together > 1 for one in (stage, *scenario.plan.stages)) else ""
    width = f"data_parallel{together}"
    yield divides(stage.width, width, widest, f"the largest {width} of a stage")
    share = training.micro_batch_size * widest
    if training.global_batch_size % share:
        yield (
            f"global_batch_size {training.global_batch_size} is not divisible by micro_batch_size x "
            f"{width} = {share}, change one of them"
        )
    parts = 2 * stage.context_parallel if stage.context_parallel > 1 else 1
    if training.sequence_length % parts:
        yield f"sequence_length {training.sequence_length} is not divisible by {parts}, change one of them"


@rule("scenario", "plan.stages")
def stages_fit_model(scenario: Scenario) -> str | None:
    """The sizes of every stage divide what they cut."""
    for number, stage in enumerate(scenario.plan.stages):
        for sentence in stage_problems(scenario, stage):
            if sentence is not None:
                return f"stage {number}: {sentence}"
    return None


@rule("expanded", "plan.schedule")
def schedule_matches_chunks(scenario: Scenario) -> str | None:
    """Virtual stages of a layout or of explicit stages need the interleaved schedule, and it them."""
    plan = scenario.plan
    chunks = max(len(stage.chunks) for stage in plan.stages)
    interleaved = plan.schedule is Schedule.INTERLEAVED
    if plan.schedule.v_shaped or plan.schedule.replicas > 1:
        return None if chunks == 2 else f"{plan.schedule} needs two chunks on every stage (got {chunks})"
    if plan.schedule is Schedule.CUSTOM:
        return None
    if chunks > 1 and not interleaved:
        return f"{chunks} chunks a stage need interleaved (got {plan.schedule}), set it"
    if interleaved and chunks == 1:
        return "interleaved needs more than one chunk a stage, write 1f1b"
    return None


@rule("expanded", "plan.schedule")
def micro_batches_fill_interleaving(scenario: Scenario) -> str | None:
    """The interleaved schedule works in rounds of one micro-batch a stage."""
    plan, training = scenario.plan, scenario.training
    stages = len(plan.stages)
    share = training.micro_batch_size * plan.widest
    count = training.global_batch_size // share
    if plan.schedule is not Schedule.INTERLEAVED or count % (plan.microbatch_group_size or stages) == 0:
        return None
    return (
        f"interleaved needs micro-batches in multiples of {stages} stages (got {count}), "
        f"set training.global_batch_size to a multiple of {share * stages}"
    )


@rule("expanded", "plan.schedule")
def micro_batches_fill_both_ways(scenario: Scenario) -> str | None:
    """DualPipe feeds the pipeline from both ends, its V form turns around at the last stage."""
    plan, training = scenario.plan, scenario.training
    stages, schedule = len(plan.stages), plan.schedule
    share = training.micro_batch_size * plan.widest
    count = training.global_batch_size // share
    if schedule is Schedule.DUALPIPE and (stages % 2 or count % 2):
        return f"dualpipe needs even numbers of stages and micro-batches (got {stages} and {count}), change one of them"
    if schedule in {Schedule.DUALPIPE, Schedule.DUALPIPE_V} and count < 2 * stages:
        return (
            f"{schedule} needs at least {2 * stages} micro-batches on {stages} stages (got {count}), "
            f"set training.global_batch_size to {2 * stages * share} or more"
        )
    return None


@rule("expanded", "plan.sharding")
def sharded_parameters_need_one_stage(scenario: Scenario) -> str | None:
    """With a pipeline, FSDP keeps parameters whole between micro-batches, which is what zero1 describes."""
    plan, count = scenario.plan, len(scenario.plan.stages)
    if not plan.layerwise or count == 1:
        return None
    return f"{plan.sharding} needs one pipeline stage (got {count}), write zero1 or pipeline_parallel: 1"


@rule("expanded", "plan.sharding_group")
def sharding_group_divides(scenario: Scenario) -> str | None:
    """The ranks that hold the same part of the model divide into groups that share one copy."""
    plan, group = scenario.plan, scenario.plan.sharding_group
    if group is None:
        return None
    if plan.sharding == "none":
        return "sharding none has no groups, write zero1, zero2 or zero3 or leave it out"
    if any(stage.sharding_group != group for stage in plan.stages):
        return f"the stages have another sharding_group than the plan (got {group}), write the same in all of them"
    replicas = plan.stages[0].data_parallel * plan.stages[0].context_parallel
    return divides(group, "sharding_group", replicas, "data_parallel x context_parallel")


@rule("expanded", "plan.overlap_moe_expert_parallel_comm")
def overlap_has_something_to_overlap(scenario: Scenario) -> str | None:
    """Batch-level overlap joins passes of different micro-batches of one of two schedules."""
    plan = scenario.plan
    if not plan.overlap_moe_expert_parallel_comm:
        return None
    one_stage = plan.schedule is Schedule.ONE_F_ONE_B and len(plan.stages) == 1
    if plan.schedule is not Schedule.INTERLEAVED and not one_stage:
        return f"needs schedule: interleaved, or 1f1b on one stage (got {plan.schedule}), change one of them"
    if all(stage.expert_parallel == 1 for stage in plan.stages):
        return "needs expert_parallel above 1, set it or leave the overlap out"
    if any(stage.recompute.granularity == "full" for stage in plan.stages):
        return "does not go with recompute: full, use selective or none"
    return None


@rule("expanded", "plan.a2a_ffn_overlap_degree")
def pieces_need_an_exchange(scenario: Scenario) -> str | None:
    """What is cut into pieces is the exchange with experts on other devices."""
    plan = scenario.plan
    if plan.a2a_ffn_overlap_degree == 1:
        return None
    if any(stage.expert_parallel > 1 or stage.experts is not None for stage in plan.stages):
        return None
    return f"{plan.a2a_ffn_overlap_degree} needs expert_parallel above 1, set it or write 1"


def _modules_sentence(recompute: Recompute, scenario: Scenario) -> str | None:
    """The first module of selective recomputation that the model lacks."""
    moe, attention = scenario.model.moe, scenario.model.attention
    shared = moe is not None and moe.shared_expert_ffn_hidden_size > 0
    needs = (
        ("moe", moe is not None, "experts"),
        ("moe_act", moe is not None, "experts"),
        ("shared_experts", shared, "shared experts"),
        ("mla_up_proj", attention.kind == "mla", "latent attention"),
    )
    for module, there, what in needs:
        if module in recompute.modules and not there:
            return f"{module} needs {what}, which {scenario.model.id} lacks, remove it"
    return None


@rule("scenario", "plan.recompute.modules")
def recompute_modules_exist(scenario: Scenario) -> str | None:
    """What is recomputed is part of the model."""
    plan = scenario.plan
    for recompute in (plan.recompute, *(stage.recompute for stage in plan.stages)):
        sentence = _modules_sentence(recompute, scenario)
        if sentence is not None:
            return sentence
    return None


@rule("expanded", "plan.recompute.num_layers")
def recompute_layers_within_stage(scenario: Scenario) -> str | None:
    """A stage cannot recompute more layers than it has."""
    most = max(stage.layers for stage in scenario.plan.stages)
    for stage in scenario.plan.stages:
        if (stage.recompute.num_layers or 0) > most:
            return f"{stage.recompute.num_layers} layers are more than a stage has ({most}), write less"
    return None
