"""The picture of rooflines: attainable FLOP/s against intensity, several accelerators on one set of axes."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simmoe.errors import SimmoeError
from simmoe.report.figures import check_suffix, new_figure, save
from simmoe.report.roofline import Roofline, shapes_of
from simmoe.specs.base import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by people who confuse red and green; dark enough for thin lines on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#b8860b", "#7f7f7f")
MARKERS = {
    "GEMM small": "v",
    "GEMM medium": "s",
    "GEMM large": "^",
    "attention": "D",
    "experts, 128 tokens": "o",
    "experts, 1024 tokens": "P",
}
_SIZE = (9.0, 6.4)  # inch
_CAPTION_WIDTH = 165  # characters of a line
_LEFT, _RIGHT = 8.0, 8192.0  # intensity [FLOP/B] that is always shown
_ROOM = 1.6  # above the highest roof


def write_roofline(parts: Sequence[Roofline], dtype: str, path: Path, sources: Mapping[str, Any]) -> None:
    """Draw rooflines into a file.

    Parameters
    ----------
    parts : sequence of Roofline
        At most as many as there are `COLOURS`.
    dtype : str
        For the title.
    path : Path
        ``.svg``, ``.png`` or ``.pdf``. Equal rooflines give equal bytes.
    sources : mapping of str to Source
        `simmoe.specs.catalog.sources`, for the caption.

    Raises
    ------
    OutputError
        If the suffix is another one or the file cannot be written.
    SimmoeError
        If matplotlib is not installed, or there are too many parts.
    """
    check_suffix(path)
    save(roofline_figure(parts, dtype, sources), path)


def roofline_figure(parts: Sequence[Roofline], dtype: str, sources: Mapping[str, Any]) -> "Figure":
    """The picture as a matplotlib figure, for notebooks.

    Parameters
    ----------
    parts : sequence of Roofline
        At most as many as there are `COLOURS`.
    dtype : str
        For the title.
    sources : mapping of str to Source
        `simmoe.specs.catalog.sources`, for the caption.

    Returns
    -------
    matplotlib.figure.Figure
        Both axes logarithmic: [FLOP/B] to the right, [TFLOP/s] upwards. Dashed the nominal roof, solid the achieved
        one, a marker for each kernel.

    Raises
    ------
    SimmoeError
        If matplotlib is not installed, or there are too many parts.
    """
    if len(parts) > len(COLOURS):
        raise SimmoeError(f"{len(parts)} accelerators are too many for one picture, name at most {len(COLOURS)}")
    figure = new_figure(*_SIZE)
    axes = figure.subplots()
    left, right = _reach(parts)
    for part, colour in zip(parts, COLOURS, strict=False):
        _draw(axes, part, colour, left, right)
    _scales(axes, parts, left, right)
    names = parts[0].name if len(parts) == 1 else f"{len(parts)} accelerators"
    axes.set_title(f"Roofline of {names}, {dtype}", loc="left")
    _legends(axes, parts)
    figure.supxlabel(_caption(parts, sources), x=0.01, ha="left", fontsize=6.5, color="#444444")
    return figure


def _reach(parts: Sequence[Roofline]) -> tuple[float, float]:
    """Intensities to show: every dot and every ridge, and the usual range."""
    seen = [dot.intensity for part in parts for dot in part.dots] + [part.nominal.ridge for part in parts]
    return min(_LEFT, *(one / 2 for one in seen)), max(_RIGHT, *(one * 2 for one in seen))


def _draw(axes: "Axes", part: Roofline, colour: str, left: float, right: float) -> None:
    """Roofs and dots of one accelerator."""
    for roof, style in ((part.nominal, "--"), (part.achieved, "-")):
        if roof is not None:
            corners = [left, min(max(roof.ridge, left), right), right]
            heights = [roof.at(intensity) / 1e12 for intensity in corners]
            axes.plot(corners, heights, style, color=colour, linewidth=1.0 if style == "--" else 1.8, zorder=2)
    for dot in part.dots:
        axes.plot(
            dot.intensity,
            dot.rate / 1e12,
            MARKERS[dot.name],
            color=colour,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.7,
            zorder=3,
        )


def _scales(axes: "Axes", parts: Sequence[Roofline], left: float, right: float) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    top = max(part.nominal.peak for part in parts) / 1e12 * _ROOM
    lowest = min(roof.at(left) for part in parts for roof in (part.nominal, part.achieved) if roof) / 1e12
    axes.set_ylim(min([lowest, *(dot.rate / 1e12 / 1.5 for part in parts for dot in part.dots)]), top)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("arithmetic intensity [FLOP/B]")
    axes.set_ylabel("rate [TFLOP/s]")
    axes.grid(visible=True, which="major", color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legends(axes: "Axes", parts: Sequence[Roofline]) -> None:
    """One key for the accelerators by colour, one for lines and markers by shape."""
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=colour, linewidth=2.5, label=part.name)
        for part, colour in zip(parts, COLOURS, strict=False)
    ]
    first = axes.legend(handles=lines, loc="upper left", frameon=False, fontsize=8)
    axes.add_artist(first)
    shapes = [Line2D([], [], color="#555555", linestyle="--", linewidth=1.0, label="nominal")]
    if any(part.achieved for part in parts):
        shapes.append(Line2D([], [], color="#555555", linewidth=1.8, label="achieved"))
    drawn = {dot.name for part in parts for dot in part.dots}
    shapes += [
        Line2D([], [], color="#555555", marker=marker, linestyle="", markersize=6, label=name)
        for name, marker in MARKERS.items()
        if name in drawn
    ]
    axes.legend(handles=shapes, loc="lower right", frameon=False, fontsize=8)


def _caption(parts: Sequence[Roofline], sources: Mapping[str, Any]) -> str:
    """What the lines mean, which shapes the markers are, and where the numbers come from."""
    numbers = [number for part in parts for number in part.numbers]
    used = dict.fromkeys(number.quantity.source for number in numbers if number.quantity.kind is not Kind.GUESS)
    titles = [getattr(sources.get(name), "title", "") or name for name in used]
    guessed = sum(number.quantity.kind is Kind.GUESS for number in numbers)
    sentences = [
        "Dashed: peak and memory bandwidth as printed. Solid: what matrix products reach in a long training step, and "
        "the best fraction of the bandwidth that any kernel reaches. Markers: times of the cost model.",
        shapes_of(parts),
        f"Sources: {'; '.join(titles)}; {guessed} of {len(numbers)} numbers are guesses.",
    ]
    return "\n".join(line for text in sentences if text for line in textwrap.wrap(text, _CAPTION_WIDTH))
