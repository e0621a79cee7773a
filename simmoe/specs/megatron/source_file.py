"""Read what Megatron-LM was told: a launch script, the arguments it printed into its log, or a YAML file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simmoe.errors import SpecError
from simmoe.specs.megatron.arguments import Arguments, Value, parse_words, read_value
from simmoe.specs.megatron.flags import BY_DEST, FLAGS
from simmoe.specs.megatron.shell import Script, read_script
from simmoe.specs.text_file import MEBIBYTE, one_line, read_text, refuse
from simmoe.specs.yaml_file import read_yaml

LARGEST_FILE = 4 * MEBIBYTE
_REMEDY = "cut out the launch command, or the lines from 'arguments' to 'end of arguments' of a log"
_DUMPED = re.compile(r"^.*?\b([A-Za-z_][A-Za-z0-9_]*) \.{3,} ?(.*)$", re.MULTILINE)
_FEWEST_DUMPED = 10
_MOST_SKIPPED = 20
_NODES = ("NNODES", "NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NODES")
_GPUS = ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE", "GPUS")


class Source(NamedTuple):
    """What a file says.

    Attributes
    ----------
    arguments : Arguments
    world : int or None
        GPUs of the job, if it says so.
    environment : mapping
        Variables it sets.
    remarks : tuple of str
        What was not read, a sentence each.
    """

    arguments: Arguments
    world: int | None
    environment: Mapping[str, str]
    remarks: tuple[str, ...] = ()


def read_source(path: Path) -> Source:
    """The arguments in a file; nothing in it is executed.

    Parameters
    ----------
    path : Path
        YAML by its suffix; a log if it holds Megatron's lines ``name ..... value``; else a bash script.

    Raises
    ------
    SpecError
        If it cannot be read or holds no arguments.
    """
    if path.suffix in {".yaml", ".yml"}:
        found = _from_mapping(read_yaml(path).data)
    else:
        text = read_text(path, LARGEST_FILE, _REMEDY)
        if "\0" in text:
            refuse(path, f"is no text file, {_REMEDY}")
        dumped = _DUMPED.findall(text)
        if len(dumped) < _FEWEST_DUMPED and len(text) > MEBIBYTE:
            refuse(path, f"a script of {len(text) / MEBIBYTE:.1f} MiB is too large, {_REMEDY}")
        try:
            found = _from_dump(dumped) if len(dumped) >= _FEWEST_DUMPED else _from_script(read_script(text))
        except SpecError as error:
            refuse(path, error.problems[0])
    if not found.arguments.values:
        refuse(path, f"no arguments of Megatron-LM are in it, {_REMEDY}")
    return found


def _from_dump(lines: Sequence[tuple[str, str]]) -> Source:
    """Values by the names that Megatron gives them inside."""
    values: dict[str, Value] = {}
    problems: list[str] = []
    world = None
    for name, text in lines:
        flag = BY_DEST.get(name)
        value = text.strip()
        if name == "world_size" and re.fullmatch(r"[0-9]{1,9}", value):
            world = int(value)
        if flag is None or value in {"None", "[]", ""}:
            continue
        if flag.kind in {"on", "off"}:
            if (value == "True") == (flag.kind == "on"):
                values[flag.name] = True
            continue
        if flag.kind == "words":
            values[flag.name] = tuple(re.findall(r"[A-Za-z0-9_.+-]+", value))[:4096]
            continue
        plain = ",".join(re.findall(r"-?[0-9]+", value)) if flag.kind == "pair" else value
        found, problem = read_value(flag, plain)
        if problem is None:
            values[flag.name] = found
        else:
            problems.append(f"{name}: {problem}")
    return Source(Arguments(values, (), tuple(problems)), world, {})


def _from_mapping(data: Any) -> Source:
    """Flags as keys, with or without dashes, in one mapping or in several."""
    words: list[str] = []
    environment: dict[str, str] = {}
    world = None
    for key, value in _leaves(data):
        name = key.removeprefix("--").replace("_", "-")
        flag = FLAGS.get(name) or BY_DEST.get(key)
        if name == "world-size" and isinstance(value, int):
            world = value
        elif flag is None and re.fullmatch(r"[A-Z][A-Z0-9_]+", key):
            environment[key] = str(value)
        elif flag is not None and flag.kind in {"on", "off"} and isinstance(value, bool):
            by_flag = FLAGS.get(name) is not None or flag.kind == "on"
            words += [f"--{flag.name}"] if value is by_flag else []
        elif value is not None and value is not False:
            texts = [str(item) for item in value] if isinstance(value, list) else [str(value)]
            words += [f"--{flag.name if flag else name}", *([] if value is True else texts)]
    return Source(parse_words(words), world, environment)


def _leaves(data: Any) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield key, value


def _from_script(script: Script) -> Source:
    before, words = _launch(script)
    remarks = [
        f"flags in a condition or a loop were not read, {one_line(text)}" for text in script.skipped[:_MOST_SKIPPED]
    ]
    environment = {name: " ".join(value) for name, value in script.variables.items()}
    return Source(parse_words(words), _world(before, script), environment, tuple(remarks))


def _launch(script: Script) -> tuple[Sequence[str], Sequence[str]]:
    """The words before and after the Python file of the command with most flags; else the flags of all variables."""
    best: tuple[Sequence[str], Sequence[str]] | None = None
    kept = [value for value in script.variables.values() if len(value) == 1 and ".py " in value[0]]
    for command in (*script.commands, *kept):
        words = [piece for word in command for piece in (word.split() if ".py " in word else [word])]
        place = next((number for number, word in enumerate(words) if word.endswith(".py")), None)
        if place is None and sum(word.startswith("--") for word in words) > _FEWEST_DUMPED:
            place = next(number for number, word in enumerate(words) if word.startswith("--")) - 1
        if place is not None and (best is None or len(words) - place > len(best[1])):
            best = words[: max(place, 0)], words[place + 1 :]
    if best is not None and any(word.startswith("--") for word in best[1]):
        return best
    parts = [value for value in script.variables.values() if value and value[0].lstrip().startswith("--")]
    return (), [word for value in parts for text in value for word in (text.split() if len(value) == 1 else [text])]


def _world(before: Sequence[str], script: Script) -> int | None:
    """GPUs of the job: processes a node times nodes, as torchrun is told, else as variables say."""
    said = {}
    for number, word in enumerate(before):
        name, equals, value = word.lstrip("-").replace("_", "-").partition("=")
        said[name] = value if equals else "".join(before[number + 1 : number + 2])
    each = _whole(said.get("nproc-per-node", "")) or _variable(script, _GPUS)
    nodes = _whole(said.get("nnodes", "")) or _variable(script, _NODES)
    whole = _variable(script, ("WORLD_SIZE",))
    if whole is not None or each is None:
        return whole
    return each * (nodes or 1)


def _variable(script: Script, names: Sequence[str]) -> int | None:
    return next((found for name in names if (found := _whole(" ".join(script.variables.get(name, ()))))), None)


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) else None
