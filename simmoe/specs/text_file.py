"""Read a small text file safely: its size is looked at before its contents."""

import errno
import os
import stat
from pathlib import Path
from typing import NoReturn

from simmoe.errors import SpecError

MEBIBYTE = 2**20


def one_line(text: str, limit: int = 200) -> str:
    r"""A text made fit for one line of an error message: control characters escaped, cut to `limit`.

    Examples
    --------
    >>> one_line("a\nb")
    'a\\nb'
    >>> one_line("x" * 10, limit=5)
    'xxxxx...'
    """
    shown = text if len(text) <= limit else text[:limit] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def got(value: object) -> str:
    """A value as an error message shows it: ``(got 'eight')``, long ones cut, containers by kind.

    Examples
    --------
    >>> got("eight"), got(True), got(None), got([1, 2])
    ("(got 'eight')", '(got true)', '(got null)', '(got a list of 2)')
    """
    if value is None or isinstance(value, bool):
        return f"(got {str(value).lower().replace('none', 'null')})"
    if isinstance(value, dict):
        return f"(got a mapping of {len(value)})"
    if isinstance(value, list | tuple):
        return f"(got a list of {len(value)})"
    return f"(got {one_line(repr(value), 60)})"


_SMALLER = "keep bulk data in CSV files of their own"


def read_text(path: Path, limit: int = MEBIBYTE, remedy: str = _SMALLER) -> str:
    """The text of a regular UTF-8 file of at most `limit` bytes.

    Parameters
    ----------
    path : Path
        A leading byte-order mark is dropped.
    limit : int
        Largest size accepted, checked before anything is read [B].
    remedy : str
        What to do about a larger file.

    Raises
    ------
    SpecError
        If there is no such file, it is a directory or a device, cannot be read, is too large, is
        empty or is not UTF-8. One sentence, starting with the path.
    """
    raw = _read_bytes(path, limit, remedy)
    if not raw.strip():
        refuse(path, "the file is empty, write key: value lines into it")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        bad = raw[error.start]
        refuse(f"{path}:{line}", f"not UTF-8 text (got byte 0x{bad:02x}), save the file as UTF-8")


def _read_bytes(path: Path, limit: int, remedy: str) -> bytes:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            refuse(path, "is a directory, name a file in it")
        if not stat.S_ISREG(status.st_mode):
            refuse(path, "is not a regular file, name a file on disk")
        if status.st_size > limit:
            size, most = status.st_size / MEBIBYTE, limit / MEBIBYTE
            refuse(
                path,
                f"the file is too large (got {size:.1f} MiB, at most {most:g} MiB), {remedy}",
            )
        with path.open("rb") as stream:
            return stream.read(limit)
    except FileNotFoundError:
        refuse(path, "there is no such file, check the path")
    except ValueError:  # a NUL byte inside the name
        refuse(path, "is no file name, check the path")
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        refuse(path, f"cannot be read ({reason}), check the path and its permissions")


def refuse(place: Path | str, sentence: str) -> NoReturn:
    """Raise a `SpecError` of one problem at a place.

    Parameters
    ----------
    place : Path or str
        A path, or ``path:line:column``.
    sentence : str
        What is wrong and what to do.
    """
    raise SpecError([f"{one_line(str(place), 4096)}: {sentence}"])
