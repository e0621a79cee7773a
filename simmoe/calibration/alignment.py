"""Which of two sequences' elements belong together: the order is kept, what has no counterpart is left over."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
MOST_CELLS = 4 * 10**8
"""Of the table, one byte each; longer sequences are cut."""


def align(first: int, second: int, score: Callable[[int], FloatArray]) -> list[tuple[int, int]]:
    """The pairs of greatest total score whose members ascend in both sequences.

    Parameters
    ----------
    first, second : int
        Lengths.
    score : callable
        Of an element of the first sequence with each of the second, shape (second,); pairs without a positive one are
        never made.

    Returns
    -------
    list of (int, int)
        Ascending.

    Notes
    -----
    Needleman and Wunsch 1970 with free gaps. A row of the table is its predecessor, or that plus a score one place
    further, and then the greatest so far. Of equal totals the pair that ends last is made.

    Examples
    --------
    >>> words = ("gemm", "norm", "gemm", "attention"), ("gemm", "gemm", "attention", "gemm")
    >>> same = lambda i: np.array([float(words[0][i] == other) for other in words[1]])
    >>> align(4, 4, same)
    [(0, 0), (2, 1), (3, 2)]
    """
    if not first or not second:
        return []
    best = np.zeros(second + 1)
    made = np.zeros((first, second + 1), dtype=np.uint8)
    for row in range(first):
        scores = score(row)
        paired = np.where(scores > 0, best[:-1] + scores, -1.0)
        here = best.copy()
        here[1:] = np.maximum(here[1:], paired)
        reached = np.maximum.accumulate(here)
        made[row, 1:] = np.where(reached[1:] > reached[:-1], np.where(paired > best[1:], 1, 2), 0)
        best = reached
    return _followed(made)


def _followed(made: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """The way back through the table: 0 leads left, 1 is a pair, 2 leads up."""
    pairs = []
    row, column = made.shape[0] - 1, made.shape[1] - 1
    while row >= 0 and column > 0:
        step = made[row, column]
        if step == 1:
            pairs.append((row, column - 1))
            row, column = row - 1, column - 1
        elif step == 2:
            row -= 1
        else:
            column -= 1
    return pairs[::-1]


def cut_to_fit(first: int, second: int) -> tuple[int, int]:
    """Lengths whose table stays below `MOST_CELLS`: the shorter one is kept as far as possible.

    Parameters
    ----------
    first, second : int

    Examples
    --------
    >>> cut_to_fit(100, 200), cut_to_fit(100_000, 50_000)
    ((100, 200), (20000, 20000))
    """
    if first * second <= MOST_CELLS:
        return first, second
    side = int(MOST_CELLS**0.5)
    return min(first, max(side, MOST_CELLS // max(second, 1))), min(second, max(side, MOST_CELLS // max(first, 1)))
