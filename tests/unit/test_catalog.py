"""Parts by id: the shipped ones, the user's own, and their kernel tables."""

import json
import os
from pathlib import Path

import pytest

from simmoe.errors import NotFoundError, SpecError
from simmoe.specs import catalog
from simmoe.specs.inheritance import inherited
from simmoe.specs.yaml_file import read_yaml

KINDS = ("accelerator", "link", "node", "cluster", "software", "model")


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_that_is_shipped_can_be_read(kind):
    ids = catalog.list_ids(kind)
    assert ids == tuple(sorted(ids))
    assert len(ids) >= 2
    for id in ids:
        part = getattr(catalog, kind)(id)
        assert getattr(part, "id", id) == id
        assert getattr(catalog, kind)(id) is part  # read once


def test_every_source_that_is_named_exists():
    sources = catalog.sources()
    assert all(source.title for source in sources.values())
    for id in catalog.list_ids("accelerator"):
        assert catalog.accelerator(id).memory.source in sources


def test_only_what_is_needed_is_read(load, catalogue, monkeypatch):
    read = []
    original = catalog.read_yaml
    monkeypatch.setattr(catalog, "read_yaml", lambda path: read.append(path.stem) or original(path))
    catalog.refresh()
    load()
    assert sorted(read) == [
        *("dgx-h100", "h100-sxm5-80gb", "infiniband-ndr-400", "megatron-core-2025"),
        *("mixtral-8x7b", "nvlink-4", "pcie-5"),
    ]


@pytest.fixture
def own(catalogue, tmp_path, monkeypatch) -> Path:
    """A folder of the user's own parts."""
    folder = tmp_path / "own"
    (folder / "links").mkdir(parents=True)
    monkeypatch.setenv("SIMMOE_HARDWARE_PATH", str(folder))
    return folder


LINK = """id: {id}
name: mine
kind: network
bandwidth: {{value: {bandwidth}, source: me, kind: guess}}
latency: {{value: 1 us, source: me, kind: guess}}
achievable: {{value: 0.5, source: me, kind: guess}}
"""


def test_parts_of_the_user_come_first(own, tmp_path, monkeypatch):
    home = tmp_path / ".config/simmoe/hardware/links"
    home.mkdir(parents=True)
    for folder, bandwidth in ((home, "100 Gb/s"), (own / "links", "200 Gb/s")):
        (folder / "roce-100.yaml").write_text(LINK.format(id="roce-100", bandwidth=bandwidth))
    (home / "only-home.yaml").write_text(LINK.format(id="only-home", bandwidth="100 Gb/s"))
    catalog.refresh()
    assert catalog.link("roce-100").bandwidth.value == 25e9
    assert catalog.link("only-home").name == "mine"
    assert catalog.link("nvlink-4").kind == "scale_up"
    assert "only-home" in catalog.list_ids("link")
    (own / "links" / "roce-100.yaml").unlink()
    catalog.refresh()
    assert catalog.link("roce-100").bandwidth.value == 12.5e9


def test_a_tilde_in_the_path_of_hardware_is_the_home_folder(own, tmp_path, monkeypatch):
    (own / "links" / "mine.yaml").write_text(LINK.format(id="mine", bandwidth="100 Gb/s"))
    monkeypatch.setenv("SIMMOE_HARDWARE_PATH", "~/own")  # HOME is tmp_path
    assert catalog.link("mine").name == "mine"
    monkeypatch.setenv("SIMMOE_HARDWARE_PATH", "~no-such-user/own")
    with pytest.raises(SpecError, match="~no-such-user/own is no folder"):
        catalog.link("mine")


def test_sources_of_the_user_are_added(own):
    (own / "sources.yaml").write_text("me: {title: my bench, kind: measured}\n")
    catalog.refresh()
    assert catalog.sources()["me"].title == "my bench"
    assert len(catalog.sources()) > 1
    (own / "sources.yaml").write_text("me: {titel: my bench}\n")
    catalog.refresh()
    with pytest.raises(SpecError, match=r"sources.yaml:1:6: me.titel: unknown key, did you mean title\?"):
        catalog.sources()


@pytest.mark.parametrize(
    ("bandwidth", "sentence"),
    [
        ("400 GB/s", "bandwidth: 400 GB/s is more than any network port (200 GB/s), did you mean 400 Gb/s (50 GB/s)?"),
        ("-1 GB/s", "bandwidth.value: must not be negative (got '-1 GB/s'), write it positive"),
        ("0 GB/s", "bandwidth.value: must not be zero (got '0 GB/s'), write what it is"),
        ("12", "bandwidth: '12' has no unit, write for example 3.35 TB/s, 900 GB/s, 400 Gb/s"),
        ("fast", "bandwidth: not a quantity (got 'fast'), write for example 3.35 TB/s, 900 GB/s, 400 Gb/s"),
    ],
)
def test_a_part_of_the_user_that_is_wrong_names_its_own_file(own, bandwidth, sentence):
    path = own / "links" / "mine.yaml"
    path.write_text(LINK.format(id="mine", bandwidth=bandwidth))
    with pytest.raises(SpecError) as caught:
        catalog.link("mine")
    (line,) = caught.value.problems
    assert line.startswith(f"{path}:4:")
    assert line.endswith(f": {sentence}")


def test_a_number_without_its_source_is_refused(own):
    path = own / "links" / "mine.yaml"
    path.write_text(
        "id: mine\nname: mine\nkind: network\nbandwidth: 50 GB/s\n"
        "latency: {source: me, kind: guess}\nachievable: {value: 1, knid: guess}\n"
    )
    with pytest.raises(SpecError) as caught:
        catalog.link("mine")
    assert [line.removeprefix(f"{path}:") for line in caught.value.problems] == [
        "4:12: bandwidth: a number with its source is expected (got '50 GB/s'), "
        "write {value: ..., source: ..., kind: ...}",
        "5:1: latency: a number needs value, source and kind, add value",
        "6:1: achievable.source: is missing, add it",
        "6:1: achievable.kind: is missing, add it",
        "6:24: achievable.knid: unknown key, did you mean kind?",
    ]


def test_a_file_says_its_own_id(own):
    path = own / "links" / "mine.yaml"
    path.write_text(LINK.format(id="other", bandwidth="1 GB/s"))
    with pytest.raises(SpecError) as caught:
        catalog.link("mine")
    assert str(caught.value) == f"{path}:1:5: id: not the name of the file (got 'other'), write mine"


def test_a_data_folder_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("SIMMOE_DATA", "/no/such")
    with pytest.raises(SpecError) as caught:
        catalog.list_ids("link")
    assert str(caught.value) == "SIMMOE_DATA=/no/such: there is no such folder, correct or unset the variable"
    monkeypatch.delenv("SIMMOE_DATA")
    monkeypatch.setenv("SIMMOE_HARDWARE_PATH", f"{os.sep}{os.pathsep}/no/such")
    with pytest.raises(SpecError, match="/no/such is no folder, correct or unset the variable"):
        catalog.list_ids("link")


def test_an_empty_data_folder_has_no_parts(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMMOE_DATA", str(tmp_path))
    assert catalog.list_ids("link") == ()
    with pytest.raises(NotFoundError, match=r"^'nvlink-4' is not a link, list them with: simmoe db list$"):
        catalog.link("nvlink-4")
    assert catalog.sources() == {}


# ---------------------------------------------------------------- kernel tables

HEADER = "variant,parameter,value,kind,source,locator,spread,note\n"
LOADS = """norm,launch,3 us,measured,me,here,0.1,
norm,memory,0.8,measured,me,here,,"a note, with a comma"
"""


@pytest.fixture
def chip(own) -> Path:
    """A new accelerator that takes the tables of another one; returns where its own tables go."""
    description = read_yaml(Path(os.environ["SIMMOE_DATA"]) / "hardware_db/accelerators/h100-sxm5-80gb.yaml").data
    description |= {"id": "chip", "efficiency_of": "a100-sxm4-80gb"}
    (own / "accelerators").mkdir()
    (own / "accelerators" / "chip.yaml").write_text(json.dumps(description, indent=1))
    (own / "efficiency" / "chip").mkdir(parents=True)
    return own / "efficiency" / "chip"


def test_tables_are_inherited_and_a_variant_is_replaced_whole(chip):
    parent = inherited(catalog.accelerator("a100-sxm4-80gb").efficiency, "a100-sxm4-80gb", same_architecture=False)
    assert catalog.accelerator("chip").efficiency == parent
    (chip / "memory_bound.csv").write_text(HEADER + LOADS)
    catalog.refresh()
    mine = catalog.accelerator("chip").efficiency
    assert mine.gemm == parent.gemm
    (norm,) = [one for one in mine.memory_bound if one.operator == "norm"]
    assert (norm.launch.value, norm.launch.spread) == (pytest.approx(3e-6), 0.1)
    assert (norm.memory.value, norm.memory.spread, norm.memory.note) == (0.8, None, "a note, with a comma")
    assert len(mine.memory_bound) == len(parent.memory_bound)


def test_a_table_of_the_user_adds_to_the_shipped_one(own):
    shipped = catalog.accelerator("h100-sxm5-80gb").efficiency
    (own / "efficiency" / "h100-sxm5-80gb").mkdir(parents=True)
    (own / "efficiency" / "h100-sxm5-80gb" / "memory_bound.csv").write_text(HEADER + LOADS)
    catalog.refresh()
    mine = catalog.accelerator("h100-sxm5-80gb").efficiency
    assert mine.gemm == shipped.gemm
    assert next(one for one in mine.memory_bound if one.operator == "norm").memory.value == 0.8


@pytest.mark.parametrize(
    ("table", "rows", "sentences"),
    [
        ("gemm", "bf16,launch\n", ["2:1: 8 columns are expected (got 2), quote commas in text"]),
        (
            "attention",
            "fa2,launch,1 us,guess,me,,,\n",
            ["2:1: variant: kernel:head_dim is expected (got 'fa2'), write it so"],
        ),
        (
            "memory_bound",
            LOADS + "norm,launch,4 us,guess,me,,,\n",
            ["4:1: launch: the parameter is given twice, remove one of the two"],
        ),
        (
            "memory_bound",
            "norm,launch,4,guess,me,,,\nnorm,memori,-1,fact,me,,x,\n",
            [
                "2:1: memory_bound.norm.launch: '4' has no unit, write for example 10 us, 0.5 ms",
                "2:1: memory_bound.norm.memory: is missing, add {value: ..., source: ..., kind: ...}",
                "3:1: memory_bound.norm.memori: unknown key, did you mean memory?",
            ],
        ),
        (
            "memory_bound",
            "norm,launch,4 us,fact,me,,x,\nnorm,memory,-1,guess,me,,,\n",
            [
                "2:1: memory_bound.norm.launch.kind: not known (got 'fact'), "
                "use one of datasheet, paper, measured, derived, guess",
                "2:1: memory_bound.norm.launch.spread: a number is expected (got 'x'), write for example 0.5",
            ],
        ),
        (
            "memory_bound",
            "norm,launch,4 us,guess,me,,,\nnorm,memory,-1,guess,me,,,\n",
            ["3:1: memory_bound.norm.memory.value: must not be negative (got '-1'), write it positive"],
        ),
        (
            "attention",
            "fa2:wide,launch,1 us,guess,me,,,\nfa2:wide,compute,1,guess,me,,,\n"
            "fa2:wide,length_fill,1,guess,me,,,\nfa2:wide,backward,1,guess,me,,,\n"
            "fa2:wide,block_fill,1,guess,me,,,\nfa2:wide,sustained,1,guess,me,,,\n",
            ["attention.fa2:wide.head_dim: a whole number is expected (got 'wide'), write for example 8"],
        ),
        (
            "grouped_gemm",
            "a:b:bf16,launch,1 us,guess,me,,,\n",
            ["2:1: variant: kernel:dtype is expected (got 'a:b:bf16'), write it so"],
        ),
        (
            "grouped_gemm",
            "bf16,launch,1 us,guess,me,,,\nte:bf16,launch,2 us,guess,me,,,\n",  # a dtype alone is te
            ["3:1: launch: the parameter is given twice, remove one of the two"],
        ),
        ("gemm", 'bf16,launch,"1 us', ["2: not valid CSV (unexpected end of data), correct the quotes"]),
    ],
)
def test_a_wrong_table_is_answered_by_line(chip, table, rows, sentences):
    (chip / f"{table}.csv").write_text(HEADER + rows)
    with pytest.raises(SpecError) as caught:
        catalog.accelerator("chip")
    for line, sentence in zip(caught.value.problems, sentences, strict=True):
        assert line.startswith(f"{chip / table}.csv:")
        assert line.endswith(sentence)


@pytest.mark.parametrize("held", ["chip", "a100-sxm4-80gb"])
def test_a_table_of_an_unknown_name_is_not_passed_over(chip, held):
    folder = chip.parent / held
    folder.mkdir(exist_ok=True)
    for name in ("gem.csv", "kernels.csv", "notes.md"):
        (folder / name).write_text("anything")
    with pytest.raises(SpecError) as caught:
        catalog.accelerator("chip")
    assert list(caught.value.problems) == [
        f"{folder}/gem.csv: no table is named so, did you mean gemm?",
        f"{folder}/kernels.csv: no table is named so, use one of gemm, attention, grouped_gemm, memory_bound",
    ]


def test_a_table_with_another_header_is_refused(chip):
    (chip / "gemm.csv").write_text("a,b\n")
    with pytest.raises(SpecError) as caught:
        catalog.accelerator("chip")
    assert str(caught.value) == f"{chip}/gemm.csv:1: not the header {HEADER.strip()} (got 'a,b'), correct it"


def test_an_accelerator_without_tables_is_refused(chip, own):
    path = own / "accelerators" / "chip.yaml"
    path.write_text(path.read_text().replace('"a100-sxm4-80gb"', '""'))
    with pytest.raises(SpecError) as caught:
        catalog.accelerator("chip")
    sentence = "no table in efficiency/chip, add gemm.csv and the others or set efficiency_of"
    assert str(caught.value) == f"{path}:1:1: {sentence}"
