"""The picture of a step."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from simmoe.engine.simulate import simulate
from simmoe.errors import OutputError, SimmoeError
from simmoe.report.gantt import EXPOSED, HIDDEN, PHASE_COLOURS, Step, gantt_comparison, gantt_figure, write_gantt
from tests.graphs import Row, classes, graph_of, pipeline_rows

# Computation 0-2 (forward, 0), 2-6 (backward, 1); an all-to-all 1-3 is hidden, a send 6-7 is not.
ROWS = [
    Row(1.0, micro_batch=0),
    Row(1.0, micro_batch=0),
    Row(4.0, phase="backward", micro_batch=1),
    Row(2.0, "ep", after=(0,), category="all_to_all"),
    Row(1.0, "pp_backward", after=(2,)),
]


def figure(rows: list[Row], *counts: int) -> Figure:
    return gantt_figure(simulate(graph_of(rows)), classes(*counts), "test")


def bars(drawn: Figure, colour: str) -> list[tuple[float, float]]:
    """Start and end of every bar of a colour, in the order drawn."""
    wanted = tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    found = []
    for lane in drawn.axes[0].collections:
        if isinstance(lane, PolyCollection):
            colours = np.resize(lane.get_facecolors(), (len(lane.get_paths()), 4))
            for path, face in zip(lane.get_paths(), colours, strict=True):
                x = path.vertices[:, 0]
                if np.allclose(face[:3], wanted) and x.min() >= 0:
                    found.append((float(x.min()), float(x.max())))
    return found


def test_tasks_of_one_phase_and_micro_batch_are_one_bar() -> None:
    assert bars(figure(ROWS, 1), PHASE_COLOURS["forward"]) == [(0.0, 2.0)]


def test_a_gap_that_shows_is_kept() -> None:
    rows = [Row(1.0), Row(1.0, "ep", after=(0,)), Row(1.0, after=(1,))]
    assert bars(figure(rows, 1), PHASE_COLOURS["forward"]) == [(0.0, 1.0), (2.0, 3.0)]


def test_communication_is_told_apart_by_whether_it_is_hidden() -> None:
    drawn = figure(ROWS, 1)
    assert bars(drawn, EXPOSED) == [(6.0, 7.0)]
    assert bars(drawn, HIDDEN) == [(1.0, 3.0)]


def test_micro_batches_are_numbered_where_there_is_room() -> None:
    drawn = figure([*ROWS, Row(0.001, micro_batch=7)], 1)
    assert [text.get_text() for text in drawn.axes[0].texts] == ["0", "1"]


def test_a_number_that_would_stand_in_a_gap_stands_in_the_nearest_bar() -> None:
    rows = [Row(3.0, micro_batch=0), Row(6.0, "ep", after=(0,)), Row(1.0, after=(1,), micro_batch=0)]
    [text] = figure(rows, 1).axes[0].texts
    assert text.get_position()[0] == 1.5


def test_steps_beside_each_other_have_one_scale_of_time() -> None:
    steps = [Step(name, simulate(graph_of(rows)), classes(1)) for name, rows in (("long", ROWS), ("short", [Row(2.0)]))]
    drawn = gantt_comparison(steps)
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["long: one step of 7 s", "short: one step of 2 s"]
    assert {axes.get_xlim() for axes in drawn.axes} == {(0.0, 7.0)}
    ends = [max(path.vertices[:, 0].max() for lane in axes.collections for path in lane.get_paths())
            for axes in drawn.axes]  # fmt: skip
    assert ends == [7.0, 2.0]  # behind the end of the short one nothing is drawn, not even idleness
    texts = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert texts == ["forward", "backward", "exposed communication", "hidden communication", "idle"]


def test_axes_name_what_they_show() -> None:
    axes = figure(ROWS, 4, 2).axes[0]
    assert axes.get_title(loc="left") == "test: one step of 7 s"
    assert axes.get_xlabel() == "time since the start of the step [s]"
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["stage 0\n4 x h100-sxm", "stage 1\n2 x h100-sxm"]


@pytest.mark.parametrize(("seconds", "unit", "tick"), [(7e-3, "ms", "5"), (7e-6, "µs", "5")])
def test_the_unit_suits_the_length(seconds: float, unit: str, tick: str) -> None:
    axes = figure([Row(seconds)], 1).axes[0]
    assert f"[{unit}]" in axes.get_xlabel()
    assert axes.xaxis.get_major_formatter()(seconds * 5 / 7, None) == tick


def test_the_legend_holds_what_occurs() -> None:
    texts = [text.get_text() for text in figure(ROWS, 1).legends[0].get_texts()]
    assert texts == ["forward", "backward", "exposed communication", "hidden communication", "idle"]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_equal_timelines_give_equal_files(suffix: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for file in files:
        write_gantt(simulate(graph_of(pipeline_rows(2, 3))), classes(1, 1), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == files
    assert not re.search(rb"CreationDate|dc:date", files[0].read_bytes())


def test_a_vector_file_stays_small(tmp_path: Path) -> None:
    """Beyond 20,000 bars a vector file holds them as an image and its texts as text."""
    rows = [Row(1.0, micro_batch=i) for i in range(20_001)]
    write_gantt(simulate(graph_of(rows)), classes(1), tmp_path / "many.svg")
    text = (tmp_path / "many.svg").read_text()
    assert len(text) < 200_000
    assert "<image" in text
    assert re.search(r"<text[^>]*>time since the start", text)


def test_a_phase_of_no_known_name_is_drawn() -> None:
    """The graph may grow phases; the picture then shows them as other work."""
    assert bars(figure([Row(1.0, phase="warm_up")], 1), PHASE_COLOURS[""]) == [(0.0, 1.0)]


@pytest.mark.parametrize("rows", [[], [Row(0.0, micro_batch=0)]], ids=["no task", "no time"])
def test_nothing_can_be_drawn(rows: list[Row], tmp_path: Path) -> None:
    write_gantt(simulate(graph_of(rows)), classes(1), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 0


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"none of \.svg, \.pdf, \.png; use one"):
        write_gantt(simulate(graph_of(ROWS)), classes(1), tmp_path / "step.gif")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist; create it"):
        write_gantt(simulate(graph_of(ROWS)), classes(1), tmp_path / "missing" / "step.png")


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SimmoeError, match=r'pip install "simmoe\[plot\]"'):
        figure(ROWS, 1)
