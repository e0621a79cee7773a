"""Which layers are of a kind: Megatron's lists such as ``([0]*3+[1]*58)``, read without executing anything."""

import re
from collections.abc import Sequence

from simmoe.errors import SpecError
from simmoe.specs.text_file import got

MOST_LAYERS = 10_000
_DEEPEST = 20
_TOKEN = re.compile(r"[0-9]{1,6}|[\[\](),+*]")


def layer_pattern(text: str) -> tuple[int, ...] | int:
    """The number N, or the 0 and 1 of each layer.

    Parameters
    ----------
    text : str
        ``N``, or lists of 0 and 1 that are added and repeated.

    Raises
    ------
    SpecError
        If it is anything else, or longer than any model.

    Examples
    --------
    >>> layer_pattern("([0]*1+[1]*2)*2"), layer_pattern("2"), layer_pattern("[0, 1]")
    ((0, 1, 1, 0, 1, 1), 2, (0, 1))
    """
    plain = re.sub(r"\s", "", text)
    if re.fullmatch(r"[0-9]{1,6}", plain) and int(plain) > 0:
        return int(plain)
    tokens = _TOKEN.findall(plain)
    reader = _Reader(tokens, text)
    if "".join(tokens) != plain or not tokens:
        raise reader.wrong()
    found = reader.total()
    if reader.tokens:
        raise reader.wrong()
    return tuple(found)


class _Reader:
    """A sum of products of lists, from left to right."""

    def __init__(self, tokens: list[str], text: str) -> None:
        self.tokens = tokens[::-1]
        self.text = text
        self.depth = 0

    def wrong(self) -> SpecError:
        return SpecError([f"a number or lists of 0 and 1 are expected {got(self.text)}, write ([0]*3+[1]*58)"])

    def take(self, wanted: str = "") -> str:
        if not self.tokens or (wanted and self.tokens[-1] != wanted):
            raise self.wrong()
        return self.tokens.pop()

    def total(self) -> list[int]:
        found = self.product()
        while self.tokens and self.tokens[-1] == "+":
            self.take()
            found = self.bounded(found, self.product())
        return found

    def product(self) -> list[int]:
        found = self.atom()
        while self.tokens and self.tokens[-1] == "*":
            self.take()
            count = self.take()
            if not count.isdigit() or int(count) * len(found) > MOST_LAYERS:
                raise self.wrong()
            found = found * int(count)
        return found

    def bounded(self, one: list[int], other: list[int]) -> list[int]:
        if len(one) + len(other) > MOST_LAYERS:
            raise self.wrong()
        return one + other

    def atom(self) -> list[int]:
        opening = self.take()
        if opening == "[":
            return self.list_after_bracket()
        if opening != "(" or self.depth >= _DEEPEST:
            raise self.wrong()
        self.depth += 1
        found = self.total()
        self.depth -= 1
        self.take(")")
        return found

    def list_after_bracket(self) -> list[int]:
        found: list[int] = []
        while True:
            item = self.take()
            if item not in {"0", "1"} or len(found) >= MOST_LAYERS:
                raise self.wrong()
            found.append(int(item))
            if self.take() == "]":
                return found


def runs(pattern: Sequence[int]) -> str:
    """The list expression of a pattern of 0 and 1, runs written once.

    Examples
    --------
    >>> runs((0, 0, 0, 1, 1)), runs((0, 1, 0, 1))
    ('([0]*3+[1]*2)', '([0,1]*2)')
    """
    half = next(
        (
            n
            for n in (2, 3, 4, 6)
            if len(pattern) % n == 0 and tuple(pattern) == tuple(pattern[:n]) * (len(pattern) // n)
        ),
        0,
    )
    if half and len(set(pattern)) > 1:
        return f"([{','.join(map(str, pattern[:half]))}]*{len(pattern) // half})"
    parts: list[list[int]] = []
    for item in pattern:
        if parts and parts[-1][0] == item:
            parts[-1][1] += 1
        else:
            parts.append([item, 1])
    return "(" + "+".join(f"[{item}]*{count}" for item, count in parts) + ")"


def dense_then_periodic(pattern: Sequence[int]) -> tuple[int, int] | None:
    """Leading dense layers and period of a pattern, None if it is not of that form.

    Examples
    --------
    >>> dense_then_periodic((0, 0, 0, 1, 1)), dense_then_periodic((0, 1, 0, 1)), dense_then_periodic((1, 0, 1))
    ((3, 1), (0, 2), None)
    """
    ones = [index for index, item in enumerate(pattern) if item]
    if not ones:
        return None
    period = ones[1] - ones[0] if len(ones) > 1 else 1
    first = ones[0] - period + 1
    made = tuple(int(i >= first and (i - first) % period == period - 1) for i in range(len(pattern)))
    if first >= 0 and made == tuple(pattern):
        return first, period
    if len(ones) == 1 and ones[0] == len(pattern) - 1:
        return ones[0], 1
    return None
