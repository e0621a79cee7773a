"""Pipelines of unlike devices, HeterMoE's heterogeneous PP: each stage is of one type of device."""

import math
from bisect import bisect_right
from collections.abc import Iterator
from functools import reduce
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.memory import rank_memory
from simmoe.cost.model import StageCost
from simmoe.errors import SpecError
from simmoe.graph.passes import backward_pass, forward_pass
from simmoe.graph.stage_settings import stage_settings
from simmoe.planners.baselines import batch_sizes, recomputations
from simmoe.planners.proposal import Proposal, Ranking, Rejected, divisors, plan_like, planned, propose, ranked
from simmoe.planners.zebra_shapes import short_name
from simmoe.specs.plan import Chunk, Plan, Recompute, Schedule, Stage
from simmoe.specs.scenario import Scenario

_SIMULATIONS = 8  # of each kind, in the order of the bound
_SERIAL = {"compute", "ep"}  # streams that wait for each other in a pass
_MOST_SPLITS = 200_000
_MOST_SHARING = 8  # pipelines whose stages share their experts
_GIB = 2.0**30

Numbers = NDArray[np.int64]
Times = NDArray[np.float64]


class _Kind(NamedTuple):
    """What all pipelines of a kind share: copies, experts of a group, sequences of a micro-batch, recomputation."""

    copies: int
    expert_parallel: int
    size: int
    recompute: Recompute


class _Tables(NamedTuple):
    """Of a kind, by node group and layer: seconds of forward and of both passes; by layer: embedding first, head last.

    Attributes
    ----------
    forward, both : array, groups x layers
        Of each layer [s].
    ends : array, groups x 2
        Embedding and head, forward and backward [s].
    most : array, stages x groups
        Layers that a stage of a group holds at most; -1 = not even one.
    """

    forward: Times
    both: Times
    ends: Times
    most: Numbers


def hetero_pipeline(
    scenario: Scenario, *, expert_parallel: int = 0, micro_batch_size: int = 0, top: int = 3
) -> Ranking:
    """Equal pipelines of one device of a type and the others' share: all orders of stages and splits of the layers.

    Parameters
    ----------
    scenario : Scenario
    expert_parallel : int
        Pipelines whose stages share their experts; 0 = the best of all up to 8. The paper's pipelines share none (1).
    micro_batch_size : int
        Sequences of a micro-batch; 0 = the best of the powers of two that fit.
    top : int
        Proposals to return.

    Returns
    -------
    Ranking
        Under 1F1B. With d the greatest common divisor of the numbers of devices there are d pipelines, in each the
        d-th part of every type. Splits that fit are simulated in the order of a bound, until it exceeds the best found.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 6.1: pipelines of one new and some old GPUs, layers split by hand.
    """
    rejected: list[Rejected] = []
    found: list[Proposal | Rejected] = []
    copies = reduce(math.gcd, (group.devices for group in scenario.cluster.groups))
    moe, share = scenario.model.moe, scenario.training.global_batch_size // copies
    widths = (
        [expert_parallel]
        if expert_parallel
        else divisors(math.gcd(copies, moe.num_experts if moe else 1), _MOST_SHARING)
    )
    if scenario.training.global_batch_size % copies:
        batch = scenario.training.global_batch_size
        reason = f"{batch} sequences a step do not divide over {copies} pipelines"
        return Ranking((), (Rejected("hetero PP", reason),))
    for width in reversed(widths):
        for recompute in recomputations(scenario):
            for size in [micro_batch_size] if micro_batch_size else batch_sizes(share):
                found += _pipelines(scenario, _Kind(copies, width, size, recompute), rejected, _best_s(found))
    return ranked([*found, *rejected], top)


def _best_s(found: list[Proposal | Rejected]) -> float:
    """The shortest step found [s]."""
    return min((one.simulated_s for one in found if isinstance(one, Proposal)), default=math.inf)


def _pipelines(scenario: Scenario, kind: _Kind, rejected: list[Rejected], best_s: float) -> list[Proposal | Rejected]:
    """The pipelines of a kind that may be faster than a step already found, simulated."""
    name = f"hetero PP, {kind.copies} pipelines, EP {kind.expert_parallel}, micro-batch {kind.size}"
    stages = scenario.cluster.devices // kind.copies
    layers = scenario.model.num_layers
    if stages > layers or math.comb(layers - 1, stages - 1) > _MOST_SPLITS:
        rejected.append(Rejected(name, f"{stages} stages are too many for {layers} layers"))
        return []
    try:
        tables = _tables(scenario, kind, stages)
    except SpecError as error:
        rejected.append(Rejected(name, error.problems[0]))
        return []
    splits = _splits(layers, stages)
    choices = []
    for order in _orders([group.devices // kind.copies for group in scenario.cluster.groups]):
        fits = (splits <= tables.most[np.arange(stages), order]).all(axis=1)
        bounds = _bounds(scenario, kind, tables, order, splits[fits])
        choices += [(bound, order, tuple(split)) for bound, split in zip(bounds, splits[fits].tolist(), strict=True)]
    if not choices:
        rejected.append(Rejected(name, _nothing_fits(scenario, kind, tables)))
    return _simulated(scenario, kind, name, sorted(choices), best_s)


def _simulated(
    scenario: Scenario,
    kind: _Kind,
    name: str,
    choices: list[tuple[float, tuple[int, ...], tuple[int, ...]]],
    best_s: float,
) -> list[Proposal | Rejected]:
    """Simulate in the order of the bound until it exceeds the best step found."""
    found: list[Proposal | Rejected] = []
    for bound, order, split in choices[:_SIMULATIONS]:
        if bound >= best_s:
            break
        chain = " - ".join(
            f"{layers} on {short_name(scenario.cluster, group)}" for group, layers in zip(order, split, strict=True)
        )
        plan = _plan(scenario, kind, order, split)
        made = planned(scenario, plan, micro_batch_size=kind.size)
        one = propose("hetero-pp", f"{name}: {chain}", plan, made, bound)
        found.append(one)
        best_s = min(best_s, _best_s([one]))
    return found


def _orders(counts: list[int]) -> Iterator[tuple[int, ...]]:
    """Every order of stages, as the node group of each; equal stages are not told apart.

    >>> list(_orders([1, 2]))
    [(0, 1, 1), (1, 0, 1), (1, 1, 0)]
    """
    if not any(counts):
        yield ()
        return
    for group, count in enumerate(counts):
        if count:
            rest = [one - (index == group) for index, one in enumerate(counts)]
            yield from ((group, *tail) for tail in _orders(rest))


def _splits(layers: int, stages: int) -> Numbers:
    """Every way to cut layers into so many non-empty stages, one a row.

    >>> _splits(4, 2).tolist(), _splits(4, 1).tolist()
    ([[1, 3], [2, 2], [3, 1]], [[4]])
    """
    chosen = list(combinations(range(1, layers), stages - 1))
    rows = len(chosen)
    cuts = np.array(chosen, dtype=np.int64).reshape(rows, stages - 1)
    edges = np.hstack([np.zeros((rows, 1), dtype=np.int64), cuts, np.full((rows, 1), layers, dtype=np.int64)])
    return np.diff(edges, axis=1)


def _plan(scenario: Scenario, kind: _Kind, order: tuple[int, ...], split: tuple[int, ...]) -> Plan:
    """The explicit stages of an order and a split."""
    return plan_like(
        scenario,
        schedule=Schedule.ONE_F_ONE_B,
        recompute=kind.recompute,
        stages=tuple(_stages(scenario, kind, order, split)),
    )


def _stages(scenario: Scenario, kind: _Kind, order: tuple[int, ...], split: tuple[int, ...]) -> Iterator[Stage]:
    """Each stage takes the next devices of its node group."""
    ends = np.cumsum([0, *(group.devices for group in scenario.cluster.groups)]).tolist()
    first, last = 0, len(order) - 1
    mtp = scenario.model.mtp_layers if scenario.training.mtp else 0
    for position, (group, layers) in enumerate(zip(order, split, strict=True)):
        chunk = Chunk(
            position=position,
            first_layer=first,
            layers=layers,
            embedding=position == 0,
            head=position == last,
            mtp_layers=mtp if position == last else 0,
        )
        yield Stage(
            first_device=ends[group] + order[:position].count(group) * kind.copies,
            devices=kind.copies,
            chunks=(chunk,),
            data_parallel=kind.copies,
            expert_parallel=kind.expert_parallel,
            recompute=kind.recompute,
        )
        first += layers


def _tables(scenario: Scenario, kind: _Kind, stages: int) -> _Tables:
    """Times and memory of every layer on every node group, from stages of one kind of layer."""
    layers, groups = scenario.model.num_layers, len(scenario.cluster.groups)
    counts = [group.devices // kind.copies for group in scenario.cluster.groups]
    order = next(_orders(counts))
    split = (*(1,) * (stages - 1), layers - stages + 1)
    probe = planned(scenario, _plan(scenario, kind, order, split), micro_batch_size=kind.size)
    forward, both = np.zeros((groups, layers)), np.zeros((groups, layers))
    ends, most = np.zeros((groups, 2)), np.zeros((stages, groups), dtype=np.int64)
    for group in range(groups):
        number = order.index(group)
        cost, stage = StageCost(probe, number, group), probe.plan.stages[number]
        known: dict[object, tuple[float, float]] = {}
        for layer in range(layers):
            alike = scenario.model.layer(layer)
            if alike not in known:
                known[alike] = _seconds(probe, stage, cost, Chunk(first_layer=layer, layers=1))
            forward[group, layer], both[group, layer] = known[alike]
        for end, edge in enumerate(({"embedding": True}, {"head": True})):
            ends[group, end] = _seconds(probe, stage, cost, Chunk(first_layer=0, layers=0, **edge))[1]
    sizes = [group.node.accelerator.memory.value for group in scenario.cluster.groups]
    for position in range(stages):
        held = {size: _most_layers(probe, kind, position, stages, size) for size in set(sizes)}
        most[position] = [held[size] for size in sizes]
    return _Tables(forward, both, ends, most)


def _seconds(scenario: Scenario, stage: Stage, cost: StageCost, chunk: Chunk) -> tuple[float, float]:
    """The kernels of a chunk and the exchanges they wait for, forward and both ways [s]."""
    settings = stage_settings(scenario, stage)
    forward, backward = (
        sum(cost.seconds(step.operator) for step in made(chunk, settings).steps if step.operator.stream in _SERIAL)
        for made in (forward_pass, backward_pass)
    )
    return forward, forward + backward


def _most_layers(scenario: Scenario, kind: _Kind, position: int, stages: int, capacity: float) -> int:
    """Layers that fit on a stage of devices of so many bytes; memory grows with them."""
    counts = range(1, scenario.model.num_layers - stages + 2)
    return bisect_right(counts, capacity, key=lambda count: _stage_bytes(scenario, kind, position, stages, count))


def _stage_bytes(scenario: Scenario, kind: _Kind, position: int, stages: int, layers: int) -> float:
    """Memory of a stage under 1F1B, with the cheapest layers that may stand there [B]."""
    training = scenario.training
    batches = training.global_batch_size // (kind.size * kind.copies)
    first = position if position < stages - 1 else scenario.model.num_layers - layers
    mtp = scenario.model.mtp_layers if training.mtp and position == stages - 1 else 0
    chunk = Chunk(
        first_layer=first, layers=layers, embedding=position == 0, head=position == stages - 1, mtp_layers=mtp
    )
    stage = scenario.plan.stages[0].model_copy(update={"chunks": (chunk,)})
    return rank_memory(scenario, stage, [min(batches, stages - position)]).total


def _bounds(scenario: Scenario, kind: _Kind, tables: _Tables, order: tuple[int, ...], splits: Numbers) -> list[float]:
    """A lower bound of 1F1B for every split of one order [s].

    L = max over s of sum_{i<s} t_i + m t_s + max(0, sum_{i>s} t_i - w_s f_s), w_s = min(m - 1, stages behind s): the
    stage works through all micro-batches after its first arrives; its warm-up forwards hide what stands behind it.
    """
    if not len(splits):
        return []
    stages = len(order)
    count = scenario.training.global_batch_size // (kind.size * kind.copies)
    edges = np.hstack([np.zeros((len(splits), 1), dtype=np.int64), np.cumsum(splits, axis=1)])
    forward, both = (
        np.stack([_between(table[group], edges, place) for place, group in enumerate(order)], axis=1)
        for table in (tables.forward, tables.both)
    )
    both[:, 0] += tables.ends[order[0], 0]
    both[:, -1] += tables.ends[order[-1], 1]
    total = both.sum(axis=1)
    before = np.cumsum(both, axis=1) - both
    behind = total[:, None] - before - both
    ahead = np.minimum(count - 1, stages - 1 - np.arange(stages))
    least = before + count * both + np.maximum(0.0, behind - ahead * forward)
    return [float(value) for value in least.max(axis=1)]


def _between(seconds: Times, edges: Numbers, place: int) -> Times:
    """Summed seconds of the layers of one stage, for every split."""
    upto = np.concatenate([[0.0], np.cumsum(seconds)])
    found: Times = upto[edges[:, place + 1]] - upto[edges[:, place]]
    return found


def _nothing_fits(scenario: Scenario, kind: _Kind, tables: _Tables) -> str:
    """Why no order and split fits."""
    stages = len(tables.most)
    parts = []
    for group in range(tables.most.shape[1]):
        best = int(tables.most[:, group].max())
        held = f"at most {best} layers" if best else "not one layer"
        parts.append(f"a stage of {short_name(scenario.cluster, group)} holds {held}")
    layers, again = scenario.model.num_layers, kind.recompute.granularity
    return f"does not fit: {'; '.join(parts)}, {layers} are cut into {stages} stages ({again} recomputation)"
