"""Zero-bubble schedules: the weight gradient, which nothing on the other stages waits for, fills the idle time."""

from collections import deque
from collections.abc import Iterable, Sequence

from simmoe.errors import InternalError
from simmoe.graph.schedules import Action, Kind

_KINDS = {"F": Kind.FORWARD, "B": Kind.BACKWARD, "I": Kind.INPUT_GRADIENT, "W": Kind.WEIGHT_GRADIENT}


def numbered(words: Iterable[str], first: Sequence[int]) -> tuple[Action, ...]:
    """The passes that words stand for: each takes the next micro-batch of its chunk.

    Parameters
    ----------
    words : iterable of str
        Kind and chunk, ``F0``; ``F0+`` is joined with the next; ``W1`` is the weight gradient of the oldest input
        gradient of chunk 1 that still waits for it, ``W`` that of the oldest of any chunk.
    first : sequence of int
        The first micro-batch of each chunk.

    Returns
    -------
    tuple of Action

    Raises
    ------
    InternalError
        If there is no input gradient that waits for its weight gradient.

    Examples
    --------
    >>> [str(action) for action in numbered(["F0", "F1+", "I0", "W"], (0, 4))]
    ['F0.0', 'F4.1+', 'I0.0', 'W0.0']
    """
    forward, backward = list(first), list(first)
    waiting: deque[tuple[int, int]] = deque()
    actions = []
    for word in words:
        kind = _KINDS[word[0]]
        if kind is Kind.WEIGHT_GRADIENT:
            chunk, micro_batch = _oldest(waiting, word)
        else:
            chunk, counts = int(word[1]), forward if kind is Kind.FORWARD else backward
            micro_batch = counts[chunk]
            counts[chunk] += 1
        if kind is Kind.INPUT_GRADIENT:
            waiting.append((chunk, micro_batch))
        actions.append(Action(kind, micro_batch, chunk, word.endswith("+")))
    return tuple(actions)


def _oldest(waiting: deque[tuple[int, int]], word: str) -> tuple[int, int]:
    """Take the (chunk, micro-batch) that has waited longest for its weight gradient, of one chunk if it is named."""
    found = next((item for item in waiting if word == "W" or item[0] == int(word[1])), None)
    if found is None:
        raise InternalError(f"schedule: {word} finds no input gradient that waits for its weight gradient")
    waiting.remove(found)
    return found


def zb_h1(stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """1F1B with split backward passes, within the memory of 1F1B's first stage.

    Parameters
    ----------
    stage, stages : int
        Pipeline stage, of how many (p).
    micro_batches : int
        m, of any size.

    Returns
    -------
    tuple of Action
        min(p - 1 - s, m) forwards; then forward and input gradient in turn, and from input gradient s on the weight
        gradient of s micro-batches before, until none is left.

    Notes
    -----
    With F, I and W the times of a forward pass, an input and a weight gradient on equal stages, W no longer than F and
    I, and without communication, the step is ::

        (m + p - 1)(F + I) + max(m - p + 1, 1) W

    which from m = p on is the work of a stage and a bubble of (p - 1)(F + I - W): 3m + p - 1 passes where all three
    take the same time. Every stage holds up to min(p, m) micro-batches, as 1F1B's first stage does.

    References
    ----------
    Qi, Wan, Huang and Lin 2023, arXiv 2401.10241, section 2.1 and figure 3 top. Table 2 of the DeepSeek-V3 report
    (arXiv 2412.19437) calls it ZB1P: bubble (PP - 1)(F + B - 2W), B the whole backward pass.

    Examples
    --------
    >>> from simmoe.graph.schedules import written
    >>> written(zb_h1(1, 2, 3))
    'F0.0 I0.0 F1.0 I1.0 W0.0 F2.0 I2.0 W1.0 W2.0'
    """
    ahead = min(stages - 1 - stage, micro_batches)
    words = ["F0"] * ahead
    for number in range(micro_batches):
        words += ["F0"] * (number < micro_batches - ahead) + ["I0"] + ["W0"] * (number >= stage)
    return numbered(words + ["W0"] * min(stage, micro_batches), (0,))


def zb_v(stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """Two chunks a stage in the shape of a V, all passes split: no bubble while all three kinds take the same time.

    Parameters
    ----------
    stage, stages : int
        Pipeline stage, of how many (p); chunk 0 is virtual stage s, chunk 1 virtual stage 2p - 1 - s.
    micro_batches : int
        m. The order is made for at least 2p - 1; with fewer the passes of those that are missing are left out.

    Returns
    -------
    tuple of Action

    Notes
    -----
    For equal chunks with F = I = W = t, without communication, stage s works 6 m t without a pause from s t on, if m is
    at least 2p - 1. For any m the step is max(6m + p - 1, 4m + 4p - 2) t. A stage holds up to 2p micro-batches of a
    chunk, half of a stage each: as much as 1F1B's first stage.

    References
    ----------
    Qi, Wan, Huang and Lin 2023, arXiv 2401.10241, section 6; Qi, Wan, Amar and Lin 2024, arXiv 2405.15362. The order is
    that of ``ScheduleZBVZeroBubble`` in torch.distributed.pipelining.

    Examples
    --------
    >>> from simmoe.graph.schedules import written
    >>> written(zb_v(0, 1, 2))
    'F0.0 F0.1 I0.1 W0.1 F1.0 I0.0 W0.0 F1.1 I1.1 W1.1 I1.0 W1.0'
    """
    before, after = stage, stages - stage
    rounds = max(micro_batches, 2 * stages - 1)
    near, far = ["I0", "W0"], ["F1", "I1", "W1"]
    words = ["F0"] * (2 * after - 1) + ["F1", "F0"] * before + far * after
    words += ["F0", *near, *far] * (rounds - 2 * stages + 1 + stage) + [*near, *far] * (stages - 1 - stage)
    words += ["I0", "I1"] * before + near * after + ["W1"] * before + ["W0"] * before
    return tuple(action for action in numbered(words, (0, 0)) if action.micro_batch < micro_batches)
