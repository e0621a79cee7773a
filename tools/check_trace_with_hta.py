"""Compare the times SimMoE reports with those HolisticTraceAnalysis finds in SimMoE's own trace.

    python tools/check_trace_with_hta.py SCENARIO... [--venv FOLDER] [--tolerance 0.001]

HolisticTraceAnalysis wants another pandas than SimMoE, so it lives in a virtual environment of its
own, made on first use (about 500 MB; needs the package index). Exits with 1 if a time differs by
more than the tolerance, with 2 if a comparison was not possible.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

REQUIREMENTS = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
DOES_NOT_FIT = 3  # exit status of SimMoE; the times are there all the same
SIMMOE = (sys.executable, "-c", "from simmoe.cli.main import main; main()")

# Runs in the other environment. Times are in microseconds there.
ANALYSE = """
import json, sys, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
_, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**6)
sums = kernels.groupby(["rank", "kernel_type"])["sum (us)"].sum()
found = {
    int(rank): {
        "window_s": row["kernel_time(us)"] / 1e6,
        "compute_s": row["compute_time(us)"] / 1e6,
        "exposed_communication_s": row["non_compute_time(us)"] / 1e6,
        "idle_s": row["idle_time(us)"] / 1e6,
        "overlap_percent": float(overlap["comp_comm_overlap_pctg"].get(rank, float("nan"))),
        "compute_kernels_s": float(sums.get((rank, "COMPUTATION"), 0.0)) / 1e6,
        "communication_kernels_s": float(sums.get((rank, "COMMUNICATION"), 0.0)) / 1e6,
    }
    for rank, row in times.iterrows()
}
json.dump(found, open(sys.argv[2], "w"))
"""


def differences(
    ranks: Sequence[Mapping[str, Any]], found: Mapping[str, Mapping[str, float]], tolerance: float
) -> Iterator[str]:
    """One sentence for each rank and quantity on which SimMoE and the analyser do not agree.

    Parameters
    ----------
    ranks : sequence of mappings
        The ``ranks`` of SimMoE's JSON result.
    found : mapping
        Rank, as text -> what the analyser says.
    tolerance : float
        Largest difference, relative to the rank's window [1].

    Notes
    -----
    The analyser knows two more quantities than the result states. The overlap in percent of the
    communication is rounded to 0.01. The sum over computing kernels is the computing time, since
    one stream computes; the sum over collectives is at least the communication time.
    """
    if sorted(found) != sorted(str(rank["rank"]) for rank in ranks):
        yield f"the trace has ranks {sorted(found)}, the result {[rank['rank'] for rank in ranks]}"
        return
    for rank in ranks:
        theirs, slack = found[str(rank["rank"])], tolerance * rank["window_s"]
        where = f"rank {rank['rank']}"
        for key in ("window_s", "compute_s", "exposed_communication_s", "idle_s"):
            if not abs(theirs[key] - rank[key]) <= slack:
                yield f"{where}: {key} is {rank[key]:.9g}, in the trace {theirs[key]:.9g}"
        if not abs(theirs["compute_kernels_s"] - rank["compute_s"]) <= slack:
            yield f"{where}: compute kernels last {theirs['compute_kernels_s']:.9g} s in the trace"
        if not theirs["communication_kernels_s"] >= rank["communication_s"] - slack:
            yield f"{where}: collectives last only {theirs['communication_kernels_s']:.9g} s"
        if communication := rank["communication_s"]:
            percent = 100 * rank["overlapped_s"] / communication
            if not abs(theirs["overlap_percent"] - percent) <= 100 * tolerance + 0.005:
                yield f"{where}: overlap is {percent:.4g} %, in the trace {theirs['overlap_percent']} %"


def analyse(python: Path, folder: Path, output: Path) -> dict[str, dict[str, float]]:
    """What HolisticTraceAnalysis finds in the traces of a folder, by rank."""
    # By default the analyser rounds every time down to whole microseconds.
    environment = os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"}
    run([python, "-c", ANALYSE, folder, output], env=environment)
    found: dict[str, dict[str, float]] = json.loads(output.read_text(encoding="utf-8"))
    return found


def analyser(folder: Path) -> Path:
    """The interpreter of the environment in `folder`, which is made unless complete."""
    python, stamp = folder / "bin" / "python", folder / ".complete"
    wanted = "\n".join(REQUIREMENTS)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        say(f"installing {REQUIREMENTS[0]} into {folder}")
        run([sys.executable, "-m", "venv", folder])
        run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS])
        stamp.write_text(wanted, encoding="utf-8")
    return python


def check(scenario: Path, python: Path, tolerance: float) -> bool:
    """Simulate one scenario and compare; true if everything agrees."""
    with tempfile.TemporaryDirectory() as temporary:
        traces = Path(temporary) / "traces"
        arguments = ("simulate", str(scenario), "--json", "-", "--trace", f"{traces}/")
        ranks = json.loads(run([*SIMMOE, *arguments], accept=DOES_NOT_FIT))["ranks"]
        found = analyse(python, traces, Path(temporary) / "found.json")
    wrong = list(differences(ranks, found, tolerance))
    say(f"{scenario}: {len(ranks)} rank classes, {len(wrong) or 'no'} differences")
    for sentence in wrong:
        say(f"  {sentence}")
    return not wrong


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None, accept: int = 0) -> str:
    """Standard output of a command; on failure its complaints, and the end of this program."""
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if result.returncode not in (0, accept):
        say(result.stdout[-2000:] + result.stderr[-4000:])
        say(f"failed: {' '.join(map(str, command[:4]))[:200]}")
        raise SystemExit(2)
    return result.stdout


def say(text: str) -> None:
    """Write a line for the person who runs this."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Exit status: 0 if all agree, 1 if not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenario", nargs="+", type=Path)
    parser.add_argument("--venv", type=Path, default=cache / "simmoe" / "hta", help="%(default)s")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of the window, %(default)s")
    options = parser.parse_args()
    python = analyser(options.venv.absolute())
    passed = [check(scenario, python, options.tolerance) for scenario in options.scenario]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
