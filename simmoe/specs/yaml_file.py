"""Read YAML 1.2 into plain data and positions, within bounds.

The file is read as a stream of parser events: what makes a small file explode (aliases, deep nesting)
is refused at the event that starts it, and the position of every key and value is kept. Only the core
schema of YAML 1.2.2 (section 10.3) is known: ``no`` is text, ``1e3`` a number.
"""

import math
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path as FilePath
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from simmoe.errors import SpecError
from simmoe.specs.document import Document, Path, Position, Problem, dotted
from simmoe.specs.text_file import got, one_line, read_text, refuse

MAX_DEPTH = 24
MAX_NODES = 20_000
LARGEST_INTEGER = 2**40

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_PLAIN_WORDS = (  # how the parser begins what it says, and what that means
    (r"found character '\t'", "a tab stands here, use spaces"),
    ("expected <block end>", "the line does not fit those above it, check dashes and indentation"),
    ("mapping values are not allowed", "a second colon or a wrong indentation, quote text or align keys"),
    ("could not find expected ':'", "no colon after a key, write key: value"),
    ("expected ',' or ']'", "a list is not closed, add ]"),
    ("expected ',' or '}'", "a mapping is not closed, add }"),
    ("found unexpected end of stream", "a quote is not closed, add it"),
    ("expected the node content", "a value is missing, write one"),
)


def read_yaml(path: FilePath) -> Document:
    """The contents of a YAML file of at most 1 MiB whose top level is a mapping.

    Parameters
    ----------
    path : Path
        Shown in messages as it is given.

    Raises
    ------
    SpecError
        If the file cannot be read (`read_text`), is no acceptable YAML (`parse_value`), or holds
        nothing, a list or a bare value.
    """
    name = one_line(str(path), 4096)
    document = parse_value(read_text(path), name)
    if document.data is None:
        refuse(name, "the file is empty, write key: value lines into it")
    if not isinstance(document.data, dict):
        what = f"key: value lines are expected {got(document.data)}"
        refuse(str(document.position), f"{what}, start a line with a key and a colon")
    document.folder = path.parent
    return document


def parse_value(text: str, name: str, *, inline: bool = False) -> Document:
    r"""A YAML text with the position of everything in it.

    Parameters
    ----------
    text : str
        At most one YAML 1.2 document, without anchors, aliases and tags.
    name : str
        What positions are relative to: the file as the user named it.
    inline : bool
        The text is no file but a word or two: `name` alone is its position.

    Raises
    ------
    SpecError
        At the first thing that is not acceptable; one sentence with its line and column.

    Examples
    --------
    >>> document = parse_value("plan:\n  schedule: 1f1b\n", "x.yaml")
    >>> document.data, str(document.place(("plan", "schedule")))
    ({'plan': {'schedule': '1f1b'}}, 'x.yaml:2:13')
    """
    bad = _UNPRINTABLE.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        place = _position(name, line, bad.start() - text.rfind("\n", 0, bad.start()), inline)
        refuse(str(place), f"character U+{ord(bad[0]):04X} cannot stand in YAML, remove it")
    try:
        return _Builder(name, inline).build(YAML(typ="safe", pure=True).parse(StringIO(text)))
    except YAMLError as error:
        raise SpecError([_syntax_problem(error, name, inline)]) from error


class _Frame:
    """A mapping or list that is being filled; `key` is the mapping key that waits for its value."""

    def __init__(self, container: dict[str, Any] | list[Any], path: Path) -> None:
        self.container = container
        self.path = path
        self.key: str | None = None

    @property
    def expects_key(self) -> bool:
        return isinstance(self.container, dict) and self.key is None

    @property
    def next_path(self) -> Path:
        """Where the next value goes."""
        if isinstance(self.container, list):
            return (*self.path, len(self.container))
        return self.path if self.key is None else (*self.path, self.key)

    def add(self, value: Any) -> None:
        if isinstance(self.container, list):
            self.container.append(value)
        elif self.key is not None:
            self.container[self.key] = value
            self.key = None


class _Builder:
    """Turns parser events into a `Document`."""

    def __init__(self, name: str, inline: bool) -> None:
        self.name = name
        self.inline = inline
        self.root: list[Any] = []
        self.stack = [_Frame(self.root, ())]
        self.document = Document(_position(name, 1, 1, inline), None, {}, {})
        self.nodes = 0

    def build(self, events: Iterator[Event]) -> Document:
        documents = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.refuse(event, "a second document starts here, keep one in a file")
            elif isinstance(event, NodeEvent):
                self.node(event)
            elif isinstance(event, CollectionEndEvent):
                self.stack.pop()
        self.document.data = self.root[0] if self.root else None
        return self.document

    def node(self, event: NodeEvent) -> None:
        self.check(event)
        frame = self.stack[-1]
        if frame.expects_key:
            self.add_key(frame, event)
            return
        path = frame.next_path[1:]  # without the index of the only document
        position = self.position(event)
        if path:
            self.document.values[path] = position
        else:
            self.document.position = position
        if isinstance(event, ScalarEvent):
            frame.add(self.scalar(event, path))
            return
        inner: dict[str, Any] | list[Any] = {} if isinstance(event, MappingStartEvent) else []
        child = _Frame(inner, frame.next_path)
        frame.add(inner)
        self.stack.append(child)
        if len(self.stack) > MAX_DEPTH:
            self.refuse(event, f"nested more than {MAX_DEPTH - 1} deep, write it flatter")

    def check(self, event: NodeEvent) -> None:
        """Refuse what the core schema lacks or what would let the data grow without bound."""
        if isinstance(event, AliasEvent) or event.anchor is not None:
            sign = "*" if isinstance(event, AliasEvent) else "&"
            what = f"anchors and aliases are not accepted (got {sign}{one_line(event.anchor, 40)})"
            self.refuse(event, f"{what}, write the value out")
        tag = getattr(event, "tag", None)
        if tag is not None:
            what = f"tags are not accepted (got {one_line(str(tag), 60)})"
            self.refuse(event, f"{what}, write the bare value")
        self.nodes += 1
        if self.nodes > MAX_NODES:
            what = f"more than {MAX_NODES} values in one file"
            self.refuse(event, f"{what}, keep bulk data in CSV files of their own")

    def add_key(self, frame: _Frame, event: NodeEvent) -> None:
        if not isinstance(event, ScalarEvent):
            self.refuse(event, "a key must be a word, not a list or mapping; write key: value")
        key = event.value
        path = (*frame.path, key)[1:]
        if key in frame.container:
            first = self.document.keys[path].line
            where = f" in line {first}" if first else ""
            sentence = f"the key is already given{where}, remove one of the two"
            self.refuse(event, sentence, path)
        frame.key = key
        self.document.keys[path] = self.position(event)

    def scalar(self, event: ScalarEvent, path: Path) -> Any:
        """The value of a scalar by the core schema of YAML 1.2.2, section 10.3.2."""
        text: str = event.value
        if event.style is not None:
            return text
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _INTEGER.fullmatch(text):
            return self.integer(event, path)
        if _NOT_FINITE.fullmatch(text):
            self.refuse(event, f"not a finite number {got(text)}, write a number", path)
        if _FLOAT.fullmatch(text):
            value = float(text)
            if not math.isfinite(value):
                self.refuse(event, f"too large for a number {got(text)}, write less", path)
            return value
        return text

    def integer(self, event: ScalarEvent, path: Path) -> int:
        text: str = event.value
        value = int(text, 0 if text[:2] in {"0o", "0x"} else 10) if len(text) <= 24 else None
        if value is None or abs(value) > LARGEST_INTEGER:
            what = f"larger than any size SimMoE knows {got(text)}"
            self.refuse(event, f"{what}, write at most 2**40", path)
        return value

    def position(self, event: Event) -> Position:
        mark = event.start_mark
        return _position(self.name, mark.line + 1, mark.column + 1, self.inline)

    def refuse(self, event: Event, sentence: str, path: Path = ()) -> NoReturn:
        raise SpecError([str(Problem(self.position(event), dotted(path), sentence))])


def _position(name: str, line: int, column: int, inline: bool) -> Position:
    return Position(name) if inline else Position(name, line, column)


def _syntax_problem(error: YAMLError, name: str, inline: bool) -> str:
    """One sentence for what the YAML scanner or parser stumbled over."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return f"{name}: not valid YAML ({one_line(str(error))}), correct it"
    mark = error.problem_mark
    place = _position(name, mark.line + 1, mark.column + 1, inline)
    problem = str(error.problem or error.context)
    for beginning, plain in _PLAIN_WORDS:
        if problem.startswith(beginning):
            return f"{place}: not valid YAML, {plain}"
    return f"{place}: not valid YAML ({one_line(problem)}), correct the lines around it"
