"""``simmoe bench``: a script that measures on a node what ``simmoe calibrate`` wants to know."""

from pathlib import Path
from typing import Annotated

import typer


def bench(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write it; printed if left out.", show_default=False
        ),
    ] = None,
) -> None:
    """Print a script that needs PyTorch alone: run it with torchrun on one node, then give calibrate what it wrote."""
    from simmoe.cli.write_texts import STDOUT, write_texts
    from simmoe.specs.data_folders import data_root
    from simmoe.specs.text_file import read_text

    text = read_text(data_root() / "scenarios" / "bench" / "measure.py")
    if not write_texts({STDOUT if output is None else str(output): text}):
        name = "measured"
        typer.echo(f"Wrote {output}. On a node with 8 accelerators, then here:")
        typer.echo(f"  torchrun --nproc-per-node 8 {output} --out {name}")
        typer.echo(
            f"  simmoe calibrate --scenario SCENARIO --gemm-csv {name}/gemm.csv --nccl-log {name}/nccl.log -o own.yaml"
        )
