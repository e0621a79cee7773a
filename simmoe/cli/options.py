"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace one value of the scenario, such as plan.tensor_parallel=4. May be given several times.",
        show_default=False,
    ),
]
OverlayFile = Annotated[
    Path | None,
    typer.Option(
        "--overlay",
        metavar="FILE",
        help="Numbers of your own machines instead of the database's, as simmoe calibrate writes them.",
        show_default=False,
    ),
]
DrawCount = Annotated[
    int, typer.Option(min=0, metavar="N", help="Simulate N times more with times that vary (training.jitter).")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the draws; the same seed gives the same times.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write it as JSON, - for the output.", show_default=False),
]
