"""Run the command line in this process and look at what it leaves behind."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from simmoe.cli.main import main


class Outcome(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Simmoe = Callable[..., Outcome]


def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simmoe:
    """A function that runs `simmoe` with its arguments in a folder, 100 columns wide."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["simmoe", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        status = end.value.code or 0
        assert isinstance(status, int)
        return Outcome(status, *capsys.readouterr())

    return run


def files() -> list[str]:
    """What is in the current folder."""
    return sorted(path.name for path in Path().iterdir())
