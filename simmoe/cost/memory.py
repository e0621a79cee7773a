"""Peak memory of one rank: weights, gradients, optimizer, activations in flight, buffers, framework."""

from collections.abc import Sequence
from typing import NamedTuple

from simmoe.cost.backward import is_recomputed
from simmoe.cost.layers import chunk_work
from simmoe.cost.loads import group_loads, rows_in_flight
from simmoe.cost.operators import Gemm, GroupedGemm, Operator, TokenExchange, Work
from simmoe.cost.parameters import RankParameters, rank_parameters
from simmoe.cost.shard import Shard, shard_of
from simmoe.specs.plan import Chunk, Recompute, Stage
from simmoe.specs.scenario import Scenario
from simmoe.specs.workload import Training

_MASTER_AND_MOMENTS = {"adam": 12, "sgd": 4}  # fp32 master weight; Adam adds two fp32 moments
_CAST_COPIES = 2  # Transformer Engine keeps the cast weights of a step in row and in column order


class RankMemory(NamedTuple):
    """Bytes of one rank of a stage at the peak of a step [B].

    Attributes
    ----------
    weights, gradients, optimizer : float
        Parameters, their main gradients, and the rank's share of master weights and moments.
    activations : float
        What forward passes keep for the micro-batches in flight.
    working : float
        Largest transient of one layer: recomputed activations, all-to-all buffers, gradients of its largest product.
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
    What the host keeps of the optimizer is not counted. Valid for the caching allocator, without activations on the
    host; fragmentation is one factor of the software stack. Under skewed routing the rank is the worst one: activations
    are those of its layers and micro-batches in flight together, buffers those of its most loaded layer. Copies of
    experts cost weights and gradients, no optimizer state.
    """
    training, plan = scenario.training, scenario.plan
    shard = shard_of(stage, plan, training, scenario.routing)
    parameters = rank_parameters(scenario.model, stage, pad_vocabulary=True)
    held = parameters._replace(expert=parameters.expert * _with_copies(scenario, stage))
    weights, gradients = state_bytes(held, training)
    if plan.layerwise:
        whole = weights  # zero2: every layer stays whole from its forward to its backward pass
        weights, gradients = _sharded_state(scenario, stage, held)
        weights = max(weights, whole) if plan.sharding == "zero2" else weights
    activations, working = 0.0, 0.0
    for chunk, alive in zip(stage.chunks, in_flight, strict=True):
        keeping, peak = _worst_shards(scenario, stage, chunk, shard, alive)
        kept, transient = chunk_activations(scenario, chunk, keeping, stage.recompute)
        if peak is not keeping:
            _, transient = chunk_activations(scenario, chunk, peak, stage.recompute)
        activations += kept * alive
        working = max(working, transient)
    optimizer = optimizer_bytes(parameters, stage, scenario)
    software = training.software
    framework = software.framework_memory.value + software.allocator_waste.value * (activations + working)
    return RankMemory(weights, gradients, optimizer, activations, working, framework)


def _with_copies(scenario: Scenario, stage: Stage) -> float:
    """Expert weights of a rank with its copies of other ranks' experts, over those without."""
    moe, replicas = scenario.model.moe, scenario.routing.expert_replicas
    return 1.0 + replicas * stage.expert_parallel / moe.num_experts if moe is not None else 1.0


def _worst_shards(scenario: Scenario, stage: Stage, chunk: Chunk, shard: Shard, alive: int) -> tuple[Shard, Shard]:
    """The shards of the rank that keeps most, and of the one that works on most at once."""
    routing, model, training = scenario.routing, scenario.model, scenario.training
    if not routing.skewed or model.moe is None:
        return shard, shard
    count = training.global_batch_size // (training.micro_batch_size * scenario.plan.widest)
    layers = [index for index in _layers(chunk, model.num_layers) if model.layer(min(index, model.num_layers - 1)).moe]
    loads = group_loads(routing, model, shard, count)
    whole = shard._replace(capacity_factor=1.0)  # what is dropped is in the loads already
    most = float((loads.sent[layers, :, None] * loads.ranks[layers]).max(initial=0.0))
    return whole._replace(load=rows_in_flight(loads, layers, alive)), whole._replace(load=most, exchange_load=most)


def _layers(chunk: Chunk, after: int) -> list[int]:
    """Numbers of the layers of a chunk; MTP layers follow the last layer of the model."""
    plain = range(chunk.first_layer, chunk.first_layer + chunk.layers)
    return [*plain, *range(after, after + chunk.mtp_layers)]


def state_bytes(parameters: RankParameters, training: Training) -> tuple[float, float]:
    """Weights and main gradients [B]."""
    element = training.precision.activation_bytes
    copies = _CAST_COPIES * training.precision.gemm_bytes if training.precision.casts else 0.0
    if training.precision.is_fp8 and training.software.fp8_parameters:
        element = 0
    gradient = 4 if training.gradient_dtype == "fp32" else 2
    return parameters.total * (element + copies), parameters.total * gradient


def _sharded_state(scenario: Scenario, stage: Stage, parameters: RankParameters) -> tuple[float, float]:
    """Weights and gradients under FSDP: shards, two whole layers of weights and one of gradients [B]."""
    model, training = scenario.model, scenario.training
    sizes = {}
    for index in range(model.num_layers):
        kind = model.layer(index)
        if kind not in sizes:
            single = stage.model_copy(update={"chunks": (Chunk(first_layer=index, layers=1),)})
            sizes[kind] = rank_parameters(model, single)
    largest = max(sizes.values(), key=lambda size: size.total)
    share = parameters.dense / stage.shards + parameters.expert / stage.expert_data_parallel
    whole, gradient = state_bytes(largest, training)
    each, each_gradient = (part / largest.total for part in (whole, gradient))
    return share * each + 2 * whole, share * each_gradient + gradient


def optimizer_bytes(parameters: RankParameters, stage: Stage, scenario: Scenario) -> float:
    """Master weights and moments of the parameters a rank updates [B]."""
    per_parameter: float = _MASTER_AND_MOMENTS[scenario.training.optimizer]
    if scenario.training.precision.activation_bytes == 4:
        per_parameter -= 4  # the weights are their own masters
    per_parameter *= 1.0 - scenario.plan.optimizer_offload_fraction
    if scenario.plan.sharding == "none":
        return parameters.total * per_parameter
    dense = parameters.dense / stage.shards
    return (dense + parameters.expert / stage.expert_data_parallel) * per_parameter


def chunk_activations(scenario: Scenario, chunk: Chunk, shard: Shard, recompute: Recompute) -> tuple[float, float]:
    """Bytes one micro-batch keeps in a chunk, and the largest transient of one of its layers [B]."""
    work = chunk_work(chunk, scenario.model, shard)
    layer_input = shard.element_bytes * shard.local_tokens * scenario.model.hidden_size
    kept, transient = saved_bytes([*work.embedding, *work.head]), gradient_bytes(work.head, shard)
    covered = recompute.num_layers or len(work.layers)
    for position, layer in enumerate(work.layers):
        kept += saved_bytes([*layer.before, *layer.after])
        full = recompute.granularity == "full" and position < covered
        everything = saved_bytes(layer.inside)
        stays = layer_input if full else saved_bytes([o for o in layer.inside if not is_dropped(o, recompute)])
        kept += stays
        buffers = _exchange_buffers(layer.inside) + gradient_bytes(layer.inside, shard)
        transient = max(transient, everything - stays + buffers)
    return kept, transient


def is_dropped(operator: Operator, recompute: Recompute) -> bool:
    """Whether selective recomputation spares what an operator saves."""
    return recompute.granularity == "selective" and is_recomputed(operator, recompute)


def saved_bytes(operators: Sequence[Operator]) -> float:
    """What operators keep until their backward pass [B]."""
    return sum(operator.saved for operator in operators)


def gradient_bytes(operators: Sequence[Operator], shard: Shard) -> float:
    """What the backward pass of the largest product holds: gradients of its weight, output and input [B].

    The weight's is made in the dtype of the activations before it is added to the main gradients.
    """
    return shard.element_bytes * max((_elements(operator.work) for operator in operators), default=0.0)


def _elements(work: Work) -> float:
    if isinstance(work, Gemm):
        return float(work.n * work.k + work.m * (work.n + work.k))
    if isinstance(work, GroupedGemm):
        return work.groups * (work.n * work.k + work.tokens * (work.n + work.k))
    return 0.0


def _exchange_buffers(operators: Sequence[Operator]) -> float:
    """Send and receive buffer of a dispatch: each holds every copy [B]."""
    copies = [o.work for o in operators if isinstance(o.work, TokenExchange)]
    return max(((1.0 + work.load) * work.tokens * work.top_k * work.bytes_per_token for work in copies), default=0.0)
