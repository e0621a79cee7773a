"""Links, nodes and clusters: every wire of the reference table is here, and every machine can price its collectives."""

import csv
import math
import re
from pathlib import Path

import pytest

from simmoe.cost.collectives import collective_time
from simmoe.cost.groups import GroupShape
from simmoe.cost.network import network_of
from simmoe.cost.operators import Collective
from simmoe.specs import catalog
from simmoe.specs.hardware import Cluster, Fabric, Node, NodeGroup

DATABASE = Path(__file__).resolve().parents[2] / "hardware_db"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

# Row of the reference table: the link that stands for it, and the ports that its figure counts together.
WIRES = {
    "NVLink1 (P100, 4 links)": ("nvlink-1", 1),
    "NVLink2 (V100, 6 links)": ("nvlink-2", 1),
    "NVLink2 pair within DGX-1 cube mesh": ("nvlink-2-pair", 1),
    "NVLink3 NVSwitch (A100, 12 links)": ("nvlink-3", 1),
    "NVLink4 NVSwitch (H100/H200, 18 links)": ("nvlink-4", 1),
    "NVLink4 (H800, 8 links)": ("nvlink-4-h800", 1),
    "NVLink3 (A800, 8 links)": ("nvlink-3-a800", 1),
    "NVLink4 (H20)": ("nvlink-4", 1),
    "NVLink5 NVSwitch (B200/B300, 18 links)": ("nvlink-5", 1),
    "NVLink5 NVL72 (GB200/GB300)": ("nvlink-5-nvl72", 1),
    "NVLink6 (Rubin)": ("nvlink-6", 1),
    "NVLink3 bridge (A40/A6000/RTX3090, 4 links)": ("nvlink-3-bridge", 1),
    "A100 PCIe NVLink bridge": ("nvlink-3-bridge-a100", 1),
    "H100 NVL/PCIe NVLink bridge": ("nvlink-4-bridge", 1),
    "NVLink-C2C (GH200/GB200/GB300)": ("nvlink-c2c", 1),
    "xGMI MI250X (7 x 50)": ("xgmi-mi250x", 1),
    "xGMI MI300X/MI325X (7 x 64)": ("xgmi-mi300", 1),
    "xGMI MI355X (7 x 76.5)": ("xgmi-mi355", 1),
    "Gaudi2 scale-up RoCE (21x100G)": ("gaudi2-roce", 1),
    "Gaudi3 scale-up RoCE (21x200G)": ("gaudi3-roce", 1),
    "NeuronLink3 (Trainium2)": ("neuronlink-3", 1),
    "TPU ICI v5e": ("tpu-ici-v5e", 1),
    "TPU ICI v6e": ("tpu-ici-v6e", 1),
    "TPU ICI v5p / v7x": ("tpu-ici-v5p", 1),
    "HCCS (Ascend 910B, 8 cards)": ("hccs-910b", 1),
    "UB / HCCS (Ascend 910C, A3 supernode)": ("ub-910c", 1),
    "UB (Ascend 950DT)": ("ub-950dt", 1),
    "MTLink (MTT S4000)": ("mtlink-s4000", 1),
    "PCIe3 x16": ("pcie-3", 1),
    "PCIe4 x16": ("pcie-4", 1),
    "PCIe4 x16, no P2P (8x L40S through host)": ("pcie-4-host", 1),
    "PCIe4 (8x RTX3090, no P2P between pairs)": ("pcie-4-host-3090", 1),
    "PCIe4 (A40 cluster, 8 GPU)": ("pcie-4-host-a40", 1),
    "PCIe5 x16": ("pcie-5", 1),
    "PCIe5 x8 (Arc Pro B60)": ("pcie-5-x8", 1),
    "PCIe6 x16": ("pcie-6", 1),
    "UPI/QPI (Intel, per socket link)": ("upi", 1),
    "InfiniBand EDR 100G": ("infiniband-edr-100", 1),
    "InfiniBand HDR 200G": ("infiniband-hdr-200", 1),
    "InfiniBand NDR 400G": ("infiniband-ndr-400", 1),
    "InfiniBand XDR 800G": ("infiniband-xdr-800", 1),
    "RoCE v2 400G": ("roce-400", 1),
    "Ethernet 100G TCP": ("ethernet-100", 1),
    "Ethernet 25G TCP (A40 cluster)": ("ethernet-25", 1),
    "GCP A100 inter-node, single flow": ("gcp-gvnic-100", 1),
    "AWS EFA v1 (p4d/p4de, 4x100G)": ("efa-100", 4),
    "AWS EFA v2/v3 (p5/p5e, 32x100G)": ("efa-400", 8),
    "AWS EFA B200 (4 nodes)": ("efa-400-v4", 8),
    "GCP A3 High / A3 Mega": ("gpudirect-tcpxo-200", 8),
    "HPE Slingshot-11": ("slingshot-200", 1),
    "Omni-Path CN5000": ("omni-path-400", 1),
}
# Rows that are no wires: words by which links/README.md tells of them.
NO_WIRES = {
    "DeepEP NVLink (H800)": "H800, NVLink",
    "DeepEP RDMA EP16/32/64 (H800, CX7 400G)": "H800, ConnectX-7 400G",
    "DeepEP V2 SM90 / SM100": "SM90, ConnectX-7",
    "DeepEP measured by AIC (H100, 24 SM, h7168 top8)": "aiconfigurator",
    "mori RDMA (MI300X + CX7)": "MI300X, ConnectX-7",
    "pplx-kernels IBGDA": "pplx-kernels",
    "GPUDirect path (NCCL NET hop)": "network (GPUDirect)",
    "NVLink hop (NCCL)": "Hops of NCCL",
}
# No second source says the same; what others say instead stands in `alternatives`.
UNREVIEWED = {
    "ethernet-1",
    "gcp-gvnic-100",
    "mtlink-s4000",
    "nvlink-3-bridge-a30",
    "tpu-ici-v4",
    "ub-950dt",
    "upi",
    "xgmi-mi250x-die",
}


def names(folder: str) -> list[str]:
    return sorted(path.stem for path in (DATABASE / folder).glob("*.yaml"))


@pytest.fixture(scope="module")
def table(shared: Path) -> dict[str, dict[str, str]]:
    """Rows of the reference table of links by name."""
    with (shared / "hardware" / "links.csv").open(newline="", encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def usual_port(id: str) -> str:
    """The link of a node's first line, ``Use efa-400.``."""
    first = (DATABASE / "nodes" / f"{id}.yaml").read_text(encoding="utf-8").splitlines()[0]
    named = re.match(r"# Use ([a-z0-9-]+)", first)
    assert named, first
    return named[1]


def two_of(id: str) -> Cluster:
    """Two nodes of a kind on their usual port, each its own scale-up domain as far as its links allow."""
    node = catalog.node(id)
    fabric = Fabric(link=catalog.link(usual_port(id)))
    return Cluster(groups=(NodeGroup(node=node, count=2, nodes_per_domain=1),), fabric=fabric)


def across(node: Node) -> GroupShape:
    """Every accelerator of two nodes."""
    inside = min(node.accelerators, node.scale_up.domain)
    return GroupShape(2 * node.accelerators, inside, 2 * node.accelerators // inside)


def test_every_row_of_the_table_is_a_link_or_told_in_the_readme(table):
    assert set(WIRES) | set(NO_WIRES) == set(table)
    assert set(WIRES) & set(NO_WIRES) == set()
    told = (DATABASE / "links" / "README.md").read_text(encoding="utf-8")
    assert [words for words in NO_WIRES.values() if words not in told] == []


@pytest.mark.parametrize("name", WIRES)
def test_bandwidth_of_a_link_is_that_of_the_table(name, table):
    id, ports = WIRES[name]
    expected = float(table[name]["GBps_per_dir"]) * 1e9
    assert catalog.link(id).bandwidth.value * ports == pytest.approx(expected, rel=0.01)


def test_every_bandwidth_has_a_second_source_or_is_known_to_have_none():
    unreviewed = {id for id in names("links") if not catalog.link(id).bandwidth.reviewed}
    assert unreviewed == UNREVIEWED


def test_no_bandwidth_is_a_guess():
    kinds = {catalog.link(id).bandwidth.kind for id in names("links")}
    assert kinds <= {"datasheet", "paper", "measured", "derived"}


def test_every_accelerator_has_a_node():
    hosted = {catalog.node(id).accelerator.id for id in names("nodes")}
    assert set(names("accelerators")) - hosted == set()


@pytest.mark.parametrize("id", names("nodes"))
def test_the_first_line_of_a_node_names_a_network(id):
    assert catalog.link(usual_port(id)).kind == "network"


@pytest.mark.parametrize("id", names("nodes"))
def test_a_node_prices_collectives_inside_and_between(id):
    node = catalog.node(id)
    network = network_of(two_of(id), 0)
    inside = min(node.accelerators, node.scale_up.domain)
    for collective in COLLECTIVES:
        local = GroupShape(inside, inside, 1, one_node=True)
        small, large = (collective_time(Collective(collective, "dp", size), local, network) for size in (1e3, 1e9))
        assert math.isfinite(large)
        assert 0.0 < small < large if inside > 1 else large == 0.0, collective
        between = collective_time(Collective(collective, "dp", 1e9), across(node), network)
        assert math.isfinite(between)
        assert between > 0.0


@pytest.mark.parametrize("id", names("clusters"))
def test_a_cluster_prices_an_all_reduce_over_all_of_it(id):
    cluster = catalog.cluster(id)
    unlike = len(cluster.groups) > 1
    inside = min(group.domain_devices for group in cluster.groups)
    shape = GroupShape(cluster.devices, inside, max(1, cluster.devices // inside), unlike=unlike)
    seconds = collective_time(Collective("all_reduce", "dp", 1e9), shape, network_of(cluster, 0, unlike=unlike))
    assert math.isfinite(seconds)
    # a gigabyte crosses every link twice: no machine is faster than the fastest scale-up link, none slower than TCP
    assert 1e9 / 2e12 < seconds < 60.0


@pytest.mark.parametrize(
    ("id", "gigabits"),
    [
        ("dgx-1-v100-32gb", 400),
        ("dgx-a100-80gb", 1600),
        ("dgx-h100", 3200),
        ("dgx-b300", 6400),
        ("gb300-tray", 3200),
        ("p4d-a100-40gb", 400),
        ("p5-h100", 3200),
        ("p6-b200", 3200),
        ("p6-b300", 6400),
        ("g4dn-t4-x4", 50),
        ("g6e-l40s-x8", 400),
        ("a2-a100-40gb", 100),
        ("a3-high-h100", 800),
        ("a3-mega-h100", 1600),
        ("a3-ultra-h200", 3200),
        ("nd-h100-v5", 3200),
        ("frontier-mi250x", 800),
        ("gaudi2-x8", 2400),
        ("gaudi3-x8", 4800),
        ("trn2-x16", 3200),
    ],
)
def test_network_of_a_node_is_what_its_seller_prints(id, gigabits):
    total = catalog.node(id).network_ports.value * catalog.link(usual_port(id)).bandwidth.value
    assert total * 8 / 1e9 == pytest.approx(gigabits)


def test_a_pair_of_a_mesh_has_one_link_of_seven():
    network = network_of(two_of("mi355x-x8"), 0)
    pair, all_of_it = network.local_wire(2).bandwidth, network.local_wire(8).bandwidth
    assert pair == pytest.approx(all_of_it / 7)


def test_torus_is_slower_in_all_to_all_than_in_all_gather():
    network = network_of(catalog.cluster("tpu-v5e-pod"), 0)
    shape = GroupShape(256, 256, 1)
    exchange, gather = (
        collective_time(Collective(one, "ep", 1e11), shape, network) for one in ("all_to_all", "all_gather")
    )
    # 16 chips a side in two dimensions: an eighth of the bandwidth is left
    assert exchange / gather == pytest.approx(8.0, rel=0.05)


def test_oversubscription_divides_the_port():
    tree, rail = (network_of(catalog.cluster(id), 0) for id in ("fat-tree-h100-64-2to1", "superpod-h100-32"))
    assert tree.port.bandwidth == pytest.approx(rail.port.bandwidth / 2)


def test_a_slower_side_sets_the_pace_of_a_mixed_cluster():
    cluster = catalog.cluster("mixed-h100-a100")
    own = [network_of(cluster, group).port.bandwidth for group in (0, 1)]
    assert own[1] == pytest.approx(own[0] / 2)
    assert network_of(cluster, 0, unlike=True).port.bandwidth == pytest.approx(own[1])


def test_exchange_figures_of_the_readme_are_those_of_their_source(shared):
    told = (DATABASE / "links" / "README.md").read_text(encoding="utf-8")
    with (shared / "profiles" / "transcribed" / "deepep.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    missing = []
    for row in rows:
        names = ("dispatch_us", "combine_us") if row["mode"] == "low_latency" else ("dispatch_GBps", "combine_GBps")
        cell = f"{row[names[0]]} / {row[names[1]]} |"
        line = next((one for one in told.splitlines() if f"| {row['ep']} |" in one and cell in one), None)
        missing += [row] if line is None else []
    assert rows
    assert missing == []
