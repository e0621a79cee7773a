"""The commands in README.md work, in the order in which a reader would type them.

Lines after ``$`` in a ```console block, and the whole of a ```bash block, are run by bash. They run in a folder
that holds the repository's data and nothing else, so that what they write is thrown away. A comment on the line
before a block changes what is expected of it: ``<!-- exit 3 -->``, or ``<!-- not tested: reason -->``.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from simmoe.pipeline import run
from simmoe.report.summary import summarise
from tests.scenarios import small

BLOCK = re.compile(r"(?:<!-- *(?P<note>[^>]*?) *-->\n)?^```(?P<kind>console|bash)\n(?P<body>.*?)^```$", re.M | re.S)
LINKED = ("hardware_db", "scenarios", "notebooks", "tests", "pyproject.toml")


class Block(NamedTuple):
    """Commands of one block and the exit status that is right for them."""

    script: str
    status: int


def blocks(text: str) -> list[Block]:
    """Every block of a Markdown text that is to be run."""
    found = []
    for match in BLOCK.finditer(text):
        note = match["note"] or ""
        if note.startswith("not tested:"):
            continue
        wanted = re.fullmatch(r"exit (\d+)", note)
        lines = match["body"].splitlines()
        if match["kind"] == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found.append(Block("\n".join(lines), int(wanted[1]) if wanted else 0))
    return found


def test_blocks_are_found_and_notes_are_read() -> None:
    text = "a\n```console\n$ one\nits output\n$ two\n```\n<!-- exit 3 -->\n```bash\nthree\n```\n"
    assert blocks(text) == [Block("one\ntwo", 0), Block("three", 3)]
    assert blocks("<!-- not tested: needs a network -->\n```bash\ngit clone\n```\n") == []
    assert blocks("```python\nprint()\n```\n") == []


@pytest.fixture(scope="module")
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """The text below each heading of the second level; what stands before the first one is under an empty name."""
    parts = re.split(r"^## (.+)$", text, flags=re.M)
    return dict(zip(["", *parts[1::2]], parts[::2], strict=True))


SECTIONS = {
    name: part
    for name, part in sections((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")).items()
    if blocks(part)
}


def test_sections_are_found() -> None:
    assert sections("a\n## one\nb\n### x\nc\n## two\nd") == {"": "a\n", "one": "\nb\n### x\nc\n", "two": "\nd"}
    assert len(SECTIONS) > 5


@pytest.mark.parametrize("section", SECTIONS)
def test_every_command_works(section: str, repository: Path, tmp_path: Path) -> None:
    """The commands of a section, in an empty folder of their own."""
    for name in LINKED:
        if (repository / name).exists():
            (tmp_path / name).symlink_to(repository / name)
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for block in blocks(SECTIONS[section]):
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == block.status, f"{block.script}\n{result.stdout}{result.stderr}"


def test_every_key_of_the_result_is_documented(readme: str) -> None:
    missing = [key for key in summarise(run(small())) if f"`{key}`" not in readme]
    assert missing == []
