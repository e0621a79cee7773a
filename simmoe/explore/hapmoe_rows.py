"""Every value of HAPMoE's evaluation as a function of a bench; what was printed is in its ``rows.csv``.

Ratios of throughput are those of the best plans of both systems. Means are geometric, over the clusters where both have
a plan that fits.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from simmoe.explore.hapmoe_bench import HOMOGENEOUS, MIXED, MODELS, Bench, Case, System
from simmoe.explore.hapmoe_scenarios import expert_devices
from simmoe.explore.reproduction import Value

Question = Callable[[Bench], Value]

BASELINES: tuple[System, ...] = ("metis", "hetermoe", "hand", "uniform")
SMALL, LARGE = MODELS
K = 1024
UNFOLDED, FOLDED, FLAT = "moe-0440", "moe-0441", "moe-0439"


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of the values that exist; NaN if none does.

    Examples
    --------
    >>> round(geometric_mean([1.0, math.nan, 4.0]), 9)
    2.0
    """
    known = [math.log(value) for value in values if value > 0]
    return math.exp(sum(known) / len(known)) if known else math.nan


def largest(values: Iterable[float]) -> float:
    """The largest value that exists."""
    return max((value for value in values if math.isfinite(value)), default=math.nan)


def rate(bench: Bench, system: System, cluster: str, model: str) -> float:
    """Tokens per second of a system; NaN where nothing fits."""
    return bench.measure(Case(system, cluster, model)).tokens_per_s


def ratio(bench: Bench, system: System, of: System, cluster: str, model: str) -> float:
    """Throughput of a system over that of another."""
    return rate(bench, system, cluster, model) / rate(bench, of, cluster, model)


def ratios(
    bench: Bench, system: System, of: System, clusters: Sequence[str] = MIXED, models: Sequence[str] = MODELS
) -> list[float]:
    """`ratio` on every cluster with every model."""
    return [ratio(bench, system, of, cluster, model) for model in models for cluster in clusters]


# ---------------------------------------------------------------- one function for each kind of row


def _mean(system: System, of: System, model: str) -> Question:
    return lambda bench: geometric_mean(ratios(bench, system, of, models=(model,)))


def _means() -> dict[str, Question]:
    """Rows 24 and 25."""
    found: dict[str, Question] = {}
    systems: tuple[System, ...] = ("hapmoe", "metis", "hetermoe")
    for row, model in ((24, SMALL), (25, LARGE)):
        for system in systems:
            found[f"{row}.{system}-hand"] = _mean(system, "hand", model)
            found[f"{row}.{system}-best"] = _mean(system, "uniform", model)
        found[f"{row}.order-metis"] = _mean("hapmoe", "metis", model)
        found[f"{row}.order-hetermoe"] = _mean("metis", "hetermoe", model)
    return found


def _share(cluster: str) -> Question:
    return lambda bench: ratio(bench, "equal", "hapmoe", cluster, SMALL)


def _shares() -> dict[str, Question]:
    """Rows 26 to 28."""
    found: dict[str, Question] = {f"26.{cluster}": _share(cluster) for cluster in HOMOGENEOUS}
    found |= {f"27.{cluster}": _share(cluster) for cluster in ("32-1", "32-2", "32-3", "16-2")}
    found["28.largest-gain"] = lambda bench: largest(ratios(bench, "hapmoe", "equal"))
    return found


def _largest_error(clusters: Sequence[str]) -> Question:
    cases: list[Case] = [Case("hapmoe", cluster, model) for model in MODELS for cluster in clusters]
    return lambda bench: largest(abs(bench.measure(case).planner_error) for case in cases)


def _search(bench: Bench) -> float:
    """Longest search; also one that finds that nothing fits."""
    return max(bench.measure(Case("hapmoe", cluster, m)).search_s for m in MODELS for cluster in (*HOMOGENEOUS, *MIXED))


def _planner() -> dict[str, Question]:
    """Rows 29 to 31."""
    return {
        "29.largest-any": lambda bench: largest(one for of in BASELINES for one in ratios(bench, "hapmoe", of)),
        "30.search": _search,
        "31.homogeneous": _largest_error(HOMOGENEOUS),
        "31.heterogeneous": _largest_error(MIXED),
    }


def _utilization(id: str) -> Question:
    return lambda bench: bench.measure(Case("published", "128 H100", id)).mfu


def _faster(bench: Bench) -> str:
    """Which of the two runs of row 32 takes less."""
    seconds = {
        name: bench.measure(Case("published", "128 H100", id)).simulated_s
        for name, id in (("unfolded", UNFOLDED), ("folded", FOLDED))
    }
    return min(seconds, key=seconds.__getitem__)


def _folding() -> dict[str, Question]:
    """Rows 32 and 33."""
    return {
        "32.unfolded": _utilization(UNFOLDED),
        "32.folded": _utilization(FOLDED),
        "32.order": _faster,
        "33.no-pipeline": _utilization(FLAT),
    }


def _trend(bench: Bench) -> str:
    """Whether longer sequences want more or fewer devices for experts."""
    short, long = expert_devices(4 * K), expert_devices(16 * K)
    return "fewer" if long < short else "more" if long > short else "as many"


def _disaggregated() -> dict[str, Question]:
    """Row 34: the numbers need the model, the trend does not."""
    return {
        "34.split-4k": lambda bench: math.nan,
        "34.split-16k": lambda bench: math.nan,
        "34.trend": _trend,
    }


QUESTIONS: dict[str, Question] = {
    **_means(),
    **_shares(),
    **_planner(),
    **_folding(),
    **_disaggregated(),
}
