"""Mistakes in faults and jitter, as in `tests.spec_mistakes`."""

FAULT_MISTAKES = [
    (
        ["cluster.faults=[{slowdown: 1.2}]"],
        "cluster.faults: fault 0 names neither device nor node, write one",
    ),
    (
        ["cluster.faults=[{node: 0, slowdown: 2}, {device: 0, node: 0, slowdown: 2}]"],
        "cluster.faults: fault 1 names a device and a node, remove one",
    ),
    (
        ["cluster.faults=[{device: 64, slowdown: 1.2}]"],
        "cluster.faults: fault 0 is of device 64, the last one is 63, correct it",
    ),
    (
        ["cluster.faults=[{node: 8, network: 0.5}]"],
        "cluster.faults: fault 0 is of node 8, the last one is 7, correct it",
    ),
    (
        ["cluster.faults=[{node: 3}]"],
        "cluster.faults: fault 0 changes nothing, write slowdown, network or failed: true",
    ),
    (
        ["cluster.faults=[{device: 3, network: 0.5}]"],
        "cluster.faults: fault 0 gives network or failed for a device, name its node",
    ),
    (
        ["cluster.faults=[{node: 3, failed: true, slowdown: 2}]"],
        "cluster.faults: fault 0 is a failure, which leaves nothing to slow down, remove slowdown and network",
    ),
    (
        ["cluster.faults=[{node: 3, network: 0}]"],
        "cluster.faults.0.network: must be greater than 0 (got 0), write a positive number",
    ),
    (
        ["cluster.faults=[{node: 3, slowdown: 0.5}]"],
        "cluster.faults.0.slowdown: must be at least 1 (got 0.5), write 1 or more",
    ),
    (
        ["cluster.faults=[{node: 3, failed: true}]", "plan.tensor_parallel=8", "plan.pipeline_parallel=8"],
        "cluster.faults: no data-parallel size makes the plan fit the 56 accelerators that are left of 64, choose "
        "smaller parallel sizes or another batch",
    ),
    (["training.jitter={sigma: 3}"], "training.jitter.sigma: must be at most 2 (got 3), write 2 or less"),
]
