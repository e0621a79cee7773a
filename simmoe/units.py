"""The one place where a quantity with a unit becomes a plain SI number, and back.

Inside SimMoE every number is a float in s, B (bytes), FLOP, FLOP/s, B/s, W or USD/h. Strings such as
``"900 GB/s"``, ``"80 GiB"`` or ``"400 Gb/s"`` exist only in files. ``GB`` is 1e9 bytes, ``GiB`` is 2**30
bytes and ``Gb`` is 1e9 bits; upper and lower case therefore matter.
"""

import difflib
import math
import re

from simmoe.errors import UnitError

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MICRO = {"\N{MICRO SIGN}": 1e-6, "\N{GREEK SMALL LETTER MU}": 1e-6}  # read, never written


def _unit_table() -> dict[str, tuple[str, float]]:
    """Every accepted unit string with its dimension (named by its SI unit) and factor."""
    table: dict[str, tuple[str, float]] = {"1": ("1", 1.0), "%": ("1", 0.01)}
    for prefix, factor in (_DECIMAL | _BINARY).items():
        for rate, dimension in (("", "B"), ("/s", "B/s")):
            table[f"{prefix}B{rate}"] = (dimension, factor)
            table[f"{prefix}b{rate}"] = (dimension, factor / 8)
    for prefix, factor in _DECIMAL.items():
        table[f"{prefix}FLOP"] = ("FLOP", factor)
        table[f"{prefix}FLOP/s"] = ("FLOP/s", factor)
        table[f"{prefix}W"] = ("W", factor)
        table[f"{prefix}Hz"] = ("Hz", factor)
    for prefix, factor in (_SMALL | _MICRO).items():
        table[f"{prefix}s"] = ("s", factor)
        table[f"{prefix}s/sqrt(B)"] = ("s/sqrt(B)", factor)
    table["USD/h"] = ("USD/h", 1.0)
    return table


UNITS = _unit_table()
DIMENSIONS = frozenset(dimension for dimension, _ in UNITS.values())
_QUANTITY = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*((?:[^\W\d_]|%).*?)?\s*")
_LONGEST = 60  # characters of a quantity; a bound keeps the pattern quick on any input
_EXAMPLES = {
    "B": "80 GB, 80 GiB",
    "B/s": "3.35 TB/s, 900 GB/s, 400 Gb/s",
    "FLOP/s": "989 TFLOP/s",
    "FLOP": "2 TFLOP",
    "s": "10 us, 0.5 ms",
    "W": "700 W",
    "Hz": "1.98 GHz",
    "USD/h": "2.49 USD/h",
    "1": "0.8, 80 %",
    "s/sqrt(B)": "9 ns/sqrt(B)",
}


def parse(text: str | float | int, dimension: str) -> float:
    """Read a quantity of a known dimension as an SI number.

    Parameters
    ----------
    text : str or float or int
        ``"400 Gb/s"``; a bare number is accepted only for the dimension ``"1"``.
    dimension : str
        The SI unit expected: ``B``, ``B/s``, ``FLOP``, ``FLOP/s``, ``s``, ``W``, ``Hz``, ``USD/h``,
        ``1`` or ``s/sqrt(B)``.

    Returns
    -------
    float
        The value in that SI unit.

    Raises
    ------
    UnitError
        If the text is no quantity, its unit is unknown, of another dimension, or missing.

    Examples
    --------
    >>> parse("400 Gb/s", "B/s"), parse("400 GB/s", "B/s")
    (50000000000.0, 400000000000.0)
    >>> parse("80 GiB", "B")
    85899345920.0
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UnitError(f"a quantity is expected (got {text!r:.60}), write for example {_hint(dimension)}")
    if isinstance(text, int):
        text = f"{text:d}" if abs(text) < 2**64 else f"2**{text.bit_length() - 1}"
    match = _QUANTITY.fullmatch(str(text)) if len(str(text)) <= _LONGEST else None
    if match is None:
        raise UnitError(f"not a quantity (got {str(text)!r:.60}), write for example {_hint(dimension)}")
    unit = match[2] or "1"
    if unit not in UNITS:
        raise UnitError(_unknown_unit(unit, dimension))
    found, factor = UNITS[unit]
    if found != dimension:
        missing = "has no unit" if unit == "1" else f"is in {unit}"
        raise UnitError(f"{str(text)!r} {missing}, write for example {_hint(dimension)}")
    value = float(match[1]) * factor
    if not math.isfinite(value):
        raise UnitError(f"{str(text)!r} is not finite, write for example {_hint(dimension)}")
    return value


def _hint(dimension: str) -> str:
    return _EXAMPLES[dimension]


def _unknown_unit(unit: str, dimension: str) -> str:
    """The sentence for an unknown unit, with the nearest spelling of the right dimension."""
    candidates = [name for name, (found, _) in UNITS.items() if found == dimension]
    folded = [name for name in candidates if name.lower() == unit.lower()]
    near = folded or difflib.get_close_matches(unit, candidates, n=2)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"write for example {_hint(dimension)}"
    return f"unknown unit {unit!r}, {remedy}"


def format_si(value: float, unit: str, digits: int = 4) -> str:
    """Write an SI value with a decimal prefix.

    Parameters
    ----------
    value : float
        In the unit given.
    unit : str
        ``"B/s"``, ``"B"``, ``"FLOP/s"``, ``"FLOP"``, ``"W"`` or ``"s"``.
    digits : int
        Significant digits.

    Examples
    --------
    >>> format_si(3.35e12, "B/s"), format_si(1.5e-3, "s")
    ('3.35 TB/s', '1.5 ms')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    prefixes = {**_SMALL, **(_DECIMAL if unit != "s" else {})}
    ordered = sorted(prefixes.items(), key=lambda item: item[1])
    prefix, factor = ordered[0]
    for candidate, size in ordered:
        if abs(value) >= size * (1 - 0.5 * 10**-digits):
            prefix, factor = candidate, size
    return f"{value / factor:.{digits}g} {prefix}{unit}"
