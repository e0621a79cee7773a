"""What people do by hand: one set of sizes for the whole cluster and equal layers on every stage."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from simmoe.errors import SpecError
from simmoe.planners.proposal import (
    Proposal,
    Ranking,
    Rejected,
    divisors,
    lacking_bytes,
    plan_like,
    planned,
    propose,
    ranked,
)
from simmoe.planners.stage_model import StageModel
from simmoe.planners.step_model import predict
from simmoe.planners.watch import tell
from simmoe.planners.ways import MOST_TOKENS, Freedom, Way, recompute_ladder, ways
from simmoe.specs.plan import Plan, Recompute, Schedule
from simmoe.specs.scenario import Scenario

NAME = "uniform"
SIMULATED = 8
"""Plans that are simulated, the best by the planner's own model."""
VIRTUAL = (2, 4)
"""Virtual stages that are tried."""
_GIB = 2.0**30


class Grid(NamedTuple):
    """A point of the grid: all but recomputation.

    Attributes
    ----------
    stages : int
    way : Way
        Of every stage; its recomputation does not count.
    size : int
        Sequences of a micro-batch of a rank.
    virtual : int
        Virtual stages of each stage.
    """

    stages: int
    way: Way
    size: int
    virtual: int = 1

    def name(self, recompute: Recompute) -> str:
        """In a few words.

        Examples
        --------
        >>> Grid(4, Way(2, 1, 8, 4, 1, Recompute()), 2).name(Recompute(granularity="full"))
        'PP4 TP2 DP8 EP4 full, micro-batch 2'
        """
        interleaved = f" VPP{self.virtual}" if self.virtual > 1 else ""
        sizes = self.way._replace(recompute=recompute).name
        return f"PP{self.stages}{interleaved} {sizes}, micro-batch {self.size}"

    def plan(self, scenario: Scenario, recompute: Recompute) -> Plan:
        """The plan in its uniform form."""
        changes: dict[str, Any] = {"schedule": Schedule.INTERLEAVED} if self.virtual > 1 else {}
        return plan_like(
            scenario,
            tensor_parallel=self.way.tensor,
            pipeline_parallel=self.stages,
            virtual_pipeline=self.virtual,
            context_parallel=self.way.context,
            expert_parallel=self.way.expert,
            expert_tensor_parallel=self.way.expert_tensor,
            recompute=recompute,
            **changes,
        )


class Fitting(NamedTuple):
    """A plan that fits, before it is simulated."""

    predicted_s: float
    point: Grid
    recompute: Recompute
    scenario: Scenario


def uniform(scenario: Scenario, *, top: int = 3, virtual: Sequence[int] = VIRTUAL) -> Ranking:
    """The best plan with equal stages: every size of the grid, the smallest recomputation that fits.

    Parameters
    ----------
    scenario : Scenario
    top : int
        Proposals to return.
    virtual : sequence of int
        Virtual stages that are tried on the best plans.

    Returns
    -------
    Ranking
        Of the `SIMULATED` best by the planner's own model. Stages hold consecutive devices in the cluster's order, so
        unlike devices get equal work.

    References
    ----------
    What HAPMoE (arXiv 2609.39350v1, section 5.1) calls tuned by hand, done exhaustively.
    """
    return best_of(NAME, scenario, list(grid(scenario)), top=top, virtual=virtual)


def best_of(
    planner: str, scenario: Scenario, points: Sequence[Grid], *, top: int = 3, virtual: Sequence[int] = ()
) -> Ranking:
    """The best of some points of the grid.

    Parameters
    ----------
    planner : str
        Who proposes them.
    scenario : Scenario
        Its plan says how to shard and overlap.
    points : sequence of Grid
    top : int
        Proposals to return.
    virtual : sequence of int
        Virtual stages that are tried on the best points.

    Returns
    -------
    Ranking
    """
    tell("working out the grid of equal stages")
    model, nearest = StageModel(scenario), Nearest()
    tried = (fitting(scenario, point, model, nearest) for point in points)
    found = _first([one for one in tried if one is not None])
    if not found:
        return Ranking((), (nearest.refusal(),))
    cut = [one.point._replace(virtual=count) for one in found for count in virtual if one.point.stages > 1]
    more = [fitting(scenario, point, model, nearest) for point in cut]
    tell("simulating")
    best = _first([*found, *(one for one in more if one is not None)])
    return ranked([simulated(planner, scenario, one) for one in best], top)


def _first(found: list[Fitting]) -> list[Fitting]:
    """The most promising."""
    return sorted(found, key=lambda one: one.predicted_s)[:SIMULATED]


def simulated(planner: str, scenario: Scenario, one: Fitting) -> Proposal | Rejected:
    """A point that fits, as a whole step."""
    plan = one.point.plan(scenario, one.recompute)
    return propose(planner, one.point.name(one.recompute), plan, one.scenario, one.predicted_s)


def grid(scenario: Scenario) -> Iterator[Grid]:
    """Every point of the grid that the sizes of model, cluster and batch allow, micro-batches ascending."""
    training, devices = scenario.training, scenario.cluster.devices
    domain = min(group.domain_devices for group in scenario.cluster.groups)
    for stages in divisors(devices, scenario.model.num_layers):
        if scenario.model.num_layers % stages:
            continue
        for alike in ways(scenario, devices // stages, domain, Freedom()):
            if training.global_batch_size % alike[0].data:
                continue
            share = training.global_batch_size // alike[0].data
            tokens = training.sequence_length // alike[0].context
            sizes = [size for size in divisors(share, max(1, MOST_TOKENS // tokens)) if size & (size - 1) == 0]
            yield from (Grid(stages, way, size) for way in alike for size in sizes)


class Nearest:
    """The plan that lacks least memory, and how many were tried."""

    def __init__(self) -> None:
        self.tried, self.lack, self.name = 0, float("inf"), ""

    def note(self, lack: float, name: str) -> None:
        """A plan that does not fit."""
        if lack < self.lack:
            self.lack, self.name = lack, name

    def refusal(self) -> Rejected:
        """Why there is no plan."""
        if not self.name:
            return Rejected("equal stages", "no sizes divide the model's layers and heads, the devices and the batch")
        lack = f"{self.name} comes nearest and lacks {self.lack / _GIB:.1f} GiB on a device"
        return Rejected("equal stages", f"does not fit: none of {self.tried:,} plans; {lack}")


def fitting(scenario: Scenario, point: Grid, model: StageModel, nearest: Nearest | None = None) -> Fitting | None:
    """A point of the grid with the smallest recomputation that fits; None if none does or a rule forbids it."""
    nearest = nearest or Nearest()
    nearest.tried += 1
    for recompute in recompute_ladder(scenario):
        try:
            made = planned(scenario, point.plan(scenario, recompute), micro_batch_size=point.size)
        except SpecError:
            return None
        lack = max(lacking_bytes(made))
        if lack <= 0:
            return Fitting(predict(made, model).seconds, point, recompute, made)
        nearest.note(lack, point.name(recompute))
    return None


def hand(scenario: Scenario, *, tensor_parallel: int = 8, expert_parallel: int = 8) -> Ranking:
    """One plan as it is written down without a search: a node for each stage, experts over the node.

    Parameters
    ----------
    scenario : Scenario
    tensor_parallel, expert_parallel : int

    Returns
    -------
    Ranking
        The plan with the smallest recomputation that fits, or why there is none.

    References
    ----------
    A reading of the baseline that HAPMoE (arXiv 2609.39350v1, table 2) calls MI; the paper does not print it.
    """
    node = min(group.node.accelerators for group in scenario.cluster.groups)
    way = Way(tensor_parallel, 1, node // tensor_parallel, expert_parallel, 1, Recompute())
    point = Grid(scenario.cluster.devices // node, way, scenario.training.micro_batch_size)
    nearest = Nearest()
    one = fitting(scenario, point, StageModel(scenario), nearest)
    return ranked([nearest.refusal() if one is None else simulated("hand", scenario, one)])
