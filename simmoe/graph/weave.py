"""Two passes issued in alternation, so that the all-to-all of one runs beneath the computation of the other."""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.graph.template import STREAMS, Template


class Slot(NamedTuple):
    """Templates that are issued as one block.

    Attributes
    ----------
    templates : tuple of Template
        One, or two that are woven.
    places : tuple of array of int64
        For each template, where in the block each of its steps stands.
    part, step : array of int64
        For each place of the block, which template and which of its steps stands there.
    """

    templates: tuple[Template, ...]
    places: tuple[NDArray[np.int64], ...]
    part: NDArray[np.int64]
    step: NDArray[np.int64]


def plain(template: Template) -> Slot:
    """A block of one template."""
    steps = np.arange(len(template), dtype=np.int64)
    return Slot((template,), (steps,), np.zeros_like(steps), steps)


def weave(first: Template, second: Template) -> Slot:
    """A block of two templates that take turns at every expert exchange.

    Parameters
    ----------
    first, second : Template
        A forward pass and a backward pass of different micro-batches; neither waits for the other.

    Returns
    -------
    Slot
        Steps up to and including an exchange of the second, then of the first, and so on. A backward pass reaches its
        first exchange at once (the gradient of the combine), so that the forward attention already hides one. While an
        exchange is under way the compute stream works on the other pass. Without exchanges the first goes first.

        What computes beside an exchange does so on the multiprocessors that the exchange leaves: while one that holds
        a share q of them is under way, work of length c takes c / (1 - q).

    References
    ----------
    DeepSeek-V3, arXiv 2412.19437, figure 4 and section 3.2.2 (20 of 132 multiprocessors communicate); Megatron-Core,
    ``overlap_moe_expert_parallel_comm``.
    """
    segments = (_segments(first), _segments(second))
    order: list[tuple[int, int]] = []
    turns = (1, 0) if len(segments[1]) > 1 else (0, 1)
    for turn in range(max(len(own) for own in segments)):
        for number in turns:
            if turn < len(segments[number]):
                order += [(number, step) for step in segments[number][turn]]
    both = np.array(order, dtype=np.int64).reshape(-1, 2)
    part, step = both[:, 0], both[:, 1]
    places = tuple(np.argsort(np.where(part == number, step, len(order)), kind="stable") for number in (0, 1))
    lengths = (len(first), len(second))
    cut = tuple(found[:length].astype(np.int64) for found, length in zip(places, lengths, strict=True))
    return Slot(_beside_exchanges((first, second), order), cut, part, step)


def _beside_exchanges(templates: tuple[Template, Template], order: list[tuple[int, int]]) -> tuple[Template, ...]:
    """The templates with the times of what computes while an exchange of the other one is under way."""
    if not any(template.exchange_share for template in templates):
        return templates
    compute = STREAMS.index("compute")
    durations = tuple(template.duration.copy() for template in templates)
    owner, left, share = -1, 0.0, 0.0
    for number, step in order:
        template = templates[number]
        if template.groups[step] == "ep":
            owner, left, share = number, float(template.duration[step]), template.exchange_share
        elif number != owner and left > 0 and template.stream[step] == compute:
            slowed = min(durations[number][step] / (1.0 - share), durations[number][step] + left * share)
            durations[number][step] = slowed
            left -= slowed
    return tuple(replace(t, duration=duration) for t, duration in zip(templates, durations, strict=True))


def _segments(template: Template) -> list[range]:
    """The steps of a template, cut behind every expert exchange."""
    cuts = [number + 1 for number, group in enumerate(template.groups) if group == "ep"]
    edges = [0, *cuts, len(template)]
    return [range(start, end) for start, end in pairwise(edges) if end > start]
