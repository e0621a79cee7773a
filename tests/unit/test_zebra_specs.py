"""Zebra plans as users write them: what is filled in, what is refused and with which words, and writing them back."""

import pytest

from simmoe.specs.catalog import model
from simmoe.specs.expand import moe_layers
from simmoe.specs.plan import Chunk, Stage
from simmoe.specs.reader import dump_plan, load_plan, load_scenario
from tests.scenarios import ZEBRA, zebra

TEXT = """\
name: demo
model: mixtral-8x7b
cluster:
  groups: [{node: dgx-h100, count: 2}, {node: dgx-a100-80gb, count: 4}]
  fabric: {link: infiniband-ndr-400}
training: {sequence_length: 4096, global_batch_size: 64, precision: bf16}
plan:
  zebra:
    attention_devices: 4
    expert_devices: 8
    groups: 2
    micro_batches: 4
"""
PLAN = TEXT[TEXT.index("plan:") :]
STAGES = """\
plan:
  stages:
    - {first_device: 0, devices: 8, data_parallel: 8, chunks: [{first_layer: 0, layers: 16, embedding: true}],
       experts: {first_device: 16, devices: 16, groups: 2, micro_batches: 4}}
    - {first_device: 8, devices: 8, data_parallel: 8, chunks: [{first_layer: 16, layers: 16, head: true}],
       experts: {first_device: 32, devices: 16, groups: 2, micro_batches: 4}}
"""
SECOND = "first_device: 32, devices: 16, groups: 2, micro_batches: 4"
MOVED = f"moved_experts: [{', '.join(['1'] * 32)}]"
ZEBRA_KEYS = "attention_devices, expert_devices, groups, micro_batches, moved_experts, attention_group, ..."


def stage_text(*changes: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """The changes that turn the file into one with explicit stages, spoilt."""
    stages = STAGES
    for old, new in changes:
        assert stages.count(old) == 1
        stages = stages.replace(old, new)
    return ((PLAN, stages),)


# ---------------------------------------------------------------- wrong input

UNIFORM = [
    (
        "    micro_batches: 4\n",
        "    micro_batches: 4\n    microbatches: 4\n",
        ["13:5: plan.zebra.microbatches: unknown key, did you mean micro_batches?"],
    ),
    (
        PLAN,
        "plan: {zebra: true}\n",
        [f"7:15: plan.zebra: a mapping is expected (got true), write key: value lines ({ZEBRA_KEYS})"],
    ),
    ("    expert_devices: 8\n", "", ["8:3: plan.zebra.expert_devices: is missing, add a whole number"]),
    (
        "micro_batches: 4",
        "micro_batches: 0",
        ["12:20: plan.zebra.micro_batches: must be greater than 0 (got 0), write a positive number"],
    ),
    (
        "micro_batches: 4",
        "micro_batches: 3",
        [
            "7:1: plan.stages: global_batch_size 64 is not divisible by micro_batch_size x data_parallel x zebra "
            "micro_batches = 24, change one of them"
        ],
    ),
    (
        "model: mixtral-8x7b",
        "model: llama-2-7b",
        ["8:3: plan.zebra: llama-2-7b has no experts, remove it"],
    ),
    (
        "groups: 2\n",
        "groups: 2\n    expert_group: 2\n",
        ["8:3: plan.zebra: the cluster has 2 node groups, counted from 0 (got 2), choose one of them"],
    ),
    (
        "    groups: 2\n",
        "    groups: 5\n",
        ["8:3: plan.zebra: 20 devices are wanted of node group 0, which has 16, use fewer devices, groups or stages"],
    ),
    (
        "expert_devices: 8",
        "expert_devices: 6",
        ["8:3: plan.zebra: expert_devices 6 does not divide num_experts 8, choose 4 or 8"],
    ),
    (
        "groups: 2\n",
        "groups: 2\n    moved_experts: [0, 0]\n",
        ["12:5: plan.zebra.moved_experts: 2 numbers for 32 MoE layers, write one for each"],
    ),
    (
        "groups: 2\n",
        f"groups: 2\n    {MOVED}\n",
        ["8:3: plan.zebra: moved_experts 1 leaves an expert device without one, it holds 1, write at most 0"],
    ),
    (
        "attention_devices: 4\n    expert_devices: 8",
        f"attention_devices: 8\n    expert_devices: 4\n    {MOVED}",
        [
            "8:3: plan.zebra: moved_experts 1 x expert_devices 4 do not divide over 8 attention devices, move as many "
            "that each of them gets the same number"
        ],
    ),
    (
        "plan:\n",
        "plan:\n  tensor_parallel: 3\n",
        [
            "8:20: plan.tensor_parallel: tensor_parallel 3 does not divide num_heads 32, choose 2 or 4",
        ],
    ),
    (
        "plan:\n",
        "plan:\n  tensor_parallel: 16\n",
        [
            "10:24: plan.zebra.attention_devices: 8 in all groups of a stage are not divisible by tensor_parallel x "
            "context_parallel = 16, change one of them"
        ],
    ),
    (
        "plan:\n",
        "plan:\n  data_parallel: 16\n",
        [
            "8:18: plan.data_parallel: data_parallel 16 x tensor_parallel x context_parallel 1 are not the 8 attention "
            "devices of a stage, remove it"
        ],
    ),
    (
        "link: infiniband-ndr-400}",
        "link: infiniband-ndr-400}\n  faults: [{node: 1, failed: true}]",
        [
            "6:3: cluster.faults: zebra parallelism does not go on without a node, take it out of the cluster and plan "
            "anew"
        ],
    ),
]

STAGE_WISE = [
    (
        ("head: true", "head: true, mtp: 1"),
        ["11:106: plan.stages.1.chunks.0.mtp: unknown key, did you mean mtp_layers?"],
    ),
    (
        (SECOND, SECOND.replace("32", "16")),
        ["8:3: plan.stages: stages 0 and 1 share device 16, start at 32 or later"],
    ),
    (
        (SECOND, SECOND.replace("32", "40")),
        ["8:3: plan.stages: stage 1 ends at device 56, the cluster has 48, use fewer"],
    ),
    (
        (SECOND, SECOND.replace("groups: 2", "groups: 3")),
        ["8:3: plan.stages: stage 1: its devices do not divide into 3 zebra groups, change groups"],
    ),
    (
        (SECOND, SECOND + ", moved_experts: [0]"),
        ["8:3: plan.stages: stage 1: 1 moved_experts for 16 MoE layers, write one for each"],
    ),
    (
        (SECOND, SECOND.replace("devices: 16", "devices: 12")),
        ["8:3: plan.stages: stage 1: expert_devices 6 does not divide num_experts 8, choose 4 or 8"],
    ),
    (
        (SECOND, SECOND.replace("micro_batches: 4", "micro_batches: 3")),
        [
            "8:3: plan.stages: stage 1: data_parallel x zebra micro_batches 24 does not divide the largest "
            "data_parallel x zebra micro_batches of a stage 32, choose 16 or 32"
        ],
    ),
]

CONFLICTS = [
    ("plan.schedule=zb-h1", "schedule zb-h1, write 1f1b or gpipe"),
    ("plan.expert_parallel=2", "expert_parallel, write 1: expert_devices say it"),
    ("plan.expert_tensor_parallel=2", "expert_tensor_parallel, write 1"),
    ("plan.dispatcher=deepep", "dispatcher deepep, write alltoall"),
    ("plan.sharding=zero3", "sharding zero3, write zero1 or none"),
    ("plan.recompute={granularity: full, num_layers: 3}", "recompute.num_layers, write nothing"),
    ("routing={kind: zipf, exponent: 0.5}", "routing zipf, write balanced"),
    ("cluster.faults=[{device: 3, slowdown: 2}]", "faults, write none"),
    ("plan.sharding=zero2", "sharding zero2, write zero1 or none"),
]


@pytest.mark.parametrize(("old", "new", "expected"), UNIFORM)
def test_the_message_names_place_value_and_remedy(complaint, old, new, expected):
    assert complaint((old, new), text=TEXT) == [f"s.yaml:{line}" for line in expected]


@pytest.mark.parametrize(("change", "expected"), STAGE_WISE)
def test_wrong_stages_are_named(complaint, change, expected):
    assert complaint(*stage_text(change), text=TEXT) == [f"s.yaml:{line}" for line in expected]


@pytest.mark.parametrize(("override", "expected"), CONFLICTS)
def test_what_does_not_go_together_is_refused(complaint, override, expected):
    lines = complaint(overrides=[override], text=TEXT)
    assert f"s.yaml:7:1: plan: zebra parallelism does not go with {expected}" in lines


def test_copies_of_a_tensor_parallel_group_are_not_sent_twice(complaint):
    wrong = ["plan.tensor_parallel=2", "plan.sequence_parallel=false"]
    assert complaint(overrides=wrong, text=TEXT) == [
        "s.yaml:7:1: plan: zebra parallelism does not go with tensor_parallel without sequence_parallel, "
        "write sequence_parallel: true"
    ]


@pytest.mark.parametrize(
    "override",
    ["training.software.host_sync=true", "plan.a2a_ffn_overlap_degree=2", "plan.schedule=gpipe", "plan.recompute=full"],
)
def test_what_goes_together_is_accepted(load, override):
    assert load(overrides=[override], text=TEXT).plan.stages[0].experts is not None


@pytest.mark.parametrize(
    ("change", "widths"),
    [
        ((f",\n       experts: {{{SECOND}}}}}", "}"), [32, 8]),
        ((SECOND, SECOND.replace("micro_batches: 4", "micro_batches: 2")), [32, 16]),
    ],
)
def test_stages_may_be_plain_or_take_other_shares_of_a_pass(load, change, widths):
    plan = load(*stage_text(change), text=TEXT).plan
    assert [stage.width for stage in plan.stages] == widths
    assert plan.widest == 32


def test_a_stage_without_experts_is_no_zebra_stage(complaint):
    dense = stage_text(
        ("first_layer: 0, layers: 16", "first_layer: 0, layers: 1"),
        ("first_layer: 16, layers: 16", "first_layer: 1, layers: 26"),
    )
    lines = complaint(
        *dense, ("model: mixtral-8x7b", "model: {base: deepseek-v3, num_layers: 27, mtp_layers: 0}"), text=TEXT
    )
    assert lines == ["s.yaml:8:3: plan.stages: stage 0: has no MoE layer, remove its experts"]


def test_two_forms_at_once_are_one_too_many(complaint):
    both = PLAN + STAGES.removeprefix("plan:\n")
    assert complaint((PLAN, both), text=TEXT) == [
        "s.yaml:8:3: plan.zebra: given beside stages, remove one of the two: stages name their expert devices under "
        "experts"
    ]


# ---------------------------------------------------------------- what is filled in


def test_the_uniform_form_becomes_stages(load):
    """Expectation: both stages take their attention devices of the first group, their expert devices of the second."""
    pipeline = (("plan:\n", "plan:\n  pipeline_parallel: 2\n"),)
    uniform, explicit = load(*pipeline, text=TEXT), load(*stage_text(), text=TEXT)
    assert uniform.plan.zebra is None
    assert uniform.plan.stages == explicit.plan.stages
    assert uniform.plan.data_parallel == 8
    first, second = uniform.plan.stages
    assert [(part.first_device, part.devices) for part in (*first.roles, *second.roles)] == [
        (0, 8),
        (16, 16),
        (8, 8),
        (32, 16),
    ]


def test_expert_devices_of_the_same_group_follow():
    """Expectation: of 8 H100 the first 4 hold attention, the others experts; A100 stay idle."""
    scenario = zebra("plan.zebra={attention_devices: 2, expert_devices: 2, groups: 2, expert_group: 0}")
    (stage,) = scenario.plan.stages
    assert [(part.first_device, part.devices) for part in stage.roles] == [(0, 4), (4, 4)]


def test_the_roles_of_a_stage_are_plain_stages():
    """Expectation: experts that moved stand once in a group of 4 attention devices, the others in one of 4."""
    scenario = zebra("plan.tensor_parallel=2", "plan.zebra.moved_experts=[0, 1, 0, 1]")
    attention, experts = scenario.plan.stages[0].roles
    assert (attention.tensor_parallel, attention.data_parallel, attention.expert_parallel) == (2, 4, 4)
    assert (experts.tensor_parallel, experts.data_parallel, experts.expert_parallel) == (1, 8, 4)
    assert attention.expert_data_parallel == experts.expert_data_parallel == 2
    plain = Stage(first_device=0, devices=8, data_parallel=8, chunks=(Chunk(first_layer=0, layers=4),))
    assert plain.roles == (plain,)
    assert (plain.together, scenario.plan.stages[0].together) == (1, 2)


def test_moved_experts_go_to_the_stages_of_their_layers(load):
    """Expectation: 30 layers of 32 of which the first stage has 14; the list is cut behind them."""
    moved = f"[{', '.join(str(i % 2) for i in range(32))}]"
    plan = (
        f"plan:\n  pipeline_parallel: 2\n  stage_layers: [15, 17]\n  zebra: {{attention_devices: 4, expert_devices: 4, "
        f"groups: 2, moved_experts: {moved}}}\n"
    )
    first, second = (stage.experts for stage in load((PLAN, plan), text=TEXT).plan.stages)
    assert first.moved_experts == tuple(i % 2 for i in range(15))
    assert second.moved_experts == tuple(i % 2 for i in range(15, 32))


@pytest.mark.parametrize(
    ("name", "chunk", "layers"),
    [
        ("deepseek-v3", Chunk(first_layer=0, layers=5), (3, 4)),
        ("deepseek-v3", Chunk(first_layer=59, layers=2, mtp_layers=1), (59, 60, 61)),
        ("mixtral-8x7b", Chunk(first_layer=2, layers=2), (2, 3)),
        ("llama-2-7b", Chunk(first_layer=0, layers=2), ()),
    ],
)
def test_layers_with_experts_are_counted(name, chunk, layers):
    assert moe_layers(model(name), chunk) == layers


# ---------------------------------------------------------------- written and read again

PLANS = [
    (),
    ("plan.zebra.moved_experts=[0, 1, 0, 1]", "plan.recompute=full"),
    ("plan.pipeline_parallel=2", "plan.zebra.groups=1", "plan.a2a_ffn_overlap_degree=2"),
]


@pytest.mark.parametrize("overrides", PLANS, ids=str)
def test_an_expanded_plan_is_written_and_read(overrides, tmp_path):
    plan = zebra(*overrides).plan
    file = tmp_path / "plan.yaml"
    file.write_text(dump_plan(plan))
    assert load_plan(file) == plan
    again = load_scenario(ZEBRA, [f"plan={file.read_text()}"])
    assert again.plan.stages == plan.stages
