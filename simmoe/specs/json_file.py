"""Read a JSON file, such as the config.json of a Hugging Face model, within bounds."""

import json
import math
from pathlib import Path
from typing import Any

from simmoe.specs.text_file import MEBIBYTE, got, one_line, read_text, refuse

LARGEST_FILE = 4 * MEBIBYTE


class _RefusedError(ValueError):
    """Something that JSON text may hold and a configuration may not."""


def read_json(path: Path) -> dict[str, Any]:
    """The contents of a JSON file of at most 4 MiB whose top level is an object.

    Parameters
    ----------
    path : Path
        Shown in messages as it is given.

    Raises
    ------
    SpecError
        If the file cannot be read (`read_text`), is not JSON, repeats a key, nests too deeply, holds
        NaN, Infinity or a number too long, or is no object. One sentence.
    """
    text = read_text(path, LARGEST_FILE)
    try:
        data = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_short,
        )
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        refuse(place, f"not valid JSON ({error.msg}), correct the text around it")
    except _RefusedError as error:
        refuse(path, str(error))
    except RecursionError:
        refuse(path, "nested too deeply, write it flatter")
    if not isinstance(data, dict):
        refuse(path, f'an object {{"key": value}} is expected {got(data)}, name a config.json')
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RefusedError(f"{one_line(key, 60)}: the key is given twice, remove one of the two")
        found[key] = value
    return found


def _no_constant(word: str) -> float:
    raise _RefusedError(f"not a finite number (got {word}), write a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError(f"too large for a number {got(text)}, write less")
    return value


def _short(text: str) -> int:
    if len(text) > 40:
        raise _RefusedError(f"too large for a number {got(text)}, write less")
    return int(text)
