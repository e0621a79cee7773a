"""What other assumptions make of the rows of a paper, one assumption at a time."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from simmoe.explore.reproduction import Outcome, Score, Value, score


class Setting(NamedTuple):
    """One set of assumptions of a sweep, and what it changes.

    Attributes
    ----------
    name, value : str
        What is assumed, and how.
    assumptions : NamedTuple
        Of the paper's own class, whose defaults are what is shipped.
    """

    name: str
    value: str
    assumptions: Any


class Sensitivity(NamedTuple):
    """What one setting makes of the rows.

    Attributes
    ----------
    setting : Setting
    tests, calibration : Score
    gained, lost : tuple of str
        Ids that are inside their tolerance here and not in the shipped setting, and the reverse.
    values : tuple of (str, float or str)
        Id and simulated value of every row.
    """

    setting: Setting
    tests: Score
    calibration: Score
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    values: tuple[tuple[str, Value], ...] = ()

    @property
    def shipped(self) -> bool:
        """The setting is the shipped one."""
        return bool(self.setting.assumptions == type(self.setting.assumptions)())


def sensitivity(setting: Setting, found: Sequence[Outcome], shipped: Sequence[Outcome]) -> Sensitivity:
    """Compare the rows under a setting with those as shipped.

    Parameters
    ----------
    setting : Setting
    found, shipped : sequence of Outcome
        The same rows in the same order.
    """
    pairs = [(one, base) for one, base in zip(found, shipped, strict=True) if one.row.use != "R"]
    return Sensitivity(
        setting,
        score(found, "T"),
        score(found, "C"),
        tuple(one.row.id for one, base in pairs if one.within and not base.within),
        tuple(one.row.id for one, base in pairs if base.within and not one.within),
        tuple((one.row.id, one.simulated) for one in found),
    )


def sweep_entries(swept: Iterable[Sensitivity]) -> list[dict[str, Any]]:
    """The sweep as entries of a JSON object."""
    return [
        {
            "assumption": one.setting.name,
            "value": one.setting.value,
            "T": one.tests._asdict(),
            "C": one.calibration._asdict(),
            "gained": list(one.gained),
            "lost": list(one.lost),
            "simulated": {id: _entry(value) for id, value in one.values},
        }
        for one in swept
    ]


def _entry(value: Value) -> Value | None:
    """Six digits, as in the rows; None for no number."""
    if isinstance(value, str):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
