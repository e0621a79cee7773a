"""How much of the cost model is fitted: free parameters of every table, how firm they are, and how well they do."""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from simmoe.report.database import INHERITED
from simmoe.report.numbers import nominal_class
from simmoe.specs.base import Kind as Firmness
from simmoe.specs.base import Quantity, Spec
from simmoe.specs.catalog import Kind
from simmoe.specs.numbers import Number, numbers_of
from simmoe.specs.residuals_file import Residual

FITTED: tuple[Kind, ...] = ("accelerator", "link", "software")
WIRE, EXCHANGES, ALL, STACK = "wire", "exchanges", "all", "stack"
_OTHER = (Firmness.DATASHEET, Firmness.PAPER)


class TableFit(NamedTuple):
    """The parameters of one table of one part.

    Attributes
    ----------
    kind, part, table : str
        ``accelerator`` and a kernel table; ``link`` and a collective, ``exchanges``, ``wire`` or, for errors over all
        collectives together, ``all``; ``software`` and ``stack``.
    parameters : int
        Numbers in the table, those taken over from another part among them.
    free : int
        Numbers that somebody chose for this part: not those taken over, and a value that stands for several variants
        once.
    measured, derived, guess, other : int
        The kinds of the free ones; other = printed in a data sheet or paper.
    inherited_from : str
        The part that numbers were taken over from; empty if none was.
    switches : int
        Choices that are no numbers, of a software stack.
    spread : float or None
        Median of the relative standard uncertainties that the numbers state [1].
    sources : tuple of str
        Keys of ``sources.yaml``, the one of most numbers first.
    residuals : tuple of Residual
        Errors on measurements that the fit was not made from.
    """

    kind: str
    part: str
    table: str
    parameters: int
    free: int
    measured: int
    derived: int
    guess: int
    other: int
    inherited_from: str
    switches: int
    spread: float | None
    sources: tuple[str, ...]
    residuals: tuple[Residual, ...]

    @property
    def held_out(self) -> tuple[Residual, ...]:
        """Residuals on held-out measurements of the sources that the fit was made from."""
        return tuple(one for one in self.residuals if not one.crosses_sources)

    @property
    def across(self) -> tuple[Residual, ...]:
        """Residuals of fits to one source tested on another."""
        return tuple(one for one in self.residuals if one.crosses_sources)


def table_fits(kind: str, part: Spec, id: str, residuals: Iterable[Residual] = ()) -> list[TableFit]:
    """Every fitted table of a part.

    Parameters
    ----------
    kind : str
        ``accelerator``, ``link`` or ``software``; any other part has none.
    part : Spec
    id : str
        Of the part.
    residuals : iterable of Residual
        Of the whole database; those of other parts are passed over.

    Returns
    -------
    list of TableFit
        In the order of the part's file.
    """
    tables: dict[str, list[Number]] = {}
    for number in numbers_of(part, f"{kind} {id}") if kind in FITTED else ():
        table = _table(kind, number)
        if table is not None:
            tables.setdefault(table, []).append(number)
    mine: dict[str, list[Residual]] = {}
    for one in residuals:
        if one.part == id:
            mine.setdefault(_residual_table(one, tables), []).append(one)
    tables |= {table: [] for table in mine if table not in tables}
    switches = _switches(part) if kind == "software" else 0
    return [
        _table_fit(kind, id, table, numbers, mine.get(table, ()))._replace(switches=switches)
        for table, numbers in tables.items()
    ]


def _table(kind: str, number: Number) -> str | None:
    """The table that a number belongs to; None for what nobody fits: peaks, sizes, nominal bandwidths, prices."""
    words = number.name.replace("[", ".").split(".")
    if kind == "software":
        return STACK
    if kind == "accelerator":
        return words[1] if words[0] == "efficiency" else None
    if words[0] == "collectives":
        return words[1].split(" ")[0].rstrip("]")
    if words[0] == "exchanges":
        return EXCHANGES
    return None if nominal_class(number) else WIRE


def _residual_table(residual: Residual, tables: Collection[str]) -> str:
    """The table that an error is of; those of collectives name theirs in the variant, ``all_reduce:8``."""
    if residual.table != "collectives":
        return residual.table
    collective = residual.variant.partition(":")[0]
    return collective if collective in tables else ALL


def _switches(part: Spec) -> int:
    """Fields that are neither numbers nor names."""
    values = {name: getattr(part, name) for name in type(part).model_fields}
    return sum(not isinstance(value, Quantity) for name, value in values.items() if name not in {"id", "name", "date"})


def _table_fit(kind: str, id: str, table: str, numbers: Sequence[Number], residuals: Sequence[Residual]) -> TableFit:
    quantities = [number.quantity for number in numbers]
    own = {
        (n.name.rpartition(".")[2], n.quantity.text, n.quantity.kind, n.quantity.source)
        for n in numbers
        if not n.quantity.note.startswith(INHERITED)
    }
    from_other = [q.note.removeprefix(INHERITED).split(";")[0] for q in quantities if q.note.startswith(INHERITED)]
    kinds = Counter(kind for _, _, kind, _ in own)
    spreads = [quantity.spread for quantity in quantities if quantity.spread is not None]
    cited = Counter(quantity.source for quantity in quantities)
    return TableFit(
        kind=kind,
        part=id,
        table=table,
        parameters=len(numbers),
        free=len(own),
        measured=kinds[Firmness.MEASURED],
        derived=kinds[Firmness.DERIVED],
        guess=kinds[Firmness.GUESS],
        other=sum(kinds[one] for one in _OTHER),
        inherited_from=", ".join(dict.fromkeys(from_other)),
        switches=0,
        spread=statistics.median(spreads) if spreads else None,
        sources=tuple(sorted(cited, key=lambda name: (-cited[name], name))),
        residuals=tuple(residuals),
    )


def totals(fits: Iterable[TableFit]) -> dict[str, dict[str, int]]:
    """Sums over the tables of each kind of part, and over all of them.

    Parameters
    ----------
    fits : iterable of TableFit

    Returns
    -------
    dict
        Kind, then ``all`` -> parts, parameters, free, measured, derived, guess, other, held_out_rows. Errors over
        several tables together are not counted again.
    """
    every = list(fits)
    return {kind: _sum([fit for fit in every if fit.kind == kind]) for kind in FITTED} | {"all": _sum(every)}


def _sum(fits: Sequence[TableFit]) -> dict[str, int]:
    names = ("parameters", "free", "measured", "derived", "guess", "other")
    return {
        "parts": len({(fit.kind, fit.part) for fit in fits}),
        **{name: sum(getattr(fit, name) for fit in fits) for name in names},
        "held_out_rows": sum(one.held_out_rows for fit in fits if fit.table != ALL for one in fit.held_out),
    }


def fit_entry(fit: TableFit) -> dict[str, Any]:
    """A table's fit as plain data, its residuals as mappings; the order of the keys is fixed."""
    return fit._asdict() | {
        "sources": list(fit.sources),
        "residuals": [one._asdict() for one in fit.residuals],
    }


def csv_rows(fits: Iterable[TableFit]) -> list[dict[str, Any]]:
    """One row for each residual of each table, and one for a table without any.

    Parameters
    ----------
    fits : iterable of TableFit

    Returns
    -------
    list of dict
        With equal keys; residual columns are empty where there is none.
    """
    none = dict.fromkeys(("variant", "source", "rows", "held_out_rows", "median_error", "p90_error", "bias"), "")
    rows = []
    for fit in fits:
        fixed = {name: value for name, value in fit._asdict().items() if name not in {"residuals", "sources"}}
        fixed |= {"spread": "" if fit.spread is None else f"{fit.spread:.4g}", "sources": " ".join(fit.sources)}
        found = [{name: getattr(one, name) for name in none} for one in fit.residuals]
        rows += [fixed | one for one in found or [none]]
    return rows
