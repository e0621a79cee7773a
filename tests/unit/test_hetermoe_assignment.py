"""Gather and squeeze beside the optimum at the points of HeterMoE's figures: one point, and tables of made-up ones."""

import csv
import io
import json
from pathlib import Path

import pytest

from simmoe.explore import hetermoe_assignment as assignment
from simmoe.explore.hetermoe_assignment import Judged, Point, beaten, compared, csv_text, json_text, summary
from simmoe.explore.hetermoe_bench import Case, K
from simmoe.planners.zebra_bench import Batch
from tests.command_line import Simmoe, files, in_folder

FOUR = Batch(8, 4)
APART = Point(
    Case("zebra", "O1", "W1", 4 * K), FOUR, 1, Judged((0, 1, 1, 1), 6.6, 6.9), Judged((1, 1, 1, 0), 6.0, 6.0),
    Judged((0, 0, 0, 0), 8.0, 8.1), Judged((1, 1, 1, 0), 6.0, 6.3),
)  # fmt: skip
MISLED = Point(
    Case("zebra", "O3", "D2", 8 * K), FOUR, 2, Judged((0, 2), 2.02, 2.0), Judged((2, 2), 2.0, 2.1), None
)  # fmt: skip
STILL = Point(Case("zebra", "O2", "D1", 32 * K), FOUR, 1, *[Judged((0, 0), 9.0, 9.1)] * 3)
NOWHERE = Point(Case("zebra", "O1", "W2", 32 * K), Batch(0, 0), 0, None, None, note="an expert device lacks 1.0 GiB")
POINTS = {point.case: point for point in (APART, MISLED, STILL, NOWHERE)}


@pytest.fixture
def simmoe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simmoe:
    monkeypatch.setattr(assignment, "cases", lambda: tuple(POINTS))
    monkeypatch.setattr(assignment, "compared", POINTS.__getitem__)
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def point() -> Point:
    """Four layers of the wide model, experts the slower side."""
    return compared(Case("zebra", "O1", "W1", 4 * K))


def test_at_a_point_the_optimum_leaves_the_last_layer_alone(point: Point) -> None:
    """Expectation: nothing holds the head up. Actual: gather and squeeze loses an eighth of the step to it."""
    assert point.optimum.moved[-1] == 0 < point.greedy.moved[-1]
    assert 0.05 < point.gap < 0.2
    assert point.nothing.simulated_s > point.greedy.simulated_s
    assert point.mirrored.moved == point.greedy.moved[::-1]
    assert point.optimum.simulated_s <= point.mirrored.simulated_s < point.greedy.simulated_s


def test_the_recursion_foresees_the_simulation(point: Point) -> None:
    for judged in (point.greedy, point.optimum, point.nothing, point.mirrored):
        assert judged.predicted_s == pytest.approx(judged.simulated_s, rel=0.03)
    assert point.gap_predicted == pytest.approx(point.gap, abs=0.02)


def test_a_gap_is_what_gather_and_squeeze_takes_longer() -> None:
    assert (APART.gap_predicted, APART.gap) == (pytest.approx(0.1), pytest.approx(0.15))
    assert APART.gap_mirrored == pytest.approx(0.05)
    assert (MISLED.gap_predicted, MISLED.gap, MISLED.misled) == (pytest.approx(0.01), 0.0, True)
    assert (NOWHERE.gap, NOWHERE.misled, NOWHERE.compared) == (0.0, False, False)


def test_summary() -> None:
    total = summary(list(POINTS.values()))
    assert (total.points, total.compared, total.moving) == (4, 3, 2)
    assert (total.median, total.largest) == (pytest.approx(0.075), APART)
    assert (total.median_mirrored, total.largest_mirrored) == (pytest.approx(0.025), pytest.approx(0.05))
    assert (total.apart, total.late, total.more, total.misled) == (1, 1, 0, 1)
    assert "at 2 of 4 points, gather and squeeze is 7.5 % slower" in total.sentence
    assert "at most 15.0 % (W1@O1 4K)" in total.sentence
    assert summary([]).sentence == summary([STILL]).sentence == "At no point experts move."


def test_gather_and_squeeze_that_beats_the_optimum_is_told() -> None:
    wrong = APART._replace(optimum=Judged((1, 1, 1, 0), 6.7, 6.0))
    assert beaten([APART, MISLED, wrong, STILL, NOWHERE]) == (wrong,)


def test_csv_and_json_say_the_same() -> None:
    points = list(POINTS.values())
    lines = list(csv.DictReader(io.StringIO(csv_text(points))))
    entries = json.loads(json_text("hetermoe", points))["assignment"]
    assert [line["greedy"] for line in lines] == ["0 1 1 1", "0 2", "0 0", ""]
    assert [entry["optimum"] for entry in entries] == [[1, 1, 1, 0], [2, 2], [0, 0], None]
    assert [line["gap"] for line in lines] == ["0.15", "0.0", "0.0", ""]
    assert [entry["gap"] for entry in entries] == [0.15, 0.0, 0.0, None]
    assert [line["recursion_misled"] for line in lines] == ["no", "yes", "no", "no"]
    assert lines[-1]["note"] == entries[-1]["note"] == "an expert device lacks 1.0 GiB"


def test_table(simmoe: Simmoe) -> None:
    outcome = simmoe("reproduce", "hetermoe", "--assignment", "--jobs", "1", "--csv", "a.csv", "--json", "a.json")
    assert (outcome.status, outcome.err) == (0, "")
    assert files() == ["a.csv", "a.json"]
    line = next(line for line in outcome.out.splitlines() if "W1@O1 4K" in line)
    assert line.split()[:11] == ["W1@O1", "4K", "4", "8", "0111", "1110", "6.600", "6.000", "10.0", "%", "6.900"]
    assert max(map(len, outcome.out.splitlines())) <= 100
    assert json.loads(Path("a.json").read_text())["summary"]["largest"] == "W1@O1 4K"


def test_json_alone(simmoe: Simmoe) -> None:
    outcome = simmoe("reproduce", "hetermoe", "--assignment", "--jobs", "1", "--json", "-")
    assert json.loads(outcome.out)["summary"]["misled"] == 1


def test_an_optimum_that_is_none_is_status_one(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = APART._replace(optimum=Judged((1, 1, 1, 0), 6.7, 6.0))
    monkeypatch.setattr(assignment, "compared", lambda case: wrong)
    outcome = simmoe("reproduce", "hetermoe", "--assignment", "--jobs", "1")
    assert outcome.status == 1
    assert "which cannot be: W1@O1 4K" in outcome.out


def test_it_goes_alone(simmoe: Simmoe) -> None:
    outcome = simmoe("reproduce", "hetermoe", "--assignment", "--row", "4", "--sensitivity")
    assert outcome.status == 2
    assert "--assignment: has a table of its own, remove --row and --sensitivity" in outcome.err


def test_points() -> None:
    found = assignment.cases()
    assert len(found) == len(set(found)) == 9 * 8
    assert {case.system for case in found} == {"zebra"}
