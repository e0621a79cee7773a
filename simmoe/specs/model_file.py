"""Models from other places than the catalogue: a config.json, changes to a base, a mapping."""

import os
from pathlib import Path
from typing import Any

from simmoe.errors import SimmoeError, SpecError
from simmoe.specs.huggingface import from_huggingface
from simmoe.specs.json_file import read_json
from simmoe.specs.model import Model
from simmoe.specs.text_file import one_line


def looks_like_path(name: str) -> bool:
    """Whether a model is named by its file and not by its id.

    Examples
    --------
    >>> looks_like_path("mixtral-8x7b"), looks_like_path("my/config.json"), looks_like_path("m.yaml")
    (False, True, True)
    """
    return "/" in name or os.sep in name or name.endswith((".json", ".yaml", ".yml"))


def model_from_config(path: Path) -> Model:
    """The model of a Hugging Face ``config.json``, or of a folder that holds one.

    Raises
    ------
    SpecError
        If the file cannot be read or describes a model that SimMoE does not know; every line starts
        with the path.
    """
    file = path / "config.json" if path.is_dir() else path
    config = read_json(file)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    try:
        return from_huggingface(config, id=name, source=str(file))
    except SpecError as error:
        shown = one_line(str(file), 4096)
        raise SpecError([f"{shown}: {problem}" for problem in error.problems]) from error
    except (SimmoeError, ValueError) as error:
        raise SpecError([f"{one_line(str(file), 4096)}: {one_line(str(error))}"]) from error


def model_data(base: Model | None, changes: dict[str, Any], source: str) -> dict[str, Any]:
    """The data of a model given as a mapping.

    Parameters
    ----------
    base : Model or None
        What `changes` are made to; None if `changes` is the whole model.
    changes : dict
        Keys of `Model`; ``attention`` and ``moe`` may name only what differs.
    source : str
        Where the mapping stands, if it does not say itself.
    """
    if base is None:
        return {"id": "inline", "name": "inline model", "source": source, **changes}
    data = base.model_dump()
    if changes:
        data["name"] = f"{base.name} (modified)"
    for key, value in changes.items():
        old = data.get(key)
        data[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return data
