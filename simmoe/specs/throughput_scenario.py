"""From a row of a throughput table to the scenario it describes, with what had to be assumed.

Nothing here depends on the measured value, and no rule names a row.
"""

import re
from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

from simmoe.errors import SimmoeError
from simmoe.specs import catalog, checks
from simmoe.specs.document import Document, Position
from simmoe.specs.expand import expand
from simmoe.specs.hardware import Cluster, Fabric, NodeGroup
from simmoe.specs.model import Model
from simmoe.specs.plan import Plan, Recompute, Schedule
from simmoe.specs.scenario import Scenario
from simmoe.specs.throughput_model import model_of
from simmoe.specs.throughput_table_reader import TableRow
from simmoe.specs.throughput_words import TRAYS_PER_RACK, node_of, precision_of, recompute_of, software_of
from simmoe.specs.workload import Routing, Training


class Reading(NamedTuple):
    """What a row became.

    Attributes
    ----------
    scenario : Scenario or None
        None if the row cannot be simulated.
    reason : str
        Why it cannot; empty otherwise.
    assumptions : tuple of str
        What the source does not say and what SimMoE does not model; empty = the run as published.
    """

    scenario: Scenario | None
    reason: str = ""
    assumptions: tuple[str, ...] = ()


class _Unsupported(Exception):  # noqa: N818 - not an error: the row stays in the table with this reason
    """The row describes something that cannot be simulated."""


_BLOCKING_FLAGS = {
    "heterogeneous": "several accelerator types in one job",
    "non-plain-arch": "not a plain transformer",
    "fine-tuning": "fine-tuning on packed text",
    "parallel-block": "attention and MLP in parallel",
    "window-size-unknown": "attention window not stated",
    "gpus-mismatch": "parallel sizes do not multiply to the accelerators",
    "duplicate": "same measurement as another row",
}
_NOTED_FLAGS = {
    "fp8-attention": "attention in 8 bits simulated in 16",
    "activation-offload": "activation offload not modelled",
    "precision-partial": "fp8 in some GEMMs only",
    "remat-policy": "JAX rematerialisation policy not modelled",
    "source-inconsistent": "source contradicts itself",
}
_NEEDED = ("num_gpus", "gpus_per_node", "seq_len", "gbs", "tp", "pp", "num_layers", "hidden_size", "num_heads")


def scenario_of(row: TableRow) -> Reading:
    """The scenario of a row, or why there is none.

    Parameters
    ----------
    row : TableRow
        As `simmoe.specs.throughput_table_reader.read_table` returns it.

    Returns
    -------
    Reading
        Its scenario has the stages of its plan filled in and obeys every consistency rule.
    """
    assumed: list[str] = []
    try:
        _refuse(row)
        return Reading(_scenario(row, assumed), assumptions=tuple(dict.fromkeys(filter(None, assumed))))
    except _Unsupported as reason:
        return Reading(None, reason=str(reason))
    except SimmoeError as error:
        return Reading(None, reason="; ".join(str(error).splitlines()))


def _refuse(row: TableRow) -> None:
    """Raise for what the table itself says cannot be simulated."""
    for flag, reason in _BLOCKING_FLAGS.items():
        if flag in row.flags:
            raise _Unsupported(reason)
    if row.measured_s is None:
        raise _Unsupported("no step time")
    for column in (*_NEEDED, *(("moe_ffn_hidden_size", "top_k", "ep") if row.moe else ("ffn_hidden_size",))):
        if row.whole(column) is None:
            raise _Unsupported(f"{column} not stated")
    if row.whole("vocab_size") is None:
        raise _Unsupported("vocab_size not stated")
    sharding = row.text("dp_sharding")
    if sharding not in {"", "unknown", "none", "zero1", "zero3-fsdp"}:
        raise _Unsupported(f"{sharding} sharding not modelled")
    if row.text("dispatcher_norm") == "tutel":
        raise _Unsupported("dispatcher tutel not modelled")


def _scenario(row: TableRow, assumed: list[str]) -> Scenario:
    """The checked scenario; what had to be assumed is added to `assumed`."""
    model = model_of(row)
    plan = _plan(row, model, assumed)
    training = _training(row, assumed)
    scenario = Scenario(
        name=row.id,
        model=model,
        cluster=_cluster(row),
        training=training,
        routing=_routing(row, assumed),
        plan=plan,
    )
    assumed += [note for flag, note in _NOTED_FLAGS.items() if flag in row.flags]
    _check("scenario", scenario)
    full = expand(scenario.plan, scenario.model, scenario.cluster, scenario.training)
    scenario = scenario.model_copy(update={"plan": full})
    _check("expanded", scenario)
    return scenario


def _check(kind: str, scenario: Scenario) -> None:
    """Raise with the first rule that the scenario breaks."""
    problems = checks.run(kind, scenario, Document(Position(""), {}))
    if problems:
        raise _Unsupported(f"{problems[0].key}: {problems[0].sentence}")


# ---------------------------------------------------------------- cluster


def _cluster(row: TableRow) -> Cluster:
    accelerator, devices, per_node = row.text("accelerator_id"), row.whole("num_gpus"), row.whole("gpus_per_node")
    found = node_of(accelerator, row.text("interconnect"), catalog.list_ids("link"))
    if found is None:
        raise _Unsupported(f"no hardware data for {accelerator or 'an accelerator that is not named'}")
    node = catalog.node(found.node)
    if devices is None or per_node != node.accelerators:
        raise _Unsupported(f"{per_node} {accelerator} a node, {node.id} has {node.accelerators}")
    if devices < per_node:
        node, per_node = node.model_copy(update={"accelerators": devices}), devices
    count, rest = divmod(devices, per_node)
    if rest:
        raise _Unsupported(f"{devices} accelerators do not fill nodes of {per_node}")
    trays = TRAYS_PER_RACK.get(accelerator)
    group = NodeGroup(node=node, count=count, nodes_per_domain=min(trays, count) if trays else None)
    return Cluster(groups=(group,), fabric=Fabric(link=catalog.link(found.link)))


# ---------------------------------------------------------------- training


def _training(row: TableRow, assumed: list[str]) -> Training:
    precision, note = precision_of(row.text("precision_norm"), row.text("accelerator_id"))
    if precision is None:
        raise _Unsupported(f"precision {row.text('precision_norm') or 'not stated'}")
    assumed.append(note)
    if row.whole("mbs") is None:
        assumed.append("micro-batch not stated, 1 assumed")
    return Training.model_validate(
        {
            "sequence_length": row.whole("seq_len"),
            "micro_batch_size": row.whole("mbs") or 1,
            "global_batch_size": row.whole("gbs"),
            "precision": precision,
            "mtp": (row.whole("mtp_layers") or 0) > 0,
            "software": catalog.software(_stack(row)),
        }
    )


def _stack(row: TableRow) -> str:
    return software_of(row.text("software") or row.group, row.text("software_date"), row.text("year"))


def _routing(row: TableRow, assumed: list[str]) -> Routing:
    capacity, word = row.real("capacity_factor"), row.text("routing")
    if row.moe and word == "natural":
        assumed.append("natural routing simulated as balanced")
    if row.moe and word in {"", "unknown"}:
        assumed.append("routing not stated, balanced assumed")
    if word == "drop" and capacity is None:
        assumed.append("capacity factor not stated, dropless assumed")
    return Routing(capacity_factor=capacity, pad_to_capacity=capacity is not None)


# ---------------------------------------------------------------- plan


def _plan(row: TableRow, model: Model, assumed: list[str]) -> Plan:
    pipeline = row.whole("pp") or 1
    schedule, virtual = _schedule(row, model, assumed)
    recompute, note = recompute_of(row.text("recompute_norm"))
    if recompute is None:
        raise _Unsupported(f"recomputation {row.text('recompute_norm')}")
    if recompute.num_layers is not None and recompute.num_layers >= ceil(model.num_layers / pipeline):
        recompute = Recompute(granularity="full")
    assumed += [note, *_unmodelled(row)]
    fields = {
        "tensor_parallel": row.whole("tp"),
        "pipeline_parallel": pipeline,
        "virtual_pipeline": virtual,
        "context_parallel": row.whole("cp") or 1,
        "expert_parallel": row.whole("ep") or 1,
        "expert_tensor_parallel": _expert_tensor_parallel(row, assumed),
        "schedule": schedule,
        "recompute": recompute,
        "dispatcher": _dispatcher(row, assumed),
        **_data_parallel(row, assumed),
        "overlap_moe_expert_parallel_comm": _exchange_overlap(row, schedule, recompute, assumed),
        "tp_comm_overlap": (row.switch("tp_overlap") or False) and (row.whole("tp") or 1) > 1,
        "cuda_graph": "full_iteration" in row.text("schedule_overlap_flags"),
        **_layers(row, model, pipeline * virtual, assumed),
    }
    return Plan.model_validate(fields)


def _data_parallel(row: TableRow, assumed: list[str]) -> dict[str, Any]:
    """Sharding and overlap: as stated, else what the framework of that time does.

    Megatron-LM hid no gradient exchange and sharded no optimizer before 2023; sequence parallelism came together with
    selective recomputation (Korthikanti et al., arXiv:2205.05198). With a pipeline, FSDP keeps parameters whole between
    micro-batches: one gather and one scatter a step, as the distributed optimizer.
    """
    early = _stack(row) == "megatron-lm-2021"
    stated, sharding = row.switch("dp_overlap"), row.text("dp_sharding")
    overlap = not early if stated is None else stated
    full = sharding == "zero3-fsdp" and (row.whole("pp") or 1) == 1
    if sharding == "zero3-fsdp" and not full:
        assumed.append("FSDP with a pipeline simulated as zero1")
    unsharded = sharding == "none" or (early and sharding in {"", "unknown"})
    split = not early or row.text("recompute_norm").startswith(("selective", "modules"))
    return {
        "sharding": "none" if unsharded else "zero3" if full else "zero1",
        "sequence_parallel": split and "no sequence parallel" not in row.text("schedule_overlap_flags"),
        "overlap_grad_reduce": overlap,
        "overlap_param_gather": overlap,
    }


def _schedule(row: TableRow, model: Model, assumed: list[str]) -> tuple[Schedule, int]:
    """The schedule and the virtual stages of a rank."""
    word, virtual, pipeline = row.text("schedule_norm"), row.whole("vpp"), row.whole("pp") or 1
    if pipeline == 1 or word in {"none", "1f1b"}:
        return Schedule.ONE_F_ONE_B, 1
    if word == "gpipe":
        return Schedule.GPIPE, 1
    if word not in {"", "unknown", "interleaved"}:
        raise _Unsupported(f"schedule {word} not modelled")
    if virtual is None:
        virtual = _usual_virtual(row, model, pipeline)
        assumed.append(f"virtual stages not stated, {virtual} assumed")
    return (Schedule.INTERLEAVED, virtual) if virtual > 1 else (Schedule.ONE_F_ONE_B, 1)


def _usual_virtual(row: TableRow, model: Model, pipeline: int) -> int:
    """One layer in each virtual stage, as in Megatron-Core's reference mappings, where layers and batch divide."""
    replicas = max(1, (row.whole("num_gpus") or 1) // (pipeline * (row.whole("tp") or 1) * (row.whole("cp") or 1)))
    batches = (row.whole("gbs") or 1) // (replicas * (row.whole("mbs") or 1))
    return model.num_layers // pipeline if model.num_layers % pipeline == 0 and batches % pipeline == 0 else 1


def _expert_tensor_parallel(row: TableRow, assumed: list[str]) -> int:
    """Unsaid, it is Megatron's default: the tensor-parallel size, or 1 where that does not divide a stage."""
    stated, tensor = row.whole("etp"), row.whole("tp") or 1
    if stated is not None or tensor == 1 or not row.moe:
        return stated or 1
    stage = (row.whole("num_gpus") or 1) // (row.whole("pp") or 1)
    size = tensor if stage % (tensor * (row.whole("ep") or 1)) == 0 else 1
    assumed.append(f"expert tensor parallelism not stated, {size} assumed")
    return size


def _dispatcher(row: TableRow, assumed: list[str]) -> str:
    word = row.text("dispatcher_norm")
    if word == "uccl":
        assumed.append("UCCL simulated as DeepEP")
        return "deepep"
    if word in {"", "unknown"}:
        if row.moe and (row.whole("ep") or 1) > 1:
            assumed.append("dispatcher not stated, alltoall assumed")
        return "alltoall"
    return word


def _exchange_overlap(row: TableRow, schedule: Schedule, recompute: Recompute, assumed: list[str]) -> bool:
    """Overlap of the expert all-to-all, where Megatron has it: interleaved or one stage, no full recomputation."""
    if not row.switch("ep_overlap") or (row.whole("ep") or 1) == 1:
        return False
    joined = schedule is Schedule.INTERLEAVED or (row.whole("pp") or 1) == 1
    if joined and recompute.granularity != "full":
        return True
    assumed.append(f"expert all-to-all overlap with {schedule} and recompute {recompute.granularity} not modelled")
    return False


def _unmodelled(row: TableRow) -> Iterator[str]:
    if row.switch("cuda_graph") and "full_iteration" not in row.text("schedule_overlap_flags"):
        yield "partial CUDA graph not modelled"


_LAYOUT = re.compile(r"(?:pp_layout=|\blayout )([EtmL|*()\d,]+)")


def _layers(row: TableRow, model: Model, stages: int, assumed: list[str]) -> dict[str, Any]:
    """How layers are divided over virtual stages: as written, evenly, or with the ends counted as layers."""
    written = _LAYOUT.search(row.text("schedule_overlap_flags"))
    layers = model.num_layers
    if written:
        return {"pipeline_layout": written[1]}
    if layers % stages == 0:
        return {}
    if (layers + 2) % stages == 0:
        return {"account_for_embedding": True, "account_for_loss": True}
    if (layers + 1) % stages == 0:
        return {"account_for_loss": True}
    assumed.append("division of layers not stated, full stages first")
    each = ceil(layers / stages)
    if each * (stages - 1) < layers:
        return {"stage_layers": (each,) * (stages - 1) + (layers - each * (stages - 1),)}
    each, longer = divmod(layers, stages)  # full stages would leave the last ones empty
    return {"stage_layers": (each + 1,) * longer + (each,) * (stages - longer)}
