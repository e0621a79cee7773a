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

DATABASE = Path(__file__).resolve().parents[2] / "hardware_db"
MEMORY_BOUND = {"elementwise", "norm", "softmax", "permute", "cross_entropy", "optimizer", "cast"}
KINDS = ("accelerator", "link", "node", "cluster", "software")
# Row of the reference table for each part whose id is not that row's name in lower case.
REFERENCE_ROW = {"h800": "H800-SXM5-80GB"}
DECIMAL_MEMORY = {"b300"}  # its 288 are 10^9 bytes; every other vendor figure counts in 2^30


def ids(kind: catalog.Kind) -> list[str]:
    folders = {"software": "software"}
    return sorted(path.stem for path in (DATABASE / folders.get(kind, f"{kind}s")).glob("*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def _only_shipped_parts() -> Iterator[None]:
    """Read this checkout, not what a developer keeps in their home folder."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SIMMOE_DATA", str(DATABASE.parent))
    patch.setenv("SIMMOE_HARDWARE_PATH", "")
    patch.setenv("HOME", str(DATABASE))
    catalog.refresh()
    yield
    patch.undo()
    catalog.refresh()


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
    rows = []
    for path in sorted(DATABASE.glob("efficiency/*/kernels.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            rows += [(path.parent.name, row) for row in csv.DictReader(file)]
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
        assert source.url.startswith("https://") or name == "simmoe-judgement", name


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
    for accelerator, row in kernel_rows():
        place = (accelerator, *list(row.values())[:3])
        if row["parameter"] in {"compute", "memory", "backward", "wgrad", "sustained"}:
            assert 0 < float(row["value"]) <= 1, place
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


def test_inherited_efficiencies_are_of_the_same_architecture():
    inheriting = 0
    for id in ids("accelerator"):
        part = catalog.accelerator(id)
        own = (DATABASE / "efficiency" / id / "kernels.csv").is_file()
        assert own != bool(part.efficiency_of), id
        if part.efficiency_of:
            inheriting += 1
            assert catalog.accelerator(part.efficiency_of).architecture == part.architecture
    assert inheriting
    tables = {path.name for path in (DATABASE / "efficiency").iterdir()}
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
        if not text:  # the reference knows nothing: the database may then only guess
            if number is not None and number.kind is not Kind.GUESS:
                found.append(f"{name}: not in the reference, yet {number.kind}")
        elif number is None or abs(number.value / (float(text) * scale) - 1) > 1e-9:
            found.append(f"{name}: {text} expected, got {number and number.text}")
    return found


@pytest.mark.parametrize("id", ids("accelerator"))
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


@pytest.mark.parametrize("id", ["nvlink-3", "nvlink-4", "nvlink-5", "pcie-4-host", "nvlink-5-nvl72"])
def test_collective_fits_agree_with_the_published_fits(id, shared):
    gpu, version = {
        "nvlink-3": ("A100-SXM4-80GB", "2.27.3"),
        "nvlink-4": ("H100-SXM", "2.29.2"),
        "nvlink-5": ("B200", "2.29.2"),
        "pcie-4-host": ("L40S", "2.27.3"),
        "nvlink-5-nvl72": ("GB200", "2.29.2"),
    }[id]
    with (shared / "hardware" / "hardware_fits.csv").open(newline="", encoding="utf-8") as file:
        rows = {
            (row["op"].replace("alltoall", "all_to_all"), int(float(row["n_gpus"]))): row
            for row in csv.DictReader(file)
            if (row["gpu"], row["source"]) == (gpu, f"AIC nccl/{version}") and "sqrt" in row["form"]
        }
    compared = 0
    for fit in catalog.link(id).collectives:
        row = rows.get((fit.collective, fit.ranks))
        if row is None or fit.latency.kind is not Kind.MEASURED:
            continue
        compared += 1
        assert fit.latency.value == pytest.approx(float(row["alpha_us"]) * 1e-6, rel=6e-3)
        assert fit.bus_bandwidth.value == pytest.approx(float(row["busbw_GBps"]) * 1e9, rel=1e-3)
        assert fit.sqrt_term is not None
        assert fit.sqrt_term.value == pytest.approx(float(row["c_us_per_sqrtB"]) * 1e-6, rel=1e-3)
    assert compared == len(rows)


@pytest.mark.parametrize(
    ("id", "table", "variant", "parameter", "value"),
    [
        ("a40", "gemm", "fp16", "compute", 0.788),
        ("a40", "gemm", "bf16", "k_fill", 136),
        ("a100-sxm4-80gb", "gemm", "bf16", "k_fill", 97),
        ("a100-sxm4-80gb", "attention", "fa2:128", "compute", 0.577),
        ("h100-sxm5-80gb", "gemm", "bf16", "compute", 0.824),
        ("h100-sxm5-80gb", "gemm", "bf16", "sustained", 0.83),
        ("h100-sxm5-80gb", "gemm", "fp8", "compute", 0.70),
        ("h100-sxm5-80gb", "gemm", "fp8", "sustained", 0.79),
        ("h100-sxm5-80gb", "attention", "fa3:128", "length_fill", 1029),
        ("h100-sxm5-80gb", "grouped_gemm", "bf16", "token_fill", 64),
        ("h200-sxm-141gb", "attention", "fa3:192", "compute", 0.597),
        ("v100-sxm2-16gb", "gemm", "fp16", "compute", 0.721),
        ("b200", "gemm", "bf16", "sustained", 0.70),
        ("gb200", "gemm", "fp8", "sustained", 0.72),
        ("l40s", "attention", "fa2:64", "length_fill", 796),
    ],
)
def test_kernel_parameters_are_those_of_their_sources(id, table, variant, parameter, value):
    found = [
        float(row["value"])
        for accelerator, row in kernel_rows()
        if (accelerator, row["table"], row["variant"], row["parameter"]) == (id, table, variant, parameter)
    ]
    assert found == [value]
