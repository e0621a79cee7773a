"""From a row of a throughput table to the scenario it describes, with what had to be assumed.

Nothing here depends on the measured value, and no rule names a row.
"""

import re
from math import ceil
from typing import Any, NamedTuple

from simmoe.errors import SimmoeError
from simmoe.specs import catalog, checks
from simmoe.specs.document import Document, Position
from simmoe.specs.expand import expand
from simmoe.specs.model import Model
from simmoe.specs.plan import Plan, Recompute, Schedule
from simmoe.specs.scenario import Scenario
from simmoe.specs.throughput_cluster import cluster_of, stage_layers_of
from simmoe.specs.throughput_gaps import filled, sharding_group
from simmoe.specs.throughput_model import model_of
from simmoe.specs.throughput_moe import expert_plan_of, routing_of
from simmoe.specs.throughput_table_reader import TableRow
from simmoe.specs.throughput_words import (
    gradient_dtype_of,
    precision_of,
    recompute_of,
    software_month,
    software_of,
)
from simmoe.specs.workload import Precision, Training


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
    "non-plain-arch": "not a plain transformer",
    "fine-tuning": "fine-tuning on packed text",
    "parallel-block": "attention and MLP in parallel",
    "window-size-unknown": "attention window not stated",
    "gpus-mismatch": "parallel sizes do not multiply to the accelerators",
    "duplicate": "same measurement as another row",
}
_NOTED_FLAGS = {
    "activation-offload": "activation offload not modelled",
    "precision-partial": "fp8 in some GEMMs only",
    "source-inconsistent": "source contradicts itself",
}
# Sharding that gathers parameters layer by layer, and what it is here.
_LAYERWISE = {"zero2": "zero2", "zero3-fsdp": "zero3", "hsdp": "zero3"}
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
        row = filled(row, assumed)
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
    if sharding not in {"", "unknown", "none", "zero1", *_LAYERWISE}:
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
        cluster=cluster_of(row, assumed),
        training=training,
        routing=routing_of(row, assumed),
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
            "gradient_dtype": gradient_dtype_of(row.text("software"), row.text("zero_distopt")),
            "fp8_attention": "fp8-attention" in row.flags,
            "mtp": (row.whole("mtp_layers") or 0) > 0,
            "software": catalog.software(_stack(row)),
        }
    )


def _stack(row: TableRow) -> str:
    return software_of(_framework(row) or row.group, row.text("software_date"), row.text("year"))


def _framework(row: TableRow) -> str:
    """The framework, with the commit that the row names elsewhere."""
    commit = re.search(r"commit [0-9a-f]{7,}", row.text("schedule_overlap_flags"))
    return f"{row.text('software')} {commit[0] if commit else ''}".strip()


# ---------------------------------------------------------------- plan


def _plan(row: TableRow, model: Model, assumed: list[str]) -> Plan:
    pipeline = row.whole("pp") or 1
    schedule, virtual = _schedule(row, model, assumed)
    fused = catalog.software(_stack(row)).attention == "fused"
    recompute, note = recompute_of(row.text("recompute_norm"), fused_attention=fused)
    if recompute is None:
        raise _Unsupported(f"recomputation {row.text('recompute_norm')}")
    if recompute.num_layers is not None and recompute.num_layers >= ceil(model.num_layers / pipeline):
        recompute = Recompute(granularity="full")
    assumed.append(note)
    fields = {
        "tensor_parallel": row.whole("tp"),
        "pipeline_parallel": pipeline,
        "virtual_pipeline": virtual,
        "context_parallel": row.whole("cp") or 1,
        "schedule": schedule,
        "recompute": recompute,
        **expert_plan_of(row, model, schedule, recompute, _month(row), assumed),
        **_data_parallel(row, assumed),
        "tp_comm_overlap": _tensor_overlap(row),
        **_layers(row, model, pipeline * virtual, assumed),
    }
    return Plan.model_validate(fields)


def _tensor_overlap(row: TableRow) -> bool:
    """Overlap of tensor-parallel communication: as stated, else as the performance recipes of NeMo and Bridge have it.

    They switch tp_comm_overlap on for dense models (NVIDIA-NeMo/NeMo, nemo/collections/llm/recipes,
    MegatronCommOverlapCallback; NVIDIA-NeMo/Megatron-Bridge, scripts/performance); elsewhere Megatron's default is off.
    Userbuffers, which do it, take MXFP8 since Transformer Engine 2.4 of June 2025 (pull request 1711).
    """
    stated = row.switch("tp_overlap")
    recipes = re.search(r"nemo|bridge", row.text("software").lower()) is not None and not row.moe
    wanted = (recipes if stated is None else stated) and (row.whole("tp") or 1) > 1
    precision, _ = precision_of(row.text("precision_norm"), row.text("accelerator_id"))
    return wanted and (precision is not Precision.MXFP8 or _month(row) >= "2025-06")


def _month(row: TableRow) -> str:
    return software_month(_framework(row), row.text("software_date"), row.text("year"))


def _data_parallel(row: TableRow, assumed: list[str]) -> dict[str, Any]:
    """Sharding and overlap: as stated, else what the framework of that time does.

    Megatron-LM hid no gradient exchange and sharded no optimizer before 2023; sequence parallelism came together with
    selective recomputation (Korthikanti et al., arXiv:2205.05198). With a pipeline, FSDP keeps parameters whole between
    micro-batches: one gather and one scatter a step, as the distributed optimizer.
    """
    stack = _stack(row)
    early = stack in {"megatron-lm-2021", "megatron-deepspeed-2022"}  # the second is a fork of the first
    stated, sharding = row.switch("dp_overlap"), row.text("dp_sharding")
    overlap = not (early or stack == "flagperf-2024") if stated is None else stated
    full = sharding in _LAYERWISE and (row.whole("pp") or 1) == 1
    if sharding in _LAYERWISE and not full:
        assumed.append(f"{sharding} with a pipeline simulated as zero1")
    unsharded = sharding == "none" or (early and sharding in {"", "unknown"})
    plain = early or stack == "internevo-2024"  # its configuration has sequence_parallel off
    split = not plain or row.text("recompute_norm").startswith(("selective", "modules"))
    kept = sharding == "zero3-fsdp" and "not resharded after forward" in row.text("zero_distopt")
    layerwise = "zero2" if kept else _LAYERWISE.get(sharding, "zero1")
    return {
        "sharding": "none" if unsharded else layerwise if full else "zero1",
        "sharding_group": sharding_group(row, assumed) if full or sharding == "zero1" else None,
        "sequence_parallel": split and "no sequence parallel" not in row.text("schedule_overlap_flags"),
        "overlap_grad_reduce": overlap,
        "overlap_param_gather": overlap and "gradient sync overlap" not in row.text("schedule_overlap_flags"),
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


_LAYOUT = re.compile(r"(?:pp_layout=|\blayout )([EtmL|*()\d,]+)")


def _layers(row: TableRow, model: Model, stages: int, assumed: list[str]) -> dict[str, Any]:
    """How layers are divided over virtual stages: as written, evenly, or with the ends counted as layers."""
    written, units = _LAYOUT.search(row.text("schedule_overlap_flags")), stage_layers_of(row)
    layers = model.num_layers
    if written:
        return {"pipeline_layout": written[1]}
    counted = len(units) == stages and sum(units) == layers
    if counted or layers % stages == 0:
        return {"stage_layers": units} if counted else {}
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
