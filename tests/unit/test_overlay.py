"""An overlay changes what it says and nothing else; what does not fit the scenario is refused."""

from pathlib import Path

import pytest

from simmoe.errors import SpecError
from simmoe.pipeline import run
from simmoe.specs.numbers import numbers_of
from simmoe.specs.overlay_file import apply_overlay, load_overlaid
from simmoe.specs.scenario import Scenario
from simmoe.specs.scenario_parts import parts_of
from tests.command_line import Simmoe, in_folder
from tests.scenarios import SMALL, small

GEMM = '{part: accelerator h100-sxm5-80gb, number: "efficiency.gemm[bf16].sustained", value: 0.7, spread: 0.02}'
LINK = '{part: link nvlink-4, number: "collectives[all_to_all 8].latency", value: 40 us}'
HOST = "{part: software megatron-core-2025, number: host_attention, value: 2 ms}"


@pytest.fixture
def simmoe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simmoe:
    return in_folder(tmp_path, monkeypatch, capsys)


def written(folder: Path, *changes: str, rest: str = "") -> Path:
    path = folder / "own.yaml"
    path.write_text("overlay: 1\nchanges:\n" + "".join(f"  - {one}\n" for one in changes) + rest)
    return path


def numbers(scenario: Scenario) -> dict[str, float]:
    return {n.path: n.quantity.value for part, spec in parts_of(scenario).items() for n in numbers_of(spec, part)}


def test_it_changes_what_it_says_and_nothing_else(tmp_path: Path):
    before = small()
    after = apply_overlay(before, written(tmp_path, GEMM, LINK, HOST, rest="manifest: {any: [1, {thing: x}]}\n"))
    own, old = numbers(after), numbers(before)
    assert {name: value for name, value in own.items() if value != old[name]} == {
        "accelerator h100-sxm5-80gb: efficiency.gemm[bf16].sustained": 0.7,
        "link nvlink-4: collectives[all_to_all 8].latency": pytest.approx(40e-6),
        "software megatron-core-2025: host_attention": 2e-3,
    }
    assert (after.model, after.plan, after.routing, after.name) == (
        before.model,
        before.plan,
        before.routing,
        before.name,
    )
    assert run(after).step_time_s > run(before).step_time_s


def test_the_new_number_names_its_file_and_keeps_its_spread(tmp_path: Path):
    scenario = apply_overlay(small(), written(tmp_path, GEMM))
    fit = scenario.cluster.groups[0].node.accelerator.efficiency.gemm[0]
    assert (fit.sustained.source, fit.sustained.kind, fit.sustained.spread) == ("overlay own.yaml", "measured", 0.02)
    assert "0.823" in fit.sustained.note


def test_it_is_undone_by_leaving_it_out(tmp_path: Path):
    written(tmp_path, GEMM)
    assert load_overlaid(SMALL) == small()


WRONG = {
    "another accelerator": (
        [GEMM.replace("h100-sxm5", "a100-sxm4")],
        "own.yaml:3:12: changes.0.part: not in this scenario (got 'accelerator a100-sxm4-80gb'), it has "
        "accelerator h100-sxm5-80gb: leave the overlay out",
    ),
    "another unit": (
        [LINK.replace("40 us", "40 GB/s")],
        "own.yaml:3:79: changes.0.value: '40 GB/s' is in GB/s, write for example 10 us, 0.5 ms",
    ),
    "no unit": (
        [LINK.replace("40 us", "40")],
        "own.yaml:3:79: changes.0.value: '40' has no unit, write for example 10 us, 0.5 ms",
    ),
    "no such number": (
        [GEMM.replace("gemm[bf16]", "gemm[bf61]")],
        "own.yaml:3:48: changes.0.number: no number of accelerator h100-sxm5-80gb "
        "(got 'efficiency.gemm[bf61].sustained'), did you mean efficiency.gemm[bf16].sustained?",
    ),
    "not above zero": (
        [GEMM.replace("0.7", "-0.7")],
        "own.yaml:3:90: changes.0.value: a number above zero is expected (got -0.7), correct it",
    ),
    "twice": ([GEMM, GEMM], "own.yaml:4:48: changes.1.number: the number is changed twice, remove one of the two"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_with_its_place(case: str, tmp_path: Path, simmoe: Simmoe):
    changes, message = WRONG[case]
    written(tmp_path, *changes)
    outcome = simmoe("simulate", SMALL, "--overlay", "own.yaml")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.strip() == message


@pytest.mark.parametrize("text", ["overlay: 2\nchanges: []\n", "changes: []\n", "[]", "overlay: 1\n", "a: {b: c}\n"])
def test_what_is_no_overlay_is_refused(text: str, tmp_path: Path):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(SpecError):
        apply_overlay(small(), path)


@pytest.mark.parametrize("command", [("simulate",), ("cite",), ("plan", "--top", "1", "--planner", "uniform")])
def test_commands_take_it(command: tuple[str, ...], tmp_path: Path, simmoe: Simmoe):
    written(tmp_path, GEMM)
    plain, changed = simmoe(*command, SMALL), simmoe(*command, SMALL, "--overlay", "own.yaml")
    assert plain.status == changed.status == 0
    assert plain.out != changed.out
