"""The commands that look things up or start something: models, cite, new."""

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
