"""Numbers fitted to measurements: robust least squares around what is known, and what the measurements add to it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.errors import SpecError

FloatArray = NDArray[np.float64]
FIRM = 0.03
"""Half width of the 95 % interval up to which a number counts as identified [1]."""
TOLD = 0.5
"""Of the interval that a number has before, what it must be narrower than after, or it stays as it was [1]."""
NOT_SEEN = "nothing measured depends on it"
_DEVIATIONS = 1.96
_STEP = 1e-4
_UNMOVED = 1e-6
_WIDEST = float(np.log(100.0))
_BEND = 2.0
_REWEIGHTED = 8
_SETTLED = 3e-4
_ROUNDS = 3


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
    """Logarithms of what was measured, their errors, the model of logarithmic factors, and the doubt in these."""

    measured: FloatArray
    errors: FloatArray
    predict: Callable[[FloatArray], FloatArray]
    spreads: FloatArray

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

    def secants(self, factors: FloatArray, columns: Sequence[int]) -> FloatArray:
        """Changes of the residuals if some factors are off by 1.96 spreads, up or down, whichever does more.

        What limits nothing here, such as a peak bandwidth, may do so within its doubt.
        """
        found = np.zeros((len(self.measured), len(columns)))
        here = self.residuals(factors)
        for place, column in enumerate(columns):
            for sign in (-1.0, 1.0):
                step = np.zeros(len(factors))
                step[column] = sign * _DEVIATIONS * self.spreads[column]
                change = (self.residuals(factors + step) - here) / float(abs(step[column]))
                found[:, place] = np.where(np.abs(change) > np.abs(found[:, place]), change, found[:, place])
        return found

    def scale(self, factors: FloatArray) -> float:
        """Robust size of the residuals, at least 1."""
        return max(1.0, float(1.4826 * np.median(np.abs(self.residuals(factors)))))


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
        Of the numbers.
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
    Maximum a posteriori with the starting values as prior: minimises the sum of 2 c^2 (sqrt(1 + (z/c)^2) - 1) over all
    z, the differences of logarithms in standard errors times s, and the logarithms of the numbers' factors in their
    spreads; c = 2, so that outliers count linearly. By reweighting: each z of a measurement is weighted by
    (1 + (z/c)^2)^(-1/4), `scipy.optimize.least_squares` (trust region) finds the numbers, and s = 1.48 times the median
    size of the differences in standard errors, at least 1, and the weights are found anew until they stand. The 95 %
    interval is 1.96 sqrt(diag((J^T J / s^2 + S^-2)^-1)) with S the spreads of all numbers, so what is not known of one
    widens the intervals of those that act like it (Huber and Ronchetti, Robust Statistics, chapter 7); of a number that
    moves nothing here J is a secant over its 95 % interval. A number whose interval the measurements do not narrow to
    `TOLD` of what it was is put back, and the others are fitted again.
    """
    problem = _Problem(np.log(measured), errors, lambda factors: predict(np.exp(factors)), spreads)
    factors, active = np.zeros(len(names)), list[int]()
    everything = list(range(len(names)))
    table = problem.jacobian(factors, everything)
    told = _seen(problem, table)
    for _ in range(_ROUNDS):
        if told == active:
            break
        active = told
        factors = _minimised(problem, np.where(np.isin(everything, active), factors, 0.0), active)
        table = problem.jacobian(factors, everything)
        widths = _widths(table, problem.scale(factors), spreads)
        told = [i for i in _seen(problem, table) if widths[i] < TOLD * _DEVIATIONS * spreads[i]]
    active = [i for i in active if i in told]
    factors = np.where(np.isin(everything, active), factors, 0.0)
    scale = problem.scale(factors)
    seen = set(_seen(problem, table))
    hidden = [i for i in everything if i not in seen]
    table[:, hidden] = problem.secants(factors, hidden)
    widths = _widths(table, scale, spreads)
    found = tuple(Fitted(i, float(np.exp(factors[i])), float(widths[i])) for i in active)
    left = tuple(
        Left(i, _reason(table, i, scale, spreads, names) if i in seen else NOT_SEEN)
        for i in everything
        if i not in active
    )
    return Fit(found, left, problem.predict(factors), scale)


def _seen(problem: _Problem, table: FloatArray) -> list[int]:
    """The numbers that move something that was measured."""
    slopes = np.abs(table * problem.errors[:, None]).max(axis=0, initial=0.0)
    return np.flatnonzero(slopes > _UNMOVED).tolist()


def _minimised(problem: _Problem, factors: FloatArray, active: Sequence[int]) -> FloatArray:
    """The factors of least loss, all but the active ones held."""
    if not active:
        return factors
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise SpecError(["calibrate needs scipy, install it with: pip install 'simmoe[calibrate]'"]) from error
    held, own = factors.copy(), list(active)
    spreads, values = problem.spreads[own], factors[own]
    for _ in range(_REWEIGHTED):
        held[own] = values
        sizes = problem.residuals(held) / (_BEND * problem.scale(held))
        weights = (1 + sizes**2) ** -0.25 / problem.scale(held)

        def residuals(values: FloatArray, weights: FloatArray = weights) -> FloatArray:
            held[own] = values
            return np.concatenate([problem.residuals(held) * weights, values / spreads])

        def jacobian(values: FloatArray, weights: FloatArray = weights) -> FloatArray:
            held[own] = values
            return np.concatenate([problem.jacobian(held.copy(), own) * weights[:, None], np.diag(1.0 / spreads)])

        found = least_squares(residuals, values, jacobian, (-_WIDEST, _WIDEST), x_scale="jac", max_nfev=4)
        moved, values = float(np.abs(found.x - values).max()), found.x
        if moved < _SETTLED:
            break
    result = factors.copy()
    result[own] = values
    return result


def _widths(table: FloatArray, scale: float, spreads: FloatArray) -> FloatArray:
    """Half widths of the 95 % intervals of all numbers, what was known before included."""
    whole = np.concatenate([table / scale * spreads, np.eye(len(spreads))])
    _, sizes, rows = np.linalg.svd(whole, full_matrices=False)
    found: FloatArray = _DEVIATIONS * spreads * np.linalg.norm(rows / sizes[:, None], axis=0)
    return found


def _reason(table: FloatArray, place: int, scale: float, spreads: FloatArray, names: Sequence[str]) -> str:
    """Why a number is not told: it does too little, or what it does others do, too."""
    own = table[:, place]
    alone = scale / float(np.linalg.norm(own))
    others = [other for other in range(table.shape[1]) if other != place and table[:, other].any()]
    if alone > TOLD * spreads[place] or not others:
        return "moves the measured times too little"
    shared = [abs(float(own @ table[:, o])) / float(np.linalg.norm(own) * np.linalg.norm(table[:, o])) for o in others]
    return f"not told apart from {names[others[int(np.argmax(shared))]]}"
