"""Turn plain data into specs, and everything pydantic finds wrong into sentences with positions."""

from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simmoe import units
from simmoe.errors import UnitError
from simmoe.specs.base import Bandwidth, ByteCount, Quantity, Seconds, Spec
from simmoe.specs.document import Document, Path, Problem
from simmoe.specs.suggest import did_you_mean
from simmoe.specs.text_file import got, one_line

S = TypeVar("S", bound=Spec)

_UNITS = ((Bandwidth, "B/s"), (Seconds, "s"), (ByteCount, "B"))
_NEVER_ZERO = {"B", "B/s", "FLOP/s"}
_QUANTITY_TEXT = "{value: ..., source: ..., kind: ...}"


def validate(
    cls: type[S], data: Any, document: Document, prefix: Path = (), skip: tuple[Path, ...] = ()
) -> tuple[S | None, list[Problem]]:
    """Build a spec, or list everything that is wrong with its data.

    Parameters
    ----------
    cls : type of Spec
        What the data should be.
    data : Any
        Plain data; parts that are specs already are taken as they are.
    document : Document
        Where the data was written.
    prefix : path
        Where in the document the data begins.
    skip : tuple of path
        Paths (relative to the data) whose problems are known already.

    Returns
    -------
    spec, problems
        One of the two is empty.
    """
    problems: list[Problem] = []
    for path, sentence in _strictness(cls, data, ()):
        if not _within(path, skip):
            problems.append(document.problem(prefix + path, sentence))
    spec: S | None = None
    try:
        spec = cls.model_validate(data)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = tuple(detail["loc"])
            if not _within(path, skip) and not _follows(detail, path, data):
                problems.append(_problem(cls, detail, path, data, document, prefix))
    if spec is not None:
        problems += [document.problem(prefix + path, text) for path, text in _signs(spec, data, ())]
    return (None, problems) if spec is None or problems or skip else (spec, [])


def _follows(detail: ErrorDetails, path: Path, data: Any) -> bool:
    """Whether pydantic calls a list too short only because of the entries it has refused."""
    raw = _at(data, path, detail)
    return detail["type"] == "too_short" and isinstance(raw, list) and len(raw) > 0


def _within(path: Path, known: tuple[Path, ...]) -> bool:
    return any(path[: len(start)] == start for start in known)


def _problem(cls: type[Spec], detail: ErrorDetails, path: Path, data: Any, document: Document, prefix: Path) -> Problem:
    if detail["type"] == "extra_forbidden":
        sentence = f"unknown key, {did_you_mean(str(path[-1]), _fields(cls, path[:-1]))}"
        return document.problem(prefix + path, sentence, key=True)
    if detail["type"] == "missing":
        return document.problem(prefix + path, _missing(cls, path))
    return document.problem(prefix + path, _sentence(cls, detail, path, _at(data, path, detail)))


def _at(data: Any, path: Path, detail: ErrorDetails) -> Any:
    """What the file says at a path: more recognisable than what a validator made of it."""
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return detail["input"]
    return data


def _sentence(cls: type[Spec], detail: ErrorDetails, path: Path, raw: Any) -> str:
    """What is wrong, what was found and what to do."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in {"literal_error", "enum"}:
        return _not_a_choice(raw, str(context["expected"]))
    if kind in _BOUNDS:
        return _out_of_bounds(kind, context, raw)
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        return _no_mapping(cls, path, raw)
    for beginnings, expected, remedy in _TYPES:
        if kind.startswith(beginnings):
            return f"{expected} is expected {got(raw)}, {remedy}"
    return f"{one_line(detail['msg'])} {got(raw)}, correct it"


_BOUNDS = {
    "greater_than": ("must be greater than", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be less than", "lt"),
    "less_than_equal": ("must be at most", "le"),
    "too_short": ("needs entries, at least", "min_length"),
}
_TYPES = (
    (("int",), "a whole number", "write for example 8"),
    (("float", "finite"), "a number", "write for example 0.5"),
    (("string",), "text", "put it in quotes"),
    (("bool",), "true or false", "write one of the two"),
    (("tuple", "list", "iterable"), "a list", "write [..., ...]"),
)


def _out_of_bounds(kind: str, context: dict[str, Any], raw: Any) -> str:
    phrase, name = _BOUNDS[kind]
    bound = context[name]
    remedy = {
        "greater_than": "write a positive number" if bound == 0 else "write more",
        "greater_than_equal": f"write {bound:g} or more",
        "less_than_equal": f"write {bound:g} or less",
        "too_short": "add one",
    }.get(kind, "write less")
    return f"{phrase} {bound:g} {got(raw)}, {remedy}"


def _not_a_choice(raw: Any, expected: str) -> str:
    """The sentence for a word outside a fixed list; pydantic gives the list as ``'a', 'b' or 'c'``."""
    choices = expected.replace("' or '", "', '").strip("'").split("', '")
    if not isinstance(raw, str):
        return f"one of {', '.join(choices)} is expected {got(raw)}, write one of them"
    remedy = did_you_mean(raw, choices)
    if remedy.startswith("did"):
        return f"not one of {', '.join(choices)} {got(raw)}, {remedy}"
    return f"not known {got(raw)}, {remedy}"


def _no_mapping(cls: type[Spec], path: Path, raw: Any) -> str:
    inner = _annotation(cls, path)
    if inner is Quantity:
        return f"a number with its source is expected {got(raw)}, write {_QUANTITY_TEXT}"
    keys = list(inner.model_fields) if _is_spec(inner) else []
    return f"a mapping is expected {got(raw)}, write key: value lines ({', '.join(keys[:6])}, ...)"


def _missing(cls: type[Spec], path: Path) -> str:
    inner = _annotation(cls, path)
    if inner is int:
        return "is missing, add a whole number"
    if inner is Quantity:
        return f"is missing, add {_QUANTITY_TEXT}"
    return "is missing, add it"


def _fields(cls: type[Spec], path: Path) -> list[str]:
    """Keys that the class at a path accepts."""
    inner = _annotation(cls, path)
    if inner is Quantity:  # unit and text are made from value
        return [name for name in Quantity.model_fields if name not in {"unit", "text"}]
    return list(inner.model_fields) if _is_spec(inner) else []


def _annotation(cls: type[Spec], path: Path) -> Any:
    """The type that a path inside a class leads to."""
    inner: Any = cls
    for step in path:
        if isinstance(step, int):
            inner = _bare(get_args(inner)[0]) if get_args(inner) else None
        elif _is_spec(inner) and step in inner.model_fields:
            inner = _bare(inner.model_fields[step].annotation)
        else:
            return None
    return inner


def _bare(annotation: Any) -> Any:
    """A type without ``| None`` and without the metadata of ``Annotated``."""
    if type(None) in get_args(annotation):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation


def _is_spec(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _strictness(annotation: Any, raw: Any, path: Path) -> list[tuple[Path, str]]:
    """Where pydantic would take a word, a truth value or a bare number for something else."""
    if isinstance(raw, dict) and _is_spec(annotation) and annotation is not Quantity:
        found = []
        for name, field in annotation.model_fields.items():
            if name in raw:
                dimension = _dimension(field.annotation, field.metadata)
                inner = _bare(field.annotation)
                found += _strictness(dimension or inner, raw[name], (*path, name))
        return found
    if isinstance(raw, list) and get_origin(annotation) is tuple:
        item = _bare(get_args(annotation)[0])
        return [bad for i, one in enumerate(raw) for bad in _strictness(item, one, (*path, i))]
    sentence = _too_lax(annotation, raw)
    return [(path, sentence)] if sentence else []


def _dimension(annotation: Any, metadata: list[Any]) -> str | None:
    """The SI unit of a field whose file form is a string with a unit."""
    for kind, dimension in _UNITS:
        if kind in get_args(annotation) or get_args(kind)[1] in metadata:
            return dimension
    return None


def _too_lax(annotation: Any, raw: Any) -> str | None:
    if isinstance(annotation, str):
        return _unitless(raw, annotation) if isinstance(raw, float) else None
    if annotation is bool and not isinstance(raw, bool) and isinstance(raw, str | int | float):
        return f"true or false is expected {got(raw)}, write one of the two"
    if annotation is float and isinstance(raw, bool | str):
        return f"a number is expected {got(raw)}, write for example 0.5"
    return None


def _signs(spec: Spec, raw: Any, path: Path) -> list[tuple[Path, str]]:
    """Quantities read from this file that are negative, or zero where nothing would work."""
    if isinstance(spec, Quantity):
        if spec.value < 0:
            return [((*path, "value"), f"must not be negative {got(spec.text)}, write it positive")]
        if spec.value == 0 and spec.unit in _NEVER_ZERO:
            return [((*path, "value"), f"must not be zero {got(spec.text)}, write what it is")]
        return []
    found = []
    for steps, part, inner in _parts(spec, raw):
        found += _signs(part, inner, path + steps)
    return found


def _parts(spec: Spec, raw: Any) -> list[tuple[Path, Spec, Any]]:
    """The specs directly inside a spec that were mappings in this file, with their paths."""
    found: list[tuple[Path, Spec, Any]] = []
    for name in type(spec).model_fields if isinstance(raw, dict) else ():
        value, inner = getattr(spec, name), raw.get(name)
        if isinstance(value, tuple) and isinstance(inner, list):
            entries = enumerate(zip(value, inner, strict=True))
            found += [((name, i), one, its) for i, (one, its) in entries]
        else:
            found.append(((name,), value, inner))
    return [item for item in found if isinstance(item[1], Spec) and isinstance(item[2], dict)]


def _unitless(raw: float, dimension: str) -> str | None:
    try:
        units.parse(raw, dimension)
    except UnitError as error:
        return str(error)
    return None
