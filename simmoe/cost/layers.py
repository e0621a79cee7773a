"""Whole layers and chunks as forward operators."""

from functools import lru_cache
from typing import NamedTuple

from simmoe.cost.blocks import attention_block, dense_layer, embedding_block, head_block, mtp_projection
from simmoe.cost.moe import moe_layer
from simmoe.cost.operators import Operator
from simmoe.cost.shard import Shard
from simmoe.specs.model import LayerSpec, Model
from simmoe.specs.plan import Chunk


class LayerWork(NamedTuple):
    """The forward operators of one layer of a chunk.

    Attributes
    ----------
    layer : int
        Model layer; MTP layers follow the last transformer layer.
    before, inside, after : list of Operator
        MTP projection, the layer itself, the MTP layer's own head; the outer two are mostly empty.
    """

    layer: int
    before: list[Operator]
    inside: list[Operator]
    after: list[Operator]


class ChunkWork(NamedTuple):
    """The forward operators of a chunk: embedding, layers, head."""

    embedding: list[Operator]
    layers: list[LayerWork]
    head: list[Operator]


def layer_operators(model: Model, shard: Shard, index: int) -> list[Operator]:
    """The forward operators of one transformer layer; MTP layers (index >= num_layers) are like the last layer."""
    return list(_layer_operators(model, shard, model.layer(min(index, model.num_layers - 1))))


@lru_cache(maxsize=64)
def _layer_operators(model: Model, shard: Shard, layer: LayerSpec) -> tuple[Operator, ...]:
    """The operators of a kind of layer; most layers of a model are of one kind."""
    operators = attention_block(model, layer, shard)
    if layer.cross_attention:
        operators += attention_block(model, layer._replace(causal=False), shard, "cross_attention")
    return (*operators, *(moe_layer(model, shard) if layer.moe else dense_layer(model, shard)))


def chunk_work(chunk: Chunk, model: Model, shard: Shard) -> ChunkWork:
    """Everything a micro-batch passes in a chunk on its way forward."""
    layers = [
        LayerWork(index, [], layer_operators(model, shard, index), [])
        for index in range(chunk.first_layer, chunk.first_layer + chunk.layers)
    ]
    for number in range(chunk.mtp_layers):
        index = model.num_layers + number
        projection, head = mtp_projection(model, shard), head_block(model, shard)
        layers.append(LayerWork(index, projection, layer_operators(model, shard, index), head))
    return ChunkWork(
        embedding_block(model, shard) if chunk.embedding else [],
        layers,
        head_block(model, shard) if chunk.head else [],
    )
