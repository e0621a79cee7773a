"""The gallery: every scenario reads, simulates and fits; every model has one."""

import json
from pathlib import Path

import pytest

from simmoe.pipeline import run
from simmoe.specs.catalog import list_ids
from simmoe.specs.reader import load_scenario
from tests.command_line import Simmoe, in_folder

FOLDER = Path(__file__).parents[2] / "scenarios" / "gallery"
FILES = sorted(FOLDER.glob("*.yaml"))
EXAMPLES = sorted((FOLDER.parent / "examples").glob("*.yaml"))
# Sizes and papers' models that have scenarios elsewhere, or none a user would train.
WITHOUT = {"gpt2-1.5b", "llama-2-7b", "llama-2-13b", "switch-base-8"}


def test_every_model_has_a_scenario():
    used = {load_scenario(path).model.id for path in (*FILES, *EXAMPLES)}
    missing = set(list_ids("model")) - used - WITHOUT
    assert not {name for name in missing if not name.startswith(("hetermoe", "hapmoe"))}, missing


def test_sizes_reach_from_a_node_to_sixteen_thousand():
    sizes = [load_scenario(path).cluster.devices for path in (*FILES, *EXAMPLES)]
    assert (min(sizes), max(sizes)) == (2, 16384)
    assert len(FILES) >= 25


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if number % 8 == 0 else [pytest.mark.slow])
        for number, path in enumerate(FILES)
    ],
)
def test_it_simulates_and_fits(path: Path):
    result = run(load_scenario(path))
    assert result.fits
    assert 0.02 < result.mfu < 0.7


def test_scenarios_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    simmoe: Simmoe = in_folder(tmp_path, monkeypatch, capsys)
    found = json.loads(simmoe("scenarios", "--json").out)
    assert len(found) >= 60
    assert all(Path(one["file"]).is_file() for one in found)
    lines = simmoe("scenarios").out.splitlines()
    assert sum(".yaml" in line for line in lines) == len(found)
    assert any("llama-3.1-405b-dgx-h100-x2048.yaml" in line and "16,384" in line for line in lines)
