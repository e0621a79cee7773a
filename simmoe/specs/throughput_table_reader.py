"""Read tables of published training throughput, one measured run a row.

The columns are those of `scenarios/published/README.md`; lines that start with ``#`` are comments, further columns
are ignored, an empty cell means that the source does not say. `simmoe.specs.throughput_scenario` makes scenarios of
them.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from simmoe.errors import SpecError
from simmoe.specs.text_file import MEBIBYTE, got, read_text

LARGEST_FILE = 16 * MEBIBYTE

REQUIRED = (
    "id", "model", "accelerator_id", "num_gpus", "gpus_per_node", "precision_norm", "seq_len", "mbs", "gbs",
    "tp", "pp", "num_layers", "hidden_size", "num_heads", "vocab_size", "measured_s",
)  # fmt: skip
_WHOLE = (
    "num_gpus", "gpus_per_node", "seq_len", "mbs", "gbs", "tp", "pp", "vpp", "ep", "etp", "cp", "dp", "num_layers",
    "hidden_size", "ffn_hidden_size", "moe_ffn_hidden_size", "num_heads", "num_kv_heads", "head_dim", "q_lora_rank",
    "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_experts", "top_k", "shared_expert_ffn",
    "first_dense_layers", "moe_layer_period", "vocab_size", "mtp_layers", "sliding_window",
)  # fmt: skip
_MAY_BE_ZERO = {"q_lora_rank", "shared_expert_ffn", "first_dense_layers", "mtp_layers"}
_REAL = ("measured_s", "capacity_factor", "peak_mem_gib")
_SWITCHES = ("ep_overlap", "dp_overlap", "tp_overlap", "cuda_graph", "gated_mlp", "tied_embeddings")


@dataclass(frozen=True, slots=True)
class TableRow:
    """One published measurement.

    Attributes
    ----------
    id, group : str
        Name of the row and of the source it belongs to.
    place : str
        ``file:line``, for messages.
    cells : mapping of str to str
        Every cell by its column, stripped; checked to be what its column holds.
    """

    id: str
    group: str
    place: str
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell as it is written; empty where the source does not say."""
        return self.cells.get(column, "")

    def whole(self, column: str) -> int | None:
        """A cell as a whole number, None where it is empty."""
        text = self.text(column)
        return int(text) if text else None

    def real(self, column: str) -> float | None:
        """A cell as a number, None where it is empty."""
        text = self.text(column)
        return float(text) if text else None

    def switch(self, column: str) -> bool | None:
        """A cell that holds 1 or 0, None where it is empty."""
        text = self.text(column)
        return text == "1" if text else None

    @property
    def flags(self) -> frozenset[str]:
        """The words of the column ``flags``."""
        return frozenset(filter(None, self.text("flags").split(";")))

    @property
    def measured_s(self) -> float | None:
        """Published time of one optimizer step [s]."""
        return self.real("measured_s")

    @property
    def moe(self) -> bool:
        """The model has routed experts."""
        return self.whole("num_experts") is not None


def read_table(path: str | Path) -> tuple[TableRow, ...]:
    """The rows of a table, in its order.

    Parameters
    ----------
    path : str or Path
        A CSV file in UTF-8 of at most 16 MiB with one line of column names.

    Raises
    ------
    SpecError
        If the file cannot be read, lacks a column, or a cell is not what its column holds; every problem is told.
    """
    path = Path(path)
    lines = read_text(path, LARGEST_FILE).splitlines(keepends=True)
    numbered = [(number, line) for number, line in enumerate(lines, 1) if not line.startswith("#")]
    records = csv.reader([line for _, line in numbered])
    try:
        header = [name.strip() for name in next(records, [])]
        missing = [name for name in REQUIRED if name not in header]
        if missing:
            raise SpecError([f"{path}: column {', '.join(missing)} is missing, add it or name a table of throughput"])
        rows: list[TableRow] = []
        problems: list[str] = []
        for record in records:
            if any(record):
                place = f"{path}:{numbered[records.line_num - 1][0]}"
                problems += _problems(header, record, place)
                cells = {name: cell.strip() for name, cell in zip(header, record, strict=False)}
                rows.append(TableRow(cells.get("id", ""), cells.get("group") or path.stem, place, cells))
    except csv.Error as error:
        raise SpecError([f"{path}: not a CSV file ({error}), correct it"]) from error
    problems += _repeated(rows)
    if problems:
        raise SpecError(problems)
    return tuple(rows)


def _problems(header: list[str], record: list[str], place: str) -> Iterator[str]:
    """What is wrong with one line, one sentence each."""
    if len(record) != len(header):
        yield f"{place}: {len(header)} cells are expected (got {len(record)}), quote cells that hold commas"
        return
    for name, cell in zip(header, record, strict=True):
        sentence = _refusal(name, cell.strip())
        if sentence:
            yield f"{place}: {name}: {sentence} {got(cell.strip())}, correct it or leave it empty"


def _refusal(name: str, cell: str) -> str:
    """Why a cell cannot stand in its column; empty if it can."""
    if not cell:
        return "a name is expected" if name == "id" else ""
    if name in _WHOLE:
        least = 0 if name in _MAY_BE_ZERO else 1
        fits = cell.isascii() and cell.isdigit() and len(cell) <= 12 and int(cell) >= least
        return "" if fits else f"a whole number of at least {least} is expected"
    if name in _REAL:
        return "" if _positive(cell) else "a positive number is expected"
    if name in _SWITCHES and cell not in {"0", "1"}:
        return "1 or 0 is expected"
    return ""


def _positive(cell: str) -> bool:
    try:
        value = float(cell)
    except ValueError:
        return False
    return math.isfinite(value) and value > 0


def _repeated(rows: list[TableRow]) -> list[str]:
    """One sentence for each id that was used before."""
    first: dict[str, str] = {}
    found = []
    for row in rows:
        if row.id in first:
            found.append(f"{row.place}: id: {row.id!r} is also at {first[row.id]}, give each row its own id")
        first.setdefault(row.id, row.place)
    return found
