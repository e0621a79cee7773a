"""A sweep: which points of a scenario are simulated."""

from typing import Any, Literal

from pydantic import Field

from simmoe.specs.base import Count, Index, Spec

Values = dict[str, tuple[Any, ...]]


class Range(Spec):
    """Where a drawn number lies.

    Attributes
    ----------
    low, high : float
        Both included.
    scale : str
        ``linear``, or ``log``: equal ratios are equally likely.
    whole : bool
        Rounded to a whole number.
    unit : str
        Put behind the number, such as ``Gb/s``.
    """

    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"
    whole: bool = False
    unit: str = ""


class Drawn(Spec):
    """Points that are drawn: each key from a range or a list of choices."""

    samples: Count
    seed: Index = 0
    of: dict[str, Range | tuple[Any, ...]] = Field(min_length=1)


class Sweep(Spec):
    """A file of points.

    Attributes
    ----------
    scenario : str
        The file that every point starts from, beside this one.
    overlay : str
        An overlay for all of them, beside this one; empty = none.
    set : dict
        Values of all points.
    grid : dict of str to tuple
        Every combination.
    zip : dict of str to tuple
        The n-th value of each key together.
    list : tuple of dict
        Points as they stand.
    random, latin_hypercube : Drawn or None
        Independent draws; draws that cover each key evenly.
    derive : dict of str to str
        Keys that are computed from others.
    where : tuple of str
        Conditions; points that do not meet them are left out.
    planner : str
        Plans each point anew with this planner; empty = the scenario's own plan.

    Notes
    -----
    `grid`, `zip`, `list` and the drawn points multiply: every combination of a point of each is one point of the sweep.
    """

    scenario: str
    overlay: str = ""
    set: dict[str, Any] = Field(default_factory=dict)
    grid: Values = Field(default_factory=dict)
    zip: Values = Field(default_factory=dict)
    list: tuple[dict[str, Any], ...] = ()
    random: Drawn | None = None
    latin_hypercube: Drawn | None = None
    derive: dict[str, str] = Field(default_factory=dict)
    where: tuple[str, ...] = ()
    planner: str = ""
