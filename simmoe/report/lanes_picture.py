"""Streams over time as bars in the colour of what they do: of one trace, or of several on one scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simmoe.report.figures import check_suffix, new_figure, save, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _LANE, _ENDS = 13.0, 0.42, 0.95  # inch of the picture, of a lane, of what stands around a panel
_MOST_VECTORS = 20_000  # bars beyond which a vector file holds them as an image
_THINNEST = 1 / 2000  # of the time axis: shorter bars are drawn this long


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A stream.

    Attributes
    ----------
    name : str
    start_s, end_s : array of float
        [s]
    classes : array of str
        What each bar does; a class has one colour in all panels.
    """

    name: str
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    classes: NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Panel:
    """The streams of one rank, with words above them."""

    title: str
    lanes: tuple[Lane, ...]


def lanes_figure(panels: Sequence[Panel]) -> "Figure":
    """The picture as a matplotlib figure.

    Parameters
    ----------
    panels : sequence of Panel
        At least one; all on the same scale of time.

    Raises
    ------
    SimmoeError
        If matplotlib is not installed.
    """
    heights = [_ENDS + _LANE * max(len(panel.lanes), 1) for panel in panels]
    figure = new_figure(_WIDTH, sum(heights) + 0.5)
    classes = _classes(panels)
    span = max((float(lane.end_s.max(initial=0.0)) for panel in panels for lane in panel.lanes), default=0.0) or 1.0
    axes = figure.subplots(len(panels), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for own, panel in zip(axes, panels, strict=True):
        _draw(own, panel, classes, span)
    axes[-1].set_xlabel("time [ms]")
    _legend(figure, classes)
    return figure


def write_lanes(panels: Sequence[Panel], path: Path) -> None:
    """Draw streams into a file.

    Parameters
    ----------
    panels : sequence of Panel
    path : Path
        ``.svg``, ``.png`` or ``.pdf``. Equal panels give equal bytes.

    Raises
    ------
    OutputError
        If the suffix is another one or the file cannot be written.
    SimmoeError
        If matplotlib is not installed.
    """
    check_suffix(path)
    save(lanes_figure(panels), path)


def _classes(panels: Sequence[Panel]) -> list[str]:
    """Every class, that of most time first."""
    total: dict[str, float] = {}
    for lane in (lane for panel in panels for lane in panel.lanes):
        for name in dict.fromkeys(lane.classes.tolist()):
            own = lane.classes == name
            total[name] = total.get(name, 0.0) + float((lane.end_s - lane.start_s)[own].sum())
    return sorted(total, key=lambda name: (-total[name], name))


def _draw(axes: "Axes", panel: Panel, classes: Sequence[str], span: float) -> None:
    bars = sum(len(lane.start_s) for lane in panel.lanes)
    for row, lane in enumerate(panel.lanes):
        for place, name in enumerate(classes):
            own = lane.classes == name
            took = np.maximum(lane.end_s[own] - lane.start_s[own], span * _THINNEST)
            spans = np.stack([lane.start_s[own], took], axis=1) * 1e3
            axes.broken_barh(spans.tolist(), (row - 0.4, 0.8), facecolors=shade(place), rasterized=bars > _MOST_VECTORS)
    axes.set_yticks(range(len(panel.lanes)), [lane.name for lane in panel.lanes])
    axes.set_ylim(len(panel.lanes) - 0.45, -0.55)
    axes.set_xlim(0, span * 1e3)
    axes.set_title(panel.title, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: "Figure", classes: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=shade(place), label=name) for place, name in enumerate(classes)]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 8), frameon=False)
