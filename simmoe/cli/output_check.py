"""Find out that a file cannot be written before the work that fills it."""

import contextlib
from pathlib import Path

from simmoe.report.figures import check_suffix
from simmoe.report.output import replacing


class _Tried(Exception):  # noqa: N818 - no error: it leaves `replacing` without replacing anything
    """The file could be created."""


def check_writable(path: Path) -> None:
    """Raise `OutputError` unless a file can be created where `path` is; `path` itself is not touched.

    Parameters
    ----------
    path : Path
        The file that will be written.
    """
    with contextlib.suppress(_Tried), replacing(path) as temporary:
        temporary.touch()
        raise _Tried


def check_files(picture: Path | None, json: str | None) -> None:
    """Raise `OutputError` unless a picture and a JSON text can be written where they are asked for.

    Parameters
    ----------
    picture : Path or None
    json : str or None
        A file, or - for the output.
    """
    if picture is not None:
        check_suffix(picture)
        check_writable(picture)
    if json is not None and json != "-":
        check_writable(Path(json))
