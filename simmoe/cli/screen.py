"""How reports look: one console, plain tables, numbers with their units."""

import os
import re
import sys
from typing import IO, Any, cast

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_PIPED_WIDTH = 100  # columns where there is no terminal to ask
GIB = 2.0**30
_BAR = 10


class _Trimmed:
    """A stream that gets no blanks at the ends of lines, with which rich fills tables."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(r" +(?=\n)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console(*, stderr: bool = False) -> Console:
    """Where a command prints: the output, or the error stream."""
    stream = cast("IO[str]", _Trimmed(sys.stderr if stderr else sys.stdout))
    found = Console(file=stream, highlight=False, emoji=False, markup=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = _PIPED_WIDTH
    return found


def heading(text: str, remark: str = "") -> Text:
    """A line above a table; the remark explains it in grey."""
    line = Text(text, style="bold")
    return line.append(f"  {remark}", style="not bold dim") if remark else line


def table(*columns: str, right: str = "", grow: str = "") -> Table:
    """A table without rules.

    Parameters
    ----------
    *columns : str
        Headings.
    right : str
        One character a column: ``r`` for numbers, ``l`` for words.
    grow : str
        The heading of the column that may be broken over lines, the last column if it has none; no other is.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=any(columns))
    for position, name in enumerate(columns):
        numeric = right[position : position + 1] == "r"
        breaks = name == grow if grow else position == len(columns) - 1
        made.add_column(
            name, justify="right" if numeric else "left", no_wrap=not breaks, overflow="fold" if breaks else "ellipsis"
        )
    return made


def indented(rows: Any) -> Padding:
    """The same, two columns to the right."""
    return Padding(rows, (0, 0, 0, 2), expand=False)


def bar(share: float) -> Text:
    """A share of 1 as a bar, in eighths of a character."""
    eighths = round(max(0.0, min(share, 1.0)) * _BAR * 8)
    full, rest = divmod(eighths, 8)
    return Text(("█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]).ljust(_BAR), style="cyan")


def seconds(value: float, like: float | None = None) -> str:
    """A time with the prefix that people read fastest.

    Parameters
    ----------
    value : float
        [s]
    like : float or None
        The time whose prefix and decimals to take [s]; None = those of `value`.

    Examples
    --------
    >>> seconds(4.3217), seconds(0.0321), seconds(95.0), seconds(0.0)
    ('4.322 s', '32.1 ms', '95.00 s', '0 s')
    >>> seconds(0.8975, like=1.052)
    '0.897 s'
    """
    size = value if like is None else like
    if value == 0:
        return "0 s"
    if size >= 0.9995:
        return f"{value:.3f} s" if size < 9.9995 else f"{value:.2f} s" if size < 99.995 else f"{value:.1f} s"
    return f"{value * 1e3:.1f} ms" if size >= 0.9995e-3 else f"{value * 1e6:.1f} us"


def percent(share: float, digits: int = 1) -> str:
    """A share of 1 in percent.

    Examples
    --------
    >>> percent(0.4317)
    '43.2 %'
    """
    return f"{100 * share:.{digits}f} %"


def gib(size: float) -> str:
    """A size in GiB, without the unit.

    Examples
    --------
    >>> gib(80 * 2**30)
    '80.0'
    """
    return f"{size / GIB:.1f}"


def count(value: float) -> str:
    """A number of tokens or parameters with its prefix.

    Examples
    --------
    >>> count(346401.75), count(46702792704), count(5412.5), count(17)
    ('346.4 k', '46.70 B', '5.412 k', '17')
    """
    for prefix, factor in ((" T", 1e12), (" B", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= factor * 0.99995:
            return f"{value / factor:#.4g}".rstrip(".") + prefix
    return f"{value:.4g}"
