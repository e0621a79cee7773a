"""A pass with its times looked up, as arrays ready to be stamped once per micro-batch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from simmoe.cost.operators import (
    BipartiteExchange,
    Collective,
    HostLaunch,
    HostUpdate,
    MemoryBound,
    Operator,
    TokenExchange,
)
from simmoe.graph.passes import Pass, Step
from simmoe.graph.task import FloatArray, IntArray, Operation

STREAMS = ("compute", "host", "tp", "cp", "ep", "dp", "pp_forward", "pp_backward", "dispatch", "combine")


class OperationTable:
    """Numbers the operations of a graph in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[Operation, int] = {}
        self._known: dict[tuple[Operator, str], tuple[int, str]] = {}

    def look_up(self, operator: Operator, phase: str) -> tuple[int, str]:
        """The index of an operator in a phase, and its communication group."""
        found = self._known.get((operator, phase))
        if found is None:
            operation = describe(operator, phase)
            number = self._numbers.setdefault(operation, len(self._numbers))
            found = self._known[operator, phase] = number, operation.group
        return found

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations, by index."""
        return tuple(self._numbers)

    @property
    def operators(self) -> tuple[tuple[Operator, ...], ...]:
        """What each operation was looked up for."""
        found: list[list[Operator]] = [[] for _ in self._numbers]
        for (operator, _), (number, _) in self._known.items():
            found[number].append(operator)
        return tuple(map(tuple, found))


def describe(operator: Operator, phase: str) -> Operation:
    """What the report needs to know of an operator."""
    work = operator.work
    if isinstance(work, Collective):
        return Operation(operator.name, phase, operator.category, work.group, 0.0, work.bytes)
    if isinstance(work, TokenExchange):
        return Operation(
            operator.name, phase, operator.category, "ep", 0.0, work.tokens * work.bytes_per_token * work.top_k
        )
    if isinstance(work, BipartiteExchange):
        return Operation(operator.name, phase, operator.category, "ep", 0.0, work.sent)
    if isinstance(work, MemoryBound):
        return Operation(operator.name, phase, operator.category, "", 0.0, work.bytes)
    if isinstance(work, HostLaunch | HostUpdate):
        return Operation(operator.name, phase, operator.category)
    return Operation(operator.name, phase, operator.category, "", work.flops)


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """One pass as arrays; row i is step i.

    Attributes
    ----------
    operation, stream, layer : array of int32
        `stream` indexes `STREAMS`.
    duration : array of float64
        [s]
    source, target : array of int32
        Edges between steps.
    entry : array of int32
        Steps of the device that wait for what the pass as a whole waits for; the host runs ahead of it.
    tail : tuple of int
        Steps that end the pass.
    sends : int or None
        The step that sends the result to the next stage.
    layer_entry, layer_exit, leftover
        As in `simmoe.graph.passes.Pass`.
    groups : tuple of str
        Communication group of each step, ``""`` for none.
    exchange_share : float
        Share of the multiprocessors that an expert exchange keeps from computing [1].
    """

    operation: IntArray
    stream: IntArray
    layer: IntArray
    duration: FloatArray
    source: IntArray
    target: IntArray
    entry: IntArray
    tail: tuple[int, ...]
    sends: int | None = None
    layer_entry: dict[int, tuple[int, ...]] = field(default_factory=dict)
    layer_exit: dict[int, tuple[int, ...]] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    leftover: tuple[int, ...] = ()
    exchange_share: float = 0.0

    def __len__(self) -> int:
        return len(self.operation)


def make_template(
    passed: Pass,
    send: Operator | None,
    seconds: Callable[[Operator], float],
    table: OperationTable,
    exchange_share: float = 0.0,
) -> Template:
    """Look up the times of a pass.

    Parameters
    ----------
    passed : Pass
    send : Operator or None
        The transfer to the next stage, if there is one.
    seconds : callable
        The stage's cost of an operator [s].
    table : OperationTable
        Numbers the operations.
    exchange_share : float, optional
        As in `Template`.

    Returns
    -------
    Template
    """
    steps = list(passed.steps)
    if send is not None:
        steps.append(Step(send, steps[-1].phase, -1, passed.tail))
    edges = [(before, number) for number, step in enumerate(steps) for before in step.after]
    host = [step.operator.stream == "host" for step in steps]
    entry = [i for i, step in enumerate(steps) if not host[i] and all(host[before] for before in step.after)]
    found = [table.look_up(step.operator, step.phase) for step in steps]
    return Template(
        operation=_ints(number for number, _ in found),
        stream=_ints(STREAMS.index(step.operator.stream) for step in steps),
        layer=_ints(step.layer for step in steps),
        duration=np.array([seconds(step.operator) for step in steps], dtype=np.float64),
        source=_ints(before for before, _ in edges),
        target=_ints(number for _, number in edges),
        entry=_ints(entry),
        tail=passed.tail,
        sends=len(steps) - 1 if send is not None else None,
        layer_entry=passed.layer_entry,
        layer_exit=passed.layer_exit,
        groups=tuple(group for _, group in found),
        leftover=passed.leftover,
        exchange_share=exchange_share,
    )


def _ints(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int32)
