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
