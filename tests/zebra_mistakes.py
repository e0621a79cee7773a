"""Mistakes in plans of zebra parallelism, as in `tests.spec_mistakes`."""

ZEBRA = "plan={zebra: {attention_devices: 2, expert_devices: 2, expert_group: 0, groups: 4, micro_batches: 2}}"
STAGE = (
    "plan={stages: [{first_device: 0, devices: 8, data_parallel: 8, "
    "chunks: [{first_layer: 0, layers: 32, embedding: true, head: true}], "
    "experts: {first_device: 32, devices: 8, groups: 4}}]}"
)
TWO_STAGES = (
    "plan={stages: [{first_device: 0, devices: 8, data_parallel: 8, "
    "chunks: [{first_layer: 0, layers: 16, embedding: true}], experts: {first_device: 32, devices: 8, groups: 4}}, "
    "{first_device: 8, devices: 8, data_parallel: 8, chunks: [{first_layer: 16, layers: 16, head: true}]}]}"
)


def _of_all_layers(moved: int) -> str:
    return f"plan.zebra.moved_experts={[moved] * 32}"


ZEBRA_MISTAKES = [
    ([ZEBRA, "model=llama-2-7b"], "plan.zebra: llama-2-7b has no experts, remove it"),
    (
        [ZEBRA, "plan.zebra.expert_group=1"],
        "plan.zebra: the cluster has 1 node groups, counted from 0 (got 1), choose one of them",
    ),
    (
        [ZEBRA, "plan.zebra.groups=40"],
        "plan.zebra: 160 devices are wanted of node group 0, which has 64, use fewer devices, groups or stages",
    ),
    (
        [ZEBRA, "plan.data_parallel=16"],
        "plan.data_parallel: data_parallel 16 x tensor_parallel x context_parallel 1 are not the 8 attention devices "
        "of a stage, remove it",
    ),
    (
        [ZEBRA, "cluster.faults=[{node: 7, failed: true}]"],
        "cluster.faults: zebra parallelism does not go on without a node, take it out of the cluster and plan anew",
    ),
    (
        [ZEBRA, "plan.zebra.moved_experts=[1, 1]"],
        "plan.zebra.moved_experts: 2 numbers for 32 MoE layers, write one for each",
    ),
    (
        [ZEBRA, "plan.zebra.expert_devices=3"],
        "plan.zebra: expert_devices 3 does not divide num_experts 8, choose 2 or 4",
    ),
    (
        [ZEBRA, _of_all_layers(4)],
        "plan.zebra: moved_experts 4 leaves an expert device without one, it holds 4, write at most 3",
    ),
    (
        [ZEBRA, "plan.zebra.attention_devices=4", _of_all_layers(1)],
        "plan.zebra: moved_experts 1 x expert_devices 2 do not divide over 4 attention devices, "
        "move as many that each of them gets the same number",
    ),
    (
        [ZEBRA, "training.global_batch_size=24"],
        "plan.stages: global_batch_size 24 is not divisible by micro_batch_size x data_parallel x zebra micro_batches "
        "= 16, change one of them",
    ),
    ([ZEBRA, "plan.schedule=zb-h1"], "plan: zebra parallelism does not go with schedule zb-h1, write 1f1b or gpipe"),
    (
        [ZEBRA, "routing={kind: zipf, exponent: 0.5}"],
        "plan: zebra parallelism does not go with routing zipf, write balanced",
    ),
    (
        [STAGE, "plan.stages.0.experts.groups=3"],
        "plan.stages: stage 0: its devices do not divide into 3 zebra groups, change groups",
    ),
    (
        [STAGE, "plan.stages.0.experts.moved_experts=[1]"],
        "plan.stages: stage 0: 1 moved_experts for 32 MoE layers, write one for each",
    ),
    (
        [STAGE, "plan.stages.0.experts.first_device=4"],
        "plan.stages: stages 0 and 0 share device 4, start at 8 or later",
    ),
    (
        [STAGE, "plan.stages.0.experts.first_device=60"],
        "plan.stages: stage 0 ends at device 68, the cluster has 64, use fewer",
    ),
    (
        [STAGE, "plan.zebra={attention_devices: 2, expert_devices: 2, expert_group: 0}"],
        "plan.zebra: given beside stages, remove one of the two: stages name their expert devices under experts",
    ),
    (
        [
            TWO_STAGES,
            "plan.stages.0.experts.micro_batches=2",
            "plan.stages.1.devices=12",
            "plan.stages.1.data_parallel=12",
        ],
        "plan.stages: stage 1: data_parallel x zebra micro_batches 12 does not divide the largest data_parallel x "
        "zebra micro_batches of a stage 16, choose 8 or 16",
    ),
    (
        [TWO_STAGES, "plan.stages.0.expert_parallel=2"],
        "plan: zebra parallelism does not go with expert_parallel, write 1: expert_devices say it",
    ),
    (
        [TWO_STAGES, "plan.schedule=zb-h1"],
        "plan: zebra parallelism does not go with schedule zb-h1, write 1f1b or gpipe",
    ),
]
