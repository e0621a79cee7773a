"""Events of profiler traces, and files of them."""

import json
from pathlib import Path
from typing import Any

from simmoe.calibration.trace import Trace, read_trace


def kernel(ts: Any = 10, dur: Any = 5, name: str = "my_kernel", cat: str = "kernel", **args: Any) -> dict[str, Any]:
    """A row of a stream."""
    where = {"device": 0, "stream": 7, "correlation": 1} | args
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 7, "args": where}


def launch(ts: Any, correlation: int, name: str = "cudaLaunchKernel", cat: str = "cuda_runtime") -> dict[str, Any]:
    """A row of the host that launches."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": ts,
        "dur": 1,
        "pid": 1,
        "tid": 2,
        "args": {"correlation": correlation},
    }


def step(number: int, ts: Any, dur: Any) -> dict[str, Any]:
    name = f"ProfilerStep#{number}"
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 2}


class Folder:
    """Writes traces into a folder and reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def text(self, text: bytes | str, name: str = "trace.json") -> Path:
        path = self.folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def events(self, *events: dict[str, Any], name: str = "trace.json", **top: Any) -> Trace:
        return read_trace(self.text(json.dumps({**top, "traceEvents": list(events)}), name))

    def raw(self, text: bytes | str) -> Trace:
        return read_trace(self.text(text))
