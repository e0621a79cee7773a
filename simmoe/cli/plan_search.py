"""Ask a planner on one screen: progress on the error stream, and Ctrl-C ends the search with what was found."""

from typing import TYPE_CHECKING

from simmoe.planners.registry import Planner, Request, ask
from simmoe.planners.watch import Watch, watched

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from simmoe.planners.proposal import Ranking
    from simmoe.specs.scenario import Scenario

STOPPED = "Stopped by Ctrl-C: the best plan of those simulated until then."


class _Shown(Watch):
    """Shows on a terminal what planners do."""

    def __init__(self, planner: Planner, status: "Status") -> None:
        super().__init__()
        self._planner, self._status = planner, status

    def news(self) -> None:
        """The phase, and the fastest plan found."""
        words = f"{self._planner}: {self.phase or 'simulating'}"
        if self.found:
            best = min(one.simulated_s for one in self.found)
            words += f", {len(self.found)} plans that fit, the best takes {best:.3f} s"
        self._status.update(words)


def asked(planner: Planner, scenario: "Scenario", request: Request) -> "Ranking":
    """The ranking of a planner.

    Parameters
    ----------
    planner : Planner
    scenario : Scenario
    request : Request

    Returns
    -------
    Ranking
        After Ctrl-C the plans that had been simulated; their remarks say so.

    Raises
    ------
    KeyboardInterrupt
        If there are none.
    """
    from simmoe.cli.screen import console
    from simmoe.planners.proposal import ranked

    screen: Console = console(stderr=True)
    with screen.status(f"{planner}") as status:
        watch = _Shown(planner, status) if screen.is_terminal else Watch()
        with watched(watch):
            try:
                return ask(planner, scenario, request)
            except KeyboardInterrupt:
                if not watch.found:
                    raise
    return ranked(watch.found, request.top)._replace(remarks=(STOPPED,))
