"""How a consistency rule is written: one fact, one function, one sentence or None.

A new rule is a function of its own below `rule`, which registers it; the key tells where the sentence is
shown.

>>> @rule("demonstration", "size")
... def size_is_even(size: int) -> str | None:
...     return f"{size} is odd, write an even number" if size % 2 else None
>>> RULES["demonstration"][0].check(3)
'3 is odd, write an even number'
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from simmoe.specs.document import Path

T = TypeVar("T")


class Rule(NamedTuple):
    """One fact that a valid spec satisfies.

    Attributes
    ----------
    path : path
        The key to change, inside the spec.
    check : callable
        Spec to None, or to a sentence with the values and the remedy.
    """

    path: Path
    check: Callable[[Any], str | None]


RULES: dict[str, list[Rule]] = {}


def rule(kind: str, key: str) -> Callable[[Callable[[T], str | None]], Callable[[T], str | None]]:
    """Register a function as a rule of a kind of spec.

    Parameters
    ----------
    kind : str
        What the function takes: see `simmoe.specs.checks.run`.
    key : str
        Dotted key inside the spec where the sentence is shown.
    """

    def register(function: Callable[[T], str | None]) -> Callable[[T], str | None]:
        RULES.setdefault(kind, []).append(Rule(tuple(key.split(".")), function))
        return function

    return register


def limit(kind: str, key: str, most: int, read: Callable[[Any], int]) -> None:
    """Register the largest value of a size: beyond it, it is a slip that would exhaust memory.

    Parameters
    ----------
    kind, key : str
        As in `rule`.
    most : int
        The largest value accepted.
    read : callable
        Spec to the size.
    """

    def check(spec: Any) -> str | None:
        size = read(spec)
        return None if size <= most else f"at most {most} is accepted (got {size}), write less"

    RULES.setdefault(kind, []).append(Rule(tuple(key.split(".")), check))


def divides(divisor: int, name: str, size: int, size_name: str) -> str | None:
    """The sentence if one size does not divide another, with the divisors around it.

    Examples
    --------
    >>> divides(3, "expert_parallel", 8, "num_experts")
    'expert_parallel 3 does not divide num_experts 8, choose 2 or 4'
    >>> divides(4, "expert_parallel", 8, "num_experts") is None
    True
    """
    if size % divisor == 0:
        return None
    below = next(n for n in range(min(divisor, size), 0, -1) if size % n == 0)
    above = next((n for n in range(divisor + 1, min(size, 4 * divisor) + 1) if size % n == 0), None)
    choice = f"{below} or {above}" if above else f"{below}"
    return f"{name} {divisor} does not divide {size_name} {size}, choose {choice}"
