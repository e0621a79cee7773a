"""The hardware database as a whole: it reads, it names its sources, and its numbers are those of the tables."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from simmoe.specs import catalog
from simmoe.specs.base import Kind, Quantity, Spec
from simmoe.specs.hardware import Accelerator, Dtype
from simmoe.specs.kernel_file import TABLES
from simmoe.specs.residuals_file import residuals

DATABASE = Path(__file__).resolve().parents[2] / "hardware_db"
MEMORY_BOUND = {"elementwise", "norm", "softmax", "permute", "cross_entropy", "optimizer", "cast"}
KINDS = ("accelerator", "link", "node", "cluster", "software")
# Row of the reference table for each part whose id is not that row's name in lower case.
REFERENCE_ROW = {"h800": "H800-SXM5-80GB"}
# Architectures of which no part was measured throughout, and the nearest one of the vendor that was.
UNMEASURED = {
    ("Ascend 950", "Da Vinci"),
    ("CDNA4", "CDNA3"),
    ("Gaudi 3", "Gaudi 2"),
    ("MUSA 4", "MUSA 3"),
    *((f"TPU {version}", "TPU v6e") for version in ("v4", "v5e", "v5p", "v7x")),
}
OUR_OWN = {"simmoe-judgement", "simmoe-steps"}  # made here: no address, the repository is the source
NOT_IN_REFERENCE = {"rtx-2080", "h100-sxm5-96gb"}
SOURCED_ELSEWHERE = {"hygon-dcu-k100-ai"}  # the reference has no peak of it
CORRECTED = {  # figures of the reference that its sources' vendors contradict; the files keep them as alternatives
    ("b200", "fp32"),  # HGX B200 has 75, the 80 are of GB200
    ("iluvatar-bi-v150", "tdp"),  # FlagPerf prints and measures 350 W
    ("mi210", "l2_cache"),  # ROCm has 8 MiB a die
}
HALVED = {"mi250x"}  # the row is of a module, which software sees as two devices
DECIMAL_MEMORY = {"b300"}  # its 288 are 10^9 bytes; every other vendor figure counts in 2^30


def ids(kind: catalog.Kind) -> list[str]:
    folders = {"software": "software"}
    return sorted(path.stem for path in (DATABASE / folders.get(kind, f"{kind}s")).glob("*.yaml"))


@pytest.fixture(scope="module")
def reference(shared: Path) -> dict[str, dict[str, str]]:
    """Rows of the reference table by name in lower case."""
    with (shared / "hardware" / "hardware.csv").open(newline="", encoding="utf-8") as file:
        return {row["name"].lower(): row for row in csv.DictReader(file)}


def quantities(value: Any) -> Iterator[Quantity]:
    """Every sourced number inside a spec."""
    if isinstance(value, Quantity):
        yield value
    elif isinstance(value, Spec):
        for name in type(value).model_fields:
            yield from quantities(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from quantities(item)


def parts() -> list[tuple[str, Spec]]:
    return [(f"{kind}/{id}", getattr(catalog, kind)(id)) for kind in KINDS for id in ids(kind)]


def kernel_rows() -> list[tuple[str, dict[str, str]]]:
    """Accelerator and cells, with the table that a row stands in as the cell ``table``."""
    rows = []
    for path in sorted(DATABASE.glob("efficiency/*/*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            rows += [(path.parent.name, {"table": path.stem} | row) for row in csv.DictReader(file)]
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_reads_and_bears_its_id(kind):
    assert ids(kind)
    assert set(ids(kind)) == set(catalog.list_ids(kind))
    for id in ids(kind):
        part = getattr(catalog, kind)(id)
        assert getattr(part, "id", id) == id


def test_every_source_is_known_and_every_known_source_is_used():
    known = set(catalog.sources())
    used = {number.source for _, part in parts() for number in quantities(part)}
    used |= {number.reviewed for _, part in parts() for number in quantities(part)} - {""}
    used |= {row["source"] for _, row in kernel_rows()}
    used |= {name.split(" (")[0] for one in residuals() for name in one.sources} & known
    with (Path(__file__).parent / "second_readings.csv").open(newline="", encoding="utf-8") as file:
        used |= {row["source"] for row in csv.DictReader(file)}
    assert used - known == set()
    assert known - used == set()


def test_sources_are_sorted_and_complete():
    entries = catalog.sources()
    names = list(YAML(typ="safe", pure=True).load((DATABASE / "sources.yaml").read_text()))
    assert names == sorted(names)
    for name, source in entries.items():
        assert source.title, name
        assert source.publisher, name
        assert source.year, name
        assert source.accessed, name
        assert source.kind in set(Kind), name
        assert source.url.startswith("https://") or name in OUR_OWN, name


def test_a_guess_is_called_a_guess_and_nothing_else_cites_judgement():
    for name, part in parts():
        for number in quantities(part):
            own = number.source == "simmoe-judgement"
            assert not own or number.kind is Kind.GUESS, (name, number.text)
            assert number.value >= 0, (name, number.text)


def test_a_review_names_a_second_source():
    known = set(catalog.sources())
    for name, part in parts():
        for number in quantities(part):
            assert number.reviewed in known | {""}, name
            assert number.reviewed != number.source, name


def test_fractions_are_fractions():
    """Closer than `simmoe db check`, which also judges parts and clocks of a user's own."""
    for accelerator, row in kernel_rows():
        place = (accelerator, *list(row.values())[:3])
        if row["parameter"] in {"compute", "memory", "wgrad", "sustained"}:
            assert 0 < float(row["value"]) <= 1, place
        elif row["parameter"] == "backward":
            assert 0 < float(row["value"]) <= 1.1, place  # of forward; cuDNN's at width 64 is faster
        elif row["parameter"].endswith("_fill"):
            assert 0 <= float(row["value"]) < 4000, place
        if row["spread"]:
            assert 0 < float(row["spread"]) <= 0.5, place
    for id in ids("link"):
        assert 0 < catalog.link(id).achievable.value <= 1, id


@pytest.mark.parametrize("id", ids("accelerator"))
def test_efficiencies_cover_what_the_part_can_do(id):
    part = catalog.accelerator(id)
    dense = {fit.dtype for fit in part.efficiency.gemm}
    grouped = {fit.dtype for fit in part.efficiency.grouped_gemm}
    training = {Dtype.FP16, Dtype.BF16, Dtype.FP8}
    supported = {Dtype(name) for name in part.peak_flops.supported()}
    assert training & supported <= dense
    assert training & supported == training & grouped
    assert {fit.operator for fit in part.efficiency.memory_bound} == MEMORY_BOUND
    kernels = {fit.kernel for fit in part.efficiency.attention}
    assert set(part.attention_kernels) <= kernels
    assert "math" in kernels
    for kernel in part.attention_kernels:
        assert 128 in {fit.head_dim for fit in part.efficiency.attention if fit.kernel == kernel}


def test_inherited_efficiencies_are_of_the_same_architecture_or_the_nearest():
    outside = set()
    for id in ids("accelerator"):
        part = catalog.accelerator(id)
        own = {path.stem for path in (DATABASE / "efficiency" / id).glob("*")}
        assert own <= set(TABLES), id
        assert part.efficiency_of or own == set(TABLES), id
        if part.efficiency_of and catalog.accelerator(part.efficiency_of).architecture != part.architecture:
            outside.add((part.architecture, catalog.accelerator(part.efficiency_of).architecture))
    assert outside == UNMEASURED
    tables = {path.name for path in (DATABASE / "efficiency").iterdir() if path.is_dir()}
    assert tables <= set(ids("accelerator"))


@pytest.mark.parametrize("id", ["v100-sxm2-16gb", "v100-sxm2-32gb", "t4"])
def test_old_parts_have_neither_bf16_nor_flash_attention(id):
    part = catalog.accelerator(id)
    assert not {"bf16", "tf32", "fp8", "fp4"} & set(part.peak_flops.supported())
    assert {fit.dtype for fit in part.efficiency.gemm} == {Dtype.FP16, Dtype.FP32}
    assert not {"fa2", "fa3"} & {fit.kernel for fit in part.efficiency.attention}


@pytest.mark.parametrize("id", ids("link"))
def test_collectives_of_a_link_are_plausible(id):
    link = catalog.link(id)
    seen = [(fit.collective, fit.ranks) for fit in link.collectives]
    assert len(seen) == len(set(seen))
    for fit in link.collectives:
        peak = fit.peak_bus_bandwidth.value if fit.peak_bus_bandwidth else fit.bus_bandwidth.value
        # a sum in the switch (NVLS) counts as up to twice the bytes on the wire
        in_switch = 2 if fit.collective == "all_reduce" else 1
        assert peak <= link.bandwidth.value * in_switch, (fit.collective, fit.ranks)
        assert 1e-6 < fit.latency.value < 1e-3


def test_network_and_pcie_links_are_used_as_such():
    for id in ids("node"):
        node = catalog.node(id)
        assert node.pcie.kind == "pcie", id
        assert node.scale_up.link.kind in {"scale_up", "pcie"}, id
        assert node.scale_up.domain >= 1, id
        assert node.network_ports.value == int(node.network_ports.value) >= 1, id
    for id in ids("cluster"):
        assert catalog.cluster(id).fabric.link.kind == "network", id


def test_devices_of_known_clusters():
    counts = {"superpod-h100-4": 32, "gb200-nvl72": 72, "hetermoe-o1": 12, "hetermoe-o3": 9, "hapmoe-32-2": 32}
    assert {id: catalog.cluster(id).devices for id in counts} == counts
    assert catalog.cluster("gb200-nvl72").groups[0].domain_devices == 72
    mixed = catalog.cluster("hetermoe-o1")
    assert [part.id for part in mixed.accelerators] == ["a40", "v100-sxm2-16gb"]


def row_of(id: str, reference: dict[str, dict[str, str]]) -> dict[str, str]:
    return reference[REFERENCE_ROW.get(id, id).lower()]


def different(part: Accelerator, row: dict[str, str]) -> list[str]:
    """Numbers of an accelerator that are not those of the reference row."""
    found = []
    half = 0.5 if part.id in HALVED else 1.0
    giga = 1e9 if part.id in DECIMAL_MEMORY else 2.0**30
    expected = {
        "memory": (part.memory, row["mem_gb"], giga),
        "memory_bandwidth": (part.memory_bandwidth, row["mem_bw_GBps"], 1e9),
        "l2_cache": (part.l2_cache, row["l2_MB"], 2.0**20),
        "sm_count": (part.sm_count, row["sm_count"], 1),
        "tdp": (part.tdp, row["tdp_W"], 1),
    }
    for dtype in Dtype:
        expected[dtype] = (part.peak_flops.get(dtype), row[f"{dtype}_tflops"], 1e12)
    for name, (number, text, scale) in expected.items():
        if (part.id, name) in CORRECTED:
            if not any(f" {text} " in f"{other} " for other in number.alternatives):
                found.append(f"{name}: the {text} of the reference is not among the alternatives")
        elif not text:  # the reference knows nothing: a peak may then only be guessed
            guessed = number is None or number.kind is Kind.GUESS
            if name in set(Dtype) and not guessed and part.id not in SOURCED_ELSEWHERE:
                found.append(f"{name}: not in the reference, yet {number.kind}")
        elif number is None or abs(number.value / (float(text) * scale * half) - 1) > 1e-9:
            found.append(f"{name}: {text} expected, got {number and number.text}")
    return found


@pytest.mark.parametrize("id", sorted(set(ids("accelerator")) - NOT_IN_REFERENCE))
def test_accelerator_agrees_with_the_reference_table(id, reference):
    part = catalog.accelerator(id)
    row = row_of(id, reference)
    assert different(part, row) == []
    assert part.release_year == int(row["release_year"])
    assert part.compute_capability in {row["compute_capability"], ""}


def test_the_comparison_with_the_reference_can_fail(reference):
    part = catalog.accelerator("h100-sxm5-80gb")
    other = reference["h200-sxm-141gb"]
    assert {line.split(":")[0] for line in different(part, other)} == {"memory", "memory_bandwidth"}


@pytest.mark.parametrize(
    ("id", "table", "variant", "parameter", "value"),
    [
        ("a100-sxm4-80gb", "attention", "fa2:128", "compute", 0.687),
        ("h100-sxm5-80gb", "attention", "fa3:128", "length_fill", 834),
        ("h100-sxm5-80gb", "grouped_gemm", "bf16", "token_fill", 64),
        ("h200-sxm-141gb", "attention", "fa3:192", "compute", 0.650),
        ("l40s", "attention", "fa2:64", "length_fill", 696),
    ],
)
def test_kernel_parameters_are_those_of_their_sources(id, table, variant, parameter, value):
    found = [
        float(row["value"])
        for accelerator, row in kernel_rows()
        if (accelerator, row["table"], row["variant"], row["parameter"]) == (id, table, variant, parameter)
    ]
    assert found == [value]


def test_what_a_step_keeps_is_read_off_steps():
    """Every part whose kernels were measured has one; no typed number pins it, `tools.fits.steps` renews them."""
    fitted = [(part, row) for part, row in kernel_rows() if row["source"] == "simmoe-steps"]
    assert {part for part, _ in fitted} >= {"a100-sxm4-80gb", "h100-sxm5-80gb", "b200", "gb200"}
    for part, row in fitted:
        place = (part, row["table"], row["variant"])
        assert (row["parameter"], row["kind"]) == ("sustained", "derived"), place
        assert 0.4 < float(row["value"]) < 1.1, place
        assert row["locator"], place
