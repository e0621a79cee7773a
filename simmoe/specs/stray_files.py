"""Find files of a hardware folder that nothing reads: a part under a wrong name is otherwise passed over in silence."""

from collections.abc import Collection, Iterator
from pathlib import Path

from simmoe.specs.data_folders import FOLDERS
from simmoe.specs.suggest import did_you_mean
from simmoe.specs.text_file import one_line

_TOP = ("sources.yaml", "efficiency", *FOLDERS.values())
_BESIDE_TABLES = "residuals.csv"


def stray_files(root: Path, accelerators: Collection[str]) -> list[str]:
    """A sentence for each file of a hardware folder that nothing reads.

    Parameters
    ----------
    root : Path
        Laid out like ``hardware_db``. Names that begin with a dot and Markdown files may stand anywhere.
    accelerators : collection of str
        Every id there is, for the folders of efficiency tables.
    """
    top = [
        f"{_shown(path)}: nothing reads this, {did_you_mean(path.name, _TOP)}"
        for path in _inside(root)
        if path.name not in _TOP
    ]
    parts = [
        f"{_shown(path)}: nothing reads this, end the name of a part in .yaml"
        for folder in FOLDERS.values()
        for path in _inside(root / folder)
        if path.suffix != ".yaml" or path.is_dir()
    ]
    return top + parts + list(_stray_tables(root / "efficiency", accelerators))


def _stray_tables(folder: Path, accelerators: Collection[str]) -> Iterator[str]:
    """What stands in the wrong place below ``efficiency``."""
    for path in _inside(folder):
        if path.is_dir() and path.name not in accelerators:
            remedy = did_you_mean(path.name, accelerators) if accelerators else "rename the folder"
            yield f"{_shown(path)}: no accelerator has this id, {remedy}"
        if not path.is_dir() and path.name != _BESIDE_TABLES:
            yield f"{_shown(path)}: nothing reads this, put it into the folder of an accelerator"


def _inside(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.suffix != ".md")


def _shown(path: Path) -> str:
    return one_line(str(path), 4096)
