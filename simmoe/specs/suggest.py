"""What the user probably meant: the nearest names to a misspelt one."""

from collections.abc import Iterable
from difflib import SequenceMatcher

MOST_SHOWN = 12


def near(word: str, candidates: Iterable[str], most: int = 3) -> list[str]:
    """The candidates nearest to a word, best first: same letters, same beginning, then spelling.

    Parameters
    ----------
    word : str
        What was written.
    candidates : iterable of str
        What exists.
    most : int
        How many to return at most.

    Examples
    --------
    >>> near("h100-sxm", ["a100-sxm4-80gb", "h100-pcie", "h100-sxm5-80gb"], most=2)
    ['h100-sxm5-80gb', 'a100-sxm4-80gb']
    >>> near("tensor_paralel", ["tensor_parallel", "data_parallel", "schedule"], most=1)
    ['tensor_parallel']
    >>> near("banana", ["h100-sxm5-80gb"])
    []
    """
    names = sorted(candidates)
    folded = word[:80].lower()
    if not folded:
        return []
    squeezed = _squeeze(folded)
    same = [name for name in names if _squeeze(name) == squeezed]
    begins = [name for name in names if name.lower().startswith(folded)]
    likeness = {name: SequenceMatcher(None, name.lower()[:80], folded).ratio() for name in names}
    spelt = sorted((n for n in names if likeness[n] >= 0.6), key=lambda n: -likeness[n])
    within = [name for name in names if len(folded) >= 3 and folded in name.lower()]
    return list(dict.fromkeys([*same, *begins, *spelt, *within]))[:most]


def _squeeze(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def did_you_mean(word: str, candidates: Iterable[str], most: int = 1) -> str:
    """The end of a sentence about an unknown name: the nearest ones, else the whole choice.

    Examples
    --------
    >>> did_you_mean("zero2", ["none", "zero1", "zero3"])
    'did you mean zero1?'
    >>> did_you_mean("quux", ["none", "zero1"])
    'use one of none, zero1'
    """
    names = list(candidates)
    found = near(word, names, most)
    if found:
        return f"did you mean {', '.join(found)}?"
    if not names:
        return "remove it"
    shown = ", ".join(names[:MOST_SHOWN])
    return f"use one of {shown}{', ...' if len(names) > MOST_SHOWN else ''}"
