"""What planners tell whoever waits for them: what they do, and every plan as soon as it is simulated."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simmoe.planners.proposal import Proposal


class Watch:
    """Someone who waits for planners; keeps what was found, so that a search may be broken off at any moment.

    Attributes
    ----------
    phase : str
        What is being done.
    found : list of Proposal
        In the order in which they were simulated.
    """

    def __init__(self) -> None:
        self.phase = ""
        self.found: list[Proposal] = []

    def news(self) -> None:
        """Called after each change."""


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[Watch]:
    """Let a watch hear of everything that planners do meanwhile."""
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


def tell(phase: str) -> None:
    """Say what is done now."""
    watch = _watch.get()
    if watch is not None:
        watch.phase = phase
        watch.news()


def saw(proposal: "Proposal") -> None:
    """Hand over a plan that fits."""
    watch = _watch.get()
    if watch is not None:
        watch.found.append(proposal)
        watch.news()
