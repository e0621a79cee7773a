"""HeterMoE's own example, its figure 6: three layers on one attention and one expert device, forward alone."""

from simmoe.engine.fast import simulate_fast
from simmoe.graph.schedules import Action, Kind
from simmoe.graph.zebra_order import Block, Part, block_graph, zebra_order
from simmoe.planners.assignment import gather_and_squeeze
from simmoe.planners.assignment_problem import AssignmentProblem

MICRO_BATCHES = 3
# Experts take a third longer than attention. What an expert takes on an attention device is not printed: 0.8 of its
# time on an expert device, as an A40 beside a V100 (figure 2).
PROBLEM = AssignmentProblem(
    experts=6,
    layers=3,
    attention_devices=1,
    expert_devices=1,
    attention_s=3.0,
    expert_s=4.0,
    expert_on_attention_s=3.2,
)


def assignment() -> tuple[int, ...]:
    """Experts moved in each layer by HeterMoE's algorithm.

    Examples
    --------
    >>> assignment()
    (0, 1, 1)
    """
    return gather_and_squeeze(PROBLEM).moved


def makespan(moved: tuple[int, ...]) -> float:
    """Time from the first to the last task of the forward pass [s]; exchanges take no time.

    Parameters
    ----------
    moved : tuple of int
        Experts that the expert device gives up in each layer.

    Examples
    --------
    The first attention block, then experts without a pause: 3 + 3 x 3 x 4; with a sixth moved in two layers
    3 + 12 + 2 x 10.

    >>> round(makespan((0, 0, 0)), 9), round(makespan((0, 1, 1)), 9)
    (39.0, 35.0)
    """
    order = zebra_order([count > 0 for count in moved], MICRO_BATCHES, [Action(Kind.FORWARD, 0)], head=False)

    def seconds(block: Block) -> float:
        if block.part is Part.ATTENTION:
            return PROBLEM.attention_s if block.place < PROBLEM.layers else 0.0
        share = moved[block.place] / PROBLEM.experts
        times = {Part.EXPERTS: PROBLEM.expert_s * (1 - share), Part.MOVED: PROBLEM.expert_on_attention_s * share}
        return times.get(block.part, 0.0)

    return simulate_fast(block_graph(order, seconds)).makespan


def working(moved: tuple[int, ...]) -> float:
    """Time that the attention device works [s].

    Examples
    --------
    3 x 3 x 3, and 3.2/6 for each micro-batch of two layers.

    >>> round(working((0, 1, 1)), 9)
    30.2
    """
    each = PROBLEM.expert_on_attention_s * sum(moved) / PROBLEM.experts
    return MICRO_BATCHES * (PROBLEM.layers * PROBLEM.attention_s + each)


def idle(moved: tuple[int, ...]) -> float:
    """Time that the attention device does not [s].

    Examples
    --------
    >>> round(idle((0, 0, 0)), 9), round(idle((0, 1, 1)), 9)
    (12.0, 4.8)
    """
    return makespan(moved) - working(moved)


def attention_share() -> float:
    """Attention's work over the time from the experts' first start to their last end, no experts moved [1].

    Examples
    --------
    27 of 36

    >>> attention_share()
    0.75
    """
    nothing = (0,) * PROBLEM.layers
    return working(nothing) / (makespan(nothing) - PROBLEM.attention_s)
