"""The columns of a task graph from blocks that repeat: each kind of block is laid out once and copied."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.graph.task import FloatArray, IntArray, Operation, Stream, TaskGraph, compressed_rows, with_edges
from simmoe.graph.template import STREAMS
from simmoe.graph.weave import Slot

Ids = NDArray[np.int64]


class Layout(NamedTuple):
    """The blocks of one rank in order of issue.

    Attributes
    ----------
    slots : tuple of Slot
        The kinds of block.
    kind : array of int64, shape (blocks,)
        Index into `slots`.
    offset : array of int64, shape (blocks,)
        First task id.
    micro_batches : array of int32, shape (blocks, 2)
        Of the templates of the block; -1 for none.
    """

    slots: tuple[Slot, ...]
    kind: Ids
    offset: Ids
    micro_batches: IntArray


class _Columns(NamedTuple):
    """What is copied of a kind of block; predecessors are places in the block, `degree` of them a task."""

    operation: IntArray
    code: IntArray
    layer: IntArray
    duration: FloatArray
    part: IntArray
    degree: IntArray
    predecessor: IntArray


def assemble(layouts: Sequence[Layout], source: Ids, target: Ids, operations: tuple[Operation, ...]) -> TaskGraph:
    """Copy the blocks of all ranks one after another.

    Parameters
    ----------
    layouts : sequence of Layout
        Of rank 0, 1, ...; task ids ascend without gaps.
    source, target : array of int64
        Edges besides those inside the templates.
    operations : tuple of Operation

    Returns
    -------
    TaskGraph
    """
    columns = _all_columns(layouts)
    codes = np.concatenate([part.code for parts in columns for part in parts])
    used = np.flatnonzero(np.bincount(codes))
    numbers = np.zeros(len(layouts) * len(STREAMS), dtype=np.int32)
    numbers[used] = np.arange(len(used), dtype=np.int32)
    columns = [[part._replace(code=numbers[part.code]) for part in parts] for parts in columns]
    blocks = [parts[kind] for layout, parts in zip(layouts, columns, strict=True) for kind in layout.kind.tolist()]
    offset = np.concatenate([layout.offset for layout in layouts]).astype(np.int32)
    rows = with_edges(*_inner_edges(blocks, offset, _sizes(layouts, columns, "predecessor")), source, target)
    return TaskGraph(
        operation=np.concatenate([block.operation for block in blocks]),
        stream=np.concatenate([block.code for block in blocks]),
        duration=np.concatenate([block.duration for block in blocks]),
        layer=np.concatenate([block.layer for block in blocks]),
        micro_batch=_micro_batches(layouts, blocks, _sizes(layouts, columns, "part")),
        predecessor_start=rows[0],
        predecessor=rows[1],
        operations=operations,
        streams=tuple(Stream(int(code) // len(STREAMS), STREAMS[int(code) % len(STREAMS)]) for code in used),
    )


def _all_columns(layouts: Sequence[Layout]) -> list[list[_Columns]]:
    """The columns of every kind of block of every rank; `code` says rank and stream."""
    known: dict[tuple[int, ...], tuple[IntArray, IntArray]] = {}
    return [
        [_columns(slot, rank * len(STREAMS), known) for slot in layout.slots] for rank, layout in enumerate(layouts)
    ]


def _columns(slot: Slot, base: int, known: dict[tuple[int, ...], tuple[IntArray, IntArray]]) -> _Columns:
    """The columns of a kind of block; `known` spares the rows of templates that differ in their layers alone."""
    key = tuple(id(array) for template in slot.templates for array in (template.source, template.target))
    if key not in known:
        known[key] = _rows_of_slot(slot)
    start, predecessor = known[key]
    return _Columns(
        operation=_column(slot, "operation"),
        code=_column(slot, "stream") + np.int32(base),
        layer=_column(slot, "layer"),
        duration=_column(slot, "duration"),
        part=slot.part.astype(np.int32),
        degree=np.diff(start),
        predecessor=predecessor,
    )


def _rows_of_slot(slot: Slot) -> tuple[IntArray, IntArray]:
    """The edges inside the templates of a block, as rows."""
    source, target = (
        np.concatenate([place[getattr(t, side)] for t, place in zip(slot.templates, slot.places, strict=True)])
        for side in ("source", "target")
    )
    return compressed_rows(source, target, len(slot.part))


def _column(slot: Slot, name: str) -> NDArray[Any]:
    """One column of the steps of a block."""
    values = [getattr(template, name) for template in slot.templates]
    if len(values) == 1:
        return np.asarray(values[0])
    found = np.empty(len(slot.part), dtype=values[0].dtype)
    for value, places in zip(values, slot.places, strict=True):
        found[places] = value
    return found


def _sizes(layouts: Sequence[Layout], columns: Sequence[Sequence[_Columns]], name: str) -> Ids:
    """The length of a column of every block."""
    return np.concatenate(
        [
            np.array([len(getattr(part, name)) for part in parts])[layout.kind]
            for layout, parts in zip(layouts, columns, strict=True)
        ]
    )


def _inner_edges(blocks: Sequence[_Columns], offset: IntArray, sizes: Ids) -> tuple[IntArray, IntArray]:
    """The edges inside all blocks: how many predecessors each task has, and which."""
    predecessor = np.concatenate([block.predecessor for block in blocks])
    predecessor += np.repeat(offset, sizes)
    return np.concatenate([block.degree for block in blocks]), predecessor


def _micro_batches(layouts: Sequence[Layout], blocks: Sequence[_Columns], sizes: Ids) -> IntArray:
    """The micro-batch of every task."""
    micro_batches = np.concatenate([layout.micro_batches for layout in layouts])
    found = np.repeat(micro_batches[:, 0], sizes)
    if (micro_batches[:, 1] >= 0).any():
        part = np.concatenate([block.part for block in blocks])
        found = np.where(part == 0, found, np.repeat(micro_batches[:, 1], sizes))
    return found
