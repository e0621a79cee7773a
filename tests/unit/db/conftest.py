"""A data folder with few parts, and a user without or with parts of their own, for tests of ``simmoe db``."""

from collections.abc import Callable
from pathlib import Path

import pytest

from simmoe.cli.db_check import examine
from tests.command_line import Simmoe, in_folder


@pytest.fixture
def simmoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Simmoe:
    """Runs `simmoe` in an empty folder, for a user without parts of their own."""
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SIMMOE_HARDWARE_PATH", raising=False)
    return in_folder(tmp_path / "work", monkeypatch, capsys)


@pytest.fixture(scope="module")
def few_data(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small data folder, with the kernel tables of its accelerators alone."""
    data = tmp_path_factory.mktemp("few") / "data"
    (data / "hardware_db" / "efficiency").mkdir(parents=True)
    (data / "scenarios").symlink_to(small_data / "scenarios")
    for path in (small_data / "hardware_db").iterdir():
        if path.name != "efficiency":
            (data / "hardware_db" / path.name).symlink_to(path)
    for path in (small_data / "hardware_db" / "accelerators").iterdir():
        (data / "hardware_db" / "efficiency" / path.stem).symlink_to(
            small_data / "hardware_db" / "efficiency" / path.stem
        )
    return data


@pytest.fixture
def few(simmoe: Simmoe, few_data: Path, monkeypatch: pytest.MonkeyPatch) -> Simmoe:
    """The same over a data folder with few parts, which is quick to read whole."""
    monkeypatch.setenv("SIMMOE_DATA", str(few_data))
    return simmoe


@pytest.fixture
def own(few: Simmoe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own parts."""
    folder = tmp_path / "own"
    (folder / "links").mkdir(parents=True)
    monkeypatch.setenv("SIMMOE_HARDWARE_PATH", str(folder))
    return folder


@pytest.fixture
def user(simmoe: Simmoe, tmp_path: Path) -> Path:
    """Where a user's own parts go when nothing is set."""
    return tmp_path / "home" / ".config" / "simmoe" / "hardware"


@pytest.fixture(scope="module")
def shipped(few_data: Path) -> set[str]:
    """What the check says of the shipped files alone: nothing, if the test below passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMMOE_DATA", str(few_data))
        patch.setenv("HOME", str(few_data))
        patch.delenv("SIMMOE_HARDWARE_PATH", raising=False)
        return set(examine()[0])


@pytest.fixture
def problems(few: Simmoe, shipped: set[str]) -> Callable[[], list[str]]:
    """What the check says of a user's own files."""

    def problems() -> list[str]:
        found = few("db", "check")
        assert found.status == (1 if found.err else 0)
        assert bool(found.out) != bool(found.err)
        lines = found.err.splitlines()
        assert not lines or lines[-1].endswith(f" files checked, {len(lines) - 1} problems.")
        return [line for line in lines[:-1] if line not in shipped]

    return problems
