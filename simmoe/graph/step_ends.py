"""What frames the passes of a step: parameter gathers before, gradient reduction and optimizer after."""

from collections.abc import Iterator
from typing import NamedTuple

from simmoe.cost.gradients import Weights, gather_parameters, optimizer_step, reduce_gradients
from simmoe.cost.groups import GroupShape
from simmoe.cost.operators import Collective, Operator
from simmoe.cost.parameters import rank_parameters
from simmoe.graph.passes import Pass, Step
from simmoe.specs.model import Model
from simmoe.specs.plan import Chunk, Plan, Stage
from simmoe.specs.scenario import Scenario


class Bucket(NamedTuple):
    """Weights that are gathered and whose gradients are reduced together: one layer with what stands beside it.

    Attributes
    ----------
    chunk, layer : int
        Virtual stage and model layer; layer -1 stands for a chunk without layers.
    weights : Weights
    """

    chunk: int
    layer: int
    weights: Weights


class StepEnds(NamedTuple):
    """Both ends of a step as passes, with the bucket of each of their communication steps.

    Attributes
    ----------
    before, after : Pass
    gathered, reduced : tuple of (step, Bucket)
        Steps of `before` whose parameters the bucket's first forward pass needs; steps of `after` that need the
        bucket's last gradients.
    """

    before: Pass
    after: Pass
    gathered: tuple[tuple[int, Bucket], ...]
    reduced: tuple[tuple[int, Bucket], ...]


def buckets(model: Model, stage: Stage) -> list[Bucket]:
    """The weights of a stage layer by layer, in model order; embedding and head join the nearest layer."""
    found = []
    for number, chunk in enumerate(stage.chunks):
        for layer, part in _layer_parts(chunk, model):
            parameters = rank_parameters(model, stage.model_copy(update={"chunks": (part,)}), pad_vocabulary=True)
            found.append(Bucket(number, layer, Weights(parameters.dense, parameters.expert)))
    return found


def _layer_parts(chunk: Chunk, model: Model) -> Iterator[tuple[int, Chunk]]:
    """A chunk cut into chunks of one layer each."""
    count = chunk.layers + chunk.mtp_layers
    for position in range(max(count, 1)):
        first, last = position == 0, position >= count - 1
        plain = position < chunk.layers
        yield (
            (chunk.first_layer + position if plain else model.num_layers + position - chunk.layers) if count else -1,
            Chunk(
                first_layer=chunk.first_layer + position if plain else 0,
                layers=int(plain),
                mtp_layers=int(count > 0 and not plain),
                embedding=chunk.embedding and first,
                head=chunk.head and last,
            ),
        )


def step_ends(
    scenario: Scenario, stage: Stage, shapes: dict[str, GroupShape], parts: list[Bucket] | None = None
) -> StepEnds:
    """Parameter gathers, gradient reductions and the optimizer of one rank.

    Parameters
    ----------
    scenario : Scenario
    stage : Stage
    shapes : dict
        Group shapes of the stage; a group of one rank communicates nothing.
    parts : list of Bucket, optional
        The weights of the rank, where they are not those of `buckets`.

    Returns
    -------
    StepEnds
    """
    plan, training = scenario.plan, scenario.training
    parts = buckets(scenario.model, stage) if parts is None else parts
    total = Weights(sum(part.weights.dense for part in parts), sum(part.weights.expert for part in parts))
    before: list[Step] = []
    gathered = []
    layerwise = plan.layerwise  # gathered and scattered inside the passes, see `simmoe.graph.fsdp`
    for bucket in parts if plan.overlap_param_gather and not layerwise else ():
        for operator in between_ranks(gather_parameters(bucket.weights, plan), shapes):
            gathered.append((len(before), bucket))
            before.append(Step(operator, "optimizer", bucket.layer, ()))
    after: list[Step] = []
    reduced = []
    for bucket in reversed(parts) if not layerwise else ():
        for operator in between_ranks(reduce_gradients(bucket.weights, plan, training), shapes):
            reduced.append((len(after), bucket))
            after.append(Step(operator, "optimizer", bucket.layer, ()))
    for update in optimizer_step(total, plan, training, stage.shards, shapes["edp"].size):
        after.append(Step(update, "optimizer", -1, tuple(range(len(after)))))
    after += _late_gathers(plan, parts, shapes, len(after) - 1)
    return StepEnds(_as_pass(before), _as_pass(after), tuple(gathered), tuple(reduced))


def _late_gathers(plan: Plan, parts: list[Bucket], shapes: dict[str, GroupShape], update: int) -> list[Step]:
    """The gathers after the optimizer, where the next forward pass does not hide them."""
    if plan.overlap_param_gather or plan.layerwise:
        return []
    return [
        Step(operator, "optimizer", bucket.layer, (update,))
        for bucket in parts
        for operator in between_ranks(gather_parameters(bucket.weights, plan), shapes)
    ]


def between_ranks(operators: list[Operator], shapes: dict[str, GroupShape]) -> list[Operator]:
    """Only the collectives of groups with more than one rank."""
    return [o for o in operators if isinstance(o.work, Collective) and shapes[o.work.group].size > 1]


def _as_pass(steps: list[Step]) -> Pass:
    return Pass(tuple(steps), (), {}, {})
