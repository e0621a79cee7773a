"""Clusters, models, scenarios, assumptions and rows of the HAPMoE reproduction."""

import csv
import re
from fnmatch import fnmatchcase
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest

from simmoe.cost.layers import layer_operators
from simmoe.cost.model import StageCost
from simmoe.cost.network import network_of
from simmoe.cost.parameters import count_parameters
from simmoe.cost.shard import shard_of
from simmoe.explore.modules import forward_and_backward
from simmoe.pipeline import run, stage_memory
from simmoe.specs import catalog
from simmoe.specs.base import Kind, Quantity
from simmoe.specs.paper_rows_reader import paper_rows
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario
from simmoe.specs.yaml_file import read_yaml
from tests.papers import named_assumptions

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FOLDER = SCENARIOS / "papers" / "hapmoe"
H800, ASCEND, MI300X = "h800", "ascend-910b", "mi300x"
CLUSTERS = {
    "16-1-h": {H800: 16},
    "16-2-h": {ASCEND: 16},
    "16-3-h": {MI300X: 16},
    "16-1": {H800: 8, ASCEND: 8},
    "16-2": {H800: 8, MI300X: 8},
    "16-3": {ASCEND: 8, MI300X: 8},
    "24-1": {H800: 8, ASCEND: 16},
    "24-2": {H800: 8, MI300X: 16},
    "24-3": {ASCEND: 16, MI300X: 8},
    "32-1": {H800: 16, ASCEND: 16},
    "32-2": {H800: 16, MI300X: 16},
    "32-3": {ASCEND: 16, MI300X: 16},
}
MIXED = [id for id in CLUSTERS if not id.endswith("-h")]
PAIRS = [f"{id}-{model}" for id in CLUSTERS for model in "sl"]
# Nothing fits there without the host.
OFFLOADED = {"16-1-h-l", "16-2-h-l", "16-1-l", "16-3-l", "24-1-l"}
UNEQUAL = {"16-2-l", "16-3-l", "24-2-l", "24-3-l", "32-1-l", "32-3-l"}
KEYS = {"value", "unit", "kind", "source", "locator", "held_in", "fitted_on", "why"}
CALIBRATION = {27}
ASSUMPTIONS: dict[str, dict[str, Any]] = read_yaml(FOLDER / "assumptions.yaml").data
ROWS = paper_rows("hapmoe")
SCALE = {"Gb/s": 1e9 / 8, "ms": 1e-3}


def value(name: str) -> Any:
    return ASSUMPTIONS[name]["value"]


@cache
def scenario_of(pair: str) -> Scenario:
    return load_scenario(FOLDER / f"{pair}.yaml")


# ---------------------------------------------------------------- models and clusters


@pytest.mark.parametrize(("size", "parameters"), [("s", 35.1e9), ("l", 120.6e9)])
def test_models_have_the_printed_shape(size: str, parameters: float) -> None:
    model = catalog.model(f"mixtral-{size}.yaml", FOLDER)
    assert round(count_parameters(model).total, -8) == parameters
    assert (model.vocab_size, model.attention.num_kv_heads) == (value("vocabulary"), value("key_heads"))
    assert model.attention.head_dim == value("head_width")
    assert model.attention.num_heads * model.attention.head_dim == model.hidden_size


@pytest.mark.parametrize("id", CLUSTERS)
def test_clusters_hold_the_devices_of_table_1(id: str) -> None:
    cluster = catalog.cluster(f"hapmoe-{id}")
    assert {group.node.accelerator.id: group.devices for group in cluster.groups} == CLUSTERS[id]
    assert {group.node.accelerators for group in cluster.groups} == {value("node_devices")}


@pytest.mark.parametrize("id", CLUSTERS)
def test_nodes_of_one_vendor_keep_their_own_ports(id: str) -> None:
    cluster = catalog.cluster(f"hapmoe-{id}")
    rates = {H800: value("h800_port_rate"), ASCEND: value("ascend_port_rate"), MI300X: value("mi300x_port_rate")}
    for group in cluster.groups:
        ports = group.node.network_ports.value / group.node.accelerators
        if group.count > 1:
            assert ports * cluster.fabric.port_bandwidth == rates[group.node.accelerator.id] * SCALE["Gb/s"]


@pytest.mark.parametrize("id", MIXED)
def test_vendors_meet_at_one_rate(id: str) -> None:
    """Whatever ports the nodes are counted with, a device gets the same between vendors on every cluster."""
    cluster = catalog.cluster(f"hapmoe-{id}")
    assert cluster.cross_group is not None
    reached = value("cross_port_rate") * SCALE["Gb/s"] * cluster.cross_group.link.achievable.value
    assert network_of(cluster, 0, unlike=True).port.bandwidth == pytest.approx(reached)


@pytest.mark.parametrize("id", [id for id in CLUSTERS if id not in MIXED])
def test_clusters_of_one_vendor_have_nothing_to_cross(id: str) -> None:
    assert catalog.cluster(f"hapmoe-{id}").cross_group is None


# ---------------------------------------------------------------- scenarios


def test_every_cluster_has_both_models() -> None:
    assert {path.stem for path in FOLDER.glob("??-*.yaml")} == set(PAIRS)


@pytest.mark.parametrize("pair", PAIRS)
def test_scenarios_say_what_the_assumptions_say(pair: str) -> None:
    scenario, (id, size) = scenario_of(pair), pair.rsplit("-", 1)
    training, stages = scenario.training, scenario.plan.stages
    assert scenario.model.id == f"hapmoe-mixtral-{size}"
    assert scenario.cluster.devices == sum(CLUSTERS[id].values()) == sum(stage.devices for stage in stages)
    assert training.sequence_length == value("sequence_tokens")
    assert (training.micro_batch_size, training.global_batch_size) == (value("micro_batch"), value(f"batch_{size}"))
    assert (training.precision.value, training.gradient_dtype) == ("bf16", "fp32")
    assert training.software.id == "megatron-core-2025"
    assert (scenario.plan.sharding, scenario.routing.kind) == ("zero1", "balanced")
    assert scenario.plan.dispatcher == {"s": "allgather", "l": "alltoall"}[size]


@pytest.mark.parametrize("pair", PAIRS)
def test_plans_put_one_node_into_a_stage(pair: str) -> None:
    stages = scenario_of(pair).plan.stages
    assert {stage.devices for stage in stages} == {8}
    assert {stage.expert_parallel for stage in stages} == {8}
    assert (len({stage.layers for stage in stages}) > 1) == (pair in UNEQUAL)


@pytest.mark.parametrize("pair", PAIRS)
def test_plans_fit_and_five_only_with_optimizer_states_on_the_host(pair: str) -> None:
    scenario = scenario_of(pair)
    assert scenario.plan.optimizer_offload_fraction == (value("offload") if pair in OFFLOADED else 0.0)
    on_devices = load_scenario(FOLDER / f"{pair}.yaml", ["plan.optimizer_offload_fraction=0"])
    sizes = [group.node.accelerator.memory.value for group in scenario.cluster.groups for _ in range(group.count)]
    assert all(memory.total <= size for memory, size in zip(stage_memory(scenario), sizes, strict=True))
    fits = all(memory.total <= size for memory, size in zip(stage_memory(on_devices), sizes, strict=True))
    assert fits == (pair not in OFFLOADED)


def test_sixteen_three_fits_with_short_gradients() -> None:
    """Its comment says so."""
    shorter = load_scenario(
        FOLDER / "16-3-l.yaml", ["training.gradient_dtype=bf16", "plan.optimizer_offload_fraction=0"]
    )
    ascend, mi300x = (group.node.accelerator.memory.value for group in shorter.cluster.groups)
    first, second = stage_memory(shorter)
    assert first.total <= ascend
    assert second.total <= mi300x


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_every_scenario_runs(pair: str) -> None:
    """And the split that a file suggests is faster."""
    plain, text = run(scenario_of(pair)), (FOLDER / f"{pair}.yaml").read_text(encoding="utf-8")
    assert plain.fits
    suggested = re.search(r"--set (plan.stage_layers)='(.*)'", text)
    if suggested:
        other = run(load_scenario(FOLDER / f"{pair}.yaml", [f"{suggested[1]}={suggested[2]}"]))
        assert other.fits
        assert other.metrics.step_time_s < 0.9 * plain.metrics.step_time_s


# ---------------------------------------------------------------- assumptions


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_every_number_says_where_it_comes_from(name: str) -> None:
    entry = ASSUMPTIONS[name]
    assert KEYS <= set(entry) <= KEYS | {"range", "database"}
    assert isinstance(entry["value"], int | float)
    assert entry["unit"]
    assert entry["why"]
    assert entry["kind"] in {kind.value for kind in Kind}
    assert entry["source"] in catalog.sources()
    assert entry["locator"] or entry["source"] == "simmoe-judgement"
    assert set(entry["fitted_on"]) <= CALIBRATION
    assert not entry["fitted_on"] or entry["kind"] in {"derived", "guess"}
    assert "range" in entry or entry["kind"] != "guess"
    low, high = entry.get("range", [entry["value"]] * 2)
    assert low <= entry["value"] <= high


@pytest.mark.parametrize(
    "path", [path for path in FOLDER.glob("*.yaml") if path.stem != "assumptions"], ids=lambda path: path.stem
)
def test_files_name_assumptions_that_exist(path: Path) -> None:
    """In the comment of a number: (name)."""
    named = named_assumptions(path)
    assert len(named) >= 3
    for name in named:
        assert any(fnmatchcase(known, name) for known in ASSUMPTIONS), name


def quantity(held_in: str) -> Quantity | None:
    """The number of the database that an assumption names; None for what a scenario or a planner holds."""
    kind, id, *rest = held_in.split()
    if kind not in {"software", "link", "node"} or not rest:
        return None
    held = reduce(getattr, rest[0].split("."), getattr(catalog, kind)(id))
    return held if isinstance(held, Quantity) else None


@pytest.mark.parametrize("name", ["h800_port_rate", "mi300x_port_rate", "ascend_port_rate", "host_moe_layer"])
def test_the_database_holds_the_same_number(name: str) -> None:
    entry = ASSUMPTIONS[name]
    held = quantity(entry["held_in"])
    assert held is not None
    assert held.value == pytest.approx(entry["value"] * SCALE[entry["unit"]], rel=1e-9)


def layer_s(pair: str) -> float:
    """Forward and backward of the kernels of one layer, without exchanges [s]."""
    scenario = scenario_of(pair)
    shard = shard_of(scenario.plan.stages[0], scenario.plan, scenario.training, scenario.routing)
    kernels = [one for one in layer_operators(scenario.model, shard, 0) if one.stream == "compute"]
    return forward_and_backward(kernels, StageCost(scenario, 0, 0))


@pytest.mark.parametrize(
    ("name", "pair", "inside"), [("ascend_rate", "16-2-h-s", True), ("mi300x_rate", "16-3-h-s", False)]
)
def test_what_the_database_gives_for_a_rate_is_told(name: str, pair: str, inside: bool) -> None:
    """And whether it lies inside the range that the printed shares leave."""
    entry, reached = ASSUMPTIONS[name], layer_s("16-1-h-s") / layer_s(pair)
    assert reached == pytest.approx(entry["database"], abs=0.005)
    low, high = entry["range"]
    assert (low <= reached <= high) == inside
    more = re.search(r"database is (\d+) % above it", entry["why"])
    assert more is not None
    assert reached / entry["value"] == pytest.approx(1 + int(more[1]) / 100, abs=0.01)


# ---------------------------------------------------------------- rows


def test_rows_are_those_of_the_targets() -> None:
    assert {row.row for row in ROWS} == set(range(24, 35))
    assert {row.row for row in ROWS if row.use == "C"} == CALIBRATION
    assert [row.id for row in ROWS if row.use == "C"] == ["27.32-1", "27.32-2"]


def test_clusters_and_models_of_the_rows_exist() -> None:
    for row in ROWS:
        if row.row < 32:
            assert set(row.cluster.split(" to ")) <= set(CLUSTERS), row.id
            assert set(row.model.split()) <= {"Mixtral-S", "Mixtral-L"}, row.id


def test_two_rates_cannot_give_all_printed_shares() -> None:
    """What the notes of row 27 say: equal stages of two kinds keep 2 r / (1 + r) of the balanced throughput."""
    share = {row.name: float(row.published) for row in ROWS if row.row == 27}
    ascend, mi300x = (share[id] / (2 - share[id]) for id in ("32-1", "32-2"))
    assert (round(ascend, 2), round(mi300x, 2)) == (0.45, 0.74)
    assert 2 * ascend / (ascend + mi300x) > share["32-3"] + 0.15
    assert mi300x == pytest.approx(value("mi300x_rate"), abs=0.005)
    chosen = value("ascend_rate")
    assert 2 * chosen / (chosen + value("mi300x_rate")) == pytest.approx(share["32-3"], abs=0.04)


def published(id: str) -> dict[str, str]:
    with (SCENARIOS / "published" / "training.csv").open(encoding="utf-8") as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        return next(line for line in lines if line["id"] == id)


@pytest.mark.parametrize(
    ("id", "sizes"),
    [("32.unfolded", ("2", "8", "4")), ("32.folded", ("2", "8", "8")), ("33.no-pipeline", ("4", "1", "8"))],
)
def test_runs_of_parallel_folding_are_in_the_table_of_published_runs(id: str, sizes: tuple[str, ...]) -> None:
    """Their utilizations relate as the step times there do."""
    row = next(row for row in ROWS if row.id == id)
    known = published(row.note.split()[0])
    assert (known["group"], known["num_gpus"], known["gbs"], known["seq_len"]) == (
        "parallel-folding",
        "128",
        "256",
        "4096",
    )
    assert (known["tp"], known["pp"], known["ep"]) == sizes
    reference = published("moe-0440")
    ratio = float(row.published) / float(next(row for row in ROWS if row.id == "32.unfolded").published)
    assert float(reference["measured_s"]) / float(known["measured_s"]) == pytest.approx(ratio, rel=0.003)
