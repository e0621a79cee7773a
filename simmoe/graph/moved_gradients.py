"""Weight gradients that do not end where they are reduced from: kernels that move them behind each layer."""

from simmoe.cost.operators import Operator
from simmoe.graph.passes import Pass, Step


def with_moved_gradients(passed: Pass, moves: dict[int, list[Operator]]) -> Pass:
    """Add to a backward pass what moves the weight gradients of each layer.

    Parameters
    ----------
    passed : Pass
        A backward pass, or its weight-gradient half.
    moves : dict of int to list of Operator
        For each layer, kernels on the compute stream, see `simmoe.cost.gradients.move_gradients`.

    Returns
    -------
    Pass
        A layer ends with its moves, and so does the pass: the stage before gets its gradient after them.

    Examples
    --------
    >>> from simmoe.cost.operators import MemoryBound
    >>> kernel = Operator("mlp.up.wgrad", "memory", MemoryBound("optimizer", 1.0))
    >>> whole = Pass((Step(kernel, "backward", 0, ()),), (0,), {0: (0,)}, {0: (0,)})
    >>> moved = with_moved_gradients(whole, {0: [kernel._replace(name="grad.move")]})
    >>> [(step.operator.name, step.after) for step in moved.steps], moved.tail
    ([('mlp.up.wgrad', ()), ('grad.move', (0,))], (0, 1))
    """
    ends: dict[int, list[int]] = {}
    for layer, final in passed.layer_exit.items():
        ends.setdefault(max(final), []).append(layer)
    steps: list[Step] = []
    number: dict[int, int] = {}
    exits: dict[int, tuple[int, ...]] = {}

    def mapped(waits: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[step] for step in waits)

    last: tuple[int, ...] = ()
    for position, step in enumerate(passed.steps):
        number[position] = len(steps)
        steps.append(step._replace(after=mapped(step.after)))
        for layer in ends.get(position, ()):
            exits[layer] = mapped(passed.layer_exit[layer])
            for operator in moves.get(layer, ()):
                last = (len(steps),)
                steps.append(Step(operator, "backward", layer, exits[layer]))
                exits[layer] = last
    return passed._replace(
        steps=tuple(steps),
        tail=(*mapped(passed.tail), *last),
        layer_entry={layer: mapped(entry) for layer, entry in passed.layer_entry.items()},
        layer_exit=exits,
        leftover=mapped(passed.leftover),
    )
