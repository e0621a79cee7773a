"""The outcome of one simulation, and the figures that follow from it."""

from dataclasses import dataclass

from simmoe.cost.flops import model_flops_per_token
from simmoe.cost.memory import RankMemory
from simmoe.engine.record import Timeline
from simmoe.graph.ranks import RankClass
from simmoe.report.bubbles import Bubbles, bubbles
from simmoe.report.critical_path import CriticalPath
from simmoe.report.draws import Draws
from simmoe.report.memory_timeline import MemoryTimeline, memory_timelines
from simmoe.report.metrics import StepMetrics
from simmoe.specs.hardware import Accelerator
from simmoe.specs.scenario import Metric, Published, Scenario

_HOUR = 3600.0
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that one simulation found; the figures are properties computed from it.

    Attributes
    ----------
    scenario : Scenario
    ranks : tuple of RankClass
        Whom each simulated rank stands for.
    timeline : Timeline
        Start and end of every task.
    metrics : StepMetrics
    critical_path : CriticalPath
    memory : tuple of RankMemory
        Peak of one device of each rank class.
    engine, network : str
        Which engine ran, and whether tasks that share something slow each other (``fluid``) or not (``analytic``).
    draws : Draws or None
        The step under jitter, where it was asked for.
    """

    scenario: Scenario
    ranks: tuple[RankClass, ...]
    timeline: Timeline
    metrics: StepMetrics
    critical_path: CriticalPath
    memory: tuple[RankMemory, ...]
    engine: str
    network: str
    draws: Draws | None = None

    @property
    def step_time_s(self) -> float:
        """Duration of one iteration [s]."""
        return self.metrics.step_time_s

    @property
    def bubbles(self) -> Bubbles:
        """Why the compute streams stand still; computed at every call."""
        return bubbles(self.timeline, self.ranks)

    @property
    def memory_timelines(self) -> tuple[MemoryTimeline, ...]:
        """Memory of each rank class over the step; computed at every call."""
        return memory_timelines(self.scenario, self.timeline, self.ranks, self.memory)

    @property
    def devices(self) -> int:
        """Devices of the job."""
        return sum(rank.count for rank in self.ranks)

    @property
    def tokens_per_s(self) -> float:
        """Tokens the whole job trains on in a second."""
        return self.scenario.training.tokens_per_step / self.step_time_s

    @property
    def model_flops(self) -> float:
        """FLOPs of one step in the Megatron-Core convention [FLOP]."""
        training = self.scenario.training
        per_token = model_flops_per_token(self.scenario.model, training.sequence_length, mtp=training.mtp)
        return per_token * training.tokens_per_step

    @property
    def model_tflops_per_gpu(self) -> float:
        """Model FLOPs per second and device [TFLOP/s]."""
        return self.model_flops / self.step_time_s / self.devices / 1e12

    @property
    def mfu(self) -> float:
        """Model FLOPs over the peak of all devices in the dtype of the weight GEMMs [1]."""
        dtype = self.scenario.training.precision.gemm_dtype
        peak = 0.0
        for rank in self.ranks:
            quantity = self.accelerator(rank).peak_flops.get(dtype)
            peak += rank.count * (quantity.value if quantity else 0.0)
        return self.model_flops / self.step_time_s / peak

    def accelerator(self, rank: RankClass) -> Accelerator:
        """The part that a rank class runs on."""
        return next(part for part in self.scenario.cluster.accelerators if part.id == rank.accelerator)

    @property
    def fits(self) -> bool:
        """Every device holds what it must."""
        return not self.overflows

    @property
    def overflows(self) -> tuple[tuple[RankClass, float], ...]:
        """The rank classes that need more memory than they have, and by how much [B]."""
        missing = (
            (rank, memory.total - self.accelerator(rank).memory.value)
            for rank, memory in zip(self.ranks, self.memory, strict=True)
        )
        return tuple((rank, excess) for rank, excess in missing if excess > 0)

    @property
    def cost_usd_per_million_tokens(self) -> float | None:
        """At the database's hourly prices; None if a part has none [USD]."""
        prices = [(rank.count, self.accelerator(rank).price_per_hour) for rank in self.ranks]
        if any(price is None for _, price in prices):
            return None
        hourly = sum(count * price.value for count, price in prices if price is not None)
        return hourly / _HOUR / self.tokens_per_s * _MILLION

    @property
    def energy_kwh_per_million_tokens(self) -> float:
        """Every device at its TDP for the whole step: an upper bound without host and cooling [kWh]."""
        watts = sum(rank.count * self.accelerator(rank).tdp.value for rank in self.ranks)
        return watts / 1000 / _HOUR / self.tokens_per_s * _MILLION

    def metric(self, name: Metric) -> float:
        """One of the figures that published results are given in."""
        figures: dict[Metric, float] = {
            "step_time_s": self.step_time_s,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s / self.devices,
            "model_tflops_per_gpu": self.model_tflops_per_gpu,
            "mfu": self.mfu,
        }
        return figures[name]

    def error(self, published: Published) -> float:
        """Simulated over published - 1 [1]."""
        return self.metric(published.metric) / published.value - 1
