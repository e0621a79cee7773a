"""Look parts up by id, and build them from the files they are described in."""

import copy
import functools
import re
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any, Literal, cast

from pydantic import TypeAdapter, ValidationError

from simmoe.errors import NotFoundError, SpecError
from simmoe.specs import checks
from simmoe.specs.base import Quantity, SourcedNumber, Spec
from simmoe.specs.data_folders import FOLDERS, forget, hardware_roots, part_files
from simmoe.specs.document import Document, Path, Position, Problem, raise_problems, told_before
from simmoe.specs.expert_counts_file import read_expert_counts
from simmoe.specs.hardware import Accelerator, Cluster, Efficiency, Link, Node, NodeGroup
from simmoe.specs.inheritance import inherited, overlaid, slowed
from simmoe.specs.kernel_file import TABLES, read_efficiency, table_files
from simmoe.specs.model import Model
from simmoe.specs.model_file import looks_like_path, model_data, model_from_config
from simmoe.specs.plan import Plan, Recompute, Stage
from simmoe.specs.references import places
from simmoe.specs.routing import ExpertCounts
from simmoe.specs.scenario import Scenario
from simmoe.specs.software import SoftwareStack
from simmoe.specs.suggest import near
from simmoe.specs.text_file import got, one_line
from simmoe.specs.validation import validate
from simmoe.specs.yaml_file import read_yaml

_CLASSES: dict[str, type[Spec]] = {
    "accelerator": Accelerator,
    "link": Link,
    "node": Node,
    "group": NodeGroup,
    "cluster": Cluster,
    "software": SoftwareStack,
    "model": Model,
    "plan": Plan,
    "recompute": Recompute,
    "stage": Stage,
    "counts": ExpertCounts,
    "scenario": Scenario,
}
_NAMELESS = {"scenario", "group", "stage"}
_EXPECTED = {
    **dict.fromkeys(_NAMELESS, "a mapping"),
    "plan": "a mapping or the file of a plan",
    "counts": "a file of expert counts or the folder of a routing trace",
    "recompute": "none, selective, full or a mapping",
}
_NAMES = {"accelerator": "an accelerator", "software": "a software stack"}
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
Kind = Literal["accelerator", "link", "node", "cluster", "software", "model"]


class Source(Spec):
    """Where numbers come from: one entry of ``sources.yaml``."""

    title: str
    publisher: str = ""
    year: int | str | None = None
    url: str = ""
    accessed: str = ""
    kind: str = ""


def accelerator(id: str) -> Accelerator:
    """The accelerator of an id; `NotFoundError` with the nearest ones if there is none."""
    return cast("Accelerator", _load("accelerator", id))


def link(id: str) -> Link:
    """The link of an id; `NotFoundError` with the nearest ones if there is none."""
    return cast("Link", _load("link", id))


def node(id: str) -> Node:
    """The node of an id; `NotFoundError` with the nearest ones if there is none."""
    return cast("Node", _load("node", id))


def cluster(id: str) -> Cluster:
    """The cluster of an id; `NotFoundError` with the nearest ones if there is none."""
    return cast("Cluster", _load("cluster", id))


def software(id: str) -> SoftwareStack:
    """The software stack of an id; `NotFoundError` with the nearest ones if there is none."""
    return cast("SoftwareStack", _load("software", id))


def model(id_or_path: str, folder: FilePath = FilePath()) -> Model:
    """A model of the catalogue, of a file of ours, or of a Hugging Face ``config.json``.

    Parameters
    ----------
    id_or_path : str
        A file name if it contains a slash or ends in ``.json``, ``.yaml`` or ``.yml``.
    folder : Path
        What a relative file name is relative to; the current directory is tried next.

    Raises
    ------
    NotFoundError
        If there is no such id.
    SpecError
        If the file cannot be read, is wrong, or is of an unsupported family.
    """
    if not looks_like_path(id_or_path):
        return cast("Model", _load("model", id_or_path))
    path = _existing(id_or_path, folder)
    if path.suffix == ".json" or path.is_dir():
        found = model_from_config(path)
        raise_problems(checks.run("model", found, Document(Position(one_line(str(path), 4096)), {})))
        return found
    return cast("Model", _read_file("model", path))


def list_ids(kind: Kind) -> tuple[str, ...]:
    """Every id of a kind, sorted.

    Parameters
    ----------
    kind : str
        ``accelerator``, ``link``, ``node``, ``cluster``, ``software`` or ``model``.
    """
    return tuple(part_files(kind))


def is_id(word: str) -> bool:
    """Whether a part may be called so: letters, digits, ``.``, ``_`` and ``-``, at most 100, no sign first."""
    return _ID.fullmatch(word) is not None


def raw(kind: Kind, id: str) -> dict[str, Any]:
    """What the file of a part says, unchecked; `NotFoundError` with the nearest ids if there is none."""
    return cast("dict[str, Any]", read_yaml(_file(kind, id)).data)


def sources() -> dict[str, Source]:
    """Every entry of ``sources.yaml``, a user's own entries before the shipped ones."""
    return dict(_sources(hardware_roots()))


def refresh() -> None:
    """Forget what was read: for programs that write parts and then read them."""
    forget()
    _read_once.cache_clear()
    _sources.cache_clear()


def read_part(kind: str, document: Document, path: Path = ()) -> tuple[Spec | None, list[Problem]]:
    """Build the part that a document describes, or names, at a path.

    Parameters
    ----------
    kind : str
        What it should be: a catalogue kind, ``plan``, ``recompute`` or ``scenario``.
    document : Document
        Parts inside the part may be ids or mappings.
    path : path
        Where the part stands.

    Returns
    -------
    spec, problems
        The spec is None if it cannot be built; a spec may come with problems that `checks` found.
    """
    raw = document.get(path)
    if isinstance(raw, str) and kind == "recompute":
        raw = {"granularity": raw}
    if isinstance(raw, str) and kind not in _NAMELESS:
        return _named(kind, raw, document, path)
    if not isinstance(raw, dict):
        what = _EXPECTED.get(kind, f"an id of {_a(kind)} or a mapping")
        return None, [document.problem(path, f"{what} is expected {got(raw)}, write one")]
    data = copy.deepcopy(raw)
    problems: list[Problem] = []
    failed: list[Path] = []
    for inner, inner_kind in places(raw, kind):
        part, found = read_part(inner_kind, document, path + inner)
        problems += found
        if part is None:
            failed.append(inner)
        else:
            functools.reduce(lambda at, step: at[step], inner[:-1], cast("Any", data))[inner[-1]] = part
    if kind in _COMPLETE:
        try:
            data = _COMPLETE[kind](data, document)
        except NotFoundError as error:
            return None, [*problems, document.problem((*path, "base"), str(error))]
        except SpecError as error:
            return None, [*problems, *told_before(error)]
    spec, found = validate(_CLASSES[kind], data, document, path, tuple(failed))
    if spec is not None:
        found = checks.run(kind, spec, document, path)
    return spec, problems + found


def named_document(kind: str, name: str, document: Document, path: Path) -> Document:
    """The description that an id at a path stands for, so that parts of it can be replaced.

    Raises
    ------
    NotFoundError, SpecError
        If there is none, or its file cannot be read.
    """
    position = document.place(path)
    if kind == "recompute":
        return Document(position, {"granularity": name})
    if kind == "model":
        return Document(position, {"base": name})
    if kind == "plan":
        return read_yaml(_existing(name, document.folder))
    if kind == "counts":
        raise NotFoundError("a file of expert counts is taken whole, name another file")
    return read_yaml(_file(kind, name))


def _named(kind: str, name: str, document: Document, path: Path) -> tuple[Spec | None, list[Problem]]:
    """The part that an id or a file name stands for."""
    try:
        return _by_name(kind, name, document.folder), []
    except NotFoundError as error:
        return None, [document.problem(path, str(error))]
    except SpecError as error:
        return None, told_before(error)


def _by_name(kind: str, name: str, folder: FilePath) -> Spec:
    is_file = kind in {"plan", "counts"} or (kind == "model" and looks_like_path(name))
    if is_file and not _exists(_existing(name, folder)):
        raise NotFoundError(f"there is no such file {got(name)}, check the path")
    if kind == "model":
        return model(name, folder)
    if kind == "counts":
        return read_expert_counts(_existing(name, folder))
    return _read_file(kind, _existing(name, folder)) if is_file else _load(kind, name)


def _load(kind: str, id: str) -> Spec:
    return _read_once(kind, _file(kind, id), id)


@functools.cache
def _read_once(kind: str, path: FilePath, id: str) -> Spec:
    return _read_file(kind, path, id)


def _read_file(kind: str, path: FilePath, id: str | None = None) -> Spec:
    """The part a file describes; `id` is what the file must say of itself."""
    document = read_yaml(path)
    part, problems = read_part(kind, document)
    found = getattr(part, "id", id)
    if id is not None and part is not None and found != id:
        sentence = f"not the name of the file {got(found)}, write {id}"
        problems.append(document.problem(("id",), sentence))
    raise_problems(problems)
    if part is None:
        raise AssertionError("read_part returned neither a spec nor a problem")
    return part


def _file(kind: str, id: str) -> FilePath:
    files = part_files(kind)
    if id in files:
        return files[id]
    found = near(id, files)
    hint = f" (did you mean {', '.join(found)}?)" if found else ""
    shown = one_line(repr(id), 60)
    raise NotFoundError(f"{shown} is not {_a(kind)}{hint}, list them with: simmoe db list")


def _existing(name: str, folder: FilePath) -> FilePath:
    """A file name relative to the folder of the file that says it, else to the current directory."""
    beside = folder / name
    return beside if _exists(beside) or not _exists(FilePath(name)) else FilePath(name)


def _exists(path: FilePath) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a NUL byte
        return False


def _a(kind: str) -> str:
    return _NAMES.get(kind, f"a {kind}")


@functools.cache
def _sources(roots: tuple[FilePath, ...]) -> dict[str, Source]:
    found: dict[str, Source] = {}
    problems: list[Problem] = []
    for root in reversed(roots):
        path = root / "sources.yaml"
        document = read_yaml(path) if path.is_file() else Document(Position(str(path)), {})
        for name, raw in document.data.items():
            source, bad = validate(Source, raw, document, (name,))
            problems += bad
            if source is not None:
                found[name] = source
    raise_problems(problems)
    return dict(sorted(found.items()))


def _complete_accelerator(data: dict[str, Any], document: Document) -> dict[str, Any]:
    """Add the kernel tables of the accelerator itself over what it inherits by `efficiency_of`."""
    if "efficiency" in data:
        return data
    id, parent = data.get("id"), data.get("efficiency_of")
    folders = [root / "efficiency" for root in reversed(hardware_roots())]
    named = isinstance(id, str) and _ID.fullmatch(id) is not None
    there = [table for folder in folders for table in table_files(folder / str(id))] if named else []
    own = read_efficiency(there) if there else None
    if isinstance(parent, str) and parent:
        base = _inherited(data, parent, document)
        return {**data, "efficiency": overlaid(base, own) if own else base}
    if "sustained_clock" in data:
        sentence = "is relative to the accelerator of efficiency_of, name that one or leave this out"
        raise SpecError([str(document.problem(("sustained_clock",), sentence))])
    if own is None:
        what = f"no table in efficiency/{one_line(str(id))}"
        sentence = f"{what}, add {TABLES[0]}.csv and the others or set efficiency_of"
        raise SpecError([str(document.problem((), sentence))])
    return {**data, "efficiency": own}


def _inherited(data: dict[str, Any], parent: str, document: Document) -> Efficiency:
    """The fits of another accelerator, as far as they can be trusted on this one."""
    try:
        _check_ancestors(data.get("id"), parent)
        other = accelerator(parent)
    except NotFoundError as error:
        raise SpecError([str(document.problem(("efficiency_of",), str(error)))]) from None
    same = other.architecture == data.get("architecture")
    taken = inherited(other.efficiency, parent, same_architecture=same)
    try:
        clock = _NUMBER.validate_python(data.get("sustained_clock"))
    except ValidationError:
        return taken  # nothing was said, or what was said is told when the accelerator itself is validated
    return slowed(taken, clock)


_NUMBER: TypeAdapter[Quantity] = TypeAdapter(SourcedNumber)


def _check_ancestors(id: object, parent: object) -> None:
    """Refuse a circle before it is followed."""
    seen = {id}
    while isinstance(parent, str) and parent:
        if parent in seen:
            raise NotFoundError(f"{one_line(parent)} inherits from itself, break the circle")
        seen.add(parent)
        parent = read_yaml(_file("accelerator", parent)).data.get("efficiency_of")


def _complete_recompute(data: dict[str, Any], document: Document) -> dict[str, Any]:
    """Selective recomputation without a list means core attention, as in Megatron."""
    if data.get("granularity") == "selective" and "modules" not in data:
        return {**data, "modules": ["core_attn"]}
    return data


def _complete_model(data: dict[str, Any], document: Document) -> dict[str, Any]:
    base = data.pop("base", None)
    if base is None:
        return model_data(None, data, document.position.name)
    if not isinstance(base, str):
        raise NotFoundError(f"an id of a model is expected {got(base)}, write one")
    return model_data(model(base, document.folder), data, document.position.name)


_COMPLETE: dict[str, Callable[[dict[str, Any], Document], dict[str, Any]]] = {
    "accelerator": _complete_accelerator,
    "model": _complete_model,
    "recompute": _complete_recompute,
}
assert set(FOLDERS) < set(_CLASSES)
