"""Whether a change of one choice goes the right way: pairs of published runs that differ in nothing else."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from simmoe.report.league import Comparison
from simmoe.specs.throughput_table_reader import TableRow

APART = 0.05  # measured times that differ by less say nothing about the order
CHOICES: Mapping[str, tuple[str, ...]] = {
    "layout": ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "schedule_norm", "pp_layout"),
    "micro-batch": ("mbs",),
    "dispatcher": ("dispatcher_norm",),
    "recomputation": ("recompute_norm",),
    "overlap": ("ep_overlap", "dp_overlap", "tp_overlap", "cuda_graph", "graph_scope"),
    "sharding": ("dp_sharding",),
    "precision": ("precision_norm",),
}
# What two runs must share besides the choices: the job, the model, and who measured it with what.
_SHARED = (
    "group", "model", "accelerator_id", "num_gpus", "gpus_per_node", "interconnect", "seq_len", "gbs", "num_layers",
    "hidden_size", "ffn_hidden_size", "num_heads", "num_experts", "top_k", "capacity_factor", "routing", "mtp_layers",
    "vocab_size", "software", "software_date", "source_url",
)  # fmt: skip
_REMARKS = {
    "pp_layout": re.compile(r"(?:pp_layout=|\blayout )([EtmL|*()\d,]+)"),
    "graph_scope": re.compile(r"cuda_graph=([^;]+)"),
}


class Pair(NamedTuple):
    """Two runs that differ in one choice.

    Attributes
    ----------
    choice : str
        A key of `CHOICES`.
    first, second : str
        Ids of the rows.
    before, after : str
        What the choice is in each.
    measured, simulated : float
        Change of the time of a token from the first to the second [1].
    """

    choice: str
    first: str
    second: str
    before: str
    after: str
    measured: float
    simulated: float

    @property
    def right(self) -> bool:
        """The simulated change has the sign of the measured one."""
        return self.measured * self.simulated > 0


class Score(NamedTuple):
    """How many pairs of a choice go the right way."""

    choice: str
    pairs: int
    right: int


def pairs(rows: Iterable[TableRow], comparisons: Iterable[Comparison]) -> tuple[Pair, ...]:
    """Every pair of simulated runs that differs in one choice and by more than `APART` in time a token.

    Parameters
    ----------
    rows : iterable of TableRow
        The table that was compared.
    comparisons : iterable of Comparison
        Those of its rows, found by id.

    Notes
    -----
    All other choices are the same, and so are job, model, batch, source and software version. Fields that a source
    leaves empty count as equal to each other only.
    """
    results = {one.id: one for one in comparisons if one.error is not None}
    known = [row for row in rows if row.id in results]
    return tuple(pair for choice in CHOICES for pair in _pairs_of(choice, known, results))


def _pairs_of(choice: str, rows: Sequence[TableRow], results: Mapping[str, Comparison]) -> Iterator[Pair]:
    families: dict[tuple[str, ...], list[TableRow]] = {}
    others = [column for name, columns in CHOICES.items() if name != choice for column in columns]
    for row in rows:
        families.setdefault(tuple(_cell(row, column) for column in (*_SHARED, *others)), []).append(row)
    for family in families.values():
        for one, other in combinations(family, 2):
            before, after = ([_cell(row, column) for column in CHOICES[choice]] for row in (one, other))
            measured = _change(results[one.id].measured_s, results[other.id].measured_s)
            if before != after and abs(measured) > APART:
                simulated = _change(results[one.id].simulated_s, results[other.id].simulated_s)
                words = _words(choice, before, after), _words(choice, after, before)
                yield Pair(choice, one.id, other.id, *words, measured, simulated)


def _cell(row: TableRow, column: str) -> str:
    """A cell, or what a remark among the schedule's words says."""
    if column not in _REMARKS:
        return row.group if column == "group" else row.text(column)
    found = _REMARKS[column].search(row.text("schedule_overlap_flags"))
    return found[1] if found else ""


def _change(before: float | None, after: float | None) -> float:
    return (after or 0.0) / before - 1 if before else 0.0


def _words(choice: str, mine: Sequence[str], others: Sequence[str]) -> str:
    """What differs from another run, in a few words."""
    columns = CHOICES[choice]
    if len(columns) == 1:
        return mine[0] or "-"
    places = [place for place in range(len(columns)) if mine[place] != others[place]]
    return " ".join(f"{columns[place]}={mine[place] or '-'}" for place in places)


def scores(compared: Sequence[Pair]) -> tuple[Score, ...]:
    """The pairs of each choice and of all, and how many go the right way.

    Examples
    --------
    >>> right = Pair("layout", "a", "b", "tp=1", "tp=2", 0.2, 0.1)
    >>> scores([right, right._replace(second="c", after="tp=4", simulated=-0.1)])
    (Score(choice='layout', pairs=2, right=1), Score(choice='all', pairs=2, right=1))
    """
    counted = [
        Score(choice, len(part), sum(pair.right for pair in part))
        for choice in CHOICES
        if (part := [pair for pair in compared if pair.choice == choice])
    ]
    if counted:
        counted.append(Score("all", len(compared), sum(pair.right for pair in compared)))
    return tuple(counted)
