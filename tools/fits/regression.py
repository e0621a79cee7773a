"""Robust regression of a model's parameters on the logarithm of measured times."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from simmoe.specs.base import Kind, Quantity

SCALE = 0.05  # errors above 5 % count linearly
PRIOR_ROWS = 10


def fit(
    predict: Callable[[dict[str, float]], NDArray[np.float64]],
    seconds: NDArray[np.float64],
    start: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
    prior: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, float]:
    """The parameters with the least soft-L1 loss of log(predicted/measured).

    Parameters
    ----------
    predict : callable
        Predicted times [s] of every measurement, from named parameters.
    seconds : ndarray
        Measured times [s].
    start : mapping
        First guess by name.
    bounds : mapping
        Lowest and highest value by name.
    prior : mapping, optional
        Centre and width by name of a belief that weighs as much as `PRIOR_ROWS` measurements: it decides only what
        the measurements leave open.

    Returns
    -------
    dict
        Fitted value by name.
    """
    names = list(start)
    low, high = (np.array([bounds[name][side] for name in names]) for side in (0, 1))
    beliefs = prior or {}
    logs = np.log(seconds)

    def residuals(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
        values = dict(zip(names, (low + scaled * (high - low)).tolist(), strict=True))
        belief = [(values[name] - centre) / width for name, (centre, width) in beliefs.items()]
        return np.concatenate((np.log(predict(values)) - logs, PRIOR_ROWS**0.5 * SCALE * np.array(belief)))

    first = (np.array([start[name] for name in names]) - low) / (high - low)
    found = least_squares(
        residuals, first, bounds=(0.0, 1.0), loss="soft_l1", f_scale=SCALE, diff_step=1e-4, max_nfev=60
    )
    return dict(zip(names, (low + found.x * (high - low)).tolist(), strict=True))


def trial(value: float) -> Quantity:
    """A value that a fit tries, as the equations of the cost model take it."""
    return Quantity(value=value, unit="1", text="", source="fit", kind=Kind.MEASURED)
