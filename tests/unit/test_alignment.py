"""Sequences are aligned as an exhaustive search would."""

import functools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simmoe.calibration.alignment import MOST_CELLS, align, cut_to_fit

SCORES = st.integers(0, 6).flatmap(
    lambda rows: st.integers(0, 6).flatmap(
        lambda columns: st.lists(
            st.lists(st.integers(-2, 5), min_size=columns, max_size=columns), min_size=rows, max_size=rows
        ).map(lambda table: np.array(table, dtype=float).reshape(rows, columns))
    )
)


def best_total(scores: np.ndarray) -> float:
    """Of all ways to pair rows and columns in order."""

    @functools.cache
    def rest(row: int, column: int) -> float:
        if row == scores.shape[0] or column == scores.shape[1]:
            return 0.0
        skipped = max(rest(row + 1, column), rest(row, column + 1))
        score = scores[row, column]
        return max(skipped, score + rest(row + 1, column + 1)) if score > 0 else skipped

    return rest(0, 0)


@given(SCORES)
def test_the_total_is_the_greatest_and_the_order_is_kept(scores: np.ndarray):
    pairs = align(*scores.shape, lambda row: scores[row])
    assert all(first < later and left < right for (first, left), (later, right) in pairwise(pairs))
    assert all(scores[pair] > 0 for pair in pairs)
    assert sum(scores[pair] for pair in pairs) == best_total(scores)


@pytest.mark.parametrize("lengths", [(10, 10), (10**6, 10**6), (10**6, 100), (3, 10**9)])
def test_long_sequences_are_cut(lengths: tuple[int, int]):
    first, second = cut_to_fit(*lengths)
    assert first * second <= MOST_CELLS
    assert 0 < first <= lengths[0]
    assert 0 < second <= lengths[1]
    assert (first, second) == lengths or min(first, second) >= min(*lengths, 20_000)
