"""Peak memory of one rank: weights, gradients, optimizer, activations in flight, buffers, framework."""

from collections.abc import Sequence
from typing import NamedTuple

from simmoe.cost.backward import is_recomputed
from simmoe.cost.layers import chunk_work
from simmoe.cost.operators import Operator, TokenExchange
from simmoe.cost.parameters import RankParameters, rank_parameters
from simmoe.cost.shard import Shard, shard_of
from simmoe.specs.plan import Chunk, Recompute, Stage
from simmoe.specs.scenario import Scenario
from simmoe.specs.workload import Precision, Training

_MASTER_AND_MOMENTS = {"adam": 12, "sgd": 4}  # fp32 master weight; Adam adds two fp32 moments
_FP8_COPIES = 2  # Transformer Engine keeps the fp8 weights of a step in row and in column order


class RankMemory(NamedTuple):
    """Bytes of one rank of a stage at the peak of a step [B].

    Attributes
    ----------
    weights, gradients, optimizer : float
        Parameters, their main gradients, and the rank's share of master weights and moments.
    activations : float
        What forward passes keep for the micro-batches in flight.
    working : float
        Largest transient of one layer: recomputed activations and all-to-all buffers.
    framework : float
        Context, libraries, communicators, and what the allocator loses to fragmentation.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    working: float
    framework: float

    @property
    def total(self) -> float:
        """Sum of all parts [B]."""
        return float(sum(self))


def rank_memory(scenario: Scenario, stage: Stage, in_flight: Sequence[int]) -> RankMemory:
    """Peak memory of a rank.

    Parameters
    ----------
    scenario : Scenario
    stage : Stage
        A stage of the expanded plan.
    in_flight : sequence of int
        Micro-batches alive at the peak, for each chunk of the stage.

    Returns
    -------
    RankMemory

    Notes
    -----
    16-bit weights 2 B, main gradients 4 B (or 2), master weight and Adam moments 12 B, the last divided by the ranks
    that share the distributed optimizer (dp x cp for dense, edp for expert parameters; Rajbhandari et al. 2020,
    arXiv 1910.02054, section 3.1). Activations are the sum of `Operator.saved` over the operators that are not
    recomputed; full recomputation keeps the input of each layer (Korthikanti et al. 2022, arXiv 2205.05198, table 2).
    Valid for the caching allocator without offloading; fragmentation is one factor of the software stack.
    """
    training, plan = scenario.training, scenario.plan
    shard = shard_of(stage, plan, training, scenario.routing)
    parameters = rank_parameters(scenario.model, stage, pad_vocabulary=True)
    weights, gradients = _state_bytes(parameters, training)
    activations, working = 0.0, 0.0
    for chunk, alive in zip(stage.chunks, in_flight, strict=True):
        kept, transient = chunk_activations(scenario, chunk, shard, stage.recompute)
        activations += kept * alive
        working = max(working, transient)
    optimizer = _optimizer_bytes(parameters, stage, scenario)
    software = training.software
    framework = software.framework_memory.value + software.allocator_waste.value * (activations + working)
    return RankMemory(weights, gradients, optimizer, activations, working, framework)


def _state_bytes(parameters: RankParameters, training: Training) -> tuple[float, float]:
    """Weights and main gradients [B]."""
    element = 4 if training.precision is Precision.FP32 else 2
    copies = _FP8_COPIES if training.precision.is_fp8 else 0
    gradient = 4 if training.gradient_dtype == "fp32" else 2
    return parameters.total * (element + copies), parameters.total * gradient


def _optimizer_bytes(parameters: RankParameters, stage: Stage, scenario: Scenario) -> float:
    """Master weights and moments of the parameters a rank updates [B]."""
    per_parameter = _MASTER_AND_MOMENTS[scenario.training.optimizer]
    if scenario.training.precision is Precision.FP32:
        per_parameter -= 4  # the weights are their own masters
    if scenario.plan.sharding == "none":
        return parameters.total * per_parameter
    dense = parameters.dense / (stage.data_parallel * stage.context_parallel)
    return (dense + parameters.expert / stage.expert_data_parallel) * per_parameter


def chunk_activations(scenario: Scenario, chunk: Chunk, shard: Shard, recompute: Recompute) -> tuple[float, float]:
    """Bytes one micro-batch keeps in a chunk, and the largest transient of one of its layers [B]."""
    work = chunk_work(chunk, scenario.model, shard)
    layer_input = shard.element_bytes * shard.local_tokens * scenario.model.hidden_size
    kept, transient = _saved([*work.embedding, *work.head]), 0.0
    covered = recompute.num_layers or len(work.layers)
    for position, layer in enumerate(work.layers):
        kept += _saved([*layer.before, *layer.after])
        full = recompute.granularity == "full" and position < covered
        everything = _saved(layer.inside)
        stays = layer_input if full else _saved([o for o in layer.inside if not _drops(o, recompute)])
        kept += stays
        transient = max(transient, everything - stays + _exchange_buffers(layer.inside))
    return kept, transient


def _drops(operator: Operator, recompute: Recompute) -> bool:
    return recompute.granularity == "selective" and is_recomputed(operator, recompute)


def _saved(operators: Sequence[Operator]) -> float:
    return sum(operator.saved for operator in operators)


def _exchange_buffers(operators: Sequence[Operator]) -> float:
    """Send and receive buffer of a dispatch: each holds every copy [B]."""
    copies = [o.work for o in operators if isinstance(o.work, TokenExchange)]
    return max((2.0 * work.tokens * work.top_k * work.bytes_per_token for work in copies), default=0.0)
