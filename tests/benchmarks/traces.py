"""Speed and memory of reading traces: against HolisticTraceAnalysis on the same files, and a file of gigabytes.

    python -m tests.benchmarks.traces [--venv FOLDER] [--gigabytes 2]

Files are those of `SIMMOE_SHARED` (by default ``../shared``) that both read. Each is read in a process of its own,
whose time begins after its imports. Exit status 1 if a target is missed: a third of the analyser's time over all files,
peak memory of 1.5 times the JSON or 500 MB, whichever is larger.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.check_trace_with_hta import analyser

LARGEST, FASTER, MOST_SHARE, MOST_BYTES = 10, 3.0, 1.5, 500e6
OURS = """
import resource, sys, time
from pathlib import Path
from simmoe.calibration.breakdown import breakdown, steps_of
from simmoe.calibration.trace import read_trace
start = time.perf_counter()
trace = read_trace(Path(sys.argv[1]))
whole, steps = breakdown(trace), steps_of(trace)
took = time.perf_counter() - start
print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, len(trace))
"""
THEIRS = """
import sys, time, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
start = time.perf_counter()
analysis = TraceAnalysis(trace_dir=sys.argv[1])
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
print(time.perf_counter() - start)
"""


class Ours(NamedTuple):
    """Seconds, peak memory [B] and rows."""

    seconds: float
    peak: float
    rows: float


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def last_line(python: str | Path, code: str, argument: Path) -> list[float] | None:
    """What a process says last, as numbers; None if it fails."""
    environment = os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"}
    result = subprocess.run(
        [str(python), "-c", code, str(argument)], capture_output=True, text=True, check=False, env=environment
    )
    lines = result.stdout.strip().splitlines()
    return [float(word) for word in lines[-1].split()] if result.returncode == 0 and lines else None


def ours(path: Path) -> Ours:
    """A file read by SimMoE."""
    found = last_line(sys.executable, OURS, path)
    if found is None:
        raise SystemExit(f"{path}: cannot be read")
    return Ours(*found)


def theirs(python: Path, path: Path) -> float | None:
    """Seconds of the analyser; None if it fails on the file."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, Path(folder) / path.name)
        found = last_line(python, THEIRS, Path(folder))
    return found[0] if found else None


def compare(python: Path, folder: Path) -> bool:
    """The largest files, one after another; whether a target is missed."""
    files = sorted(folder.glob("*.json.gz"), key=lambda path: -path.stat().st_size)
    mine, other, missed, counted = 0.0, 0.0, False, 0
    for path in files:
        size = sum(len(chunk) for chunk in iter_chunks(path))
        own, seconds = ours(path), theirs(python, path)
        heavy = own.peak > max(MOST_SHARE * size, MOST_BYTES)
        missed |= heavy
        if seconds is None or not own.rows:
            continue
        mine, other, counted = mine + own.seconds, other + seconds, counted + 1
        say(f"{path.name:58} {size / 1e6:6.1f} MB  {own.seconds:6.2f} s  {seconds:6.2f} s  {own.peak / 1e6:5.0f} MB")
        if counted == LARGEST:
            break
    say(f"{counted} files: SimMoE {mine:.1f} s, HolisticTraceAnalysis {other:.1f} s, ratio {other / mine:.1f}")
    return missed or other < FASTER * mine


def iter_chunks(path: Path) -> list[bytes]:
    """The contents of a gzip file."""
    with gzip.open(path) as file:
        return list(iter(lambda: file.read(2**22), b""))


def large(gigabytes: float) -> bool:
    """A synthetic trace; whether its memory is beyond bounds."""
    arguments = {"device": 0, "stream": 7, "correlation": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 1.5, "pid": 0, "tid": 7, "args": arguments}
    function = {"ph": "X", "cat": "python_function", "name": "a.py(1): f" * 20, "ts": 0, "dur": 9, "pid": 1, "tid": 1}
    rest = ",".join(json.dumps(function) for _ in range(100))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        with path.open("w", encoding="utf-8") as file:
            file.write('{"traceEvents": [')
            number = 0
            while file.tell() < gigabytes * 1e9:
                kernel["ts"] = 10 * number
                file.write(("," if number else "") + json.dumps(kernel) + "," + rest)
                number += 1
            file.write("]}")
        size, own = path.stat().st_size, ours(path)
    say(f"{size / 1e9:.1f} GB: {own.seconds:.1f} s, {own.peak / 1e6:.0f} MB, {own.rows:,.0f} kernels")
    return own.peak > MOST_BYTES


def main() -> int:
    """Both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--venv", type=Path, default=cache / "simmoe" / "hta", help="%(default)s")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="%(default)s")
    options = parser.parse_args()
    shared = Path(os.environ.get("SIMMOE_SHARED") or Path(__file__).parents[3] / "shared")
    missed = compare(analyser(options.venv.absolute()), shared / "traces")
    missed |= large(options.gigabytes)
    say("MISSED a target" if missed else "all targets met")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
