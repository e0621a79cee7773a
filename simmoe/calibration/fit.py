"""Numbers fitted to measurements: robust least squares, confidence, and what the measurements cannot tell."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.errors import SpecError

FloatArray = NDArray[np.float64]
LOOSEST = 0.2
"""Half width of the 95 % interval of a fitted number beyond which it is left as it was [1]."""
FIRM = 0.03
"""The same up to which a number counts as identified [1]."""
_DEVIATIONS = 1.96
_STEP = 1e-4
_UNMOVED = 1e-6
_WIDEST = float(np.log(20.0))
_BEND = 2.0
_SHARPENED = 10
_SETTLED = 1e-5
_SINGULAR = 1e-9


class Fitted(NamedTuple):
    """A number that was fitted.

    Attributes
    ----------
    number : int
        Which.
    factor : float
        Fitted over starting value [1].
    half_width : float
        Of its 95 % interval, of the logarithm [1].
    """

    number: int
    factor: float
    half_width: float


class Left(NamedTuple):
    """A number that stays as it was, and why."""

    number: int
    reason: str


class Fit(NamedTuple):
    """What a fit found.

    Attributes
    ----------
    fitted : tuple of Fitted
    left : tuple of Left
    predicted : array of float
        With the fitted numbers [s].
    scale : float
        Residuals over the standard errors of the measurements, robustly; above 1 the model is off, too [1].
    """

    fitted: tuple[Fitted, ...]
    left: tuple[Left, ...]
    predicted: FloatArray
    scale: float


class _Problem(NamedTuple):
    """Logarithms of what was measured, their errors, and the model as a function of logarithmic factors."""

    measured: FloatArray
    errors: FloatArray
    predict: Callable[[FloatArray], FloatArray]

    def residuals(self, factors: FloatArray) -> FloatArray:
        """Predicted minus measured, in standard errors."""
        return (np.log(self.predict(factors)) - self.measured) / self.errors

    def jacobian(self, factors: FloatArray, columns: Sequence[int]) -> FloatArray:
        """Derivatives of the residuals by some factors, forward differences."""
        found = np.zeros((len(self.measured), len(columns)))
        here = self.residuals(factors)
        for place, column in enumerate(columns):
            step = np.zeros(len(factors))
            step[column] = _STEP
            found[:, place] = (self.residuals(factors + step) - here) / _STEP
        return found


def fit(
    measured: FloatArray,
    errors: FloatArray,
    predict: Callable[[FloatArray], FloatArray],
    names: Sequence[str],
    spreads: FloatArray,
) -> Fit:
    """Fit numbers to durations.

    Parameters
    ----------
    measured : array of float, shape (measurements,)
        [s]
    errors : array of float, shape (measurements,)
        Relative standard errors [1].
    predict : callable
        Durations [s] for the numbers' values over their starting values, shape (numbers,) -> (measurements,).
    names : sequence of str
        Of the numbers; of two that cannot be told apart the later one stays as it was.
    spreads : array of float, shape (numbers,)
        Relative standard uncertainty of the starting values [1].

    Returns
    -------
    Fit

    Raises
    ------
    SpecError
        If scipy is not installed.

    Notes
    -----
    Minimises the sum of 2 c^2 (sqrt(1 + (z/c)^2) - 1) with z the differences of logarithms in standard errors and
    c = 2 s, so that outliers count linearly, over the logarithms of the numbers, by `scipy.optimize.least_squares`
    (trust region); s = 1.48 times the median absolute z, at least 1, is found anew until the numbers stand. The 95 %
    interval is 1.96 s sqrt(diag((J^T J)^-1)) (Huber and Ronchetti, Robust Statistics, chapter 7), and what the doubt in
    the numbers that are held adds to it. A number that moves nothing, or whose interval is wider than `LOOSEST`, is
    taken out, later names first, and the rest fitted again. Which these are is asked at the start, where only the
    errors of the measurements count, and twice more at what was found.
    """
    problem = _Problem(np.log(measured), errors, lambda factors: predict(np.exp(factors)))
    factors = np.zeros(len(names))
    active: list[int] = []
    for scaled in (False, True, True):
        known, reasons = _told(problem, factors, names, spreads, scaled=scaled)
        if known == active:
            break
        factors = _minimised(problem, np.where(np.isin(np.arange(len(names)), known), factors, 0.0), known)
        active = known
    table, scale = problem.jacobian(factors, range(len(names))), _scale(problem.residuals(factors), len(active))
    while active and (loose := _loosest(table, active, scale, spreads)) is not None:
        reasons[loose] = _reason(table, active, loose, scale, names)
        active.remove(loose)
        factors[loose] = 0.0
    widths = _widths(table, active, scale, spreads)
    found = tuple(Fitted(i, float(np.exp(factors[i])), float(w)) for i, w in zip(active, widths, strict=True))
    left = tuple(Left(i, reasons.get(i, NOT_SEEN)) for i in range(len(names)) if i not in active)
    return Fit(found, left, problem.predict(factors), scale)


NOT_SEEN = "nothing measured depends on it"


def _minimised(problem: _Problem, factors: FloatArray, active: Sequence[int]) -> FloatArray:
    """The factors of least loss, all but the active ones held."""
    if not active:
        return factors
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise SpecError(["calibrate needs scipy, install it with: pip install 'simmoe[calibrate]'"]) from error
    held, own = factors.copy(), list(active)

    def residuals(values: FloatArray) -> FloatArray:
        held[own] = values
        return problem.residuals(held)

    def jacobian(values: FloatArray) -> FloatArray:
        held[own] = values
        return problem.jacobian(held.copy(), own)

    values = np.clip(factors[own], -_WIDEST * 0.99, _WIDEST * 0.99)
    for _ in range(_SHARPENED):
        scale = _scale(residuals(values), len(own))
        found = least_squares(
            residuals,
            values,
            jacobian,
            (-_WIDEST, _WIDEST),
            loss="soft_l1",
            f_scale=_BEND * scale,
            x_scale="jac",
            max_nfev=8,
            ftol=1e-12,
            xtol=1e-10,
            gtol=1e-12,
        )
        moved, values = float(np.abs(found.x - values).max()), found.x
        if moved < _SETTLED:
            break
    result = factors.copy()
    result[own] = values
    return result


def _told(
    problem: _Problem, factors: FloatArray, names: Sequence[str], spreads: FloatArray, *, scaled: bool
) -> tuple[list[int], dict[int, str]]:
    """The numbers that the measurements tell at this point, and why the others are left out.

    `scaled` counts the misfit of the model at this point as an error of the measurements; far from the fit it is none.
    """
    table, residuals = problem.jacobian(factors, range(len(names))), problem.residuals(factors)
    slopes = np.abs(table * problem.errors[:, None]).max(axis=0, initial=0.0)
    reasons = {i: NOT_SEEN for i, slope in enumerate(slopes.tolist()) if slope < _UNMOVED}
    kept = [i for i in range(len(names)) if i not in reasons]
    scale = _scale(residuals, len(kept)) if scaled else 1.0
    while kept and (loose := _loosest(table, kept, scale, spreads)) is not None:
        reasons[loose] = _reason(table, kept, loose, scale, names)
        kept.remove(loose)
    return kept, reasons


def _loosest(table: FloatArray, kept: Sequence[int], scale: float, spreads: FloatArray) -> int | None:
    """The last number whose interval is too wide; None if all are narrow enough."""
    widths = _widths(table, kept, scale, spreads)
    return max((i for i, width in zip(kept, widths.tolist(), strict=True) if width > LOOSEST), default=None)


def _scale(residuals: FloatArray, count: int) -> float:
    if len(residuals) <= count:
        return 1.0
    spare = np.sqrt(len(residuals) / (len(residuals) - count))
    return max(1.0, float(1.4826 * np.median(np.abs(residuals)) * spare))


def _widths(table: FloatArray, kept: Sequence[int], scale: float, spreads: FloatArray) -> FloatArray:
    """Half widths of the 95 % intervals of some numbers, with what the doubt in the others does to them.

    A number that is held wrong by its spread moves the others by (J^T J)^-1 J^T j times that. Infinite where columns
    depend on each other.
    """
    own = table[:, list(kept)]
    if len(table) < len(kept) or not len(kept):
        return np.full(len(kept), np.inf)
    norms = np.linalg.norm(own, axis=0)
    if not norms.all():
        return np.where(norms > 0, 0.0, np.inf)
    left, sizes, rows = np.linalg.svd(own / norms, full_matrices=False)
    if sizes[-1] < _SINGULAR * sizes[0]:
        parts = np.where(np.abs(rows) < _SINGULAR, 0.0, rows / np.maximum(sizes, 1e-300)[:, None])
        return np.asarray(_DEVIATIONS * np.linalg.norm(parts, axis=0) / norms, dtype=np.float64)
    inverse = (rows.T / sizes) @ left.T / norms[:, None]
    others = [i for i in range(table.shape[1]) if i not in set(kept)]
    moved = inverse @ (table[:, others] * spreads[others])
    found: FloatArray = _DEVIATIONS * np.hypot(scale * np.linalg.norm(inverse, axis=1), np.linalg.norm(moved, axis=1))
    return found


def _reason(table: FloatArray, kept: Sequence[int], place: int, scale: float, names: Sequence[str]) -> str:
    """Why a number is not told: it does too little, or what it does others do, too."""
    own = table[:, place]
    if not own.any():
        return NOT_SEEN
    alone = _DEVIATIONS * scale / float(np.linalg.norm(own))
    others = [other for other in range(table.shape[1]) if other != place and np.linalg.norm(table[:, other]) > 0]
    if alone > LOOSEST or not others:
        return f"moves the measured times too little, within {_percent(alone)} at best"
    shared = [abs(float(own @ table[:, o])) / float(np.linalg.norm(own) * np.linalg.norm(table[:, o])) for o in others]
    return f"not told apart from {names[others[int(np.argmax(shared))]]}"


def _percent(width: float) -> str:
    return f"{100 * width:.0f} %" if width < 10 else "a factor of many"
