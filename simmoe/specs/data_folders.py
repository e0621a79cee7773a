"""Where the data files are: the user's own parts first, then what SimMoE brings along."""

import functools
import os
from pathlib import Path

from simmoe.errors import SpecError
from simmoe.specs.text_file import refuse

FOLDERS = {
    "accelerator": "accelerators",
    "link": "links",
    "node": "nodes",
    "cluster": "clusters",
    "software": "software",
    "model": "models",
}
_MOST_FILES = 10_000


def data_root() -> Path:
    """The folder that holds ``hardware_db`` and ``scenarios``.

    Returns
    -------
    Path
        ``$SIMMOE_DATA``, else ``simmoe/_data`` of an installed package, else the folder beside the
        package in a checkout.

    Raises
    ------
    SpecError
        If ``SIMMOE_DATA`` is set and is no folder, or none of the folders is there.
    """
    chosen = os.environ.get("SIMMOE_DATA")
    return _data_root(str(Path(chosen).absolute()) if chosen else "")


@functools.cache
def _data_root(chosen: str) -> Path:
    if chosen:
        if not Path(chosen).is_dir():
            refuse(f"SIMMOE_DATA={chosen}", "there is no such folder, correct or unset the variable")
        return Path(chosen)
    package = Path(__file__).resolve().parents[1]
    for root in (package / "_data", package.parent):
        if (root / "hardware_db").is_dir():
            return root
    sentence = "no hardware_db here, set SIMMOE_DATA to the folder that holds it"
    raise SpecError([f"{package.parent}: {sentence}"])


def hardware_roots() -> tuple[Path, ...]:
    """Every folder laid out like ``hardware_db``, in order of precedence.

    Returns
    -------
    tuple of Path
        Those of ``$SIMMOE_HARDWARE_PATH``, then ``~/.config/simmoe/hardware``, then the shipped one.
    """
    return _hardware_roots(os.environ.get("SIMMOE_HARDWARE_PATH", ""), _own_folder(), data_root())


@functools.cache
def _hardware_roots(chosen: str, own: Path | None, root: Path) -> tuple[Path, ...]:
    named = [_expanded(entry) or Path(entry) for entry in chosen.split(os.pathsep) if entry]
    for folder in named:
        if not folder.is_dir():
            place = f"SIMMOE_HARDWARE_PATH={chosen}"
            refuse(place, f"{folder} is no folder, correct or unset the variable")
    return (*named, *([own] if own is not None and own.is_dir() else []), root / "hardware_db")


def _own_folder() -> Path | None:
    """``~/.config/simmoe/hardware``; None for a user without a home."""
    return _expanded("~/.config/simmoe/hardware")


def _expanded(name: str) -> Path | None:
    """A path with ``~`` replaced, which a shell leaves alone inside quotes; None where there is no such home."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return None


def user_root() -> Path:
    """Where a user's new parts go; there need be no such folder yet.

    Returns
    -------
    Path
        The first of ``$SIMMOE_HARDWARE_PATH``, else ``~/.config/simmoe/hardware``.

    Raises
    ------
    SpecError
        If the variable is not set and the user has no home.
    """
    named = [entry for entry in os.environ.get("SIMMOE_HARDWARE_PATH", "").split(os.pathsep) if entry]
    found = _expanded(named[0]) or Path(named[0]) if named else _own_folder()
    if found is None:
        refuse("~", "there is no home folder, set SIMMOE_HARDWARE_PATH to a folder of your own")
    return found


def part_files(kind: str) -> dict[str, Path]:
    """The file of every id of a kind, sorted by id.

    Parameters
    ----------
    kind : str
        A key of `FOLDERS`.
    """
    roots = hardware_roots()
    folders = [root / FOLDERS[kind] for root in roots]
    if kind == "model":
        folders.append(data_root() / "scenarios" / "models")
    return _part_files(tuple(folders))


@functools.cache
def _part_files(folders: tuple[Path, ...]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in reversed(folders):
        names = sorted(folder.glob("*.yaml"))[:_MOST_FILES] if folder.is_dir() else []
        found |= {path.stem: path for path in names}
    return dict(sorted(found.items()))


def forget() -> None:
    """Look at the folders again: for programs that write parts and then read them."""
    for cached in (_data_root, _hardware_roots, _part_files):
        cached.cache_clear()
