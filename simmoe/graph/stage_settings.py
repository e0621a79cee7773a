"""What shapes the passes of a stage, and what it sends to its neighbours."""

from simmoe.cost.operators import Collective, Operator
from simmoe.cost.shard import Shard, shard_of
from simmoe.graph.host import host_times
from simmoe.graph.passes import Settings
from simmoe.graph.pieces import pieces_of
from simmoe.specs.plan import Stage
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


def send_operator(scenario: Scenario, shard: Shard, *, backward: bool) -> Operator:
    """Activations to the next stage, or their gradients to the one before.

    The gather that follows a scattered transfer is left out: on NVLink it takes a tenth of the transfer.
    """
    scattered = scenario.training.software.scatter_gather_tensors_in_pipeline
    tokens = shard.tokens / shard.tensor if scattered else shard.local_tokens
    size = shard.element_bytes * tokens * scenario.model.hidden_size
    name, stream = ("pipeline.send_gradient", "pp_backward") if backward else ("pipeline.send", "pp_forward")
    if scenario.training.software.blocking_transfers:
        stream = "compute"
    return Operator(name, "send_recv", Collective("send_recv", "pp", size), stream)
