"""The blocks of zebra parallelism as steps: what an attention or an expert device does between two exchanges."""

from collections.abc import Sequence

from simmoe.cost.backward import recomputed
from simmoe.cost.operators import Operator
from simmoe.cost.zebra import LayerPart, ZebraWork
from simmoe.graph.passes import Pass, PassBuilder, Settings, add_backward, add_forward, second_half
from simmoe.graph.zebra_order import Block, Part


def block_pass(block: Block, work: ZebraWork, settings: Settings, *, live: bool = False) -> Pass:
    """The steps of one block.

    Parameters
    ----------
    block : Block
    work : ZebraWork
        Of its stage.
    settings : Settings
        Of the stage; its host times are those of both kinds of devices.
    live : bool
        A backward block that follows its forward block at once: nothing has to be computed again.

    Returns
    -------
    Pass

    Notes
    -----
    Activations are kept at the exchanges: under full recomputation attention and experts each repeat their own
    forward operators, and no exchange is repeated. The gradient of the router's weights needs nothing of the expert
    devices; both branches meet in the backward block of the attention before the dispatch, which therefore waits for
    the gradients of the tokens alone (HeterMoE, section 5).
    """
    builder = PassBuilder("backward" if block.backward else "forward")
    if block.part.stream != "compute":
        builder.layer = work.layers[block.place]
        builder.add(_exchange(block, work))
    elif block.part is Part.ATTENTION:
        _add_attention(builder, work.attention[block.place], settings, backward=block.backward, live=live)
    else:
        operators = (work.experts if block.part is Part.EXPERTS else work.moved)[block.place]
        builder.layer = work.layers[block.place]
        if block.backward:
            _add_again(builder, operators, settings.host.experts, settings)
        _add_launched(builder, operators, settings.host.experts, settings, backward=block.backward)
    return builder.finish()


def _exchange(block: Block, work: ZebraWork) -> Operator:
    """Tokens of a dispatch or results of a combine; backward their gradients, which go the other way."""
    towards = block.part is Part.DISPATCH
    name = "moe.combine" if towards is block.backward else "moe.dispatch"
    return Operator(name, "all_to_all", work.exchanges[block.place], block.part.stream, module="moe")


def _add_attention(
    builder: PassBuilder, parts: Sequence[LayerPart], settings: Settings, *, backward: bool, live: bool
) -> None:
    """The parts of an attention block, in backward from the last, each layer with its host launches."""
    if backward and not live:
        for part in parts:
            builder.layer = part.layer
            if part.kind != "end":
                for operators, seconds in _halves(part, settings):
                    _add_again(builder, operators, seconds, settings)
    for part in reversed(parts) if backward else parts:
        builder.layer = part.layer
        halves = _halves(part, settings)
        for operators, seconds in reversed(halves) if backward else halves:
            _add_launched(builder, operators, seconds, settings, backward=backward)


def _halves(part: LayerPart, settings: Settings) -> list[tuple[tuple[Operator, ...], float]]:
    """The operators of a part with the host time that launches them [s]: attention, and what follows it."""
    host, operators = settings.host, part.operators
    if part.kind in {"end", "tail"}:
        return [(operators, 0.0)]
    middle = second_half(operators)
    return [
        (operators[:middle], host.attention),
        (operators[middle:], host.mlp if part.kind == "whole" else host.router),
    ]


def _add_again(builder: PassBuilder, operators: Sequence[Operator], seconds: float, settings: Settings) -> None:
    """Repeat what was not kept; under full recomputation the host launches all of it once more."""
    full = settings.recompute.granularity == "full"
    builder.phase = "recompute"
    repeated = recomputed(operators, settings.recompute, whole_layer=full)
    _add_launched(builder, repeated, seconds if full else 0.0, settings, backward=False)
    builder.phase = "backward"


def _add_launched(
    builder: PassBuilder, operators: Sequence[Operator], seconds: float, settings: Settings, *, backward: bool
) -> None:
    """Operators that the host launches one by one: the first waits for the first launch, the last for all."""
    add = add_backward if backward else add_forward
    first, last = (operators[1:], operators[:1]) if backward else (operators[:-1], operators[-1:])
    share = seconds / max(len(operators), 1)
    builder.launch(share)
    add(builder, first, settings)
    builder.launch(seconds - share)
    add(builder, last, settings)
