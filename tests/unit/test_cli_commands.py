"""The commands that look things up or start something: db, models, cite, new."""

import json
import shutil
from pathlib import Path

import pytest

from simmoe import pipeline
from simmoe.specs import catalog
from simmoe.specs.reader import load_scenario
from tests.command_line import Simmoe, files, in_folder
from tests.scenarios import SMALL


@pytest.fixture
def simmoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Simmoe:
    """Runs `simmoe` in an empty folder."""
    return in_folder(tmp_path, monkeypatch, capsys)


# ---------------------------------------------------------------- db


def test_db_list_names_every_part(simmoe: Simmoe) -> None:
    out = simmoe("db", "list").out
    for kind in ("accelerator", "node", "link", "cluster", "software"):
        assert all(id in out for id in catalog.list_ids(kind))


@pytest.mark.parametrize("kind", ["accelerator", "node", "links", "cluster", "software"])
def test_db_list_of_a_kind_is_one_row_a_part(simmoe: Simmoe, kind: str) -> None:
    found = simmoe("db", "list", kind)
    first = [line.split(" ")[0] for line in found.out.splitlines()[1:] if not line.startswith(" ")]
    assert first == list(catalog.list_ids(kind.removesuffix("s")))


def test_db_list_of_an_unknown_kind(simmoe: Simmoe) -> None:
    message = "'gpu' is not a kind of part, choose one of accelerator, node, link, cluster, software\n"
    assert simmoe("db", "list", "gpu") == (2, "", message)


def test_db_show_gives_value_kind_and_source_of_every_number(simmoe: Simmoe) -> None:
    found = json.loads(simmoe("db", "show", "h100-sxm5-80gb", "--json").out)
    assert (found["kind"], found["id"]) == ("accelerator", "h100-sxm5-80gb")
    numbers = {number["name"]: number for number in found["numbers"]}
    bf16 = numbers["peak_flops.bf16"]
    assert (bf16["value"], bf16["unit"], bf16["kind"]) == (989e12, "FLOP/s", "datasheet")
    assert all(number["source"] in catalog.sources() for number in numbers.values())
    assert "efficiency.gemm[bf16].compute" in numbers
    out = simmoe("db", "show", "h100-sxm5-80gb").out
    assert "989 TFLOP/s" in out
    assert "gemm[bf16].compute" in out


def test_db_show_of_a_node_names_its_parts(simmoe: Simmoe) -> None:
    found = json.loads(simmoe("db", "show", "dgx-h100", "--json").out)
    assert found["facts"]["accelerator"] == "h100-sxm5-80gb"
    assert found["facts"]["scale_up"] == {"link": "nvlink-4", "domain": 8, "topology": "switch"}
    assert "scale_up: link nvlink-4, domain 8, topology switch" in simmoe("db", "show", "dgx-h100").out


def test_db_show_of_an_unknown_id_suggests_near_ones(simmoe: Simmoe) -> None:
    found = simmoe("db", "show", "h100-sxm5")
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith("'h100-sxm5' is no part of the database (did you mean h100-sxm5-80gb")
    assert found.err.endswith("list them with: simmoe db list\n")


def test_db_check_passes_on_the_shipped_files(simmoe: Simmoe) -> None:
    found = simmoe("db", "check")
    assert (found.status, found.err) == (0, "")
    assert found.out.endswith(" files checked, 0 problems.\n")


def test_db_check_finds_what_is_wrong_in_files_of_the_users_own(
    simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch, repository: Path, tmp_path: Path
) -> None:
    links = tmp_path / "own" / "links"
    links.mkdir(parents=True)
    text = (repository / "hardware_db/links/roce-100.yaml").read_text()
    text = text.replace("id: roce-100", "id: mine")
    (links / "mine.yaml").write_text(text.replace("source: ", "source: no-such-source, note: ", 1))
    (links / "worse.yaml").write_text("id: worse\nbandwith: 3\n")
    monkeypatch.setenv("SIMMOE_HARDWARE_PATH", str(tmp_path / "own"))
    catalog.refresh()
    try:
        found = simmoe("db", "check")
    finally:
        monkeypatch.undo()
        catalog.refresh()
    assert (found.status, found.out) == (1, "")
    assert "source 'no-such-source' is not in sources.yaml, add it there" in found.err
    assert f"{links / 'worse.yaml'}:2:1: bandwith: " in found.err
    assert found.err.splitlines()[-1].endswith(" problems.")


# ---------------------------------------------------------------- models


def test_models_list_counts_what_the_authors_count(simmoe: Simmoe) -> None:
    found = {model["id"]: model for model in json.loads(simmoe("models", "list", "--json").out)}
    assert list(found) == list(catalog.list_ids("model"))
    assert round(found["mixtral-8x7b"]["parameters"] / 1e9, 1) == 46.7
    assert round(found["mixtral-8x7b"]["active_parameters"] / 1e9, 1) == 12.9
    (line,) = (line for line in simmoe("models", "list").out.splitlines() if line.startswith("mixtral-8x7b "))
    assert line.split() == [
        "mixtral-8x7b",
        "32",
        "4096",
        "2",
        "of",
        "8",
        "46.70",
        "B",
        "12.88",
        "B",
        "46.7B",
        "/",
        "12.9B",
    ]


def test_models_show_adds_up(simmoe: Simmoe) -> None:
    found = json.loads(simmoe("models", "show", "deepseek-v3", "--json").out)
    assert sum(found["components"].values()) == found["parameters"]
    assert found["exact_parameters"] == found["parameters"] + sum(found["apart"].values())
    assert found["sequence_length"] == 4096
    longer = json.loads(simmoe("models", "show", "deepseek-v3", "--json", "--sequence-length", "8192").out)
    assert longer["training_flops_per_token"] > found["training_flops_per_token"]


def test_models_show_says_where_the_authors_count_otherwise(simmoe: Simmoe) -> None:
    out = simmoe("models", "show", "deepseek-v3").out
    assert "multi-token prediction" in out
    assert "The authors state 671B / 37B" in out
    assert "The count of active parameters is 1.5 % more." in out
    assert "The count of" not in simmoe("models", "show", "mixtral-8x7b").out


def test_models_show_reads_a_config_of_hugging_face(simmoe: Simmoe) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    }
    Path("config.json").write_text(json.dumps(config))
    found = json.loads(simmoe("models", "show", "config.json", "--json").out)
    assert round(found["parameters"] / 1e9, 2) == 6.74
    assert found["sequence_length"] == 2048


def test_every_model_can_be_shown(simmoe: Simmoe) -> None:
    for id in catalog.list_ids("model"):
        found = simmoe("models", "show", id)
        assert (found.status, found.err) == (0, ""), id


# ---------------------------------------------------------------- cite


def test_cite_lists_sources_guesses_and_unreviewed_numbers(simmoe: Simmoe) -> None:
    out = simmoe("cite", SMALL).out
    assert "https://" in out
    assert "Guesses (" in out
    assert "Unreviewed (" in out
    assert "gemm[bf16] " in out


def test_cite_agrees_with_the_summary(simmoe: Simmoe) -> None:
    found = json.loads(simmoe("cite", SMALL, "--json").out)
    told = json.loads(simmoe("simulate", SMALL, "--json", "-").out)["provenance"]
    assert sum(found["kinds"].values()) == told["numbers"]
    assert found["kinds"]["guess"] == len(told["guesses"])
    assert found["unreviewed"] == len(told["unreviewed"])


def test_cite_follows_overrides(simmoe: Simmoe) -> None:
    other = simmoe("cite", SMALL, "--set", "cluster.groups.0.node=dgx-a100-80gb").out
    assert "a100-sxm4-80gb" in other
    assert "h100-sxm5-80gb" not in other


# ---------------------------------------------------------------- new


@pytest.mark.parametrize(
    ("model", "node", "nodes"),
    [
        ("mixtral-8x7b", "dgx-h100", 4),
        ("deepseek-v3", "dgx-h100", 128),
        ("qwen3-30b-a3b", "dgx-a100-80gb", 2),
        ("llama-2-7b", "dgx-1-v100-32gb", 4),
        ("olmoe-1b-7b", "l40s-x8", 2),
        ("switch-base-8", "t4-x8", 1),
    ],
)
def test_a_new_scenario_simulates_as_it_is_and_fits(simmoe: Simmoe, model: str, node: str, nodes: int) -> None:
    made = simmoe("new", "--model", model, "--node", node, "--count", str(nodes), "-o", "n.yaml")
    assert made == (0, "Wrote n.yaml; next: simmoe simulate n.yaml\n", "")
    scenario = load_scenario("n.yaml")
    assert pipeline.run(scenario).fits
    assert scenario.model.id == model
    assert scenario.cluster.devices == nodes * catalog.node(node).accelerators


def test_a_new_scenario_is_printed_without_a_file(simmoe: Simmoe) -> None:
    arguments = ("new", "--model", "mixtral-8x7b", "--node", "dgx-h100", "--count", "4")
    printed = simmoe(*arguments).out
    simmoe(*arguments, "-o", "n.yaml")
    assert printed == Path("n.yaml").read_text()
    assert "# as in the cluster superpod-h100-4" in printed


def test_new_replaces_a_file_only_when_told(simmoe: Simmoe) -> None:
    Path("n.yaml").write_text("mine")
    arguments = ("new", "--model", "mixtral-8x7b", "--node", "dgx-h100", "--count", "4", "-o", "n.yaml")
    assert simmoe(*arguments) == (2, "", "n.yaml exists, write to another file or say --force\n")
    assert Path("n.yaml").read_text() == "mine"
    assert simmoe(*arguments, "--force").status == 0
    assert load_scenario("n.yaml").name == "mixtral-8x7b-32xh100-sxm5-80gb"


def test_new_says_when_nothing_fits(simmoe: Simmoe) -> None:
    found = simmoe("new", "--model", "deepseek-v3", "--node", "dgx-h100", "--count", "1", "-o", "n.yaml")
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith(
        "DeepSeek-V3 does not fit on 1 x NVIDIA DGX H100 with a uniform plan (the leanest plan "
    )
    assert files() == []


def test_new_takes_a_config_from_any_folder(simmoe: Simmoe, repository: Path) -> None:
    Path("models").mkdir()
    shutil.copy(repository / "scenarios/models/mixtral-8x7b.yaml", "models/my model.yaml")
    Path("out").mkdir()
    arguments = ("new", "--model", "models/my model.yaml", "--node", "dgx-h100", "--count", "4")
    assert simmoe(*arguments, "-o", "out/n.yaml").status == 0
    assert load_scenario("out/n.yaml").model.num_layers == 32
