"""``simmoe report``: one page, complete, without anything from elsewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.command_line import Simmoe, in_folder
from tests.scenarios import SMALL


@pytest.fixture
def simmoe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simmoe:
    return in_folder(tmp_path, monkeypatch, capsys)


class Page(HTMLParser):
    """Tags and attributes of a page, and whether every tag is closed in order."""

    VOID = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.wrong = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self.wrong += not self.open or self.open.pop() != tag


def test_a_page_is_complete_and_needs_nothing_else(simmoe: Simmoe, tmp_path: Path):
    assert simmoe("report", SMALL, "-o", "r.html").status == 0
    text = (tmp_path / "r.html").read_text()
    page = Page(text)
    assert (page.open, page.wrong) == ([], 0)
    assert not page.tags & {"script", "iframe", "img", "link", "object", "embed"}
    links = [value for name, value in page.attributes if name in {"href", "xlink:href", "src"}]
    assert all(value.startswith("#") for value in links)
    assert not re.search(r"url\((?!['\"]?#)", text), "nothing is fetched by a style"
    for title in ("Cluster and plan", "The step", "Why devices idle", "Memory", "What matters", "numbers come from"):
        assert title in text
    assert text.count("<svg") == 2
    ids = [value for name, value in page.attributes if name == "id"]
    assert {"figure_1", "axes_1"} <= set(ids)


def test_equal_input_gives_equal_bytes(simmoe: Simmoe, tmp_path: Path):
    for name in ("a.html", "b.html"):
        assert simmoe("report", SMALL, "-o", name).status == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_texts_are_escaped_and_planners_compared(simmoe: Simmoe, tmp_path: Path):
    outcome = simmoe("report", SMALL, "--set", "name=<script>x</script>", "--planners", "uniform", "-o", "r.html")
    assert outcome.status == 0
    text = (tmp_path / "r.html").read_text()
    assert "<script" not in text
    assert "Planners" in text
    assert "uniform" in text


def test_what_does_not_fit_is_said(simmoe: Simmoe, tmp_path: Path):
    simmoe("report", SMALL, "--set", "training.sequence_length=32768", "-o", "r.html")
    assert "does not fit into memory" in (tmp_path / "r.html").read_text()
