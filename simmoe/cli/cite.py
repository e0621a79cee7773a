"""``simmoe cite``: where the numbers of a simulation come from."""

from typing import TYPE_CHECKING, Any

import typer

from simmoe.cli.options import AsJson, OverlayFile, Overrides, ScenarioFile

if TYPE_CHECKING:
    from rich.console import Console


def cite(
    scenario: ScenarioFile, overrides: Overrides = None, overlay: OverlayFile = None, json: AsJson = False
) -> None:
    """List every source a simulation relied on, and for which numbers."""
    from simmoe.pipeline import run
    from simmoe.report.manifest import citations
    from simmoe.specs import catalog
    from simmoe.specs.overlay_file import load_overlaid

    result = run(load_overlaid(scenario, overrides or [], overlay))
    found = citations(result, catalog.sources())
    if json:
        import json as json_module

        typer.echo(json_module.dumps(found, indent=2, allow_nan=False))
        return
    from simmoe.cli.screen import console

    screen = console()
    _print_sources(screen, found)
    _print_weak(screen, found)


def _print_sources(screen: "Console", found: dict[str, Any]) -> None:
    """Each source as a paragraph: what it is, and which numbers it gave."""
    from simmoe.cli.screen import heading, indented

    kinds = ", ".join(f"{number} {kind}" for kind, number in found["kinds"].items() if number)
    total = sum(found["kinds"].values())
    screen.print(heading(found["name"], f"{total} numbers of the hardware database: {kinds}"))
    screen.print(f"Architecture of {found['model']['id']}: {found['model']['source']}", soft_wrap=True)
    for one in found["published"]:
        screen.print(f"Published {one['metric']} {one['value']:g}: {one['source']}", soft_wrap=True)
    for source in found["sources"]:
        screen.print()
        byline = ", ".join(str(source[key]) for key in ("publisher", "year") if source[key])
        screen.print(heading(source["title"] or source["id"], byline))
        if source["url"]:
            screen.print(f"  {source['url']}", soft_wrap=True)
        for part, numbers in _by_part(source["numbers"]).items():
            screen.print(indented(f"{part}: {gathered([number['name'] for number in numbers])}"))


def _print_weak(screen: "Console", found: dict[str, Any]) -> None:
    """The numbers to doubt first."""
    from simmoe.cli.screen import heading, indented, table

    numbers = [number for source in found["sources"] for number in source["numbers"]]
    guessed = [number for number in numbers if number["kind"] == "guess"]
    single = [number for number in numbers if number["kind"] != "guess" and not number["reviewed"]]
    screen.print()
    screen.print(heading(f"Guesses ({len(guessed)})", "nobody measured or printed these"))
    for part, entries in _by_part(guessed).items():
        screen.print(indented(part))
        rows = table("", "", "", right="lrl", grow="")
        for number in entries:
            rows.add_row(f"  {_short(number['name'])}", number["text"], number["note"])
        screen.print(indented(rows))
    screen.print()
    screen.print(heading(f"Unreviewed ({len(single)})", "a source, but no second one that confirms it"))
    for part, entries in _by_part(single).items():
        screen.print(indented(f"{part}: {gathered([number['name'] for number in entries])}"))


def _by_part(numbers: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Numbers by the part they belong to."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for number in numbers:
        parts.setdefault(number["part"], []).append(number)
    return parts


def _short(name: str) -> str:
    """The place of a number without the words that say nothing to a reader."""
    return name.removeprefix("efficiency.").removeprefix("collectives")


def gathered(names: list[str]) -> str:
    """Names as words, those of one table entry together.

    Examples
    --------
    >>> gathered(["memory", "efficiency.gemm[bf16].launch", "efficiency.gemm[bf16].compute"])
    'memory, gemm[bf16] launch compute'
    """
    entries: dict[str, list[str]] = {}
    for name in names:
        entry, _, last = _short(name).rpartition(".")
        entries.setdefault(entry, []).append(last)
    alone = entries.pop("", [])
    return ", ".join([*alone, *(f"{entry} {' '.join(inner)}" for entry, inner in entries.items())])
