"""The results of a sweep in an SQLite file: safe to interrupt, to go on with, and to write from several processes."""

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simmoe.errors import OutputError, SpecError
from simmoe.specs.text_file import one_line

_PATIENCE_S = 60.0
_FORMAT = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS simmoe (format INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS results (
    hash TEXT PRIMARY KEY, point TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL, figures TEXT NOT NULL
) WITHOUT ROWID;
"""


class Entry(NamedTuple):
    """A finished point.

    Attributes
    ----------
    hash : str
        Of everything that the result depends on.
    point : dict
        Key of the scenario -> value.
    status : str
        ``ok``, ``does not fit`` or ``infeasible``.
    reason : str
        Why it is not ``ok``; else empty.
    figures : dict
        Name -> number or text; empty if infeasible.
    """

    hash: str
    point: dict[str, Any]
    status: str
    reason: str
    figures: dict[str, Any]


class Ledger:
    """A file of results; every `add` is on disk before it returns.

    Parameters
    ----------
    path : Path
        Made if it is not there and `writing`.
    writing : bool, optional

    Raises
    ------
    OutputError
        If it cannot be opened or written: another kind of file, no space, not permitted.
    SpecError
        If it is to be read and is not there.
    """

    def __init__(self, path: Path, *, writing: bool = False) -> None:
        self.path = path
        if not writing and not path.is_file():
            raise SpecError(
                [f"{one_line(str(path), 4096)}: no such file, write one with: simmoe sweep SWEEP.yaml -o FILE"]
            )
        with self._told():
            self._database = sqlite3.connect(path if writing else f"file:{path}?mode=ro", _PATIENCE_S, uri=not writing)
            if writing:
                self._prepare()
            self._check()

    def _prepare(self) -> None:
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        with self._database:
            self._database.executescript(_TABLES)
            if self._database.execute("SELECT count(*) FROM simmoe").fetchone() == (0,):
                self._database.execute("INSERT INTO simmoe VALUES (?)", (_FORMAT,))

    def _check(self) -> None:
        found = self._database.execute("SELECT format FROM simmoe").fetchone()
        if found != (_FORMAT,):
            raise OutputError(f"{self.path}: results of another version of SimMoE, write to a new file")

    def add(self, entries: Iterable[Entry]) -> None:
        """Write results; those that are there already stay as they are.

        Parameters
        ----------
        entries : iterable of Entry

        Raises
        ------
        OutputError
            If they cannot be written; then none of them is.
        """
        rows = [(e.hash, _json(e.point), e.status, e.reason, _json(e.figures)) for e in entries]
        with self._told(), self._database:
            self._database.executemany("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?)", rows)

    def hashes(self) -> frozenset[str]:
        """Of all results."""
        with self._told():
            return frozenset(row[0] for row in self._database.execute("SELECT hash FROM results"))

    def entries(self) -> Iterator[Entry]:
        """All results by hash."""
        with self._told():
            for hash_, point, status, reason, figures in self._database.execute("SELECT * FROM results ORDER BY hash"):
                yield Entry(hash_, json.loads(point), status, reason, json.loads(figures))

    def close(self) -> None:
        """End the use of the file."""
        self._database.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Say what SQLite meets in one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            raise OutputError(f"{one_line(str(self.path), 4096)}: {_remedy(str(error))}") from error


def _remedy(message: str) -> str:
    known = {
        "readonly": "cannot be written, choose another place or change its permissions",
        "unable to open": "cannot be opened, check the folder and its permissions",
        "disk is full": "the disk is full, make room and start again: what is finished is kept",
        "disk I/O error": "the disk does not write, make room or check it: what is finished is kept",
        "not a database": "is no file of results, choose another name",
        "no such table": "is no file of results, choose another name",
        "locked": "is in use by another program for longer than a minute, try again later",
    }
    return next((text for key, text in known.items() if key in message), f"cannot be used ({message})")


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def ledger_csv(entries: Iterable[Entry]) -> tuple[list[str], list[list[Any]]]:
    """Results as a table: header and rows, sorted by hash, without times of day.

    Parameters
    ----------
    entries : iterable of Entry
        By hash.
    """
    found = list(entries)
    keys = sorted({key for entry in found for key in entry.point})
    figures = sorted({name for entry in found for name in entry.figures})
    rows = [
        [
            entry.hash,
            *(_cell(entry.point.get(key)) for key in keys),
            entry.status,
            *(_cell(entry.figures.get(name)) for name in figures),
            entry.reason,
        ]
        for entry in found
    ]
    return ["hash", *keys, "status", *figures, "reason"], rows


def _cell(value: Any) -> Any:
    return "" if value is None else json.dumps(value) if isinstance(value, dict | list | bool) else value
