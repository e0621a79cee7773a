"""``simmoe reproduce`` on rows that need no planner, and on rows that miss."""

import csv
import json
from pathlib import Path

import pytest

from simmoe.explore import hetermoe_rows, hetermoe_systems
from simmoe.explore.hetermoe_bench import Case, Measurement
from tests.command_line import Simmoe, files, in_folder


@pytest.fixture
def simmoe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simmoe:
    return in_folder(tmp_path, monkeypatch, capsys)


def test_a_row_beside_the_paper(simmoe: Simmoe):
    outcome = simmoe("reproduce", "hetermoe", "--row", "4")
    assert (outcome.status, outcome.err) == (0, "")
    assert "0 1 1" in outcome.out
    assert "T sub-rows within: 4 of 4 (100 %), strictly 4 (100 %)" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100


def test_files(simmoe: Simmoe):
    outcome = simmoe(
        "reproduce", "hetermoe", "--row", "4", "--row", "1", "--csv", "a.csv", "--json", "a.json", "--plot", "figures"
    )
    assert outcome.status == 0
    assert files() == ["a.csv", "a.json", "figures"]
    assert [file.name for file in Path("figures").iterdir()] == ["hetermoe-fig02.svg"]
    with Path("a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["1", "4", "4", "4", "4", "4"]
    assert json.loads(Path("a.json").read_text())["scores"]["T"] == {"within": 4, "strict": 4, "of": 4}


def test_json_alone(simmoe: Simmoe):
    outcome = simmoe("reproduce", "hetermoe", "--row", "10", "--json", "-")
    found = json.loads(outcome.out)
    assert found["paper"] == "hetermoe"
    assert [row["use"] for row in found["rows"]] == ["C", "C"]


def test_a_missed_test_is_status_one(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(hetermoe_rows.QUESTIONS, "4.forward", lambda bench: 0.0)
    outcome = simmoe("reproduce", "hetermoe", "--row", "4")
    assert outcome.status == 1
    assert "T sub-rows within: 3 of 4" in outcome.out
    assert "4.forward" in outcome.out


def test_a_missed_calibration_is_not(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(hetermoe_rows.QUESTIONS, "10.crossover-d1", lambda bench: 0.0)
    outcome = simmoe("reproduce", "hetermoe", "--row", "10")
    assert outcome.status == 0
    assert "C sub-rows within: 1 of 2" in outcome.out


def test_sensitivity(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch):
    def measure(case: Case, assumptions: object) -> Measurement:
        better = case.system == "zebra" and assumptions.most_micro_batches > 2
        return Measurement(1.3 if better else 1.0, True, {})

    monkeypatch.setattr(hetermoe_systems, "measure", measure)
    outcome = simmoe("reproduce", "hetermoe", "--row", "22", "--sensitivity", "--jobs", "1", "--json", "a.json")
    assert outcome.status == 1
    assert "+22.mean" in outcome.out
    entries = json.loads(Path("a.json").read_text())["sensitivity"]
    assert len({(one["assumption"], one["value"]) for one in entries}) == len(entries)
    assert next(one for one in entries if one["gained"])["value"] == "2"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("hetermoe", "--row", "24"), "--row: hetermoe has no row 24, write one from 1 to 23\n"),
        (("hetermoe", "--csv", "-", "--json", "-"), "both to the screen"),
        (("hetermoe", "--row", "4", "--csv", "none/a.csv"), "folder none does not exist"),
        (("hapmoe", "--row", "23"), "--row: hapmoe has no row 23, write one from 24 to 34\n"),
        (("hapmoe", "--assignment"), "--assignment: hapmoe moves no experts"),
        (("fastmoe",), "'fastmoe' is not"),
    ],
)
def test_wrong_words(simmoe: Simmoe, arguments: tuple[str, ...], sentence: str):
    outcome = simmoe("reproduce", *arguments)
    assert outcome.status == 2
    assert sentence in outcome.err
    assert files() == []
