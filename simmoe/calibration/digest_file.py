"""Which file it was."""

import hashlib
from pathlib import Path

from simmoe.errors import SpecError
from simmoe.specs.text_file import one_line

_BLOCK = 2**20


def file_entry(path: Path) -> dict[str, str | int]:
    """Name, size [B] and SHA-256 of a file, for a manifest; its folder is not told.

    Parameters
    ----------
    path : Path

    Raises
    ------
    SpecError
        If it cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise SpecError([f"{one_line(str(path), 4096)}: cannot be read ({error.strerror}), check it"]) from error
    return {"name": path.name, "bytes": size, "sha256": digest.hexdigest()}
