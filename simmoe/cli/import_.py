"""``simmoe import``: a scenario from the words of the software that runs it."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Make a scenario of what the software that runs a plan was told.")


@app.callback()
def _options() -> None:
    """A command of its own for each source, also while there is one."""


@app.command()
def megatron(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A launch script, a log with Megatron's arguments, or YAML.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The scenario; printed if left out.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Id of the cluster (simmoe db list cluster).", show_default=False),
    ] = None,
) -> None:
    """Make a scenario of what Megatron-LM was told; nothing in FILE is executed.

    What is ignored or assumed is told, and stands in the head of the scenario.
    """
    from simmoe.specs.megatron.scenario_text import import_megatron

    if output is not None:
        from simmoe.cli.output_check import check_writable

        check_writable(output)
    written = import_megatron(file, cluster)
    for remark in written.remarks:
        typer.echo(f"note: {remark}", err=True)
    if output is None:
        typer.echo(written.text, nl=False)
        return
    from simmoe.report.output import replacing

    with replacing(output) as temporary:
        temporary.write_text(written.text, encoding="utf-8")
    typer.echo(f"Wrote {output}; next: simmoe simulate {output}")
