"""Read the output of nccl-tests (and rccl-tests, which prints the same)."""

import re
from pathlib import Path

from simmoe.calibration.bench_rows import CollectiveRow
from simmoe.cost.operators import CollectiveName
from simmoe.errors import SpecError
from simmoe.specs.text_file import one_line, read_text

_LONGEST_US = 1e9
MOST_BYTES = 64 * 2**20
_PROGRAMS: dict[str, CollectiveName] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
_PROGRAM = re.compile(r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv)", re.IGNORECASE)
_MARK = re.compile(r"^(?:\[[\d,]+\]<\w+>:|\d+:)\s?")  # what mpirun and srun put before each line
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b.*?\bon\s+(\S+)")
_ROW = re.compile(r"^\s*(\d{1,18})\s+\d{1,18}\s+[a-z]\w*\s+(?:[a-z]\w*\s+)?(\S.*)$")
_COLUMNS = 8  # time, algbw, busbw and errors, out of place and in place; the root stands before them since 2022


def read_nccl_log(path: Path) -> tuple[CollectiveRow, ...]:
    """The out-of-place times of nccl-tests.

    Parameters
    ----------
    path : Path
        One or several outputs behind each other. The name of the program (``all_reduce_perf``) must stand before its
        rows: in the line of the command, in ``# Collective test starting: all_reduce_perf`` or in the name of the file.

    Returns
    -------
    tuple of CollectiveRow
        Sizes of which nothing was moved are left out.

    Raises
    ------
    SpecError
        If it is no such output, or the program or the ranks are not named.
    """
    program, hosts, rows = _named(path.name), dict[str, str](), list[CollectiveRow]()
    fresh = True
    for text in read_text(path, MOST_BYTES).splitlines():
        line = _MARK.sub("", text)
        if rank := _RANK.match(line):
            hosts = {} if fresh else hosts
            fresh, hosts[rank[1]] = False, rank[2]
        elif row := _ROW.match(line):
            fresh = True
            rows += _row(path, program, hosts, int(row[1]), _microseconds(row[2]))
        else:
            program = _named(line) or program
    if not rows:
        raise SpecError(
            [f"{one_line(str(path), 4096)}: no rows of nccl-tests here, give the output of all_reduce_perf or its like"]
        )
    return tuple(rows)


def _named(text: str) -> CollectiveName | None:
    found = _PROGRAM.search(text)
    return _PROGRAMS[found[1].lower().replace("_", "")] if found else None


def _microseconds(cells: str) -> float:
    """The time out of place; 0 where there is none."""
    words = cells.split()
    try:
        return float(words[-_COLUMNS])
    except (IndexError, ValueError):
        return 0.0


def _row(
    path: Path, program: CollectiveName | None, hosts: dict[str, str], size: int, microseconds: float
) -> list[CollectiveRow]:
    name = one_line(str(path), 4096)
    if program is None:
        raise SpecError([f"{name}: which collective it is cannot be told, name the file after it: all_reduce.log"])
    if len(hosts) < 2:
        raise SpecError([f"{name}: the lines '#  Rank  0 ... on HOST' are missing, give the whole output"])
    if size == 0 or not 0 < microseconds < _LONGEST_US:
        return []
    return [CollectiveRow(program, float(size), len(hosts), len(set(hosts.values())), microseconds * 1e-6)]
