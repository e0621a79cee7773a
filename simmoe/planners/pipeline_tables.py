"""The question of a pipeline search, asked of a scenario: every way to run a stage, in seconds and bytes."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np

from simmoe.cost.collectives import collective_time
from simmoe.cost.groups import GroupShape
from simmoe.cost.network import network_of
from simmoe.cost.operators import Collective
from simmoe.planners.pipeline_search.problem import (
    DeviceType,
    Extra,
    PipelinePlan,
    PipelineProblem,
    PlacedStage,
    StageOption,
)
from simmoe.planners.proposal import divisors, plan_like
from simmoe.planners.stage_model import PartCost, StageBench, StageModel, layer_part
from simmoe.planners.step_model import step_end
from simmoe.planners.ways import MOST_TOKENS, Freedom, Way, recompute_ladder, ways
from simmoe.planners.zebra_shapes import short_name
from simmoe.specs.plan import Chunk, Plan, Schedule
from simmoe.specs.scenario import Scenario

_MOST_MICRO_BATCHES = 2**16
_Number = TypeVar("_Number", float, int)


class Sizes(NamedTuple):
    """Devices that stages may have, and sequences that a micro-batch of the pipeline may have; empty = all."""

    stages: tuple[int, ...] = ()
    units: tuple[int, ...] = ()


class Tables(NamedTuple):
    """What `pipeline_search` is asked, and what its answers mean.

    Attributes
    ----------
    scenario : Scenario
    problems : tuple of PipelineProblem
        One for each unit.
    ways : tuple of tuple of Way
        Of each problem, of each of its options.
    """

    scenario: Scenario
    problems: tuple[PipelineProblem, ...]
    ways: tuple[tuple[Way, ...], ...]

    def problem(self, unit: int) -> tuple[PipelineProblem, tuple[Way, ...]]:
        """The problem of a unit and its ways."""
        number = next(place for place, problem in enumerate(self.problems) if problem.unit == unit)
        return self.problems[number], self.ways[number]


def tables_of(
    scenario: Scenario, freedom: Freedom | None = None, sizes: Sizes | None = None, model: StageModel | None = None
) -> Tables:
    """Every way to run a stage of a scenario's model on its cluster.

    Parameters
    ----------
    scenario : Scenario
        Its plan says how to shard and overlap; its sizes and recomputation do not matter.
    freedom : Freedom or None
        None = everything free, all of `recompute_ladder`.
    sizes : Sizes or None
    model : StageModel or None
        To keep what is found.

    Returns
    -------
    Tables
        A device type for each node group. Data-parallel sizes are powers of two, or those times an odd number that
        divides devices and batch, so that in one plan each divides the largest; a stage takes unit / dp sequences.
    """
    freedom = freedom or Freedom(recomputes=recompute_ladder(scenario))
    builder = _Builder(scenario, freedom, sizes or Sizes(), model or StageModel(scenario))
    found = [builder.problem(odd, unit) for odd, unit in builder.units()]
    kept = [(problem, chosen) for problem, chosen in found if chosen]
    return Tables(scenario, tuple(problem for problem, _ in kept), tuple(chosen for _, chosen in kept))


class _Builder:
    """Fills the tables of one scenario."""

    def __init__(self, scenario: Scenario, freedom: Freedom, sizes: Sizes, model: StageModel) -> None:
        self.scenario, self.freedom, self.sizes, self.model = scenario, freedom, sizes, model
        groups = scenario.cluster.groups
        self.first = list(accumulate((group.devices for group in groups), initial=0))
        parts = [layer_part(scenario.model, index) for index in range(scenario.model.num_layers)]
        self.kinds = list(dict.fromkeys(parts))
        self.layers = [self.kinds.index(part) for part in parts]
        self.mtp = scenario.model.mtp_layers if scenario.training.mtp else 0
        names = [short_name(scenario.cluster, number) for number in range(len(groups))]
        named = [f"{name} {number}" if names.count(name) > 1 else name for number, name in enumerate(names)]
        self.types = tuple(DeviceType(name, group.devices) for name, group in zip(named, groups, strict=True))

    def units(self) -> Iterator[tuple[int, int]]:
        """Odd factors of data-parallel sizes, each with the units that they divide."""
        batch = self.scenario.training.global_batch_size
        odd = {size for kind in self.types for size in divisors(kind.devices) if size % 2 and batch % size == 0}
        for factor in sorted(odd):
            unit = factor
            while batch % unit == 0:
                wanted = not self.sizes.units or unit in self.sizes.units
                if wanted and batch // unit <= _MOST_MICRO_BATCHES:
                    yield factor, unit
                unit *= 2

    def problem(self, odd: int, unit: int) -> tuple[PipelineProblem, tuple[Way, ...]]:
        """The problem of a unit, with the way of each of its options."""
        found = [
            (option, way)
            for number in range(len(self.types))
            for size in self._stage_sizes(number)
            for option, way in self._options(number, size, odd, unit)
        ]
        options, chosen = tuple(option for option, _ in found), tuple(way for _, way in found)
        count = self.scenario.training.global_batch_size // unit
        moved = self._transfers(options, chosen, unit) if options else ()
        return PipelineProblem(self.types, self.scenario.model.num_layers, count, options, moved, unit), chosen

    def _stage_sizes(self, number: int) -> list[int]:
        """Devices of a stage: parts of a node, or whole nodes."""
        group = self.scenario.cluster.groups[number]
        node = group.node.accelerators
        sizes = [size for size in divisors(group.devices) if size % node == 0 or node % size == 0]
        powers = [node * 2**power for power in range(group.count.bit_length()) if node * 2**power <= group.devices]
        every = sorted({*sizes, *powers})
        return [size for size in every if not self.sizes.stages or size in self.sizes.stages]

    def _options(self, number: int, size: int, odd: int, unit: int) -> Iterator[tuple[StageOption, Way]]:
        """The options of as many devices of a node group."""
        domain = self.scenario.cluster.groups[number].domain_devices
        for alike in ways(self.scenario, size, domain, self.freedom):
            if not self._allowed(alike[0], odd, unit):
                continue
            for sharing, bench in self._useful(number, alike, unit):
                for recompute in self.freedom.recomputes:
                    way = sharing._replace(recompute=recompute)
                    option = self._option(number, way, bench.recomputing(recompute))
                    if option is not None:
                        yield option, way

    def _allowed(self, way: Way, odd: int, unit: int) -> bool:
        """Whether the data-parallel size belongs to a family and divides the unit into micro-batches of some size."""
        share, rest = divmod(way.data, odd)
        sequences = unit // way.data
        tokens = sequences * self.scenario.training.sequence_length // way.context
        return not (rest or share & (share - 1) or unit % way.data) and (sequences == 1 or tokens <= MOST_TOKENS)

    def _useful(self, number: int, alike: list[Way], unit: int) -> list[tuple[Way, StageBench]]:
        """Of ways that differ only in how they share experts, those that no other one beats in everything."""
        found = [(way, self._bench(number, way, unit)) for way in alike]
        if len(found) == 1:
            return found
        kind = next(kind for kind in self.kinds if self.scenario.model.layer(kind.first_layer).moe)
        rows = np.array([bench.experts(kind) for _, bench in found])
        better = (rows[:, None, :] <= rows[None, :, :]).all(axis=2)
        equal = better & better.T
        beaten = (better & ~equal) | (equal & np.triu(np.ones_like(equal), 1))
        return [found[place] for place in np.flatnonzero(beaten.sum(axis=0) == 0).tolist()]

    def _option(self, number: int, way: Way, bench: StageBench) -> StageOption | None:
        """A way as figures; None if not even one layer fits."""
        different = [bench.part(kind) for kind in self.kinds]
        capacity = int(self.scenario.cluster.groups[number].node.accelerator.memory.value)
        every = self._every(different)
        if min(part.held_bytes + part.kept_bytes for part in different) + every.held_bytes > capacity:
            return None
        update_s = [step_end(part, self.scenario.plan).serial_s for part in different]
        embedding = bench.part(Chunk(first_layer=0, layers=0, embedding=True))
        behind = [bench.part(Chunk(first_layer=0, layers=0, mtp_layers=1))] * self.mtp
        behind.append(bench.part(Chunk(first_layer=0, layers=0, head=True)))
        working = max(part.working_bytes for part in different)
        return StageOption(
            device_type=number,
            devices=way.devices,
            name=way.name,
            forward_s=self._by_layer([part.forward_s for part in different]),
            backward_s=self._by_layer([part.backward_s for part in different]),
            update_s=self._by_layer(update_s),
            held_bytes=self._by_layer([part.held_bytes for part in different]),
            kept_bytes=self._by_layer([part.kept_bytes for part in different]),
            capacity_bytes=capacity,
            every=every,
            first=self._extra([embedding], working),
            last=self._extra(behind, working),
        )

    def _by_layer(self, values: Sequence[_Number]) -> tuple[_Number, ...]:
        """A figure of each kind of layer, as a column over all layers."""
        return tuple([values[kind] for kind in self.layers])

    def _bench(self, number: int, way: Way, unit: int) -> StageBench:
        """A stage that is run one way, alone on the devices of its node group."""
        stage = way.stage(self.first[number], (self.kinds[0],))
        training = self.scenario.training.model_copy(update={"micro_batch_size": unit // way.data})
        plan = self.scenario.plan.model_copy(update={"stages": (stage,), "schedule": Schedule.ONE_F_ONE_B})
        made = self.scenario.model_copy(update={"plan": plan, "training": training})
        return self.model.lone_bench(made, number)

    def _every(self, parts: Sequence[PartCost]) -> Extra:
        """What any stage does and holds besides its layers."""
        ends = [step_end(part, self.scenario.plan) for part in parts]
        seen = max(end.gather_s for end in ends) + max(end.reduce_s for end in ends)
        framework = int(self.scenario.training.software.framework_memory.value)
        return Extra(update_s=seen, held_bytes=framework + max(part.working_bytes for part in parts))

    def _extra(self, parts: Sequence[PartCost], working: int) -> Extra:
        """What an end of the model adds to a stage, whose layers have a transient of their own."""
        more = max(0, max(part.working_bytes for part in parts) - working)
        return Extra(
            forward_s=sum(part.forward_s for part in parts),
            backward_s=sum(part.backward_s for part in parts),
            update_s=sum(step_end(part, self.scenario.plan).serial_s for part in parts),
            held_bytes=sum(part.held_bytes for part in parts) + more,
            kept_bytes=sum(part.kept_bytes for part in parts),
        )

    def _transfers(
        self, options: Sequence[StageOption], chosen: Sequence[Way], unit: int
    ) -> tuple[tuple[float, ...], ...]:
        """A micro-batch from a type to a type, between the widest stages of both: no boundary takes less [s]."""
        training = self.scenario.training
        whole = unit * training.sequence_length * training.precision.activation_bytes * self.scenario.model.hidden_size
        cut = self.scenario.plan.sequence_parallel or training.software.scatter_gather_tensors_in_pipeline
        least = [float("inf")] * len(self.types)
        for option, way in zip(options, chosen, strict=True):
            ranks = way.data * way.context * (way.tensor if cut else 1)
            least[option.device_type] = min(least[option.device_type], whole / ranks)
        return tuple(
            tuple(self._transfer(front, behind, max(least[front], least[behind])) for behind in range(len(least)))
            for front in range(len(least))
        )

    def _transfer(self, front: int, behind: int, size: float) -> float:
        """Seconds between two neighbours; 0 for a type that has no option."""
        if size == float("inf"):
            return 0.0
        unlike = front != behind
        near = not unlike and min(self._stage_sizes(front)) * 2 <= self.scenario.cluster.groups[front].domain_devices
        shape = GroupShape(2, 2, 1) if near else GroupShape(2, 1, 2, unlike)
        network = network_of(self.scenario.cluster, front, unlike=unlike)
        return collective_time(Collective("send_recv", "pp", size), shape, network)


def plan_of(tables: Tables, found: PipelinePlan) -> tuple[Plan, int]:
    """The plan that an answer means, with its stages listed, and its micro-batch size.

    Parameters
    ----------
    tables : Tables
    found : PipelinePlan

    Returns
    -------
    Plan, int
        Sequences of one micro-batch on a rank of the stage with most data-parallel ranks [sequences].

    Notes
    -----
    Stages of a type stand on its devices from the largest to the smallest, so that none straddles nodes needlessly.
    """
    scenario = tables.scenario
    problem, chosen = tables.problem(found.unit)
    first = _first_devices(scenario, problem, found.stages)
    mtp = scenario.model.mtp_layers if scenario.training.mtp else 0
    stages = []
    for position, placed in enumerate(found.stages):
        head = position == len(found.stages) - 1
        chunk = Chunk(
            position=position,
            first_layer=placed.first_layer,
            layers=placed.layers,
            embedding=position == 0,
            head=head,
            mtp_layers=mtp if head else 0,
        )
        stages.append(chosen[placed.option].stage(first[position], (chunk,)))
    widest = max(stage.data_parallel for stage in stages)
    return plan_like(scenario, schedule=Schedule.ONE_F_ONE_B, stages=tuple(stages)), found.unit // widest


def _first_devices(scenario: Scenario, problem: PipelineProblem, stages: Sequence[PlacedStage]) -> dict[int, int]:
    """The first device of each stage."""
    free = list(accumulate((group.devices for group in scenario.cluster.groups), initial=0))
    options = [problem.options[stage.option] for stage in stages]
    found = {}
    for position in sorted(range(len(stages)), key=lambda place: (-options[place].devices, place)):
        kind = options[position].device_type
        found[position] = free[kind]
        free[kind] += options[position].devices
    return found
