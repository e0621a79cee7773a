"""Where an id may stand for a part: the one table that reading and overriding share."""

from typing import Any

from simmoe.specs.document import Path

ANY = "*"  # any index of a list
OPTIONAL = {"counts"}  # kinds of which there may be none

REFERENCES: dict[str, tuple[tuple[Path, str], ...]] = {
    "scenario": (
        (("model",), "model"),
        (("cluster",), "cluster"),
        (("training", "software"), "software"),
        (("routing", "counts"), "counts"),
        (("plan",), "plan"),
    ),
    "cluster": (
        (("groups", ANY), "group"),
        (("fabric", "link"), "link"),
        (("cross_group", "link"), "link"),
    ),
    "group": ((("node",), "node"),),
    "node": (
        (("accelerator",), "accelerator"),
        (("scale_up", "link"), "link"),
        (("pcie",), "link"),
    ),
    "plan": (
        (("recompute",), "recompute"),
        (("stages", ANY), "stage"),
    ),
    "stage": ((("recompute",), "recompute"),),
}


def kind_at(path: Path, kind: str = "scenario") -> str | None:
    """The kind of part that an id at a path names; None where no id can stand.

    Examples
    --------
    >>> kind_at(("cluster", "groups", 0, "node", "scale_up", "link"))
    'link'
    >>> kind_at(("cluster", "groups")) is None
    True
    """
    if not path:
        return kind
    for pattern, inner in REFERENCES.get(kind, ()):
        head = path[: len(pattern)]
        if len(head) == len(pattern) and all(map(_fits, head, pattern)):
            return kind_at(path[len(pattern) :], inner)
    return None


def _fits(step: str | int, wanted: str | int) -> bool:
    return isinstance(step, int) if wanted == ANY else step == wanted


def places(data: object, kind: str) -> list[tuple[Path, str]]:
    """Every path inside the data of a kind where a part stands, with the part's kind.

    Examples
    --------
    >>> places({"groups": [{"node": "a"}, {"node": "b"}]}, "cluster")
    [(('groups', 0), 'group'), (('groups', 1), 'group')]
    """
    found: list[tuple[Path, str]] = []
    for pattern, inner in REFERENCES.get(kind, ()):
        found += [(path, inner) for path in _matches(data, pattern, optional=inner in OPTIONAL)]
    return found


def _matches(data: object, pattern: Path, *, optional: bool) -> list[Path]:
    if not pattern:
        return [] if optional and data is None else [()]
    step, rest = pattern[0], pattern[1:]
    entries: list[tuple[str | int, Any]] = []
    if step == ANY:
        entries = list(enumerate(data)) if isinstance(data, list) else []
    elif isinstance(data, dict) and step in data:
        entries = [(step, data[step])]
    return [(key, *inner) for key, value in entries for inner in _matches(value, rest, optional=optional)]
