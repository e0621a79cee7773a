"""How far HeterMoE's gather and squeeze is from the best assignment of experts, for every point of its figures."""

import json
from collections.abc import Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

from simmoe.explore.hetermoe_bench import AS_SHIPPED, Assumptions, Case, K
from simmoe.explore.hetermoe_rows import CLOUD, LENGTHS, ON_PREMISE, Pair
from simmoe.explore.hetermoe_systems import chosen
from simmoe.pipeline import run
from simmoe.planners.proposal import Proposal
from simmoe.planners.zebra_assign import Choice, moved_within
from simmoe.planners.zebra_bench import Batch, Bench, room
from simmoe.planners.zebra_recursion import zebra_seconds
from simmoe.planners.zebra_shapes import Limits, Shape
from simmoe.report.output import csv_table

PAIRS: tuple[Pair, ...] = (*ON_PREMISE, ("O1", "W2"), ("O2", "D1"), *CLOUD)
_SAME = 1e-6  # a gap below this is rounding, or the tolerance of the solver [1]
_DIGITS = 10
_Way = Literal["greedy", "optimal", "none"]
_WAYS: tuple[_Way, ...] = ("greedy", "optimal", "none")

CSV_COLUMNS = (
    "cluster", "model", "tokens", "micro_batches", "micro_batch_size", "passes", "greedy", "optimum",
    "greedy_predicted_s", "optimum_predicted_s", "gap_predicted", "nothing_simulated_s", "mirrored_simulated_s",
    "greedy_simulated_s", "optimum_simulated_s", "gap", "recursion_misled", "note",
)  # fmt: skip


class Judged(NamedTuple):
    """An assignment, and how long a step takes with it.

    Attributes
    ----------
    moved : tuple of int
        Experts that each expert device gives up, layer by layer.
    predicted_s : float
        By the recursion that the optimum is found with, which knows no optimizer and no gradients between ranks [s].
    simulated_s : float
        By `simmoe.pipeline.run` [s].
    """

    moved: tuple[int, ...]
    predicted_s: float
    simulated_s: float


class Point(NamedTuple):
    """Gather and squeeze beside the optimum, on the zebra plan that HeterMoE's planner chose.

    Attributes
    ----------
    case : Case
    batch : Batch
        Sequences of a micro-batch, and R.
    passes : int
        Of a step, each of R micro-batches.
    greedy, optimum, nothing, mirrored : Judged or None
        Gather and squeeze, the best assignment by the recursion, no experts moved, and what gather and squeeze moves
        with the layers in reverse order, each within the memory of the plan's cluster; None if that cannot be met.
    note : str
        Why there is no comparison.
    """

    case: Case
    batch: Batch
    passes: int
    greedy: Judged | None
    optimum: Judged | None
    nothing: Judged | None = None
    mirrored: Judged | None = None
    note: str = ""

    @property
    def compared(self) -> bool:
        """There are two assignments to compare."""
        return self.greedy is not None and self.optimum is not None

    @property
    def gap_predicted(self) -> float:
        """Step of gather and squeeze over that of the optimum - 1, by the recursion [1]."""
        return _gap(self.greedy, self.optimum, "predicted_s")

    @property
    def misled(self) -> bool:
        """Simulated, the optimum of the recursion is slower than gather and squeeze."""
        return _gap(self.greedy, self.optimum, "simulated_s") < -_SAME

    @property
    def gap(self) -> float:
        """The same simulated; where the recursion was misled, gather and squeeze is the better one: 0 [1]."""
        return max(_gap(self.greedy, self.optimum, "simulated_s"), 0.0)

    @property
    def gap_mirrored(self) -> float:
        """The same of what gather and squeeze moves in reverse order [1]."""
        return max(_gap(self.mirrored, self.optimum, "simulated_s"), 0.0)

    @property
    def _moved(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of gather and squeeze and of the optimum; nothing of what does not exist."""
        return self.greedy.moved if self.greedy else (0,), self.optimum.moved if self.optimum else (0,)

    @property
    def moves(self) -> bool:
        """One of the two moves experts."""
        return any(map(any, self._moved))

    @property
    def late(self) -> bool:
        """The optimum moves fewer experts of the last layer."""
        greedy, optimum = self._moved
        return optimum[-1] < greedy[-1]

    @property
    def more(self) -> bool:
        """The optimum moves more experts in all."""
        greedy, optimum = self._moved
        return sum(optimum) > sum(greedy)


def _gap(greedy: Judged | None, optimum: Judged | None, of: str) -> float:
    if greedy is None or optimum is None:
        return 0.0
    return float(getattr(greedy, of) / getattr(optimum, of)) - 1.0


def cases(pairs: Sequence[Pair] = PAIRS, lengths: Sequence[int] = LENGTHS) -> tuple[Case, ...]:
    """Every point of the figures: clusters, models and lengths, HeterMoE on each.

    Examples
    --------
    >>> len(cases()), str(cases()[0])
    (72, 'zebra W1@O1 4K')
    """
    return tuple(Case("zebra", cluster, model, length) for cluster, model in pairs for length in lengths)


def compared(case: Case, assumptions: Assumptions = AS_SHIPPED) -> Point:
    """Gather and squeeze and the optimum on the plan of a case, predicted and simulated.

    Parameters
    ----------
    case : Case
        Of system ``zebra``.
    assumptions : Assumptions

    Returns
    -------
    Point

    Raises
    ------
    SpecError
        If scipy is needed and not installed.

    Notes
    -----
    Shape, micro-batch and R are those of the plan with gather and squeeze that is the fastest, or with nothing moved
    where that is faster. The optimum is that of one pass, forward, head and backward
    (`simmoe.planners.zebra_recursion`); a step is so many passes.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 4.2, algorithm 1; figures 7 to 9 show the points.
    """
    plans = chosen(case, assumptions)
    if not plans.parts:
        return Point(case, Batch(0, 0), 0, None, None, note=plans.reason)
    question = _Asked(plans.parts[0])
    if not question.movable:
        return Point(case, question.batch, question.passes, None, None, note="no whole chunk of experts can move")
    greedy, optimum, nothing = (question.judged(question.moved(by)) for by in _WAYS)
    mirrored = question.judged(question.made(greedy.moved[::-1])) if greedy else None
    return Point(case, question.batch, question.passes, greedy, optimum, nothing, mirrored)


class _Asked:
    """What asymmetric expert assignment is asked about a proposal."""

    def __init__(self, proposal: Proposal) -> None:
        zebra, training = proposal.plan.zebra, proposal.scenario.training
        assert zebra is not None  # it is a plan of HeterMoE
        self._proposal = proposal
        self._shape = Shape(
            zebra.attention_group, zebra.expert_group, zebra.attention_devices, zebra.expert_devices, zebra.groups
        )
        self.batch = Batch(training.micro_batch_size, zebra.micro_batches)
        self.passes: int = training.global_batch_size // (
            training.micro_batch_size * self._shape.replicas * zebra.micro_batches
        )
        greedy = self._bench("greedy")
        self.movable = greedy.chunk(self._shape) > 0
        self._problem, self._step = greedy.question(self._shape, self.batch)

    def _bench(self, assignment: _Way) -> Bench:
        """Plans like the proposal, on its cluster."""
        limits = Limits(degree=self._proposal.plan.a2a_ffn_overlap_degree, assignment=assignment)
        return Bench(self._proposal.scenario, limits, self._proposal.plan.recompute)

    def moved(self, assignment: _Way) -> Choice | None:
        """What is moved, if that fits."""
        return moved_within(self._bench(assignment), self._shape, self.batch)

    def made(self, moved: tuple[int, ...]) -> Choice | None:
        """A given assignment, if it fits."""
        scenario = self._bench("none").made(self._shape, self.batch, moved)
        return Choice(moved, scenario) if room(scenario).enough else None

    def judged(self, choice: Choice | None) -> Judged | None:
        """How long a step takes with it."""
        if choice is None:
            return None
        moved = choice.moved or (0,) * self._problem.layers
        predicted = self.passes * zebra_seconds(self._problem, self._step, moved)
        return Judged(moved, predicted, run(choice.scenario).step_time_s)


class Summary(NamedTuple):
    """All points together.

    Attributes
    ----------
    points, compared, moving : int
        How many there are; how many have two assignments to compare; where one of these moves experts at all.
    median, median_predicted : float
        Of the gaps where experts move, simulated and by the recursion [1].
    median_mirrored, largest_mirrored : float
        Median and largest of the simulated gaps there, if gather and squeeze took the layers in reverse order [1].
    largest : Point or None
        The one with the largest gap when simulated.
    apart : int
        Where gather and squeeze, simulated, is slower than the optimum.
    late, more : int
        Of these, where the optimum moves fewer experts of the last layer, and where it moves more in all.
    misled : int
        Where the optimum of the recursion is slower than gather and squeeze when simulated.
    """

    points: int
    compared: int
    moving: int
    median: float
    median_predicted: float
    median_mirrored: float
    largest_mirrored: float
    largest: Point | None
    apart: int
    late: int
    more: int
    misled: int

    @property
    def sentence(self) -> str:
        """The same in words."""
        if self.largest is None or not self.moving:
            return "At no point experts move."
        return (
            f"Where experts move, at {self.moving} of {self.points} points, gather and squeeze is "
            f"{_percent(self.median)} slower than the optimum in the median, at most {_percent(self.largest.gap)} "
            f"({name(self.largest.case)}). At {self.late} of {self.apart} gaps the optimum moves fewer experts of the "
            "last layer: they run behind all attention of their layer, so that the head, at which attention devices "
            f"turn around, waits for them. At {self.more} it moves more experts in all: bubbles that are left over are "
            "worth no whole chunk. With the layers in reverse order, what gather and squeeze moves is "
            f"{_percent(self.median_mirrored)} slower than the optimum in the median, at most "
            f"{_percent(self.largest_mirrored)}. Points at which the optimum of the recursion is the slower one "
            f"simulated, which count as no gap: {self.misled}."
        )


def summary(points: Sequence[Point]) -> Summary:
    """What the points amount to."""
    found = [point for point in points if point.compared]
    moving = [point for point in found if point.moves]
    apart = [point for point in found if point.gap > _SAME]
    return Summary(
        points=len(points),
        compared=len(found),
        moving=len(moving),
        median=median([point.gap for point in moving] or [0.0]),
        median_predicted=median([point.gap_predicted for point in moving] or [0.0]),
        median_mirrored=median([point.gap_mirrored for point in moving] or [0.0]),
        largest_mirrored=max((point.gap_mirrored for point in moving), default=0.0),
        largest=max(found, key=lambda point: point.gap, default=None),
        apart=len(apart),
        late=sum(point.late for point in apart),
        more=sum(point.more for point in apart),
        misled=sum(point.misled for point in found),
    )


def beaten(points: Sequence[Point]) -> tuple[Point, ...]:
    """Where gather and squeeze is better than what is proven to be the optimum of the recursion: there must be none."""
    return tuple(point for point in points if point.gap_predicted < -_SAME)


def name(case: Case) -> str:
    """For example ``W1@O1 4K``."""
    return f"{case.model}@{case.cluster} {case.length / K:g}K"


def digits(moved: Sequence[int]) -> str:
    """Moved experts, layer by layer.

    Examples
    --------
    >>> digits((0, 1, 2)), digits((0, 12))
    ('012', '0 12')
    """
    return ("" if max(moved, default=0) < _DIGITS else " ").join(map(str, moved))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def entries(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The points as entries of a JSON object."""
    return [dict(zip(CSV_COLUMNS, _fields(point), strict=True)) for point in points]


def _fields(point: Point) -> tuple[Any, ...]:
    """The cells of `CSV_COLUMNS`; None where there is nothing to compare."""
    case, greedy, optimum = point.case, point.greedy, point.optimum
    nothing, mirrored = point.nothing, point.mirrored
    return (
        case.cluster, case.model, case.length, point.batch.together, point.batch.size, point.passes,
        list(greedy.moved) if greedy else None, list(optimum.moved) if optimum else None,
        _rounded(greedy.predicted_s if greedy else None), _rounded(optimum.predicted_s if optimum else None),
        _rounded(point.gap_predicted if point.compared else None), _rounded(nothing.simulated_s if nothing else None),
        _rounded(mirrored.simulated_s if mirrored else None),
        _rounded(greedy.simulated_s if greedy else None), _rounded(optimum.simulated_s if optimum else None),
        _rounded(point.gap if point.compared else None), point.misled, point.note,
    )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    """To six significant digits; a gap that is rounding is none."""
    if value is None:
        return None
    return 0.0 if abs(value) < _SAME else float(f"{value:.6g}")


def csv_text(points: Sequence[Point]) -> str:
    """The points as CSV, one line each after a line of column names; moved experts with blanks between layers."""
    return csv_table(CSV_COLUMNS, map(_fields, points))


def json_text(paper: str, points: Sequence[Point]) -> str:
    """The points and their summary as one JSON object."""
    total = summary(points)
    words = total._asdict() | {
        "median": _rounded(total.median),
        "median_predicted": _rounded(total.median_predicted),
        "median_mirrored": _rounded(total.median_mirrored),
        "largest_mirrored": _rounded(total.largest_mirrored),
        "largest": name(total.largest.case) if total.largest else None,
        "largest_gap": _rounded(total.largest.gap if total.largest else None),
        "sentence": total.sentence,
    }
    body = {"schema": 1, "paper": paper, "summary": words, "assignment": entries(points)}
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"
