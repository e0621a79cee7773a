"""``simmoe compare`` and what ``simmoe plan`` shares with it: tables, files, pictures, Ctrl-C."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simmoe.explore import comparison
from simmoe.planners import registry, uniform
from tests.command_line import Simmoe, in_folder

SCENARIO = """\
name: demo
model:
  base: mixtral-8x7b
  num_layers: 4
  hidden_size: 1024
  moe: {num_experts: 8, top_k: 2, moe_ffn_hidden_size: 3584}
  attention: {num_heads: 8, num_kv_heads: 2, head_dim: 128}
cluster:
  groups: [{node: a40-x1, count: 2}, {node: v100-16gb-x1, count: 2}]
  fabric: {link: roce-100, topology: flat}
training: {sequence_length: 4096, micro_batch_size: 1, global_batch_size: 8, precision: fp16}
plan: {recompute: full, pipeline_parallel: 2}
"""
QUICK = ("--planners", "hapmoe", "--planners", "metis")


@pytest.fixture
def simmoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Simmoe:
    """Runs `simmoe` in a folder with one scenario."""
    (tmp_path / "demo.yaml").write_text(SCENARIO, encoding="utf-8")
    return in_folder(tmp_path, monkeypatch, capsys)


def test_every_planner_stands_beside_the_plan_of_the_file(simmoe: Simmoe) -> None:
    found = simmoe("compare", "demo.yaml", "--csv", "all.csv", "--json", "all.json", "--plot", "stages.svg")
    assert found.status == 0
    rows = list(csv.DictReader(Path("all.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["planner"] for row in rows] == [
        "(this file)", "hapmoe", "hetermoe", "joint", "metis", "alpa", "uniform", "deepspeed-moe", "tutel", "fsdp-ep",
        "random",
    ]  # fmt: skip
    times = {row["planner"]: float(row["simulated_s"]) for row in rows if row["simulated_s"]}
    assert times["joint"] <= min(times["hapmoe"], times["hetermoe"]) * (1 + 1e-9)
    assert all(row["reason"] for row in rows if not row["simulated_s"])
    assert [row["planner"] for row in json.loads(Path("all.json").read_text(encoding="utf-8"))] == list(
        dict.fromkeys(row["planner"] for row in rows)
    )
    picture = Path("stages.svg").read_text(encoding="utf-8")
    assert "A40" in picture
    assert "V100" in picture


def test_the_table_is_sorted_and_shows_the_stages(simmoe: Simmoe) -> None:
    out = simmoe("compare", "demo.yaml", *QUICK).out
    first, second = out.index("hapmoe"), out.index("(this file)")
    assert first < second
    assert "A = " in out
    assert "tokens/s" in out
    assert max(map(len, out.splitlines())) <= 100


def test_files_repeat_to_the_byte(simmoe: Simmoe) -> None:
    first, second = (simmoe("compare", "demo.yaml", *QUICK, "--csv", "-").out for _ in range(2))
    assert first == second
    assert first.startswith(",".join(comparison.COLUMNS))


def test_the_hash_seed_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(SCENARIO, encoding="utf-8")
    command = [sys.executable, "-c", "from simmoe.cli.main import main; main()"]
    said = [
        subprocess.run(
            [*command, "compare", "demo.yaml", "--planners", "hapmoe", "--json", "-"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1] != b""


def test_what_fits_nowhere_is_status_3(simmoe: Simmoe) -> None:
    found = simmoe("compare", "demo.yaml", *QUICK, "--set", "model.hidden_size=16384", "--plot", "stages.png")
    assert found.status == 3
    assert "No plan" in found.out
    assert "does not fit" in found.out
    assert not Path("stages.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--planners", "magic"), "magic"),
        (("--plot", "stages.gif"), ".svg"),
        (("--csv", "nowhere/all.csv"), "nowhere"),
        (("--csv", "-", "--json", "-"), "both to the screen"),
    ],
)
def test_wrong_input_ends_before_the_search(
    simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr(registry, "ask", lambda *_: pytest.fail("searched"))
    found = simmoe("compare", "demo.yaml", *arguments)
    assert found.status == 2
    assert words in found.err


def test_a_mode_belongs_to_hapmoe(simmoe: Simmoe) -> None:
    found = simmoe("plan", "demo.yaml", "--planner", "metis", "--mode", "paper")
    assert found.status == 2
    assert found.err.strip() == "--mode paper belongs to --planner hapmoe (got metis), leave it out"


def _stopped_after(monkeypatch: pytest.MonkeyPatch, plans: int) -> None:
    """Ctrl-C when so many plans of `uniform` have been simulated."""
    simulated, count = uniform.simulated, 0

    def stopping(*asked):
        nonlocal count
        if count == plans:
            raise KeyboardInterrupt
        count += 1
        return simulated(*asked)

    monkeypatch.setattr(uniform, "simulated", stopping)


def test_ctrl_c_gives_the_best_plan_so_far(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch) -> None:
    _stopped_after(monkeypatch, 2)
    found = simmoe("plan", "demo.yaml", "--planner", "uniform", "-o", "best.yaml")
    assert found.status == 0
    assert "Stopped by Ctrl-C" in found.out
    assert Path("best.yaml").exists()


def test_ctrl_c_ends_a_comparison_with_what_was_found(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch) -> None:
    _stopped_after(monkeypatch, 1)
    found = simmoe("compare", "demo.yaml", *QUICK, "--planners", "uniform", "--planners", "alpa", "--csv", "-")
    assert found.status == 0
    assert [line.split(",")[0] for line in found.out.splitlines()[1:]] == ["(this file)", "hapmoe", "metis", "uniform"]


def test_ctrl_c_before_any_plan_is_an_interruption(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch) -> None:
    _stopped_after(monkeypatch, 0)
    assert simmoe("plan", "demo.yaml", "--planner", "uniform").status == 130


@pytest.mark.slow
def test_a_real_signal_ends_a_long_search(tmp_path: Path) -> None:
    """As a user presses it: the process gets SIGINT while a large cluster is searched, and prints what it has."""
    root = Path(__file__).parents[2]
    scenario = root / "scenarios" / "papers" / "hapmoe" / "32-1-l.yaml"
    code = "from simmoe.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "compare", str(scenario), "--csv", "found.csv"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(15)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in {0, 130}
    assert (tmp_path / "found.csv").exists() == (process.returncode == 0)
