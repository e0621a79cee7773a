"""What the ends of a step take in a zebra stage, layer by layer: gathers, reductions, the optimizer."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from simmoe.planners.zebra_times import Sides, StageTimes


class LayerEnds(NamedTuple):
    """Seconds of a layer once a step, on either side.

    Attributes
    ----------
    gather, reduce : Sides
        Parameters gathered and gradients reduced beneath passes [s].
    serial : Sides
        The optimizer, and what communication nothing hides [s].
    """

    gather: Sides
    reduce: Sides
    serial: Sides

    def seen(self, forward_s: float, backward_s: float) -> tuple[float, float]:
        """What a layer adds to a step, and what any stage adds once.

        Parameters
        ----------
        forward_s, backward_s : float
            A layer of a pass, beneath which communication hides [s].

        Returns
        -------
        float, float
            Of the slower side. The first layer's gather and the last layer's reduction hide nowhere [s].

        Examples
        --------
        Reductions of 4 s beneath backward passes of 3 s:

        >>> LayerEnds(Sides(0.0, 0.0), Sides(4.0, 1.0), Sides(0.5, 2.0)).seen(1.0, 3.0)
        (2.0, 3.0)
        """
        each, once = [], []
        for gather, reduce, serial in zip(*self, strict=True):
            late, early = max(0.0, reduce - backward_s), max(0.0, gather - forward_s)
            each.append(serial + late + early)
            once.append(gather - early + reduce - late)
        return max(each), max(once)


def layer_ends(times: StageTimes, moved: Sequence[int]) -> LayerEnds:
    """The ends of a step of a stage's layers, each of which gives up the same number of experts.

    Parameters
    ----------
    times : StageTimes
        Of a stage of at least two layers.
    moved : sequence of int
        As in `StageTimes.frame`.

    Returns
    -------
    LayerEnds

    Notes
    -----
    `StageTimes.frame` hides all but one layer's communication beneath an endless pass, and nothing beneath one of no
    length: the difference is the communication of the other layers.
    """
    layers = times.layers
    (bare_before, bare_after), (hidden_before, hidden_after) = (
        times.frame(pass_s, moved) for pass_s in (0.0, math.inf)
    )
    hideable = layers / (layers - 1)
    gather = [hideable * (bare - hidden) for bare, hidden in zip(bare_before, hidden_before, strict=True)]
    reduce = [hideable * (bare - hidden) for bare, hidden in zip(bare_after, hidden_after, strict=True)]
    rest = [
        before + after - hidden_one - hidden_two
        for before, after, hidden_one, hidden_two in zip(bare_before, bare_after, gather, reduce, strict=True)
    ]
    return LayerEnds(*(Sides(*(part / layers for part in parts)) for parts in (gather, reduce, rest)))
