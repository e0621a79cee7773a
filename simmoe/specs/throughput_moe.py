"""What a row of a throughput table says of experts: routing, dispatcher, overlap, CUDA graphs, and what blanks mean.

A blank stands for what the framework's own recipes of that time do; none of the rules looks at the measured time.
"""

import re
from typing import Any

from simmoe.specs.model import Model
from simmoe.specs.plan import Recompute, Schedule
from simmoe.specs.throughput_table_reader import TableRow
from simmoe.specs.throughput_words import TRAYS_PER_RACK, graph_scope_of
from simmoe.specs.workload import Routing

_DISPATCHERS = {"alltoall", "allgather", "deepep", "hybridep", "uccl"}
# Megatron-Bridge's performance recipes use HybridEP on racks from the release of this month on.
_HYBRID_SINCE = "2025-11"
# Shares of experts by a router that is not forced: chosen on the first of four pairs of runs of Qwen3-235B on 256 H100,
# natural against forced balance (Megatron-MoE-ModelZoo), it meets the other three. Kind: derived.
_NATURAL = 0.4


def routing_of(row: TableRow, assumed: list[str]) -> Routing:
    """How tokens are spread over experts.

    Parameters
    ----------
    row : TableRow
    assumed : list of str
        Gets what the source does not say.

    Notes
    -----
    Natural routing stands for uneven shares of one kind, whatever the model. Token drop without a stated capacity is
    that of Megatron-Bridge's ``apply_moe_token_drop``: factor 1, padded.
    """
    capacity, word = row.real("capacity_factor"), row.text("routing")
    if row.moe and word == "natural" and capacity is None:
        assumed.append(f"natural routing simulated as shares with Dirichlet concentration {_NATURAL}")
        return Routing(kind="dirichlet", concentration=_NATURAL)
    if row.moe and word in {"", "unknown"}:
        assumed.append("routing not stated, balanced assumed")
    if word == "drop" and capacity is None:
        assumed.append("capacity factor not stated, 1 assumed")
        capacity = 1.0
    return Routing(capacity_factor=capacity, pad_to_capacity=capacity is not None)


def expert_plan_of(
    row: TableRow, model: Model, schedule: Schedule, recompute: Recompute, month: str, assumed: list[str]
) -> dict[str, Any]:
    """The fields of a plan that concern experts and host launches.

    Parameters
    ----------
    row : TableRow
    model : Model
    schedule : Schedule
    recompute : Recompute
    month : str
        Of the software, ``YYYY-MM``.
    assumed : list of str
        Gets what the source does not say.

    Notes
    -----
    Blank dispatcher: under token drop the all-to-all, for DeepEP and HybridEP take no padding; else what
    Megatron-Bridge's recipes have: HybridEP on racks since November 2025, DeepEP with overlapped exchanges for
    group-limited routers (DeepSeek-V3) on nodes of eight; else the all-to-all.

    References
    ----------
    NVIDIA-NeMo/Megatron-Bridge, scripts/performance of 0.1 and 0.2 (``run_script.py``, ``configs/*/
    workload_base_configs.py``), ``training/utils/moe_token_drop.py``.
    """
    dispatcher = _dispatcher(row, model, month, assumed)
    return {
        "expert_parallel": row.whole("ep") or 1,
        "expert_tensor_parallel": _expert_tensor_parallel(row, assumed),
        "dispatcher": dispatcher,
        "overlap_moe_expert_parallel_comm": _overlap(row, dispatcher, schedule, recompute, assumed),
        "cuda_graph_scope": _graph_scope(row, assumed),
    }


def _bridge(row: TableRow) -> bool:
    return "bridge" in row.text("software").lower()


def _exchanges(row: TableRow) -> bool:
    return row.moe and (row.whole("ep") or 1) > 1


def _expert_tensor_parallel(row: TableRow, assumed: list[str]) -> int:
    """Unsaid, it is Megatron's default: the tensor-parallel size, or 1 where that does not divide a stage."""
    stated, tensor = row.whole("etp"), row.whole("tp") or 1
    if stated is not None or tensor == 1 or not row.moe:
        return stated or 1
    stage = (row.whole("num_gpus") or 1) // (row.whole("pp") or 1)
    size = tensor if stage % (tensor * (row.whole("ep") or 1)) == 0 and not _bridge(row) else 1
    assumed.append(f"expert tensor parallelism not stated, {size} assumed")
    return size


def _dispatcher(row: TableRow, model: Model, month: str, assumed: list[str]) -> str:
    word = row.text("dispatcher_norm")
    if word in _DISPATCHERS:
        return word
    if not _exchanges(row):
        return "alltoall"
    usual = "alltoall"
    if _bridge(row) and row.text("routing") != "drop":
        if row.text("accelerator_id") in TRAYS_PER_RACK:
            usual = "hybridep" if month >= _HYBRID_SINCE else "alltoall"
        elif model.moe is not None and model.moe.num_groups > 1:
            usual = "deepep"
    assumed.append(f"dispatcher not stated, {usual} assumed")
    return usual


def _overlap(row: TableRow, dispatcher: str, schedule: Schedule, recompute: Recompute, assumed: list[str]) -> bool:
    """Overlap of expert exchanges, where Megatron has it: interleaved or one stage, no full recomputation."""
    stated, joined = row.switch("ep_overlap"), schedule is Schedule.INTERLEAVED or (row.whole("pp") or 1) == 1
    if not _exchanges(row) or stated is False:
        return False
    if stated is None:
        usual = dispatcher == "deepep" and row.text("dispatcher_norm") != "deepep" and joined
        if usual:
            assumed.append("overlap of expert exchanges not stated, assumed")
        return usual
    if joined and recompute.granularity != "full":
        return True
    assumed.append(f"expert all-to-all overlap with {schedule} and recompute {recompute.granularity} not modelled")
    return False


def _graph_scope(row: TableRow, assumed: list[str]) -> tuple[str, ...]:
    """As stated; under token drop, whose shapes are static, Bridge's recipes graph whole iterations on Blackwell."""
    scope = graph_scope_of(row.text("schedule_overlap_flags"))
    if scope:
        return scope
    if row.switch("cuda_graph"):
        usual = ("attn", "moe_router", "moe_preprocess") if row.moe else ("attn", "mlp")
        assumed.append(f"scope of CUDA graphs not stated, {' and '.join(usual)} assumed")
        return usual
    blackwell = re.match(r"G?B\d00", row.text("accelerator_id")) is not None
    if row.switch("cuda_graph") is None and _bridge(row) and row.text("routing") == "drop" and blackwell:
        assumed.append("CUDA graphs not stated, full iteration assumed")
        return ("full_iteration",)
    return ()
