"""A schedule of the user's own: a table of actions in PyTorch's form, and the rules that every schedule has to keep."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.graph.schedules import Action, Kind
from simmoe.graph.stamp import Place

_KINDS = {"F": Kind.FORWARD, "B": Kind.BACKWARD, "I": Kind.INPUT_GRADIENT, "W": Kind.WEIGHT_GRADIENT}
_ACTION = re.compile(r"([0-9]{1,6})([FBIW])([0-9]{1,6})")
_JOINED = re.compile(r"\((\w+);(\w+)\)OVERLAP_F_B")
_TRANSFER = re.compile(r"[0-9]+(SEND|RECV|UNSHARD|RESHARD|REDUCE_GRAD)")
_NAMED = 10  # problems that an error lists


class ScheduleTable(NamedTuple):
    """What a table says.

    Attributes
    ----------
    actions : tuple of tuple of Action
        Of every stage, a row each.
    places : tuple of tuple of (replica, position)
        For each chunk of every stage, which virtual stage it is; chunks ascend, and there is one replica, 0.
    """

    actions: tuple[tuple[Action, ...], ...]
    places: tuple[tuple[Place, ...], ...]


class _Cell(NamedTuple):
    """An action with its virtual stage in place of its chunk."""

    kind: Kind
    position: int
    micro_batch: int
    with_next: bool


def parse_schedule(text: str, name: str = "schedule") -> ScheduleTable:
    r"""Read a table of actions in the CSV form of torch.distributed.pipelining.

    Parameters
    ----------
    text : str
        One row a rank, one action a cell: virtual stage, kind and micro-batch, as ``0F0``. Kinds are F forward, B whole
        backward, I input gradient and W weight gradient. ``(0F3;3B1)OVERLAP_F_B`` joins a forward with a backward pass.
        Empty cells are idle: when an action starts follows from what it waits for, so they say nothing.
    name : str
        Where the text comes from, for error messages.

    Returns
    -------
    ScheduleTable
        Not yet checked as a whole: see `check_schedule`.

    Raises
    ------
    SpecError
        If a cell is none of these, a row has no action, or two rows share a virtual stage; all that is wrong, a
        sentence each with row and cell, both counted from 1.

    Notes
    -----
    The form is what ``_PipelineScheduleRuntime._dump_csv(file, "compute_only")`` of PyTorch writes. Its other form,
    ``compute_comms``, also lists transfers, which follow from the passes here.

    Examples
    --------
    >>> table = parse_schedule("0F0,,,0B0\n,1F0,1I0,1W0")
    >>> table.places
    (((0, 0),), ((0, 1),))
    >>> [str(action) for action in table.actions[1]]
    ['F0.0', 'I0.0', 'W0.0']
    """
    problems: list[str] = []
    rows = [_row(line.split(","), number, problems) for number, line in enumerate(text.splitlines(), start=1)]
    if not rows:
        problems.append("is empty, write one row a rank")
    problems += _shared_stages(rows)
    _raise(problems, name)
    positions = [sorted({cell.position for cell in row}) for row in rows]
    return ScheduleTable(
        tuple(
            tuple(Action(cell.kind, cell.micro_batch, own.index(cell.position), cell.with_next) for cell in row)
            for row, own in zip(rows, positions, strict=True)
        ),
        tuple(tuple((0, position) for position in own) for own in positions),
    )


def _row(cells: Sequence[str], number: int, problems: list[str]) -> list[_Cell]:
    """The actions of a row; what cannot be read is added to the problems."""
    found: list[_Cell] = []
    for place, cell in enumerate(cells, start=1):
        if not cell.strip():
            continue
        try:
            found += _cell(cell.strip())
        except ValueError as error:
            problems.append(f"row {number}, cell {place}: {error} (got {_short(cell)!r})")
    if not any(cell.strip() for cell in cells):
        problems.append(f"row {number} has no action: every rank needs some")
    return found


def _cell(text: str) -> list[_Cell]:
    """The action of a cell, or the two that it joins."""
    joined = _JOINED.fullmatch(text)
    parts = joined.groups() if joined else (text,)
    found = [_ACTION.fullmatch(part) for part in parts]
    if not all(found):
        if _TRANSFER.match(text):
            raise ValueError("transfers follow from the passes, leave them out (PyTorch's compute_only form)")
        raise ValueError("not an action, write virtual stage, F, B, I or W, and micro-batch, as 0F0")
    read = [(_KINDS[match[2]], int(match[1]), int(match[3])) for match in found if match]
    return [_Cell(*fields, with_next=len(read) - 1 > index) for index, fields in enumerate(read)]


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."


def _shared_stages(rows: Sequence[Sequence[_Cell]]) -> Iterator[str]:
    """Virtual stages that more than one row works on."""
    homes: dict[int, int] = {}
    for number, row in enumerate(rows, start=1):
        for position in sorted({cell.position for cell in row}):
            if homes.setdefault(position, number) != number:
                yield f"row {number} works on virtual stage {position}, which row {homes[position]} holds; keep one"


def check_schedule(
    actions: Sequence[Sequence[Action]], places: Sequence[Sequence[Place]], micro_batches: int, name: str = "schedule"
) -> None:
    """Whether the orders of all stages make a training step.

    Parameters
    ----------
    actions : sequence of sequence of Action
        Of every stage, in order of issue.
    places : sequence of sequence of (replica, position)
        For each chunk of every stage, which virtual stage of which copy of the model it is.
    micro_batches : int
        m; each goes through one copy of the model.
    name : str
        Where the schedule comes from, for error messages.

    Raises
    ------
    SpecError
        If a virtual stage has no stage or more than one, a micro-batch does not go through every chunk both ways
        exactly once, passes are joined that cannot be, or the orders wait for each other in a circle. Up to 10
        sentences, which name an action as `parse_schedule` reads it: virtual stage, kind, micro-batch.

    Notes
    -----
    Joined passes are issued in turn, so both need what they wait for. An order that passes here never deadlocks,
    whatever the times: a pass waits only for passes that were possible before it.

    Examples
    --------
    >>> forward, backward = Action(Kind.FORWARD, 0), Action(Kind.BACKWARD, 0)
    >>> check_schedule([[forward, backward]] * 2, [[(0, 0)], [(0, 1)]], 1)
    >>> check_schedule([[forward, backward], [forward]], [[(0, 0)], [(0, 1)]], 1, "mine.csv")
    Traceback (most recent call last):
        ...
    simmoe.errors.SpecError: mine.csv: stage 1 never runs 1B0, add it (or 1I0 and 1W0)
    """
    problems = list(_misplaced(actions, places))
    if not problems:
        numbered = list(enumerate(zip(actions, places, strict=True)))
        problems += chain.from_iterable(_wrong_in_stage(stage, own, where) for stage, (own, where) in numbered)
        problems += _unequal_batches(actions, places, micro_batches)
    if not problems:
        problems += _stuck(actions, places)
    _raise(problems, name)


def _raise(problems: Sequence[str], name: str) -> None:
    """Raise if there are problems; a long list is cut."""
    if problems:
        more = [f"{name}: and {len(problems) - _NAMED} more"] if len(problems) > _NAMED else []
        raise SpecError([f"{name}: {problem}" for problem in problems[:_NAMED]] + more)


def _misplaced(actions: Sequence[Sequence[Action]], places: Sequence[Sequence[Place]]) -> Iterator[str]:
    """Virtual stages without a place, with two, or actions outside them."""
    if len(actions) != len(places):
        yield f"has {len(actions)} stages, the plan has {len(places)}"
        return
    held = sorted(place for own in places for place in own)
    for place in sorted({place for place in held if held.count(place) > 1}):
        yield f"virtual stage {place[1]} of copy {place[0]} has more than one place"
    for replica in sorted({replica for replica, _ in held}):
        positions = {position for copy, position in held if copy == replica}
        missing = next((number for number in range(len(positions)) if number not in positions), None)
        if missing is not None:
            yield f"virtual stage {missing} of copy {replica} has no stage, though {max(positions)} has"
    for stage, (own, where) in enumerate(zip(actions, places, strict=True)):
        outside = next((action for action in own if not 0 <= action.chunk < len(where)), None)
        if outside is not None:
            has = f"its last chunk is {len(where) - 1}" if where else "has no chunk"
            yield f"stage {stage} runs {outside}, but {has}"


def _wrong_in_stage(stage: int, actions: Sequence[Action], places: Sequence[Place]) -> Iterator[str]:
    """Passes of one stage that are repeated, too early or missing, and pairs that cannot be."""
    last: dict[tuple[int, int], Kind] = {}
    for index, action in enumerate(actions):
        key = (action.chunk, action.micro_batch)
        if last.get(key) is not _FOLLOWS[action.kind]:
            yield f"stage {stage} runs {_word(action, places)} again, or before what it follows"
        last[key] = action.kind
        if action.with_next and not _can_join(actions[index : index + 2]):
            yield f"stage {stage} joins {_word(action, places)} with the next: it takes a forward and a backward pass"
    for (chunk, micro_batch), kind in last.items():
        if kind in _REMEDY:
            missing = Action(_REMEDY[kind], micro_batch, chunk)
            other = f" (or {_word(missing, places, 'I')} and {_word(missing, places, 'W')})"
            yield f"stage {stage} never runs {_word(missing, places)}, add it{other if kind is Kind.FORWARD else ''}"


_FOLLOWS = {
    Kind.FORWARD: None,
    Kind.BACKWARD: Kind.FORWARD,
    Kind.INPUT_GRADIENT: Kind.FORWARD,
    Kind.WEIGHT_GRADIENT: Kind.INPUT_GRADIENT,
}
_REMEDY = {Kind.FORWARD: Kind.BACKWARD, Kind.INPUT_GRADIENT: Kind.WEIGHT_GRADIENT}


def _can_join(pair: Sequence[Action]) -> bool:
    """Whether two actions are a forward and a backward pass, the second of which ends the pair."""
    kinds = {action.kind for action in pair}
    return len(kinds) == 2 and Kind.FORWARD in kinds and Kind.WEIGHT_GRADIENT not in kinds and not pair[1].with_next


def _word(action: Action, places: Sequence[Place], letter: str = "") -> str:
    """An action as a table has it."""
    return f"{places[action.chunk][1]}{letter or 'FBIW'[action.kind]}{action.micro_batch}"


def _unequal_batches(
    actions: Sequence[Sequence[Action]], places: Sequence[Sequence[Place]], micro_batches: int
) -> Iterator[str]:
    """Micro-batches that skip a virtual stage, go through two copies of the model, or do not exist."""
    seen: dict[Place, set[int]] = {place: set() for own in places for place in own}
    for own, where in zip(actions, places, strict=True):
        for action in own:
            seen[where[action.chunk]].add(action.micro_batch)
    copies: dict[int, set[int]] = {}
    for (replica, _), batches in seen.items():
        copies.setdefault(replica, set()).update(batches)
    for (replica, position), batches in sorted(seen.items()):
        for micro_batch in sorted(copies[replica] - batches):
            yield f"virtual stage {position} of copy {replica} never sees micro-batch {micro_batch}, which others do"
    counts = [sum(number in batches for batches in copies.values()) for number in range(micro_batches)]
    for number, count in enumerate(counts):
        if count != 1:
            yield f"micro-batch {number} of {micro_batches} goes through {count} copies of the model instead of one"
    for number in sorted(set().union(*copies.values()) - set(range(micro_batches))):
        yield f"micro-batch {number} does not exist: the plan has {micro_batches}, from 0"


def _stuck(actions: Sequence[Sequence[Action]], places: Sequence[Sequence[Place]]) -> Iterator[str]:
    """Run all orders with whatever is possible next; what is left waits in a circle."""
    last = dict(sorted(place for own in places for place in own))
    done: set[tuple[Kind, Place, int] | None] = {None}
    at, moved = [0] * len(actions), True
    while moved:
        moved = False
        for stage, (own, where) in enumerate(zip(actions, places, strict=True)):
            block = _next_block(own, at[stage])
            while block and all(_needed(action, where, last) in done for action in block):
                done.update((_made(action), where[action.chunk], action.micro_batch) for action in block)
                at[stage], moved = at[stage] + len(block), True
                block = _next_block(own, at[stage])
    left = [(stage, own[at[stage]]) for stage, own in enumerate(actions) if at[stage] < len(own)]
    if left:
        where_each = [f"stage {stage} before {_word(action, places[stage])}" for stage, action in left[:_NAMED]]
        yield f"stages wait for each other in a circle: {', '.join(where_each)}"


def _next_block(actions: Sequence[Action], start: int) -> Sequence[Action]:
    """The action that is due, with the one it is joined with; none at the end."""
    size = 2 if start < len(actions) and actions[start].with_next else 1
    return actions[start : start + size]


def _made(action: Action) -> Kind:
    """What a pass gives to those that wait: a whole backward pass gives the input gradient."""
    return Kind.INPUT_GRADIENT if action.kind is Kind.BACKWARD else action.kind


def _needed(action: Action, places: Sequence[Place], last: dict[int, int]) -> tuple[Kind, Place, int] | None:
    """What a pass waits for."""
    replica, position = place = places[action.chunk]
    if action.kind is Kind.WEIGHT_GRADIENT:
        return Kind.INPUT_GRADIENT, place, action.micro_batch
    if action.kind is Kind.FORWARD:
        return (Kind.FORWARD, (replica, position - 1), action.micro_batch) if position else None
    if position == last[replica]:
        return Kind.FORWARD, place, action.micro_batch
    return Kind.INPUT_GRADIENT, (replica, position + 1), action.micro_batch
