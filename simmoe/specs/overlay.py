"""An overlay: numbers of the hardware database replaced for one user's machines, with what they were fitted to."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from simmoe.specs.base import Quantity, Spec
from simmoe.specs.numbers import with_numbers
from simmoe.specs.scenario import Scenario
from simmoe.specs.scenario_parts import parts_of, with_parts


class Change(Spec):
    """One number that is replaced.

    Attributes
    ----------
    part, number : str
        As ``simmoe cite`` prints them: ``accelerator h100-sxm5-80gb`` and ``efficiency.gemm[bf16].sustained``.
    value : str or float
        With its unit.
    low, high : str or float or None
        Where it lies with 95 % confidence, for readers; the simulator takes `spread`.
    spread : float or None
        Relative standard uncertainty [1].
    was : str or float
        What the database said when the overlay was made, for readers.
    note : str
    """

    part: str
    number: str
    value: str | int | float
    low: str | float | None = None
    high: str | float | None = None
    spread: float | None = Field(default=None, ge=0)
    was: str | float = ""
    note: str = ""


class Overlay(Spec):
    """A file of changes; `manifest` says what they were fitted to and is for readers alone."""

    overlay: Literal[1]
    changes: tuple[Change, ...] = Field(min_length=1)
    manifest: dict[str, Any] = Field(default_factory=dict)


def with_quantities(scenario: Scenario, new: Mapping[str, Mapping[str, Quantity]]) -> Scenario:
    """A scenario with some numbers of its parts replaced.

    Parameters
    ----------
    scenario : Scenario
    new : mapping of part to (mapping of number to Quantity)
        Names as in `Change`; numbers that a part does not have change nothing.
    """
    parts = parts_of(scenario)
    return with_parts(scenario, {part: with_numbers(parts[part], numbers) for part, numbers in new.items()})
