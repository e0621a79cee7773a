"""Sums of whole numbers, as in ``$((NODES * 8))``, without executing anything."""

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:([0-9]{1,12})|\$?\{?([A-Za-z_][A-Za-z0-9_]*)\}?|([-+*/%()]))")
_LARGEST = 2**40
_LONGEST = 200


def whole_sum(text: str, lookup: Callable[[str], str]) -> int | None:
    """The value of a sum of products of whole numbers and variables; None if it is anything else.

    Parameters
    ----------
    text : str
    lookup : callable
        The text of a variable.

    Examples
    --------
    >>> whole_sum("NODES * (4 + 4)", {"NODES": "2"}.get), whole_sum("2 / 0", str), whole_sum("a b", str)
    (16, None, None)
    """
    tokens: list[str] = []
    place, text = 0, text.strip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or len(tokens) > _LONGEST:
            return None
        tokens.append(match[1] or match[3] or (lookup(match[2]) or "").strip())
        place = match.end()
    tokens.reverse()
    try:
        found = _total(tokens)
    except (ValueError, IndexError, ZeroDivisionError, RecursionError):
        return None
    return found if not tokens and abs(found) <= _LARGEST else None


def _total(tokens: list[str]) -> int:
    found = _product(tokens)
    while tokens and tokens[-1] in {"+", "-"}:
        sign = 1 if tokens.pop() == "+" else -1
        found += sign * _product(tokens)
    return found


def _product(tokens: list[str]) -> int:
    found = _atom(tokens)
    while tokens and tokens[-1] in {"*", "/", "%"}:
        sign = tokens.pop()
        other = _atom(tokens)
        found = found * other if sign == "*" else found // other if sign == "/" else found % other
        if abs(found) > _LARGEST:
            raise ValueError
    return found


def _atom(tokens: list[str]) -> int:
    token = tokens.pop()
    if token == "-":
        return -_atom(tokens)
    if token != "(":
        return int(token)
    found = _total(tokens)
    if tokens.pop() != ")":
        raise ValueError
    return found
