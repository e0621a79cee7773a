"""Batch-level overlap: the expert exchange of a forward pass runs beneath the backward pass of another micro-batch."""

from collections.abc import Sequence
from itertools import takewhile

from simmoe.errors import InternalError
from simmoe.graph.schedules import Action, Kind


def overlapped(actions: Sequence[Action]) -> tuple[Action, ...]:
    """1F1B or interleaved 1F1B in the order of Megatron-Core's ``overlap_moe_expert_parallel_comm``.

    Parameters
    ----------
    actions : sequence of Action
        From `one_f_one_b` on a single stage, or from `interleaved` with any number of chunks, 1 included.

    Returns
    -------
    tuple of Action
        One more forward pass warms up, so that no pair of the steady state is of the same micro-batch; each pair then
        is joined.

    Raises
    ------
    InternalError
        If the schedule splits backward passes, or does not begin with a forward pass.

    Notes
    -----
    With f and b the times of a forward and a backward pass of a chunk, f&b that of a joined pair, and as many
    micro-batches as make whole groups of p, the step of p equal stages of v chunks is, without transfers, ::

        (v m + p - 1)(f + b) - (v m - (v - 1) p - 1)(f + b - f&b)

    the step of the same schedule without overlap, less what the pairs of the last stage hide. On a single stage that is
    f + (m - 1) f&b + b. Each stage holds one micro-batch more.

    On several stages, plain 1F1B is not the order to start from. It keeps a stage one pass ahead of the next, but a
    pair takes two, so that neighbours work in turn: 2 f&b a micro-batch, more than without overlap.
    Megatron-Core, too, asks for virtual stages there. `interleaved` with one chunk warms up enough.

    References
    ----------
    NVIDIA, Megatron-Core 0.14 and later, ``core/pipeline_parallel/combined_1f1b.py``, and ``get_pp_rank_microbatches``
    in ``schedules.py`` there.

    Examples
    --------
    >>> from simmoe.graph.schedules import one_f_one_b, written
    >>> written(overlapped(one_f_one_b(0, 1, 3)))
    'F0.0 F1.0+ B0.0 F2.0+ B1.0 B2.0'
    """
    forward = [action for action in actions if action.kind is Kind.FORWARD]
    backward = [action for action in actions if action.kind is Kind.BACKWARD]
    # Up to the first backward pass there is the warm-up, and the forward pass of the first pair.
    ahead = len(list(takewhile(lambda action: action.kind is Kind.FORWARD, actions)))
    if not ahead or len(forward) != len(backward) or len(forward) + len(backward) != len(actions):
        raise InternalError("schedule: only whole passes that start with a forward pass can be overlapped")
    paired: list[Action] = []
    for one, other in zip(forward[ahead:], backward[: len(forward) - ahead], strict=True):
        paired += [one._replace(with_next=True), other]
    return (*forward[:ahead], *paired, *backward[len(forward) - ahead :])
