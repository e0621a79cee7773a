"""Reads published raw tables, each with its source, its path inside the source and its sha256.

The tables are not part of the repository. `SIMMOE_SHARED` names the folder that holds them under ``profiles``, one
folder for each source, default ``../shared``.
"""

import gzip
import hashlib
import io
import lzma
import os
import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

# Folder under profiles -> key in hardware_db/sources.yaml, path of the folder inside that source's address.
SOURCES = {
    "aiconfigurator": ("aiconfigurator-systems", ""),
    "aws": ("awsome-distributed-ai", ""),
    "frontier": ("frontier-profiling", "data/profiling/compute/"),
    "helix": ("helix", ""),
    "llmcompass": ("llmcompass", ""),
    "llmservingsim": ("llmservingsim-profiles", "profiler/"),
    "mscclpp": ("mscclpp", ""),
    "neusight": ("neusight", ""),
    "sailor": ("sailor-profiles", ""),
    "simai": ("simai", ""),
    "simumax/a100_pcie.json.gz": ("simumax-a100", ""),
    "simumax/b200_bf16_ceperm.json.gz": ("simumax-b200", ""),
    "superbenchmark": ("superbenchmark", ""),
    "transcribed/deepep.csv": ("deepep", ""),
    "transcribed/deepgemm_h800_fp8.csv": ("deepgemm", ""),
    "vidur": ("vidur-profiling", ""),
}


class Origin(NamedTuple):
    """Where a table comes from.

    Attributes
    ----------
    source : str
        Key in ``hardware_db/sources.yaml``.
    path : str
        Path inside the source, without a suffix that only our copy has.
    sha256 : str
        Of the uncompressed bytes, which are those of the published file.
    """

    source: str
    path: str
    sha256: str

    @property
    def locator(self) -> str:
        """The words of a table's `locator` column: the file and the first 16 digits of its hash."""
        return f"{self.path} sha256:{self.sha256[:16]}"


def locator(origins: Sequence[Origin]) -> str:
    """The file with its hash, or the first of several files and the hash of their hashes."""
    first, *others = origins
    if not others:
        return first.locator
    digest = hashlib.sha256("".join(origin.sha256 for origin in origins).encode()).hexdigest()
    return f"{first.path} and {len(others)} like it sha256:{digest[:16]}"


def profiles() -> Path:
    """The folder of raw tables; a sentence and exit when there is none."""
    folder = Path(os.environ.get("SIMMOE_SHARED", "../shared")) / "profiles"
    if not folder.is_dir():
        raise SystemExit(f"no folder {folder}, set SIMMOE_SHARED to the folder that holds profiles")
    return folder


def read_bytes(path: str, member: str = "") -> tuple[bytes, Origin]:
    """One file, uncompressed.

    Parameters
    ----------
    path : str
        Relative to `profiles`.
    member : str
        File inside, for a tar archive.

    Returns
    -------
    data : bytes
    origin : Origin
    """
    data = (profiles() / path).read_bytes()
    inside = path
    if path.endswith(".tar.xz"):
        inside = f"{path.split('/', maxsplit=1)[0]}/{member.removeprefix('./')}"
        data = _members(profiles() / path)[member]
    elif path.endswith(".gz"):
        data, inside = gzip.decompress(data), path.removesuffix(".gz")
    elif path.endswith(".xz"):
        data, inside = lzma.decompress(data), path.removesuffix(".xz")
    key, prefix = SOURCES.get(path) or SOURCES[path.split("/", maxsplit=1)[0]]
    return data, Origin(key, prefix + inside.split("/", 1)[1], hashlib.sha256(data).hexdigest())


@cache
def _members(path: Path) -> dict[str, bytes]:
    """The files of a tar archive."""
    with tarfile.open(path) as archive:
        opened = {entry.name: archive.extractfile(entry) for entry in archive if entry.isfile()}
        return {name: content.read() for name, content in opened.items() if content is not None}


def read(path: str, member: str = "") -> tuple[pd.DataFrame, Origin]:
    """One parquet or CSV table, in the units of its source.

    Parameters
    ----------
    path : str
        Relative to `profiles`.
    member : str
        File inside, for a tar archive.

    Returns
    -------
    table : pandas.DataFrame
    origin : Origin
    """
    data, origin = read_bytes(path, member)
    if path.endswith(".parquet"):
        return pd.read_parquet(io.BytesIO(data)), origin
    return pd.read_csv(io.BytesIO(data)), origin


def listing(pattern: str) -> list[str]:
    """Paths under `profiles` that match a glob pattern, sorted."""
    return sorted(path.relative_to(profiles()).as_posix() for path in profiles().glob(pattern))
