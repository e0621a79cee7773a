"""Finished rows of a comparison, kept beside its result until that is written, so that no interruption loses them."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import simmoe
from simmoe.errors import OutputError
from simmoe.report.output import refusal
from simmoe.specs.data_folders import hardware_roots

if TYPE_CHECKING:
    from simmoe.report.league import Comparison
    from simmoe.specs.throughput_table_reader import TableRow


def kept_beside(result: Path) -> Path:
    """Where the finished rows of a result are kept until it is complete."""
    return result.with_name(f"{result.name}.partial")


def finished_rows(path: Path, rows: "Sequence[TableRow]") -> "dict[str, Comparison]":
    """The kept comparisons that a table, a hardware database and a version of SimMoE would give again.

    Parameters
    ----------
    path : Path
        As `keeping` wrote it, possibly cut off in its last line; may be missing.
    rows : sequence of TableRow

    Returns
    -------
    dict
        By row id; rows whose cells, database or version have changed are left out.
    """
    from simmoe.report.league import Comparison

    if not path.exists():
        return {}
    keys = {fingerprint(row, database()): row.id for row in rows}
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            one = Comparison(**entry["comparison"])
        except (ValueError, TypeError, KeyError):
            continue  # cut off in the middle of a line
        if keys.get(entry.get("key", "")) == one.id:
            found[one.id] = one
    return found


@contextmanager
def keeping(path: Path, *, resume: bool) -> "Iterator[Callable[[TableRow, Comparison], None]]":
    """A function that adds a finished row to the file at once; the file goes when the block succeeds.

    Parameters
    ----------
    path : Path
    resume : bool
        Add to what is there; otherwise there must be nothing.

    Raises
    ------
    OutputError
        If there is something and it is not to be added to, or the file cannot be written.
    """
    if path.exists() and not resume:
        raise OutputError(f"{path} keeps the rows of an interrupted run: go on with --resume, or remove it")
    digest = database()
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * bool(file.tell()))  # what follows a line that was cut off stands on its own
            yield lambda row, comparison: _append(file, fingerprint(row, digest), comparison)
    except OSError as error:
        raise OutputError(refusal(path, error)) from error
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; the finished rows are kept in {path}, go on with --resume\n")
        raise
    path.unlink(missing_ok=True)


def _append(file: IO[str], key: str, comparison: "Comparison") -> None:
    file.write(json.dumps({"key": key, "comparison": asdict(comparison)}) + "\n")
    file.flush()


def fingerprint(row: "TableRow", data: str) -> str:
    """What the comparison of a row depends on, as a hash: its cells, the numbers, and the program."""
    text = json.dumps([simmoe.__version__, data, row.id, sorted(row.cells.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def database() -> str:
    """A hash of every file of the hardware database and of the user's own parts."""
    found = hashlib.sha256()
    for root in hardware_roots():
        for path in sorted(root.rglob("*")):
            if path.suffix in {".yaml", ".csv"}:
                found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()
