"""The results of HAPMoE drawn from the simulation, with what is printed as marks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from simmoe.explore import hapmoe_rows as rows
from simmoe.explore.hapmoe_bench import HOMOGENEOUS, MIXED, MODELS, NAMES, Bench, System
from simmoe.report.charts import Chart, Panel, Series

# Value of a row's id as published; marks come from the table of rows alone.
Printed = Mapping[str, float]

_DRAWN: tuple[System, ...] = ("hapmoe", "metis", "hetermoe", "uniform", "hand")
_MEAN = "mean"


def throughput(bench: Bench, values: Printed) -> Chart:
    """Every system on every mixed cluster, as a share of HAPMoE, and the geometric mean."""
    panels = []
    for model in MODELS:
        number = 24 + MODELS.index(model)
        marks: dict[System, float] = {
            "hand": 1 / values[f"{number}.hapmoe-hand"],
            "metis": values[f"{number}.metis-hand"] / values[f"{number}.hapmoe-hand"],
            "hetermoe": values[f"{number}.hetermoe-hand"] / values[f"{number}.hapmoe-hand"],
        }
        series = [_bars(bench, system, model, marks.get(system)) for system in _DRAWN]
        panels.append(Panel(model, "cluster", "throughput / HAPMoE [1]", tuple(series), names=(*MIXED, _MEAN)))
    return Chart("hapmoe-throughput", "Table 2: systems on mixed clusters, gaps do not fit", tuple(panels))


def _bars(bench: Bench, system: System, model: str, mark: float | None) -> Series:
    found = rows.ratios(bench, system, "hapmoe", models=(model,))
    marks = () if mark is None else ((float(len(MIXED)), mark),)
    return _series(NAMES[system], [*found, rows.geometric_mean(found)], marks)


def equal_stages(bench: Bench, values: Printed) -> Chart:
    """What equal stages keep of HAPMoE's throughput."""
    clusters = (*HOMOGENEOUS, *MIXED)
    series = []
    for model in MODELS:
        found = rows.ratios(bench, "equal", "hapmoe", clusters, (model,))
        known = [(place, values.get(f"{26 if id in HOMOGENEOUS else 27}.{id}")) for place, id in enumerate(clusters)]
        marks = tuple((float(place), mark) for place, mark in known if mark is not None and model == rows.SMALL)
        series.append(_series(model, found, marks))
    panel = Panel("", "cluster", "equal stages / HAPMoE [1]", tuple(series), names=clusters)
    return Chart("hapmoe-equal-stages", "Table 3: equal stages", (panel,))


def _series(label: str, values: Sequence[float], marks: tuple[tuple[float, float], ...]) -> Series:
    return Series(label, tuple(float(place) for place in range(len(values))), tuple(values), marks)


class Figure(NamedTuple):
    """A figure and the rows whose values it shows."""

    draw: Callable[[Bench, Printed], Chart]
    rows: tuple[int, ...]


def figures_of(numbers: Iterable[int]) -> tuple[Figure, ...]:
    """The figures that show a value of some rows."""
    wanted = set(numbers)
    return tuple(figure for figure in FIGURES if wanted & set(figure.rows))


FIGURES = (Figure(throughput, (24, 25, 29)), Figure(equal_stages, (26, 27, 28)))
