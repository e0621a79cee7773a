"""Writing result files: complete or not at all, and tables as text."""

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from simmoe.errors import OutputError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write to, which becomes `path` once the block has succeeded.

    Parameters
    ----------
    path : Path
        The file to create or replace; its folder must exist.

    Yields
    ------
    Path
        A name in the same folder; it keeps the suffixes of `path`, which select a format.

    Raises
    ------
    OutputError
        If the folder does not exist or the file cannot be written; `path` is then unchanged.
    """
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; name a file")
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise OutputError(refusal(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def csv_table(
    columns: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    digits: int | None = None,
    flags: tuple[str, str] = ("no", "yes"),
) -> str:
    """A table as CSV, one line each after a line of column names.

    Parameters
    ----------
    columns : sequence of str
    rows : iterable of cells
        None is an empty cell; the parts of a list stand in one cell with blanks between them.
    digits : int or None
        Significant digits of floats; None = as many as tell them apart.
    flags : tuple of str
        What stands for false and true.

    Examples
    --------
    >>> print(csv_table(("a", "b", "c"), [(None, [1, 2], 1 / 3), (True, "x", 2)], digits=3), end="")
    a,b,c
    ,1 2,0.333
    yes,x,2
    """

    def cell(value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return flags[value]
        if isinstance(value, list):
            return " ".join(map(str, value))
        return f"{value:.{digits}g}" if isinstance(value, float) and digits is not None else str(value)

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(value) for value in row] for row in rows)
    return text.getvalue()


def make_folder(path: Path) -> None:
    """Create a folder and those above it, unless they exist.

    Raises
    ------
    OutputError
        If that is not possible.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(refusal(path, error)) from error


def refusal(path: Path, error: OSError) -> str:
    """The sentence for an operating system's refusal to write a file, with its remedy."""
    reason = (error.strerror or str(error)).lower()
    if isinstance(error, FileNotFoundError):
        return f"cannot write {path}: folder {path.parent} does not exist; create it"
    if isinstance(error, PermissionError):
        return f"cannot write {path}: {reason}; choose a folder you may write to"
    return f"cannot write {path}: {reason}; choose another place"
