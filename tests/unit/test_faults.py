"""Faults: which devices they split off, what they do to one device, and what lost nodes leave of a job."""

from pathlib import Path

import pytest

from simmoe.cost.faults import Effects, effects_on, ports_of_devices, slowdown_of_devices
from simmoe.errors import SpecError
from simmoe.graph.classes import device_classes
from simmoe.pipeline import run
from simmoe.specs.faults import Shrinking
from simmoe.specs.reader import dump_plan
from tests.scenarios import small

EIGHT = ("cluster.groups.0.count=8",)


def counts(*overrides):
    """Devices of the classes of each stage."""
    scenario = small(*overrides)
    return [[part.devices for part in stage] for stage in device_classes(scenario.plan, scenario.cluster)]


# ---------------------------------------------------------------- classes


def test_healthy_devices_of_a_stage_are_one_class():
    assert counts() == [[8], [8]]
    assert counts("plan.expert_parallel=4", "plan.tensor_parallel=2") == [[8], [8]]


def test_a_slow_device_splits_off_itself_its_peers_and_their_pipelines():
    slow = "cluster.faults=[{device: 3, slowdown: 1.2}]"
    assert counts(slow) == [[7, 1], [7, 1]]  # 7 others of its expert group; the second stage, fed by them
    assert counts(slow, "plan.pipeline_parallel=1", "plan.expert_parallel=4") == [[3, 1, 12]]
    assert counts(slow, *EIGHT, "plan.expert_parallel=8") == [[7, 1, 24], [7, 1, 24]]
    assert counts(slow, "model=llama-3-8b", "plan.expert_parallel=1", "plan.pipeline_parallel=1") == [[15, 1]]


def test_a_degraded_node_is_a_class_with_all_who_reach_it():
    assert counts(*EIGHT, "cluster.faults=[{node: 5, network: 0.5}]") == [[24, 8], [24, 8]]


def test_a_class_of_several_parts_says_where_they_are():
    scenario = small("cluster.faults=[{device: 3, slowdown: 1.2}]")
    ((peers, slow), _) = device_classes(scenario.plan, scenario.cluster)
    assert peers.spans == ((0.0, 3 / 8), (4 / 8, 1.0))
    assert slow.spans == ((3 / 8, 4 / 8),)
    assert (peers.first, slow.first) == (0, 3)
    assert peers.teams["ep"] == slow.teams["ep"] == frozenset({0})
    assert not peers.teams["tp"] & slow.teams["tp"]


def test_unfolded_every_device_is_a_class():
    scenario = small()
    found = device_classes(scenario.plan, scenario.cluster, fold=False)
    assert [[part.first for part in stage] for stage in found] == [list(range(8)), list(range(8, 16))]


# ---------------------------------------------------------------- effects


def test_faults_of_one_place_multiply():
    cluster = small(
        "cluster.faults=[{node: 1, slowdown: 2, network: 0.5}, {device: 9, slowdown: 1.5}, {node: 1, network: 0.5}]"
    ).cluster
    assert slowdown_of_devices(cluster).tolist() == [1.0] * 8 + [2.0, 3.0] + [2.0] * 6
    assert ports_of_devices(cluster).tolist() == [1.0] * 8 + [0.25] * 8


def test_a_device_feels_the_ports_of_those_it_works_with():
    """Stage 0 is nodes 0 to 3, stage 1 nodes 4 to 7; expert groups are nodes."""
    scenario = small(*EIGHT, "cluster.faults=[{node: 1, network: 0.5}]")

    def found(device):
        return effects_on(scenario.cluster, scenario.plan, device // 32, device)

    everyone = (("dp", 0.5), ("edp", 0.5))
    assert found(0) == Effects(1.0, everyone)
    assert dict(found(8).ports) == {"dp": 0.5, "edp": 0.5, "tp": 0.5, "cp": 0.5, "ep": 0.5, "etp": 0.5, "pp": 0.5}
    assert found(32) == Effects()
    assert found(40) == Effects(1.0, (("pp", 0.5),))
    assert effects_on(small().cluster, small().plan, 0, 0) == Effects()


# ---------------------------------------------------------------- lost nodes


def test_the_job_goes_on_with_the_largest_data_parallel_size():
    lost = "cluster.faults=[{node: 3, failed: true}]"
    scenario = small(*EIGHT, lost, "training.global_batch_size=576")
    assert (scenario.cluster.devices, scenario.plan.data_parallel) == (48, 24)  # 28 does not hold groups of 8
    assert scenario.training.global_batch_size == 576
    assert scenario.shrinking == Shrinking(failed_nodes=(3,), devices=64, left=56, data_parallel=32)
    scenario = small(*EIGHT, lost)
    assert (scenario.cluster.devices, scenario.plan.data_parallel) == (32, 16)  # 24 does not divide the batch of 64


def test_what_is_left_runs_as_a_smaller_cluster():
    lost = run(small(*EIGHT, "cluster.faults=[{node: 0, failed: true}]"))
    smaller = run(small("cluster.groups.0.count=4"))
    assert lost.step_time_s == smaller.step_time_s
    assert lost.tokens_per_s < run(small(*EIGHT)).tokens_per_s


def test_other_faults_keep_their_places():
    faults = (
        "cluster.faults=[{node: 1, failed: true}, {device: 4, slowdown: 1.5}, {node: 2, network: 0.5}, "
        "{device: 26, slowdown: 2}, {node: 1, network: 0.25}, {node: 7, slowdown: 3}]"
    )
    cluster = small(*EIGHT, faults, "plan.expert_parallel=2", "training.global_batch_size=448").cluster
    kept = [fault.model_dump(exclude_defaults=True) for fault in cluster.faults]
    assert kept == [
        {"device": 4, "slowdown": 1.5},
        {"node": 1, "network": 0.5},
        {"device": 18, "slowdown": 2.0},
        {"node": 6, "slowdown": 3.0},
    ]


def test_nodes_of_unlike_groups_are_lost_where_they_stand():
    groups = "cluster.groups=[{node: dgx-h100, count: 1}, {node: dgx-a100-80gb, count: 2}]"
    lost = "cluster.faults=[{node: 0, failed: true}]"
    cluster = small(groups, lost, "plan.pipeline_parallel=1", "training.global_batch_size=48").cluster
    assert [(group.node.id, group.count) for group in cluster.groups] == [("dgx-a100-80gb", 2)]


def test_lost_nodes_need_a_plan_that_can_shrink(tmp_path: Path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(dump_plan(small().plan))
    with pytest.raises(SpecError, match="a failed node needs a plan without explicit stages"):
        small(f"plan={plan}", "cluster.faults=[{node: 0, failed: true}]")


def test_no_node_is_left():
    faults = "cluster.faults=[{node: 0, failed: true}, {node: 1, failed: true}]"
    with pytest.raises(SpecError, match="the 0 accelerators that are left of 16, choose smaller"):
        small(faults)


def test_a_scenario_without_lost_nodes_stays():
    assert small().shrinking is None
    assert small("cluster.faults=[{node: 0, slowdown: 2}]").cluster.devices == 16
