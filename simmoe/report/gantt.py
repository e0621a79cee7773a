"""A picture of the step: what every rank computes when, and which communication it waits for."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.engine.record import Timeline
from simmoe.graph.ranks import RankClass
from simmoe.graph.task import FloatArray
from simmoe.report.figures import check_suffix, new_figure, save
from simmoe.report.intervals import active, segment_edges
from simmoe.report.memory_timeline import MemoryTimeline
from simmoe.report.metrics import is_communication, on_device
from simmoe.units import format_si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Light enough for black numbers, and told apart by people who confuse red and green.
PHASE_COLOURS = {
    "forward": "#9ecae9",
    "backward": "#f5c16c",
    "recompute": "#c9a6dd",
    "optimizer": "#8fd0b5",
    "": "#c4c4c4",
}
DARKER = {
    "forward": "#7db5da",
    "backward": "#e9ad49",
    "recompute": "#b58bce",
    "optimizer": "#72bd9d",
    "": "#b0b0b0",
}
PHASE_NAMES = {"": "other"}
EXPOSED, HIDDEN, IDLE = "#c0392b", "#8d99a6", "#f1f1f1"

_WIDTH, _AXES_WIDTH, _ROW_HEIGHT, _TALLEST = 13.0, 11.5, 0.5, 100.0  # inch
_MEMORY_HEIGHT, _MOST_NAMES, _GIB = 2.2, 8, 2.0**30
_DIGIT = 0.06  # inch that a digit of a micro-batch takes
_TOP, _MIDDLE, _BOTTOM = 0.06, 0.68, 0.94  # edges of the two lanes within a row
_PIXELS = 2000  # of the time axis; a gap narrower than one of them is not drawn
_MOST_NUMBERS = 1500  # a text costs as much time as a hundred bars
_MOST_VECTORS = 20_000  # bars beyond which a vector file holds them as an image


class Step(NamedTuple):
    """A step to be drawn beside others: words above it, its timeline, and its rank classes by ``Stream.rank``."""

    title: str
    timeline: Timeline
    ranks: Sequence[RankClass]


class _Lane(NamedTuple):
    """Bars of one lane of a row [s]; phase and micro-batch only of computation."""

    start: FloatArray
    end: FloatArray
    phase: list[str]
    micro_batch: list[int]


class _Row(NamedTuple):
    """What is drawn of one rank class."""

    compute: _Lane
    exposed: _Lane
    hidden: _Lane


def write_gantt(
    timeline: Timeline,
    ranks: Sequence[RankClass],
    path: Path,
    title: str = "",
    memory: Sequence[MemoryTimeline] = (),
) -> None:
    """Draw the step into a file.

    Parameters
    ----------
    timeline : Timeline
    ranks : sequence of RankClass
        Indexed by ``Stream.rank``.
    path : Path
        ``.svg``, ``.png`` or ``.pdf``. Equal timelines give equal bytes.
    title : str
        Stands before the step time above the picture.
    memory : sequence of MemoryTimeline
        One a rank class, drawn below; none if empty.

    Raises
    ------
    OutputError
        If the suffix is another one or the file cannot be written.
    SimmoeError
        If matplotlib is not installed.
    """
    check_suffix(path)
    save(gantt_figure(timeline, ranks, title, memory), path)


def gantt_figure(
    timeline: Timeline, ranks: Sequence[RankClass], title: str = "", memory: Sequence[MemoryTimeline] = ()
) -> "Figure":
    """The picture as a matplotlib figure, for notebooks.

    Parameters
    ----------
    timeline : Timeline
    ranks : sequence of RankClass
        Indexed by ``Stream.rank``.
    title : str
        Stands before the step time above the picture.
    memory : sequence of MemoryTimeline
        One a rank class, drawn below; none if empty.

    Returns
    -------
    matplotlib.figure.Figure
        One row for each rank class: above, computation by phase, with the number of the micro-batch
        where there is room; below, communication, red where no computation hides it. Neighbouring
        tasks of one phase and micro-batch are one bar if the gap between them is less than a pixel.
        With `memory`, a second pair of axes holds a staircase for each rank class, dotted lines what
        the devices have.

    Raises
    ------
    SimmoeError
        If matplotlib is not installed.
    """
    step = Step(title, timeline, ranks)
    height = _height(ranks)
    below = [_MEMORY_HEIGHT] if memory else []
    figure = new_figure(_WIDTH, height + sum(below))
    axes, *others = figure.subplots(1 + len(below), squeeze=False, sharex=True, height_ratios=[height, *below])[:, 0]
    for lower in others:
        _draw_memory(lower, memory, ranks, timeline.makespan)
    rows = _draw_step(axes, step, timeline.makespan)
    for lower in others:
        lower.set_xlabel(axes.get_xlabel())
        axes.set_xlabel("")
    _legend(figure, rows)
    return figure


def gantt_comparison(steps: Sequence[Step]) -> "Figure":
    """Several steps above each other on one scale of time, for notebooks.

    Parameters
    ----------
    steps : sequence of Step
        At least one; drawn as `gantt_figure` draws each.

    Returns
    -------
    matplotlib.figure.Figure
        A pair of axes for each step; where a shorter one has ended there is nothing.

    Raises
    ------
    SimmoeError
        If matplotlib is not installed.
    """
    heights = [_height(step.ranks) for step in steps]
    figure = new_figure(_WIDTH, sum(heights))
    span = max(step.timeline.makespan for step in steps)
    rows: list[_Row] = []
    for axes, step in zip(figure.subplots(len(steps), squeeze=False, height_ratios=heights)[:, 0], steps, strict=True):
        rows += _draw_step(axes, step, span)
    _legend(figure, rows)
    return figure


def _height(ranks: Sequence[RankClass]) -> float:
    """Room for the rows of one step [inch]."""
    return min(1.6 + _ROW_HEIGHT * max(len(ranks), 1), _TALLEST)


def _draw_step(axes: "Axes", step: Step, span: float) -> list[_Row]:
    """One step on axes that end at `span`; returns its rows."""
    rows = [_row(step.timeline, tasks) for tasks in _device_tasks(step.timeline, len(step.ranks))]
    _draw_rows(axes, rows, step.timeline.makespan, span)
    _label(axes, step.ranks, span)
    words = f"{step.title}: " if step.title else ""
    axes.set_title(f"{words}one step of {format_si(step.timeline.makespan, 's')}", loc="left")
    return rows


# ---------------------------------------------------------------- from tasks to bars


def _device_tasks(timeline: Timeline, ranks: int) -> list[NDArray[np.int64]]:
    """The tasks on the device streams of each rank class, by start and then by task id."""
    graph = timeline.graph
    owner = np.array([s.rank if on_device(s) else -1 for s in graph.streams], dtype=np.int64)
    order = np.argsort(timeline.start, kind="stable")
    owners = owner[graph.stream[order]]
    return [order[owners == rank] for rank in range(ranks)]


def _row(timeline: Timeline, tasks: NDArray[np.int64]) -> _Row:
    """The lanes of one rank class."""
    graph = timeline.graph
    collective = np.array([is_communication(op) for op in graph.operations], dtype=np.bool_)
    sends = collective[graph.operation[tasks]]
    start, end = timeline.start[tasks], timeline.end[tasks]
    edges = segment_edges(start, end)
    kernels = active(edges, start[~sends], end[~sends]) > 0
    communication = active(edges, start[sends], end[sends]) > 0
    return _Row(
        _compute_lane(timeline, tasks[~sends]),
        _runs(edges, communication & ~kernels),
        _runs(edges, communication & kernels),
    )


def _compute_lane(timeline: Timeline, tasks: NDArray[np.int64]) -> _Lane:
    """Computation; neighbours of equal phase and micro-batch are one bar if no gap would show."""
    graph = timeline.graph
    start, end = timeline.start[tasks], timeline.end[tasks]
    phases = [op.phase if op.phase in PHASE_COLOURS else "" for op in graph.operations]
    names = sorted(set(phases))
    phase = np.array([names.index(p) for p in phases], dtype=np.int64)[graph.operation[tasks]]
    micro_batch = graph.micro_batch[tasks]
    apart = (
        (phase[1:] != phase[:-1])
        | (micro_batch[1:] != micro_batch[:-1])
        | (start[1:] - end[:-1] > timeline.makespan / _PIXELS)
    )
    first = np.flatnonzero(np.concatenate(([True], apart))) if len(tasks) else tasks
    last = np.append(first[1:], len(tasks)) - 1 if len(tasks) else tasks
    return _Lane(start[first], end[last], [names[i] for i in phase[first]], micro_batch[first].tolist())


def _runs(edges: FloatArray, chosen: NDArray[np.bool_]) -> _Lane:
    """Bars over the chosen segments, touching ones joined."""
    change = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8)))
    return _Lane(edges[change[::2]], edges[change[1::2]], [], [])


# ---------------------------------------------------------------- from bars to the picture


def _draw_rows(axes: "Axes", rows: Sequence[_Row], makespan: float, span: float) -> None:
    """All bars of a step, and the micro-batches in those that are wide enough on axes that end at `span`."""
    from matplotlib.collections import PolyCollection

    vectors = sum(len(lane.start) for row in rows for lane in row) <= _MOST_VECTORS
    numbers = _MOST_NUMBERS
    for position, row in enumerate(rows):
        background = [(0.0, makespan)], (position + _TOP, _BOTTOM - _TOP)
        axes.broken_barh(*background, color=IDLE, linewidth=0, zorder=1)
        for lane, top, bottom, colours in (
            (row.compute, _TOP, _MIDDLE, _colours(row.compute)),
            (row.hidden, _MIDDLE, _BOTTOM, HIDDEN),
            (row.exposed, _MIDDLE, _BOTTOM, EXPOSED),
        ):
            corners = list(_corners(lane, position + top, position + bottom))
            # Not snapped to pixels: bars narrower than one then add up to a tint of the right depth.
            bars = PolyCollection(
                corners, facecolors=colours, linewidths=0, zorder=2, rasterized=not vectors, snap=False
            )
            axes.add_collection(bars, autolim=False)
        numbers -= _number(axes, row.compute, position, span, numbers)


def _corners(lane: _Lane, top: float, bottom: float) -> FloatArray:
    """The corners of the bars, shape (bars, 4, 2)."""
    corners = np.empty((len(lane.start), 4, 2))
    corners[:, :2, 0] = lane.start[:, None]
    corners[:, 2:, 0] = lane.end[:, None]
    corners[:, ::3, 1] = top
    corners[:, 1:3, 1] = bottom
    return corners


def _colours(lane: _Lane) -> list[str]:
    """A colour for each bar of computation, darker for odd micro-batches so that they stand apart."""
    return [
        (DARKER if micro_batch >= 0 and micro_batch % 2 else PHASE_COLOURS)[phase]
        for phase, micro_batch in zip(lane.phase, lane.micro_batch, strict=True)
    ]


def _number(axes: "Axes", lane: _Lane, position: int, span: float, most: int) -> int:
    """Write micro-batches over the bars that they take, at most `most`; returns how many."""
    style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 7, "zorder": 3}
    written = 0
    bars = zip(lane.start.tolist(), lane.end.tolist(), lane.phase, lane.micro_batch, strict=True)
    for (_, micro_batch), group in groupby(bars, key=itemgetter(2, 3)):
        run = list(group)
        start, end = run[0][0], run[-1][1]
        room = (end - start) / span * _AXES_WIDTH if span else 0.0
        if micro_batch < 0 or room < _DIGIT * (1 + len(str(micro_batch))) or written == most:
            continue
        middle = position + (_TOP + _MIDDLE) / 2
        axes.text(_inside(run, (start + end) / 2), middle, str(micro_batch), clip_on=True, **style)
        written += 1
    return written


def _inside(run: Sequence[tuple[float, float, str, int]], moment: float) -> float:
    """The moment if a bar covers it, else the middle of the nearest bar [s]."""
    start, end = min(run, key=lambda bar: max(bar[0] - moment, moment - bar[1]))[:2]
    return moment if start <= moment <= end else (start + end) / 2


def _draw_memory(axes: "Axes", memory: Sequence[MemoryTimeline], ranks: Sequence[RankClass], makespan: float) -> None:
    """A staircase for each rank class, from the first stage, dark, to the last, light."""
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0.0, 0.9, max(len(memory), 2)))
    for part, rank, shade in zip(memory, ranks, shades, strict=False):
        time, level = np.append(part.time, makespan), np.append(part.bytes, part.bytes[-1]) / _GIB
        axes.step(time, level, where="post", color=shade, linewidth=1.0, label=f"stage {rank.place}")
    for capacity in sorted({part.capacity for part in memory}):
        axes.axhline(capacity / _GIB, color=EXPOSED, linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom=0.0)
    axes.set_ylabel("memory [GiB]")
    axes.spines[["top", "right"]].set_visible(False)
    if len(memory) <= _MOST_NAMES:
        axes.legend(loc="center right", fontsize=7, frameon=False)


def _label(axes: "Axes", ranks: Sequence[RankClass], span: float) -> None:
    """The scales: ranks downwards, time to the right."""
    names = [f"stage {r.place}\n{r.count} x {r.accelerator}" for r in ranks]
    axes.set_yticks(np.arange(len(ranks)) + 0.5, names, fontsize=7)
    axes.set_ylim(max(len(ranks), 1), 0)
    axes.set_ylabel("stage and its devices")
    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e3)) if span * f >= 1.0), ("µs", 1e6))
    axes.set_xlim(0.0, span or 1.0)
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds * factor:g}")
    axes.set_xlabel(f"time since the start of the step [{unit}]")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _legend(figure: "Figure", rows: Sequence[_Row]) -> None:
    """A key to the colours that occur."""
    from matplotlib.patches import Patch

    used = {phase for row in rows for phase in row.compute.phase}
    entries = {PHASE_NAMES.get(p, p): c for p, c in PHASE_COLOURS.items() if p in used}
    entries |= {"exposed communication": EXPOSED} if any(len(r.exposed.start) for r in rows) else {}
    entries |= {"hidden communication": HIDDEN} if any(len(r.hidden.start) for r in rows) else {}
    handles = [Patch(color=colour, label=name) for name, colour in (entries | {"idle": IDLE}).items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
