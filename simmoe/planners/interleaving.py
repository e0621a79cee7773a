"""Virtual stages: a pipeline whose stages hold several pieces of the model, which shortens its fill and drain."""

from collections.abc import Iterator, Sequence

from simmoe.errors import SpecError
from simmoe.graph.actions import micro_batches
from simmoe.planners.pipeline_candidates import Candidate, simulated
from simmoe.planners.proposal import Proposal, Rejected, lacking_bytes, plan_like, planned
from simmoe.planners.stage_model import StageModel
from simmoe.planners.step_model import predict
from simmoe.planners.ways import recompute_ladder
from simmoe.specs.plan import Chunk, Plan, Recompute, Schedule, Stage
from simmoe.specs.scenario import Scenario

_PIECES = (2, 4)
_SIMULATED = 3


def interleaved(
    planner: str, found: Sequence[Candidate], best_s: float, model: StageModel
) -> list[Proposal | Rejected]:
    """The most promising plans under the interleaved schedule, where they may be faster than the best under 1F1B.

    Parameters
    ----------
    planner : str
        Who proposes them.
    found : sequence of Candidate
        Under 1F1B, one chunk a stage.
    best_s : float
        The best step under 1F1B [s].
    model : StageModel

    Returns
    -------
    list of Proposal or Rejected
        Each stage keeps its devices and its number of layers, cut into 2 or 4 chunks; where it lacks memory, for more
        micro-batches are in flight, it computes more again.

    References
    ----------
    Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2; micro-batches must be a multiple of the stages (Megatron).
    """
    cuts = [cut for one in found for pieces in _PIECES if (cut := _interleaved(one, pieces, model)) is not None]
    cuts.sort(key=lambda cut: cut.predicted_s)
    return [simulated(planner, cut) for cut in cuts[:_SIMULATED] if cut.predicted_s < best_s]


def _interleaved(one: Candidate, pieces: int, model: StageModel) -> Candidate | None:
    """A candidate with virtual stages; None where it does not allow them, or nothing fits."""
    stages = one.plan.stages
    if len(stages) < 2 or min(stage.layers for stage in stages) < pieces:
        return None
    if micro_batches(one.scenario) % len(stages):
        return None
    plan = plan_like(one.scenario, schedule=Schedule.INTERLEAVED, stages=tuple(_cut(stages, pieces)))
    try:
        made = _fitting(one.scenario, plan)
    except SpecError:
        return None
    if made is None:
        return None
    plan, scenario = made
    more = "" if _recomputed(plan.stages) == _recomputed(stages) else ", more recomputed"
    expected = predict(scenario, model).seconds
    return Candidate(expected, f"{one.name}; {pieces} virtual stages{more}", plan, scenario, one.prediction)


def _recomputed(stages: Sequence[Stage]) -> list[Recompute]:
    return [stage.recompute for stage in stages]


def _fitting(scenario: Scenario, plan: Plan) -> tuple[Plan, Scenario] | None:
    """The plan with as much recomputation as it needs to fit; None if all is not enough."""
    ladder = recompute_ladder(scenario)
    while True:
        made = planned(scenario, plan)
        lacks = lacking_bytes(made)
        if max(lacks) <= 0:
            return plan, made
        stages = [
            _next_rung(stage, ladder) if lack > 0 else stage for stage, lack in zip(plan.stages, lacks, strict=True)
        ]
        if any(stage is None for stage in stages):
            return None
        plan = plan.model_copy(update={"stages": tuple(stages)})


def _next_rung(stage: Stage, ladder: Sequence[Recompute]) -> Stage | None:
    """The stage with more recomputation."""
    place = ladder.index(stage.recompute) + 1 if stage.recompute in ladder else len(ladder)
    return stage.model_copy(update={"recompute": ladder[place]}) if place < len(ladder) else None


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
