"""A tornado: what half and twice as much of each thing do to the step time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simmoe.report.figures import check_suffix, new_figure, save, shade
from simmoe.units import format_si

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _ROW, _ENDS = 9.0, 0.34, 1.6  # inch
_LEAST = 0.002


class Bar(NamedTuple):
    """The step with half and with twice as much of something [s]."""

    name: str
    half_s: float
    twice_s: float


def tornado_figure(bars: Sequence[Bar], step_s: float, title: str = "") -> "Figure":
    """The picture as a matplotlib figure; what changes the step by less than 0.2 % is left out.

    Parameters
    ----------
    bars : sequence of Bar
    step_s : float
        As it is [s].
    title : str

    Raises
    ------
    SimmoeError
        If matplotlib is not installed.
    """
    changes = [(bar.name, 100 * (bar.half_s / step_s - 1), 100 * (bar.twice_s / step_s - 1)) for bar in bars]
    shown = [one for one in changes if max(abs(one[1]), abs(one[2])) >= 100 * _LEAST]
    shown.sort(key=lambda one: max(abs(one[1]), abs(one[2])))
    figure = new_figure(_WIDTH, _ENDS + _ROW * max(len(shown), 1))
    axes = figure.subplots()
    names = [name for name, _, _ in shown]
    axes.barh(names, [half for _, half, _ in shown], color=shade(3), label="half as much")
    axes.barh(names, [twice for _, _, twice in shown], color=shade(2), label="twice as much")
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel("change of the step time [%]")
    words = f"{title}: " if title else ""
    axes.set_title(f"{words}a step of {format_si(step_s, 's')}", loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def write_tornado(bars: Sequence[Bar], step_s: float, path: Path, title: str = "") -> None:
    """Draw a tornado into a file.

    Parameters
    ----------
    bars : sequence of Bar
    step_s : float
        As it is [s].
    path : Path
        ``.svg``, ``.png`` or ``.pdf``. Equal bars give equal bytes.
    title : str

    Raises
    ------
    OutputError
        If the suffix is another one or the file cannot be written.
    SimmoeError
        If matplotlib is not installed.
    """
    check_suffix(path)
    save(tornado_figure(bars, step_s, title), path)
