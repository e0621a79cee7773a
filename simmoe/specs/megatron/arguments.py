"""An argument list of Megatron-LM as values. As in its own parser there are no shortened flags."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from simmoe.specs.megatron.flags import FLAGS, Flag
from simmoe.specs.text_file import got

Value = bool | int | float | str | tuple[str, ...] | None

LARGEST = 2**40
_MOST_WORDS = 4096
_LONGEST = 20_000


class Arguments(NamedTuple):
    """An argument list as values.

    Attributes
    ----------
    values : mapping
        What was given, by the name of the flag without dashes.
    unknown : tuple of str
        Flags and words that are not known, each with what followed it.
    problems : tuple of str
        Values that cannot be read, a sentence each.
    """

    values: Mapping[str, Value]
    unknown: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def on(self, name: str) -> bool:
        """Whether a flag without a value was given."""
        return self.values.get(name) is True

    def given(self, name: str) -> bool:
        """Whether a flag was given at all."""
        return self.values.get(name) is not None

    def number(self, name: str) -> int | None:
        """The whole number of a flag, else Megatron's default."""
        value = self.values.get(name)
        if isinstance(value, int):
            return value
        default = FLAGS[name].default
        return int(default) if default else None

    def size(self, name: str) -> int:
        """The whole number of a flag; 0 if there is neither one nor a default."""
        return self.number(name) or 0

    def real(self, name: str) -> float | None:
        """The number of a flag, else Megatron's default."""
        value = self.values.get(name)
        if isinstance(value, int | float):
            return float(value)
        default = FLAGS[name].default
        return float(default) if default else None

    def text(self, name: str) -> str:
        """The text of a flag, else Megatron's default, else empty."""
        value = self.values.get(name)
        return value if isinstance(value, str) else FLAGS[name].default

    def words(self, name: str) -> tuple[str, ...]:
        """The words of a flag that takes several, else Megatron's default."""
        value = self.values.get(name)
        if isinstance(value, tuple):
            return value
        default = FLAGS[name].default
        return (default,) if default else ()


def parse_words(words: Sequence[str]) -> Arguments:
    """An argument list, such as the end of a command line, as values; of a repeated flag the last one counts.

    Parameters
    ----------
    words : sequence of str
        ``--flag value`` or ``--flag=value``.

    Examples
    --------
    >>> found = parse_words(["--num-layers", "32", "--swiglu", "--moe-router-topk=2", "--lrr", "1"])
    >>> dict(found.values), found.unknown
    ({'num-layers': 32, 'swiglu': True, 'moe-router-topk': 2}, ('--lrr 1',))
    >>> parse_words(["--num-layers", "many"]).problems
    ("--num-layers: a whole number above 0 is expected (got 'many'), write one",)
    """
    values: dict[str, Value] = {}
    unknown: list[str] = []
    problems: list[str] = []
    for head, rest in _groups(words):
        flag = FLAGS.get(head[2:]) if head.startswith("--") else None
        if flag is None:
            unknown.append(" ".join([head, *rest])[:200])
            continue
        value, left, problem = _read(flag, rest)
        unknown += [word[:200] for word in left]
        if problem is None:
            values[flag.name] = value
        elif flag.effect != "neutral":  # paths and rates often stand in variables that only the user's shell knows
            problems.append(f"--{flag.name}: {problem}")
    return Arguments(values, tuple(unknown), tuple(problems))


def _groups(words: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words up to the next one; negative numbers are no flags."""
    head: str | None = None
    rest: list[str] = []
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            if head is not None:
                yield head, rest
            head, equals, value = word.partition("=")
            rest = [value] if equals else []
        elif head is None:
            yield word, []
        else:
            rest.append(word)
    if head is not None:
        yield head, rest


def _read(flag: Flag, rest: Sequence[str]) -> tuple[Value, Sequence[str], str | None]:
    """The value of a flag, the words that are left over, and what is wrong."""
    if flag.kind in {"on", "off"}:
        return True, rest, None
    if flag.kind == "words":
        if not rest or len(rest) > _MOST_WORDS:
            return None, (), f"1 to {_MOST_WORDS} words are expected (got {len(rest)}), write them"
        return tuple(rest), (), _wrong_choice(flag, rest)
    if not rest:
        return None, (), "a value is missing, write one"
    value, problem = read_value(flag, rest[0])
    return value, rest[1:], problem


def read_value(flag: Flag, text: str) -> tuple[Value, str | None]:
    """The value of a flag that takes one, and what is wrong with it.

    Examples
    --------
    >>> read_value(FLAGS["adam-eps"], "1e-8")
    (1e-08, None)
    """
    if len(text) > _LONGEST:
        return None, f"a value of {len(text)} characters is too long, write at most {_LONGEST}"
    if flag.kind in {"size", "int"}:
        return _whole(text, 1 if flag.kind == "size" else -LARGEST)
    if flag.kind == "float":
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        return (number, None) if math.isfinite(number) else (None, f"a number is expected {got(text)}, write one")
    return text, _wrong_choice(flag, (text,))


def _whole(text: str, least: int) -> tuple[Value, str | None]:
    what = "a whole number above 0" if least == 1 else "a whole number"
    if not re.fullmatch(r"[-+]?[0-9]{1,13}", text) or not least <= int(text) <= LARGEST:
        return None, f"{what} is expected {got(text)}, write one"
    return int(text), None


def _wrong_choice(flag: Flag, words: Sequence[str]) -> str | None:
    if not flag.choices:
        return None
    wrong = next((word for word in words if word not in flag.choices), None)
    return None if wrong is None else f"none of {', '.join(flag.choices)} {got(wrong)}, choose one"
