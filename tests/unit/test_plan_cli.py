"""``simmoe plan``: the table, the JSON object, the plan file."""

import json
from pathlib import Path

import pytest

from tests.command_line import Simmoe, in_folder

SCENARIO = """\
name: demo
model:
  base: mixtral-8x7b
  num_layers: 3
  hidden_size: 1024
  moe: {num_experts: 8, top_k: 2, moe_ffn_hidden_size: 3584}
  attention: {num_heads: 8, num_kv_heads: 2, head_dim: 128}
cluster:
  groups: [{node: a40-x1, count: 2}, {node: v100-16gb-x1, count: 4}]
  fabric: {link: roce-100, topology: flat}
training: {sequence_length: 4096, micro_batch_size: 1, global_batch_size: 12, precision: fp16}
plan: {recompute: {granularity: full}, zebra: {attention_devices: 1, expert_devices: 1}}
"""


@pytest.fixture
def simmoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Simmoe:
    """Runs `simmoe` in a folder with one scenario."""
    (tmp_path / "demo.yaml").write_text(SCENARIO, encoding="utf-8")
    return in_folder(tmp_path, monkeypatch, capsys)


def test_the_best_plan_is_written_and_simulates_as_told(simmoe: Simmoe) -> None:
    found = simmoe(
        "plan", "demo.yaml", "--planner", "hetermoe", "--top", "2", "-o", "best.yaml", "--json", "plans.json"
    )
    assert found.status == 0
    assert "Plans for" in found.out
    assert "Disaggregation" in found.out
    best = json.loads(Path("plans.json").read_text(encoding="utf-8"))["proposals"][0]
    command = next(line for line in found.out.splitlines() if line.startswith("  simmoe simulate"))
    size = f"training.micro_batch_size={best['micro_batch_size']}"
    assert size in command
    again = simmoe("simulate", "demo.yaml", "--set", "plan=best.yaml", "--set", size, "--json", "-")
    assert json.loads(again.out)["step_time_s"] == best["simulated_s"]
    assert best["predicted_s"] == pytest.approx(best["simulated_s"], rel=0.06)


def test_json_is_alone_and_repeats_to_the_byte(simmoe: Simmoe) -> None:
    first, second = (simmoe("plan", "demo.yaml", "--planner", "ep", "--json", "-").out for _ in range(2))
    assert first == second
    assert json.loads(first)["planner"] == "ep"


@pytest.mark.parametrize("planner", ["ep", "hetero-pp"])
def test_other_planners_answer_too(simmoe: Simmoe, planner: str) -> None:
    found = simmoe("plan", "demo.yaml", "--planner", planner, "--top", "1")
    assert found.status == 0
    assert "tokens/s" in found.out


def test_nothing_that_fits_is_status_3_with_reasons(simmoe: Simmoe) -> None:
    found = simmoe("plan", "demo.yaml", "--set", "model.hidden_size=8192", "--planner", "ep", "-o", "best.yaml")
    assert found.status == 3
    assert "Rejected" in found.out
    assert not Path("best.yaml").exists()


def test_a_place_that_cannot_be_written_is_refused_before_the_search(simmoe: Simmoe) -> None:
    found = simmoe("plan", "demo.yaml", "-o", "nowhere/best.yaml")
    assert found.status == 2
    assert "nowhere" in found.err
