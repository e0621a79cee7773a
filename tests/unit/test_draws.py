"""Draws of the step time, and faults and draws on the command line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simmoe.pipeline import run
from simmoe.report.draws import Draws, draw_steps
from simmoe.report.summary import summarise
from simmoe.specs.faults import Jitter
from tests.command_line import Simmoe, in_folder
from tests.scenarios import SMALL, small


@pytest.fixture(scope="module")
def result():
    return run(small("training.global_batch_size=16"))


@pytest.fixture
def simmoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Simmoe:
    """Runs `simmoe` in an empty folder."""
    return in_folder(tmp_path, monkeypatch, capsys)


def test_percentiles_are_those_of_the_draws():
    draws = Draws(np.array([4.0, 1.0, 3.0, 2.0, 5.0]), 0, Jitter())
    assert (draws.mean_s, draws.percentile(50), draws.percentile(25), draws.percentile(5)) == (3.0, 3.0, 2.0, 1.2)
    assert draws.summary() == {
        "draws": 5,
        "seed": 0,
        "jitter": {"kind": "lognormal", "sigma": 0.05, "network_sigma": 0.0, "host_sigma": 0.0},
        "mean_s": 3.0,
        "p5_s": 1.2,
        "p50_s": 3.0,
        "p95_s": pytest.approx(4.8),
        "p99_s": pytest.approx(4.96),
    }


def test_the_same_seed_gives_the_same_draws(result):
    first = draw_steps(result, 20, 3).step_time_s
    assert first.tobytes() == draw_steps(result, 20, 3).step_time_s.tobytes()
    assert first[:5].tobytes() == draw_steps(result, 5, 3).step_time_s.tobytes()
    assert not np.array_equal(first, draw_steps(result, 20, 4).step_time_s)


def test_draws_without_jitter_are_the_step():
    result = run(small("training.global_batch_size=16", "training.jitter={sigma: 0}"))
    assert draw_steps(result, 3).step_time_s.tolist() == [result.step_time_s] * 3


def test_jitter_alone_does_not_change_a_run(result):
    other = run(small("training.global_batch_size=16", "training.jitter={sigma: 0.5}"))
    assert other.timeline.digest() == result.timeline.digest()


def test_the_summary_holds_draws_where_there_are_any(result):
    assert "draws" not in summarise(result)
    found = summarise(replace(result, draws=draw_steps(result, 10)))
    assert list(found)[-1] == "draws"
    assert found["draws"]["p50_s"] > result.step_time_s


def test_the_command_line_draws(simmoe: Simmoe):
    found = simmoe("simulate", SMALL, "--draws", "20", "--seed", "1", "--json", "r.json")
    assert (found.status, found.err) == (0, "")
    assert "With jitter" in found.out
    assert "median of 20; p5 " in found.out
    assert "by training.jitter: kernels 5 %" in found.out
    draws = json.loads(Path("r.json").read_text())["draws"]
    assert (draws["draws"], draws["seed"]) == (20, 1)
    again = simmoe("simulate", SMALL, "--draws", "20", "--seed", "1", "--json", "-")
    assert json.loads(again.out)["draws"] == draws


def test_the_command_line_names_faults(simmoe: Simmoe):
    faults = "cluster.faults=[{device: 3, slowdown: 1.2}, {node: 1, network: 0.5, slowdown: 2}]"
    out = simmoe("simulate", SMALL, "--set", faults).out
    assert "\nfault: device 3 takes 1.2 times as long\n" in out
    assert "\nfault: node 1 takes 2 times as long and has 50 % of its network bandwidth\n" in out
    lost = ("--set", "cluster.groups.0.count=4", "--set", "cluster.faults=[{node: 0, failed: true}]")
    words = "without failed node 0: 16 of 32 GPUs train (24 are left), data parallel 8 instead of 16"
    assert f"\n{words}\n" in simmoe("simulate", SMALL, *lost).out


def test_the_command_line_says_why_gpus_idle(simmoe: Simmoe):
    out = simmoe("simulate", SMALL).out
    assert "Why GPUs idle" in out
    for words in ("pipeline fills", "pipeline drains", "slower stages or GPUs", "transfer between stages"):
        assert words in out
    assert "warm_up" not in out
