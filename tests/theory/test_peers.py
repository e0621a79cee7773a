"""Configurations on which a peer's two engines disagree by 29 to 60 %: here two engines and a replay must agree.

Llama-3 70B with tp 2, pp 8, dp 4 and 16 micro-batches; GPT-3 175B with tp 8, pp 8 and 8 or 16 micro-batches.
"""

import pytest

from simmoe.engine.fast import simulate_fast
from simmoe.engine.simulate import simulate
from simmoe.graph.build import build_step
from simmoe.graph.schedules import one_f_one_b
from tests.pipelines import replay
from tests.scenarios import small
from tests.theory.test_pipeline import bounds

DENSE = ("plan.expert_parallel=1", "plan.pipeline_parallel=8", "plan.recompute=full")
CASES = {
    "llama-3-70b, 16": (
        *DENSE,
        "model=llama-3-70b",
        "cluster.groups.0.count=8",
        "plan.tensor_parallel=2",
        "training.global_batch_size=64",
    ),
    "gpt-3-175b, 8": (*DENSE, "model=gpt-3-175b", "cluster.groups.0.count=8", "plan.tensor_parallel=8"),
    "gpt-3-175b, 16": (*DENSE, "model=gpt-3-175b", "cluster.groups.0.count=8", "plan.tensor_parallel=8"),
}
BATCHES = {"llama-3-70b, 16": (64, 16), "gpt-3-175b, 8": (8, 8), "gpt-3-175b, 16": (16, 16)}


def scenario_of(name):
    """The case without what frames the pipeline: host time, gathers before and reductions after the passes."""
    batch, _ = BATCHES[name]
    length = ("training.sequence_length=2048",) if "gpt" in name else ()
    alone = (
        "plan.cuda_graph_scope=[full_iteration]",
        "plan.overlap_param_gather=false",
        "plan.overlap_grad_reduce=false",
    )
    return small(*CASES[name], *length, *alone, f"training.global_batch_size={batch}")


def passes(timeline, rank, phases):
    """First start and last end of the device work of every micro-batch of a rank in some phases."""
    graph, found = timeline.graph, {}
    for task in range(len(graph)):
        stream, phase = graph.streams[graph.stream[task]], graph.operations[graph.operation[task]].phase
        if stream.rank == rank and phase in phases and stream.name in {"compute", "tp"}:
            batch = int(graph.micro_batch[task])
            start, end = found.get(batch, (timeline.start[task], timeline.end[task]))
            found[batch] = (min(start, timeline.start[task]), max(end, timeline.end[task]))
    return found


@pytest.mark.parametrize("name", sorted(CASES))
def test_engines_and_replay_agree_and_lie_between_the_bounds(name):
    """Every pass of a stage takes the same time, so the step is that of a bare pipeline with these times."""
    scenario, (_, micro_batches) = scenario_of(name), BATCHES[name]
    step = build_step(scenario)
    timeline = simulate(step.graph)
    fast = simulate_fast(step.graph)
    assert (fast.start == timeline.start).all()
    assert (fast.end == timeline.end).all()

    forward, backward, sends = [], [], set()
    for rank in range(8):
        there = passes(timeline, rank, {"forward"})
        back = passes(timeline, rank, {"recompute", "backward"})
        assert len(there) == len(back) == micro_batches
        forward.append(min(end - start for start, end in there.values()))
        backward.append(min(end - start for start, end in back.values()))
    for task in range(len(step.graph)):
        if step.graph.operations[step.graph.operation[task]].category == "send_recv":
            sends.add(float(step.graph.duration[task]))
    (send,) = sends
    last = max(end for _, end in passes(timeline, 0, {"backward"}).values())
    expected = replay(one_f_one_b, forward, backward, micro_batches, send)
    assert last == pytest.approx(expected, rel=1e-9)
    lower, upper = bounds(forward, backward, micro_batches)
    assert lower <= last <= upper + 2 * 8 * send * micro_batches
