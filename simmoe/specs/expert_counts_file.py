"""Read measured expert loads: a CSV file of counts, or what Megatron's ``--moe-routing-trace-path`` writes.

CSV: a header and one line for each expert that received anything, with the columns layer, expert, count and, if the
micro-batches are told apart, micro_batch; all whole numbers from 0. Lines that start with ``#`` are comments.

Trace: one ``*.jsonl`` file a rank with a record for each layer and micro-batch, ``{"step", "block", "layer", "rank",
"num_tokens", "topk", "top_indices"}`` (Megatron-LM@059f0f5, megatron/core/transformer/moe/router_trace.py); further
keys are ignored. Megatron numbers the layers inside a pipeline stage, so a trace of several stages has one subfolder
for each, in the order of their names. Virtual stages cannot be told apart in a trace.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from simmoe.errors import SpecError
from simmoe.specs.routing import ExpertCounts, LayerCounts
from simmoe.specs.routing_trace_file import Cell, read_trace_files
from simmoe.specs.text_file import MEBIBYTE, got, one_line, read_text, refuse

LARGEST_FILE = 16 * MEBIBYTE
LARGEST_NUMBER = {"layer": 10_000, "expert": 100_000, "micro_batch": 100_000, "count": 10**15}
MOST_ENTRIES = 4_000_000  # layers x micro-batches x experts
MOST_PROBLEMS = 20


def read_expert_counts(path: Path) -> ExpertCounts:
    """Measured expert loads from a file or folder.

    Parameters
    ----------
    path : Path
        A CSV file of at most 16 MiB, a ``.jsonl`` file of a routing trace, or the folder of one.

    Returns
    -------
    ExpertCounts
        Layers in order. Counts of all ranks are added up, micro-batch by micro-batch.

    Raises
    ------
    SpecError
        If it cannot be read, is too large, or holds anything else; with file and line.
    """
    stages = _trace_stages(path)
    cells = _read_csv(path) if stages is None else _joined(read_trace_files(stage) for stage in stages)
    if not cells:
        refuse(path, "no counts in it, write lines of layer,expert,count")
    return _as_counts(cells, path)


def _trace_stages(path: Path) -> list[list[Path]] | None:
    """The trace files of each pipeline stage in order; None if this is a CSV file."""
    if path.suffix == ".jsonl":
        return [[path]]
    if not path.is_dir():
        return None
    own = _traces(path)
    if own:
        return [own]
    stages = [_traces(folder) for folder in sorted(path.iterdir(), key=_natural) if folder.is_dir()]
    stages = [stage for stage in stages if stage]
    if not stages:
        refuse(path, "no .jsonl file in this folder or in a folder inside it, name the folder of a routing trace")
    return stages


def _traces(folder: Path) -> list[Path]:
    return sorted((file for file in folder.iterdir() if file.suffix == ".jsonl"), key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that puts stage10 behind stage9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d{1,9}|\D+", path.name)]


def _joined(stages: Iterator[dict[tuple[int, int], Cell]]) -> dict[tuple[int, int], Cell]:
    """The cells of all stages, the layers of each numbered on from those of the one before."""
    found: dict[tuple[int, int], Cell] = {}
    first = 0
    for cells in stages:
        found.update({(layer + first, sample): cell for (layer, sample), cell in cells.items()})
        first += 1 + max((layer for layer, _ in cells), default=-1)
    return found


def _as_counts(cells: dict[tuple[int, int], Cell], path: Path) -> ExpertCounts:
    """Rows of equal length, by layer and micro-batch."""
    experts = 1 + max(max(cell) for cell in cells.values())
    entries = experts * len(cells)
    if entries > MOST_ENTRIES:
        refuse(path, f"too many counts (got {entries}, at most {MOST_ENTRIES}), keep fewer micro-batches")
    layers: dict[int, list[tuple[int, ...]]] = {}
    for (layer, _), cell in sorted(cells.items()):
        layers.setdefault(layer, []).append(tuple(cell.get(expert, 0) for expert in range(experts)))
    # Built without validation: every number has been checked, and there may be millions.
    return ExpertCounts.model_construct(
        source=one_line(str(path), 4096),
        layers=tuple(LayerCounts.model_construct(layer=layer, samples=tuple(rows)) for layer, rows in layers.items()),
    )


def _read_csv(path: Path) -> dict[tuple[int, int], Cell]:
    """The cells of a CSV file."""
    lines = read_text(path, LARGEST_FILE).splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    records = csv.reader((line for _, line in numbered), strict=True)
    cells: dict[tuple[int, int], Cell] = {}
    problems: list[str] = []
    try:
        header = _header(next(records, []), path)
        for record in records:
            place = f"{one_line(str(path), 4096)}:{numbered[records.line_num - 1][0]}"
            sentence = _add(cells, header, record)
            if sentence:
                problems.append(f"{place}: {sentence}")
            if len(problems) == MOST_PROBLEMS:
                break
    except csv.Error as error:
        refuse(path, f"not a CSV file ({error}), correct it")
    if problems:
        raise SpecError(problems)
    return cells


def _header(names: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in names]
    if sorted(names) not in (["count", "expert", "layer"], ["count", "expert", "layer", "micro_batch"]):
        refuse(f"{path}:1", f"the columns layer,expert,count are expected {got(','.join(names))}, name them so")
    return names


def _add(cells: dict[tuple[int, int], Cell], header: list[str], record: list[str]) -> str | None:
    """Add one line; a sentence if it is wrong."""
    if len(record) != len(header):
        return f"{len(header)} cells are expected (got {len(record)}), write them"
    numbers: dict[str, int] = {}
    for name, text in zip(header, (cell.strip() for cell in record), strict=True):
        digits = text.isascii() and text.isdigit() and len(text) <= 16
        if not digits or int(text) > LARGEST_NUMBER[name]:
            return f"{name}: a whole number from 0 to {LARGEST_NUMBER[name]} is expected {got(text)}, correct it"
        numbers[name] = int(text)
    layer, expert = numbers["layer"], numbers["expert"]
    cell = cells.setdefault((layer, numbers.get("micro_batch", 0)), {})
    if expert in cell:
        return f"expert {expert} of layer {layer} is given twice, add its counts up"
    cell[expert] = numbers["count"]
    return None
