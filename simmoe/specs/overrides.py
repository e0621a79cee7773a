"""Apply ``--set a.b.c=value`` to a scenario that has been read but not yet validated."""

from typing import Any

from simmoe.errors import NotFoundError, SpecError
from simmoe.specs.catalog import named_document
from simmoe.specs.document import Document, Path, Position, Problem, dotted
from simmoe.specs.references import kind_at
from simmoe.specs.text_file import got, one_line
from simmoe.specs.yaml_file import MAX_DEPTH, parse_value

_LONGEST = 10_000


def apply_override(document: Document, text: str) -> None:
    """Change one value of a document in place.

    Parameters
    ----------
    document : Document
        A scenario; mappings that the key passes through are made where they are missing, and an id is
        replaced by the description it stands for.
    text : str
        ``key=value``; the key's steps are joined by dots, list entries are numbered from 0; the value
        is YAML (``16``, ``fp8-blockwise``, ``[core_attn, moe]``, ``null``).

    Raises
    ------
    SpecError
        If the text is no assignment, the value no YAML, or the key leads through a value.

    Examples
    --------
    >>> document = Document(Position("x.yaml"), {"plan": {"tensor_parallel": 1}})
    >>> apply_override(document, "plan.tensor_parallel=8")
    >>> document.data, str(document.place(("plan", "tensor_parallel")))
    ({'plan': {'tensor_parallel': 8}}, '--set plan.tensor_parallel=8')
    """
    position = Position(f"--set {one_line(text)}")
    key, equals, value_text = text.partition("=")
    steps = key.strip().split(".")
    if not equals or not all(steps):
        sentence = "not an override, write --set key.key=value"
        raise SpecError([str(Problem(position, "", sentence))])
    if not value_text.strip() or len(text) > _LONGEST or len(steps) > MAX_DEPTH:
        sentence = "no value, write one after the = (null for none)"
        if value_text.strip():
            sentence = f"longer than {_LONGEST} characters or {MAX_DEPTH} steps, write it into the file"
        raise SpecError([str(Problem(position, "", sentence))])
    value = parse_value(value_text, position.name, inline=True).data
    path: Path = ()
    for step in steps[:-1]:
        path = _step(document, path, step, position, make=True)
    path = _step(document, path, steps[-1], position, make=False)
    document.put(path, value, position)


def _step(document: Document, path: Path, word: str, position: Position, *, make: bool) -> Path:
    """One step further down; with `make`, onto a mapping or list that exists afterwards."""
    around = document.get(path)
    if isinstance(around, list):
        path = (*path, _index(around, path, word, position))
    elif isinstance(around, dict):
        path = (*path, word)
    else:
        sentence = f"has no keys {got(around)}, set {dotted(path) or 'a key'} itself"
        raise SpecError([str(Problem(position, dotted(path), sentence))])
    if make:
        _open(document, path, position)
    return path


def _open(document: Document, path: Path, position: Position) -> None:
    """Make what stands at a path a mapping or list, if nothing or an id is there."""
    found: Any = document.get(path)
    kind = kind_at(path)
    if found is None:
        document.put(path, {}, position)
    elif isinstance(found, str) and kind is not None:
        try:
            document.graft(path, named_document(kind, found, document, path))
        except NotFoundError as error:
            raise SpecError([str(document.problem(path, str(error)))]) from error


def _index(entries: list[Any], path: Path, word: str, position: Position) -> int:
    if word.isascii() and word.isdigit() and len(word) < 10 and int(word) < len(entries):
        return int(word)
    last = len(entries) - 1
    choice = f"write 0 to {last}" if last > 0 else "write 0" if last == 0 else "the list is empty"
    sentence = f"not an entry of the list {got(word)}, {choice}"
    raise SpecError([str(Problem(position, dotted(path), sentence))])
