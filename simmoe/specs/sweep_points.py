"""The points of a sweep, in order."""

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

from simmoe.errors import SpecError
from simmoe.specs.expression import Expression
from simmoe.specs.sweep import Drawn, Range, Sweep

Point = dict[str, Any]
MOST_POINTS = 1_000_000


def points_of(sweep: Sweep) -> tuple[Point, ...]:
    """Every point: the values of its keys.

    Parameters
    ----------
    sweep : Sweep

    Returns
    -------
    tuple of dict
        In the order of grid, zip, list, random and latin_hypercube, the last one changing fastest; without those that a
        condition leaves out, and each only once.

    Raises
    ------
    SpecError
        If formulas or lists are wrong, if two blocks set the same key, or there are more than `MOST_POINTS`.
    """
    blocks = [
        list(block) for block in (_grid(sweep), _zipped(sweep), _listed(sweep), *_drawn(sweep)) if block is not None
    ]
    size = math.prod(len(block) for block in blocks)
    if size > MOST_POINTS:
        raise SpecError([f"{size:,} points are more than {MOST_POINTS:,}, sweep over fewer values"])
    derived = {key: Expression(text) for key, text in sweep.derive.items()}
    conditions = [Expression(text) for text in sweep.where]
    found: dict[str, Point] = {}
    for parts in itertools.product(*blocks):
        point = dict(sweep.set)
        for part in parts:
            _join(point, part, sweep.set)
        for key, formula in derived.items():
            point[key] = formula.value(_known(point, formula))
        if all(condition.value(_known(point, condition)) for condition in conditions):
            found.setdefault(repr(sorted(point.items())), point)
    return tuple(found.values())


def _join(point: Point, part: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    twice = [key for key in part if key in point and key not in fixed]
    if twice:
        raise SpecError([f"{twice[0]}: is given by two of grid, zip, list and draws, leave it out of one"])
    point.update(part)


def _known(point: Mapping[str, Any], formula: Expression) -> Mapping[str, Any]:
    missing = [key for key in formula.keys if key not in point]
    if missing:
        raise SpecError([f"{formula.text}: {missing[0]} is no key of this sweep, add it to set or grid"])
    return point


def _grid(sweep: Sweep) -> Iterator[Point] | None:
    if not sweep.grid:
        return None
    return (dict(zip(sweep.grid, values, strict=True)) for values in itertools.product(*sweep.grid.values()))


def _zipped(sweep: Sweep) -> Iterator[Point] | None:
    if not sweep.zip:
        return None
    if len({len(values) for values in sweep.zip.values()}) > 1:
        lengths = ", ".join(f"{key} has {len(values)}" for key, values in sweep.zip.items())
        raise SpecError([f"zip: lists of one length are expected ({lengths}), make them equal"])
    return (dict(zip(sweep.zip, values, strict=True)) for values in zip(*sweep.zip.values(), strict=True))


def _listed(sweep: Sweep) -> Iterator[Point] | None:
    return iter(map(dict, sweep.list)) if sweep.list else None


def _drawn(sweep: Sweep) -> Iterator[list[Point] | None]:
    for drawn, even in ((sweep.random, False), (sweep.latin_hypercube, True)):
        yield _draws(drawn, even=even) if drawn is not None else None


def _draws(drawn: Drawn, *, even: bool) -> list[Point]:
    """Independent draws, or one in each of equally likely parts of every key, the parts in random order."""
    draws = random.Random(drawn.seed)
    columns: dict[str, list[Any]] = {}
    for key, source in drawn.of.items():
        shares = [draws.random() for _ in range(drawn.samples)]
        if even:
            shares = [(number + share) / drawn.samples for number, share in enumerate(shares)]
            draws.shuffle(shares)
        columns[key] = [_at(source, share) for share in shares]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _at(source: Range | tuple[Any, ...], share: float) -> Any:
    """The value below which a share of a range or of choices lies."""
    if not isinstance(source, Range):
        return source[min(int(share * len(source)), len(source) - 1)]
    if source.scale == "log":
        value = math.exp(math.log(source.low) + share * (math.log(source.high) - math.log(source.low)))
    else:
        value = source.low + share * (source.high - source.low)
    number: float | int = round(value) if source.whole else float(f"{value:.6g}")
    return f"{number} {source.unit}" if source.unit else number
