"""What the rows of HAPMoE ask of planners and simulator."""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, Protocol

from simmoe.explore.asking import Kept

System = Literal["hapmoe", "metis", "hetermoe", "hand", "uniform", "equal", "published"]
NAMES: dict[System, str] = {
    "hapmoe": "HAPMoE",
    "metis": "Metis-style",
    "hetermoe": "HeterMoE-style",
    "uniform": "MI (best)",
    "hand": "MI (hand)",
    "equal": "equal stages",
    "published": "as published",
}
HOMOGENEOUS = ("16-1-h", "16-2-h", "16-3-h")
MIXED = ("16-1", "16-2", "16-3", "24-1", "24-2", "24-3", "32-1", "32-2", "32-3")
MODELS = ("Mixtral-S", "Mixtral-L")


class Assumptions(NamedTuple):
    """What the paper leaves open: as ``assumptions.yaml`` beside its rows has it, or otherwise.

    A rate of the database stands unless it lies outside the range that the printed shares of row 27 leave, which are
    calibration: that of 910B, 0.35, is inside; that of MI300X, 0.86, is not.

    Attributes
    ----------
    ascend_rate, mi300x_rate : float
        Rate of a layer of Mixtral-S on 910B and MI300X against H800; 0 = as the database has it [1].
    host : float
        Factor on the time in which the host launches a MoE layer [1].
    """

    ascend_rate: float = 0.0
    mi300x_rate: float = 0.74
    host: float = 1.0


AS_SHIPPED = Assumptions()


class Case(NamedTuple):
    """One run: a system on a cluster.

    Attributes
    ----------
    system : str
        ``published``: a run of ``scenarios/published/training.csv`` whose id stands in `model`.
    cluster : str
        ``16-1-h`` to ``32-3``.
    model : str
        ``Mixtral-S`` or ``Mixtral-L``.
    """

    system: System
    cluster: str
    model: str

    def __str__(self) -> str:
        return f"{NAMES[self.system]}, {self.model} on {self.cluster}"


class Measurement(NamedTuple):
    """What a run amounts to, under the best plan its system has.

    Attributes
    ----------
    tokens_per_s, mfu : float
        Of the whole cluster [tokens/s]; of the model's FLOPs [1]; NaN if no plan fits.
    plan : str
        What was chosen, in words; or why nothing was.
    simulated_s, predicted_s : float
        The step by the simulator and by the planner's model [s].
    tight_s, upper_s : float
        L' and the familiar estimate U of the plan's stages under 1F1B; NaN for systems without a pipeline model [s].
    offload : bool
        Optimizer states are kept on the host.
    search_s : float
        Process time of the planner with its simulations: of this machine, so it differs from run to run [s].
    """

    tokens_per_s: float
    mfu: float
    plan: str
    simulated_s: float = float("nan")
    predicted_s: float = float("nan")
    tight_s: float = float("nan")
    upper_s: float = float("nan")
    offload: bool = False
    search_s: float = 0.0

    @property
    def fits(self) -> bool:
        """There is a plan."""
        return self.tokens_per_s > 0

    @property
    def planner_error(self) -> float:
        """Predicted over simulated step time - 1 [1]."""
        return self.predicted_s / self.simulated_s - 1


class Bench(Protocol):
    """Answers questions; equal ones equally."""

    def measure(self, case: Case) -> Measurement:
        """The best plan of a system on a cluster."""


KeptBench = Kept[Case, Measurement]


def cases_of(questions: Iterable[Callable[[Bench], object]]) -> tuple[Case, ...]:
    """The cases that questions will ask for, each once, in order; nothing is simulated.

    Parameters
    ----------
    questions : iterable of callable
        Functions of a bench. Which cases they ask for must not depend on the answers.

    Examples
    --------
    >>> cases_of([lambda bench: bench.measure(Case("metis", "16-1", "Mixtral-S"))])
    (Case(system='metis', cluster='16-1', model='Mixtral-S'),)
    """
    same = Measurement(1.0, 0.5, "", 1.0, 1.0)
    dummy = KeptBench(lambda case: same)
    for question in questions:
        question(dummy)
    return tuple(dummy.asked)
