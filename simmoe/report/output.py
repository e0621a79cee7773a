"""Writing result files: complete or not at all."""

import contextlib
import os
from collections.abc import Iterator
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
