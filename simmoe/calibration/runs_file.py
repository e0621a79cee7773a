"""Read a list of runs: which traces belong to which values of a scenario."""

import csv
from pathlib import Path
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.specs.text_file import got, one_line, read_text

NAME, TRACES, HELD_OUT = "run", "traces", "held_out"
_YES = {"yes": True, "no": False, "": False}
_MOST_RUNS, _MOST_TRACES = 1000, 1024


class TracedRun(NamedTuple):
    """A run of a scenario.

    Attributes
    ----------
    name : str
    traces : tuple of Path
        One a rank.
    overrides : tuple of str
        ``key=value``, of the scenario.
    held_out : bool
        It is predicted, not fitted.
    """

    name: str
    traces: tuple[Path, ...]
    overrides: tuple[str, ...]
    held_out: bool


def read_runs(path: Path) -> tuple[TracedRun, ...]:
    """The runs of a file.

    Parameters
    ----------
    path : Path
        CSV with the columns ``run`` (a name), ``traces`` (a file, or a folder of ``*.json`` and ``*.json.gz``, beside
        this file) and, if wanted, ``held_out`` (yes or no). Every other column is a key of the scenario, such as
        ``model.hidden_size``, and its cells are the values; an empty one keeps the scenario's.

    Returns
    -------
    tuple of TracedRun

    Raises
    ------
    SpecError
        With everything that is wrong, by line.
    """
    name = one_line(str(path), 4096)
    lines = csv.reader(read_text(path).splitlines())
    header = [word.strip() for word in next(lines, [])]
    missing = [column for column in (NAME, TRACES) if column not in header]
    if missing or len(set(header)) < len(header):
        raise SpecError(
            [f"{name}:1: the columns {NAME} and {TRACES} are expected once {got(','.join(header))}, add them"]
        )
    found, problems = list[TracedRun](), list[str]()
    for cells in lines:
        if any(cell.strip() for cell in cells):
            try:
                found.append(_run(dict(zip(header, (cell.strip() for cell in cells), strict=True)), path.parent))
            except ValueError as error:
                problems.append(f"{name}:{lines.line_num}: {error}")
    if (not found and not problems) or len(found) > _MOST_RUNS:
        problems.append(f"{name}: 1 to {_MOST_RUNS} runs are expected (got {len(found)}), correct the list")
    if problems:
        raise SpecError(problems)
    return tuple(found)


def _run(cells: dict[str, str], folder: Path) -> TracedRun:
    held_out = _YES.get(cells.get(HELD_OUT, ""))
    if held_out is None:
        raise ValueError(f"{HELD_OUT}: yes or no is expected {got(cells[HELD_OUT])}, write one of the two")
    where = folder / cells[TRACES]
    traces = [where]
    if where.is_dir():
        traces = sorted(one for one in where.iterdir() if one.name.endswith((".json", ".json.gz")))[:_MOST_TRACES]
    if not traces or not all(trace.is_file() for trace in traces):
        raise ValueError(f"{TRACES}: there are no traces {got(str(where))}, name a file or a folder of traces")
    values = {key: value for key, value in cells.items() if key not in {NAME, TRACES, HELD_OUT} and value}
    return TracedRun(cells[NAME], tuple(traces), tuple(f"{key}={value}" for key, value in values.items()), held_out)
