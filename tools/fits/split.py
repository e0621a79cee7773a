"""Which shapes a fit never sees."""

import hashlib
from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

SEED = "simmoe-1"
SHARE = 0.2


def draw(shape: Hashable, seed: str = SEED) -> float:
    """A number in [0, 1) that depends on nothing but the shape's text and the seed.

    Examples
    --------
    >>> draw((1024, 4096, 4096)) == draw((1024, 4096, 4096))
    True
    """
    digest = hashlib.sha256(f"{seed}:{shape!r}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64


def held_out(shapes: Iterable[Hashable], share: float = SHARE, seed: str = SEED) -> NDArray[np.bool_]:
    """True for the shapes kept out of a fit, the same ones on every machine and in every order.

    Parameters
    ----------
    shapes : iterable of hashable
        What identifies a measurement, as Python numbers and strings (their text is hashed), for example (m, n, k).
    share : float
        Expected share held out.
    seed : str
        Another seed is another split.

    Examples
    --------
    >>> out = held_out((m, 4096, 4096) for m in range(1000))
    >>> bool(150 < out.sum() < 250)
    True
    """
    return np.array([draw(shape, seed) < share for shape in shapes], dtype=bool)


def thin(shapes: Iterable[Hashable], most: int) -> NDArray[np.bool_]:
    """True for about `most` of the shapes, chosen by hash and independently of `held_out`."""
    draws = np.array([draw(shape, "thin") for shape in shapes])
    return draws < most / max(1, len(draws))
