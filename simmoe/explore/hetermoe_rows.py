"""Every value of HeterMoE's evaluation as a function of a bench; what was printed is in its ``rows.csv``.

Ratios of throughput are those of the best plans that planners find for both systems. A mean is over the points where
both have a plan that fits.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from simmoe.explore import hetermoe_example as example
from simmoe.explore.hetermoe_bench import Bench, Case, K, Part, System
from simmoe.explore.reproduction import Value

Question = Callable[[Bench], Value]
Pair = tuple[str, str]  # cluster and model

LENGTHS = tuple(range(4 * K, 33 * K, 4 * K))
LONG = tuple(range(4 * K, 49 * K, 4 * K))
MODULE_LENGTHS = (4 * K, 8 * K, 16 * K, 32 * K, 64 * K)
# The paper has one panel a pair and does not list them; these follow from which experts divide over which devices.
ON_PREMISE: tuple[Pair, ...] = (("O1", "W1"), ("O1", "D1"), ("O2", "W2"), ("O3", "D2"))
CLOUD: tuple[Pair, ...] = (("C1", "W2"), ("C1", "D1"), ("C2", "D3"))
# A layer of W2 takes 17 GB of parameters, gradients and optimizer states: no V100 of 16 GB can be a pipeline stage.
PIPELINED: tuple[Pair, ...] = (("O1", "W1"), ("O1", "D1"), ("O2", "D1"))
RATIOS = tuple(range(2, 9))  # V100 beside four A40
A40, V100 = "a40", "v100-sxm2-16gb"
MIXED, FOUR_A40, FOUR_V100, TWO_A100 = "2xA40+2xV100", "4xA40", "4xV100", "2xA100"
SMALL = "D1/8"


def mean(values: Iterable[float]) -> float:
    """The mean of the values that exist; NaN if none does.

    Examples
    --------
    >>> mean([1.0, math.nan, 2.0])
    1.5
    """
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def largest(values: Iterable[float]) -> float:
    """The largest value that exists."""
    return max((value for value in values if math.isfinite(value)), default=math.nan)


def smallest(values: Iterable[float]) -> float:
    """The smallest value that exists."""
    return min((value for value in values if math.isfinite(value)), default=math.nan)


def place_of_largest(places: Sequence[int], values: Iterable[float]) -> float:
    """Where the largest value stands; the first of equal ones.

    Examples
    --------
    >>> place_of_largest((4, 5, 6), [1.0, 1.2, math.nan])
    5.0
    """
    known = [(value, -place) for place, value in zip(places, values, strict=True) if math.isfinite(value)]
    return float(-max(known)[1]) if known else math.nan


def crossing(places: Sequence[int], values: Sequence[float], level: float = 1.0) -> float:
    """Where values first reach a level from below, between two places on a straight line; NaN if they never do.

    Examples
    --------
    >>> crossing((4, 8), (0.8, 1.2))
    6.0
    """
    for left in range(len(places) - 1):
        low, high = values[left], values[left + 1]
        if low < level <= high:
            return places[left] + (level - low) / (high - low) * (places[left + 1] - places[left])
    return math.nan


def rate(bench: Bench, system: System, pair: Pair, length: int, *, asymmetric: bool = True) -> float:
    """Tokens per second of a system; NaN where nothing fits."""
    return bench.measure(Case(system, *pair, length, asymmetric)).tokens_per_s


def gain(bench: Bench, baseline: System, pair: Pair, length: int) -> float:
    """Throughput of HeterMoE over that of a baseline."""
    return rate(bench, "zebra", pair, length) / rate(bench, baseline, pair, length)


def moving_gain(bench: Bench, pair: Pair, length: int) -> float:
    """What moving experts to attention devices gains."""
    return rate(bench, "zebra", pair, length) / rate(bench, "zebra", pair, length, asymmetric=False)


def points(pairs: Iterable[Pair], lengths: Iterable[int] = LENGTHS) -> list[tuple[Pair, int]]:
    """Every pair at every length."""
    kept = tuple(lengths)
    return [(pair, length) for pair in pairs for length in kept]


def gains(bench: Bench, baseline: System, pairs: Iterable[Pair], *lengths: int) -> list[float]:
    """`gain` of every pair at every length, 4K to 32K if none is given."""
    return [gain(bench, baseline, pair, length) for pair, length in points(pairs, lengths or LENGTHS)]


def shares(bench: Bench, system: System, of: System, pairs: Iterable[Pair], *lengths: int) -> list[float]:
    """Throughput of a system as a share of another's, of every pair at every length."""
    found = []
    for pair, length in points(pairs, lengths or LENGTHS):
        found.append(rate(bench, system, pair, length) / rate(bench, of, pair, length))
    return found


def beside(x: int, model: str = "D1") -> Pair:
    """Four A40 and x V100; the model has 4x experts, so that they divide over either type."""
    return f"4xA40+{x}xV100", f"{model}/{4 * x}"


def ratio_gains(bench: Bench, length: int) -> list[float]:
    """`gain` over EP (Ideal) of each number of V100."""
    return [gain(bench, "ep-ideal", beside(x), length) for x in RATIOS]


def alike(bench: Bench, cluster: str, length: int) -> float:
    """Tokens per second of EP on equal devices, of D1 with 8 experts."""
    return rate(bench, "ep", (cluster, SMALL), length)


def against(bench: Bench, cluster: str, length: int) -> float:
    """HeterMoE on two A40 and two V100 over EP on equal devices."""
    return rate(bench, "zebra", (MIXED, SMALL), length) / alike(bench, cluster, length)


# ---------------------------------------------------------------- one function for each kind of row


def _module(part: Part, fast: str, slow: str, lengths: Sequence[int]) -> Question:
    return lambda bench: mean(bench.module_s(part, slow, s) / bench.module_s(part, fast, s) for s in lengths)


def _modules() -> dict[str, Question]:
    """Rows 1 to 3."""
    return {
        "1.expert-speed": _module("experts", V100, A40, MODULE_LENGTHS),
        "2.attention-64k": _module("attention", A40, V100, (64 * K,)),
        "3.expert-speed": _module("experts", "l40s", "t4", MODULE_LENGTHS),
        "3.attention-4k": _module("attention", "l40s", "t4", (4 * K,)),
        "3.attention-64k": _module("attention", "l40s", "t4", (64 * K,)),
    }


def _example() -> dict[str, Question]:
    """Row 4."""
    return {
        "4.attention-busy": lambda bench: example.attention_share(),
        "4.assignment": lambda bench: " ".join(map(str, example.assignment())),
        "4.bubbles": lambda bench: example.idle(example.assignment()) / example.idle((0, 0, 0)) - 1,
        "4.forward": lambda bench: example.makespan(example.assignment()) / example.makespan((0, 0, 0)) - 1,
        "4.one-more": lambda bench: example.makespan((1, 1, 1)) / example.makespan((0, 1, 1)),
    }


def _busy(system: System, length: int, accelerator: str, *, asymmetric: bool = False) -> Question:
    case = Case(system, "O1", "D1", length, asymmetric or system != "zebra")
    return lambda bench: bench.measure(case).utilization.get(accelerator, math.nan)


def _utilization() -> dict[str, Question]:
    """Rows 5 and 6."""
    found: dict[str, Question] = {}
    for length in (8, 16):
        for name, part in (("a40", A40), ("v100", V100)):
            found[f"5.off-{length}k-{name}"] = _busy("zebra", length * K, part)
            found[f"5.distep-{length}k-{name}"] = _busy("distep", length * K, part)
            found[f"6.on-{length}k-{name}"] = _busy("zebra", length * K, part, asymmetric=True)
    return found


def _overlap(length: int) -> Question:
    pair = ("O1", "D1")
    return lambda bench: rate(bench, "zebra", pair, length, asymmetric=False) / rate(bench, "distep", pair, length)


def _moving(model: str, length: int) -> Question:
    return lambda bench: moving_gain(bench, ("O1", model), length)


def _crossover(model: str) -> Question:
    return lambda bench: crossing(LONG, [bench.balance("O1", model, length) for length in LONG]) / K


def _zebra() -> dict[str, Question]:
    """Rows 7 to 10."""
    return {
        "7.zebra-8k": _overlap(8 * K),
        "7.zebra-16k": _overlap(16 * K),
        "8.gain-8k": _moving("D1", 8 * K),
        "8.gain-16k": _moving("D1", 16 * K),
        "9.w1-4k": _moving("W1", 4 * K),
        "9.d1-4k": _moving("D1", 4 * K),
        "9.w1-24k": _moving("W1", 24 * K),
        "10.crossover-d1": _crossover("D1"),
        "10.crossover-w1": _crossover("W1"),
    }


def _on_premise() -> dict[str, Question]:
    """Rows 11 to 16."""
    d1, d2, w2 = ("O1", "D1"), ("O3", "D2"), ("O2", "W2")
    return {
        # Printed as the mean share that EP keeps, 82 %; the mean of its inverse would be another number.
        "11.mean-4k": lambda bench: 1 / mean(shares(bench, "ep", "zebra", ON_PREMISE, 4 * K)),
        "12.mean-16k": lambda bench: mean(gains(bench, "ep", ON_PREMISE, 16 * K)),
        "12.mean-32k": lambda bench: mean(gains(bench, "ep", ON_PREMISE, 32 * K)),
        "13.d1-32k": lambda bench: gain(bench, "ep", d1, 32 * K),
        "13.d2-32k": lambda bench: gain(bench, "ep", d2, 32 * K),
        "14.ep-w2-4k": lambda bench: 1 / gain(bench, "ep", w2, 4 * K),
        "14.ideal-w2-4k": lambda bench: gain(bench, "ep-ideal", w2, 4 * K),
        "15.share-all": lambda bench: mean(shares(bench, "distep", "zebra", ON_PREMISE)),
        "15.share-4k": lambda bench: mean(shares(bench, "distep", "zebra", ON_PREMISE, 4 * K)),
        "15.share-32k": lambda bench: mean(shares(bench, "distep", "zebra", ON_PREMISE, 32 * K)),
        "15.ep-4k": lambda bench: mean(shares(bench, "distep", "ep", ON_PREMISE, 4 * K)),
        "15.ep-32k": lambda bench: mean(shares(bench, "distep", "ep", ON_PREMISE, 32 * K)),
        "16.mean": lambda bench: mean(gains(bench, "ep-ideal", ON_PREMISE)),
        "16.d1-20k": lambda bench: gain(bench, "ep-ideal", d1, 20 * K),
        "16.peak": lambda bench: place_of_largest(LENGTHS, gains(bench, "ep-ideal", [d1])) / K,
        "16.min": lambda bench: smallest(gains(bench, "ep-ideal", ON_PREMISE)),
        "16.max": lambda bench: largest(gains(bench, "ep-ideal", ON_PREMISE)),
    }


def _not_fitting(lengths: Sequence[int]) -> Question:
    """The lengths at which no pipeline of W1 on O1 fits, in words."""

    def ask(bench: Bench) -> str:
        measured = {s: bench.measure(Case("hetero-pp", "O1", "W1", s)) for s in lengths}
        return " ".join(f"{s // K}K" for s, found in measured.items() if not found.fits) or "none"

    return ask


def _cloud_and_pipelines() -> dict[str, Question]:
    """Rows 17 and 18."""
    return {
        "17.ep": lambda bench: mean(gains(bench, "ep", CLOUD)),
        "17.distep": lambda bench: mean(gains(bench, "distep", CLOUD)),
        "17.ideal": lambda bench: mean(gains(bench, "ep-ideal", CLOUD)),
        "17.ideal-max": lambda bench: largest(gains(bench, "ep-ideal", CLOUD)),
        "18.mean": lambda bench: mean(gains(bench, "hetero-pp", PIPELINED)),
        "18.max": lambda bench: largest(gains(bench, "hetero-pp", PIPELINED)),
        "18.low-4k": lambda bench: smallest(gains(bench, "hetero-pp", PIPELINED, 4 * K)),
        "18.high-4k": lambda bench: largest(gains(bench, "hetero-pp", PIPELINED, 4 * K)),
        "18.fits-w1": _not_fitting([s for s in LENGTHS if s <= 24 * K]),
        "18.oom-w1": _not_fitting([s for s in LENGTHS if s > 24 * K]),
    }


def _four_for_eight(length: int) -> Question:
    return lambda bench: rate(bench, "zebra", beside(4), length) / rate(bench, "ep-ideal", beside(8), length)


def _ratios() -> dict[str, Question]:
    """Rows 19 to 21."""
    return {
        "19.best-12k": lambda bench: place_of_largest(RATIOS, ratio_gains(bench, 12 * K)),
        "19.gain-12k": lambda bench: gain(bench, "ep-ideal", beside(5), 12 * K),
        "19.max-12k": lambda bench: largest(ratio_gains(bench, 12 * K)),
        "19.best-4k": lambda bench: place_of_largest(RATIOS, ratio_gains(bench, 4 * K)),
        "19.gain-4k": lambda bench: gain(bench, "ep-ideal", beside(7), 4 * K),
        "19.max-4k": lambda bench: largest(ratio_gains(bench, 4 * K)),
        "20.ratio-4-3": lambda bench: gain(bench, "ep-ideal", beside(3), 4 * K),
        "20.ratio-4-2": lambda bench: gain(bench, "ep-ideal", beside(2), 4 * K),
        "21.four-20k": _four_for_eight(20 * K),
        "21.four-32k": _four_for_eight(32 * K),
    }


def _homogeneous() -> dict[str, Question]:
    """Rows 22 and 23."""
    return {
        "22.mean": lambda bench: mean(against(bench, FOUR_A40, s) for s in LENGTHS),
        "22.mid": lambda bench: mean(against(bench, FOUR_A40, s * K) for s in (12, 16, 20)),
        "23.a100-mean": lambda bench: mean(1 / against(bench, TWO_A100, s) for s in LENGTHS),
        "23.a100-max": lambda bench: largest(1 / against(bench, TWO_A100, s) for s in LENGTHS),
        "23.v100-mean": lambda bench: mean(against(bench, FOUR_V100, s) for s in LENGTHS),
        "23.v100-4k": lambda bench: 1 / against(bench, FOUR_V100, 4 * K),
        "23.v100-32k": lambda bench: 1 / against(bench, FOUR_V100, 32 * K),
    }


QUESTIONS: dict[str, Question] = {
    **_modules(),
    **_example(),
    **_utilization(),
    **_zebra(),
    **_on_premise(),
    **_cloud_and_pipelines(),
    **_ratios(),
    **_homogeneous(),
}
