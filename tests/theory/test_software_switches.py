"""What a software stack adds to a step: gradients moved outside their products, blocking launches and transfers."""

import numpy as np
import pytest

from simmoe.cost.gradients import GRADIENT_TRAFFIC, Weights, optimizer_step
from simmoe.cost.parameters import rank_parameters
from simmoe.engine.simulate import simulate
from simmoe.graph.actions import micro_batches
from simmoe.graph.build import build_step
from simmoe.specs import catalog
from tests.scenarios import small

SHARDED = ("plan.pipeline_parallel=1", "plan.sharding=zero3")


def stack(scenario, **switches):
    """The scenario with switches of its software changed."""
    software = scenario.training.software.model_copy(update=switches)
    return scenario.model_copy(update={"training": scenario.training.model_copy(update={"software": software})})


def tasks(timeline, name, rank=0):
    """The tasks of a rank with a name, as (start, end, layer, micro-batch)."""
    graph = timeline.graph
    owner = np.array([stream.rank for stream in graph.streams])[graph.stream]
    names = np.array([operation.name for operation in graph.operations])[graph.operation]
    chosen = np.flatnonzero((owner == rank) & (names == name))
    return [
        (timeline.start[i], timeline.end[i], int(graph.layer[i]), int(graph.micro_batch[i])) for i in chosen.tolist()
    ]


def stream(timeline, name, rank=0):
    """Starts and ends on a stream of a rank."""
    graph = timeline.graph
    wanted = [i for i, s in enumerate(graph.streams) if (s.rank, s.name) == (rank, name)]
    chosen = np.isin(graph.stream, wanted)
    return timeline.start[chosen], timeline.end[chosen]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("way", ["fused", "unfused", "flat", "per_parameter"])
def test_every_micro_batch_moves_every_gradient(way, dtype):
    scenario = stack(small(f"training.gradient_dtype={dtype}"), weight_gradients=way)
    graph = build_step(scenario).graph
    moved = sum(
        graph.operations[graph.operation[task]].bytes
        for task in range(len(graph))
        if graph.operations[graph.operation[task]].name == "grad.move"
    )
    owned = [rank_parameters(scenario.model, stage, pad_vocabulary=True) for stage in scenario.plan.stages]
    held = sum(part.dense + part.expert for part in owned)
    expected = GRADIENT_TRAFFIC[way][dtype == "fp32"] * held * micro_batches(scenario)
    assert moved == pytest.approx(expected, rel=1e-9)


def test_gradients_are_moved_before_they_are_reduced_or_sent_on():
    timeline = simulate(build_step(stack(small(), weight_gradients="unfused")).graph)
    last = micro_batches(small()) - 1
    moves = {(layer, batch): end for _, end, layer, batch in tasks(timeline, "grad.move", rank=1)}
    reductions = tasks(timeline, "grad.dense", rank=1)
    assert reductions
    for start, _, layer, _ in reductions:
        assert start >= moves[layer, last]
    first = min(layer for layer, _ in moves)
    for start, _, _, batch in tasks(timeline, "pipeline.send_gradient", rank=1):
        assert start >= moves[first, batch]


def test_gathered_parameters_are_copied_before_their_layer_computes():
    timeline = simulate(build_step(stack(small(*SHARDED), weight_gradients="per_parameter")).graph)
    copies, gathers = tasks(timeline, "param.copy"), tasks(timeline, "param.dense")
    assert len(copies) == len(gathers)
    for (start, end, layer, batch), (_, gathered, *rest) in zip(sorted(copies), sorted(gathers), strict=True):
        assert rest == [layer, batch]
        assert start >= gathered
        norms = [task for task in tasks(timeline, "attention.norm") if list(task[2:]) == rest]
        assert any(begin >= end for begin, *_ in norms)


def test_unfused_adam_moves_what_the_stack_says():
    scenario, weights = small(), Weights(1e6, 0.0)
    (fused,) = optimizer_step(weights, scenario.plan, scenario.training, 1, 1)
    number = scenario.training.software.elementwise_traffic.model_copy(update={"value": 88.0})
    training = stack(scenario, adam_traffic=number).training
    (unfused,) = optimizer_step(weights, scenario.plan, training, 1, 1)
    assert unfused.work.bytes - fused.work.bytes == 58e6
    plain = training.model_copy(update={"optimizer": "sgd"})
    (simple,) = optimizer_step(weights, scenario.plan, plain, 1, 1)
    assert simple.work.bytes < fused.work.bytes


def test_blocking_launches_leave_the_device_idle():
    plain, blocking = (
        simulate(build_step(stack(small("plan.pipeline_parallel=1"), blocking_launches=on)).graph)
        for on in (False, True)
    )
    starts, ends = stream(blocking, "host")
    begun, done = stream(blocking, "compute")
    overlaps = [np.any((begun < end) & (done > start) & (end > start)) for start, end in zip(starts, ends, strict=True)]
    passes = 2 * micro_batches(small("plan.pipeline_parallel=1"))
    assert 0 <= sum(overlaps) <= passes  # only the first launch of each pass runs ahead
    work = (done - begun).sum() + (ends - starts).sum()
    assert blocking.end.max() > plain.end.max()
    assert blocking.end.max() > 0.95 * work


def test_blocking_transfers_occupy_both_stages():
    graphs = [build_step(stack(small(), blocking_transfers=on)).graph for on in (False, True)]
    plain, blocking = (simulate(graph) for graph in graphs)
    for rank, name in ((0, "pipeline.send"), (1, "pipeline.send_gradient")):
        sends, receives = tasks(blocking, name, rank), tasks(blocking, "pipeline.receive", 1 - rank)
        assert len(sends) == len(receives) == micro_batches(small())
        begun, _ = stream(blocking, "compute", rank)
        for start, end, *_ in sends:
            assert not np.any((begun > start) & (begun < end))
        arrived = {batch: start for start, _, _, batch in receives}
        assert all(arrived[batch] >= end for _, end, _, batch in sends)
    assert blocking.end.max() > plain.end.max()


def test_collectives_of_sharded_parameters_slow_what_computes_beside_them():
    alone, beside = (build_step(small(*SHARDED), contention=on).graph for on in (False, True))
    compute = np.array([stream.name == "compute" for stream in alone.streams])[alone.stream]
    assert np.all(beside.duration[compute] >= alone.duration[compute])
    assert beside.duration[compute].sum() > 1.001 * alone.duration[compute].sum()
    assert np.all(beside.duration[compute] <= alone.duration[compute] / (1 - 16 / 132) * (1 + 1e-12))


def test_an_h100_at_500_w_keeps_the_clock_that_its_power_allows():
    full, limited = (catalog.accelerator(part).efficiency for part in ("h100-sxm5-80gb", "h100-sxm5-96gb"))
    slower = ((500 - 100) / (700 - 100)) ** 0.4  # 100 W flow without any clock
    rates = {fit.dtype: fit.sustained.value for fit in full.gemm}
    for fit in limited.gemm:
        if rates[fit.dtype] < 1:
            assert fit.sustained.value == pytest.approx(rates[fit.dtype] * slower, rel=0.005)
