"""The command ``simmoe``: every subcommand by name, and what becomes of errors.

Exit status: 0 done; 1 a check failed; 2 the input is wrong; 3 the plan does not fit; 130 interrupted.
"""

import io
import sys
from typing import Annotated

import typer

import simmoe
from simmoe.cli import (
    bench,
    calibrate,
    cite,
    compare,
    db,
    export,
    import_,
    models,
    new,
    plan,
    report,
    reproduce,
    results,
    scenarios,
    sensitivity,
    simulate,
    sweep,
    trace,
    validate,
    whatif,
)
from simmoe.errors import SimmoeError

app = typer.Typer(
    name="simmoe",
    help="Simulate Mixture-of-Experts training on clusters of unlike GPUs: how fast a plan runs, "
    "whether it fits, and what holds it back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich's needs a Markdown parser, and that takes longer than all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(short_help="Simulate one training step of a scenario.")(simulate.simulate)
app.command(short_help="List the scenarios that come along.")(scenarios.scenarios)
app.command(short_help="Write a scenario to start from.")(new.new)
app.command(short_help="Search for the fastest plan that fits.")(plan.plan)
app.command(short_help="Compare planners on a scenario.")(compare.compare)
app.command(short_help="Compare a scenario before and after some changes.")(whatif.whatif)
app.command(short_help="Say which resource the step time hangs on.")(sensitivity.sensitivity)
app.command(short_help="Write a page about a scenario.")(report.report)
app.command(short_help="Simulate many points of a scenario.")(sweep.sweep)
app.command(short_help="Join the results of several shards.")(sweep.merge)
app.command()(cite.cite)
app.command()(validate.validate)
app.command(short_help="Say where the time of a profiler trace went.")(trace.trace)
app.command(short_help="Print a script that measures a node.")(bench.bench)
app.command(short_help="Fit the database to traces and benchmarks of your machines.")(calibrate.calibrate)
app.command()(reproduce.reproduce)
app.add_typer(results.app, name="results")
app.add_typer(db.app, name="db")
app.add_typer(models.app, name="models")
app.add_typer(export.app, name="export")
app.add_typer(import_.app, name="import")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"simmoe {simmoe.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options that stand before a subcommand."""


def main() -> None:
    """Run the command line; the entry point of the installed script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a bar that the terminal cannot show is no reason to fail
    try:
        app()
    except SimmoeError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_status) from None
