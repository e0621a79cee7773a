"""``simmoe reproduce hetermoe --assignment``: gather and squeeze beside the optimum, for every point of the figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from simmoe.cli.screen import console, heading, indented, percent, table

if TYPE_CHECKING:
    from simmoe.explore.hetermoe_assignment import Point


def compare_assignments(paper: str, csv: Path | None, json: str | None, jobs: int) -> None:
    """Ask both of every point, print a table or write files; exit status 1 if gather and squeeze beats the optimum.

    Parameters
    ----------
    paper : str
        Its name.
    csv : Path or None
        File of one line a point; ``-`` = the screen, instead of the table.
    json : str or None
        The same as one object.
    jobs : int
        Processes; 1 = in this one.
    """
    from simmoe.cli.reproduce_run import side_by_side
    from simmoe.cli.write_texts import check_outputs, write_texts
    from simmoe.explore import hetermoe_assignment as assignment

    check_outputs(csv, json, None)
    asked = assignment.cases()
    points = list(side_by_side(assignment.compared, asked, jobs, "comparing assignments").values())
    texts = {}
    if csv is not None:
        texts[str(csv)] = assignment.csv_text(points)
    if json is not None:
        texts[json] = assignment.json_text(paper, points)
    if not write_texts(texts):
        print_points(points)
        print_summary(points, [Path(file) for file in texts])
    if assignment.beaten(points):
        raise typer.Exit(1)


def print_points(points: "Sequence[Point]") -> None:
    """One line a point."""
    from simmoe.explore.hetermoe_assignment import digits, name

    screen = console()
    remark = "experts that each expert device gives up, layer by layer; recursion = what the optimum is found with"
    screen.print(heading("Gather and squeeze beside the best assignment", remark))
    columns = ("point", "R", "seq", "greedy", "optimum", "recursion", "", "gap", "simulated", "", "gap", "")
    lines = table(*columns, right="lrrllrrrrrrl")
    for point in points:
        greedy, optimum = point.greedy, point.optimum
        if greedy is None or optimum is None:
            lines.add_row(name(point.case), *[""] * 10, point.note)
            continue
        lines.add_row(
            name(point.case), str(point.batch.together), str(point.batch.size), digits(greedy.moved),
            digits(optimum.moved), f"{greedy.predicted_s:.3f}", f"{optimum.predicted_s:.3f}",
            percent(point.gap_predicted), f"{greedy.simulated_s:.3f}", f"{optimum.simulated_s:.3f}",
            percent(point.gap), "*" if point.misled else "",
        )  # fmt: skip
    screen.print(indented(lines))


def print_summary(points: "Sequence[Point]", written: Sequence[Path]) -> None:
    """What the points amount to, and the files that were written."""
    from simmoe.cli.reproduce_report import print_written
    from simmoe.explore.hetermoe_assignment import beaten, name, summary

    screen = console()
    screen.print(heading("Summary", "steps in seconds; * = the optimum of the recursion is the slower one simulated"))
    screen.print(indented(summary(points).sentence))
    wrong = ", ".join(name(point.case) for point in beaten(points))
    if wrong:
        screen.print(f"Gather and squeeze beats the optimum of the recursion, which cannot be: {wrong}", soft_wrap=True)
    print_written(written)
