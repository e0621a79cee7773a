"""Pipelines of plain and zebra stages as questions of a pipeline search: which devices form zebra groups, and how."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from simmoe.planners.pipeline_search.problem import DeviceType, PipelinePlan, PipelineProblem, StageOption
from simmoe.planners.pipeline_tables import Tables
from simmoe.planners.proposal import divisors, plan_like
from simmoe.planners.ways import MOST_TOKENS, Way
from simmoe.planners.zebra_shapes import Shape, pairs
from simmoe.planners.zebra_stage import ZebraStages, ZebraWay
from simmoe.specs.plan import Chunk, Plan, Recompute, Schedule
from simmoe.specs.scenario import Scenario

_MOST_TOGETHER = 16  # R
_MEASURED = 48  # carve-outs whose blocks are timed
_KEPT = 16  # carve-outs that are searched
_WAYS = 2  # to run a stage that differ in R and moved experts alone
_RATES_OF = 2  # sequences of the micro-batches by which zebra groups are compared


class Carve(NamedTuple):
    """Equal zebra groups cut out of two node groups.

    Attributes
    ----------
    shape : Shape
        All of them, as one stage.
    rate : float
        Layers x sequences that they and the devices left pass in a second if nobody waits [1/s].
    """

    shape: Shape
    rate: float

    def taken(self, group: int) -> int:
        """Devices of a node group that the zebra groups take."""
        shape = self.shape
        each = shape.attention_devices * (group == shape.attention_group)
        return (each + shape.expert_devices * (group == shape.expert_group)) * shape.groups


class JointProblem(NamedTuple):
    """One carve-out and one size of a pass as a pipeline search's question.

    Attributes
    ----------
    carve : Carve
    problem : PipelineProblem
        Its last type are zebra groups; its unit is a number.
    ways : tuple of Way or ZebraWay
        Of each option.
    groups : tuple of int
        Node group of each type but the last.
    unit : int
        Sequences of a pass.
    """

    carve: Carve
    problem: PipelineProblem
    ways: tuple[Way | ZebraWay, ...]
    groups: tuple[int, ...]
    unit: int


def carves(tables: Tables, stages: ZebraStages, recomputes: Sequence[Recompute]) -> list[Carve]:
    """The carve-outs worth a search, the most promising first.

    Parameters
    ----------
    tables : Tables
        Of the plain stages.
    stages : ZebraStages
    recomputes : sequence of Recompute
        Of zebra stages, from nothing to everything.

    Returns
    -------
    list of Carve

    Notes
    -----
    Every pair of unlike node groups in either order, every N that divides the experts, every M and number of groups
    that are powers of two or all there are. They are put in order by a sum of rates, of the zebra groups (the slower
    side, what is best moved) and of the devices left, each at the best that any stage of them reaches: no pipeline is
    faster.
    """
    rates = plain_rates(tables)
    devices = [group.devices for group in tables.scenario.cluster.groups]
    seconds = {pair: stages.device_seconds(*pair, recomputes[0]) for pair in unlike_pairs(tables.scenario)}
    rough = [_with_rate(shape, _rough_rate(shape, seconds[shape[:2]]), rates, devices) for shape in _shapes(tables)]
    rough.sort(key=lambda one: (-one.rate, one.shape))
    exact = [
        _with_rate(one.shape, _rate(stages, one.shape, recomputes[0]), rates, devices) for one in rough[:_MEASURED]
    ]
    exact.sort(key=lambda one: (-one.rate, one.shape))
    return exact[:_KEPT]


def _with_rate(shape: Shape, rate: float, rates: Sequence[float], devices: Sequence[int]) -> Carve:
    """A carve-out with the rates of its groups and of the devices left."""
    bare = Carve(shape, 0.0)
    left = sum(rates[group] * (count - bare.taken(group)) for group, count in enumerate(devices))
    return bare._replace(rate=rate * shape.groups + left)


def plain_rates(tables: Tables) -> list[float]:
    """Layers x sequences that a device of each node group passes in a second in the best plain stage [1/s]."""
    best = [0.0] * len(tables.scenario.cluster.groups)
    for problem in tables.problems:
        for option in problem.options:
            each = sum(option.forward_s) + sum(option.backward_s)
            rate = problem.unit * problem.layers / (each * option.devices)
            best[option.device_type] = max(best[option.device_type], rate)
    return best


def unlike_pairs(scenario: Scenario) -> list[tuple[int, int]]:
    """Node groups of attention and of experts, of different accelerators."""
    kinds = [group.node.accelerator.id for group in scenario.cluster.groups]
    return [pair for pair in pairs(scenario.cluster) if kinds[pair[0]] != kinds[pair[1]]]


def _shapes(tables: Tables) -> Iterator[Shape]:
    """All zebra groups that a cluster can be cut into, and how many of them; passes must divide over the devices."""
    scenario, moe = tables.scenario, tables.scenario.model.moe
    if moe is None:
        return
    units = [problem.unit for problem in tables.problems]
    for pair in unlike_pairs(scenario):
        attention, experts = (scenario.cluster.groups[index].devices for index in pair)
        for apart in divisors(moe.num_experts, experts):
            for width in _counts(attention):
                for groups in _counts(min(attention // width, experts // apart)):
                    if any(unit % width == 0 for unit in units):
                        yield Shape(*pair, width, apart, groups)


def _counts(most: int) -> list[int]:
    """Powers of two up to a number, three times those, and the number itself."""
    found = {2**power * odd for power in range(most.bit_length()) for odd in (1, 3)}
    return sorted({most, *(count for count in found if count <= most)} - {0})


def _rough_rate(shape: Shape, least: Sequence[float]) -> float:
    """The rate of a group from `ZebraStages.device_seconds`: whatever brings both sides to balance moves [1/s]."""
    counts = (shape.attention_devices, shape.expert_devices, shape.attention_devices)
    attention, experts, moved = (part / count for part, count in zip(least, counts, strict=True))
    share = max(0.0, (experts - attention) / (experts + moved)) if math.isfinite(moved) else 0.0
    return 1.0 / max(attention, (1.0 - share) * experts)


def _rate(stages: ZebraStages, shape: Shape, recompute: Recompute) -> float:
    """The rate of a group from the seconds of its blocks, exchanges included [1/s]; 0 if a rule forbids it."""
    way = ZebraWay(shape._replace(groups=1), 2, _RATES_OF, 0, recompute)
    return max(
        (way.unit / way.together / stages.layer_s(way._replace(moved=moved)) for moved in stages.balanced(way)),
        default=0.0,
    )


def problems_of(
    tables: Tables, stages: ZebraStages, carve: Carve, recomputes: Sequence[Recompute]
) -> Iterator[JointProblem]:
    """The questions of one carve-out, one for each size of a pass; units are to be numbered by the caller."""
    scenario = tables.scenario
    left = {group: part.devices - carve.taken(group) for group, part in enumerate(scenario.cluster.groups)}
    groups = tuple(group for group, count in left.items() if count)
    for plain, ways in zip(tables.problems, tables.ways, strict=True):
        zebra = list(_zebra_options(stages, carve, plain.unit, len(groups), recomputes))
        if not zebra:
            continue
        chosen = [
            (option._replace(device_type=groups.index(option.device_type)), way)
            for option, way in zip(plain.options, ways, strict=True)
            if option.devices <= left[option.device_type]
        ]
        options, meant = zip(*chosen, *zebra, strict=True)
        problem = plain._replace(
            types=(
                *(plain.types[group]._replace(devices=left[group]) for group in groups),
                DeviceType("zebra groups", carve.shape.groups),
            ),
            options=options,
            transfer_s=_transfers(plain, carve, groups),
        )
        yield JointProblem(carve, problem, meant, groups, plain.unit)


def _transfers(plain: PipelineProblem, carve: Carve, groups: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """Between types; zebra groups send and receive on their attention devices."""
    ends = [*groups, carve.shape.attention_group]
    return tuple(tuple(plain.transfer_s[front][behind] for behind in ends) for front in ends)


def _zebra_options(
    stages: ZebraStages, carve: Carve, unit: int, kind: int, recomputes: Sequence[Recompute]
) -> Iterator[tuple[StageOption, ZebraWay]]:
    """The ways to run some of the groups as a stage that takes passes of so many sequences."""
    for groups in divisors(carve.shape.groups):
        ways = list(_ways_of(stages, carve.shape._replace(groups=groups), unit, recomputes[0]))
        for way in sorted(ways, key=lambda one: (stages.guess_s(one), one.name))[:_WAYS]:
            for recompute in recomputes:
                option = stages.option(kind, way._replace(recompute=recompute))
                if option is not None:
                    yield option, way._replace(recompute=recompute)


def _ways_of(stages: ZebraStages, shape: Shape, unit: int, recompute: Recompute) -> Iterator[ZebraWay]:
    """The ways to pass so many sequences through a stage of such groups: R, micro-batches, moved experts."""
    share, rest = divmod(unit, shape.replicas)
    for together in divisors(share, _MOST_TOGETHER) if share and not rest else ():
        size = share // together
        if size & (size - 1) or (size > 1 and size * stages.scenario.training.sequence_length > MOST_TOKENS):
            continue
        way = ZebraWay(shape, together, size, 0, recompute)
        yield from (way._replace(moved=moved) for moved in stages.balanced(way))


def joint_plan(scenario: Scenario, asked: JointProblem, found: PipelinePlan) -> tuple[Plan, int]:
    """The plan that an answer means, and the sequences of a micro-batch of the stage with most ranks x R.

    Parameters
    ----------
    scenario : Scenario
    asked : JointProblem
    found : PipelinePlan

    Returns
    -------
    Plan, int

    Notes
    -----
    Zebra groups stand at the end of their node groups, plain stages at the front, the largest first.
    """
    first = _places(scenario, asked, found)
    stages = []
    for position, placed in enumerate(found.stages):
        head = position == len(found.stages) - 1
        chunk = Chunk(
            position=position,
            first_layer=placed.first_layer,
            layers=placed.layers,
            embedding=position == 0,
            head=head,
            mtp_layers=scenario.model.mtp_layers if head and scenario.training.mtp else 0,
        )
        way, (start, apart) = asked.ways[placed.option], first[position]
        stages.append(way.stage(start, apart, chunk) if isinstance(way, ZebraWay) else way.stage(start, (chunk,)))
    plan = plan_like(
        scenario,
        schedule=Schedule.ONE_F_ONE_B,
        stages=tuple(stages),
        dispatcher="alltoall",
        sharding="none" if scenario.plan.sharding == "none" else "zero1",
    )
    return plan, asked.unit // plan.widest


def _places(scenario: Scenario, asked: JointProblem, found: PipelinePlan) -> dict[int, tuple[int, int]]:
    """First device of each stage, and of its expert devices."""
    groups = scenario.cluster.groups
    free = list(accumulate((group.devices for group in groups), initial=0))[:-1]
    shape = asked.carve.shape
    ends = [start + group.devices for start, group in zip(free, groups, strict=True)]
    experts = ends[shape.expert_group] - shape.expert_devices * shape.groups
    attention = ends[shape.attention_group] - asked.carve.taken(shape.attention_group)
    places = {}
    options = [asked.problem.options[stage.option] for stage in found.stages]
    for position in sorted(range(len(options)), key=lambda place: (-options[place].devices, place)):
        way, size = asked.ways[found.stages[position].option], options[position].devices
        if isinstance(way, ZebraWay):
            places[position] = (attention, experts)
            attention += size * shape.attention_devices
            experts += size * shape.expert_devices
        else:
            group = asked.groups[options[position].device_type]
            places[position] = (free[group], 0)
            free[group] += size
    return places
