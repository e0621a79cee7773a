"""A zebra stage seen from its two kinds of devices: their shares of a micro-batch and their weights."""

from collections.abc import Sequence
from typing import NamedTuple

from simmoe.cost.layers import LayerWork, chunk_work, layer_operators
from simmoe.cost.operators import BipartiteExchange, Operator, TokenExchange
from simmoe.cost.parameters import rank_parameters
from simmoe.cost.shard import Shard, shard_of
from simmoe.errors import InternalError
from simmoe.specs.expand import moe_layers
from simmoe.specs.model import Model
from simmoe.specs.plan import Chunk, Stage
from simmoe.specs.scenario import Scenario


class LayerPart(NamedTuple):
    """Operators of one layer that stand in one attention block.

    Attributes
    ----------
    layer : int
        Model layer, -1 for embedding and head.
    operators : tuple of Operator
    kind : str
        ``whole`` (a dense layer), ``head`` (a MoE layer up to its dispatch), ``tail`` (what follows its combine) or
        ``end`` (embedding, or norm, logits and loss).
    """

    layer: int
    operators: tuple[Operator, ...]
    kind: str


class ZebraWork(NamedTuple):
    """The forward operators of a zebra stage.

    Attributes
    ----------
    attention : tuple of tuple of LayerPart
        Block i stands before MoE layer i of the stage, the last behind the last.
    experts, moved : tuple of tuple of Operator
        For each MoE layer, what an expert device does, and what an attention device does for experts that moved there.
    exchanges : tuple of BipartiteExchange
        For each MoE layer; the combine moves as much as the dispatch.
    layers : tuple of int
        The MoE layers.
    """

    attention: tuple[tuple[LayerPart, ...], ...]
    experts: tuple[tuple[Operator, ...], ...]
    moved: tuple[tuple[Operator, ...], ...]
    exchanges: tuple[BipartiteExchange, ...]
    layers: tuple[int, ...]


def moved_of(stage: Stage, model: Model) -> tuple[int, ...]:
    """Experts that each expert device gives up, for each MoE layer of a zebra stage."""
    layers = [layer for chunk in stage.chunks for layer in moe_layers(model, chunk)]
    return (stage.experts.moved_experts if stage.experts is not None else ()) or (0,) * len(layers)


def zebra_shards(scenario: Scenario, stage: Stage, moved: int) -> tuple[Shard, Shard, Shard]:
    """The shards of attention, of an expert device, and of the moved experts on an attention device.

    Parameters
    ----------
    scenario : Scenario
    stage : Stage
        A zebra stage with M attention and N expert devices a group.
    moved : int
        Experts o that each expert device gives up.

    Returns
    -------
    tuple of Shard
        Rows of a device relative to those of an attention device's own tokens: experts (M/N)(1 - f), moved f, with
        f = o N / n of n experts.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 4.2.
    """
    apart, moe = stage.experts, scenario.model.moe
    if apart is None or moe is None:
        raise InternalError("zebra_shards: not a zebra stage")
    ratio = stage.devices / apart.devices
    share = moved * apart.group_devices / moe.num_experts
    pieces = scenario.plan.a2a_ffn_overlap_degree
    plain = shard_of(stage, scenario.plan, scenario.training, scenario.routing)
    attention = plain._replace(expert=apart.group_devices, apart=True)
    held = moe.num_experts // apart.group_devices - moved
    taken = moved * apart.devices // stage.devices
    return (
        attention,
        attention._replace(load=ratio * (1.0 - share) / pieces, held_experts=held),
        attention._replace(load=share / pieces, held_experts=taken),
    )


def zebra_work(scenario: Scenario, stage: Stage) -> ZebraWork:
    """Everything a micro-batch passes in a zebra stage on its way forward, by block.

    Parameters
    ----------
    scenario : Scenario
    stage : Stage
        With one chunk.

    Returns
    -------
    ZebraWork
        Experts and exchanges are those of one piece of `Plan.a2a_ffn_overlap_degree`.
    """
    model, (chunk,) = scenario.model, stage.chunks
    layers, moves = moe_layers(model, chunk), moved_of(stage, model)
    shards = {moved: zebra_shards(scenario, stage, moved) for moved in set(moves)}
    plain = shards[moves[0]][0]
    return ZebraWork(
        attention=_attention_blocks(chunk, model, plain),
        experts=tuple(_between(model, shards[o][1], layer) for layer, o in zip(layers, moves, strict=True)),
        moved=tuple(_between(model, shards[o][2], layer) if o else () for layer, o in zip(layers, moves, strict=True)),
        exchanges=tuple(_exchange(scenario, stage, plain, moved) for moved in moves),
        layers=layers,
    )


def _exchange(scenario: Scenario, stage: Stage, shard: Shard, moved: int) -> BipartiteExchange:
    """One piece of a layer's dispatch."""
    apart, moe = stage.experts, scenario.model.moe
    if apart is None or moe is None:
        raise InternalError("zebra exchange: not a zebra stage")
    return BipartiteExchange(
        tokens=shard.local_tokens * shard.capacity_factor / scenario.plan.a2a_ffn_overlap_degree,
        bytes_per_token=float(shard.element_bytes * scenario.model.hidden_size),
        top_k=moe.top_k,
        attention=stage.devices // apart.groups,
        experts=apart.group_devices,
        moved=moved * apart.group_devices / moe.num_experts,
    )


def _cut(operators: Sequence[Operator]) -> tuple[int, int] | None:
    """Where dispatch and combine of a layer stand; None in a dense layer."""
    places = [place for place, operator in enumerate(operators) if isinstance(operator.work, TokenExchange)]
    return (places[0], places[1]) if places else None


def _between(model: Model, shard: Shard, layer: int) -> tuple[Operator, ...]:
    """The operators between dispatch and combine."""
    operators = layer_operators(model, shard, layer)
    places = _cut(operators)
    if places is None:
        raise InternalError(f"layer {layer} has no expert exchange")
    return tuple(operators[places[0] + 1 : places[1]])


def _attention_blocks(chunk: Chunk, model: Model, shard: Shard) -> tuple[tuple[LayerPart, ...], ...]:
    """The attention blocks of a chunk, cut at the exchanges."""
    work = chunk_work(chunk, model, shard)
    blocks: list[list[LayerPart]] = [[]]
    if work.embedding:
        blocks[-1].append(LayerPart(-1, tuple(work.embedding), "end"))
    for part in work.layers:
        before, after = _halves(part)
        blocks[-1].append(before)
        if after is not None:
            blocks.append([after])
    if work.head:
        blocks[-1].append(LayerPart(-1, tuple(work.head), "end"))
    return tuple(tuple(block) for block in blocks)


def _halves(part: LayerWork) -> tuple[LayerPart, LayerPart | None]:
    """A dense layer; or a MoE layer before its dispatch and after its combine."""
    places = _cut(part.inside)
    if places is None:
        return LayerPart(part.layer, (*part.before, *part.inside, *part.after), "whole"), None
    head = (*part.before, *part.inside[: places[0]])
    tail = (*part.inside[places[1] + 1 :], *part.after)
    return LayerPart(part.layer, head, "head"), LayerPart(part.layer, tail, "tail")


def expert_size(model: Model) -> float:
    """Parameters of one routed expert of one layer."""
    layer = next(index for index in range(model.num_layers) if model.layer(index).moe)
    alone = Stage(first_device=0, devices=1, data_parallel=1, chunks=(Chunk(first_layer=layer, layers=1),))
    if model.moe is None:
        raise InternalError("expert_size: the model has no experts")
    return rank_parameters(model, alone).expert / model.moe.num_experts


def experts_held(scenario: Scenario, stage: Stage) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Experts of an attention device and of an expert device, for each MoE layer of a zebra stage."""
    apart, moe = stage.experts, scenario.model.moe
    if apart is None or moe is None:
        raise InternalError("experts_held: not a zebra stage")
    moves = moved_of(stage, scenario.model)
    each = moe.num_experts // apart.group_devices
    return tuple(o * apart.devices // stage.devices for o in moves), tuple(each - o for o in moves)
