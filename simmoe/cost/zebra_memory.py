"""Peak memory of an attention device and of an expert device of a zebra stage."""

from collections.abc import Sequence

from simmoe.cost.memory import (
    RankMemory,
    gradient_bytes,
    is_dropped,
    optimizer_bytes,
    saved_bytes,
    state_bytes,
)
from simmoe.cost.operators import Operator
from simmoe.cost.parameters import RankParameters, rank_parameters
from simmoe.cost.shard import Shard
from simmoe.cost.zebra import LayerPart, expert_size, experts_held, zebra_shards, zebra_work
from simmoe.specs.plan import Recompute, Schedule, Stage
from simmoe.specs.scenario import Scenario


def zebra_memory(scenario: Scenario, stage: Stage, passes: int) -> tuple[RankMemory, RankMemory]:
    """Peak memory of both kinds of devices of a zebra stage.

    Parameters
    ----------
    scenario : Scenario
    stage : Stage
        A zebra stage of the expanded plan.
    passes : int
        Passes, of R micro-batches each, that are alive at the peak.

    Returns
    -------
    tuple of RankMemory
        Of an attention device and of an expert device [B].

    Notes
    -----
    Weights, gradients and optimizer as in `simmoe.cost.memory.rank_memory`: attention devices hold everything but the
    experts, and those that moved there; expert devices the other experts. Each of the R micro-batches keeps its
    activations from forward to backward; under full recomputation attention blocks keep the results that came back,
    those of shared experts and the residual, experts the tokens they received. The last attention block is followed by
    its gradient at once, so of logits one micro-batch is alive; not where a schedule runs all forward passes first, for
    logits are never repeated.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 4.2 (what bounds the experts of either side).
    """
    model, moe, work = scenario.model, scenario.model.moe, zebra_work(scenario, stage)
    dense = rank_parameters(model, stage.roles[0], pad_vocabulary=True)
    taken, held = (sum(counts) * expert_size(model) for counts in experts_held(scenario, stage))
    alive = passes * stage.together
    results = moe.top_k + (moe.shared_expert_ffn_hidden_size > 0) if moe is not None else 0
    shard = zebra_shards(scenario, stage, 0)[0]
    pieces, recompute = scenario.plan.a2a_ffn_overlap_degree, stage.recompute
    turns = stage.chunks[0].head and (passes == 1 or scenario.plan.schedule is not Schedule.GPIPE)
    kept, working = _attention(work.attention, shard, recompute, model.hidden_size, results, turns=turns)
    more, peak = _experts(work.moved, [e.taken for e in work.exchanges], shard, recompute)
    own, largest = _experts(work.experts, [e.received for e in work.exchanges], shard, recompute)
    kept, own = kept + pieces * more, pieces * own
    # One micro-batch waits to be sent while another one arrives; pieces are worked on one after another.
    working = max(working, peak) + 2.0 * pieces * max(e.sent for e in work.exchanges)
    largest += 2.0 * pieces * max(e.received for e in work.exchanges)
    return (
        _memory(scenario, stage.roles[0], dense._replace(expert=taken), kept * alive, working),
        _memory(scenario, stage.roles[1], RankParameters(0.0, 0.0, 0.0, held), own * alive, largest),
    )


def _memory(
    scenario: Scenario, view: Stage, parameters: RankParameters, activations: float, working: float
) -> RankMemory:
    """All parts of a device's memory."""
    software = scenario.training.software
    weights, gradients = state_bytes(parameters, scenario.training)
    framework = software.framework_memory.value + software.allocator_waste.value * (activations + working)
    optimizer = optimizer_bytes(parameters, view, scenario)
    return RankMemory(weights, gradients, optimizer, activations, working, framework)


def _attention(
    blocks: Sequence[Sequence[LayerPart]], shard: Shard, recompute: Recompute, hidden: int, results: int, *, turns: bool
) -> tuple[float, float]:
    """What a micro-batch keeps in all attention blocks, and the largest transient of one of them [B]."""
    kept, working = 0.0, 0.0
    token = shard.element_bytes * shard.local_tokens * hidden
    for number, parts in enumerate(blocks):
        operators = [operator for part in parts for operator in part.operators]
        entering = token * (1 + (results if number else 0))
        everything, transient = saved_bytes(operators), gradient_bytes(operators, shard)
        if turns and number == len(blocks) - 1:
            kept, working = kept + entering, max(working, everything + transient)
            continue
        dropped = saved_bytes([operator for operator in operators if is_dropped(operator, recompute)])
        head = [operator for part in parts[1:] if part.kind == "end" for operator in part.operators]
        stays = entering + saved_bytes(head) if recompute.granularity == "full" else everything - dropped
        kept, working = kept + stays, max(working, everything - stays + transient)
    return kept, working


def _experts(
    layers: Sequence[Sequence[Operator]], inputs: Sequence[float], shard: Shard, recompute: Recompute
) -> tuple[float, float]:
    """What a piece of a micro-batch keeps of all layers' experts, and the largest transient of one of them [B]."""
    kept, working = 0.0, 0.0
    for operators, entering in zip(layers, inputs, strict=True):
        # Sorting by expert keeps the sorted tokens; with one expert what arrived is the input as it is.
        sorted_ = bool(operators) and operators[0].name == "moe.sort"
        everything = saved_bytes(operators) + (0.0 if sorted_ else entering)
        dropped = saved_bytes([operator for operator in operators if is_dropped(operator, recompute)])
        stays = entering if recompute.granularity == "full" else everything - dropped
        kept += stays
        working = max(working, everything - stays + gradient_bytes(operators, shard))
    return kept, working
