"""Read ``efficiency/<accelerator>/<table>.csv``: one measured or assumed parameter in each row."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simmoe.specs.base import Spec
from simmoe.specs.document import Document, Position, Problem, dotted, raise_problems
from simmoe.specs.hardware import Efficiency
from simmoe.specs.suggest import did_you_mean
from simmoe.specs.text_file import got, one_line, read_text, refuse
from simmoe.specs.validation import validate

COLUMNS = ["variant", "parameter", "value", "kind", "source", "locator", "spread", "note"]
_VARIANT = {
    "gemm": ("dtype",),
    "attention": ("kernel", "head_dim"),
    "grouped_gemm": ("kernel", "dtype"),
    "memory_bound": ("operator",),
}
# First word of a variant that lacks it: a dtype alone is Transformer Engine's loop over experts.
_FIRST_WORD = {"grouped_gemm": "te"}
TABLES = tuple(_VARIANT)
Group = tuple[str, str]
Groups = dict[Group, tuple[dict[str, Any], dict[str, Position]]]


def table_files(folder: Path) -> list[Path]:
    """The kernel tables of one accelerator that are there, in the order of `TABLES`.

    Parameters
    ----------
    folder : Path
        ``efficiency/<accelerator>``; there need be no such folder.

    Raises
    ------
    SpecError
        If a CSV file in it is named for no table: it would be passed over in silence.
    """
    there = sorted(path for path in folder.glob("*.csv") if path.is_file())
    raise_problems(
        [
            Problem(Position(one_line(str(path), 4096)), "", f"no table is named so, {did_you_mean(path.stem, TABLES)}")
            for path in there
            if path.stem not in TABLES
        ]
    )
    return sorted(there, key=lambda path: TABLES.index(path.stem))


def read_efficiency(paths: Sequence[Path]) -> Efficiency:
    """What an accelerator reaches, from its kernel tables.

    Parameters
    ----------
    paths : sequence of Path
        Each is named for its table, one of `TABLES`. A variant (such as gemm bf16) is taken whole from the last file
        that has it.

    Raises
    ------
    SpecError
        With every problem of the tables, each with its file and line.
    """
    groups: Groups = {}
    for path in paths:
        groups |= _read_groups(path)
    document = Document(Position(str(paths[-1])), {table: [] for table in _VARIANT})
    named: dict[str, str] = {}
    for (table, variant), (entry, positions) in groups.items():
        at = (table, len(document.data[table]))
        named[dotted(at)] = f"{table}.{variant}"
        document.data[table].append(entry)
        document.values[at] = positions[""]
        document.values |= {(*at, name): position for name, position in positions.items() if name}
    efficiency, problems = validate(Efficiency, document.data, document)
    if efficiency is None:
        raise_problems([_by_variant(problem, named) for problem in problems])
        raise AssertionError("validate returned neither a spec nor a problem")
    return efficiency


def variant_of(table: str, fit: Spec) -> str:
    """What the first column of a table calls a fit, such as ``fa3:128``."""
    return ":".join(str(getattr(fit, name)) for name in _VARIANT[table])


def _by_variant(problem: Problem, named: dict[str, str]) -> Problem:
    """A problem that names the variant of a row and not its number."""
    at = ".".join(problem.key.split(".")[:2])
    return problem._replace(key=problem.key.replace(at, one_line(named.get(at, at)), 1))


def _read_groups(path: Path) -> Groups:
    """The rows of one table, gathered by variant."""
    name = one_line(str(path), 4096)
    rows = csv.reader(read_text(path).splitlines(), strict=True)
    groups: Groups = {}
    problems: list[Problem] = []
    try:
        header = next(rows)
        if header != COLUMNS:
            refuse(f"{name}:1", f"not the header {','.join(COLUMNS)} {got(','.join(header))}, correct it")
        for row in rows:
            problems += _add_row(groups, path.stem, row, Position(name, rows.line_num, 1))
    except csv.Error as error:
        refuse(f"{name}:{rows.line_num}", f"not valid CSV ({error}), correct the quotes")
    raise_problems(problems)
    return groups


def _add_row(groups: Groups, table: str, row: list[str], position: Position) -> list[Problem]:
    """Put one row into its group, or say what is wrong with it."""
    if len(row) != len(COLUMNS):
        sentence = f"{len(COLUMNS)} columns are expected (got {len(row)}), quote commas in text"
        return [Problem(position, "", sentence)]
    cells = dict(zip(COLUMNS, row, strict=True))
    variant, parameter = cells["variant"], cells["parameter"]
    if table in _FIRST_WORD and ":" not in variant:
        variant = f"{_FIRST_WORD[table]}:{variant}"
    if (table, variant) not in groups:
        words = variant.split(":")
        if len(words) != len(_VARIANT[table]):
            form = ":".join(_VARIANT[table])
            return [Problem(position, "variant", f"{form} is expected {got(variant)}, write it so")]
        named: dict[str, Any] = dict(zip(_VARIANT[table], words, strict=True))
        if "head_dim" in named and named["head_dim"].isdecimal():
            named["head_dim"] = int(named["head_dim"][:9])
        groups[table, variant] = (named, {"": position})
    entry, positions = groups[table, variant]
    if parameter in entry:
        return [Problem(position, parameter, "the parameter is given twice, remove one of the two")]
    fields = ("value", "kind", "source", "locator", "spread", "note")
    entry[parameter] = {field: cells[field] for field in fields if cells[field]}
    positions[parameter] = position
    return []
