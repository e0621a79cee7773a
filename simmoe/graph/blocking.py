"""What waits where software does not overlap it: kernels for their launches, stages for their transfers."""

from simmoe.cost.operators import Operator
from simmoe.graph.passes import Pass, Step


def with_blocking_launches(passed: Pass) -> Pass:
    """Let the host launch nothing before the device has finished what it was given.

    Parameters
    ----------
    passed : Pass
        Its launches run ahead of the device.

    Returns
    -------
    Pass
        Each launch waits for the step of the device before it, so that launches add to the time of kernels.

    References
    ----------
    NVIDIA, "CUDA C++ Programming Guide", environment variable ``CUDA_LAUNCH_BLOCKING``.

    Examples
    --------
    >>> from simmoe.cost.operators import HostLaunch, MemoryBound
    >>> kernel = Operator("mlp.norm", "memory", MemoryBound("norm", 1.0))
    >>> launch = Operator("host.launch", "host", HostLaunch(1e-3), "host")
    >>> ahead = Pass(tuple(Step(o, "forward", 0, ()) for o in (kernel, launch, kernel)), (2,), {}, {})
    >>> [step.after for step in with_blocking_launches(ahead).steps]
    [(), (0,), ()]
    """
    steps: list[Step] = []
    before: tuple[int, ...] = ()
    for number, step in enumerate(passed.steps):
        launch = step.operator.stream == "host"
        steps.append(step._replace(after=tuple(dict.fromkeys((*step.after, *before)))) if launch else step)
        before = before if launch else (number,)
    return passed._replace(steps=tuple(steps))


def with_receive(passed: Pass, transfer: Operator) -> Pass:
    """Let a pass begin with the transfer that brings its input, during which the stage computes nothing.

    Parameters
    ----------
    passed : Pass
    transfer : Operator
        What the other stage sends.

    Returns
    -------
    Pass
        With one more step on the compute stream; the sender's own comes before it, for send and receive meet.

    References
    ----------
    DeepSpeed, ``runtime/pipe/p2p.py``: ``send`` and ``recv`` refuse ``async_op``, and the stream waits for both.
    """
    first = Step(transfer._replace(name="pipeline.receive", stream="compute"), passed.steps[0].phase, -1, ())

    def later(waits: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number + 1 for number in waits)

    return Pass(
        steps=(first, *(step._replace(after=later(step.after)) for step in passed.steps)),
        tail=later(passed.tail),
        layer_entry={layer: later(steps) for layer, steps in passed.layer_entry.items()},
        layer_exit={layer: later(steps) for layer, steps in passed.layer_exit.items()},
        leftover=later(passed.leftover),
    )
