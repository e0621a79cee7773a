"""Models, scenarios and assumptions of the HeterMoE reproduction: sizes, batches, and one number everywhere."""

from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from simmoe.cost.parameters import count_parameters
from simmoe.pipeline import run
from simmoe.specs import catalog
from simmoe.specs.base import Kind, Quantity
from simmoe.specs.kernel_file import variant_of
from simmoe.specs.reader import load_scenario
from simmoe.specs.yaml_file import read_yaml
from tests.papers import named_assumptions

FOLDER = Path(__file__).parents[2] / "scenarios" / "papers" / "hetermoe"
PRINTED = {"w1": 2.2e9, "w2": 4.3e9, "d1": 2.1e9, "d2": 1.2e9, "d3": 3.5e9}
PAIRS = {"o1-w1", "o1-w2", "o1-d1", "o2-w2", "o2-d1", "o3-d2", "c1-w2", "c1-d1", "c2-d3"}
NEWER = {"o1": (6, 6), "o2": (4, 8), "o3": (6, 3), "c1": (2, 6), "c2": (2, 8)}
KEYS = {"value", "unit", "kind", "source", "locator", "held_in", "fitted_on", "why"}
# Whole rows of the paper that may decide a number; all others are tests.
CALIBRATION = {1, 2, 3, 5, 10, 15, 22}
ASSUMPTIONS: dict[str, dict[str, Any]] = read_yaml(FOLDER / "assumptions.yaml").data


@pytest.mark.parametrize(("id", "printed"), PRINTED.items())
def test_models_have_the_printed_size(id: str, printed: float) -> None:
    size = count_parameters(catalog.model(f"{id}.yaml", FOLDER))
    assert round(size.total - size.embedding - size.head, -8) == printed


def test_every_pair_of_the_paper_has_a_scenario() -> None:
    assert {path.stem for path in FOLDER.glob("*-*.yaml")} == PAIRS


@pytest.mark.parametrize("pair", sorted(PAIRS))
def test_scenarios_say_what_the_assumptions_say(pair: str) -> None:
    scenario, (attention, experts) = load_scenario(FOLDER / f"{pair}.yaml"), NEWER[pair[:2]]
    stage, devices = scenario.plan.stages[0], attention + experts
    assert (stage.devices, stage.experts.devices if stage.experts else 0) == (attention, experts)
    assert scenario.model.id == f"hetermoe-{pair[3:]}"
    assert scenario.model.moe is not None
    assert scenario.model.moe.num_experts % experts == 0
    training = scenario.training
    assert training.tokens_per_step == ASSUMPTIONS["batch_tokens"]["value"] * devices
    micro_batches = stage.experts.micro_batches if stage.experts else 0
    assert micro_batches == ASSUMPTIONS["micro_batches"]["value"]
    assert training.global_batch_size % (training.micro_batch_size * attention * micro_batches) == 0
    assert training.precision.value == "fp16"
    assert training.gradient_dtype == "bf16"
    assert stage.recompute.granularity == "full"
    assert (scenario.plan.sharding, scenario.routing.kind) == ("none", "balanced")


@pytest.mark.parametrize("pair", sorted(PAIRS))
def test_every_scenario_fits(pair: str) -> None:
    """The paper takes the largest batch that fits."""
    result = run(load_scenario(FOLDER / f"{pair}.yaml"))
    assert result.fits
    assert {rank.role for rank in result.ranks} == {"attention", "experts"}


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_every_number_says_where_it_comes_from(name: str) -> None:
    entry = ASSUMPTIONS[name]
    assert set(entry) == KEYS
    assert isinstance(entry["value"], int | float)
    assert entry["unit"]
    assert entry["why"]
    assert entry["kind"] in {kind.value for kind in Kind}
    assert entry["source"] in catalog.sources()
    assert entry["locator"] or entry["source"] == "simmoe-judgement"
    assert set(entry["fitted_on"]) <= CALIBRATION
    assert not entry["fitted_on"] or entry["kind"] in {"derived", "guess"}


@pytest.mark.parametrize(
    "path", [path for path in FOLDER.glob("*.yaml") if path.stem != "assumptions"], ids=lambda path: path.stem
)
def test_files_name_assumptions_that_exist(path: Path) -> None:
    """In the comment of a number: (name) or (name, beginning_*)."""
    named = named_assumptions(path)
    assert len(named) >= 3
    for name in named:
        assert any(fnmatchcase(known, name) for known in ASSUMPTIONS), name


SCALE = {"Gb/s": 1e9 / 8, "GB/s": 1e9, "ms": 1e-3}


def quantity(held_in: str) -> Quantity | None:
    """The number of the database that an assumption names; None for what a scenario holds."""
    kind, id, *rest = held_in.split()
    if kind == "attention":
        variant, parameter = rest
        rows = catalog.accelerator(id).efficiency.attention
        found: Quantity = getattr(next(row for row in rows if variant_of(kind, row) == variant), parameter)
        return found
    if kind == "exchange":
        measured = catalog.link(id).collectives
        return next(
            one for one in measured if (one.collective, one.ranks) == ("all_to_all", int(rest[0]))
        ).bus_bandwidth
    if kind in {"software", "link", "node"}:
        part = getattr(catalog, kind)(id)
        held = reduce(getattr, rest[0].split("."), part)
        return held if isinstance(held, Quantity) else None
    return None


IN_DATABASE = [name for name, entry in ASSUMPTIONS.items() if quantity(entry["held_in"]) is not None]


def test_most_numbers_of_parts_are_compared() -> None:
    assert len(IN_DATABASE) >= 12


@pytest.mark.parametrize("name", IN_DATABASE)
def test_the_database_holds_the_same_number(name: str) -> None:
    entry = ASSUMPTIONS[name]
    held = quantity(entry["held_in"])
    assert held is not None
    assert held.value == pytest.approx(entry["value"] * SCALE.get(entry["unit"], 1.0), rel=1e-9)


@pytest.mark.parametrize("id", PRINTED)
def test_models_hold_the_same_numbers(id: str) -> None:
    model = catalog.model(f"{id}.yaml", FOLDER)
    heads = model.attention.num_heads / model.attention.num_kv_heads
    assert model.moe is not None
    assert model.moe.moe_ffn_hidden_size == ASSUMPTIONS["expert_width"]["value"] * model.hidden_size
    assert (model.vocab_size, model.attention.head_dim) == (
        ASSUMPTIONS["vocabulary"]["value"],
        ASSUMPTIONS["head_width"]["value"],
    )
    assert heads == ASSUMPTIONS["query_heads_per_key"]["value"]
    assert model.attention.num_heads * model.attention.head_dim == model.hidden_size
