"""``simmoe db list``, ``show`` and ``check``."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simmoe.report.database import number_problems, reviews, source_problems
from simmoe.specs import catalog
from simmoe.specs.base import Quantity
from simmoe.specs.numbers import Number, numbers_of
from simmoe.specs.stray_files import stray_files
from tests.command_line import Simmoe

KINDS = ("accelerator", "node", "link", "cluster", "software")
HEADER = "part,table,variant,source,rows,held_out_rows,median_error,p90_error,bias\n"


def test_list_names_every_part(simmoe: Simmoe) -> None:
    words = simmoe("db", "list").out.replace(",", " ").split()
    for kind in KINDS:
        assert set(catalog.list_ids(kind)) <= set(words)


@pytest.mark.parametrize("width", ["80", "100", "120"])
@pytest.mark.parametrize("kind", ["accelerator", "node", "links", "cluster", "software"])
def test_list_of_a_kind_is_one_row_a_part(few: Simmoe, monkeypatch: pytest.MonkeyPatch, kind: str, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = few("db", "list", kind).out.splitlines()[1:]
    assert [line.split(" ")[0] for line in lines if not line.startswith(" ")] == list(
        catalog.list_ids(kind.removesuffix("s"))
    )
    assert all(len(line) <= int(width) for line in lines)


def test_list_of_an_unknown_kind(simmoe: Simmoe) -> None:
    message = "'gpu' is not a kind of part, choose one of accelerator, node, link, cluster, software\n"
    assert simmoe("db", "list", "gpu") == (2, "", message)
    assert "(did you mean accelerator?)" in simmoe("db", "list", "acelerator").err


def test_show_gives_value_kind_and_source_of_every_number(simmoe: Simmoe) -> None:
    found = json.loads(simmoe("db", "show", "h100-sxm5-80gb", "--json").out)
    assert (found["kind"], found["id"]) == ("accelerator", "h100-sxm5-80gb")
    numbers = {number["name"]: number for number in found["numbers"]}
    bf16 = numbers["peak_flops.bf16"]
    assert (bf16["value"], bf16["unit"], bf16["kind"]) == (989e12, "FLOP/s", "datasheet")
    assert "efficiency.gemm[bf16].compute" in numbers
    named = {number["source"] for number in numbers.values()} | {number["reviewed"] for number in numbers.values()}
    assert set(found["sources"]) == named - {""}
    assert all(source["title"] for source in found["sources"].values())


@pytest.mark.parametrize("width", ["80", "120"])
def test_show_prints_sources_with_titles_and_says_what_is_unreviewed(
    simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    out = simmoe("db", "show", "h100-sxm5-80gb").out
    part, sources = catalog.accelerator("h100-sxm5-80gb"), catalog.sources()
    assert "989 TFLOP/s" in out
    assert "gemm[bf16].compute" in out
    listed = out[out.index("\nSources\n") :]
    numbers = list(numbers_of(part, ""))
    for number in numbers:
        assert f"] {number.quantity.source}: " in listed
        assert sources[number.quantity.source].url in listed
    plain = " ".join(out.split())
    assert plain.count("confirmed by [") == sum(bool(number.quantity.reviewed) for number in numbers)
    single = [n for n in numbers if n.quantity.kind != "guess" and not n.quantity.reviewed]
    assert plain.count("unreviewed") == len(single)
    assert all(len(line) <= int(width) or "https://" in line for line in out.splitlines())


def test_show_of_a_node_names_its_parts(simmoe: Simmoe) -> None:
    found = json.loads(simmoe("db", "show", "dgx-h100", "--json").out)
    assert found["facts"]["accelerator"] == "h100-sxm5-80gb"
    assert found["facts"]["scale_up"] == {"link": "nvlink-4", "domain": 8, "topology": "switch"}
    assert "scale_up: link nvlink-4, domain 8, topology switch" in simmoe("db", "show", "dgx-h100").out


def test_show_of_an_unknown_id_suggests_near_ones(few: Simmoe) -> None:
    found = few("db", "show", "h100-sxm5")
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith("'h100-sxm5' is no part of the database (did you mean h100-sxm5-80gb")
    assert found.err.endswith("list them with: simmoe db list\n")


# ---------------------------------------------------------------- check


def test_check_passes_on_the_shipped_files(simmoe: Simmoe) -> None:
    found = simmoe("db", "check")
    assert (found.status, found.err) == (0, "")
    assert " files checked, 0 problems.\n" in found.out
    assert "memory bandwidths" in found.out


def test_check_counts_what_is_reviewed_and_lists_what_is_not(few: Simmoe, shipped: set[str]) -> None:
    if shipped:
        pytest.skip("no counts while a shipped file is wrong: see the test above")
    peaks = [
        number.quantity
        for id in catalog.list_ids("accelerator")
        for number in numbers_of(catalog.accelerator(id), f"accelerator {id}")
        if number.name.startswith("peak_flops.")
    ]
    out = few("db", "check").out
    (row,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["peaks"])
    reviewed = sum(bool(peak.reviewed) and peak.kind != "guess" for peak in peaks)
    guesses = sum(peak.kind == "guess" for peak in peaks)
    assert row == ["peaks", *map(str, (len(peaks), reviewed, len(peaks) - reviewed - guesses, guesses))]
    listed = few("db", "check", "--unreviewed").out
    assert listed.count(" peak_flops.") == len(peaks) - reviewed


LINK = """id: mine
name: mine
kind: network
bandwidth: {value: 100 Gb/s, source: roce-book, kind: datasheet}
latency: {value: 10 us, source: simmoe-judgement, kind: guess}
achievable: {value: 0.8, source: simmoe-judgement, kind: guess}
"""


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("name: mine", "name: nothing is wrong", ""),
        ("roce-book", "no-such", "link mine: bandwidth: source 'no-such' is not in sources.yaml, add it there"),
        ("datasheet}", "datasheet, reviewed: me}", "bandwidth: reviewed 'me' is not in sources.yaml, add it there"),
        (
            "datasheet}",
            "datasheet, reviewed: roce-book}",
            "bandwidth: reviewed is the source itself (roce-book), name a second source or remove it",
        ),
        (
            "roce-book",
            "simmoe-judgement",
            "bandwidth: a number of kind datasheet cites simmoe-judgement, name its source or call it a guess",
        ),
        (
            "datasheet}",
            "datasheet, spread: 5}",
            "bandwidth: spread must be above 0 and at most 1 (got 5), write 0.05 for 5 %",
        ),
        ("10 us", "10 s", "latency: 10 s is outside 0 s to 100 ms, check the value and its unit"),
        ("100 Gb/s", "1 kb/s", "bandwidth: 1 kb/s is outside 10 MB/s to 20 TB/s, check the value and its unit"),
        ("roce-book", '""', "bandwidth: source is empty, name one; a guess without any basis cites simmoe-judgement"),
        ("id: mine", "id: other", "not the name of the file (got 'other'), write mine"),
        ("value: 0.8", "value: 80", "must be above 0 and at most 1 (got 80), correct it"),
        ("guess}\nach", "fact}\nach", "kind: not known (got 'fact'), use one of datasheet, paper, measured, derived"),
        ("10 us", "10", "latency: '10' has no unit, write for example 10 us, 0.5 ms"),
    ],
)
def test_check_finds_what_is_wrong_with_a_number(
    own: Path, problems: Callable[[], list[str]], old: str, new: str, sentence: str
) -> None:
    (own / "sources.yaml").write_text("roce-book: {title: The book, kind: datasheet, url: 'https://example.org'}\n")
    assert LINK.count(old) == 1
    (own / "links" / "mine.yaml").write_text(LINK.replace(old, new))
    found = problems()
    assert [sentence in line for line in found] == ([True] if sentence else []), found


def test_check_finds_files_that_nothing_reads(own: Path, problems: Callable[[], list[str]]) -> None:
    (own / "links" / "fast.yml").write_text("id: fast\n")
    (own / "link").mkdir()
    (own / "efficiency" / "h100-sxm5-80g").mkdir(parents=True)
    (own / "efficiency" / "gemm.csv").write_text("x\n")
    (own / "README.md").write_text("mine\n")
    assert stray_files(own, ["h100-sxm5-80gb"]) == [
        f"{own}/link: nothing reads this, did you mean links?",
        f"{own}/links/fast.yml: nothing reads this, end the name of a part in .yaml",
        f"{own}/efficiency/gemm.csv: nothing reads this, put it into the folder of an accelerator",
        f"{own}/efficiency/h100-sxm5-80g: no accelerator has this id, did you mean h100-sxm5-80gb?",
    ]
    assert sum("nothing reads this" in line for line in problems()) == 3


def test_check_tells_every_broken_file_and_source(own: Path, problems: Callable[[], list[str]]) -> None:
    (own / "links" / "worse.yaml").write_text("id: worse\nbandwith: 3\n")
    (own / "sources.yaml").write_text("me: {title: my bench, kind: mesured, url: example.org}\n")
    (own / "efficiency").mkdir()
    (own / "efficiency" / "residuals.csv").write_text(HEADER + "nvlink-44,all_reduce,8,me -> you,9,9,0.1,0.2,0\n")
    lines = problems()
    assert any(line.startswith(f"{own}/links/worse.yaml:2:1: bandwith: ") for line in lines)
    for sentence in (
        "sources.yaml: me: kind 'mesured' is not known, did you mean measured?",
        "sources.yaml: me: url 'example.org' is no address, begin it with https://",
        "efficiency/residuals.csv: nvlink-44 all_reduce 8: no part has this id, did you mean nvlink-4?",
        "efficiency/residuals.csv: nvlink-44 all_reduce 8: 'you' is neither in sources.yaml nor a part, correct it",
    ):
        assert sentence in lines


def test_what_is_taken_from_another_part_is_told_and_counted_once() -> None:
    quantity = Quantity(value=2, unit="1", text="2", source="nobody", kind="derived", note="taken from a100; why")
    number = Number("accelerator x", "efficiency.gemm[bf16].compute", quantity)
    assert number_problems(number, {}) == []
    assert sum(one.total for one in reviews([number])) == 0
    own = number._replace(quantity=quantity.model_copy(update={"note": ""}))
    assert len(number_problems(own, {})) == 2
    assert [one.total for one in reviews([own])] == [0, 0, 0, 0, 1]
    assert source_problems({"x": catalog.Source(title=" ")}) == ["sources.yaml: x: title is empty, write one"]
