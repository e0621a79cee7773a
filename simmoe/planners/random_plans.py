"""A floor: what somebody gets who draws a plan."""

from random import Random
from statistics import median

from simmoe.planners.proposal import Proposal, Ranking, ranked
from simmoe.planners.stage_model import StageModel
from simmoe.planners.uniform import Nearest, fitting, grid, simulated
from simmoe.planners.watch import tell
from simmoe.specs.scenario import Scenario

_DRAWS_FOR_EACH = 50  # points drawn for each plan that is wanted, until so many fit


def random_plans(scenario: Scenario, *, seed: int = 0, tries: int = 8, top: int = 3) -> Ranking:
    """Some random plans with equal stages that fit.

    Parameters
    ----------
    scenario : Scenario
    seed : int
        The same seed draws the same plans.
    tries : int
        Plans that fit.
    top : int
        Proposals to return.

    Returns
    -------
    Ranking
        The best of them; a remark gives their median.
    """
    tell("drawing plans")
    model, points, nearest = StageModel(scenario), list(grid(scenario)), Nearest()
    Random(seed).shuffle(points)
    found = []
    for point in points[: _DRAWS_FOR_EACH * tries]:
        one = fitting(scenario, point, model, nearest)
        if one is not None:
            found.append(simulated("random", scenario, one))
        if len(found) == tries:
            break
    if not found:
        return Ranking((), (nearest.refusal(),))
    ranking = ranked(found, top)
    steps = [one.simulated_s for one in found if isinstance(one, Proposal)]
    if not steps:
        return ranking
    return ranking._replace(remarks=(f"Of {len(steps)} random plans the median takes {median(steps):.3f} s.",))
