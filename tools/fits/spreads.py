"""How far published steps scatter around simulated ones, by software stack: what intervals add to kernel spreads.

    python -m tools.fits.spreads TABLE.csv [--without GROUP] [--write]

Leave out (``--without``) sources whose errors have another cause than the stack: over EFA the network's numbers are in
doubt, and their own spread says so. For each stack and kind of model (dense, Mixture-of-Experts) it finds the smallest
spread with which 80 % of the rows lie in their 80 % interval, and prints what intervals with the spread of all other
sources would have held of each.
"""

import argparse
import re
from collections.abc import Sequence
from math import ceil, log, sqrt
from pathlib import Path
from typing import NamedTuple

from simmoe.errors import SimmoeError
from simmoe.pipeline import run
from simmoe.report.uncertainty import DEVIATIONS, LEVEL, stack_spread, step_spread
from simmoe.specs.throughput_scenario import scenario_of
from simmoe.specs.throughput_table_reader import TableRow, read_table

SOFTWARE = Path("hardware_db/software")
FEWEST = 5  # rows of a stack below which its scatter says nothing
LEAST = 0.02  # no table of single runs is better than this


class Row(NamedTuple):
    """One published step: its source, log(simulated / measured), and the spread its kernels and links explain."""

    group: str
    error: float
    explained: float


def rows_by_stack(table: Sequence[TableRow]) -> dict[tuple[str, str], list[Row]]:
    """The rows that can be simulated, by stack id and kind of model."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in table:
        scenario = scenario_of(row).scenario
        if scenario is None or row.measured_s is None:
            continue
        try:
            result = run(scenario)
        except SimmoeError:
            continue
        explained = sqrt(max(0.0, step_spread(result) ** 2 - stack_spread(result) ** 2))
        key = (scenario.training.software.id, "moe" if row.moe else "dense")
        found.setdefault(key, []).append(Row(row.group, log(result.step_time_s / row.measured_s), explained))
    return found


def needed(rows: Sequence[Row]) -> float:
    """The spread with which the share `LEVEL` of the rows lies inside."""
    each = sorted(sqrt(max(0.0, (row.error / DEVIATIONS) ** 2 - row.explained**2)) for row in rows)
    return max(LEAST, each[min(len(each), ceil(LEVEL * len(each))) - 1])


def held(rows: Sequence[Row], spread: float) -> float:
    """The share of rows inside intervals of that spread."""
    return sum(abs(row.error) <= DEVIATIONS * sqrt(spread**2 + row.explained**2) for row in rows) / len(rows)


def _write(stack: str, kind: str, spread: float, rows: Sequence[Row]) -> None:
    """Put the spread into the file of the stack."""
    path = SOFTWARE / f"{stack}.yaml"
    groups = ", ".join(dict.fromkeys(row.group for row in rows))
    line = (
        f"{kind}_spread: {{value: {spread:.3f}, kind: measured, source: simmoe-steps, "
        f'locator: "{len(rows)} published steps: {groups}"}}'
    )
    text = re.sub(rf"^{kind}_spread:.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    path.write_text(f"{text.rstrip()}\n{line}\n", encoding="utf-8")


def main() -> None:
    """Find, print, and with ``--write`` put the spreads into the files of the stacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="published steps, columns as scenarios/published/README.md says")
    parser.add_argument("--write", action="store_true", help="write the spreads into hardware_db/software")
    parser.add_argument("--without", action="append", default=[], metavar="GROUP", help="leave out a source")
    options = parser.parse_args()
    table = [row for row in read_table(options.table) if row.group not in options.without]
    for (stack, kind), rows in sorted(rows_by_stack(table).items()):
        spread = needed(rows)
        print(f"{stack:26s}{kind:6s}{len(rows):4d} rows  spread {spread:.3f}  inside {held(rows, spread):.0%}")
        for group in dict.fromkeys(row.group for row in rows):
            inside, outside = ([row for row in rows if (row.group == group) is same] for same in (True, False))
            if outside:
                print(f"    {group:28s} left out: {held(inside, needed(outside)):.0%} of {len(inside)} rows inside")
        if options.write and len(rows) >= FEWEST:
            _write(stack, kind, spread, rows)


if __name__ == "__main__":
    main()
