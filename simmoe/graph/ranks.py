"""Whom a simulated rank stands for: all devices that do identical work."""

from dataclasses import dataclass
from typing import NamedTuple

from simmoe.cost.operators import Operator
from simmoe.graph.task import TaskGraph


@dataclass(frozen=True, slots=True)
class RankClass:
    """Devices that do identical work and are therefore simulated once.

    A ``Stream.rank`` is an index into the tuple of these that `build_step` returns.

    Attributes
    ----------
    stage : int
        Pipeline stage, from 0.
    accelerator : str
        Id of the accelerator type.
    count : int
        Devices of the class, at least 1.
    first_rank : int
        Global rank of one of them; it names the class in traces and results, so it is unique.
    role : str
        ``attention`` or ``experts`` in a zebra stage, else ``""``.
    """

    stage: int
    accelerator: str
    count: int
    first_rank: int
    role: str = ""

    @property
    def place(self) -> str:
        """The stage, and the role in it, as reports name them: ``0``, ``0 experts``."""
        return f"{self.stage} {self.role}".rstrip()


class StepGraph(NamedTuple):
    """A task graph and whom its ranks stand for.

    Attributes
    ----------
    graph : TaskGraph
    ranks : tuple of RankClass
        Indexed by `Stream.rank`.
    operators : tuple of tuple of Operator
        Behind each of the graph's operations; empty for zebra stages.
    """

    graph: TaskGraph
    ranks: tuple[RankClass, ...]
    operators: tuple[tuple[Operator, ...], ...] = ()
