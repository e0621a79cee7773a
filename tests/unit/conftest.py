"""A small fixed catalogue and a scenario to spoil, for tests of reading."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from simmoe.errors import SimmoeError
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario

# A part of the shipped data: suggestions in exact messages must not change when a part is added.
PARTS = {
    "hardware_db/accelerators": ["a100-sxm4-80gb", "h100-sxm5-80gb", "v100-sxm2-16gb"],
    "hardware_db/links": [
        *("infiniband-ndr-400", "roce-100", "nvlink-2", "nvlink-3", "nvlink-4"),
        *("pcie-3", "pcie-4", "pcie-5"),
    ],
    "hardware_db/nodes": ["dgx-1-v100-16gb", "dgx-a100-80gb", "dgx-h100"],
    "hardware_db/clusters": ["superpod-h100-4"],
    "hardware_db/software": ["megatron-core-2025", "megatron-lm-2021"],
    "scenarios/models": ["deepseek-v3", "llama-2-7b", "mixtral-8x22b", "mixtral-8x7b"],
}
SCENARIO = """\
name: demo
model: mixtral-8x7b
cluster:
  groups:
    - node: dgx-h100
      count: 8
  fabric:
    link: infiniband-ndr-400
training:
  sequence_length: 4096
  global_batch_size: 256
  precision: bf16
plan:
  tensor_parallel: 1
  pipeline_parallel: 4
  expert_parallel: 8
"""
Load = Callable[..., Scenario]


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A data folder with few parts; one for all tests, so that each part is read once."""
    data = tmp_path_factory.mktemp("data")
    for folder, names in PARTS.items():
        (data / folder).mkdir(parents=True)
        for name in names:
            (data / folder / f"{name}.yaml").symlink_to(repository / folder / f"{name}.yaml")
    for name in ("efficiency", "sources.yaml"):
        (data / "hardware_db" / name).symlink_to(repository / "hardware_db" / name)
    return data


@pytest.fixture
def catalogue(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small data folder in force, no parts of the user's own, an empty current directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("SIMMOE_DATA", str(small_data))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SIMMOE_HARDWARE_PATH", raising=False)
    return small_data


@pytest.fixture
def load(catalogue: Path) -> Load:
    """Loads the example as `s.yaml`, with text replaced, keys overridden, or another text."""

    def load(*changes: tuple[str, str], overrides: Sequence[str] = (), text: str = SCENARIO) -> Scenario:
        for old, new in changes:
            assert text.count(old) == 1, f"{old!r} must stand in the text once"
            text = text.replace(old, new)
        Path("s.yaml").write_text(text)
        return load_scenario("s.yaml", overrides)

    return load


@pytest.fixture
def complaint(load: Load) -> Callable[..., list[str]]:
    """What loading says: one line a problem; each line must be one line."""

    def complaint(*changes: tuple[str, str], overrides: Sequence[str] = (), text: str = SCENARIO) -> list[str]:
        with pytest.raises(SimmoeError) as caught:
            load(*changes, overrides=overrides, text=text)
        lines = str(caught.value).split("\n")
        assert lines == list(getattr(caught.value, "problems", lines))
        assert caught.value.exit_status == 2
        return lines

    return complaint
