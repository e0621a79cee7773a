"""Which collective a kernel is, how large, and in which group; kernel names alone often lie."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.calibration.host_kernels import Span
from simmoe.calibration.trace import Trace

Rows = NDArray[np.bool_]

_KERNEL = re.compile(r"^(?:void )?(?:nccl|rccl|msccl)(?:Dev)?Kernel_?([A-Za-z]+)", re.IGNORECASE)
_EXCHANGE = re.compile(r"::ep::\w+::(\w+)|deep_ep::\w+::(\w+)")
_ELEMENT_BYTES = {
    **dict.fromkeys(("double", "int64", "long", "long int", "uint64", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int", "int32", "uint32"), 4),
    **dict.fromkeys(("half", "bfloat16", "c10::half", "c10::bfloat16", "short", "short int", "int16"), 2),
    **dict.fromkeys(("byte", "char", "signed char", "unsigned char", "bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "c10::float8_e4m3fn", "c10::float8_e5m2"), 1),
}
_PLAIN = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    **dict.fromkeys(("sendrecv", "send", "recv", "isend", "irecv", "batchisendirecv"), "send_recv"),
}


class CollectiveCall(NamedTuple):
    """A collective as a kernel ran it.

    Attributes
    ----------
    row : int
        Of the trace.
    name : str
        As the trace calls it.
    kind : str
        In NCCL's words where it is one of those: ``all_reduce``, ``all_gather``, ...
    bytes : int or None
        The larger of the buffers that go in and come out of one rank [B]; None = not recorded, never guessed.
    ranks : int or None
        Of its group.
    group : str
        The process group as the trace names it; empty = not recorded.
    """

    row: int
    name: str
    kind: str
    bytes: int | None
    ranks: int | None
    group: str


def collective_names(trace: Trace, comm: Rows) -> NDArray[np.object_]:
    """What each communication kernel is called; empty for other rows.

    Parameters
    ----------
    trace : Trace
    comm : array of bool
        Which rows communicate.

    Returns
    -------
    array of str
        The argument ``Collective name`` of the kernel; else the row ``nccl:`` around its launch; else
        ``kernel:`` and a part of the kernel's name, or ``ep:`` and the function.
    """
    found = np.full(len(trace), "", dtype=object)
    calls = _Calls(trace)
    for row in np.flatnonzero(comm).tolist():
        found[row] = _name(trace, row, calls.around(row))
    return found


def collectives(trace: Trace, comm: Rows) -> list[CollectiveCall]:
    """The communication kernels of a trace in the order in which they begin.

    Parameters
    ----------
    trace : Trace
    comm : array of bool
    """
    calls = _Calls(trace)
    rows = sorted(np.flatnonzero(comm).tolist(), key=lambda row: (trace.start_ns[row], row))
    return [_call(trace, row, calls.around(row)) for row in rows]


def plain_kind(name: str) -> str:
    """A collective in NCCL's words.

    Parameters
    ----------
    name : str
        As a trace calls it.

    Examples
    --------
    >>> plain_kind("_allgather_base"), plain_kind("kernel:AllReduce"), plain_kind("my_own")
    ('all_gather', 'all_reduce', 'my_own')
    """
    bare = name.removeprefix("kernel:").replace("_", "").lower()
    return _PLAIN.get(bare, name)


class _Calls:
    """Rows of the host that name collectives, by thread."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._spans: dict[tuple[str, str], list[Span]] = defaultdict(list)
        for span in trace.calls:
            self._spans[span.thread].append(span)
        self._starts = {thread: [span.start_ns for span in spans] for thread, spans in self._spans.items()}

    def around(self, row: int) -> Span | None:
        """The innermost one around the launch of a row."""
        trace, launched = self._trace, int(self._trace.launch_ns[row])
        if launched < 0 or trace.launcher[row] < 0:
            return None
        thread = trace.threads[int(trace.launcher[row])]
        spans = self._spans.get(thread, [])
        for place in range(bisect_right(self._starts.get(thread, []), launched) - 1, -1, -1):
            if spans[place].name.startswith("nccl:") and spans[place].end_ns >= launched:
                return spans[place]
            if launched - spans[place].start_ns > _LONGEST_NS:
                break
        return None


_LONGEST_NS = 10**10


def _name(trace: Trace, row: int, around: Span | None) -> str:
    own = trace.args.get(row, {}).get("Collective name")
    if isinstance(own, str) and own:
        return own
    if around is not None:
        return around.name.removeprefix("nccl:")
    kernel = trace.names[int(trace.name[row])]
    if part := _KERNEL.match(kernel):
        return f"kernel:{part[1]}"
    if part := _EXCHANGE.search(kernel):
        return f"ep:{part[1] or part[2]}"
    return "kernel:other"


def _call(trace: Trace, row: int, around: Span | None) -> CollectiveCall:
    args, name = trace.args.get(row, {}), _name(trace, row, around)
    size = _size_of(args) or _input_size(args)
    if size is None and around is not None:
        size = _input_size(around.args)
    ranks = args.get("Group size")
    group = args.get("Process Group Name") or args.get("Process Group Description") or ""
    return CollectiveCall(
        row, name, plain_kind(name), size, ranks if isinstance(ranks, int) and ranks > 0 else None, str(group)
    )


def _size_of(args: dict[str, Any]) -> int | None:
    """The larger buffer by the arguments of the kernel [B]."""
    counts = [args.get("In msg nelems"), args.get("Out msg nelems")]
    known = [count for count in counts if isinstance(count, int) and count >= 0]
    each = _element(args.get("dtype"))
    return max(known) * each if known and each else None


def _input_size(args: dict[str, Any]) -> int | None:
    """The input by the shapes that the host recorded [B]."""
    shapes, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return None
    total = 0
    for shape, kind in zip(_leaves(shapes), kinds, strict=False):
        each = _element(kind)
        if each and shape:
            total += each * int(np.prod(shape, dtype=np.int64))
    return total or None


def _leaves(shapes: list[Any]) -> Iterator[list[int]]:
    """Shapes, also of lists of tensors."""
    for shape in shapes:
        if isinstance(shape, list) and all(isinstance(size, int) and size >= 0 for size in shape):
            yield shape
        elif isinstance(shape, list):
            yield from _leaves(shape)


def _element(kind: Any) -> int | None:
    return _ELEMENT_BYTES.get(str(kind).lower().removeprefix("torch.")) if kind is not None else None
