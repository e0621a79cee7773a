"""A picture of many comparisons: simulated against measured time of a step, a colour and a mark for each source."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simmoe.report.figures import check_suffix, new_figure, save, shade
from simmoe.report.league import Comparison, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = 0.2
_MARKS = "osD^vP"
_SHADES = 10  # colours of matplotlib's tab10, told apart by most people; marks tell the rest
_WIDTH, _HEIGHT = 10.5, 7.0  # inch, room for a long legend


def write_scatter(comparisons: Sequence[Comparison], path: Path, title: str = "") -> None:
    """Draw the simulated rows into a file.

    Parameters
    ----------
    comparisons : sequence of Comparison
        Rows that were not simulated are left out.
    path : Path
        ``.svg``, ``.png`` or ``.pdf``. Equal comparisons give equal bytes.
    title : str
        Stands above the picture; empty = the errors of all rows.

    Raises
    ------
    OutputError
        If the suffix is another one.
    SimmoeError
        If matplotlib is not installed.
    """
    check_suffix(path)
    save(scatter_figure(comparisons, title), path)


def scatter_figure(comparisons: Sequence[Comparison], title: str = "") -> "Figure":
    """The picture as a matplotlib figure, for notebooks; hollow marks are plans too large by the estimate of memory."""
    drawn = [one for one in comparisons if one.error is not None]
    figure = new_figure(_WIDTH, _HEIGHT)
    axes = figure.subplots()
    groups = list(dict.fromkeys(one.group for one in drawn))
    for place, name in enumerate(groups):
        _draw_group(axes, [one for one in drawn if one.group == name], place)
    _draw_band(axes, drawn)
    total = summarise("all", drawn)
    if total is not None:
        words = f"{total.rows} published runs: median error {total.median:.1%}, mean {total.mean:.1%}"
        axes.set_title(title or words, loc="left", fontsize=11)
    if groups:
        figure.legend(loc="outside right upper", fontsize=8, frameon=False, title="source, median error")
    return figure


def _draw_group(axes: "Axes", rows: Sequence[Comparison], place: int) -> None:
    """The marks of one source; its name and median error go into the legend."""
    colour, mark = shade(place), _MARKS[place // _SHADES % len(_MARKS)]
    faces = [(*colour[:3], 0.8 if one.status == "ok" else 0.0) for one in rows]
    measured, simulated = [one.measured_s or 0.0 for one in rows], [one.simulated_s or 0.0 for one in rows]
    axes.scatter(measured, simulated, s=18, marker=mark, facecolors=faces, edgecolors=[colour], linewidths=0.7)
    summary = summarise("", rows)
    label = f"{rows[0].group}  {summary.median:.0%} of {len(rows)}" if summary else rows[0].group
    axes.scatter([], [], s=26, marker=mark, color=[colour], label=label)


def _draw_band(axes: "Axes", rows: Sequence[Comparison]) -> None:
    """Equal scales, the line of equal times, and the band around it."""
    times = [time for one in rows for time in (one.measured_s, one.simulated_s) if time]
    low, high = (min(times) / 1.5, max(times) * 1.5) if times else (0.1, 10.0)
    ends = np.array([low, high])
    axes.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color="#eeeeee", zorder=0, linewidth=0)
    axes.plot(ends, ends, color="#777777", linewidth=0.8, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set_xlabel(f"measured time of a step [s]; the band is ±{BAND:.0%}")
    axes.set_ylabel("simulated time of a step [s]")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
