"""``simmoe db new``: a commented template for a part of one's own."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simmoe.cli.db_parts import KINDS, known_kind

if TYPE_CHECKING:
    from simmoe.specs.catalog import Kind


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.", show_default=False)],
    id: Annotated[
        str, typer.Argument(metavar="ID", help="Name of the new part: letters, digits, . _ -", show_default=False)
    ],
    like: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The part of that kind whose numbers to start from.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="A folder laid out like hardware_db; yours if left out: the first of SIMMOE_HARDWARE_PATH, else "
            "~/.config/simmoe/hardware.",
            show_default=False,
        ),
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Of an accelerator: write kernel tables of its own, too.")
    ] = False,
) -> None:
    """Write a commented template for a part of your own; it works as it stands, with guesses to replace."""
    from simmoe.errors import OutputError
    from simmoe.specs.data_folders import FOLDERS, forget, user_root

    sort = known_kind(kind)
    _check_words(sort, id, tables=tables)
    root = output if output is not None else user_root()
    if output is None and os.environ.get("SIMMOE_HARDWARE_PATH"):  # where a missing folder stops the catalogue
        _make(root)
    path = root / FOLDERS[sort] / f"{id}.yaml"
    texts = _texts(sort, id, like, path, tables=tables)
    existing = [file for file in texts if file.exists()]
    if existing:
        raise OutputError(f"{existing[0]} exists, choose another id or edit that file")
    for file, text in texts.items():
        _write(file, text)
    forget()
    _say_what_is_next(sort, id, list(texts), output)


def _check_words(kind: str, id: str, *, tables: bool) -> None:
    from simmoe.errors import NotFoundError
    from simmoe.specs.catalog import is_id
    from simmoe.specs.text_file import one_line

    if not is_id(id):
        raise NotFoundError(
            f"{one_line(repr(id), 60)} cannot be an id, begin with a letter or digit and use letters, digits, . _ - "
            "(at most 100)"
        )
    if tables and kind != "accelerator":
        raise NotFoundError(f"--tables is for an accelerator, a {kind} has no kernel tables: leave it out")


def _texts(kind: "Kind", id: str, like: str | None, path: Path, *, tables: bool) -> dict[Path, str]:
    """Every file to write with its text."""
    from simmoe.cli.db_template import LIKE, tables_of, template
    from simmoe.errors import NotFoundError, OutputError
    from simmoe.specs import catalog
    from simmoe.specs.data_folders import part_files

    held = part_files(kind)
    if path.exists():
        raise OutputError(f"{path} exists, choose another id or edit that file")
    if id in held:
        raise NotFoundError(f"{id} is already in the database ({held[id]}), choose another id or copy that file")
    model = like if like is not None else next((one for one in (LIKE[kind], *held) if one in held), LIKE[kind])
    part = getattr(catalog, kind)(model)  # says what is near if there is none
    found = {path: template(kind, id, model, tables=tables)}
    if tables:
        folder = path.parents[1] / "efficiency" / id
        found |= {folder / f"{table}.csv": text for table, text in tables_of(part).items()}
    return found


def _make(folder: Path) -> None:
    from simmoe.report.output import make_folder

    make_folder(folder)


def _write(path: Path, text: str) -> None:
    from simmoe.report.output import replacing

    _make(path.parent)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _say_what_is_next(kind: str, id: str, written: list[Path], output: Path | None) -> None:
    from simmoe.specs.data_folders import hardware_roots

    for file in written:
        typer.echo(f"Wrote {file}")
    typer.echo("Every number in it is a copied guess: replace value, kind and source, then run")
    roots = [root.resolve() for root in hardware_roots()]
    if output is not None and output.resolve() not in roots:
        chosen = os.pathsep.join([str(output.resolve()), os.environ.get("SIMMOE_HARDWARE_PATH", "")]).rstrip(os.pathsep)
        typer.echo(f"  export SIMMOE_HARDWARE_PATH={shlex.quote(chosen)}")
    typer.echo("  simmoe db check")
    typer.echo(f"  simmoe db show {id}")
    following = {
        "accelerator": "simmoe db new node NODE, with this id as its accelerator",
        "link": "name it in a node (scale_up, pcie) or a cluster (fabric)",
        "node": f"simmoe new --model mixtral-8x7b --node {id} --count 2",
        "cluster": f"write cluster: {id} into a scenario",
        "software": f"write software: {id} below training in a scenario, or say --set training.software={id}",
    }[kind]
    typer.echo(f"  {following}")
