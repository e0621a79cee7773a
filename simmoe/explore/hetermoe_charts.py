"""The figures of HeterMoE drawn from the simulation, with what is printed in them as marks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from simmoe.explore import hetermoe_rows as rows
from simmoe.explore.hetermoe_bench import Bench, K, Part, System
from simmoe.explore.hetermoe_rows import LENGTHS, Pair
from simmoe.report.charts import Chart, Panel, Series
from simmoe.specs.paper_rows_reader import PaperRow

# Value of a row's id as published; figures take their marks from the table of rows alone.
Printed = Mapping[str, float]

_Marks = Mapping[int, float]
_ModuleMarks = Mapping[Part, _Marks]

_LENGTH = "sequence length [K tokens]"
_SPEED_UP = "throughput of HeterMoE / baseline [1]"
_NAMES: dict[System, str] = {"ep": "EP", "distep": "DistEP", "ep-ideal": "EP (Ideal)", "hetero-pp": "heterogeneous PP"}


def printed(table: Iterable[PaperRow]) -> Printed:
    """The published numbers by id; the middle of an interval."""
    return {row.id: sum(row.bounds) / 2 for row in table if row.kind != "exact"}


def figure_2(bench: Bench, values: Printed) -> Chart:
    """Speed ratios of single modules."""
    a40: _ModuleMarks = {"attention": {64: values["2.attention-64k"]}, "experts": {64: 1 / values["1.expert-speed"]}}
    l40s: _ModuleMarks = {
        "attention": {4: values["3.attention-4k"], 64: values["3.attention-64k"]},
        "experts": {64: values["3.expert-speed"]},
    }
    title = "Fig. 2: one module of Mixtral-8x7B, forward and backward (experts: printed mean)"
    panels = (
        _modules(bench, (rows.A40, "A40"), (rows.V100, "V100"), a40),
        _modules(bench, ("l40s", "L40S"), ("t4", "T4"), l40s),
    )
    return Chart("hetermoe-fig02", title, panels)


def _modules(bench: Bench, fast: tuple[str, str], slow: tuple[str, str], marks: _ModuleMarks) -> Panel:
    """Ratios between two accelerators, each an id and a name."""

    def ratio(part: Part) -> Callable[[int], float]:
        return lambda s: bench.module_s(part, slow[0], s) / bench.module_s(part, fast[0], s)

    drawn = tuple(
        _over(
            f"{part.removesuffix('s')} module",
            rows.MODULE_LENGTHS,
            ratio(part),
            points,
        )
        for part, points in marks.items()
    )
    return Panel(f"{fast[1]} and {slow[1]}", _LENGTH, f"time on {slow[1]} / {fast[1]} [1]", drawn)


def figure_7(bench: Bench, values: Printed) -> Chart:
    """Speed-up over EP, DistEP and EP (Ideal) on premise."""
    marks = {
        ("O1", "D1", "ep"): {32: values["13.d1-32k"]},
        ("O3", "D2", "ep"): {32: values["13.d2-32k"]},
        ("O2", "W2", "ep"): {4: 1 / values["14.ep-w2-4k"]},
        ("O2", "W2", "ep-ideal"): {4: values["14.ideal-w2-4k"]},
        ("O1", "D1", "ep-ideal"): {20: values["16.d1-20k"]},
        ("", "", "ep"): {4: values["11.mean-4k"], 16: values["12.mean-16k"], 32: values["12.mean-32k"]},
        ("", "", "distep"): {4: 1 / values["15.share-4k"], 32: 1 / values["15.share-32k"]},
    }
    title = "Fig. 7: on premise, 100 Gb/s RoCE"
    return Chart("hetermoe-fig07", title, _speed_ups(bench, rows.ON_PREMISE, marks))


def figure_8(bench: Bench, values: Printed) -> Chart:
    """The same on AWS."""
    title = (
        f"Fig. 8: AWS, 200 Gb/s emulated; printed means over all: EP {values['17.ep']:g}, "
        f"DistEP {values['17.distep']:g}, EP (Ideal) {values['17.ideal']:g}"
    )
    return Chart("hetermoe-fig08", title, _speed_ups(bench, rows.CLOUD, {}))


def _speed_ups(bench: Bench, pairs: Sequence[Pair], marks: Mapping[tuple[str, str, str], _Marks]) -> tuple[Panel, ...]:
    """A panel for each pair, and one for their mean."""
    systems: tuple[System, ...] = ("ep", "distep", "ep-ideal")
    panels = []
    for pair in pairs:
        series = [
            _over(
                _NAMES[system],
                LENGTHS,
                _gain(bench, system, pair),
                marks.get((*pair, system), {}),
            )
            for system in systems
        ]
        panels.append(Panel(f"{pair[1]} on {pair[0]}", _LENGTH, _SPEED_UP, tuple(series)))

    def mean(system: System) -> Callable[[int], float]:
        return lambda s: rows.mean(rows.gains(bench, system, pairs, s))

    means = [_over(_NAMES[system], LENGTHS, mean(system), marks.get(("", "", system), {})) for system in systems]
    return (*panels, Panel("mean of the panels", _LENGTH, _SPEED_UP, tuple(means)))


def figure_9(bench: Bench, values: Printed) -> Chart:
    """Speed-up over heterogeneous pipelines."""
    panels = tuple(
        Panel(
            f"{pair[1]} on {pair[0]}",
            _LENGTH,
            _SPEED_UP,
            (_over(_NAMES["hetero-pp"], LENGTHS, _gain(bench, "hetero-pp", pair), {}),),
        )
        for pair in rows.PIPELINED
    )
    title = (
        f"Fig. 9: heterogeneous PP, gaps do not fit; printed: mean {values['18.mean']:g}, "
        f"largest {values['18.max']:g}, at 4K {values['18.low-4k']:g} to {values['18.high-4k']:g}"
    )
    return Chart("hetermoe-fig09", title, panels)


def figure_10(bench: Bench, values: Printed) -> Chart:
    """How many V100 serve four A40."""
    marks = {
        4: {2: values["20.ratio-4-2"], 3: values["20.ratio-4-3"], 7: values["19.gain-4k"]},
        12: {5: values["19.gain-12k"]},
        20: {},
        32: {},
    }
    panels = [
        Panel(
            f"D1, {length}K",
            "V100 beside 4 A40 [1]",
            _SPEED_UP,
            (
                _over(
                    _NAMES["ep-ideal"],
                    rows.RATIOS,
                    _ratio(bench, length * K),
                    points,
                    scale=1,
                ),
            ),
        )
        for length, points in marks.items()
    ]
    four = {20: values["21.four-20k"], 32: values["21.four-32k"]}
    eight = _over(
        "HeterMoE on 4 + 4 / EP (Ideal) on 4 + 8",
        (20 * K, 32 * K),
        lambda s: rows.rate(bench, "zebra", rows.beside(4), s) / rows.rate(bench, "ep-ideal", rows.beside(8), s),
        four,
    )
    panels.append(Panel("half of the V100", _LENGTH, "ratio of throughputs [1]", (eight,)))
    return Chart("hetermoe-fig10", "Fig. 10: 4 A40 and x V100, 4x experts", tuple(panels))


def figure_11(bench: Bench, values: Printed) -> Chart:
    """Against equal GPUs."""
    share = {4: values["23.v100-4k"], 32: values["23.v100-32k"]}
    mixed = (rows.MIXED, rows.SMALL)

    def relative(cluster: str) -> Callable[[int], float]:
        return lambda s: rows.alike(bench, cluster, s) / rows.rate(bench, "zebra", mixed, s)

    lines = (
        _over("4 A40", LENGTHS, relative(rows.FOUR_A40), {}),
        _over("2 A100", LENGTHS, relative(rows.TWO_A100), {}),
        _over("4 V100", LENGTHS, relative(rows.FOUR_V100), share),
    )
    title = (
        f"Fig. 11: D1 with 8 experts; printed means: HeterMoE / 4 A40 {values['22.mean']:g}, "
        f"2 A100 / HeterMoE {values['23.a100-mean']:g}"
    )
    label = "throughput of EP / HeterMoE on 2 A40 + 2 V100 [1]"
    return Chart("hetermoe-fig11", title, (Panel("equal GPUs", _LENGTH, label, lines),))


def figure_12(bench: Bench, values: Printed) -> Chart:
    """What moving experts gains."""
    marks = {"W1": {4: values["9.w1-4k"], 24: values["9.w1-24k"]}, "D1": {4: values["9.d1-4k"]}}
    lines = tuple(_over(model, LENGTHS, _moving(bench, model), points) for model, points in marks.items())
    label = "throughput with / without moved experts [1]"
    return Chart("hetermoe-fig12", "Fig. 12: asymmetric expert assignment on O1", (Panel("", _LENGTH, label, lines),))


def table_3(bench: Bench, values: Printed) -> Chart:
    """Utilization of both types of GPU."""
    panels = []
    for name in ("a40", "v100"):
        lines = []
        for label, prefix in (("DistEP", "5.distep"), ("no experts moved", "5.off"), ("experts moved", "6.on")):
            found = [rows.QUESTIONS[f"{prefix}-{length}k-{name}"](bench) for length in (8, 16)]
            marks = tuple((float(length), values[f"{prefix}-{length}k-{name}"]) for length in (8, 16))
            lines.append(Series(label, (8.0, 16.0), tuple(float(value) for value in found), marks))
        panels.append(Panel(name.upper(), _LENGTH, "utilization [1]", tuple(lines), level=None))
    return Chart("hetermoe-table3", "Table 3: D1 on O1", tuple(panels))


def _gain(bench: Bench, system: System, pair: Pair) -> Callable[[int], float]:
    """Speed-up over a system by length."""
    return lambda s: rows.gain(bench, system, pair, s)


def _ratio(bench: Bench, length: int) -> Callable[[int], float]:
    """Speed-up over EP (Ideal) by the number of V100."""
    return lambda x: rows.gain(bench, "ep-ideal", rows.beside(x), length)


def _moving(bench: Bench, model: str) -> Callable[[int], float]:
    """Gain of moving experts by length."""
    return lambda s: rows.moving_gain(bench, ("O1", model), s)


def _over(label: str, places: Sequence[int], value: Callable[[int], float], marks: _Marks, scale: int = K) -> Series:
    """A series over lengths, shown in K tokens, or over other places."""
    published = tuple((float(place), mark) for place, mark in marks.items())
    return Series(label, tuple(place / scale for place in places), tuple(map(value, places)), published)


class Figure(NamedTuple):
    """A figure and the rows whose values it shows."""

    draw: Callable[[Bench, Printed], Chart]
    rows: tuple[int, ...]


FIGURES = (
    Figure(figure_2, (1, 2, 3)),
    Figure(figure_7, (11, 12, 13, 14, 15, 16)),
    Figure(figure_8, (17,)),
    Figure(figure_9, (18,)),
    Figure(figure_10, (19, 20, 21)),
    Figure(figure_11, (22, 23)),
    Figure(figure_12, (8, 9)),
    Figure(table_3, (5, 6)),
)
