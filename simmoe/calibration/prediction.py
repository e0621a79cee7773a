"""What a scenario says of everything that was measured, as one vector."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from simmoe.calibration.bench_rows import CollectiveRow, ProductRow, collective_seconds, product_seconds
from simmoe.calibration.observations import FloatArray, Observation, Unit, relative_errors
from simmoe.cost.model import StageCost
from simmoe.cost.operators import HostLaunch, Operator
from simmoe.errors import SpecError
from simmoe.graph.build import build_step
from simmoe.graph.ranks import RankClass, StepGraph
from simmoe.specs.scenario import Scenario

BENCH_ERROR = 0.01
"""Relative standard error of a row of a benchmark, which repeats what it measures [1]."""
_FAR_S = 1e9
_MOST_STEPS = 64


class Evidence(NamedTuple):
    """All that was measured.

    Attributes
    ----------
    observed : tuple of Observation
        In traces.
    products : tuple of ProductRow
        Single matrix products.
    collectives : tuple of CollectiveRow
        Of nccl-tests.
    """

    observed: tuple[Observation, ...] = ()
    products: tuple[ProductRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()

    @property
    def seconds(self) -> FloatArray:
        """What was measured [s]."""
        return np.array([one.seconds for part in self for one in part])

    @property
    def errors(self) -> FloatArray:
        """Relative standard error of each [1]; of benchmarks `BENCH_ERROR`."""
        bench = np.full(len(self.products) + len(self.collectives), BENCH_ERROR)
        return np.concatenate([relative_errors(self.observed), bench]) if self.observed else bench

    @property
    def categories(self) -> tuple[str, ...]:
        """The class of each."""
        return (
            *(one.category for one in self.observed),
            *("gemm" for _ in self.products),
            *(row.collective for row in self.collectives),
        )


class _Priced(NamedTuple):
    """A unit as its cost function sees it: an operator on a rank class, and how much longer the task takes."""

    rank: RankClass
    operator: Operator
    factor: float


class Predictor:
    """Durations of what was measured, by a scenario.

    Parameters
    ----------
    scenario : Scenario
    evidence : Evidence

    Notes
    -----
    Kernels and collectives are priced one by one, by the cost functions that the step is built with; a step is built
    only for what depends on more than an operator: host launches, and every task under skewed routing, faults or zebra
    parallelism. It has as few micro-batches as hold all the tasks that are asked for.
    """

    def __init__(self, scenario: Scenario, evidence: Evidence) -> None:
        self._evidence = evidence
        self._units = list(dict.fromkeys(unit for one in evidence.observed for unit, _ in one.units))
        place = {unit: number for number, unit in enumerate(self._units)}
        self._counts = np.zeros((len(evidence.observed), len(self._units)))
        for row, one in enumerate(evidence.observed):
            for unit, count in one.units:
                self._counts[row, place[unit]] = count
        if self._units:
            self._batch, step, self._tasks = _smallest(scenario, self._units)
            self._size = len(step.graph)
            self._priced = _priced(scenario, step, self._units)
            pairs = zip(self._priced, self._units, strict=True)
            self._host_alone = all(unit.operation.category == "host" for one, unit in pairs if one is None)
        self._built: dict[Hashable, FloatArray | None] = {}

    def seconds(self, scenario: Scenario) -> FloatArray:
        """The duration of each [s].

        Parameters
        ----------
        scenario : Scenario
            The one of the constructor with other numbers; under numbers that cannot be, all durations are absurd.
        """
        parts = [product_seconds(self._evidence.products, scenario)]
        parts.append(collective_seconds(self._evidence.collectives, scenario))
        if not self._units:
            return np.concatenate(parts)
        durations = self._durations(scenario)
        if durations is None:
            return np.full(len(self._counts) + sum(map(len, parts)), _FAR_S)
        return np.concatenate([self._counts @ durations, *parts])

    def _durations(self, scenario: Scenario) -> FloatArray | None:
        """Of each unit."""
        own = [number for number, one in enumerate(self._priced) if one is None]
        found = np.zeros(len(self._units))
        if own:
            step = self._step(scenario)
            if step is None:
                return None
            found[own] = step[own]
        costs: dict[RankClass, StageCost] = {}
        for number, one in enumerate(self._priced):
            if one is not None:
                cost = costs.get(one.rank)
                if cost is None:
                    cost = costs[one.rank] = StageCost(scenario, one.rank.stage, _group(scenario, one.rank))
                found[number] = one.factor * cost.seconds(one.operator)
        return found

    def _step(self, scenario: Scenario) -> FloatArray | None:
        """Of each unit, by a step that is built; None if it has other tasks, as with a host faster than its parts."""
        key = scenario.training.software if self._host_alone else scenario
        if key not in self._built:
            if len(self._built) >= _MOST_STEPS:
                self._built.clear()
            graph = build_step(_with_batch(scenario, self._batch)).graph
            self._built[key] = graph.duration[self._tasks] if len(graph) == self._size else None
        return self._built[key]


def _group(scenario: Scenario, rank: RankClass) -> int:
    """The node group of a rank class."""
    ends = np.cumsum([group.devices for group in scenario.cluster.groups])
    return int(np.searchsorted(ends, rank.first_rank, side="right"))


def _priced(scenario: Scenario, step: StepGraph, units: Sequence[Unit]) -> list[_Priced | None]:
    """Each unit as its cost function sees it; None for what depends on more."""
    if scenario.routing.skewed or scenario.cluster.faults or not step.operators:
        return [None for _ in units]
    numbers = {operation: number for number, operation in enumerate(step.graph.operations)}
    costs: dict[RankClass, StageCost] = {}
    return [_priced_unit(scenario, step, numbers[unit.operation], unit, costs) for unit in units]


def _priced_unit(
    scenario: Scenario, step: StepGraph, number: int, unit: Unit, costs: dict[RankClass, StageCost]
) -> _Priced | None:
    rank = step.ranks[unit.rank]
    if rank not in costs:
        costs[rank] = StageCost(scenario, rank.stage, _group(scenario, rank))
    found = [
        _Priced(rank, operator, unit.seconds / seconds)
        for operator in step.operators[number]
        if not isinstance(operator.work, HostLaunch) and (seconds := costs[rank].seconds(operator)) > 0
    ]
    equal = [one._replace(factor=1.0) for one in found if abs(one.factor - 1) < 1e-6]
    if equal:
        return equal[0]
    return found[0] if len(found) == 1 else None


def _smallest(scenario: Scenario, units: Sequence[Unit]) -> tuple[int, StepGraph, list[int]]:
    """The smallest batch whose step holds every unit, that step, and a task of each unit."""
    whole = scenario.training.global_batch_size
    least = max(stage.data_parallel for stage in scenario.plan.stages) * scenario.training.micro_batch_size
    sizes = [least * factor for factor in (2, 4, 8, 16, 32, 64)]
    for batch in [*(size for size in sizes if size < whole and whole % size == 0), whole]:
        try:
            step = build_step(_with_batch(scenario, batch))
        except SpecError:  # a schedule that needs more micro-batches
            continue
        tasks = _tasks_of(step, units)
        if tasks is not None:
            return batch, step, tasks
    raise AssertionError("units of a step are in that step")


def _with_batch(scenario: Scenario, batch: int) -> Scenario:
    if batch == scenario.training.global_batch_size:
        return scenario
    training = scenario.training.model_copy(update={"global_batch_size": batch})
    return scenario.model_copy(update={"training": training})


def _tasks_of(step: StepGraph, units: Sequence[Unit]) -> list[int] | None:
    """A task of each unit; None if some unit has none."""
    graph = step.graph
    rank = np.array([stream.rank for stream in graph.streams])[graph.stream]
    keys = np.stack([rank.astype(np.float64), graph.operation.astype(np.float64), graph.duration], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    known = {
        Unit(int(rank[task]), graph.operations[graph.operation[task]], float(f"{graph.duration[task]:.9g}")): int(task)
        for task in first
    }
    found = [known.get(unit) for unit in units]
    return None if None in found else [task for task in found if task is not None]
