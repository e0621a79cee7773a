"""Read the JSONL files that Megatron's ``--moe-routing-trace-path`` writes, one a rank, within bounds.

A record is ``{"step": 0, "block": "decoder", "layer": 3, "rank": 0, "num_tokens": 2, "topk": 2, "top_indices":
[[0, 5], [5, 1]], ...}``: which experts each token of one micro-batch chose in one layer
(Megatron-LM@059f0f5, megatron/core/transformer/moe/router_trace.py).
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from simmoe.specs.text_file import MEBIBYTE, got, refuse

LARGEST_LINE = 64 * MEBIBYTE
LARGEST_TRACE = 512 * MEBIBYTE  # all files together
LARGEST_NUMBER = {"step": 10**9, "layer": 10_000, "mtp_idx": 100}
LARGEST_EXPERT = 100_000

Cell = dict[int, int]  # expert to token copies


class _Record(NamedTuple):
    """One layer of one micro-batch on one rank."""

    step: int
    mtp: bool
    layer: int
    experts: Cell


def read_trace_files(paths: Sequence[Path]) -> dict[tuple[int, int], Cell]:
    """The counts of one pipeline stage, summed over ranks.

    Parameters
    ----------
    paths : sequence of Path
        One file a rank.

    Returns
    -------
    dict of (layer, sample) to dict of expert to count
        Samples are numbered over steps and, inside a step, over the micro-batches in which a layer occurs. MTP layers
        follow the last layer of the decoder.

    Raises
    ------
    SpecError
        If a file cannot be read, all are too large together, or a record is not as above.
    """
    _check_size(paths)
    decoder: dict[tuple[int, int, int], Counter[int]] = {}
    mtp: dict[tuple[int, int, int], Counter[int]] = {}
    for path in paths:
        seen: Counter[tuple[bool, int, int]] = Counter()
        for record in _records(path):
            place = (record.mtp, record.layer, record.step)
            table = mtp if record.mtp else decoder
            table.setdefault((record.layer, record.step, seen[place]), Counter()).update(record.experts)
            seen[place] += 1
    first = 1 + max((layer for layer, _, _ in decoder), default=-1)
    joined = {**decoder, **{(layer + first, step, turn): cell for (layer, step, turn), cell in mtp.items()}}
    samples: Counter[int] = Counter()
    found: dict[tuple[int, int], Cell] = {}
    for layer, step, turn in sorted(joined):
        found[layer, samples[layer]] = dict(joined[layer, step, turn])
        samples[layer] += 1
    return found


def _check_size(paths: Sequence[Path]) -> None:
    try:
        size = sum(path.stat().st_size for path in paths if path.is_file())
    except OSError as error:
        refuse(paths[0], f"cannot be read ({error.strerror}), check the path and its permissions")
    if size > LARGEST_TRACE:
        large, most = size / MEBIBYTE, LARGEST_TRACE / MEBIBYTE
        refuse(
            paths[0].parent,
            f"the trace is too large (got {large:.0f} MiB, at most {most:g} MiB), keep fewer ranks or steps of it",
        )


def _records(path: Path) -> Iterator[_Record]:
    """The records of one file."""
    if not path.is_file():
        refuse(path, "there is no such file, check the path")
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LARGEST_LINE), b""), 1):
                if line.strip():
                    yield _record(line, f"{path}:{number}")
    except OSError as error:
        refuse(path, f"cannot be read ({error.strerror}), check the path and its permissions")


def _record(line: bytes, place: str) -> _Record:
    """One record of a line."""
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError):
        refuse(place, "not a JSON record on one line, write one there")
    if not isinstance(data, dict):
        refuse(place, f"a record of a routing trace is expected {got(data)}, name a file of --moe-routing-trace-path")
    mtp = data.get("block") == "mtp"
    layer = _whole(data, "mtp_idx" if mtp else "layer", place)
    return _Record(_whole(data, "step", place), mtp, layer, _experts(data.get("top_indices"), place))


def _whole(data: dict[str, Any], key: str, place: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_NUMBER[key]:
        refuse(place, f"{key}: a whole number from 0 to {LARGEST_NUMBER[key]} is expected {got(value)}, correct it")
    return value


def _experts(rows: Any, place: str) -> Cell:
    """How often each expert was chosen; -1 stands for no expert."""
    try:
        chosen: Counter[Any] = Counter(chain.from_iterable(rows))
    except TypeError:  # not iterable, or a list where an expert should be
        refuse(place, f"top_indices: a list of lists of experts is expected {got(rows)}, correct it")
    chosen.pop(-1, None)
    for expert in chosen:
        if type(expert) is not int or not 0 <= expert <= LARGEST_EXPERT:
            refuse(place, f"top_indices: experts from 0 to {LARGEST_EXPERT} are expected {got(expert)}, correct them")
    return dict(chosen)
