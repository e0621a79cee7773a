"""What a profiler trace says of the work of accelerators, as columns."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from simmoe.calibration.host_kernels import Span, working
from simmoe.calibration.trace_json import Event, Header, TraceText, plain

IntArray = NDArray[np.int64]

KINDS = ("kernel", "memcpy", "memset")
_CATEGORIES = {"kernel": 0, "gpu_memcpy": 1, "memcpy": 1, "gpu_memset": 2, "memset": 2}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "driver"}
_STEP_ROWS = {"user_annotation", "operator", "cpu_op"}
_STEP = re.compile(r"^ProfilerStep ?[#*] ?\d*")
_DECADE_NS = 315_360_000_000_000_000
_MOST_NS = 2**62
HOST = "host.launch"
GLOO = "gloo:"
_WORDS = (b"ProfilerStep", b"nccl:", b"record_param_comms", HOST.encode())
_CALL = re.compile(r"^(?:nccl:|c10d::|record_param_comms)")


class _Launched(msgspec.Struct):
    """The argument that is read of a launch."""

    correlation: int | None = None


_LAUNCH = msgspec.json.Decoder(_Launched)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The work of accelerators in one trace; row i of the arrays is one kernel, copy or fill.

    Attributes
    ----------
    path : Path
    start_ns, end_ns : array of int
        Since the epoch of the trace's clock [ns].
    kind : array of int
        Index into `KINDS`.
    name : array of int
        Index into `names`.
    names : tuple of str
    lane : array of int
        Index into `lanes`.
    lanes : tuple of (str, str)
        Device and stream; "None" where the trace does not say.
    correlation : array of int
        Of the row that launched it; -1 = none is known.
    launch_ns : array of int
        When it was launched; -1 = not in the trace [ns].
    launcher : array of int
        Index into `threads`; -1 = not in the trace.
    threads : tuple of (str, str)
        Process and thread of the host.
    args : dict of int to dict
        Of communication kernels, by row.
    steps : tuple of Span
        Rows ``ProfilerStep#`` of the host, in order of time.
    calls : tuple of Span
        Rows of the host that name a collective.
    host : tuple of Span
        Launches of a simulated host, in the traces that SimMoE writes.
    stated : dict of int to str
        Index into `names` -> category, where a row says so itself, as in the traces that SimMoE writes.
    rank, world_size : int or None
    warnings : tuple of str
        What was left out, and what to doubt.
    """

    path: Path
    start_ns: IntArray
    end_ns: IntArray
    kind: IntArray
    name: IntArray
    names: tuple[str, ...]
    lane: IntArray
    lanes: tuple[tuple[str, str], ...]
    correlation: IntArray
    launch_ns: IntArray
    launcher: IntArray
    threads: tuple[tuple[str, str], ...]
    args: dict[int, dict[str, Any]]
    steps: tuple[Span, ...]
    calls: tuple[Span, ...]
    host: tuple[Span, ...]
    stated: dict[int, str]
    rank: int | None
    world_size: int | None
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        """Kernels, copies and fills."""
        return len(self.start_ns)


def nanoseconds(text: bytes) -> int | None:
    """A time in microseconds, written as a number or as a string of one, exactly [ns]; None if it is none.

    Parameters
    ----------
    text : bytes

    Examples
    --------
    >>> nanoseconds(b"1712345678901234.567"), nanoseconds(b'"12.5"'), nanoseconds(b"1e3"), nanoseconds(b"NaN")
    (1712345678901234567, 12500, 1000000, None)
    """
    bare = text.strip(b'" ')
    whole, _, fraction = bare.partition(b".")
    if whole.isdigit() and (not fraction or fraction.isdigit()) and len(whole) < 20 and len(fraction) <= 3:
        return int(whole) * 1000 + int((fraction + b"000")[:3])
    try:
        value = Decimal(bare.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError, ValueError):
        return None
    if not value.is_finite() or abs(value) > _MOST_NS:
        return None
    return int((value * 1000).to_integral_value())


class _Names:
    """Numbers names in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, name: Any) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


class _Reader:
    """Collects what is wanted from the events of one file; with `on_host` its operators and gloo's collectives, too."""

    def __init__(self, *, on_host: bool = False) -> None:
        self.on_host = on_host
        self.operators: list[Span] = []
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.names, self.lanes, self.threads = _Names(), _Names(), _Names()
        self.launches: dict[int, tuple[int, int]] = {}
        self.args: dict[int, dict[str, Any]] = {}
        self.steps: list[Span] = []
        self.calls: list[Span] = []
        self.host: list[Span] = []
        self.stated: dict[int, str] = {}
        self.damaged = self.negative = 0

    def block(self, events: Iterable[Event]) -> None:
        """Take what is wanted of some events."""
        for event in events:
            if event.ph != "X" or not event.cat:
                continue
            category = event.cat.lower()
            if category in _CATEGORIES:
                self._work(event, _CATEGORIES[category])
            elif category in _LAUNCHES:
                self._launch(event)
            elif category in _STEP_ROWS:
                self._host(event)
                if self.on_host:
                    self._operator(event, category)

    def _span(self, event: Event) -> tuple[int, int] | None:
        """Begin and end; None if the begin is no number, the duration negative."""
        start = nanoseconds(bytes(event.ts))
        took = nanoseconds(bytes(event.dur)) if bytes(event.dur) else 0
        if start is None or took is None or abs(start) > _MOST_NS or took > _MOST_NS:
            self.damaged += 1
            return None
        if took < 0:
            self.negative += 1
            return None
        return start, start + took

    def _work(self, event: Event, kind: int) -> None:
        span = self._span(event)
        if span is None:
            return
        args = _mapping(plain(event.args))
        name = str(plain(event.name) or "")
        lane = (_word(args.get("device"), event.pid), _word(args.get("stream"), event.tid))
        row = (*span, kind, self.names.number(name), self.lanes.number(lane), _whole(args.get("correlation")))
        if kind == 0 and ("Collective name" in args or "ccl" in name or "::" in name):
            self.args[len(self.rows)] = args
        elif "category" in args and isinstance(args["category"], str):
            self.stated[row[3]] = args["category"]
        self.rows.append(row)

    def _launch(self, event: Event) -> None:
        try:
            correlation = _whole(_LAUNCH.decode(event.args).correlation)
        except msgspec.DecodeError:
            correlation = _whole(_mapping(plain(event.args)).get("correlation"))
        start = nanoseconds(bytes(event.ts))
        if correlation > 0 and start is not None and correlation not in self.launches:
            self.launches[correlation] = (start, self.threads.number(_thread(event)))

    def _host(self, event: Event) -> None:
        raw = bytes(event.name)
        if not any(word in raw for word in _WORDS):
            return
        name, span = str(plain(event.name) or ""), self._span(event)
        if span is None:
            return
        if _STEP.match(name):
            self.steps.append(Span(name, *span, _thread(event), {}))
        elif _CALL.match(name):
            self.calls.append(Span(name, *span, _thread(event), _mapping(plain(event.args))))
        elif name.startswith(HOST):
            self.host.append(Span(name, *span, _thread(event), _mapping(plain(event.args))))

    def _operator(self, event: Event, category: str) -> None:
        """Work of a processor that trains: an operator, or a collective of gloo as a kernel of its own lane."""
        name, span = str(plain(event.name) or ""), self._span(event)
        if span is None:
            return
        if name.startswith(GLOO):
            args = {**_mapping(plain(event.args)), "Collective name": name.removeprefix(GLOO)}
            self.args[len(self.rows)] = args
            self.rows.append((*span, 0, self.names.number(name), self.lanes.number(("cpu", "gloo")), -1))
        elif category == "cpu_op":
            self.operators.append(Span(name, *span, _thread(event), {}))

    def add_operators(self) -> None:
        """Rows for the operators that do the work."""
        for one in working(self.operators):
            lane = self.lanes.number(("cpu", one.thread[1]))
            self.rows.append((one.start_ns, one.end_ns, 0, self.names.number(one.name), lane, -1))


def _thread(event: Event) -> tuple[str, str]:
    """Process and thread as they are written: they are only told apart."""
    return bytes(event.pid).decode("latin-1"), bytes(event.tid).decode("latin-1")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _word(value: Any, other: Any) -> str:
    """A device or stream; ``stream 7`` of old traces is 7. Where the arguments say nothing, the track of the row."""
    if value is None:
        value = plain(other)
    return str(value).removeprefix("stream ") if value is not None else "None"


def _whole(value: Any) -> int:
    """A correlation; -1 for what is none."""
    return value if isinstance(value, int) and 0 <= value < _MOST_NS else -1


def read_trace(path: Path, *, on_host: bool = False) -> Trace:
    """Read a trace of the torch profiler.

    Parameters
    ----------
    path : Path
        JSON or gzip, an object with ``traceEvents`` or a list of events, of any generation since 2020: NVIDIA and AMD
        accelerators, whose rows have the categories ``kernel``, ``gpu_memcpy`` and ``gpu_memset``.
    on_host : bool
        The processor itself trains: its operators are kernels (`host_kernels.working`), gloo's calls collectives.

    Returns
    -------
    Trace
        Without rows if the capture holds none.

    Raises
    ------
    SpecError
        If the file is no trace, cut off, or larger than the bounds of `trace_file`.
    """
    text, reader = TraceText(path), _Reader(on_host=on_host)
    for events in text.blocks():
        reader.block(events)
    reader.add_operators()
    return _made(path, text, reader)


def _made(path: Path, text: TraceText, reader: _Reader) -> Trace:
    base, info = 0, dict[str, Any]()
    for header in text.header:
        base = _base(header) or base
        info = _mapping(plain(header.distributedInfo)) or info
    kept, warnings = _sound(reader)
    columns = np.array([reader.rows[row] for row in kept], dtype=np.int64).reshape(-1, 6).T
    launched = [reader.launches.get(number, (-1, -1)) for number in columns[5].tolist()]
    launch_ns = np.array([start for start, _ in launched], dtype=np.int64)
    if text.skipped:
        warnings.append(f"{text.skipped:,} events are no JSON and were left out")
    place = {row: number for number, row in enumerate(kept)}
    return Trace(
        path=path,
        start_ns=columns[0] + base,
        end_ns=columns[1] + base,
        kind=columns[2],
        name=columns[3],
        names=tuple(reader.names.numbers),
        lane=columns[4],
        lanes=tuple(reader.lanes.numbers),
        correlation=columns[5],
        launch_ns=np.where(launch_ns < 0, -1, launch_ns + base),
        launcher=np.array([thread for _, thread in launched], dtype=np.int64),
        threads=tuple(reader.threads.numbers),
        args={place[row]: args for row, args in reader.args.items() if row in place},
        steps=tuple(sorted((_moved(span, base) for span in reader.steps), key=lambda span: span.start_ns)),
        calls=tuple(sorted((_moved(span, base) for span in reader.calls), key=lambda span: span.start_ns)),
        host=tuple(_moved(span, base) for span in reader.host),
        stated=reader.stated,
        rank=_size(info.get("rank")),
        world_size=_size(info.get("world_size")),
        warnings=tuple(warnings),
    )


def _moved(span: Span, base: int) -> Span:
    return span._replace(start_ns=span.start_ns + base, end_ns=span.end_ns + base)


def _base(header: Header) -> int:
    """The time that all stamps are relative to [ns]."""
    value = plain(header.baseTimeNanoseconds)
    return value if isinstance(value, int) and 0 <= value < _MOST_NS // 2 else 0


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _sound(reader: _Reader) -> tuple[list[int], list[str]]:
    """Rows that can be true, and what is said of the others and of overlaps."""
    warnings = []
    if reader.damaged:
        warnings.append(f"{reader.damaged:,} rows have no time and were left out")
    if reader.negative:
        warnings.append(f"{reader.negative:,} rows end before they begin and were left out")
    kept = list(range(len(reader.rows)))
    if kept:
        middle = int(np.median([reader.rows[row][0] for row in kept]))
        lost = [row for row in kept if abs(reader.rows[row][0] - middle) > _DECADE_NS]
        if lost and len(lost) < len(kept):
            warnings.append(f"{len(lost):,} rows lie ten years away from the others and were left out")
            kept = sorted(set(kept) - set(lost))
    return kept, warnings


def lanes_overlap(trace: Trace) -> Iterator[tuple[int, int]]:
    """Rows of one stream that begin before an earlier one has ended, with that one.

    Parameters
    ----------
    trace : Trace

    Notes
    -----
    Programmatic dependent launch makes short ones; a row that outlasts the next ones by far is a fault of the tracer.
    """
    order = np.lexsort((trace.start_ns, trace.lane))
    longest = -1
    for before, row in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        if trace.lane[before] != trace.lane[row]:
            longest = -1
            continue
        if longest < 0 or trace.end_ns[before] > trace.end_ns[longest]:
            longest = before
        if trace.start_ns[row] < trace.end_ns[longest]:
            yield row, longest
