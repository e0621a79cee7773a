"""From the uniform form of a plan to its explicit list of stages."""

import re
from collections.abc import Iterator
from itertools import accumulate

from simmoe.errors import SpecError
from simmoe.specs.hardware import Cluster
from simmoe.specs.layout import VirtualStage, parse_layout, split_evenly, with_ends
from simmoe.specs.model import Model
from simmoe.specs.plan import Chunk, ExpertDevices, Plan, Schedule, Stage, Zebra
from simmoe.specs.workload import Training

_VIRTUAL_STAGE = re.compile(r"(?<![0-9A-Za-z])([0-9]{1,6})[FBIW][0-9]")


def expand(plan: Plan, model: Model, cluster: Cluster, training: Training) -> Plan:
    """Fill in `plan.stages`; a plan that already lists its stages is returned as it is.

    Parameters
    ----------
    plan : Plan
        Uniform or explicit.
    model, cluster, training : Model, Cluster, Training
        Give the layers, the world size, and whether MTP layers are trained.

    Returns
    -------
    Plan
        With `stages`, `virtual_pipeline` and `data_parallel` set.

    Raises
    ------
    SpecError
        If sizes do not divide or the layout does not hold the model's layers.
    """
    if plan.stages:
        return _with_positions(plan)
    mtp_layers = model.mtp_layers if training.mtp else 0
    virtual = _virtual_stages(plan, model, mtp_layers)
    if plan.zebra is not None:
        return _with_zebra_stages(plan, plan.zebra, virtual, model, cluster)
    pipeline, world = plan.pipeline_parallel, cluster.devices
    width = plan.tensor_parallel * plan.context_parallel
    if world % (width * pipeline):
        raise SpecError(
            [
                f"plan: {world} devices are not divisible by tensor_parallel x pipeline_parallel x context_parallel "
                f"= {width * pipeline}, change one of them or the node count"
            ]
        )
    held = _by_stage(_chunks(virtual), plan)
    devices = world // pipeline
    stages = tuple(
        Stage(
            first_device=stage * devices,
            devices=devices,
            chunks=held[stage],
            tensor_parallel=plan.tensor_parallel,
            context_parallel=plan.context_parallel,
            data_parallel=devices // width,
            expert_parallel=plan.expert_parallel,
            expert_tensor_parallel=plan.expert_tensor_parallel,
            sharding_group=plan.sharding_group,
            recompute=plan.recompute,
        )
        for stage in range(pipeline)
    )
    return plan.model_copy(
        update={
            "stages": stages,
            "data_parallel": devices // width,
            "virtual_pipeline": len(held[0]) // plan.schedule.replicas,
        }
    )


def _with_zebra_stages(
    plan: Plan, zebra: Zebra, virtual: tuple[VirtualStage, ...], model: Model, cluster: Cluster
) -> Plan:
    """The stages of zebra groups: attention devices of one node group, expert devices of another."""
    count = zebra.attention_devices * zebra.groups
    width = plan.tensor_parallel * plan.context_parallel
    if count % width:
        raise SpecError(
            [
                f"plan.zebra.attention_devices: {count} in all groups of a stage are not divisible by tensor_parallel "
                f"x context_parallel = {width}, change one of them"
            ]
        )
    first = _first_devices(cluster)
    attention, experts = first[zebra.attention_group], first[zebra.expert_group]
    if zebra.attention_group == zebra.expert_group:
        experts += count * len(virtual)
    stages = tuple(
        Stage(
            first_device=attention + number * count,
            devices=count,
            chunks=(chunk,),
            tensor_parallel=plan.tensor_parallel,
            context_parallel=plan.context_parallel,
            data_parallel=count // width,
            recompute=plan.recompute,
            experts=apart,
        )
        for number, (chunk, apart) in enumerate(_expert_devices(zebra, experts, _chunks(virtual), model))
    )
    # The explicit form says it all; two forms in one plan could contradict each other.
    return plan.model_copy(
        update={"stages": stages, "data_parallel": count // width, "virtual_pipeline": 1, "zebra": None}
    )


def _expert_devices(
    zebra: Zebra, first: int, chunks: list[Chunk], model: Model
) -> Iterator[tuple[Chunk, ExpertDevices]]:
    """The expert devices beside each chunk, with the part of the moved experts that belongs to its layers."""
    devices, moved = zebra.expert_devices * zebra.groups, zebra.moved_experts
    for number, chunk in enumerate(chunks):
        own = len(moe_layers(model, chunk))
        yield (
            chunk,
            ExpertDevices(
                first_device=first + number * devices,
                devices=devices,
                groups=zebra.groups,
                micro_batches=zebra.micro_batches,
                moved_experts=moved[:own],
            ),
        )
        moved = moved[own:]


def _first_devices(cluster: Cluster) -> list[int]:
    """The first device of each node group."""
    return list(accumulate((group.devices for group in cluster.groups), initial=0))[:-1]


def moe_layers(model: Model, chunk: Chunk) -> tuple[int, ...]:
    """The numbers of the layers of a chunk that have experts; MTP layers are like the last layer of the model."""
    plain = [index for index in range(chunk.first_layer, chunk.first_layer + chunk.layers) if model.layer(index).moe]
    last = model.layer(model.num_layers - 1).moe
    more = range(model.num_layers, model.num_layers + chunk.mtp_layers) if last else ()
    return (*plain, *more)


def _virtual_stages(plan: Plan, model: Model, mtp_layers: int) -> tuple[VirtualStage, ...]:
    """The virtual stages in model order, from the layout, the list of layers or an even split."""
    if plan.pipeline_layout is not None:
        virtual = parse_layout(plan.pipeline_layout)
    elif plan.stage_layers is not None:
        virtual = with_ends(plan.stage_layers, mtp_layers)
    else:
        return split_evenly(
            model.num_layers,
            _virtual_count(plan),
            count_embedding=plan.account_for_embedding,
            count_loss=plan.account_for_loss,
            mtp_layers=mtp_layers,
        )
    _check_layers(virtual, plan, model, mtp_layers)
    return virtual


def _check_layers(virtual: tuple[VirtualStage, ...], plan: Plan, model: Model, mtp_layers: int) -> None:
    """Compare a written layout with the model and the pipeline size."""
    problems = []
    layers = sum(stage.layers for stage in virtual)
    found_mtp = sum(stage.mtp_layers for stage in virtual)
    if layers != model.num_layers:
        problems.append(f"plan: the layout holds {layers} layers, the model has {model.num_layers}, make them equal")
    if found_mtp != mtp_layers:
        problems.append(
            f"plan: the layout holds {found_mtp} MTP layers, the run trains {mtp_layers}, "
            "change the layout or training.mtp"
        )
    wanted = _virtual_count(plan)
    virtual_unset = plan.virtual_pipeline == 1 and plan.pipeline_layout is not None
    if len(virtual) != wanted and not (virtual_unset and len(virtual) % plan.pipeline_parallel == 0):
        problems.append(
            f"plan: the layout has {len(virtual)} virtual stages, pipeline_parallel x virtual_pipeline is {wanted}, "
            "make them equal"
        )
    if problems:
        raise SpecError(problems)


def _virtual_count(plan: Plan) -> int:
    """Virtual stages that a micro-batch passes."""
    if plan.schedule is Schedule.CUSTOM:
        return sum(len(row) for row in table_positions(plan))
    return plan.pipeline_parallel * (2 if plan.schedule.v_shaped else plan.virtual_pipeline)


def _by_stage(chunks: list[Chunk], plan: Plan) -> list[tuple[Chunk, ...]]:
    """The chunks that each stage holds, of every copy of the model."""
    if plan.schedule is Schedule.CUSTOM:
        return [tuple(chunks[position] for position in row) for row in table_positions(plan)]
    held: list[list[Chunk]] = [[] for _ in range(plan.pipeline_parallel)]
    for replica in range(plan.schedule.replicas):
        for chunk in chunks:
            stage = plan.schedule.stage_of(chunk.position, plan.pipeline_parallel, replica)
            held[stage].append(chunk.model_copy(update={"replica": replica}))
    return [tuple(part) for part in held]


def table_positions(plan: Plan) -> list[list[int]]:
    """The virtual stages that each row of a table of actions works on, ascending.

    Raises
    ------
    SpecError
        If there are not as many rows as stages, or the virtual stages are not numbered from 0 without gaps.

    Examples
    --------
    >>> rows = ("0F0,3F0,3B0,0B0", "1F0,2F0,2B0,1B0")
    >>> table_positions(Plan(pipeline_parallel=2, schedule="custom", schedule_table=chr(10).join(rows)))
    [[0, 3], [1, 2]]
    """
    lines = [line for line in (plan.schedule_table or "").splitlines() if line.strip()]
    rows = [sorted({int(number) for number in _VIRTUAL_STAGE.findall(line)}) for line in lines]
    if len(rows) != plan.pipeline_parallel:
        raise SpecError(
            [f"plan.schedule_table: {len(rows)} rows for {plan.pipeline_parallel} pipeline stages, write one row each"]
        )
    found = sorted(number for row in rows for number in row)
    if found != list(range(len(found))):
        raise SpecError(
            [f"plan.schedule_table: virtual stages {found[:20]} are not numbered from 0 without gaps or repeats"]
        )
    return rows


def _with_positions(plan: Plan) -> Plan:
    """Number the chunks of explicit stages that leave their positions out."""
    if any(chunk.position for stage in plan.stages for chunk in stage.chunks):
        return plan
    count = len(plan.stages)
    stages = []
    for number, stage in enumerate(plan.stages):
        chunks = []
        for place, chunk in enumerate(stage.chunks):
            position = place * count + number
            if plan.schedule.v_shaped and place:
                position = 2 * count - 1 - number
            chunks.append(chunk.model_copy(update={"position": position}))
        stages.append(stage.model_copy(update={"chunks": tuple(chunks)}))
    return plan.model_copy(update={"stages": tuple(stages)})


def _chunks(virtual: tuple[VirtualStage, ...]) -> list[Chunk]:
    """Number the layers of the virtual stages in model order."""
    chunks, first = [], 0
    for position, stage in enumerate(virtual):
        chunks.append(
            Chunk(
                position=position,
                first_layer=first,
                layers=stage.layers,
                embedding=stage.embedding,
                mtp_layers=stage.mtp_layers,
                head=stage.head,
            )
        )
        first += stage.layers
    return chunks
