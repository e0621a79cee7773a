"""Which layers stand on which pipeline stage: Megatron's layout string, and the even split.

A layout lists virtual stages in model order: entry ``i`` belongs to stage ``i % pp``, chunk ``i // pp``.
"""

import re
from typing import NamedTuple

from simmoe.errors import SpecError

_MAX_ITEMS = 100_000
_ITEM = re.compile(r"([EtmL|])(?:\*(\d{1,6}))?")
_PARENTHESIS = re.compile(r"\(([^()]*)\)(?:\*(\d{1,6}))?")


class VirtualStage(NamedTuple):
    """What one virtual stage holds.

    Attributes
    ----------
    layers, mtp_layers : int
        Transformer and multi-token-prediction layers.
    embedding, head : bool
        Input embedding; final norm, logits and loss.
    """

    layers: int
    mtp_layers: int = 0
    embedding: bool = False
    head: bool = False


def parse_layout(text: str) -> tuple[VirtualStage, ...]:
    """Read Megatron's ``--pipeline-model-parallel-layout``.

    E embedding, t transformer layer, m MTP layer, L loss, ``|`` stage boundary, ``x*n`` and ``(...)*n`` repeat, commas
    are ignored.

    Raises
    ------
    SpecError
        If a character is unknown, or E and L do not open and close the layout exactly once.

    Examples
    --------
    >>> [stage.layers for stage in parse_layout("Et*3|(tt|)*2tL")]
    [3, 2, 2, 1]
    """
    items = layout_items(text)
    if items.count("E") != 1 or items.count("L") != 1 or items[0] != "E" or items[-1] != "L":
        raise SpecError(
            [f"pipeline_layout: needs one E, first, and one L, last (got {text!r}), for example Et*3|(tt|)*6tL"]
        )
    return tuple(VirtualStage(part.count("t"), part.count("m"), "E" in part, "L" in part) for part in items.split("|"))


def layout_items(text: str) -> str:
    """A layout written out, whatever its order: only E, t, m, L and ``|``.

    Raises
    ------
    SpecError
        If a character is unknown.

    Examples
    --------
    >>> layout_items("Et*2|(tt|)*2tL")
    'Ett|tt|tt|tL'
    """
    flat = _PARENTHESIS.sub(lambda match: _repeat(match[1], match[2], text), re.sub(r"[\s,]", "", text))
    items = "".join(_repeat(match[1], match[2], text) for match in _ITEM.finditer(flat))
    leftover = _ITEM.sub("", flat)
    if leftover:
        raise SpecError(
            [f"pipeline_layout: {leftover[0]!r} is not part of a layout (got {text!r}), use E t m L | x*n (...)*n"]
        )
    return items


def _repeat(item: str, count: str | None, text: str) -> str:
    times = int(count) if count is not None else 1
    if times * len(item) > _MAX_ITEMS:
        raise SpecError([f"pipeline_layout: repeats too often (got {text!r}), keep it below {_MAX_ITEMS} items"])
    return item * times


def split_evenly(
    num_layers: int, stages: int, *, count_embedding: bool, count_loss: bool, mtp_layers: int
) -> tuple[VirtualStage, ...]:
    """Divide layers over virtual stages in equal parts, embedding and loss counted as a layer if asked.

    Raises
    ------
    SpecError
        If the layers do not divide.

    Examples
    --------
    >>> [stage.layers for stage in split_evenly(94, 8, count_embedding=True, count_loss=True, mtp_layers=0)]
    [11, 12, 12, 12, 12, 12, 12, 11]
    """
    slots = num_layers + count_embedding + count_loss
    if slots % stages or slots // stages < 1 + (stages == 1) * count_loss:
        counted = f" (with embedding and loss counted: {slots})" if slots != num_layers else ""
        raise SpecError(
            [
                f"plan: {num_layers} layers{counted} do not divide over {stages} virtual stages, "
                "set plan.stage_layers or plan.pipeline_layout"
            ]
        )
    layers = [slots // stages] * stages
    layers[0] -= count_embedding
    layers[-1] -= count_loss
    return with_ends(tuple(layers), mtp_layers)


def with_ends(layers: tuple[int, ...], mtp_layers: int) -> tuple[VirtualStage, ...]:
    """Put the embedding on the first virtual stage, MTP layers, head and loss on the last."""
    last = len(layers) - 1
    return tuple(
        VirtualStage(count, mtp_layers if index == last else 0, index == 0, index == last)
        for index, count in enumerate(layers)
    )
