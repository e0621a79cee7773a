"""Small things: a file of at most 400 lines, a function of at most 40 lines of code.

A line of code is a line that is not blank, not a comment and not part of a docstring.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40

# "path" or "path::qualified.name" -> why it may be larger. A needless entry fails the test.
EXCEPTIONS: dict[str, str] = {}

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef)


def code_lines(source: str) -> set[int]:
    """Numbers of the lines of `source` that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (*SCOPES, ast.Module)) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return lines


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every function with its qualified name, nested ones too."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{node.name}" if isinstance(node, SCOPES) else prefix
        if isinstance(node, FUNCTIONS):
            yield name, node
        yield from functions(node, f"{name}." if isinstance(node, SCOPES) else prefix)


def function_sizes(source: str) -> dict[str, int]:
    """Lines of code of each function; a nested function counts in the outer one too."""
    lines = code_lines(source)
    return {
        name: sum(node.lineno <= line <= node.end_lineno for line in lines)
        for name, node in functions(ast.parse(source))
    }


def too_large(path: str, source: str) -> dict[str, str]:
    """Everything in one file that is over its limit: name -> sentence."""
    found = {}
    if (length := len(source.splitlines())) > MAX_FILE_LINES:
        found[path] = f"{path} has {length} lines; split it (limit {MAX_FILE_LINES})"
    for name, size in function_sizes(source).items():
        if size > MAX_FUNCTION_LINES:
            found[f"{path}::{name}"] = f"{path}::{name} has {size} lines of code; split it (limit {MAX_FUNCTION_LINES})"
    return found


def test_files_and_functions_are_small(repository: Path) -> None:
    found: dict[str, str] = {}
    for folder in ("simmoe", "tests"):
        for file in sorted((repository / folder).rglob("*.py")):
            name = file.relative_to(repository).as_posix()
            found |= too_large(name, file.read_text(encoding="utf-8"))
    problems = [sentence for name, sentence in found.items() if name not in EXCEPTIONS]
    problems += [f"{name} is no longer too large" for name in EXCEPTIONS if name not in found]
    assert not problems, "\n" + "\n".join(problems)


SAMPLE = '''"""Module.

Docstring.
"""

import os


class Box:
    """A box."""

    @property
    def size(self):
        """Size.

        Two paragraphs.
        """
        # a comment

        text = """one
two
"""
        return text, [
            os.sep,  # counted

        ]


async def outer():
    def inner():
        return 1

    return inner
'''


def test_only_code_is_counted() -> None:
    assert function_sizes(SAMPLE) == {"Box.size": 7, "outer": 4, "outer.inner": 2}


@pytest.mark.parametrize(("size", "complaints"), [(40, 0), (41, 1)])
def test_a_long_function_is_found(size: int, complaints: int) -> None:
    source = "def f():\n" + "    x = 1\n\n    # why\n" * (size - 1)
    assert len(too_large("a.py", source)) == complaints


@pytest.mark.parametrize(("size", "complaints"), [(400, 0), (401, 1)])
def test_a_long_file_is_found(size: int, complaints: int) -> None:
    assert len(too_large("a.py", "# comment\n" * size)) == complaints
