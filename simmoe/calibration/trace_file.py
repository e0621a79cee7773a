"""The bytes of a trace file, in chunks: plain or gzip, whatever its name says, and never more than is bounded."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from simmoe.errors import SpecError

CHUNK = 2**22
MOST_BYTES = 2**34
"""Of JSON that is read from one file [B]."""
MOST_RATIO, FREE_BYTES = 300, 2**28
"""A gzip file may grow by this factor once more than so many bytes have come out of it: traces grow 10 to 50 times."""
_GZIP = b"\x1f\x8b"
_LFS = b"version https://git-lfs"


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def chunks(path: Path) -> Iterator[bytes]:
    """The contents of a file.

    Parameters
    ----------
    path : Path

    Yields
    ------
    bytes
        Not empty, `CHUNK` at most.

    Raises
    ------
    SpecError
        If there is no such file, it is empty, a pointer of git-lfs, a gzip file that is cut off or damaged, or more
        than the bounds above.
    """
    try:
        with path.open("rb") as file:
            head = file.read(64)
            file.seek(0)
            if not head:
                raise SpecError([f"{path}: the file is empty, export the trace again"])
            if head.startswith(_LFS):
                raise SpecError([f"{path}: is a pointer of git-lfs, not the file itself; run git lfs pull"])
            packed = head.startswith(_GZIP)
            yield from _bounded(path, gzip.GzipFile(fileobj=file) if packed else file, packed=packed)
    except FileNotFoundError:
        raise SpecError([f"{path}: no such file, check its name"]) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SpecError([f"{path}: the gzip file is cut off or damaged ({error}), copy it again"]) from None
    except OSError as error:
        raise SpecError([f"{path}: cannot be read ({error.strerror or error})"]) from None


def _bounded(path: Path, file: _Readable, *, packed: bool) -> Iterator[bytes]:
    """Chunks, as long as there are not too many of them."""
    total, size = 0, path.stat().st_size
    while chunk := file.read(CHUNK):
        total += len(chunk)
        if total > MOST_BYTES:
            raise SpecError([f"{path}: holds more than {MOST_BYTES // 2**30} GiB of JSON, trace fewer steps"])
        if packed and total > FREE_BYTES and total > MOST_RATIO * size:
            raise SpecError([f"{path}: grows more than {MOST_RATIO} times when it is unpacked, which no trace does"])
        yield chunk
