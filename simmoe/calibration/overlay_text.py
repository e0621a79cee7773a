"""A calibration as the text of an overlay."""

import json
from collections.abc import Mapping
from statistics import median
from typing import Any

from simmoe.calibration.calibrate import Calibration
from simmoe.calibration.fit import Fitted
from simmoe.specs.numbers import Number
from simmoe.units import format_si

_DEVIATIONS = 1.96
_DIGITS = 6


def overlay_text(found: Calibration, manifest: Mapping[str, Any]) -> str:
    """The overlay of the numbers that were fitted.

    Parameters
    ----------
    found : Calibration
    manifest : mapping
        What they were fitted to; ends the file.

    Returns
    -------
    str
        YAML that `simmoe.specs.overlay_file.apply_overlay` reads. Equal input gives equal bytes.
    """
    lines = ["# Numbers fitted to measurements, for: simmoe simulate SCENARIO --overlay THIS_FILE"]
    lines += ["overlay: 1", "changes:"]
    lines += [f"  - {json.dumps(_change(found.numbers[one.number], one))}" for one in found.fit.fitted]
    lines += ["manifest:", *(f"  {key}: {json.dumps(value)}" for key, value in manifest.items())]
    return "\n".join(lines) + "\n"


def _change(number: Number, fitted: Fitted) -> dict[str, Any]:
    value, unit = number.quantity.value * fitted.factor, number.quantity.unit
    low, high = value / (1 + fitted.half_width), value * (1 + fitted.half_width)
    return {
        "part": number.part,
        "number": number.name,
        "value": _text(value, unit),
        "low": _text(low, unit),
        "high": _text(high, unit),
        "spread": round(fitted.half_width / _DEVIATIONS, 5),
        "was": number.quantity.text,
    }


def _text(value: float, unit: str) -> str:
    return f"{value:.{_DIGITS}g}" if unit == "1" else format_si(value, unit, _DIGITS)


def residuals_by_class(found: Calibration) -> dict[str, dict[str, float]]:
    """How far the scenario was, and is, from what was measured, by class.

    Parameters
    ----------
    found : Calibration

    Returns
    -------
    dict
        Class -> ``measurements``, ``median_error_before`` and ``median_error_after``, of the absolute relative
        differences [1].
    """
    measured = found.measured
    before, after = abs(found.before / measured - 1), abs(found.fit.predicted / measured - 1)
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(found.categories):
        groups.setdefault(name, []).append(place)
    return {
        name: {
            "measurements": len(places),
            "median_error_before": round(median(before[places].tolist()), 6),
            "median_error_after": round(median(after[places].tolist()), 6),
        }
        for name, places in sorted(groups.items())
    }
