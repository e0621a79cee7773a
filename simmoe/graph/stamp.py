"""Stamp the templates of every rank once per micro-batch into one structure of arrays, and join the ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.graph.columns import Layout, assemble
from simmoe.graph.schedules import Action, Kind
from simmoe.graph.step_ends import Bucket, StepEnds
from simmoe.graph.task import IntArray, Operation, TaskGraph
from simmoe.graph.template import STREAMS, Template
from simmoe.graph.weave import Slot, plain, weave

Ids = NDArray[np.int64]
Place = tuple[int, int]  # replica of the model, position among its virtual stages


@dataclass(frozen=True, slots=True, eq=False)
class RankPlan:
    """What one rank class does in a step.

    Attributes
    ----------
    stage : int
        Pipeline stage.
    span : tuple of float
        The part [from, to) of the stage's devices that the class stands for.
    places : tuple of (replica, position)
        For each chunk of the stage, which virtual stage of which copy of the model it is.
    actions : tuple of Action
        Order of passes.
    templates : dict of (kind, chunk) to Template
    ends : StepEnds
        Which steps of `before` and `after` belong to which layer.
    before, after : Template
        What frames the passes.
    shared : frozenset of str
        Groups that join this class with others of its stage.
    overlap_gradients : bool
        Gradients of a layer are reduced as soon as they are complete.
    spans : tuple of (from, to)
        The parts of the stage's devices, where they are several; empty = `span`.
    teams : dict of str to frozenset of int
        As in `simmoe.graph.classes.DeviceClass`: a group in `shared` joins classes that have a team in common.
    """

    stage: int
    span: tuple[float, float]
    places: tuple[Place, ...]
    actions: tuple[Action, ...]
    templates: dict[tuple[Kind, int], Template]
    ends: StepEnds
    before: Template
    after: Template
    shared: frozenset[str]
    overlap_gradients: bool
    spans: tuple[tuple[float, float], ...] = ()
    teams: dict[str, frozenset[int]] = field(default_factory=dict)

    def template(self, action: Action) -> Template:
        """The template of an action."""
        return self.templates[action.kind, action.chunk]

    def faces(self, other: "RankPlan") -> bool:
        """Whether the two classes hold a common part of the batch."""
        here, there = np.array(self.spans or [self.span]), np.array(other.spans or [other.span])
        return bool(np.any((here[:, None, 0] < there[:, 1]) & (there[:, 0] < here[:, None, 1])))

    def joined(self, other: "RankPlan") -> frozenset[str]:
        """The kinds of groups that hold devices of both classes."""
        return frozenset(
            kind
            for kind in self.shared & other.shared
            if kind not in self.teams or self.teams[kind] & other.teams.get(kind, frozenset())
        )


class _Passes(NamedTuple):
    """All stamped passes of a kind through a chunk, in order of micro-batch.

    Attributes
    ----------
    micro_batches, offsets : array of int64, shape (passes,)
        Micro-batch, and first task id of the block that the pass stands in.
    places : array of int64, shape (kinds of block, steps)
        Where each step stands in its block.
    kind : array of int64, shape (passes,)
        Row of `places`.
    """

    micro_batches: Ids
    offsets: Ids
    places: Ids
    kind: Ids

    def tasks(self, steps: Sequence[int] | IntArray | Ids, some: Ids | slice = slice(None)) -> Ids:
        """Task ids of some steps of all or some of the passes, shape (passes, steps)."""
        places = self.places[:, np.asarray(steps, dtype=np.int64)]
        inside = places if len(places) == 1 else places[self.kind[some]]
        found: Ids = self.offsets[some][:, None] + inside
        return found

    def first(self, steps: Sequence[int] | IntArray) -> Ids:
        """Task ids of some steps of the pass of the first micro-batch."""
        return self.tasks(steps, np.zeros(1, dtype=np.int64))

    def last(self, steps: Sequence[int] | IntArray) -> Ids:
        """Task ids of some steps of the pass that is issued last."""
        return self.tasks(steps, np.array([np.argmax(self.offsets)]))


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A rank with task ids.

    Attributes
    ----------
    plan : RankPlan
    layout : Layout
    first, last : int
        The first tasks of what stands before the passes and of what follows them.
    passes : dict of (kind, chunk) to passes
    """

    plan: RankPlan
    layout: Layout
    first: int
    last: int
    passes: dict[tuple[Kind, int], _Passes]

    @property
    def end(self) -> int:
        """The task id after its last task."""
        return self.last + len(self.plan.after)

    def tasks(
        self, kind: Kind, chunk: int, steps: Sequence[int] | IntArray | Ids, batches: Sequence[int] | None = None
    ) -> Ids:
        """Task ids of some steps of the passes of a kind, shape (micro-batches, steps); all or some of them."""
        passes = self.passes[kind, chunk]
        if batches is None:
            return passes.tasks(steps)
        return passes.tasks(steps, np.searchsorted(passes.micro_batches, batches))

    def directions(self, chunk: int, *, backward: bool) -> list[tuple[Kind, frozenset[int]]]:
        """The kinds of pass that carry a chunk's result on, forward or backward, and the micro-batches of each."""
        kinds = (Kind.BACKWARD, Kind.INPUT_GRADIENT) if backward else (Kind.FORWARD,)
        return [
            (kind, frozenset(self.passes[kind, chunk].micro_batches.tolist()))
            for kind in kinds
            if (kind, chunk) in self.passes
        ]


class _Edges:
    """Collects edges; either side may be an array."""

    def __init__(self) -> None:
        self._source: list[Ids] = []
        self._target: list[Ids] = []

    def add(self, source: Ids | int, target: Ids | int) -> None:
        """Add edges between two arrays of equal shape after broadcasting."""
        first, second = source + 0 * target, target + 0 * source  # as np.broadcast_arrays, but quick for few edges
        self._source.append(np.ravel(first))
        self._target.append(np.ravel(second))

    def ends(self) -> tuple[Ids, Ids]:
        """All sources, and all targets."""
        none = [np.zeros(0, dtype=np.int64)]
        return np.concatenate(self._source or none), np.concatenate(self._target or none)


def stamp(plans: Sequence[RankPlan], operations: tuple[Operation, ...]) -> TaskGraph:
    """Lay out all ranks one after another and join them.

    Parameters
    ----------
    plans : sequence of RankPlan
        One a rank class, by stage and place in the stage.
    operations : tuple of Operation
        The table that the templates index.

    Returns
    -------
    TaskGraph
        Task ids ascend in order of issue on every stream.
    """
    placed: list[Placed] = []
    for plan in plans:
        placed.append(place(plan, placed[-1].end if placed else 0))
    return assemble([rank.layout for rank in placed], *edges_of(placed), operations)


def edges_of(placed: Sequence[Placed]) -> tuple[Ids, Ids]:
    """What the tasks of some ranks wait for besides what their own passes hold: sources, and targets."""
    edges = _Edges()
    for rank in placed:
        _add_step_edges(edges, rank)
        _add_order_of_passes(edges, rank)
        for other in placed:
            if other.plan.stage == rank.plan.stage and other is not rank:
                _add_shared_edges(edges, rank, other)
            _add_transfers(edges, rank, other)
    return edges.ends()


def place(plan: RankPlan, first: int) -> Placed:
    """Give every pass of a rank its task ids, from `first` on."""
    kinds, batches, chunks, joined = (np.array(column, dtype=np.int64) for column in zip(*plan.actions, strict=True))
    second = np.concatenate([[False], joined[:-1] != 0])  # of a pair that is issued in alternation
    block, codes = np.cumsum(~second) - 1, kinds * len(plan.places) + chunks
    base = len(Kind) * len(plan.places) + 1
    pairs = np.zeros(block[-1] + 1, dtype=np.int64)
    np.add.at(pairs, block, (1 + codes) * np.where(second, base, 1))
    known, kind = np.unique(pairs, return_inverse=True)
    slots = [_slot(plan, divmod(pair, base)) for pair in known.tolist()] + [plain(plan.before), plain(plan.after)]
    order = np.concatenate([[len(known)], kind, [len(known) + 1]])
    sizes = np.array([len(slot.part) for slot in slots])[order]
    offset = first + np.cumsum(sizes) - sizes
    numbers = np.full((len(order), 2), -1, dtype=np.int32)
    numbers[1 + block, second.astype(np.int64)] = batches
    passes = {}
    for code in np.unique(codes).tolist():
        chosen = np.flatnonzero(codes == code)
        chosen = chosen[np.argsort(batches[chosen], kind="stable")]
        where = 1 + block[chosen]
        places, row = _places(slots, order[where], second[chosen])
        passes[_key(plan, code)] = _Passes(batches[chosen], offset[where], places, row)
    return Placed(plan, Layout(tuple(slots), order, offset, numbers), first, int(offset[-1]), passes)


def _key(plan: RankPlan, code: int) -> tuple[Kind, int]:
    """Kind and chunk of a pass that are written as one number."""
    return Kind(code // len(plan.places)), code % len(plan.places)


def _slot(plan: RankPlan, pair: tuple[int, int]) -> Slot:
    """The block of a second pass, if there is one, and a first; they are written as numbers from 1 on, 0 for none."""
    second, first = pair
    template = plan.templates[_key(plan, first - 1)]
    return weave(template, plan.templates[_key(plan, second - 1)]) if second else plain(template)


def _places(slots: Sequence[Slot], kind: Ids, second: NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """Where the steps of a pass stand in each kind of block that has it, and which kind each of the passes is in."""
    used, row = np.unique(2 * kind + second, return_inverse=True)
    return np.stack([slots[code // 2].places[code % 2] for code in used.tolist()]), row.reshape(-1)


def _add_step_edges(edges: _Edges, rank: Placed) -> None:
    """Parameter gathers before first use, gradient reductions after the last backward pass, optimizer at the end."""
    plan = rank.plan
    for step, bucket in plan.ends.gathered:
        template = plan.templates[Kind.FORWARD, bucket.chunk]
        uses = template.layer_entry.get(bucket.layer) or template.entry
        edges.add(rank.first + step, rank.passes[Kind.FORWARD, bucket.chunk].first(uses))
    for step, bucket in plan.ends.reduced:
        edges.add(_reduced_after(rank, bucket), rank.last + step)
    update = plan.after.stream.tolist().index(STREAMS.index("compute"))
    edges.add(_finish(rank), rank.last + update)


def _finish(rank: Placed) -> Ids:
    """The steps that end the last pass."""
    final = rank.plan.actions[-1]
    template = rank.plan.template(final)
    return rank.passes[final.kind, final.chunk].last((*template.tail, *template.leftover))


def _reduced_after(rank: Placed, bucket: Bucket) -> Ids:
    """The steps after which the gradients of a bucket may be reduced."""
    return _gradients(rank, bucket) if rank.plan.overlap_gradients else _finish(rank)


def _gradients(rank: Placed, bucket: Bucket) -> Ids:
    """The steps after which the gradients of a bucket are complete: those of the last pass that computes any."""
    keys = [key for key in ((Kind.BACKWARD, bucket.chunk), (Kind.WEIGHT_GRADIENT, bucket.chunk)) if key in rank.passes]
    final = max(keys, key=lambda key: int(rank.passes[key].offsets.max()))
    template = rank.plan.templates[final]
    return rank.passes[final].last(template.layer_exit.get(bucket.layer, template.tail))


def _add_order_of_passes(edges: _Edges, rank: Placed) -> None:
    """Inside a rank: the end of the model turns around, and a weight gradient follows its input gradient."""
    for chunk, template in _ends_of_model(rank):
        for kind, batches in rank.directions(chunk, backward=True):
            some = sorted(batches)
            ends = rank.tasks(Kind.FORWARD, chunk, template.tail, some)[:, :, None]
            edges.add(ends, rank.tasks(kind, chunk, rank.plan.templates[kind, chunk].entry, some)[:, None, :])
    for kind, chunk in rank.passes:
        if kind is Kind.WEIGHT_GRADIENT:
            first, later = rank.plan.templates[Kind.INPUT_GRADIENT, chunk], rank.plan.templates[kind, chunk]
            ends = rank.tasks(Kind.INPUT_GRADIENT, chunk, first.tail)[:, :, None]
            edges.add(ends, rank.tasks(kind, chunk, later.entry)[:, None, :])


def _ends_of_model(rank: Placed) -> Iterator[tuple[int, Template]]:
    """The chunks whose forward pass nobody continues, with its template."""
    last = max(position for _, position in rank.plan.places)
    for chunk, (_, position) in enumerate(rank.plan.places):
        template = rank.plan.templates[Kind.FORWARD, chunk]
        if position == last and template.sends is None:
            yield chunk, template


def _add_shared_edges(edges: _Edges, here: Placed, there: Placed) -> None:
    """A collective that joins two classes of a stage starts when the other class is ready for it, too."""
    shared = here.plan.joined(there.plan)
    if not shared:
        return
    for kind, chunk in here.passes:
        source, target = _joint_edges(here.plan.templates[kind, chunk], shared)
        edges.add(there.tasks(kind, chunk, source), here.tasks(kind, chunk, target))
    for template, mine, other in (
        (here.plan.before, here.first, there.first),
        (here.plan.after, here.last, there.last),
    ):
        source, target = _joint_edges(template, shared)
        edges.add(other + source, mine + target)
    for step, bucket in here.plan.ends.reduced:
        if here.plan.after.groups[step] in shared:
            edges.add(_reduced_after(there, bucket), here.last + step)


def _joint_edges(template: Template, shared: frozenset[str]) -> tuple[Ids, Ids]:
    """The edges of a template that lead to a collective of some groups."""
    joint = np.array([group in shared for group in template.groups], dtype=bool)
    chosen = joint[template.target] if len(template.target) else np.zeros(0, dtype=bool)
    return template.source[chosen].astype(np.int64), template.target[chosen].astype(np.int64)


def _add_transfers(edges: _Edges, here: Placed, there: Placed) -> None:
    """Activations go to the next virtual stage of their copy of the model, gradients to the one before."""
    for chunk, (replica, position) in enumerate(here.plan.places):
        for backward in (False, True):
            target = (replica, position + (-1 if backward else 1))
            if target in there.plan.places and here.plan.faces(there.plan):
                _add_transfer(edges, here, chunk, there, there.plan.places.index(target), backward=backward)


def _add_transfer(edges: _Edges, here: Placed, chunk: int, there: Placed, next_chunk: int, *, backward: bool) -> None:
    """Join the passes through a chunk with those through its neighbour, micro-batch by micro-batch."""
    for kind, batches in here.directions(chunk, backward=backward):
        template = here.plan.templates[kind, chunk]
        steps = template.tail if template.sends is None else (template.sends,)
        for next_kind, next_batches in there.directions(next_chunk, backward=backward):
            some = sorted(batches & next_batches)
            if some:
                entry = there.plan.templates[next_kind, next_chunk].entry
                source = here.tasks(kind, chunk, steps, some)[:, :, None]
                edges.add(source, there.tasks(next_kind, next_chunk, entry, some)[:, None, :])
