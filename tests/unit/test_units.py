"""Quantities with units: every unit that exists in a file, and everything that is refused."""

import math

import pytest

from simmoe import units
from simmoe.errors import UnitError


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GB", "B", 80e9),
        ("80 GiB", "B", 80 * 2**30),
        ("80GB", "B", 80e9),
        ("  80  GB ", "B", 80e9),
        ("5 EB", "B", 5e18),
        ("400 Gb/s", "B/s", 50e9),
        ("400 GB/s", "B/s", 400e9),
        ("1 Gib/s", "B/s", 2**30 / 8),
        ("3.35 TB/s", "B/s", 3.35e12),
        ("989 TFLOP/s", "FLOP/s", 989e12),
        ("2 PFLOP", "FLOP", 2e15),
        ("10 us", "s", 10e-6),
        ("10 \N{MICRO SIGN}s", "s", 10e-6),
        ("10 \N{GREEK SMALL LETTER MU}s", "s", 10e-6),
        ("0.5 ms", "s", 0.5e-3),
        ("9 ns/sqrt(B)", "s/sqrt(B)", 9e-9),
        ("700 W", "W", 700.0),
        ("1.98 GHz", "Hz", 1.98e9),
        ("2.49 USD/h", "USD/h", 2.49),
        ("80 %", "1", 0.8),
        ("0.8", "1", 0.8),
        (0.8, "1", 0.8),
        (3, "1", 3.0),
        (1e-9, "1", 1e-9),
        ("1e3 B", "B", 1e3),
        ("-5 GB", "B", -5e9),
        (".5 GB", "B", 0.5e9),
    ],
)
def test_a_quantity_is_read_as_si(text, dimension, value):
    assert units.parse(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        (True, "B", "a quantity is expected (got True), write for example 80 GB, 80 GiB"),
        (None, "s", "a quantity is expected (got None), write for example 10 us, 0.5 ms"),
        ([1], "W", "a quantity is expected (got [1]), write for example 700 W"),
        ("", "B", "not a quantity (got ''), write for example 80 GB, 80 GiB"),
        ("GB", "B", "not a quantity (got 'GB'), write for example 80 GB, 80 GiB"),
        ("1,5 GB", "B", "not a quantity (got '1,5 GB'), write for example 80 GB, 80 GiB"),
        ("1_000 B", "B", "not a quantity (got '1_000 B'), write for example 80 GB, 80 GiB"),
        ("\N{ARABIC-INDIC DIGIT THREE} GB", "B", "not a quantity (got '\u0663 GB'), write for example 80 GB, 80 GiB"),
        ("1 GB\n2", "B", "not a quantity (got '1 GB\\n2'), write for example 80 GB, 80 GiB"),
        (math.nan, "1", "not a quantity (got 'nan'), write for example 0.8, 80 %"),
        (math.inf, "1", "not a quantity (got 'inf'), write for example 0.8, 80 %"),
        ("80", "B", "'80' has no unit, write for example 80 GB, 80 GiB"),
        (80, "B", "'80' has no unit, write for example 80 GB, 80 GiB"),
        ("80 GB", "B/s", "'80 GB' is in GB, write for example 3.35 TB/s, 900 GB/s, 400 Gb/s"),
        ("80 %", "USD/h", "'80 %' is in %, write for example 2.49 USD/h"),
        ("400 gb/s", "B/s", "unknown unit 'gb/s', did you mean GB/s or Gb/s?"),
        ("400 Gbps", "B/s", "unknown unit 'Gbps', did you mean Gb/s or Gib/s?"),
        ("3 tflop/s", "FLOP/s", "unknown unit 'tflop/s', did you mean TFLOP/s?"),
        ("3 parsec", "s", "unknown unit 'parsec', write for example 10 us, 0.5 ms"),
        ("1e400 GB", "B", "'1e400 GB' is not finite, write for example 80 GB, 80 GiB"),
        ("1e305 EFLOP", "FLOP", "'1e305 EFLOP' is not finite, write for example 2 TFLOP"),
        pytest.param(10**5000, "1", "not a quantity (got '2**16609'), write for example 0.8, 80 %", id="huge"),
    ],
)
def test_what_is_no_quantity_is_refused_with_a_remedy(text, dimension, message):
    with pytest.raises(UnitError) as caught:
        units.parse(text, dimension)
    assert str(caught.value) == message


def test_a_text_too_long_is_refused_at_once_and_cut():
    with pytest.raises(UnitError) as caught:
        units.parse("1" * 1_000_000 + "\n", "B")
    assert len(str(caught.value)) < 150


def test_every_dimension_has_an_example_that_can_be_read():
    assert set(units._EXAMPLES) == units.DIMENSIONS
    for dimension, examples in units._EXAMPLES.items():
        for example in examples.split(", "):
            assert units.parse(example, dimension) > 0


def test_bits_are_an_eighth_of_bytes_for_every_prefix():
    for name, (dimension, factor) in units.UNITS.items():
        if dimension in {"B", "B/s"} and "B" in name:
            assert units.UNITS[name.replace("B", "b")] == (dimension, factor / 8)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.35e12, "B/s", "3.35 TB/s"),
        (50e9, "B/s", "50 GB/s"),
        (999.96e9, "B", "1 TB"),
        (999.94e9, "B", "999.9 GB"),
        (1.5e-3, "s", "1.5 ms"),
        (12.0, "s", "12 s"),
        (5000.0, "s", "5000 s"),
        (-2e9, "B", "-2 GB"),
        (0.0, "B", "0 B"),
        (math.inf, "s", "inf s"),
        (math.nan, "s", "nan s"),
    ],
)
def test_a_value_is_written_with_a_prefix(value, unit, text):
    assert units.format_si(value, unit) == text


@pytest.mark.parametrize("unit", ["B", "B/s", "FLOP", "FLOP/s", "W", "s"])
@pytest.mark.parametrize("value", [1.0, 12.5, 999.0, 1000.0, 0.25, 3.125e-4])
def test_what_is_written_is_read_back(value, unit):
    if unit != "s" and value < 1:
        value = 1 / value
    assert units.parse(units.format_si(value, unit), unit) == pytest.approx(value, rel=1e-3)
