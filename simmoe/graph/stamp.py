"""Stamp the templates of every rank once per micro-batch into one structure of arrays, and join the ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.graph.schedules import Action, Kind
from simmoe.graph.step_ends import Bucket, StepEnds
from simmoe.graph.task import IntArray, Operation, Stream, TaskGraph, compressed_rows
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


class _Pass(NamedTuple):
    """One stamped pass: its micro-batch, the first task id of its block, and where its steps stand in the block."""

    micro_batch: int
    offset: int
    places: Ids

    def tasks(self, steps: Sequence[int] | IntArray | Ids) -> Ids:
        """Task ids of some steps."""
        return self.offset + self.places[np.asarray(steps, dtype=np.int64)]


class _Block(NamedTuple):
    """A slot with the micro-batch of each of its templates."""

    slot: Slot
    micro_batches: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """A rank with task ids: blocks in order of issue, passes by kind and chunk in order of micro-batch."""

    plan: RankPlan
    blocks: tuple[_Block, ...]
    first: int
    last: int
    passes: dict[tuple[Kind, int], list[_Pass]]

    def tasks(
        self, kind: Kind, chunk: int, steps: Sequence[int] | IntArray | Ids, batches: Sequence[int] | None = None
    ) -> Ids:
        """Task ids of some steps of the passes of a kind, shape (micro-batches, steps); all or some of them."""
        passes, chosen = self.passes[kind, chunk], np.asarray(steps, dtype=np.int64)
        if batches is not None:
            known = {part.micro_batch: part for part in passes}
            passes = [known[batch] for batch in batches]
        places = {id(part.places): part.places[chosen] for part in passes}
        offsets = np.array([part.offset for part in passes], dtype=np.int64)
        if len(places) == 1:
            return offsets[:, None] + next(iter(places.values()))[None, :]
        return offsets[:, None] + np.stack([places[id(part.places)] for part in passes])

    def directions(self, chunk: int, *, backward: bool) -> list[tuple[Kind, frozenset[int]]]:
        """The kinds of pass that carry a chunk's result on, forward or backward, and the micro-batches of each."""
        kinds = (Kind.BACKWARD, Kind.INPUT_GRADIENT) if backward else (Kind.FORWARD,)
        return [
            (kind, frozenset(part.micro_batch for part in self.passes[kind, chunk]))
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
        first, second = np.broadcast_arrays(np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64))
        self._source.append(first.ravel())
        self._target.append(second.ravel())

    def rows(self, tasks: int) -> tuple[IntArray, IntArray]:
        """Compressed rows of predecessors."""
        none = [np.zeros(0, dtype=np.int64)]
        return compressed_rows(np.concatenate(self._source or none), np.concatenate(self._target or none), tasks)


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
    placed: list[_Placed] = []
    total = 0
    for plan in plans:
        placed.append(_place(plan, total))
        total = placed[-1].last + len(plan.after)
    edges = _Edges()
    for rank in placed:
        _add_inner_edges(edges, rank)
        _add_step_edges(edges, rank)
        _add_order_of_passes(edges, rank)
        for other in placed:
            if other.plan.stage == rank.plan.stage and other is not rank:
                _add_shared_edges(edges, rank, other)
            _add_transfers(edges, rank, other)
    return _assemble(placed, edges.rows(total), operations)


def _place(plan: RankPlan, first: int) -> _Placed:
    """Give every pass of a rank its task ids, from `first` on."""
    slots: dict[tuple[tuple[Kind, int], ...], Slot] = {}
    blocks = [_Block(plain(plan.before), (-1,))]
    passes: dict[tuple[Kind, int], list[_Pass]] = {}
    offset = first + len(plan.before)
    for actions in _blocks_of_actions(plan.actions):
        key = tuple((action.kind, action.chunk) for action in actions)
        if key not in slots:
            templates = [plan.template(action) for action in actions]
            slots[key] = plain(templates[0]) if len(templates) == 1 else weave(*templates)
        slot = slots[key]
        blocks.append(_Block(slot, tuple(action.micro_batch for action in actions)))
        for action, places in zip(actions, slot.places, strict=True):
            passes.setdefault((action.kind, action.chunk), []).append(_Pass(action.micro_batch, offset, places))
        offset += len(slot.part)
    blocks.append(_Block(plain(plan.after), (-1,)))
    ordered = {key: sorted(part, key=lambda one: one.micro_batch) for key, part in passes.items()}
    return _Placed(plan, tuple(blocks), first, offset, ordered)


def _blocks_of_actions(actions: Sequence[Action]) -> Iterator[tuple[Action, ...]]:
    """Single actions, and pairs that are issued in alternation."""
    position = 0
    while position < len(actions):
        size = 2 if actions[position].with_next else 1
        yield tuple(actions[position : position + size])
        position += size


def _assemble(
    placed: Sequence[_Placed], rows: tuple[IntArray, IntArray], operations: tuple[Operation, ...]
) -> TaskGraph:
    """Concatenate the columns of all blocks."""
    blocks = [(number, block) for number, rank in enumerate(placed) for block in rank.blocks]
    columns: dict[int, tuple[NDArray[Any], ...]] = {}
    for _, block in blocks:
        if id(block.slot) not in columns:
            columns[id(block.slot)] = _columns(block.slot)
    chosen = [columns[id(block.slot)] for _, block in blocks]
    lengths = [len(block.slot.part) for _, block in blocks]
    rank_base = np.repeat(np.array([number for number, _ in blocks], dtype=np.int32) * len(STREAMS), lengths)
    codes = np.concatenate([part[1] for part in chosen]) + rank_base
    used = np.flatnonzero(np.bincount(codes, minlength=1))
    numbers = np.zeros(len(placed) * len(STREAMS), dtype=np.int32)
    numbers[used] = np.arange(len(used), dtype=np.int32)
    batches = [_micro_batches(block) for _, block in blocks]
    return TaskGraph(
        operation=np.concatenate([part[0] for part in chosen]),
        stream=numbers[codes],
        duration=np.concatenate([part[3] for part in chosen]),
        layer=np.concatenate([part[2] for part in chosen]),
        micro_batch=np.concatenate(batches),
        predecessor_start=rows[0],
        predecessor=rows[1],
        operations=operations,
        streams=tuple(Stream(int(code) // len(STREAMS), STREAMS[int(code) % len(STREAMS)]) for code in used),
    )


def _columns(slot: Slot) -> tuple[NDArray[Any], ...]:
    """Operation, stream, layer and duration of the steps of a block."""
    starts = np.cumsum([0, *(len(template) for template in slot.templates)])[:-1]
    rows = starts[slot.part] + slot.step if len(slot.part) else slot.step
    return tuple(
        np.concatenate([getattr(template, name) for template in slot.templates])[rows]
        for name in ("operation", "stream", "layer", "duration")
    )


def _micro_batches(block: _Block) -> IntArray:
    return np.array(block.micro_batches, dtype=np.int32)[block.slot.part]


def _add_inner_edges(edges: _Edges, rank: _Placed) -> None:
    """The edges inside each stamped template."""
    plan = rank.plan
    for kind, chunk in rank.passes:
        template = plan.templates[kind, chunk]
        edges.add(rank.tasks(kind, chunk, template.source), rank.tasks(kind, chunk, template.target))
    for template, offset in ((plan.before, rank.first), (plan.after, rank.last)):
        edges.add(offset + template.source.astype(np.int64), offset + template.target.astype(np.int64))


def _add_step_edges(edges: _Edges, rank: _Placed) -> None:
    """Parameter gathers before first use, gradient reductions after the last backward pass, optimizer at the end."""
    plan = rank.plan
    for step, bucket in plan.ends.gathered:
        template = plan.templates[Kind.FORWARD, bucket.chunk]
        uses = template.layer_entry.get(bucket.layer) or template.entry
        edges.add(rank.first + step, rank.passes[Kind.FORWARD, bucket.chunk][0].tasks(uses))
    for step, bucket in plan.ends.reduced:
        edges.add(_reduced_after(rank, bucket), rank.last + step)
    update = next(i for i in range(len(plan.after)) if plan.after.stream[i] == STREAMS.index("compute"))
    edges.add(_finish(rank), rank.last + update)


def _finish(rank: _Placed) -> Ids:
    """The steps that end the last pass."""
    final = rank.plan.actions[-1]
    template = rank.plan.template(final)
    return _last_pass(rank, [final.kind], final.chunk)[1].tasks((*template.tail, *template.leftover))


def _reduced_after(rank: _Placed, bucket: Bucket) -> Ids:
    """The steps after which the gradients of a bucket may be reduced."""
    return _gradients(rank, bucket) if rank.plan.overlap_gradients else _finish(rank)


def _last_pass(rank: _Placed, kinds: Sequence[Kind], chunk: int) -> tuple[Kind, _Pass]:
    """The pass of some kinds through a chunk that is issued last."""
    passes = [(kind, part) for kind in kinds for part in rank.passes.get((kind, chunk), ())]
    return max(passes, key=lambda found: found[1].offset)


def _gradients(rank: _Placed, bucket: Bucket) -> Ids:
    """The steps after which the gradients of a bucket are complete: those of the last pass that computes any."""
    kind, final = _last_pass(rank, (Kind.BACKWARD, Kind.WEIGHT_GRADIENT), bucket.chunk)
    template = rank.plan.templates[kind, bucket.chunk]
    return final.tasks(template.layer_exit.get(bucket.layer, template.tail))


def _add_order_of_passes(edges: _Edges, rank: _Placed) -> None:
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


def _ends_of_model(rank: _Placed) -> Iterator[tuple[int, Template]]:
    """The chunks whose forward pass nobody continues, with its template."""
    last = max(position for _, position in rank.plan.places)
    for chunk, (_, position) in enumerate(rank.plan.places):
        template = rank.plan.templates[Kind.FORWARD, chunk]
        if position == last and template.sends is None:
            yield chunk, template


def _add_shared_edges(edges: _Edges, here: _Placed, there: _Placed) -> None:
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


def _add_transfers(edges: _Edges, here: _Placed, there: _Placed) -> None:
    """Activations go to the next virtual stage of their copy of the model, gradients to the one before."""
    if not here.plan.faces(there.plan):
        return
    for chunk, (replica, position) in enumerate(here.plan.places):
        for backward in (False, True):
            target = (replica, position + (-1 if backward else 1))
            if target in there.plan.places:
                _add_transfer(edges, here, chunk, there, there.plan.places.index(target), backward=backward)


def _add_transfer(edges: _Edges, here: _Placed, chunk: int, there: _Placed, next_chunk: int, *, backward: bool) -> None:
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
