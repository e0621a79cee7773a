"""Which labels of a state are worth keeping."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def undominated(key: IntArray, columns: Sequence[FloatArray], keep: int = 1) -> IntArray:
    """Labels that fewer than `keep` others of the same state equal or beat in every column.

    Parameters
    ----------
    key : array of int
        The state of each label.
    columns : sequence of array of float
        What is to be small.
    keep : int
        1 = the Pareto front, of equal labels the first. With k the k best completions of a state survive.

    Returns
    -------
    array of int
        Positions, by state, then by the columns.

    Notes
    -----
    In the order of (key, columns) a label can be dominated only by one before it, and the first label of a state that
    is left is never dominated: each pass keeps it and strikes what it dominates. As many passes as the largest front is
    long.

    Examples
    --------
    >>> undominated(np.array([7, 7, 7, 5]), [np.array([1.0, 2.0, 3.0, 9.0]), np.array([4.0, 4.0, 3.0, 9.0])]).tolist()
    [3, 0, 2]
    """
    likely = _likely(key, columns) if keep == 1 else np.arange(len(key))
    order = likely[np.lexsort((*(column[likely] for column in reversed(columns)), key[likely]))]
    rest, kept = order, [order[:0]]
    beaten = np.zeros(len(key), dtype=np.int64)
    while rest.size:
        states = key[rest]
        opens = np.ones(rest.size, dtype=bool)
        opens[1:] = states[1:] != states[:-1]
        heads, run = rest[opens], np.cumsum(opens) - 1
        kept.append(heads)
        worse = np.ones(rest.size, dtype=bool)
        for column in columns[1:]:
            worse &= column[rest] >= column[heads][run]
        beaten[rest[worse]] += 1
        rest = rest[~opens & (beaten[rest] < keep)]
    chosen = np.zeros(len(key), dtype=bool)
    chosen[np.concatenate(kept)] = True
    return order[chosen[order]]


def _likely(key: IntArray, columns: Sequence[FloatArray]) -> IntArray:
    """Labels that the one with the least first column of their state does not beat: cheaper than a full sort."""
    order = np.lexsort((columns[0], key))
    states = key[order]
    opens = np.ones(order.size, dtype=bool)
    opens[1:] = states[1:] != states[:-1]
    heads = order[opens][np.cumsum(opens) - 1]
    worse = ~opens
    for column in columns[1:]:
        worse &= column[order] >= column[heads]
    return np.sort(order[~worse])


def spread(first: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Runs of consecutive integers: which run each belongs to, and its value.

    Examples
    --------
    >>> [part.tolist() for part in spread(np.array([5, 8]), np.array([2, 1]))]
    [[0, 0, 1], [5, 6, 8]]
    """
    run = np.repeat(np.arange(len(counts)), counts)
    return run, np.arange(run.size) - np.repeat(np.cumsum(counts) - counts - first, counts)
