"""Keep of torch-profiler traces of a training processor what `simmoe calibrate` reads, as a small file.

python -m tools.shrink_trace RAW.json.gz... --out SMALL.json.gz --steps 4

Several captures of one rank become one, at the times at which they were taken. Kept are the last steps of each,
operators that do the work (`simmoe.calibration.host_kernels`) and gloo's collectives with the shapes of their inputs;
names of users, hosts and files are not among them. Equal input gives equal bytes.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simmoe.calibration.trace import GLOO, Trace, read_trace

_SHORTEST_NS = 20_000


def shrunk(traces: Sequence[Trace], steps: int) -> dict[str, Any]:
    """The captures of a rank as one trace in JSON.

    Parameters
    ----------
    traces : sequence of Trace
        Read with ``on_host``, in order of time.
    steps : int
        The last so many of each are kept.
    """
    base = min(trace.steps[-steps:][0].start_ns for trace in traces)
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": traces[0].rank, "world_size": traces[0].world_size},
        "baseTimeNanoseconds": base,
        "traceEvents": [
            event
            for trace in traces
            for event in sorted(_events(trace, steps, base), key=lambda event: (event["ts"], -event["dur"]))
        ],
    }


def _events(trace: Trace, steps: int, base: int) -> Iterator[dict[str, Any]]:
    """The steps, and what began in them."""
    kept = trace.steps[-steps:]
    for step in kept:
        yield _event("user_annotation", "ProfilerStep#0", step.start_ns - base, step.end_ns - step.start_ns, 1)
    for row in range(len(trace)):
        start, took = int(trace.start_ns[row]), int(trace.end_ns[row] - trace.start_ns[row])
        name = trace.names[int(trace.name[row])]
        talks = name.startswith(GLOO)
        if kept[0].start_ns <= start < kept[-1].end_ns and (talks or took >= _SHORTEST_NS):
            event = _event("user_annotation" if talks else "cpu_op", name, start - base, took, 2 if talks else 1)
            if talks:
                event["args"] = {key: trace.args[row].get(key) for key in ("Input Dims", "Input type")}
            yield event


def _event(category: str, name: str, start_ns: int, took_ns: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start_ns / 1000, "dur": took_ns / 1000,
    }  # fmt: skip


def main() -> None:
    """Shrink the captures of a rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    traces = [read_trace(path, on_host=True) for path in options.raw]
    text = json.dumps(shrunk(traces, options.steps), separators=(",", ":"))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        packed.write(text.encode())


if __name__ == "__main__":
    main()
