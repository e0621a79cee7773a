"""Read a sweep."""

import json
from pathlib import Path
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.specs.document import raise_problems
from simmoe.specs.sweep import Drawn, Range, Sweep
from simmoe.specs.sweep_points import Point, points_of
from simmoe.specs.text_file import one_line, read_text
from simmoe.specs.validation import validate
from simmoe.specs.yaml_file import read_yaml


class ReadSweep(NamedTuple):
    """A sweep with its points.

    Attributes
    ----------
    sweep : Sweep
    scenario : Path
    overlay : Path or None
    identity : str
        Text of everything that the points have in common, for their hashes.
    points : tuple of dict
    """

    sweep: Sweep
    scenario: Path
    overlay: Path | None
    identity: str
    points: tuple[Point, ...]


def read_sweep(path: Path) -> ReadSweep:
    """A sweep file and the points that it names.

    Parameters
    ----------
    path : Path

    Raises
    ------
    SpecError
        With every problem, each with its place.
    """
    document = read_yaml(path)
    sweep, problems = validate(Sweep, document.data, document)
    raise_problems(problems)
    if sweep is None:
        raise AssertionError("validate returned neither a spec nor a problem")
    raise_problems([document.problem(("random", "of", *key), text) for key, text in _ranges(sweep.random)])
    raise_problems(
        [document.problem(("latin_hypercube", "of", *key), text) for key, text in _ranges(sweep.latin_hypercube)]
    )
    try:
        points = points_of(sweep)
    except SpecError as error:
        name = one_line(str(path), 4096)
        raise SpecError([f"{name}: {text}" for text in error.problems]) from error
    scenario, overlay = path.parent / sweep.scenario, path.parent / sweep.overlay if sweep.overlay else None
    texts = [read_text(scenario), read_text(overlay) if overlay is not None else "", sweep.planner]
    if not points:
        raise SpecError([f"{one_line(str(path), 4096)}: no point is left, loosen where or add values"])
    return ReadSweep(sweep, scenario, overlay, json.dumps(texts), points)


def _ranges(drawn: Drawn | None) -> list[tuple[tuple[str, ...], str]]:
    """What is wrong with the ranges of draws, by key."""
    found: list[tuple[tuple[str, ...], str]] = []
    for key, source in (drawn.of if drawn is not None else {}).items():
        if isinstance(source, Range):
            if not source.low <= source.high or (source.scale == "log" and source.low <= 0):
                found.append(((key,), "low <= high is expected, and low > 0 for a log scale: correct the range"))
        elif not source:
            found.append(((key,), "a range or a list of choices is expected, write one"))
    return found


def as_overrides(point: Point) -> list[str]:
    """A point as ``--set`` would say it.

    Parameters
    ----------
    point : dict

    Examples
    --------
    >>> as_overrides({"plan.tensor_parallel": 2, "cluster.fabric.bandwidth": "400 Gb/s", "plan.recompute": None})
    ['plan.tensor_parallel=2', 'cluster.fabric.bandwidth="400 Gb/s"', 'plan.recompute=null']
    """
    return [f"{key}={json.dumps(value)}" for key, value in point.items()]
