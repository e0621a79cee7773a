"""How long a pass keeps a stage busy when passes follow each other: what is left of a pass without a simulation."""

from collections.abc import Callable

from simmoe.cost.operators import Operator
from simmoe.graph.passes import Pass

_REPEATS = 3  # the first passes fill the streams, the last one shows the pace


def pass_seconds(passed: Pass, seconds: Callable[[Operator], float]) -> float:
    """The pace of a pass that follows passes like itself.

    Parameters
    ----------
    passed : Pass
        Of a layer, or of anything else that a stage repeats.
    seconds : callable
        The stage's cost of an operator [s].

    Returns
    -------
    float
        From the end of a pass to the end of the next one [s]; 0 for a pass without steps.

    Notes
    -----
    Every stream takes its steps in order. A step of the device begins when what it waits for has ended, the first one
    of a pass when the pass before has; the host runs ahead. This is what the engine does with one rank alone; between
    ranks there is nothing to wait for in a pass of balanced devices.

    Examples
    --------
    Kernels of 3 and 4 s; the host launches the first in 1 s and then both in 5 s: the device sets the pace.

    >>> from simmoe.cost.operators import HostLaunch, MemoryBound
    >>> from simmoe.graph.passes import Step
    >>> kernel = Operator("norm", "memory", MemoryBound("norm", 1.0))
    >>> launch = Operator("host.launch", "host", HostLaunch(1.0), "host")
    >>> steps = [(launch, ()), (kernel, (0,)), (launch, ()), (kernel, (1, 2))]
    >>> passed = Pass(tuple(Step(operator, "forward", 0, after) for operator, after in steps), (3,), {}, {})
    >>> pass_seconds(passed, lambda operator: 3.0 if operator.stream == "compute" else 1.0)
    6.0
    >>> pass_seconds(passed, lambda operator: 3.0 if operator.stream == "compute" else 5.0)
    10.0
    """
    streams = list(dict.fromkeys(step.operator.stream for step in passed.steps))
    number = {stream: place for place, stream in enumerate(streams)}
    steps = [(number[step.operator.stream], step.after, seconds(step.operator)) for step in passed.steps]
    host, free, ends = number.get("host", -1), [0.0] * len(streams), [0.0] * len(steps)
    tail, before = 0.0, 0.0
    for _ in range(_REPEATS):
        for place, (stream, after, taken) in enumerate(steps):
            end = free[stream]
            if not after and stream != host and end < tail:
                end = tail
            for step in after:
                end = max(end, ends[step])
            ends[place] = free[stream] = end + taken
        before, tail = tail, max([tail, *(ends[step] for step in passed.tail)])
    return tail - before
