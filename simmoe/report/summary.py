"""A result as one JSON object, the form in which programs read it."""

import json
from typing import Any

from simmoe.report.bubbles import busy_fractions
from simmoe.report.manifest import provenance
from simmoe.report.metrics import RankMetrics
from simmoe.report.result import Result
from simmoe.report.uncertainty import step_interval
from simmoe.specs.scenario import Published

SCHEMA_VERSION = 1
_RANK_FIELDS = (
    "rank",
    "stage",
    "role",
    "accelerator",
    "count",
    "window_s",
    "compute_s",
    "communication_s",
    "overlapped_s",
    "exposed_communication_s",
    "idle_s",
)


def summarise(result: Result) -> dict[str, Any]:
    """Everything that is reported about a run.

    Parameters
    ----------
    result : Result

    Returns
    -------
    dict
        Of str, float, int, bool, None, lists and dicts alone; times in s, sizes in B, the unit in every name. The
        order of the keys is fixed. README.md documents them; `SCHEMA_VERSION` rises when a key changes its meaning
        or disappears.
    """
    metrics, interval, idle = result.metrics, step_interval(result), result.bubbles
    return {
        "schema_version": SCHEMA_VERSION,
        "name": result.scenario.name,
        "step_time_s": result.step_time_s,
        "tokens_per_s": result.tokens_per_s,
        "tokens_per_s_per_gpu": result.tokens_per_s / result.devices,
        "model_tflops_per_gpu": result.model_tflops_per_gpu,
        "mfu": result.mfu,
        "bubble_fraction": metrics.bubble_fraction,
        "exposed_communication_s": metrics.exposed_by_collective_s,
        "breakdown_s": metrics.breakdown_s,
        "bubbles_s": idle.mean,
        "peak_memory_bytes": _memory(result),
        "fits": result.fits,
        "utilization": metrics.utilization,
        "cost_usd_per_million_tokens": result.cost_usd_per_million_tokens,
        "energy_kwh_per_million_tokens": result.energy_kwh_per_million_tokens,
        "critical_path_s": result.critical_path.by_category_s,
        "interval": interval._asdict(),
        "engine": result.engine,
        "network": result.network,
        "tasks": len(result.timeline.graph),
        "ranks": [
            _rank(rank) | {"bubbles_s": causes, "stream_utilization": busy}
            for rank, causes, busy in zip(
                metrics.ranks, idle.ranks, busy_fractions(result.timeline, result.ranks), strict=True
            )
        ],
        "published": [_comparison(result, published) for published in result.scenario.published],
        "provenance": provenance(result),
    } | ({} if result.draws is None else {"draws": result.draws.summary()})


def summary_text(result: Result) -> str:
    """`summarise` as JSON; equal inputs give equal bytes, and no number is NaN or infinite."""
    return json.dumps(summarise(result), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _memory(result: Result) -> dict[str, Any]:
    """The fullest device, and each stage (twice where it has two types of device) with the parts of its peak [B]."""
    stages = [
        {
            "stage": rank.stage,
            "role": rank.role,
            "accelerator": rank.accelerator,
            "capacity": result.accelerator(rank).memory.value,
            "total": memory.total,
            **memory._asdict(),
        }
        for rank, memory in zip(result.ranks, result.memory, strict=True)
    ]
    return {"worst": max(memory.total for memory in result.memory), "per_stage": stages}


def _rank(rank: RankMetrics) -> dict[str, Any]:
    return {name: getattr(rank, name) for name in _RANK_FIELDS}


def _comparison(result: Result, published: Published) -> dict[str, Any]:
    """A published figure beside the simulated one."""
    error = result.error(published)
    return {
        "metric": published.metric,
        "value": published.value,
        "simulated": result.metric(published.metric),
        "error": error,
        "tolerance": published.tolerance,
        "within_tolerance": abs(error) <= published.tolerance,
        "source": published.source,
        "note": published.note,
    }
