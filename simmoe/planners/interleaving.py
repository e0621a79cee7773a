"""Virtual stages: a pipeline whose stages hold several pieces of the model, which shortens its fill and drain."""

from collections.abc import Iterator, Sequence

from simmoe.errors import SpecError
from simmoe.graph.actions import micro_batches
from simmoe.planners.proposal import Proposal, Rejected, plan_like, planned, propose
from simmoe.planners.stage_model import StageModel
from simmoe.planners.step_model import predict
from simmoe.specs.plan import Chunk, Plan, Schedule, Stage
from simmoe.specs.scenario import Scenario

_PIECES = (2, 4)


def interleaved(proposals: Sequence[Proposal], model: StageModel) -> list[Proposal | Rejected]:
    """Plans under the interleaved schedule, where the planner's model expects more of it.

    Parameters
    ----------
    proposals : sequence of Proposal
        Under 1F1B, one chunk a stage.
    model : StageModel

    Returns
    -------
    list of Proposal or Rejected
        Each stage keeps its devices and its number of layers, cut into 2 or 4 chunks.

    References
    ----------
    Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2; micro-batches must be a multiple of the stages (Megatron).
    """
    found: list[Proposal | Rejected] = []
    for one in proposals:
        for pieces in _PIECES:
            made = _interleaved(one, pieces)
            if made is None:
                continue
            plan, scenario = made
            expected = predict(scenario, model).seconds
            if expected < one.predicted_s:
                found.append(
                    propose(one.planner, f"{one.name}; {pieces} virtual stages", plan, scenario, expected, one.why)
                )
    return found


def _interleaved(one: Proposal, pieces: int) -> tuple[Plan, Scenario] | None:
    """A proposal with virtual stages; None where it does not allow them."""
    stages = one.plan.stages
    if len(stages) < 2 or min(stage.layers for stage in stages) < pieces:
        return None
    if micro_batches(one.scenario) % len(stages):
        return None
    plan = plan_like(one.scenario, schedule=Schedule.INTERLEAVED, stages=tuple(_cut(stages, pieces)))
    try:
        return plan, planned(one.scenario, plan)
    except SpecError:
        return None


def _cut(stages: Sequence[Stage], pieces: int) -> Iterator[Stage]:
    """Stages of as many layers each, in chunks; a first chunk of every stage, then a second one."""
    layers = [split_evenly(stage.layers, pieces) for stage in stages]
    first = 0
    chunks: list[list[Chunk]] = [[] for _ in stages]
    for piece in range(pieces):
        for place, stage in enumerate(stages):
            head = piece == pieces - 1 and place == len(stages) - 1
            chunks[place].append(
                Chunk(
                    position=piece * len(stages) + place,
                    first_layer=first,
                    layers=layers[place][piece],
                    embedding=piece == 0 and place == 0,
                    head=head,
                    mtp_layers=stage.chunks[-1].mtp_layers if head else 0,
                )
            )
            first += layers[place][piece]
    for stage, own in zip(stages, chunks, strict=True):
        yield stage.model_copy(update={"chunks": tuple(own)})


def split_evenly(layers: int, pieces: int) -> list[int]:
    """Layers of each piece, the larger ones first.

    Examples
    --------
    >>> split_evenly(7, 3)
    [3, 2, 2]
    """
    each, more = divmod(layers, pieces)
    return [each + (piece < more) for piece in range(pieces)]
