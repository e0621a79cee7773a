"""Classes of kernels of one's own, from a file."""

import re
from collections.abc import Sequence
from pathlib import Path

from simmoe.calibration.kernel_classes import TABLE, KernelClass
from simmoe.errors import SpecError
from simmoe.specs.text_file import read_text


def read_classes(path: Path) -> tuple[KernelClass, ...]:
    """Rows of one's own, before the table.

    Parameters
    ----------
    path : Path
        Lines ``class pattern`` with a blank between; the pattern is a regular expression. ``#`` begins a comment.

    Raises
    ------
    SpecError
        Every line that is none, by number.
    """
    rows, problems = list[KernelClass](), list[str]()
    for number, line in enumerate(read_text(path).splitlines(), 1):
        words = line.split("#", 1)[0].split(None, 1)
        if not words:
            continue
        try:
            rows.append(KernelClass(words[0], re.compile(words[1].strip())))
        except (IndexError, re.error) as error:
            problems.append(f"{path}:{number}: {_reason(words, error)}")
    if problems:
        raise SpecError(problems)
    return (*rows, *TABLE)


def _reason(words: Sequence[str], error: Exception) -> str:
    if len(words) < 2:
        return f"a class and a pattern are expected (got {words[0]!r}), write both"
    return f"the pattern is no regular expression ({error}), correct it"
