"""The rows of HAPMoE as functions of a bench, with a bench whose answers are made up, and a few real runs."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from simmoe.errors import SpecError
from simmoe.explore import hapmoe_rows as rows
from simmoe.explore import hapmoe_systems
from simmoe.explore.hapmoe import (
    EXPLANATIONS,
    HEADLINES,
    NOTES,
    STUDY,
    SWEEPS,
    cases_for,
    charts,
    headlines,
    outcomes,
    unaffected,
)
from simmoe.explore.hapmoe_bench import (
    AS_SHIPPED,
    HOMOGENEOUS,
    MIXED,
    MODELS,
    Assumptions,
    Case,
    KeptBench,
    Measurement,
    cases_of,
)
from simmoe.explore.hapmoe_reports import entries, sheets
from simmoe.explore.hapmoe_scenarios import (
    ASCEND,
    MI300X,
    Part,
    devices_of,
    expert_devices,
    factor,
    rate_of,
    scenario_of,
    with_rates,
)
from simmoe.explore.hapmoe_systems import measure
from simmoe.explore.reproduction import Outcome
from simmoe.planners.proposal import Ranking, Rejected
from simmoe.report.charts import write_chart
from simmoe.specs.data_folders import data_root
from simmoe.specs.paper_rows_reader import paper_rows
from simmoe.specs.yaml_file import read_yaml
from tests.command_line import Simmoe, files, in_folder

TABLE = paper_rows("hapmoe")
BY_ID = {row.id: row for row in TABLE}
SPEEDS = {"hapmoe": 1.6, "metis": 1.5, "hetermoe": 1.25, "uniform": 1.1, "hand": 1.0, "equal": 0.9, "published": 1.0}
NOTHING = Measurement(math.nan, math.nan, "does not fit")


def plain(case: Case) -> Measurement:
    return Measurement(SPEEDS[case.system], 0.5, "a plan", 1.0, 1.05, 1.05, 1.1, search_s=2.0)


def bench(run: Callable[[Case], Measurement] = plain) -> KeptBench:
    return KeptBench(run)


def outcome(id: str, run: Callable[[Case], Measurement] = plain) -> Outcome:
    [found] = outcomes([BY_ID[id]], bench(run))
    return found


# ---------------------------------------------------------------- the table


def test_every_row_has_its_question_and_every_question_its_row():
    assert {row.id for row in TABLE} == set(rows.QUESTIONS)


def test_headlines_and_explanations_name_rows():
    assert {one.row for one in HEADLINES} | set(EXPLANATIONS) | set(NOTES) <= set(BY_ID)
    assert {BY_ID[one.row].row for one in HEADLINES} == {28, 29, 30}


# ---------------------------------------------------------------- values


def test_which_runs_are_needed_does_not_depend_on_their_results():
    kept = bench(lambda case: NOTHING)
    for question in rows.QUESTIONS.values():
        question(kept)
    assert set(kept.asked) == set(cases_of(rows.QUESTIONS.values())) == set(cases_for(TABLE))
    assert {case.cluster for case in cases_for([BY_ID["31.homogeneous"]])} == set(HOMOGENEOUS)


def test_each_case_is_run_once():
    run: list[Case] = []
    outcomes(TABLE, bench(lambda case: run.append(case) or plain(case)))
    assert len(run) == len(set(run)) == len(cases_for(TABLE))


def test_ratios_are_those_of_the_throughputs():
    found = {one.row.id: one.simulated for one in outcomes(TABLE, bench())}
    assert found["24.hapmoe-hand"] == found["25.hapmoe-hand"] == found["29.largest-any"] == pytest.approx(1.6)
    assert found["24.metis-best"] == pytest.approx(1.5 / 1.1)
    assert found["25.order-metis"] == pytest.approx(1.6 / 1.5)
    assert found["25.order-hetermoe"] == pytest.approx(1.5 / 1.25)
    assert found["26.16-1-h"] == found["27.32-3"] == pytest.approx(0.9 / 1.6)
    assert found["28.largest-gain"] == pytest.approx(1.6 / 0.9)
    assert found["31.heterogeneous"] == pytest.approx(0.05)
    assert found["30.search"] == 2
    assert found["32.unfolded"] == 0.5


def test_means_are_geometric_over_the_mixed_clusters():
    def run(case: Case) -> Measurement:
        doubled = case.system == "hapmoe" and case.cluster == "24-2"
        return plain(case)._replace(tokens_per_s=3.2) if doubled else plain(case)

    assert outcome("24.hapmoe-hand", run).simulated == pytest.approx(1.6 * 2 ** (1 / len(MIXED)))
    assert outcome("29.largest-any", run).simulated == pytest.approx(3.2)
    assert outcome("28.largest-gain", run).simulated == pytest.approx(3.2 / 0.9)


def test_the_planner_is_off_in_either_direction():
    def run(case: Case) -> Measurement:
        return plain(case)._replace(predicted_s=0.8 if case.cluster == "16-3" else 1.05)

    assert outcome("31.heterogeneous", run).simulated == pytest.approx(0.2)
    assert outcome("31.homogeneous", run).simulated == pytest.approx(0.05)


def test_what_has_no_plan_is_left_out_on_both_sides_and_named():
    def run(case: Case) -> Measurement:
        lost = case.cluster == "16-1" and case.system == "hand"
        return NOTHING if lost else plain(case)._replace(tokens_per_s=9.0 if case.cluster == "16-1" else 1.0)

    found = outcome("25.hapmoe-hand", run)
    assert found.simulated == pytest.approx(1.0)
    assert found.note.endswith("; left out, no plan: MI (hand), Mixtral-L on 16-1")
    assert outcome("24.hapmoe-best", run).note == ""


def test_a_search_without_a_plan_is_timed():
    found = outcome("30.search", lambda case: NOTHING._replace(search_s=61.0 if case.cluster == "16-2-h" else 1.0))
    assert (found.simulated, found.within, found.note) == (61.0, False, "")


def test_a_row_without_any_plan_misses():
    assert not outcome("26.16-1-h", lambda case: NOTHING).within


def test_the_faster_of_two_published_runs():
    def run(case: Case) -> Measurement:
        return plain(case)._replace(simulated_s=2.0 if case.model == rows.FOLDED else 1.0)

    assert outcome("32.order", run).simulated == "unfolded"


def test_headlines_come_from_the_rows_at_hand():
    found = headlines(outcomes([BY_ID["28.largest-gain"]], bench()))
    assert [(one["published"], one["within"]) for one in found] == [("1.55..1.95", True)]


def test_longer_sequences_want_fewer_devices_for_experts():
    assert expert_devices(16384) < 0.7 * expert_devices(4096)
    assert outcome("34.trend").within
    assert "not evaluated" in outcome("34.split-4k").note


# ---------------------------------------------------------------- assumptions


def test_what_is_shipped_follows_from_the_file_of_assumptions():
    """A rate is imposed where the database lies outside the range."""
    listed = read_yaml(data_root() / "scenarios" / "papers" / "hapmoe" / "assumptions.yaml").data
    for name in ("ascend_rate", "mi300x_rate"):
        low, high = listed[name]["range"]
        inside = low <= listed[name]["database"] <= high
        assert getattr(AS_SHIPPED, name) == (0 if inside else listed[name]["value"])


def test_sweeps_hold_the_shipped_setting_once_and_the_ends_of_the_ranges():
    settings = [setting for _, group in SWEEPS for setting in group]
    assert [one.assumptions for one in settings].count(AS_SHIPPED) == 1
    assert len({one.value for one in settings}) == len(settings)
    rates = {(one.assumptions.ascend_rate, one.assumptions.mi300x_rate) for one in settings}
    assert rates >= {(0.27, 0.74), (0.36, 0.74), (0.0, 0.7), (0.0, 0.8), (0.0, 0.0), (0.31, 0.74)}


@pytest.mark.parametrize(("part", "rate"), [(ASCEND, 0.31), (MI300X, 0.74), (ASCEND, 0.5)])
def test_a_device_becomes_as_fast_as_assumed(part: Part, rate: float):
    assert rate_of(part, factor(part.accelerator, rate)) == pytest.approx(rate, rel=1e-9)


def test_only_devices_that_are_named_change():
    plain_one = scenario_of(Case("hapmoe", "32-2", "Mixtral-S"), Assumptions(0.0, 0.0))
    scaled = with_rates(plain_one, Assumptions(0.31, 0.74))
    before, after = ([group.node.accelerator for group in one.cluster.groups] for one in (plain_one, scaled))
    assert before[0] == after[0]  # H800
    ratio = after[1].efficiency.gemm[0].sustained.value / before[1].efficiency.gemm[0].sustained.value
    assert ratio == pytest.approx(factor("mi300x", 0.74))
    assert after[1].memory_bandwidth == before[1].memory_bandwidth
    assert with_rates(plain_one, Assumptions(0.31, 0.0)) == plain_one


def test_the_host_can_be_left_out():
    made = scenario_of(Case("hapmoe", "16-1", "Mixtral-S"), Assumptions(host=0.0))
    assert made.training.software.host_moe_layer.value == 0


def test_runs_that_a_setting_does_not_touch():
    case = Case("metis", "16-1", "Mixtral-S")
    assert devices_of(case) == {"h800", "ascend-910b"}
    assert unaffected(case, AS_SHIPPED._replace(mi300x_rate=0.8))
    assert not unaffected(case, AS_SHIPPED._replace(ascend_rate=0.3))
    assert not unaffected(case, AS_SHIPPED._replace(host=0.0))
    assert unaffected(Case("published", "128 H100", rows.FOLDED), AS_SHIPPED._replace(host=0.0))


# ---------------------------------------------------------------- planners


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda scenario: 1 / 0, "planner failed: division by zero"),
        (lambda scenario: Ranking((), (Rejected("a plan", "lacks 3.0 GiB"),)), "lacks 3.0 GiB"),
    ],
)
def test_a_planner_without_an_answer_gives_a_reason(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[object], Ranking], sentence: str
):
    monkeypatch.setitem(hapmoe_systems.PLANNERS, "metis", answer)
    found = measure(Case("metis", "16-1", "Mixtral-S"))
    assert (found.fits, found.plan) == (False, sentence)


def test_a_planner_that_refuses_gives_its_reason(monkeypatch: pytest.MonkeyPatch):
    def refuse(scenario: object) -> Ranking:
        raise SpecError(["model: has no experts"])

    monkeypatch.setitem(hapmoe_systems.PLANNERS, "hetermoe", refuse)
    assert measure(Case("hetermoe", "16-1", "Mixtral-S")).plan == "model: has no experts"


def test_a_plan_between_its_bounds():
    found = measure(Case("hand", "16-3", "Mixtral-S"))
    assert found.fits
    assert found.plan == "PP2 TP8 EP8, micro-batch 1"
    assert found.tight_s == pytest.approx(found.simulated_s, rel=0.05)
    assert found.tight_s <= found.upper_s
    assert found.search_s > 0


def test_published_runs_keep_their_plans():
    found = measure(Case("published", "128 H100", rows.FOLDED))
    assert found.mfu == pytest.approx(0.493, rel=0.15)
    assert "recomputation not stated" in found.plan


@pytest.mark.slow
def test_real_rows_are_inside_their_tolerance():
    table = [row for row in TABLE if row.row in {26, 27, 32, 33} and row.use != "R"]
    known = {case: measure(case) for case in cases_for(table)}
    found = outcomes(table, bench(known.__getitem__))
    assert [one.row.id for one in found if not one.within] == []


# ---------------------------------------------------------------- reports


def test_sheets_show_what_was_run():
    known = {Case("hapmoe", "16-1", model): plain(Case("hapmoe", "16-1", model)) for model in MODELS}
    known |= {Case("metis", id, "Mixtral-L"): NOTHING for id in ("16-1", "16-3")}
    named = {sheet.title: sheet for sheet in sheets(known)}
    assert named["Plans of HAPMoE"].lines[0] == ("S", "16-1", "1.050", "1.000", "1.100", "1.050", "+5.0 %", "a plan")
    assert named["No plan"].lines == (("Metis-style", "L", "16-1 16-3", "does not fit"),)
    assert all(len(line) == len(sheet.columns) for sheet in named.values() for line in sheet.lines)
    assert all("search" not in key for entry in entries(known)["plans"] for key in entry)


@pytest.fixture
def simmoe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simmoe:
    return in_folder(tmp_path, monkeypatch, capsys)


def test_times_of_the_planner_are_for_the_screen(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch):
    spent = iter(range(100))
    monkeypatch.setattr(
        hapmoe_systems, "measure", lambda case, assumptions: plain(case)._replace(search_s=float(next(spent)))
    )
    texts = []
    for _ in range(2):
        found = simmoe("reproduce", "hapmoe", "--row", "30", "--row", "31", "--jobs", "1", "--csv", "a", "--json", "b")
        assert found.status == 0
        assert "a plan in less than a minute" in found.out
        assert max(map(len, found.out.splitlines())) <= 100
        texts.append((Path("a").read_text(), Path("b").read_text()))
    assert texts[0] == texts[1]
    assert [row["row"] for row in csv.DictReader(texts[0][0].splitlines())] == ["31", "31"]
    assert len(json.loads(texts[0][1])["plans"]) == 24


def test_sensitivity_runs_only_what_changes(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[Case, Assumptions]] = []

    def run(case: Case, assumptions: Assumptions) -> Measurement:
        asked.append((case, assumptions))
        slow = case.system == "equal" and not assumptions.mi300x_rate
        return plain(case)._replace(tokens_per_s=1.6 * 0.85 if slow else SPEEDS[case.system])

    monkeypatch.setattr(hapmoe_systems, "measure", run)
    found = simmoe("reproduce", "hapmoe", "--row", "27", "--sensitivity", "--jobs", "1", "--json", "a")
    assert found.status == 0
    assert "+27.32-2" in found.out
    assert "Rows under other rates" in found.out
    assert max(map(len, found.out.splitlines())) <= 100
    swept = json.loads(Path("a").read_text())["sensitivity"]
    assert len(swept) == sum(len(group) for _, group in SWEEPS)
    assert swept[0]["simulated"]["27.32-2"] == pytest.approx(0.9 / 1.6)
    assert ("32-2", 0.31) not in {(case.cluster, one.ascend_rate) for case, one in asked}
    assert files() == ["a"]


def test_charts_are_drawn_the_same_twice(tmp_path: Path):
    def run(case: Case) -> Measurement:
        return NOTHING if case.model == "Mixtral-L" and case.cluster.startswith("16") else plain(case)

    drawn = charts([BY_ID["24.hapmoe-hand"], BY_ID["28.largest-gain"]], bench(run))
    assert [chart.name for chart in drawn] == ["hapmoe-throughput", "hapmoe-equal-stages"]
    assert charts([BY_ID["30.search"]], bench(run)) == ()
    for chart in drawn:
        for name in ("a.svg", "b.svg"):
            write_chart(chart, tmp_path / name)
        assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
        assert ">32-3<" in (tmp_path / "a.svg").read_text()


def test_the_study_is_that_of_the_folder():
    assert STUDY.paper == "hapmoe"
    assert STUDY.unsteady <= {row.row for row in TABLE}
    assert type(STUDY.as_shipped)() == STUDY.as_shipped
