"""What the rows of HeterMoE ask of the simulator, and a bench that answers each question once."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

from simmoe.explore.asking import Kept

K = 1024  # "4K" tokens are 4,096

System = Literal["zebra", "ep", "distep", "ep-ideal", "hetero-pp"]
Part = Literal["attention", "experts"]


class Assumptions(NamedTuple):
    """What the paper leaves open: as ``assumptions.yaml`` beside its rows and the database have it, or otherwise.

    Attributes
    ----------
    most_micro_batches : int
        Largest R that planners may choose.
    most_pieces : int
        Most pieces that EP and DistEP cut an exchange into, so that it runs beneath the experts' products.
    network : float
        Factor on the bandwidth between hosts: all-to-all is exposed the less, the larger it is [1].
    narrow : float
        Factor on h0, the width at which matrix products of the software stack take twice as long [1].
    """

    most_micro_batches: int = 4
    most_pieces: int = 1
    network: float = 1.0
    narrow: float = 1.0


AS_SHIPPED = Assumptions()


class Case(NamedTuple):
    """One run: a system of the paper on a cluster.

    Attributes
    ----------
    system : str
        ``zebra`` (HeterMoE), ``ep``, ``distep``, ``ep-ideal`` or ``hetero-pp``.
    cluster : str
        ``O1`` to ``C2``, or devices in order: ``4xA40+5xV100``.
    model : str
        ``W1`` to ``D3``; ``D1/8`` with 8 experts in place of its own.
    length : int
        Tokens of a sequence.
    asymmetric : bool
        Zebra may move experts to attention devices.
    """

    system: System
    cluster: str
    model: str
    length: int
    asymmetric: bool = True

    def __str__(self) -> str:
        apart = "" if self.asymmetric else ", no experts moved"
        return f"{self.system} {self.model}@{self.cluster} {self.length / K:g}K{apart}"


class Measurement(NamedTuple):
    """What a run amounts to, under the best plan its system has.

    Attributes
    ----------
    tokens_per_s : float
        Of the whole cluster; NaN if no plan fits.
    fits : bool
    utilization : mapping of str to float
        Accelerator -> share of the step in which its devices compute; waiting, also for the host, does not count [1].
    plan : str
        What was chosen, in words; or why nothing was.
    memory : float
        What the fullest device needs by the estimate, of what it has [1]; more than 1 where the paper shows that it
        ran all the same.
    """

    tokens_per_s: float
    fits: bool
    utilization: Mapping[str, float]
    plan: str = ""
    memory: float = 0.0


class Bench(Protocol):
    """Answers questions; equal ones equally."""

    def measure(self, case: Case) -> Measurement:
        """The best plan of a system on a cluster."""

    def module_s(self, part: Part, accelerator: str, length: int) -> float:
        """Forward and backward of one attention or expert module of Mixtral-8x7B for one sequence [s]."""

    def balance(self, cluster: str, model: str, length: int) -> float:
        """Time of an attention block over that of the experts behind it, no experts moved, no head: T_A/T_E [1]."""


class KeptBench(Kept[Case, Measurement]):
    """A bench that runs each case once and remembers who was asked for.

    Parameters
    ----------
    run : callable
        Case -> Measurement.
    module_s, balance : callable
        As in `Bench`.
    known : mapping of Case to Measurement
        Cases that need not be run.
    """

    def __init__(
        self,
        run: Callable[[Case], Measurement],
        module_s: Callable[[Part, str, int], float],
        balance: Callable[[str, str, int], float],
        known: Mapping[Case, Measurement] | None = None,
    ) -> None:
        super().__init__(run, known)
        self._module_s, self._balance = module_s, balance
        self._other: dict[tuple[str, str, int], float] = {}

    def module_s(self, part: Part, accelerator: str, length: int) -> float:
        """As in `Bench`, kept."""
        return self._keep((part, accelerator, length), lambda: self._module_s(part, accelerator, length))

    def balance(self, cluster: str, model: str, length: int) -> float:
        """As in `Bench`, kept."""
        return self._keep((cluster, model, length), lambda: self._balance(cluster, model, length))

    def _keep(self, key: tuple[str, str, int], answer: Callable[[], float]) -> float:
        if key not in self._other:
            self._other[key] = answer()
        return self._other[key]


class _Halves(dict[str, float]):
    """A utilization of one half, whatever the accelerator."""

    def __missing__(self, key: str) -> float:
        return 0.5


def cases_of(questions: Iterable[Callable[[Bench], object]]) -> tuple[Case, ...]:
    """The cases that questions will ask for, each once, in order; nothing is simulated.

    Parameters
    ----------
    questions : iterable of callable
        Functions of a bench. Which cases they ask for must not depend on the answers.

    Examples
    --------
    >>> cases_of([lambda bench: bench.measure(Case("ep", "O1", "D1", 4096))])
    (Case(system='ep', cluster='O1', model='D1', length=4096, asymmetric=True),)
    """
    same = Measurement(1.0, True, _Halves())
    dummy = KeptBench(lambda case: same, lambda part, accelerator, length: 1.0, lambda cluster, model, length: 1.0)
    for question in questions:
        question(dummy)
    return tuple(dummy.asked)
