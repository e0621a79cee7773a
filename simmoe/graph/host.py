"""Host time to launch a layer, in the parts that a partial CUDA graph can replay."""

from typing import NamedTuple

from simmoe.graph.pieces import pieces_of
from simmoe.specs.plan import Stage
from simmoe.specs.scenario import Scenario

# One replay of a captured graph with its Python wrapper (``make_graphed_callables``). Kind: guess.
GRAPH_LAUNCH = 20e-6


class HostTimes(NamedTuple):
    """Host time to launch the parts of a layer pass [s]; zero where one graph replays the whole iteration.

    Attributes
    ----------
    attention : float
        The attention half of a layer.
    mlp : float
        The MLP half of a dense layer.
    router : float
        Norm, router and what prepares the dispatch of a MoE layer.
    experts : float
        The rest of a MoE layer: dispatch, experts, combine.
    sync : bool
        The host reads token counts back before it launches the experts.
    """

    attention: float = 0.0
    mlp: float = 0.0
    router: float = 0.0
    experts: float = 0.0
    sync: bool = False


def host_times(scenario: Scenario, stage: Stage) -> HostTimes:
    """What the host of a rank needs for each part of a layer pass.

    Parameters
    ----------
    scenario : Scenario
        Its software stack gives the times, its plan the scope of CUDA graphs and the overlap.
    stage : Stage
        Of an expanded plan; without expert parallelism the host needs no token counts.

    Returns
    -------
    HostTimes

    Notes
    -----
    An fp8 recipe adds half of its time to either half of a dense layer: each has two of the four weight GEMMs. Experts
    need more, for they are cast one by one. The overlap of expert exchanges issues a layer as scheduled pieces, each
    with a backward call, events and stream waits of its own, which multiplies what is launched. Exchanges cut into
    pieces launch dispatch, experts and combine once for each piece. A captured part costs one replay; a graph of the
    full iteration nothing. Capacity-padded tokens have static counts, so that the host need not wait for them.

    References
    ----------
    Megatron-Core 0.16, user guide "CUDA graphs" (scopes); ``transformer_layer.py``: ``moe_router`` and
    ``moe_preprocess`` are captured with the attention before them.
    """
    software, plan = scenario.training.software, scenario.plan
    scope = set(plan.cuda_graph_scope)
    if "full_iteration" in scope:
        return HostTimes()
    casts = scenario.training.precision.casts
    cast = software.host_fp8_layer.value / 2 if casts else 0.0
    expert_cast = software.host_fp8_experts.value if casts else 0.0
    slower = software.host_overlap_factor.value if plan.overlap_moe_expert_parallel_comm else 1.0
    attention = software.host_attention.value
    router, prepare = software.host_router.value, software.host_preprocess.value
    experts = max(0.0, software.host_moe_layer.value - attention - router - prepare)
    static = {"moe_router": router, "moe_preprocess": prepare}
    routing = sum(GRAPH_LAUNCH if scope & {name, "moe"} else slower * seconds for name, seconds in static.items())
    return HostTimes(
        attention=GRAPH_LAUNCH if "attn" in scope else slower * (attention + cast),
        mlp=GRAPH_LAUNCH if "mlp" in scope else max(0.0, software.host_dense_layer.value - attention) + cast,
        router=routing,
        experts=GRAPH_LAUNCH if "moe" in scope else slower * pieces_of(plan, stage) * (experts + expert_cast),
        sync=software.host_sync and not scenario.routing.pad_to_capacity and stage.expert_parallel > 1,
    )
