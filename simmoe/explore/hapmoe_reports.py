"""What the runs of HAPMoE's reproduction say besides the rows: plans, throughput, what fits nowhere."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simmoe.explore.hapmoe_bench import HOMOGENEOUS, MIXED, MODELS, NAMES, Case, Measurement, System
from simmoe.explore.study import Sheet
from simmoe.explore.sweeps import Sensitivity

_BESIDE: tuple[System, ...] = ("hapmoe", "metis", "hetermoe", "uniform", "hand", "equal")
_IN_A_LINE = 3  # clusters
_SWEPT = range(24, 29)  # rows whose values follow from the rates


def sheets(known: Mapping[Case, Measurement]) -> tuple[Sheet, ...]:
    """Tables of what was run, those that have a line.

    Parameters
    ----------
    known : mapping of Case to Measurement
    """
    made = (_plans(known), _throughput(known), _searches(known), _refused(known))
    return tuple(sheet for sheet in made if sheet.lines)


def _jobs(known: Mapping[Case, Measurement]) -> list[tuple[str, str]]:
    """Model and cluster of the cases, in the paper's order."""
    there = {(case.model, case.cluster) for case in known if case.system != "published"}
    return [(model, id) for model in MODELS for id in (*HOMOGENEOUS, *MIXED) if (model, id) in there]


def _plans(known: Mapping[Case, Measurement]) -> Sheet:
    """The plans of HAPMoE's planner between their bounds."""
    lines = []
    for model, cluster in _jobs(known):
        one = known.get(Case("hapmoe", cluster, model))
        if one is not None and one.fits:
            error = f"{one.planner_error:+.1%}".replace("%", " %")
            seconds = tuple(f"{value:.3f}" for value in (one.tight_s, one.simulated_s, one.upper_s, one.predicted_s))
            lines.append((model[-1], cluster, *seconds, error, _plan(one)))
    remark = "seconds; L' bounds a 1F1B step of the planner's stage times from below, U is the familiar estimate"
    columns = ("", "cluster", "L'", "simulated", "U", "predicted", "error", "plan")
    return Sheet("Plans of HAPMoE", remark, columns, "llrrrrrl", tuple(lines))


def _plan(one: Measurement) -> str:
    """A plan in words."""
    return f"{one.plan}, optimizer on the host" if one.offload else one.plan


def _throughput(known: Mapping[Case, Measurement]) -> Sheet:
    """Every system beside HAPMoE."""
    systems = [system for system in _BESIDE if any(case.system == system for case in known)]
    lines = []
    for model, cluster in _jobs(known):
        found = [known.get(Case(system, cluster, model)) for system in systems]
        lines.append((model[-1], cluster, *("" if one is None else _rate(one) for one in found)))
    columns = ("", "cluster", *(NAMES[system] for system in systems))
    remark = "thousand tokens/s of the cluster; + = optimizer states on the host; - = no plan fits"
    return Sheet("Throughput", remark, columns, f"ll{'r' * len(systems)}", tuple(lines))


def _rate(one: Measurement) -> str:
    return f"{one.tokens_per_s / 1e3:.1f}{'+' if one.offload else ''}" if one.fits else "-"


def _searches(known: Mapping[Case, Measurement]) -> Sheet:
    """How long each planner took."""
    lines = []
    for system in _BESIDE:
        spent = [one.search_s for case, one in known.items() if case.system == system]
        if spent:
            lines.append((NAMES[system], f"{max(spent):.1f}", f"{sum(spent) / len(spent):.1f}"))
    remark = "process seconds of the planner with its simulations, on this machine; not in files"
    return Sheet("Search", remark, ("planner", "longest", "mean"), "lrr", tuple(lines))


def _refused(known: Mapping[Case, Measurement]) -> Sheet:
    """What has no plan, and why."""
    clusters: dict[tuple[str, str, str], list[str]] = {}
    for system in _BESIDE:
        for model, cluster in _jobs(known):
            one = known.get(Case(system, cluster, model))
            if one is not None and not one.fits:
                clusters.setdefault((NAMES[system], model[-1], one.plan), []).append(cluster)
    lines = [
        (
            name,
            model,
            "\n".join(" ".join(row) for row in (each[at : at + _IN_A_LINE] for at in range(0, len(each), _IN_A_LINE))),
            reason,
        )
        for (name, model, reason), each in clusters.items()
    ]
    remark = "left out of every mean, on both sides"
    return Sheet("No plan", remark, ("system", "", "cluster", "reason"), "llll", tuple(lines))


def swept_sheets(swept: Sequence[Sensitivity]) -> tuple[Sheet, ...]:
    """The rows that follow from the rates, under each setting.

    Parameters
    ----------
    swept : sequence of Sensitivity
    """
    ids = [id for id, _ in swept[0].values if int(id.partition(".")[0]) in _SWEPT] if swept else []
    values = [dict(one.values) for one in swept]
    lines = tuple((id, *(_number(found[id]) for found in values)) for id in ids)
    columns = ("row", *(one.setting.value for one in swept))
    remark = "910B / MI300X against H800; the first as shipped"
    sheet = Sheet("Rows under other rates", remark, columns, f"l{'r' * len(values)}", lines)
    return (sheet,) if lines else ()


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}" if math.isfinite(value) else "-"


def entries(known: Mapping[Case, Measurement]) -> dict[str, Any]:
    """The plans of all systems as entries of a JSON object: the same in every run, so without times of searches."""
    plans = [
        {
            "system": case.system,
            "model": case.model,
            "cluster": case.cluster,
            "plan": one.plan,
            "optimizer_on_host": one.offload,
            "tokens_per_s": _digits(one.tokens_per_s),
            "simulated_s": _digits(one.simulated_s),
            "predicted_s": _digits(one.predicted_s),
            "lower_s": _digits(one.tight_s),
            "upper_s": _digits(one.upper_s),
        }
        for case, one in known.items()
    ]
    return {"plans": plans}


def _digits(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
