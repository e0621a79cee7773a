"""Backward passes cut in two, and two passes woven into one: what zero-bubble and overlapped schedules stamp."""

from simmoe.graph.passes import Pass, Step


def _is_weight_work(step: Step) -> bool:
    """Whether a step serves the weight gradient alone: the product itself, or gathering its input again."""
    return step.operator.name.endswith((".wgrad", ".again"))


def split_backward(whole: Pass) -> tuple[Pass, Pass]:
    """Cut a backward pass into its input gradient and its weight gradient.

    Parameters
    ----------
    whole : Pass
        From `simmoe.graph.passes.backward_pass`.

    Returns
    -------
    input_gradient, weight_gradient : Pass
        The first sends the gradient on; the second has all products that only the optimizer needs (Qi et al. 2023,
        arXiv 2401.10241, section 2.1). Steps of the second wait for each other and for the first as a whole.
    """
    return _select(whole, weight=False), _select(whole, weight=True)


def _select(whole: Pass, *, weight: bool) -> Pass:
    """The steps of one half, with what they waited for in the other half replaced by what that waited for."""
    number: dict[int, int] = {}
    bridges: dict[int, tuple[int, ...]] = {}
    steps: list[Step] = []

    def kept(waits: tuple[int, ...]) -> tuple[int, ...]:
        found: dict[int, None] = {}
        for step in waits:
            found.update(dict.fromkeys((number[step],) if step in number else bridges[step]))
        return tuple(found)

    for position, step in enumerate(whole.steps):
        after = kept(step.after)
        if _is_weight_work(step) is weight:
            number[position] = len(steps)
            steps.append(step._replace(after=after))
        else:
            bridges[position] = () if weight else after
    tail = kept(whole.tail) if not weight else tuple(range(len(steps) - 1, len(steps)))
    exits = {layer: _last_of_layer(steps, layer) or tail for layer in whole.layer_exit}
    entries = {layer: kept(waits) for layer, waits in whole.layer_entry.items()} if not weight else {}
    return Pass(tuple(steps), tail, entries, exits)


def _last_of_layer(steps: list[Step], layer: int) -> tuple[int, ...]:
    """The last step of a layer, if it has any here."""
    return tuple(i for i, step in enumerate(steps) if step.layer == layer)[-1:]
