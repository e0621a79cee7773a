"""``simmoe scenarios``: the scenarios that come along, to simulate or to copy."""

import json as json_text
from pathlib import Path
from typing import Any

import typer

from simmoe.cli.options import AsJson


def scenarios(json: AsJson = False) -> None:
    """List the scenarios that come along: model, devices, and the file to give to the other commands."""
    found = [_entry(path) for path in _files()]
    if json:
        typer.echo(json_text.dumps(found, indent=2, allow_nan=False))
        return
    from simmoe.cli.screen import console, indented, table
    from simmoe.specs.data_folders import data_root

    root, screen = data_root(), console()
    if root != Path.cwd():
        screen.print(f"In {root}:", soft_wrap=True)
    rows = table("file", "model", "GPUs", "of", right="llrl", grow="of")
    for one in sorted(found, key=lambda entry: (entry["devices"], entry["file"])):
        name = str(Path(one["file"]).relative_to(root))
        rows.add_row(name, one["model"], f"{one['devices']:,}", " + ".join(one["accelerators"]))
    screen.print(indented(rows))


def _files() -> list[Path]:
    """Every scenario file, examples first."""
    from simmoe.specs.data_folders import data_root

    root = data_root() / "scenarios"
    folders = [
        root / "examples",
        root / "gallery",
        *sorted(path for path in (root / "papers").iterdir() if path.is_dir()),
    ]
    return [path for folder in folders for path in sorted(folder.glob("*.yaml")) if _is_scenario(path)]


def _is_scenario(path: Path) -> bool:
    from simmoe.specs.yaml_file import read_yaml

    data = read_yaml(path).data
    return isinstance(data, dict) and {"model", "cluster", "training"} <= data.keys()


def _entry(path: Path) -> dict[str, Any]:
    from simmoe.specs.reader import load_scenario

    scenario = load_scenario(path)
    return {
        "file": str(path),
        "name": scenario.name,
        "model": scenario.model.id,
        "devices": scenario.cluster.devices,
        "accelerators": [part.id for part in scenario.cluster.accelerators],
    }
