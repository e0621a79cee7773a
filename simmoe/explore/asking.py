"""Runs that many questions share: each is made once, and who asked for it is known."""

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Case = TypeVar("Case", bound=Hashable)
Found = TypeVar("Found")


class Kept(Generic[Case, Found]):
    """Runs each case once and remembers who was asked for.

    Parameters
    ----------
    run : callable
        Case -> what is found.
    known : mapping
        Cases that need not be run.

    Examples
    --------
    >>> bench = Kept(len, {"four": 4})
    >>> bench.measure("three"), bench.measure("four"), bench.asked
    (5, 4, {'three': 5, 'four': 4})
    """

    def __init__(self, run: Callable[[Case], Found], known: Mapping[Case, Found] | None = None) -> None:
        self._run = run
        self._known = dict(known or {})
        self.asked: dict[Case, Found] = {}

    def measure(self, case: Case) -> Found:
        """The kept measurement, or a new one."""
        if case not in self._known:
            self._known[case] = self._run(case)
        found = self.asked[case] = self._known[case]
        return found
