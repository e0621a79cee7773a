"""Pictures of simulated series beside published values: panels of lines and marks, described as data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simmoe.report.figures import check_suffix, new_figure, save, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHAPES = "osD^vP"
_WIDTH, _HEIGHT, _LEGEND = 3.6, 2.9, 0.5  # inch of a panel, and of the line of the legend
_COLUMNS = 3
_BARS = 0.8  # of the distance between two names


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel with the values published for it.

    Attributes
    ----------
    label : str
        In the legend; the same label has the same colour in every panel.
    x, y : tuple of float
        Simulated points; NaN leaves a gap.
    published : tuple of (float, float)
        Points that are drawn as hollow marks of the same colour.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    published: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """Axes with their names and units, and what is drawn on them.

    Attributes
    ----------
    title, x_label, y_label : str
    series : tuple of Series
    level : float or None
        Where a thin line crosses the panel, such as 1 for ratios.
    names : tuple of str
        Of the places 0, 1, ... of x: then the series are bars side by side.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    level: float | None = 1.0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of its own.

    Attributes
    ----------
    name : str
        Of the file, without suffix.
    title : str
    panels : tuple of Panel
    """

    name: str
    title: str
    panels: tuple[Panel, ...]


def write_chart(chart: Chart, path: Path) -> None:
    """Draw a chart into a file.

    Parameters
    ----------
    chart : Chart
    path : Path
        ``.svg``, ``.png`` or ``.pdf``. Equal charts give equal bytes.

    Raises
    ------
    OutputError
        If the suffix is another one, or the file cannot be written.
    SimmoeError
        If matplotlib is not installed.
    """
    check_suffix(path)
    save(chart_figure(chart), path)


def chart_figure(chart: Chart) -> "Figure":
    """The picture as a matplotlib figure, for notebooks."""
    columns = 2 if len(chart.panels) == 4 else min(_COLUMNS, len(chart.panels))  # no row is left nearly empty
    if any(panel.names for panel in chart.panels):
        columns = 1  # bars want width
    rows = math.ceil(len(chart.panels) / columns)
    figure = new_figure(_WIDTH * max(columns, 2), _HEIGHT * rows + 2 * _LEGEND)
    grid = figure.subplots(rows, columns, squeeze=False)
    labels = list(dict.fromkeys(series.label for panel in chart.panels for series in panel.series))
    for axes, panel in zip(grid.flat, chart.panels, strict=False):
        _draw(axes, panel, labels)
    for axes in list(grid.flat)[len(chart.panels) :]:
        axes.set_axis_off()
    figure.suptitle(chart.title, fontsize=11)
    marked = any(one.published for panel in chart.panels for one in panel.series)
    _legend(figure, labels, published=marked, bars=any(panel.names for panel in chart.panels))
    return figure


def _style(place: int) -> tuple[Any, str]:
    """Colour and shape of a label."""
    return shade(place), _SHAPES[place % len(_SHAPES)]


def _draw(axes: "Axes", panel: Panel, labels: Sequence[str]) -> None:
    if panel.level is not None:
        axes.axhline(panel.level, color="#999999", linewidth=0.7, zorder=0)
    for place, series in enumerate(panel.series):
        colour, shape = _style(labels.index(series.label))
        if panel.names:
            _draw_bars(axes, series, colour, place, len(panel.series))
            continue
        axes.plot(series.x, series.y, color=colour, marker=shape, markersize=4, linewidth=1.3)
        for x, y in series.published:
            axes.plot([x], [y], color=colour, marker=shape, markersize=9, markerfacecolor="none", linestyle="none")
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.set_xlabel(panel.x_label, fontsize=8)
    axes.set_ylabel(panel.y_label, fontsize=8)
    _ticks(axes, panel)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bars(axes: "Axes", series: Series, colour: Any, place: int, of: int) -> None:
    """A series as bars, beside those of the others."""
    width = _BARS / of
    shift = (place - (of - 1) / 2) * width
    axes.bar([x + shift for x in series.x], series.y, width, color=colour)
    for x, y in series.published:  # black, to be seen on a bar of the same colour
        axes.plot([x + shift], [y], color="black", marker="o", markersize=7, markerfacecolor="none", linestyle="none")


def _ticks(axes: "Axes", panel: Panel) -> None:
    """Numbers at the points of lines, names under bars."""
    axes.tick_params(labelsize=7)
    if panel.names:
        axes.set_xticks(range(len(panel.names)), panel.names)
        axes.set_xlim(-0.6, len(panel.names) - 0.4)
        return
    axes.set_xticks(sorted({x for series in panel.series for x in series.x}))
    axes.xaxis.set_major_formatter("{x:g}")


def _legend(figure: "Figure", labels: Sequence[str], *, published: bool, bars: bool) -> None:
    """One line of labels below the title; hollow marks are explained once."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = []
    for place, label in enumerate(labels):
        colour, shape = _style(place)
        line = Line2D([], [], color=colour, marker=shape, markersize=4, linewidth=1.3, label=label)
        handles.append(Patch(color=colour, label=label) if bars else line)
    if published:
        hollow = Line2D([], [], color="#444444", label="published", marker="o", markersize=9, markerfacecolor="none")
        hollow.set_linestyle("none")
        handles.append(hollow)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4), fontsize=8, frameon=False)
