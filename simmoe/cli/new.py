"""``simmoe new``: a scenario to start from."""

from pathlib import Path
from typing import Annotated

import typer


def new(
    model: Annotated[
        str, typer.Option(help="Id of a model (simmoe models list) or its config.json.", show_default=False)
    ],
    node: Annotated[str, typer.Option(help="Id of a node (simmoe db list node).", show_default=False)],
    count: Annotated[int, typer.Option(min=1, help="How many of these nodes.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write it; printed if left out.", show_default=False
        ),
    ] = None,
    fabric: Annotated[
        str | None,
        typer.Option(
            metavar="LINK", help="Id of the network link between nodes (simmoe db list link).", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write a scenario that simulates as it is: the simplest uniform plan that fits."""
    from simmoe.errors import OutputError

    if output is not None and output.exists() and not force:
        raise OutputError(f"{output} exists, write to another file or say --force")
    from simmoe.cli.new_scenario import propose, scenario_text

    proposal = propose(model, node, count, fabric)
    text = scenario_text(proposal)
    if output is None:
        typer.echo(text, nl=False)
        return
    from simmoe.report.output import replacing

    with replacing(output) as temporary:
        temporary.write_text(text, encoding="utf-8")
    typer.echo(f"Wrote {output}; next: simmoe simulate {output}")
