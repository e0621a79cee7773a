"""How long the command line takes, as a multiple of importing numpy and pandas on the same machine.

Run it on an idle machine: ``python tests/benchmarks/startup.py``. Exits with 1 if a limit is passed.
"""

import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "scenarios" / "examples" / "mixtral-8x7b-64xh100.yaml"
RUNS = 5
UNIT = ("-c", "import numpy, pandas")
CASES = (
    ("simmoe simulate", ("-m", "simmoe", "simulate", str(EXAMPLE)), 2.5),
    ("simmoe --help", ("-m", "simmoe", "--help"), 0.6),
)


def wall_time(arguments: tuple[str, ...]) -> float:
    """Seconds of one run of this Python with these arguments."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY)
    return time.perf_counter() - start


def best(commands: list[tuple[str, ...]]) -> list[float]:
    """The best of several runs of each command; they take turns, so that a slow moment meets all of them."""
    rounds = [[wall_time(command) for command in commands] for _ in range(RUNS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def main() -> int:
    """Measure, print and judge."""
    unit, *times = best([UNIT, *(arguments for _, arguments, _ in CASES)])
    sys.stdout.write(f"import numpy, pandas: {unit:.2f} s\n")
    failed = False
    for (name, _, limit), seconds in zip(CASES, times, strict=True):
        ratio = seconds / unit
        failed |= ratio >= limit
        verdict = "ok" if ratio < limit else "TOO SLOW"
        sys.stdout.write(f"{name}: {seconds:.2f} s, ratio {ratio:.2f}, limit {limit} {verdict}\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
