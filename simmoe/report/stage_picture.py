"""Which layers stand on which devices: a picture of the stages of one plan or of several."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simmoe.report.figures import check_suffix, new_figure, save, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _ROW, _ENDS = 9.0, 0.62, 1.1  # inch of the picture, of a row, of what stands above and below
_LIGHT = 0.55  # share of the full colour
_LEAST = 0.055  # of the width: narrower boxes have no text


@dataclass(frozen=True, slots=True)
class StageBox:
    """Some layers of a stage.

    Attributes
    ----------
    first, layers : int
        Where they begin, and how many there are.
    devices : tuple of str
        In words, such as 8 H100; two entries are attention devices and expert devices of a zebra stage.
    sizes : str
        How the devices share the work.
    """

    first: int
    layers: int
    devices: tuple[str, ...]
    sizes: str


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A plan.

    Attributes
    ----------
    label, name : str
        Who or what it is, in a word and in a few.
    time : str
        Its step, with unit.
    boxes : tuple of StageBox
        In order of layers.
    """

    label: str
    name: str
    time: str
    boxes: tuple[StageBox, ...]

    @property
    def layers(self) -> int:
        """Of the model."""
        return max(box.first + box.layers for box in self.boxes)


def kinds_of(rows: Sequence[PlanRow]) -> list[str]:
    """Names of the devices in some rows, without their numbers, in order of appearance.

    Parameters
    ----------
    rows : sequence of PlanRow

    Examples
    --------
    >>> kinds_of([PlanRow("a", "", "1 s", (StageBox(0, 2, ("8 H100 + 8 V100",), ""), StageBox(2, 1, ("4 V100",), "")))])
    ['H100', 'V100']
    """
    parts = [part for row in rows for box in row.boxes for devices in box.devices for part in devices.split(" + ")]
    return list(dict.fromkeys(part.split(" ", 1)[1] for part in parts))


def write_stages(rows: Sequence[PlanRow], title: str, path: Path) -> None:
    """Draw the stages of some plans into a file.

    Parameters
    ----------
    rows : sequence of PlanRow
        From top to bottom.
    title : str
    path : Path
        Its suffix says the format.

    Raises
    ------
    SimmoeError
        If matplotlib is missing.
    OutputError
        If the file cannot be written.
    """
    check_suffix(path)
    save(stages_figure(rows, title), path)


def stages_figure(rows: Sequence[PlanRow], title: str) -> "Figure":
    """The picture that `write_stages` writes.

    Parameters
    ----------
    rows : sequence of PlanRow
    title : str
    """
    figure = new_figure(_WIDTH, _ENDS + _ROW * len(rows))
    from matplotlib.patches import Patch

    axes, kinds = figure.add_subplot(), kinds_of(rows)
    layers = max(row.layers for row in rows)
    for place, row in enumerate(rows):
        for number, box in enumerate(row.boxes):
            _draw(axes, place, box, kinds, layers)
            if number:
                axes.plot([box.first, box.first], [place - 0.4, place + 0.4], color="white", linewidth=2.0)
        axes.text(layers * 1.01, place, row.time, va="center", fontsize=9)
    axes.set_xlim(0, layers)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_xlabel("layer")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [Patch(color=_light(number), label=name) for number, name in enumerate(kinds)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _draw(axes: "Axes", place: int, box: StageBox, kinds: Sequence[str], layers: int) -> None:
    """A box; several kinds of devices are stripes of it."""
    parts = [part.split(" ", 1)[1] for devices in box.devices for part in devices.split(" + ")]
    height = 0.8 / len(parts)
    for number, part in enumerate(parts):
        low = place - 0.4 + number * height
        axes.barh(low, box.layers, height, left=box.first, align="edge", color=_light(kinds.index(part)))
    if box.layers / layers >= _LEAST:
        words = f"{box.layers}"
        if box.layers / layers >= 3 * _LEAST:
            words = f"{box.layers} on {' : '.join(_number(devices) for devices in box.devices)}, {box.sizes or 'alone'}"
        axes.text(box.first + box.layers / 2, place, words, ha="center", va="center", fontsize=7.5, clip_on=True)


def _light(place: int) -> tuple[float, float, float]:
    """A colour on which black text can be read."""
    red, green, blue = (1.0 - _LIGHT * (1.0 - part) for part in shade(place)[:3])
    return red, green, blue


def _number(devices: str) -> str:
    """How many devices, without their names."""
    return "+".join(part.split(" ", 1)[0] for part in devices.split(" + "))
