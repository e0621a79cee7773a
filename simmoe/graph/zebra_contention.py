"""What zebra's exchanges cost the computation that hides them: the multiprocessors that NCCL holds meanwhile."""

from dataclasses import replace

from simmoe.cost.model import StageCost
from simmoe.graph.passes import Pass
from simmoe.graph.template import STREAMS, Template

_COMPUTE = STREAMS.index("compute")


def slowed(compute: float, exchange: float, share: float) -> float:
    """Seconds of computation that starts together with an exchange which holds a share of the multiprocessors.

    Parameters
    ----------
    compute, exchange : float
        What each takes alone [s].
    share : float
        In [0, 1).

    Returns
    -------
    float
        min(T / (1 - h), T + h X) [s]: at the rate 1 - h until either ends.

    Examples
    --------
    A tenth of the multiprocessors is gone for 5 of 10 s of work, then for longer than the work lasts:

    >>> slowed(10.0, 5.0, 0.1), round(slowed(9.0, 50.0, 0.1), 9)
    (10.5, 10.0)
    """
    return min(compute / (1.0 - share), compute + share * exchange)


def beside_exchanges(template: Template, exchange: float, share: float) -> Template:
    """A block's template with the times of its kernels while exchanges of other micro-batches are under way.

    Parameters
    ----------
    template : Template
    exchange : float
        Duration of the exchanges that the block hides [s].
    share : float
        Of the multiprocessors that they hold [1].

    Returns
    -------
    Template

    Notes
    -----
    In the steady state every exchange of a device is hidden beneath its own blocks: a dispatch and a combine for each
    layer and micro-batch. An exchange that is exposed for lack of work is charged all the same, to a device that waits
    anyway.
    """
    kernels = template.stream == _COMPUTE
    alone = float(template.duration[kernels].sum())
    if not alone or not exchange or not share:
        return template
    duration = template.duration.copy()
    duration[kernels] *= slowed(alone, exchange, share) / alone
    return replace(template, duration=duration)


def kernel_seconds(passed: Pass, cost: StageCost) -> float:
    """Time that the steps of a pass keep a stream of the device busy, its host left out [s]."""
    return sum(cost.seconds(step.operator) for step in passed.steps if step.operator.stream != "host")
