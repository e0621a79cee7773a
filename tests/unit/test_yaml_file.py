"""YAML as it is read: scalars, positions, and any text at all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simmoe.errors import SpecError
from simmoe.specs.document import Position
from simmoe.specs.yaml_file import parse_value, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("+3", 3),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-2.5E-3", -0.0025),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("no", "no"),
        ("off", "off"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2026-11-30", "2026-11-30"),
        ("'12'", "12"),
        ('"true"', "true"),
        ('""', ""),
        ("400 Gb/s", "400 Gb/s"),
        ("[1, [a, {b: 2}]]", [1, ["a", {"b": 2}]]),
        ("|\n  a\n  b\n", "a\nb\n"),
        ("1099511627776", 2**40),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text, value):
    read = parse_value(text, "x").data
    assert read == value
    assert type(read) is type(value)


def test_everything_read_has_its_position():
    document = parse_value("# first\na:\n  - b: 1\n    c: {d: x}\ne:\n", "f.yaml")
    places = {path: document.place(path) for path in document.values}
    assert {path: (line, column) for path, (_, line, column) in places.items()} == {
        ("a",): (2, 1),
        ("a", 0): (3, 5),
        ("a", 0, "b"): (3, 8),
        ("a", 0, "c"): (4, 5),
        ("a", 0, "c", "d"): (4, 12),
        ("e",): (5, 1),
    }
    assert document.place(("a", 0, "b"), key=True) == Position("f.yaml", 3, 5)
    assert document.place(("a", 0, "nowhere", "deeper")) == Position("f.yaml", 3, 5)
    assert document.place(("nowhere",)) == Position("f.yaml", 2, 1)
    assert document.get(("a", 0, "c", "d")) == "x"
    assert document.get(("a", 9), "none") == "none"


def test_a_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "b.yaml").write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_yaml(tmp_path / "b.yaml").data == {"name": "x"}


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused_in_one_line(text):
    try:
        parse_value(text, "f.yaml")
    except SpecError as error:
        (line,) = error.problems
        assert line.startswith("f.yaml")
        assert line.isprintable()


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`, \n\t.0", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_punctuation_is_read_or_refused_in_one_line(text):
    try:
        parse_value(text, "f.yaml")
    except SpecError as error:
        (line,) = error.problems
        assert line.startswith("f.yaml")
        assert line.isprintable()
