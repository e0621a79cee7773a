"""When a plan that ran in reality counts as one that does not fit: the estimate of memory has an error of its own."""

from collections.abc import Iterable
from math import exp

from simmoe.report.result import Result

# Standard deviation of the logarithm of estimated over published peak memory, see scenarios/published/README.md, and
# how far off a plan must be to be called too large: a normal distribution leaves 10 % above 1.2816 standard deviations.
MEMORY_SPREAD = 0.13
MARGIN = exp(1.2816 * MEMORY_SPREAD)


def overfull(result: Result, notes: Iterable[str] = ()) -> float | None:
    """How many times its memory the fullest device would need, None if that lies within the doubt of the estimate [1].

    Parameters
    ----------
    result : Result
    notes : iterable of str
        What was left out; where activations are offloaded, which the estimate does not know, it says nothing.

    Notes
    -----
    ``need / capacity > exp(1.2816 s)`` with s = `MEMORY_SPREAD`.
    """
    if any("offload" in note for note in notes):
        return None
    needs = (
        memory.total / result.accelerator(rank).memory.value
        for rank, memory in zip(result.ranks, result.memory, strict=True)
    )
    most = max(needs, default=0.0)
    return most if most > MARGIN else None
