"""Tables as HTML fragments, for notebooks and reports."""

from collections.abc import Sequence
from html import escape
from typing import Any

_STYLE = "border-collapse: collapse; font-variant-numeric: tabular-nums"
_CELL = "padding: 2px 10px; text-align: {align}; border-bottom: 1px solid #ddd"


def html_table(header: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> str:
    """A table; texts are escaped, numbers stand on the right.

    Parameters
    ----------
    header : sequence of str
    rows : sequence of sequence
        Texts, numbers, None.
    title : str
        Stands above, in bold.

    Examples
    --------
    >>> "&lt;b&gt;" in html_table(["name"], [["<b>"]])
    True
    """
    head = "".join(f'<th style="{_CELL.format(align="left")}">{escape(name)}</th>' for name in header)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    above = f"<div><b>{escape(title)}</b></div>" if title else ""
    return f'{above}<table style="{_STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = "" if value is None else f"{value:,.6g}" if isinstance(value, float) else str(value)
    return f'<td style="{_CELL.format(align="right" if number else "left")}">{escape(text)}</td>'
