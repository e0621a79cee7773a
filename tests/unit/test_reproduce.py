"""The rows of HeterMoE as functions of a bench, with a bench whose answers are made up."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from simmoe.errors import NotFoundError, SpecError
from simmoe.explore import hetermoe_rows as rows
from simmoe.explore.hetermoe import (
    EXPLANATIONS,
    HEADLINES,
    SWEEPS,
    cases_for,
    charts,
    headlines,
    outcomes,
    overfull,
)
from simmoe.explore.hetermoe_bench import AS_SHIPPED, Assumptions, Case, K, KeptBench, Measurement, cases_of
from simmoe.explore.hetermoe_scenarios import TOKENS_PER_DEVICE, batch_of, cluster_of, model_of, scenario_of
from simmoe.explore.hetermoe_systems import measure
from simmoe.explore.reproduction import Outcome, csv_text, json_text, missed, score
from simmoe.explore.sweeps import sensitivity, sweep_entries
from simmoe.report.charts import write_chart
from simmoe.report.league_memory import MARGIN
from simmoe.specs.data_folders import data_root
from simmoe.specs.paper_rows_reader import PaperRow, paper_rows, read_paper_rows
from simmoe.specs.yaml_file import read_yaml

TABLE = paper_rows("hetermoe")
BY_ID = {row.id: row for row in TABLE}
NOTHING = Measurement(math.nan, False, {}, "does not fit")
SPEEDS = {"zebra": 2.0, "ep": 1.0, "distep": 1.25, "ep-ideal": 1.6, "hetero-pp": 1.5}


def plain(case: Case) -> Measurement:
    return Measurement(SPEEDS[case.system], True, {rows.A40: 0.5, rows.V100: 0.9})


def bench(run: Callable[[Case], Measurement] = plain) -> KeptBench:
    return KeptBench(run, lambda part, accelerator, length: float(length), lambda cluster, model, length: length / 22e3)


def value(id: str, run: Callable[[Case], Measurement] = plain) -> rows.Value:
    return rows.QUESTIONS[id](bench(run))


# ---------------------------------------------------------------- the table


def test_every_row_has_its_question_and_every_question_its_row():
    assert {row.id for row in TABLE} == set(rows.QUESTIONS)
    assert {row.row for row in TABLE} == set(range(1, 24))
    assert sum(row.row >= 5 for row in TABLE) == 65


def test_what_is_calibration_is_no_test():
    chosen = {row.id for row in TABLE if row.use == "C" and row.row > 3}
    off = {"5.off-8k-a40", "5.off-8k-v100", "5.distep-8k-a40", "5.distep-8k-v100"}
    assert chosen == off | {"10.crossover-d1", "10.crossover-w1", "15.ep-4k", "22.mid"}
    assert {row.id for row in TABLE if row.use == "R"} == {"4.one-more", "19.best-4k"}


def test_strict_tolerances_are_not_wider():
    assert all(row.strict_tolerance <= row.tolerance for row in TABLE)
    assert {row.row for row in TABLE if row.strict_tolerance < row.tolerance} == {8, 9}


def test_headlines_and_explanations_name_rows():
    assert {one.row for one in HEADLINES} | set(EXPLANATIONS) <= set(BY_ID)


HEADER = ",".join(PaperRow._fields)
LINE = "7,a,Table 3,O1,D1,8K,DistEP,ratio,1.7,1,relative,T,0.1,0.1,no,"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("relative", "loose", "rows.csv:3:1: kind: is none of relative, absolute, interval, sign, exact (got 'loose')"),
        (",T,", ",X,", "rows.csv:3:1: use: is none of C, T, R (got 'X')"),
        ("1.7", "1..2..3", "rows.csv:3:1: published: a number or low..high is expected (got '1..2..3')"),
        ("0.1,0.1", "-1,0.1", "rows.csv:3:1: tolerance: a number of at least 0 is expected (got '-1')"),
        ("7,a", "x,a", "rows.csv:3:1: row: a whole number is expected (got 'x')"),
        (",no,", ",", "rows.csv:3:1: 16 cells are expected (got 15)"),
        (LINE, f"{LINE}\n{LINE}", "rows.csv:4:1: 7.a: is given twice"),
        ("row,name", "line,name", "rows.csv: not the header"),
        (LINE, f'{LINE}"', "rows.csv: not valid CSV"),
    ],
)
def test_a_wrong_table_is_told(tmp_path: Path, old: str, new: str, sentence: str):
    path = tmp_path / "rows.csv"
    path.write_text(f"# a comment\n{HEADER}\n{LINE}\n".replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        read_paper_rows(path)
    assert f"{tmp_path}/{sentence}" in str(caught.value)


# ---------------------------------------------------------------- near enough?


@pytest.mark.parametrize(
    ("kind", "published", "simulated", "error", "inside", "strictly"),
    [
        ("relative", "2.0", 2.2, 0.1, True, False),
        ("relative", "2.0", 2.21, 0.105, False, False),
        ("absolute", "2.0", 1.9, -0.1, True, False),
        ("absolute", "2.0", 2.04, 0.04, True, True),
        ("interval", "1.0..2.0", 1.5, 0.0, True, True),
        ("interval", "1.0..2.0", 2.06, 0.06, True, False),
        ("interval", "1.0..2.0", 0.89, -0.11, False, False),
        ("sign", "1.03", 0.99, -0.04, True, False),
        ("sign", "1.03", 1.01, -0.02, True, True),
        ("absolute", "2.0", math.nan, math.nan, False, False),
        ("exact", "0 1 1", "0 1 1", math.nan, True, True),
        ("exact", "0 1 1", "1 1 1", math.nan, False, False),
    ],
)
def test_within(kind: str, published: str, simulated: rows.Value, error: float, inside: bool, strictly: bool):
    row = BY_ID["7.zebra-8k"]._replace(kind=kind, published=published, tolerance=0.1, strict_tolerance=0.05)
    one = Outcome(row, simulated)
    assert one.error == pytest.approx(error, nan_ok=True)
    assert (one.within, one.within_strict) == (inside, strictly)


def test_only_tests_count_as_missed():
    found = [Outcome(row, math.nan) for row in TABLE if row.row == 19]
    assert {one.row.id for one in missed(found)} == {one.row.id for one in found} - {"19.best-4k"}
    assert score(found).of == 5


def test_texts_hold_every_row():
    found = [Outcome(BY_ID["7.zebra-8k"], 1.8), Outcome(BY_ID["4.assignment"], "0 1 1"), Outcome(TABLE[-1], math.nan)]
    lines = csv_text(found).splitlines()
    assert lines[0].startswith("row,name,use,")
    assert ",1.71,1,1.8,0.0526316,relative,0.1,yes,0.1,yes,yes," in lines[1]
    assert lines[3].count(",,") >= 1
    assert '"simulated": null' in json_text("hetermoe", found)
    assert "NaN" not in json_text("hetermoe", found)


# ---------------------------------------------------------------- what is asked, and what is made of it


def test_which_runs_are_needed_does_not_depend_on_their_results():
    kept = bench(lambda case: Measurement(1.0 / (case.length + len(case.model)), case.length < 9 * K, {}))
    for question in rows.QUESTIONS.values():
        question(kept)
    assert set(kept.asked) == set(cases_of(rows.QUESTIONS.values())) == set(cases_for(TABLE))
    assert len(set(cases_for(TABLE))) == len(cases_for(TABLE))
    assert set(cases_for(TABLE)) < set(cases_for(TABLE, figures=True))


def test_each_case_is_run_once():
    run: list[Case] = []
    kept = bench(lambda case: run.append(case) or plain(case))
    outcomes(TABLE, kept)
    assert len(run) == len(set(run)) == len(cases_for(TABLE))


def test_ratios_are_those_of_the_throughputs():
    found = {one.row.id: one.simulated for one in outcomes(TABLE, bench())}
    assert found["12.mean-16k"] == found["17.ep"] == pytest.approx(2.0)
    assert found["15.share-all"] == pytest.approx(1.25 / 2)
    assert found["15.ep-4k"] == pytest.approx(1.25)
    assert found["16.mean"] == pytest.approx(2 / 1.6)
    assert found["18.max"] == pytest.approx(2 / 1.5)
    assert found["14.ep-w2-4k"] == found["23.a100-mean"] == pytest.approx(0.5)
    assert found["5.off-8k-v100"] == 0.9
    assert found["10.crossover-d1"] == pytest.approx(22e3 / 1024)
    assert found["4.assignment"] == "0 1 1"


def test_a_printed_share_is_averaged_as_a_share():
    speeds = {"W1": 1.0, "D1": 0.5, "W2": 0.5, "D2": 2.0}

    def run(case: Case) -> Measurement:
        return Measurement(speeds[case.model] if case.system == "ep" else 1.0, True, {})

    assert value("11.mean-4k", run) == pytest.approx(
        1.0
    )  # the mean of 1, 0.5, 0.5 and 2; that of the inverses is 1.375
    assert value("12.mean-16k", run) == pytest.approx(1.375)


def test_what_fits_nowhere_is_left_out_and_named():
    def run(case: Case) -> Measurement:
        large = case.system == "hetero-pp" and case.model == "W1" and case.length > 24 * K
        return NOTHING if large else plain(case)

    assert value("18.fits-w1", run) == "none"
    assert value("18.oom-w1", run) == "28K 32K"
    average, words = outcomes([BY_ID["18.mean"], BY_ID["18.oom-w1"]], bench(run))
    assert average.simulated == pytest.approx(2 / 1.5)
    assert average.note == "hetero-pp W1@O1 28K 32K fits nowhere"
    assert words.within
    assert words.note == ""


def test_a_row_without_any_plan_misses():
    [one] = outcomes([BY_ID["13.d1-32k"]], bench(lambda case: NOTHING))
    assert math.isnan(float(one.simulated))
    assert missed([one])


def test_runs_beyond_their_memory_are_named():
    known = {
        Case(system, "O1", "D1", length * K): plain(Case(system, "O1", "D1", 1))._replace(memory=memory)
        for system, length, memory in (("ep", 28, MARGIN + 0.01), ("ep", 32, 2.0), ("zebra", 32, 1.1))
    }
    assert overfull(known) == "ep D1@O1 28K 32K"
    assert overfull({}) == ""


def test_the_best_ratio_is_where_the_gain_is_largest():
    def run(case: Case) -> Measurement:
        best = case.cluster == "4xA40+6xV100" and case.system == "zebra"
        return plain(case)._replace(tokens_per_s=3.0) if best else plain(case)

    assert value("19.best-12k", run) == 6
    assert value("19.max-12k", run) == pytest.approx(3 / 1.6)
    assert value("19.gain-12k", run) == pytest.approx(2 / 1.6)


def test_headlines_come_from_the_rows_at_hand():
    found = headlines(outcomes([BY_ID["22.mean"]], bench()))
    assert [(one["row"], one["published"], one["within"]) for one in found] == [("22.mean", 0.95, False)]


# ---------------------------------------------------------------- other assumptions


def test_what_is_shipped_is_what_the_file_of_assumptions_says():
    listed = read_yaml(data_root() / "scenarios" / "papers" / "hetermoe" / "assumptions.yaml").data
    assert AS_SHIPPED.most_micro_batches == listed["micro_batches"]["value"]
    assert AS_SHIPPED.most_pieces == listed["ep_overlap_degree"]["value"] == listed["distep_overlap_degree"]["value"]
    assert AS_SHIPPED.network == AS_SHIPPED.narrow == 1
    assert listed["batch_tokens"]["value"] == TOKENS_PER_DEVICE


def test_sweeps_hold_the_shipped_setting_once_each():
    for name, settings in SWEEPS:
        assert [one.assumptions for one in settings].count(AS_SHIPPED) == 1, name
        assert len({one.assumptions for one in settings}) == len(settings)


def test_sensitivity_tells_what_changed():
    row, other = BY_ID["12.mean-16k"], BY_ID["12.mean-32k"]
    shipped = [Outcome(row, 1.67), Outcome(other, 3.0)]
    changed = [Outcome(row, 3.0), Outcome(other, 1.89)]
    found = sensitivity(SWEEPS[0][1][0], changed, shipped)
    assert (found.gained, found.lost) == (("12.mean-32k",), ("12.mean-16k",))
    assert sweep_entries([found])[0]["T"] == {"within": 1, "strict": 1, "of": 2}


# ---------------------------------------------------------------- clusters, models, batches, and one real run


def test_clusters_of_the_ablations():
    cluster = cluster_of("4xA40+3xV100")
    assert [(g.node.accelerator.id, g.devices, g.domain_devices) for g in cluster.groups] == [
        ("a40", 4, 1),
        ("v100-sxm2-16gb", 3, 1),
    ]
    assert cluster_of("2xA100").groups[0].domain_devices == 1
    slower = cluster_of("O1", Assumptions(network=0.5))
    assert slower.fabric.port_bandwidth == pytest.approx(cluster_of("O1").fabric.port_bandwidth / 2)
    assert model_of("D1/12").moe.num_experts == 12
    for wrong in ("4xH100", "O9"):
        with pytest.raises(NotFoundError):
            cluster_of(wrong)
    with pytest.raises(NotFoundError):
        model_of("X1")


@pytest.mark.parametrize("name", ["O1", "O2", "O3", "C1", "C2", "4xA40+7xV100", "2xA40+2xV100"])
def test_batches_leave_something_to_tune(name: str):
    cluster, everywhere = cluster_of(name), "+" not in name
    for length in rows.LENGTHS:
        batch = batch_of(cluster, length, everywhere=everywhere)
        each = batch // cluster.groups[0].devices
        assert batch % cluster.groups[0].devices == 0
        assert not (each % 3 and each % 4)
        assert not everywhere or batch % cluster.devices == 0
        assert 0.7 < batch * length / cluster.devices / TOKENS_PER_DEVICE < 1.6


def test_the_width_of_products_is_scaled_in_the_stack():
    case = Case("ep", "O3", "D2", 4 * K)
    shipped, none = scenario_of(case), scenario_of(case, Assumptions(narrow=0.0))
    assert shipped.training.software.narrow_gemm_fill.value > 0
    assert none.training.software.narrow_gemm_fill.value == 0


def test_a_real_run():
    zebra = measure(Case("zebra", "2xA40+2xV100", "D1/8", 32 * K))
    equal = measure(Case("ep", "4xV100", "D1/8", 32 * K))
    assert zebra.fits
    assert set(zebra.utilization) == {rows.A40, rows.V100}
    assert 0 < zebra.utilization[rows.V100] < zebra.utilization[rows.A40] <= 1  # long sequences: attention decides
    assert zebra.tokens_per_s > 1.3 * equal.tokens_per_s


def test_figures_are_drawn_the_same_twice(tmp_path: Path):
    made = charts(TABLE, bench())
    assert len({one.name for one in made}) == len(made) == 8
    small = charts([BY_ID["9.w1-4k"]], bench())
    assert [one.name for one in small] == ["hetermoe-fig12"]
    assert small[0].panels[0].series[0].published == ((4.0, 1.2), (24.0, 1.04))
    for name in ("a.svg", "b.svg"):
        write_chart(small[0], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "sequence length [K tokens]" in (tmp_path / "a.svg").read_text()
