"""How long a zebra group takes for given durations: a small max-plus recursion that judges assignments.

It is written apart from `simmoe.graph.zebra_order`, with which the tests compare it.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.planners.assignment_problem import AssignmentProblem, check_moved

_QUEUE = {"moved": "attention", "head": "attention"}  # of all other parts: the part itself


class Step(NamedTuple):
    """What surrounds the modules of an `AssignmentProblem` in a step.

    Attributes
    ----------
    micro_batches : int
        R, that pass each layer one after another.
    dispatch_s, combine_s : float
        Exchange of one micro-batch from attention to expert devices and back [s]; backward, the gradients of either go
        the other way in the same time. What moves does not change it: at most f/M of a dispatch would be saved.
    head_forward_s, head_backward_s : float
        Output head and loss of one micro-batch [s].
    backward : float
        Seconds of the experts' backward pass over their forward pass [1]: 3 with, 2 without recomputation; 0 = there is
        no backward pass.
    attention_backward, moved_backward : float
        The same of attention and of moved experts; -1 = as the experts'. Times of an `AssignmentProblem` are always
        those of both passes over 1 + `backward`; these two only say how both passes share them.
    """

    micro_batches: int
    dispatch_s: float = 0.0
    combine_s: float = 0.0
    head_forward_s: float = 0.0
    head_backward_s: float = 0.0
    backward: float = 3.0
    attention_backward: float = -1.0
    moved_backward: float = -1.0

    def passes(self, ratio: float = -1.0) -> tuple[float, float]:
        """A forward and a backward pass over a module's time in an `AssignmentProblem` [1].

        Parameters
        ----------
        ratio : float
            Backward over forward of this module [1]; negative = as the experts'.

        Examples
        --------
        Of 4 s for both passes, a problem has 1 s; a ratio of 4 makes 0.8 s and 3.2 s of them.

        >>> Step(1, backward=3.0).passes(), Step(1, backward=3.0).passes(4.0)
        ((1.0, 3.0), (0.8, 3.2))
        """
        own = self.backward if ratio < 0 or not self.backward else ratio
        forward = (1.0 + self.backward) / (1.0 + own)
        return forward, own * forward


class Block(NamedTuple):
    """Work of one micro-batch that nothing interrupts, its seconds linear in the experts that move.

    Attributes
    ----------
    part : str
        attention, dispatch, experts, moved, combine or head; dispatch goes to the expert devices, combine comes back.
    backward : bool
    layer : int
        MoE layer from 0 on; of the head, the number of layers.
    micro_batch : int
    after : tuple of int
        Positions of the blocks it waits for, among them the one before it on its queue.
    base_s, expert_s : float
        Seconds if nothing moves, and what each expert adds that each expert device gives up in this layer [s].
    """

    part: str
    backward: bool
    layer: int
    micro_batch: int
    after: tuple[int, ...]
    base_s: float
    expert_s: float

    @property
    def queue(self) -> str:
        """What does one block after another: attention devices, expert devices, or transfers in one direction."""
        return _QUEUE.get(self.part, self.part)


class Interval(NamedTuple):
    """When a block runs [s]."""

    block: Block
    start_s: float
    end_s: float


def zebra_blocks(problem: AssignmentProblem, step: Step, moving: Sequence[bool]) -> tuple[Block, ...]:
    """The blocks of a step, each behind all that it waits for.

    Parameters
    ----------
    problem : AssignmentProblem
    step : Step
    moving : sequence of bool
        Of each layer, whether some of its experts run on attention devices.

    Returns
    -------
    tuple of Block
        Of each queue in its order of work.

    Notes
    -----
    Forward, layer by layer and micro-batch by micro-batch: attention, dispatch, experts, combine; then the head forward
    and backward of each micro-batch in turn; then the layers backward. Moved experts run after the attention of all
    micro-batches of their layer (backward: after the gradients of all have left the layer above), and a combine waits
    for both sides. A layer that moves nothing has no moved blocks: even without duration they would hold each combine
    back until the last attention of the layer has ended.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, theorem 1 and section 4.2.

    Examples
    --------
    >>> blocks = zebra_blocks(AssignmentProblem(6, 1, 1, 1, 3.0, 4.0, 3.2), Step(2, backward=0.0), [True])
    >>> [f"{block.part}{block.micro_batch}" for block in blocks if block.queue == "attention"]
    ['attention0', 'attention1', 'moved0', 'moved1', 'head0', 'head1']
    """
    plan = _Plan(problem, step)
    arrived: Sequence[int] = ()
    for layer in range(problem.layers):
        left = plan.attention(layer, arrived, backward=False)
        arrived = plan.experts(layer, left, moving=moving[layer], backward=False)
    left = plan.head(arrived)
    if step.backward:
        for layer in reversed(range(problem.layers)):
            arrived = plan.experts(layer, left, moving=moving[layer], backward=True)
            left = plan.attention(layer, arrived, backward=True)
    return tuple(plan.blocks)


class _Plan:
    """Blocks as they are added; every method returns the positions of what the next one waits for."""

    def __init__(self, problem: AssignmentProblem, step: Step) -> None:
        self.blocks: list[Block] = []
        self._problem, self._step = problem, step
        self._last: dict[str, int] = {}

    def attention(self, layer: int, arrived: Sequence[int], *, backward: bool) -> list[int]:
        """Attention and gate of all micro-batches."""
        seconds = self._problem.attention_s * self._step.passes(self._step.attention_backward)[backward]
        return self._all(("attention", backward, layer), [arrived], (seconds, 0.0))

    def experts(self, layer: int, left: Sequence[int], *, moving: bool, backward: bool) -> list[int]:
        """Dispatch, experts of both sides and combine of all micro-batches."""
        problem, step = self._problem, self._step
        share = problem.expert_devices / problem.experts
        # Experts on an attention device for each one that an expert device gives up.
        acquired = problem.expert_devices / problem.attention_devices
        there, back = (step.combine_s, step.dispatch_s) if backward else (step.dispatch_s, step.combine_s)
        sent = self._all(("dispatch", backward, layer), [left], (there, 0.0))
        seconds = problem.expert_s * step.passes()[backward]
        done = [self._all(("experts", backward, layer), [sent], (seconds, -seconds * share))]
        if moving:
            seconds = problem.expert_on_attention_s * step.passes(step.moved_backward)[backward] * acquired * share
            done.append(self._all(("moved", backward, layer), [sent], (0.0, seconds)))
        return self._all(("combine", backward, layer), done, (back, 0.0))

    def head(self, arrived: Sequence[int]) -> list[int]:
        """The head of all micro-batches, each forward and at once backward."""
        step, left = self._step, []
        for micro_batch, before in enumerate(arrived):
            forward = self._add(
                ("head", False, self._problem.layers), micro_batch, [before], (step.head_forward_s, 0.0)
            )
            left.append(forward)
            if step.backward:
                seconds = (step.head_backward_s, 0.0)
                left[-1] = self._add(("head", True, self._problem.layers), micro_batch, [forward], seconds)
        return left

    def _all(
        self, what: tuple[str, bool, int], causes: Sequence[Sequence[int]], seconds: tuple[float, float]
    ) -> list[int]:
        """A block for each micro-batch, which waits for its own of each cause."""
        batches = range(self._step.micro_batches)
        return [self._add(what, r, [cause[r] for cause in causes if cause], seconds) for r in batches]

    def _add(
        self, what: tuple[str, bool, int], micro_batch: int, causes: Sequence[int], seconds: tuple[float, float]
    ) -> int:
        """One block, also behind the last of its queue."""
        block = Block(*what, micro_batch, (), *seconds)
        before = self._last.get(block.queue)
        after = tuple(causes) if before is None or before in causes else (*causes, before)
        self._last[block.queue] = len(self.blocks)
        self.blocks.append(block._replace(after=after))
        return self._last[block.queue]


def replay(blocks: Sequence[Block], moved: Sequence[int]) -> tuple[Interval, ...]:
    """When each block runs: it starts when the last that it waits for has ended.

    Parameters
    ----------
    blocks : sequence of Block
        As `zebra_blocks` gives them.
    moved : sequence of int
        Experts that each expert device gives up in each layer.

    Returns
    -------
    tuple of Interval

    Examples
    --------
    Attention of 3 s twice, experts of 4 s behind each: the second starts when the first has ended, at 7 s.

    >>> problem = AssignmentProblem(6, 1, 1, 1, 3.0, 4.0, 3.2)
    >>> ran = replay(zebra_blocks(problem, Step(2, backward=0.0), [False]), [0])
    >>> [(each.start_s, each.end_s) for each in ran if each.block.part == "experts"]
    [(3.0, 7.0), (7.0, 11.0)]
    """
    ends: list[float] = []
    ran = []
    for block in blocks:
        start = max((ends[cause] for cause in block.after), default=0.0)
        count = moved[block.layer] if block.expert_s else 0
        ends.append(start + max(block.base_s + block.expert_s * count, 0.0))
        ran.append(Interval(block, start, ends[-1]))
    return tuple(ran)


def zebra_seconds(problem: AssignmentProblem, step: Step, moved: tuple[int, ...]) -> float:
    """Seconds of a step of a zebra group with some experts moved.

    Parameters
    ----------
    problem : AssignmentProblem
    step : Step
    moved : tuple of int
        Experts that each expert device gives up in each layer.

    Returns
    -------
    float
        Until the last block has ended [s]; no gradient reduction, no optimizer.

    Raises
    ------
    SpecError
        If `moved` has not one number from 0 to n/N for each layer, or the step has no micro-batch or negative times.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 4.1.

    Examples
    --------
    Figure 6 of the paper, 3 layers of 3 micro-batches: the experts start after 3 s and work 9 x 4 s; with one expert of
    six moved in two layers, 3 x 4 s + 6 x 3.33 s.

    >>> problem = AssignmentProblem(6, 3, 1, 1, 3.0, 4.0, 3.2)
    >>> forward = Step(3, backward=0.0)
    >>> [round(zebra_seconds(problem, forward, moved), 6) for moved in [(0, 0, 0), (0, 1, 1)]]
    [39.0, 35.0]
    """
    check_moved(problem, moved)
    check_step(step)
    ran = replay(zebra_blocks(problem, step, [count > 0 for count in moved]), moved)
    return max(each.end_s for each in ran)


def check_step(step: Step) -> None:
    """Refuse a step without micro-batches or with negative times.

    Raises
    ------
    SpecError
    """
    ratios = (step.attention_backward, step.moved_backward)
    if step.micro_batches < 1 or not all(0.0 <= value < inf for value in step[1:6]) or max(ratios) == inf:
        raise SpecError([f"{step}: give at least 1 micro-batch and finite times that are not negative"])
