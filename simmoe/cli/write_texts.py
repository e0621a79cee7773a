"""Where results go: to files, or to the screen instead of a report."""

import sys
from collections.abc import Mapping
from pathlib import Path

STDOUT = "-"


def check_outputs(csv: Path | None, json: str | None, plot: Path | None) -> None:
    """Refuse before the simulation what could not be written after it.

    Raises
    ------
    SpecError
    """
    from simmoe.cli.output_check import check_writable
    from simmoe.errors import SpecError
    from simmoe.report.output import make_folder

    if str(csv) == json == STDOUT:
        raise SpecError(["--csv and --json: both to the screen, name a file for one of them"])
    for file in (csv, Path(json) if json is not None else None):
        if file is not None and str(file) != STDOUT:
            check_writable(file)
    if plot is not None:
        make_folder(plot)


def write_texts(texts: Mapping[str, str]) -> bool:
    """Write each text to the file of its name; whether one of them went to the screen.

    Parameters
    ----------
    texts : mapping of str to str
        By file, ``-`` = the screen.
    """
    from simmoe.report.output import replacing

    for name, text in texts.items():
        if name == STDOUT:
            sys.stdout.write(text)
            continue
        with replacing(Path(name)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return STDOUT in texts
