"""Cluster + model + training + routing + plan: everything one simulation needs."""

from typing import Literal

from pydantic import Field, PrivateAttr

from simmoe.specs.base import Spec
from simmoe.specs.faults import Shrinking
from simmoe.specs.hardware import Cluster
from simmoe.specs.model import Model
from simmoe.specs.plan import Plan
from simmoe.specs.workload import Routing, Training

Metric = Literal["model_tflops_per_gpu", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu"]


class Published(Spec):
    """A measured result of this very configuration.

    Attributes
    ----------
    tolerance : float
        Largest relative error at which the simulation still counts as right [1].
    """

    metric: Metric
    value: float = Field(gt=0)
    tolerance: float = Field(gt=0, le=1)
    source: str
    note: str = ""


class Scenario(Spec):
    """One training run on one cluster, every part resolved; `plan.stages` is filled in."""

    name: str
    model: Model
    cluster: Cluster
    training: Training
    routing: Routing = Routing()
    plan: Plan
    published: tuple[Published, ...] = ()
    _shrinking: Shrinking | None = PrivateAttr(default=None)

    @property
    def shrinking(self) -> Shrinking | None:
        """What failed nodes made of the job; cluster and plan are then those of what is left."""
        return self._shrinking

    def after(self, shrinking: Shrinking) -> "Scenario":
        """The same with a record of what it was made from."""
        noted = self.model_copy()
        noted._shrinking = shrinking
        return noted
