"""``simmoe db new``, runs on parts of one's own, and what a run says of its numbers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simmoe.cli import db_template
from simmoe.specs import catalog
from simmoe.specs.numbers import numbers_of
from tests.command_line import Outcome, Simmoe, files
from tests.scenarios import SMALL


def new(simmoe: Simmoe, *arguments: str) -> Outcome:
    return simmoe("db", "new", *arguments)


@pytest.mark.parametrize(
    ("kind", "id", "options"),
    [
        ("accelerator", "chip", ()),
        ("accelerators", "chip", ("--like", "v100-sxm2-16gb")),
        ("accelerator", "chip.2_x-y", ("--tables",)),
        ("link", "wire", ()),
        ("link", "wire", ("--like", "nvlink-4")),
        ("node", "box", ()),
        ("cluster", "pod", ()),
        ("software", "stack", ()),
    ],
)
def test_a_new_part_is_a_guess_that_passes_the_check(
    few: Simmoe,
    user: Path,
    problems: Callable[[], list[str]],
    kind: str,
    id: str,
    options: tuple[str, ...],
) -> None:
    sort = kind.removesuffix("s")
    found = new(few, kind, id, *options)
    assert (found.status, found.err) == (0, "")
    (path,) = user.glob(f"*/{id}.yaml")
    assert found.out.startswith(f"Wrote {path}\n")
    assert "simmoe db check" in found.out
    part = getattr(catalog, sort)(id)
    own = list(numbers_of(part, ""))
    assert all(n.quantity.kind == "guess" for n in own if not n.quantity.note.startswith("taken from"))
    assert problems() == []
    assert few("db", "show", id).status == 0
    again = few("db", "new", kind, id, *options)
    assert (again.status, again.out) == (2, "")
    assert again.err == f"{path} exists, choose another id or edit that file\n"


@pytest.mark.parametrize("kind", db_template.CLASSES)
def test_a_template_explains_every_key(few: Simmoe, user: Path, kind: str) -> None:
    new(few, kind, "mine")
    (path,) = user.glob("*/mine.yaml")
    lines = path.read_text().splitlines()
    obvious = {"vendor", "release_year"}
    for name in set(db_template.CLASSES[kind].model_fields) - {"efficiency"} - obvious:
        places = [at for at, line in enumerate(lines) if line.removeprefix("# ").startswith(f"{name}:")]
        if places:
            assert lines[places[0] - 1].startswith("# "), name
    assert all(len(line) <= 200 for line in lines)
    unexplained = [n for n in db_template.CLASSES[kind].model_fields if not db_template.explanation(kind, n)]
    assert set(unexplained) <= obvious | {"efficiency"}


def test_a_template_shows_a_part_as_it_is_but_for_its_firmness(few: Simmoe, user: Path) -> None:
    new(few, "accelerator", "chip", "--like", "v100-sxm2-16gb", "--tables")
    mine, other = catalog.accelerator("chip"), catalog.accelerator("v100-sxm2-16gb")

    def values(part: str) -> list[tuple[str, float]]:
        return [(n.name, n.quantity.value) for n in numbers_of(catalog.accelerator(part), "")]

    assert sorted(values("chip")) == sorted(values("v100-sxm2-16gb"))
    assert (mine.architecture, mine.attention_kernels) == (other.architecture, other.attention_kernels)
    assert mine.efficiency_of == ""
    assert sorted(path.name for path in (user / "efficiency" / "chip").iterdir()) == [
        *("attention.csv", "gemm.csv", "grouped_gemm.csv", "memory_bound.csv")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpu", "x"), "'gpu' is not a kind of part, choose one of accelerator, node, link, cluster, software"),
        (
            ("link", "../x"),
            "'../x' cannot be an id, begin with a letter or digit and use letters, digits, . _ - (at most 100)",
        ),
        (("link", "x", "--like", "nvlnk-4"), "'nvlnk-4' is not a link (did you mean nvlink-4"),
        (("link", "x", "--tables"), "--tables is for an accelerator, a link has no kernel tables: leave it out"),
        (("link", "nvlink-4"), "nvlink-4 is already in the database ("),
        (("link", "x", "--output", "/dev/null"), "cannot write /dev/null/links: not a directory; choose another place"),
    ],
)
def test_what_cannot_be_written_is_one_clear_error(
    few: Simmoe, user: Path, arguments: tuple[str, ...], message: str
) -> None:
    found = new(few, *arguments)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith(message)
    assert found.err.count("\n") == 1
    assert not user.exists()


def test_a_new_part_goes_into_the_first_folder_of_the_path(
    few: Simmoe, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "second").mkdir()
    monkeypatch.setenv("SIMMOE_HARDWARE_PATH", f"{tmp_path}/first:{tmp_path}/second")
    assert new(few, "link", "wire").status == 0
    assert (tmp_path / "first" / "links" / "wire.yaml").is_file()
    assert catalog.link("wire").kind == "network"
    elsewhere = new(few, "link", "wire2", "--output", "parts").out
    assert f"export SIMMOE_HARDWARE_PATH={Path('parts').resolve()}:" in elsewhere
    assert files() == ["parts"]
    assert not user.exists()


@pytest.mark.parametrize("where", ["home", "path"])
def test_a_run_on_parts_of_ones_own(
    simmoe: Simmoe, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "path":
        monkeypatch.setenv("SIMMOE_HARDWARE_PATH", str(tmp_path / "mine"))
    new(simmoe, "accelerator", "chip", "--like", "a100-sxm4-80gb")
    new(simmoe, "link", "wire", "--like", "nvlink-3")
    new(simmoe, "node", "box", "--like", "dgx-a100-80gb")
    folder = tmp_path / "mine" if where == "path" else user
    box = folder / "nodes" / "box.yaml"
    text = box.read_text()
    assert text.count("accelerator: a100-sxm4-80gb") == text.count("{link: nvlink-3,") == 1
    box.write_text(text.replace("accelerator: a100-sxm4-80gb", "accelerator: chip").replace("nvlink-3", "wire"))
    chip = folder / "accelerators" / "chip.yaml"
    chip.write_text(chip.read_text().replace("bf16: {value: 312 TFLOP/s", "bf16: {value: 624 TFLOP/s"))
    catalog.refresh()
    run = ("simulate", str(SMALL), "--set", "cluster.groups.0.node=box", "--json", "-")
    found = json.loads(simmoe(*run).out)
    assert set(found["utilization"]) == {"chip"}
    assert "accelerator chip: peak_flops.bf16" in found["provenance"]["guesses"]
    assert "link wire: bandwidth" in found["provenance"]["guesses"]
    other = json.loads(
        simmoe("simulate", str(SMALL), "--set", "cluster.groups.0.node=dgx-a100-80gb", "--json", "-").out
    )
    assert found["breakdown_s"]["gemm"] < 0.6 * other["breakdown_s"]["gemm"]


# ---------------------------------------------------------------- what a run says


def test_a_report_says_how_many_numbers_are_unreviewed(simmoe: Simmoe) -> None:
    told = json.loads(simmoe("simulate", str(SMALL), "--json", "-").out)["provenance"]
    out = simmoe("simulate", str(SMALL)).out
    assert f"Unreviewed numbers: {len(told['unreviewed'])} of {told['numbers']}, from one source only" in out
    assert f"Guesses: {len(told['guesses'])} of {told['numbers']}; listed by\n  simmoe cite {SMALL}" in out


def test_a_review_takes_a_number_off_the_list(
    simmoe: Simmoe, user: Path, repository: Path, catalogue_of: Callable[[str, str, str], None]
) -> None:
    def lists() -> tuple[list[str], list[str]]:
        told = json.loads(simmoe("simulate", str(SMALL), "--json", "-").out)["provenance"]
        return told["unreviewed"], told["guesses"]

    name = "link infiniband-ndr-400: latency"
    before = lists()
    assert name in before[0]
    catalogue_of("links", "infiniband-ndr-400", "reviewed: vidur-profiling, ")
    after = lists()
    assert [one for one in before[0] if one not in after[0]] == [name]
    assert before[1] == after[1]


@pytest.fixture
def catalogue_of(user: Path, repository: Path) -> Callable[[str, str, str], None]:
    """Writes a shipped link into the user's folder, with words added to its latency."""

    def write(folder: str, id: str, words: str) -> None:
        text = (repository / "hardware_db" / folder / f"{id}.yaml").read_text()
        assert text.count("\nlatency: {") == 1
        (user / folder).mkdir(parents=True)
        (user / folder / f"{id}.yaml").write_text(text.replace("\nlatency: {", f"\nlatency: {{{words}"))
        catalog.refresh()

    return write
