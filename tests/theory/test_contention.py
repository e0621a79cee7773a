"""Concurrent work on shared links, solved by hand: one network a topology, then the routes of real scenarios."""

import numpy as np
import pytest

from simmoe.engine.fluid import simulate_fluid
from simmoe.graph.build import build_step
from simmoe.graph.fluid import Fluid
from simmoe.graph.ranks import StepGraph
from simmoe.graph.routes import fluid_of
from tests.flows import Flow, network
from tests.scenarios import small

ENGINES = ("simpy", "fast")


def ends(capacity: dict[str, float], flows: list[Flow], engine: str) -> list[float]:
    """When each flow ends [s]."""
    return simulate_fluid(*network(capacity, flows), engine=engine).end[1::2].tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_nvlink_and_nic(engine: str) -> None:
    """A ring over the NIC (50 GB/s) and an all-to-all over NVLink (400) do not meet; a second ring does.

    Expectation: NVLink 8/400 = 0.02 s. Ring one of 10 GB alone until 0.1 s (5 GB left), then 25 GB/s beside ring two of
    5 GB: both have 5 GB and end 0.2 s later. Actual: simulated.
    """
    capacity = {"nvlink": 400.0, "nic": 50.0}
    flows = [Flow(8.0, ("nvlink",)), Flow(10.0, ("nic",)), Flow(5.0, ("nic",), at=0.1)]
    assert ends(capacity, flows, engine) == pytest.approx([0.02, 0.3, 0.3])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hierarchical_collective_takes_both(engine: str) -> None:
    """An all-reduce with 7 bytes inside for each outside fills neither alone (350 of 400, 50 of 50). Beside a local
    all-to-all, NVLink gives equal rates: 8 x = 400 for x outside and x inside, so x = 50 each: the all-reduce keeps
    its NIC rate, the all-to-all of 8 GB gets 50 GB/s for 0.1 s (5 GB), then 400 for the last 3 GB.
    """
    capacity = {"nvlink": 400.0, "nic": 50.0}
    flows = [Flow(5.0, {"nvlink": 7.0, "nic": 1.0}), Flow(8.0, ("nvlink",))]
    assert ends(capacity, flows, engine) == pytest.approx([0.1, 0.1 + 3 / 400])


@pytest.mark.parametrize("engine", ENGINES)
def test_rails(engine: str) -> None:
    """Two GPUs on rails of their own do not slow each other; two on one rail's leaf port do.

    Rail 0 leads to node 1 from two nodes: its port there (50) is shared; rail 1 is free.
    """
    capacity = {f"rail {r} node {n}": 50.0 for r in range(2) for n in range(3)}
    flows = [
        Flow(10.0, ("rail 0 node 0", "rail 0 node 1")),
        Flow(10.0, ("rail 0 node 2", "rail 0 node 1")),
        Flow(10.0, ("rail 1 node 0", "rail 1 node 1")),
    ]
    assert ends(capacity, flows, engine) == pytest.approx([0.4, 0.4, 0.2])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("ratio", "rate"), [(1, 50.0), (2, 25.0), (4, 12.5)])
def test_an_oversubscribed_spine(engine: str, ratio: int, rate: float) -> None:
    """Four nodes of 50 GB/s below an uplink of 200/ratio: four flows up get 50/ratio each, a lone one 50.

    A fifth flow inside the leaf shares node 0's port with the first: it gets what the uplink leaves that port
    (50 - rate), until the 10 GB up are through; then 50. At 1:1 they share the port evenly, 25 each.
    """
    capacity = {"up": 200.0 / ratio} | {f"node {n}": 50.0 for n in range(4)}
    up = [Flow(10.0, (f"node {n}", "up")) for n in range(4)]
    assert ends(capacity, up, engine) == pytest.approx([10 / rate] * 4)
    assert ends(capacity, up[:1], engine) == pytest.approx([0.2])
    local = ends(capacity, [*up, Flow(20.0, ("node 0",))], engine)
    if ratio == 1:
        assert local == pytest.approx([0.4, 0.2, 0.2, 0.2, 0.4 + 10 / 50])
    else:
        inside = max(25.0, 50.0 - rate)
        through = 10 / rate
        last = 20 / inside if 20 / inside <= through else through + (20 - inside * through) / 50
        assert local == pytest.approx([through] * 4 + [last])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pcie_tree_with_a_shared_host_bridge(engine: str) -> None:
    """GPUs 0, 1 and 2, 3 hang on two switches (32 GB/s a slot, 32 to the bridge), the bridge carries 40 in all.

    0->1 stays below its switch, at 32 less what 0 sends up. 0->2 and 3->1 cross the bridge: 1 receives from 0 and 3,
    so 16 each; 0 sends to 1 and 2: 16 each; the bridge has 40 > 16 + 16. All 8 GB end after 0.5 s. With the bridge at
    20 the two that cross get 10 each, and 0->1 the other 22.
    """
    slots = {f"gpu {n} {way}": 32.0 for n in range(4) for way in ("out", "in")}
    flows = [
        Flow(8.0, ("gpu 0 out", "gpu 1 in")),
        Flow(8.0, ("gpu 0 out", "bridge", "gpu 2 in")),
        Flow(8.0, ("gpu 3 out", "bridge", "gpu 1 in")),
    ]
    assert ends(slots | {"bridge": 40.0}, flows, engine) == pytest.approx([0.5, 0.5, 0.5])
    assert ends(slots | {"bridge": 20.0}, flows, engine) == pytest.approx([8 / 22, 0.8, 0.8])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_link_between_unlike_groups(engine: str) -> None:
    """Four fast nodes (50 GB/s) send to four slow ones (25) over a trunk of 60; a fifth pair talks inside the fast.

    Expectation: the trunk gives 15 to each of the four. Fast node 0 sends inside, too: that gets 50 - 15 = 35.
    """
    capacity = {"trunk": 60.0} | {f"fast {n}": 50.0 for n in range(4)} | {f"slow {n}": 25.0 for n in range(4)}
    flows = [Flow(3.0, (f"fast {n}", "trunk", f"slow {n}")) for n in range(4)] + [Flow(7.0, ("fast 0",))]
    assert ends(capacity, flows, engine) == pytest.approx([0.2] * 5)
    assert ends(capacity, flows[:1], engine) == pytest.approx([3 / 25]), "alone, the slow port is the narrowest"


@pytest.mark.parametrize("engine", ENGINES)
def test_computation_beneath_communication(engine: str) -> None:
    """DeepEP's 20 of 132 processors for 1 s: a kernel of 1 s has 20/132 left then, and ends at 1 + 20/132 s."""
    capacity = {"processors": 132.0, "port": 50.0}
    flows = [
        Flow(50.0, ("port",), hold={"processors": 20.0}),
        Flow(1.0, {"processors": 132.0}, bound=1.0, priority=1),
    ]
    assert ends(capacity, flows, engine) == pytest.approx([1.0, 1 + 20 / 132])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_kernel_of_communication_holds_processors_in_its_latency(engine: str) -> None:
    """0.5 s of latency and 0.5 s of transfer hold a quarter for 1 s; a kernel of 1.5 s has 0.75 s left then."""
    capacity = {"processors": 4.0, "port": 10.0}
    flows = [
        Flow(5.0, ("port",), hold={"processors": 1.0}, latency=0.5),
        Flow(1.5, {"processors": 4.0}, bound=1.0, priority=1),
    ]
    assert ends(capacity, flows, engine) == pytest.approx([1.0, 1.75])


# ---------------------------------------------------------------- routes of scenarios


def built(*overrides: str) -> tuple[StepGraph, Fluid]:
    scenario = small(*overrides)
    step = build_step(scenario)
    return step, fluid_of(step, scenario)


def route_of(step: StepGraph, fluid: Fluid, name: str, rank: int = 0) -> tuple[dict[str, float], dict[str, float]]:
    """What the first task of an operation on a rank uses [units a second, alone] and holds."""
    graph = step.graph
    task = next(
        task
        for task in range(len(graph))
        if graph.operations[graph.operation[task]].name == name and graph.streams[graph.stream[task]].rank == rank
    )
    route = int(fluid.route[task])
    link, use = fluid.uses(route)
    held, amount = fluid.holds(route)
    rate = float(fluid.bound[route])
    return (
        {fluid.links[number]: rate * float(part) for number, part in zip(link, use, strict=True)},
        {fluid.links[number]: float(part) for number, part in zip(held, amount, strict=True)},
    )


def size(fluid: Fluid, link: str) -> float:
    return float(fluid.capacity[fluid.links.index(link)])


def test_experts_inside_a_node_use_nvlink_and_the_pipeline_the_ports() -> None:
    step, fluid = built()
    exchange, held = route_of(step, fluid, "moe.dispatch")
    assert set(exchange) == {"memory 0", "scale-up 0 out", "scale-up 0 in"}
    assert exchange["memory 0"] == pytest.approx(2 * exchange["scale-up 0 out"]), "read once, written once"
    assert held == {"multiprocessors 0": 16.0}
    send, held = route_of(step, fluid, "pipeline.send")
    assert send["port 0 out"] == send["port 1 in"] == pytest.approx(size(fluid, "port 0 out"))
    assert {"port 0 in", "port 1 out"}.isdisjoint(send), "links are full duplex"
    assert held == {"multiprocessors 0": 2.0, "multiprocessors 1": 2.0}


def test_a_group_across_nodes_splits_its_bytes() -> None:
    """A gather over 2 nodes of 8 sends 7/8 n inside and n/16 outside: 14 to 1."""
    step, fluid = built("plan.pipeline_parallel=1", "plan.expert_tensor_parallel=2")
    gather, held = route_of(step, fluid, "param.dense")
    assert gather["scale-up 0 out"] == pytest.approx(14 * gather["port 0 out"])
    assert held == {"multiprocessors 0": 16.0}
    assert route_of(step, fluid, "moe.etp_gather")[1] == {"multiprocessors 0": 6.0}, "reduced in the NVLink switch"


@pytest.mark.parametrize("ratio", [2.0, 4.0])
def test_an_oversubscribed_uplink_is_shared_by_all_below_it(ratio: float) -> None:
    """Alone, all 16 GPUs together fill the uplink at 1/ratio of their ports; half of them may go twice as fast."""
    overrides = ("cluster.fabric.topology=fat_tree", f"cluster.fabric.oversubscription={ratio}")
    step, fluid = built("plan.pipeline_parallel=1", "plan.expert_tensor_parallel=2", *overrides)
    dispatch, _ = route_of(step, fluid, "moe.dispatch")
    port, leaf = size(fluid, "port 0 out"), size(fluid, "port leaf 0.0 out")
    assert leaf == pytest.approx(16 * port / ratio)
    assert dispatch["port 0 out"] == pytest.approx(port / ratio, rel=1e-3)  # weights go along in one of their own
    assert dispatch["port leaf 0.0 out"] == pytest.approx(leaf, rel=1e-3)
    step, fluid = built(*overrides)
    send, _ = route_of(step, fluid, "pipeline.send")
    assert send["port leaf 0.0 out"] == pytest.approx(leaf / 2), "8 of 16 GPUs"


def test_a_host_bridge_is_shared_by_all_accelerators_of_a_node() -> None:
    step, fluid = built("cluster.groups=[{node: a40-x8, count: 2}]")
    dispatch, held = route_of(step, fluid, "moe.dispatch")
    assert dispatch["bridge 0"] == pytest.approx(8 * dispatch["scale-up 0 out"])
    assert held == {"multiprocessors 0": 2.0}
    assert "bridge 0" in route_of(step, fluid, "pipeline.send")[0], "the network port hangs on it, too"


def test_traffic_between_unlike_groups_also_crosses_what_joins_them() -> None:
    step, fluid = built(
        "cluster.groups=[{node: dgx-h100, count: 1}, {node: dgx-a100-80gb, count: 1}]",
        "cluster.cross_group={link: ethernet-100}",
    )
    send, _ = route_of(step, fluid, "pipeline.send")
    width = pytest.approx(size(fluid, "cross 0 out"))
    assert send["cross 0 out"] == send["cross 1 in"] == send["port 0 out"] == send["port 1 in"] == width
    assert size(fluid, "cross 0 out") < size(fluid, "port 0 out")


def test_a_deduplicating_dispatcher_sends_less_over_the_network() -> None:
    overrides = ("plan.pipeline_parallel=1", "plan.expert_tensor_parallel=2", "plan.dispatcher=deepep")
    step, fluid = built(*overrides)
    dispatch, held = route_of(step, fluid, "moe.dispatch")
    assert held == {"multiprocessors 0": 20.0}
    # 2 of 8 experts on 2 nodes: 2 (1 - C(4,2)/C(8,2)) = 11/7 nodes a token, half of them remote; 2 ranks of 8 visited,
    # 2 (1 - 0) copies... each rank holds one expert, so 2 ranks a token, 7/8 of them elsewhere in the domain of 8.
    assert dispatch["scale-up 0 out"] / dispatch["port 0 out"] == pytest.approx((2 * 3 / 4) / (11 / 7 / 2), rel=0.2)


def test_expert_and_gradient_traffic_on_one_port_slow_each_other() -> None:
    """An exchange that meets a gradient reduction takes longer than alone."""
    overrides = ("plan.pipeline_parallel=1", "plan.expert_tensor_parallel=2", "training.global_batch_size=32")
    step, fluid = built(*overrides)
    graph = step.graph
    timeline = simulate_fluid(graph, fluid)
    names = np.array([operation.name for operation in graph.operations])[graph.operation]
    longer = (timeline.end - timeline.start) / np.where(graph.duration > 0, graph.duration, 1)
    exchange = longer[np.isin(names, ["moe.dispatch", "moe.combine"])]
    assert exchange.min() == pytest.approx(1.0)
    reduction = longer[names == "grad.dense"]
    assert exchange.max() > 1.05
    assert 1.2 < reduction.max() <= 2.0 + 1e-9, "two that share halve each other at worst"
    assert longer[names == "attention.core"].max() > 1.1, "16 of 132 processors are held"


@pytest.mark.parametrize(
    "overrides",
    [
        ("plan.pipeline_parallel=1", "plan.expert_tensor_parallel=2", "cluster.fabric.oversubscription=2"),
        ("cluster.fabric.oversubscription=4",),
    ],
)
def test_folded_and_unfolded_are_the_same(overrides: tuple[str, ...]) -> None:
    scenario = small("model.num_layers=2", "training.global_batch_size=32", *overrides)
    spans = []
    for fold in (True, False):
        step = build_step(scenario, fold=fold)
        spans.append(simulate_fluid(step.graph, fluid_of(step, scenario)).makespan)
    assert spans[0] == pytest.approx(spans[1], rel=1e-9)
