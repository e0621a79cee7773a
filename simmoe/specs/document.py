"""Plain data together with the place in a file where each piece of it was written."""

from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from simmoe.errors import SpecError
from simmoe.specs.text_file import one_line

Path = tuple[str | int, ...]


class Position(NamedTuple):
    """A place that an error message can name.

    Attributes
    ----------
    name : str
        The file as the user named it, or the override ``--set key=value``.
    line, column : int
        Counted from 1; 0 where there is none.
    """

    name: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.line}:{self.column}" if self.line else self.name


@dataclass
class Document:
    """The contents of one file.

    Attributes
    ----------
    position : Position
        Where the contents begin; stands in where nothing nearer is known.
    data : dict
        Mappings, lists, str, int, float, bool and None (a bare value for an override).
    values, keys : dict
        Position of the value, and of the key, at each path.
    folder : Path
        What file names inside the document are relative to.
    """

    position: Position
    data: Any
    values: dict[Path, Position] = field(default_factory=dict)
    keys: dict[Path, Position] = field(default_factory=dict)
    folder: FilePath = FilePath()

    def place(self, path: Path, *, key: bool = False) -> Position:
        """Position of what stands at a path, else of the nearest thing around it.

        A mapping, a list and an empty value begin where their key begins.

        Parameters
        ----------
        path : tuple of str or int
            ``("plan", "stages", 0, "devices")``.
        key : bool
            Point at the key instead of at its value.
        """
        for length in range(len(path), 0, -1):
            around = path[:length]
            if around in self.values:
                whole = isinstance(self.get(around), dict | list | None)
                first, second = (self.keys, self.values) if key or whole else (self.values, self.keys)
                return first.get(around) or second[around]
        return self.position

    def get(self, path: Path, default: Any = None) -> Any:
        """The value at a path, or `default` where there is none."""
        found: Any = self.data
        for step in path:
            try:
                found = found[step]
            except (KeyError, IndexError, TypeError):
                return default
        return found

    def problem(self, path: Path, sentence: str, *, key: bool = False) -> "Problem":
        """A problem at a path of this document."""
        return Problem(self.place(path, key=key), dotted(path), sentence)

    def graft(self, path: Path, other: "Document") -> None:
        """Put another document's contents and positions at a path whose parent exists."""
        self.put(path, other.data, other.position)
        for ours, theirs in ((self.values, other.values), (self.keys, other.keys)):
            ours.update({path + inner: position for inner, position in theirs.items()})

    def put(self, path: Path, value: Any, position: Position) -> None:
        """Put a value at a path whose parent exists, and forget the positions it covers."""
        parent = self.get(path[:-1])
        parent[path[-1]] = value
        for table in (self.values, self.keys):
            for known in [p for p in table if p[: len(path)] == path]:
                del table[known]
        self.values[path] = self.keys[path] = position


class Problem(NamedTuple):
    """One thing that is wrong, and where; without a position, `sentence` says both."""

    position: Position
    key: str
    sentence: str

    def __str__(self) -> str:
        if not self.position.name:
            return self.sentence
        key = f" {one_line(self.key)}:" if self.key else ""
        return f"{self.position}:{key} {self.sentence}"


def dotted(path: Path) -> str:
    """A path as it is written after ``--set``.

    Examples
    --------
    >>> dotted(("cluster", "groups", 0, "count"))
    'cluster.groups.0.count'
    """
    return ".".join(str(step) for step in path)


def told_before(error: SpecError) -> list[Problem]:
    """The problems of an error that was raised while something else was read."""
    return [Problem(Position(""), "", sentence) for sentence in error.problems]


def raise_problems(problems: list[Problem]) -> None:
    """Raise one `SpecError` with every problem, in the order of the file; return if there are none."""
    if problems:
        ordered = sorted(problems, key=lambda problem: problem.position)  # stable: ties as found
        raise SpecError(list(dict.fromkeys(str(problem) for problem in ordered)))
