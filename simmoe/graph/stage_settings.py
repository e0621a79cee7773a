"""What shapes the passes of a stage, and what it sends to its neighbours."""

from simmoe.cost.operators import Collective, Operator
from simmoe.cost.shard import shard_of
from simmoe.graph.host import host_times
from simmoe.graph.passes import Settings
from simmoe.graph.pieces import pieces_of
from simmoe.specs.plan import Chunk, Plan, Stage
from simmoe.specs.scenario import Scenario


def stage_settings(scenario: Scenario, stage: Stage) -> Settings:
    """What shapes the passes of a stage."""
    training, plan = scenario.training, scenario.plan
    return Settings(
        model=scenario.model,
        shard=shard_of(stage, plan, training, scenario.routing),
        recompute=stage.recompute,
        host=host_times(scenario, stage),
        tp_overlap=plan.tp_comm_overlap and stage.tensor_parallel > 1,
        delayed_wgrad=plan.overlap_dispatch_backward_with_experts_wgrad and stage.expert_parallel > 1,
        pieces=pieces_of(plan, stage),
    )


def send_operator(scenario: Scenario, number: int, chunk: Chunk, *, backward: bool) -> Operator | None:
    """Activations to the next stage, or their gradients to the one before; None where no other stage wants them.

    Parameters
    ----------
    scenario : Scenario
    number : int
        Of the stage that sends.
    chunk : Chunk
        One of its chunks.
    backward : bool

    Returns
    -------
    Operator or None

    Notes
    -----
    Between stages of unequal data- or context-parallel sizes a rank of the narrower one sends to, or receives from,
    several of the other: its port carries more, and sets the time. Of a zebra stage each of the R micro-batches of a
    pass is sent on its own. The gather that follows a scattered transfer is left out: on NVLink it takes a tenth of the
    transfer.
    """
    beyond = _neighbour(scenario.plan, number, chunk, backward=backward)
    if beyond is None:
        return None
    here = scenario.plan.stages[number]
    size = max(_sent_bytes(scenario, stage) for stage in (here, beyond)) / here.together
    name, stream = ("pipeline.send_gradient", "pp_backward") if backward else ("pipeline.send", "pp_forward")
    if scenario.training.software.blocking_transfers:
        stream = "compute"
    return Operator(name, "send_recv", Collective("send_recv", "pp", size), stream)


def _neighbour(plan: Plan, number: int, chunk: Chunk, *, backward: bool) -> Stage | None:
    """The other stage on which a micro-batch goes on after a chunk."""
    if chunk.embedding if backward else chunk.head:
        return None
    wanted = (chunk.replica, chunk.position + (-1 if backward else 1))
    for other, stage in enumerate(plan.stages):
        if any((one.replica, one.position) == wanted for one in stage.chunks):
            return None if other == number else stage
    return None


def _sent_bytes(scenario: Scenario, stage: Stage) -> float:
    """A pass on a rank of a stage, as it crosses the boundary of the stage [B]."""
    shard = shard_of(stage, scenario.plan, scenario.training, scenario.routing)
    scattered = scenario.training.software.scatter_gather_tensors_in_pipeline
    tokens = shard.tokens / shard.tensor if scattered else shard.local_tokens
    return shard.element_bytes * tokens * stage.together * scenario.model.hidden_size
