"""Lists of runs: which traces, which values, what is held out; and what is wrong with them."""

from pathlib import Path

import pytest

from simmoe.calibration.runs_file import TracedRun, read_runs
from simmoe.errors import SpecError


def written(folder: Path, text: str) -> Path:
    (folder / "a.json").write_text("{}")
    (folder / "ranks").mkdir(exist_ok=True)
    for rank in (1, 0):
        (folder / "ranks" / f"rank{rank}.json.gz").write_text("")
    path = folder / "runs.csv"
    path.write_text(text)
    return path


def test_files_folders_values_and_what_is_held_out(tmp_path: Path):
    text = "run,traces,model.num_layers,held_out\nfirst,a.json,4,\nsecond,ranks,,yes\n\n"
    ranks = tuple(tmp_path / "ranks" / f"rank{rank}.json.gz" for rank in (0, 1))
    assert read_runs(written(tmp_path, text)) == (
        TracedRun("first", (tmp_path / "a.json",), ("model.num_layers=4",), held_out=False),
        TracedRun("second", ranks, (), held_out=True),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run,held_out\nx,yes\n", "runs.csv:1: the columns run and traces are expected once"),
        ("run,traces,run\nx,a.json,y\n", "runs.csv:1: the columns run and traces are expected once"),
        ("run,traces\n", "runs.csv: 1 to 1000 runs are expected (got 0), correct the list"),
        ("run,traces\nx,b.json\n", "runs.csv:2: traces: there are no traces (got"),
        ("run,traces,held_out\nx,a.json,maybe\n", "runs.csv:2: held_out: yes or no is expected (got 'maybe')"),
        ("run,traces,held_out\nx,a.json\n", "runs.csv:2:"),
    ],
)
def test_what_is_wrong_is_told_by_line(text: str, message: str, tmp_path: Path):
    with pytest.raises(SpecError) as caught:
        read_runs(written(tmp_path, text))
    assert message in str(caught.value)
