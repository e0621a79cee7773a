"""Read a launch script as bash would, as far as words and variables go, without running anything.

Assignments, arrays, quotes, ``${name:-default}`` and sums of whole numbers are understood. What stands in a
condition or a loop is left out and told; what a command would print is unknown, and empty.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.specs.megatron.sums import whole_sum

_MOST_TEXT = 2**21  # of all words together, after variables are put in: a script may double a variable many times
_MOST_DEPTH = 40
_MOST_TOLD = 6
_OPENING = {"if", "for", "while", "until", "case", "select"}
_CLOSING = {"fi", "done", "esac"}
_BEFORE = {"export", "declare", "local", "readonly", "typeset"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_PLAIN = re.compile(r"[^\s;&|()<>'\"\\$`#]+|#")
_EXPANSION = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?!$-])")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_PARAMETER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[[@*]\])?(?:(:?[-=?+])(.*))?", re.DOTALL)


class _Part(NamedTuple):
    """A piece of a word: text, or what is put in for it."""

    text: str
    quoted: bool
    expands: bool


_Word = list[_Part]


class _Statement(NamedTuple):
    """Words up to the end of a line, and arrays among them by the place of the word that is assigned."""

    words: list[_Word]
    arrays: dict[int, list[_Word]]
    line: int


class Script(NamedTuple):
    """What a script would run, as far as can be told.

    Attributes
    ----------
    commands : tuple of tuple of str
        Words of each command, variables put in.
    variables : mapping
        The last value of each; arrays as tuples.
    skipped : tuple of str
        Lines with flags that stand in a condition or a loop, and the first of these flags.
    """

    commands: tuple[tuple[str, ...], ...]
    variables: dict[str, tuple[str, ...]]
    skipped: tuple[str, ...]


def read_script(text: str) -> Script:
    """The commands of a bash script.

    Parameters
    ----------
    text : str
        Is only read.

    Raises
    ------
    SpecError
        If variables grow without bound.

    Examples
    --------
    >>> found = read_script('N=4; ARGS=(--num-layers $((N * 8)) "a b"); python x.py "${ARGS[@]}" ${MORE:-none}')
    >>> found.commands
    (('python', 'x.py', '--num-layers', '32', 'a b', 'none'),)
    """
    return _Shell().run(_statements(text))


class _Shell:
    """Variables, and what was made of them."""

    def __init__(self) -> None:
        self.variables: dict[str, tuple[str, ...]] = {}
        self.commands: list[tuple[str, ...]] = []
        self.skipped: list[str] = []
        self.depth = 0
        self.spent = 0

    def run(self, statements: Iterator[_Statement]) -> Script:
        for statement in statements:
            self.take(statement)
        return Script(tuple(self.commands), self.variables, tuple(self.skipped))

    def take(self, statement: _Statement) -> None:
        first = _raw(statement.words[0]) if statement.words else ""
        if first in _OPENING:
            self.depth += 1
        if first in _CLOSING:
            self.depth = max(0, self.depth - 1)
        elif self.depth:
            parts = [*statement.words, *(word for array in statement.arrays.values() for word in array)]
            flags = [_raw(word) for word in parts if _raw(word).startswith("--")]
            if flags:
                more = " ..." if len(flags) > _MOST_TOLD else ""
                self.skipped.append(f"line {statement.line}: {' '.join(flags[:_MOST_TOLD])}{more}")
        else:
            self.execute(statement)

    def execute(self, statement: _Statement) -> None:
        place = 0
        while place < len(statement.words):
            word = statement.words[place]
            match = _ASSIGNMENT.match(_raw(word[:1]))
            if match is not None:
                self.assign(match[1], bool(match[2]), self.value(statement, place, match.end()))
            elif _raw(word) not in _BEFORE and not (place and _raw(statement.words[0]) in _BEFORE):
                break
            place += 1
        rest = [text for word in statement.words[place:] for text in self.expand(word)]
        if rest:
            self.commands.append(tuple(rest))

    def value(self, statement: _Statement, place: int, skip: int) -> tuple[str, ...]:
        if place in statement.arrays:
            return tuple(text for word in statement.arrays[place] for text in self.expand(word))
        first, *rest = statement.words[place]
        parts = [first._replace(text=first.text[skip:]), *rest]
        return ("".join(self.text(part) for part in parts),)

    def assign(self, name: str, more: bool, value: tuple[str, ...]) -> None:
        before = self.variables.get(name, ()) if more else ()
        joined = len(before) == len(value) == 1
        self.variables[name] = (before[0] + value[0],) if joined else (*before, *value)

    def expand(self, word: _Word) -> list[str]:
        """The words that a word becomes."""
        found: list[str] = []
        open_word = False
        for part in word:
            if part.expands and part.quoted and part.text.endswith(("[@]}", "$@")):
                pieces = list(self.lookup(part.text))
                self.count(" ".join(pieces))
            elif part.expands and not part.quoted:
                pieces = self.text(part).split()
            else:
                pieces = [self.text(part)]
            if open_word and pieces:
                found[-1] += pieces[0]
                pieces = pieces[1:]
            found += pieces
            open_word = bool(found)
        return found if any(found) or not _vanishes(word) else []

    def text(self, part: _Part) -> str:
        found = " ".join(self.lookup(part.text)) if part.expands else part.text
        self.count(found)
        return found

    def count(self, text: str) -> None:
        self.spent += len(text)
        if self.spent > _MOST_TEXT:
            raise SpecError([f"variables make more than {_MOST_TEXT} characters of words, write a shorter script"])

    def lookup(self, text: str, depth: int = 0) -> tuple[str, ...]:
        """What is put in for ``$name``, ``${name...}`` or ``$((sum))``; empty if it is not known."""
        if text.startswith("$(("):
            found = whole_sum(text[3:-2], lambda name: " ".join(self.variables.get(name, ())))
            return () if found is None else (str(found),)
        match = _PARAMETER.fullmatch(text[2:-1] if text.startswith("${") else text[1:])
        if match is None or depth > _MOST_DEPTH or text.startswith(("$(", "`")):
            return ()
        value = self.variables.get(match[1], ())
        if match[2] is None or match[2].strip(":") == "?":
            return value
        other = match[2].strip(":") == "+"
        if any(value) != other:
            return value
        default = next((word for s in _statements(match[3]) for word in s.words), [])
        return tuple(" ".join(self.lookup(p.text, depth + 1)) if p.expands else p.text for p in default)


def _vanishes(word: _Word) -> bool:
    """A word of nothing but a list, as ``"$@"``: if the list is empty, there is no word."""
    return any(part.expands for part in word) and all(part.expands or not part.text for part in word)


def _raw(word: _Word) -> str:
    return "".join(part.text for part in word)


def _statements(text: str) -> Iterator[_Statement]:
    """Cut a script into statements; a quote that is not closed ends with the text."""
    return _Lexer(text).statements()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.words: list[_Word] = []
        self.word: _Word | None = None
        self.arrays: dict[int, list[_Word]] = {}
        self.outer: list[_Word] | None = None
        self.line = 1
        self.counted = 0

    def statements(self) -> Iterator[_Statement]:
        while self.place < len(self.text):
            if self.step() and self.words and self.outer is None:
                self.line += self.text.count("\n", self.counted, self.place - 1)
                self.counted = max(self.counted, self.place - 1)
                yield _Statement(self.words, self.arrays, self.line)
                self.words, self.arrays = [], {}
        self.close()
        if self.outer is None and self.words:
            yield _Statement(self.words, self.arrays, self.line)

    def close(self) -> None:
        if self.word is not None:
            self.words.append(self.word)
        self.word = None

    def add(self, text: str, *, quoted: bool = False, expands: bool = False) -> None:
        if self.word is None:
            self.word = []
        self.word.append(_Part(text, quoted, expands))

    def step(self) -> bool:
        """Read one piece; True at the end of a statement."""
        text, place = self.text, self.place
        char = text[place]
        if text.startswith("\\\n", place):
            self.place += 2
        elif char in " \t\r":
            self.close()
            self.place += 1
        elif char in "\n;&|":
            self.close()
            self.place += 1
            return True
        elif char == "#" and self.word is None:
            self.place = self.until("\n", place)
        elif char in "()":
            return self.parenthesis(char)
        elif char in "<>":
            self.redirection()
        else:
            self.piece(char)
        return False

    def until(self, end: str, start: int) -> int:
        found = self.text.find(end, start)
        return len(self.text) if found < 0 else found

    def parenthesis(self, char: str) -> bool:
        self.place += 1
        if char == "(" and self.word is not None and _raw(self.word).endswith("=") and self.outer is None:
            self.close()
            self.outer, self.words = self.words, []
        elif char == ")" and self.outer is not None:
            self.close()
            self.arrays[len(self.outer) - 1] = self.words
            self.words, self.outer = self.outer, None
        else:
            self.close()
            return True
        return False

    def redirection(self) -> None:
        match = _HEREDOC.match(self.text, self.place)
        if match is None or self.text.startswith("<<<", self.place):
            self.close()
            self.place += 1
            return
        end = re.compile(rf"^\s*{match[2]}\s*$", re.MULTILINE).search(self.text, match.end())
        self.place = len(self.text) if end is None else end.end()

    def piece(self, char: str) -> None:
        text, place = self.text, self.place
        if char == "'":
            end = self.until("'", place + 1)
            self.add(text[place + 1 : end], quoted=True)
            self.place = end + 1
        elif char == '"':
            self.double_quotes()
        elif char == "\\":
            self.add(text[place + 1 : place + 2], quoted=True)
            self.place += 2
        elif char in "$`":
            self.expansion(quoted=False)
        else:
            match = _PLAIN.match(text, place)
            self.add(match[0] if match else char)
            self.place = match.end() if match else place + 1

    def double_quotes(self) -> None:
        self.place += 1
        self.add("", quoted=True)
        while self.place < len(self.text) and self.text[self.place] != '"':
            char = self.text[self.place]
            if char == "\\":
                following = self.text[self.place + 1 : self.place + 2]
                self.add({"\n": ""}.get(following, following), quoted=True)
                self.place += 2
            elif char in "$`":
                self.expansion(quoted=True)
            else:
                match = re.compile(r'[^"\\$`]+').match(self.text, self.place)
                self.add(match[0] if match else char, quoted=True)
                self.place = match.end() if match else self.place + 1
        self.place += 1

    def expansion(self, *, quoted: bool) -> None:
        text, place = self.text, self.place
        if text[place] == "`":
            end = self.until("`", place + 1) + 1
        elif text.startswith(("$(", "${"), place):
            end = self.matching(place + 1)
        else:
            match = _EXPANSION.match(text, place)
            if match is None:
                self.add("$", quoted=quoted)
                self.place += 1
                return
            end = match.end()
        self.add(text[place:end], quoted=quoted, expands=True)
        self.place = end

    def matching(self, place: int) -> int:
        """Behind the bracket that closes the one at a place."""
        opening = self.text[place]
        closing = {"(": ")", "{": "}"}[opening]
        depth = 0
        for end in range(place, len(self.text)):
            depth += (self.text[end] == opening) - (self.text[end] == closing)
            if depth == 0:
                return end + 1
        return len(self.text)
