"""Mistakes in schedules, overlap and sharding, as in `tests.spec_mistakes`."""

SCHEDULE_MISTAKES = [
    (
        ["plan.schedule=dualpipe", "training.global_batch_size=64"],
        "plan.schedule: dualpipe needs at least 8 micro-batches on 4 stages (got 4), "
        "set training.global_batch_size to 128 or more",
    ),
    (
        ["plan.schedule=dualpipe", "training.global_batch_size=144"],
        "plan.schedule: dualpipe needs even numbers of stages and micro-batches (got 4 and 9), change one of them",
    ),
    (
        ["plan.overlap_moe_expert_parallel_comm=true"],
        "plan.overlap_moe_expert_parallel_comm: needs schedule: interleaved, or 1f1b on one stage (got 1f1b), "
        "change one of them",
    ),
    (
        ["plan.a2a_ffn_overlap_degree=33"],
        "plan.a2a_ffn_overlap_degree: at most 32 is accepted (got 33), write less",
    ),
    (
        ["plan.a2a_ffn_overlap_degree=2", "plan.expert_parallel=1"],
        "plan.a2a_ffn_overlap_degree: 2 needs expert_parallel above 1, set it or write 1",
    ),
    (
        ["plan.a2a_ffn_overlap_degree=2", "plan.dispatcher=deepep"],
        "plan.a2a_ffn_overlap_degree: needs dispatcher: alltoall (got deepep), set it or write 1",
    ),
    (
        [
            "plan.a2a_ffn_overlap_degree=2",
            "plan.overlap_moe_expert_parallel_comm=true",
            "plan.schedule=interleaved",
            "plan.virtual_pipeline=2",
        ],
        "plan.a2a_ffn_overlap_degree: does not go with overlap_moe_expert_parallel_comm, "
        "write 1 or leave that overlap out",
    ),
    (
        ["plan.a2a_ffn_overlap_degree=2", "plan.schedule=dualpipe"],
        "plan.a2a_ffn_overlap_degree: does not go with schedule: dualpipe, which hides exchanges by itself, write 1",
    ),
    (
        ["plan.sharding=zero3"],
        "plan.sharding: zero3 needs one pipeline stage (got 4), write zero1 or pipeline_parallel: 1",
    ),
    (
        ["plan.sharding_group=3"],
        "plan.sharding_group: sharding_group 3 does not divide data_parallel x context_parallel 16, choose 2 or 4",
    ),
    (
        ["plan.schedule=custom"],
        "plan.schedule_table: schedule: custom needs a table of actions, write one row a stage: 0F0,0F1,0B0,0B1",
    ),
    (
        ["plan.schedule_table=0F0"],
        "plan.schedule_table: is for schedule: custom (got 1f1b), set it or remove the table",
    ),
]
