"""How the ranks of an expert-parallel group are loaded in every layer and micro-batch, and which of them is busiest."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.groups import GroupShape
from simmoe.cost.placement import place_experts
from simmoe.cost.routing import capped_shares, drawn_weights, exchange_factor, kept_shares
from simmoe.cost.shard import Shard
from simmoe.errors import InternalError
from simmoe.specs.model import Model, MoE
from simmoe.specs.workload import Routing

FloatArray = NDArray[np.float64]


class Loads(NamedTuple):
    """How the ranks of an expert-parallel group are loaded in a step.

    Attributes
    ----------
    sent : array, shape (layers, micro-batches)
        Token copies that are not dropped, over all [1].
    ranks : array, shape (layers, micro-batches, ranks)
        Of the copies sent, what each rank receives, relative to the mean.
    slots : array, shape (layers, micro-batches, ranks, experts of a rank)
        The same for each expert that a rank holds; they sum to `ranks`.
    """

    sent: FloatArray
    ranks: FloatArray
    slots: FloatArray


@lru_cache(maxsize=4)  # each may be tens of megabytes
def draw_loads(routing: Routing, moe: MoE, ranks: int, tokens: float, layers: int, micro_batches: int) -> Loads:
    """The loads of every layer and micro-batch.

    Parameters
    ----------
    routing, moe : Routing, MoE
    ranks : int
        Expert-parallel size.
    tokens : float
        Tokens of the group in a micro-batch.
    layers, micro_batches : int
        How many.

    Returns
    -------
    Loads
        Arrays that must not be changed.

    Notes
    -----
    Copies of experts are placed by a layer's mean over the micro-batches of the step, as a balancer that looks back
    does: it evens out what stays and cannot follow what changes from one micro-batch to the next.

    Examples
    --------
    >>> moe = MoE(num_experts=8, top_k=2, moe_ffn_hidden_size=1)
    >>> loads = draw_loads(Routing(kind="zipf", exponent=1.0), moe, 4, 4096.0, layers=2, micro_batches=3)
    >>> loads.ranks.shape, bool(np.allclose(loads.ranks.mean(axis=-1), 1)), float(loads.sent.min())
    ((2, 3, 4), True, 1.0)
    """
    sent, replicas = np.ones((layers, micro_batches)), routing.expert_replicas
    slots = np.empty((layers, micro_batches, ranks, moe.num_experts // ranks + replicas))
    draws = 1 if routing.resample == "step" else micro_batches
    for layer in range(layers):
        weights = np.stack([drawn_weights(routing, moe, tokens, layer, batch) for batch in range(draws)])
        shares = capped_shares(weights, 1.0 / moe.top_k)
        kept = kept_shares(shares, routing.capacity_factor)
        total = kept.sum(axis=-1)
        if routing.capacity_factor is not None:
            sent[layer] = total
        expert, part = hosted(shares.mean(axis=0), ranks, replicas)
        slots[layer] = kept[:, expert] * part * (ranks / total)[:, None, None]
    found = Loads(sent, slots.sum(axis=-1), slots)
    for array in found:
        array.setflags(write=False)
    return found


def hosted(shares: FloatArray, ranks: int, replicas: int) -> tuple[NDArray[np.int64], FloatArray]:
    """Which expert stands in each slot of each rank, and what part of its tokens comes there; shape (ranks, slots).

    Examples
    --------
    >>> expert, part = hosted(np.array([0.4, 0.2, 0.2, 0.2]), 2, 0)
    >>> expert.tolist(), part.tolist()
    ([[0, 1], [2, 3]], [[1.0, 1.0], [1.0, 1.0]])
    >>> expert, part = hosted(np.array([0.4, 0.2, 0.2, 0.2]), 2, 1)  # experts 0 and 1 stand on both ranks
    >>> expert.tolist(), part.tolist()
    ([[2, 0, 1], [3, 0, 1]], [[1.0, 0.5, 0.5], [1.0, 0.5, 0.5]])
    """
    size = len(shares) // ranks + replicas
    if not replicas:
        return np.arange(len(shares)).reshape(ranks, size), np.ones((ranks, size))
    placement = place_experts(shares, ranks, replicas)
    expert = np.argsort(-placement, axis=1, kind="stable")[:, :size]
    return expert, np.take_along_axis(placement, expert, axis=1)


def group_loads(routing: Routing, model: Model, shard: Shard, micro_batches: int) -> Loads:
    """The loads of the expert-parallel group that a rank belongs to; layers without experts have some, too.

    Parameters
    ----------
    routing, model : Routing, Model
    shard : Shard
        Gives the group and its tokens.
    micro_batches : int
        Of a step.

    Notes
    -----
    One group stands for all: replicas of a stage draw alike. They meet at the end of the step only, where the slowest
    sets the pace, so its time is a little under the truth.

    Raises
    ------
    InternalError
        If the model has no experts.
    """
    moe = model.moe
    if moe is None:
        raise InternalError("group_loads: the model has no experts")
    tokens = shard.local_tokens * shard.expert * shard.expert_tensor
    return draw_loads(routing, moe, shard.expert, tokens, model.num_layers + model.mtp_layers, micro_batches)


class Busiest(NamedTuple):
    """What sets the pace of exchanges; arrays of shape (layers, micro-batches) [1].

    Attributes
    ----------
    rank, domain : array
        What the busiest rank and scale-up domain move in a dispatch or combine, over the balanced.
    """

    rank: FloatArray
    domain: FloatArray


def busiest_ports(loads: Loads, shape: GroupShape) -> Busiest:
    """The busiest rank and domain of the exchanges of each layer and micro-batch.

    Parameters
    ----------
    loads : Loads
    shape : GroupShape
        Of the expert-parallel group: its ranks fill one scale-up domain after another.

    Notes
    -----
    Where domains hold unequal numbers of ranks the busiest rank stands for its domain: an upper bound.

    Examples
    --------
    Both busy ranks are in the first of two domains.

    >>> ranks = np.array([[[1.5, 1.5, 0.5, 0.5]]])
    >>> loads = Loads(np.ones((1, 1)), ranks, ranks[..., None])
    >>> found = busiest_ports(loads, GroupShape(4, 2, 2))
    >>> float(found.rank[0, 0]), float(found.domain[0, 0])
    (1.5, 1.5)
    """
    exchange = exchange_factor(loads.ranks)
    domain = exchange
    if shape.local:
        domain = np.ones_like(exchange)
    elif shape.per_domain * shape.domains == shape.size:
        parts = loads.ranks.reshape(*exchange.shape, shape.domains, shape.per_domain)
        domain = exchange_factor(parts.mean(axis=-1))
    return Busiest(exchange, domain)


def rows_in_flight(loads: Loads, layers: Sequence[int], alive: int) -> float:
    """Expert rows that the worst rank keeps for some layers and the micro-batches in flight, over the mean.

    Parameters
    ----------
    loads : Loads
    layers : sequence of int
        Of a chunk.
    alive : int
        Micro-batches in flight, taken to be consecutive.

    Returns
    -------
    float
        Largest, over ranks and over the step, of the rows of all those layers and micro-batches together [1].

    Examples
    --------
    One micro-batch loads rank 0, the next rank 1: together they are even.

    >>> ranks = np.array([[[1.5, 0.5], [0.5, 1.5]]])
    >>> loads = Loads(np.ones((1, 2)), ranks, ranks[..., None])
    >>> rows_in_flight(loads, [0], 1), rows_in_flight(loads, [0], 2)
    (1.5, 1.0)
    """
    chosen = list(layers)
    if not chosen or not alive:
        return 1.0
    rows = (loads.sent[chosen, :, None] * loads.ranks[chosen]).mean(axis=0)  # (micro-batches, ranks)
    width = min(alive, len(rows))
    total = np.cumsum(np.vstack([np.zeros((1, rows.shape[1])), rows]), axis=0)
    return float((total[width:] - total[:-width]).max() / width)
