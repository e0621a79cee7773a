"""One pass of a micro-batch through a chunk of layers, as steps that know what they wait for.

A pass is the template that `simmoe.graph.build` stamps once per micro-batch. Kernels follow each other on the compute
stream; collectives sit on the stream of their group, so that whatever does not wait for them runs beneath them.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from simmoe.cost.backward import backward, recomputed
from simmoe.cost.layers import chunk_work
from simmoe.cost.operators import Collective, Gemm, GroupedGemm, HostLaunch, Operator, TokenExchange
from simmoe.cost.shard import Shard
from simmoe.graph.host import HostTimes
from simmoe.graph.pieces import cut, issue, issued, repeated_in_pieces, share_of
from simmoe.specs.model import Model
from simmoe.specs.plan import Chunk, Recompute


class Step(NamedTuple):
    """One task of a pass.

    Attributes
    ----------
    operator : Operator
    phase : str
        ``forward``, ``recompute`` or ``backward``.
    layer : int
        Model layer, -1 for embedding and head.
    after : tuple of int
        Steps of the same pass it waits for; empty = waits for what the pass as a whole waits for.
    """

    operator: Operator
    phase: str
    layer: int
    after: tuple[int, ...]


class Pass(NamedTuple):
    """The steps of a pass, what ends it, and where each layer begins and ends.

    Attributes
    ----------
    steps : tuple of Step
    tail : tuple of int
        Steps that the next pass of the micro-batch waits for.
    layer_entry, layer_exit : dict of int to tuple of int
        For each layer, its first steps and the steps after which its weights (forward) or gradients (backward) are
        no longer in use.
    leftover : tuple of int
        Steps that nothing but the end of the step waits for.
    """

    steps: tuple[Step, ...]
    tail: tuple[int, ...]
    layer_entry: dict[int, tuple[int, ...]]
    layer_exit: dict[int, tuple[int, ...]]
    leftover: tuple[int, ...] = ()


class Settings(NamedTuple):
    """What shapes the passes of a stage besides its chunk.

    `exchange_share` as in `simmoe.graph.template.Template`, `sharding_share` of `simmoe.graph.multiprocessors`,
    `pieces` of `simmoe.graph.pieces`.
    """

    model: Model
    shard: Shard
    recompute: Recompute
    host: HostTimes
    tp_overlap: bool
    delayed_wgrad: bool = False
    contention: bool = False
    exchange_share: float = 0.0
    sharding_share: float = 0.0
    pieces: int = 1


class PassBuilder:
    """Collects steps; each new one waits for the current tail unless told otherwise."""

    def __init__(self, phase: str) -> None:
        self.steps: list[Step] = []
        self.tail: tuple[int, ...] = ()
        self.phase = phase
        self.layer = -1
        self.entries: dict[int, tuple[int, ...]] = {}
        self.exits: dict[int, tuple[int, ...]] = {}
        self.held: list[tuple[Operator, tuple[int, ...]]] = []

    def add(self, operator: Operator, after: tuple[int, ...] | None = None) -> int:
        """Append a step and make it the tail."""
        number = len(self.steps)
        self.steps.append(Step(operator, self.phase, self.layer, self.tail if after is None else after))
        self.tail = (number,)
        return number

    def launch(self, seconds: float, after: tuple[int, ...] = ()) -> None:
        """Let the host launch what follows; the host runs ahead unless it has to wait for `after`."""
        if seconds > 0:
            waiting = self.tail
            number = self.add(Operator("host.launch", "host", HostLaunch(seconds), "host"), after)
            self.tail = (*waiting, number)

    def finish(self) -> Pass:
        """The finished pass."""
        return Pass(tuple(self.steps), self.tail, self.entries, self.exits)


def forward_pass(chunk: Chunk, settings: Settings) -> Pass:
    """The forward pass of one micro-batch through a chunk.

    Parameters
    ----------
    chunk : Chunk
    settings : Settings

    Returns
    -------
    Pass
    """
    builder = PassBuilder("forward")
    work = chunk_work(chunk, settings.model, settings.shard)
    add_forward(builder, work.embedding, settings)
    for part in work.layers:
        builder.layer = part.layer
        first = len(builder.steps)
        add_forward(builder, part.before, settings)
        _add_layer_forward(builder, part.inside, settings)
        add_forward(builder, part.after, settings)
        builder.entries[part.layer] = _first_device_step(builder, first)
        builder.exits[part.layer] = builder.tail
    builder.layer = -1
    add_forward(builder, work.head, settings)
    return builder.finish()


def _first_device_step(builder: PassBuilder, first: int) -> tuple[int, ...]:
    """The first step from `first` on that is not on the host."""
    return (next(i for i in range(first, len(builder.steps)) if builder.steps[i].operator.stream != "host"),)


def _add_layer_forward(builder: PassBuilder, operators: Sequence[Operator], settings: Settings) -> None:
    """A whole layer with its host launches; the host waits for the router where token counts are needed."""
    host = settings.host
    middle = second_half(operators)
    _launched(builder, operators[:middle], host.attention, settings)
    if not _has_experts(operators):
        _launched(builder, operators[middle:], host.mlp, settings)
        return
    router = next(i for i, operator in enumerate(operators) if operator.name == "moe.topk") + 1
    _launched(builder, operators[middle:router], host.router, settings)
    _launched(builder, operators[router:], host.experts, settings, builder.tail if host.sync else ())


def _launched(
    builder: PassBuilder, operators: Sequence[Operator], seconds: float, settings: Settings, after: tuple[int, ...] = ()
) -> None:
    """Operators that the host launches one by one: the first waits for the first launch, the last for all."""
    share = seconds / max(issued(operators, settings.pieces), 1)
    builder.launch(share, after)
    add_forward(builder, operators[:-1], settings)
    builder.launch(seconds - share)
    add_forward(builder, operators[-1:], settings)


def second_half(operators: Sequence[Operator]) -> int:
    """Where the MLP or MoE half of a layer begins."""
    return next((i for i, o in enumerate(operators) if o.name in {"mlp.norm", "moe.norm"}), len(operators))


def add_forward(builder: PassBuilder, operators: Sequence[Operator], settings: Settings) -> None:
    """Operators one after another; with `tp_overlap` a tensor-parallel collective shares time with its GEMM."""
    layer = cut(operators, settings.pieces)
    if layer is not None:
        add_forward(builder, layer.before, settings)
        issue(builder, layer, settings.pieces, builder.add)
        add_forward(builder, layer.after, settings)
        return
    pieces = settings.shard.tensor if settings.tp_overlap else 1
    position = 0
    while position < len(operators):
        operator = operators[position]
        following = operators[position + 1] if position + 1 < len(operators) else None
        if following and operator.stream == "cp":
            _beneath(builder, operator, following)
            position += 2
        elif pieces > 1 and following and _is_gather(operator) and isinstance(following.work, Gemm):
            _pipelined(builder, operator, [following], pieces, collective_first=True)
            position += 2
        elif pieces > 1 and following and isinstance(operator.work, Gemm) and _is_tensor_parallel(following):
            _pipelined(builder, following, [operator], pieces, collective_first=False)
            position += 2
        else:
            builder.add(operator)
            position += 1


def _beneath(builder: PassBuilder, collective: Operator, kernel: Operator) -> None:
    """Ring attention: the exchange of keys and values runs beneath the core attention it feeds."""
    entry = builder.tail
    hidden = builder.add(collective, entry)
    kernel_step = builder.add(kernel, entry)
    builder.tail = (kernel_step, hidden)


def _is_tensor_parallel(operator: Operator) -> bool:
    return isinstance(operator.work, Collective) and operator.work.group == "tp"


def _is_gather(operator: Operator) -> bool:
    return _is_tensor_parallel(operator) and operator.category == "all_gather"


def _pipelined(
    builder: PassBuilder, collective: Operator, kernels: Sequence[Operator], pieces: int, *, collective_first: bool
) -> None:
    """A collective cut into `pieces` that runs beneath its GEMM, all but the first or last piece hidden.

    The time is comm / n + max(gemm, comm (n - 1) / n): the ring exchange of Transformer Engine's userbuffers.
    """
    entry = builder.tail
    one, rest = share_of(collective, 1 / pieces), share_of(collective, 1 - 1 / pieces)
    if collective_first:
        head = builder.add(one, entry)
        hidden = builder.add(rest, (head,))
        builder.tail = (head,)
        for kernel in kernels:
            builder.add(kernel)
        builder.tail = (*builder.tail, hidden)
        return
    hidden = builder.add(rest, entry)
    builder.tail = entry
    for kernel in kernels:
        builder.add(kernel)
    builder.add(one, (*builder.tail, hidden))


def backward_pass(chunk: Chunk, settings: Settings) -> Pass:
    """The backward pass of one micro-batch through a chunk, recomputation included.

    Parameters
    ----------
    chunk : Chunk
    settings : Settings

    Returns
    -------
    Pass
        `layer_exit` gives the steps after which all gradients of a layer are ready.
    """
    builder = PassBuilder("backward")
    work = chunk_work(chunk, settings.model, settings.shard)
    add_backward(builder, work.head, settings)
    covered = settings.recompute.num_layers or len(work.layers)
    for position, part in reversed(list(enumerate(work.layers))):
        builder.layer = part.layer
        first = len(builder.steps)
        add_backward(builder, part.after, settings)
        _add_recompute(builder, part.inside, settings, whole_layer=position < covered)
        _add_layer_backward(builder, part.inside, settings)
        add_backward(builder, part.before, settings)
        builder.entries[part.layer] = _first_device_step(builder, first)
        builder.exits[part.layer] = builder.tail
    builder.layer = -1
    add_backward(builder, work.embedding, settings)
    return builder.finish()


def _has_experts(operators: Sequence[Operator]) -> bool:
    return any(operator.name == "moe.topk" for operator in operators)


def _add_recompute(
    builder: PassBuilder, operators: Sequence[Operator], settings: Settings, *, whole_layer: bool
) -> None:
    """Repeat the forward operators that were not kept."""
    repeated = recomputed(operators, settings.recompute, whole_layer=whole_layer)
    builder.phase = "recompute"
    if settings.recompute.granularity == "full" and repeated:
        _add_layer_forward(builder, repeated, settings)
    else:
        add_forward(builder, repeated_in_pieces(repeated, operators, settings.pieces), settings)
    builder.phase = "backward"


def _add_layer_backward(builder: PassBuilder, operators: Sequence[Operator], settings: Settings) -> None:
    """The gradients of a layer with their host launches, which take as long as those of the forward pass."""
    host, middle = settings.host, second_half(operators)
    second = host.router + host.experts if _has_experts(operators) else host.mlp
    for part, seconds in ((operators[middle:], second), (operators[:middle], host.attention)):
        share = seconds / max(issued(part, settings.pieces), 1)
        builder.launch(share)
        add_backward(builder, part[1:], settings)
        builder.launch(seconds - share)
        add_backward(builder, part[:1], settings)


def add_backward(builder: PassBuilder, operators: Sequence[Operator], settings: Settings) -> None:
    """Gradients in reverse order of the forward operators."""
    layer = cut(operators, settings.pieces)
    if layer is not None:
        add_backward(builder, layer.after, settings)
        issue(builder, layer.gradients(), settings.pieces, partial(_add_gradient, builder, settings))
        add_backward(builder, layer.before, settings)
        return
    position = len(operators) - 1
    while position >= 0:
        operator = operators[position]
        before = operators[position - 1] if position else None
        if before is not None and _is_gather(before) and isinstance(operator.work, Gemm):
            _add_gathered_gemm(builder, before, operator)
            position -= 2
            continue
        if before is not None and before.stream == "cp":
            (core,) = backward(operator)
            _beneath(builder, share_of(before, 2.0), core)  # keys and values again, and their gradients
            position -= 2
            continue
        for gradient in backward(operator):
            _add_gradient(builder, settings, gradient)
        position -= 1
    _flush(builder)


def _add_gradient(builder: PassBuilder, settings: Settings, gradient: Operator) -> None:
    """One gradient; delayed weight gradients of the experts wait until an exchange is under way."""
    if settings.delayed_wgrad and isinstance(gradient.work, GroupedGemm) and gradient.work.pass_ == "wgrad":
        builder.held.append((gradient, builder.tail))
        return
    builder.add(gradient)
    if isinstance(gradient.work, TokenExchange):
        _flush(builder)


def _flush(builder: PassBuilder) -> None:
    """Issue what was held back, beneath the step that was added last."""
    under = builder.tail
    for operator, after in builder.held:
        builder.add(operator, after)
    if builder.held:
        builder.tail = (*under, *builder.tail)
        builder.held.clear()


def _add_gathered_gemm(builder: PassBuilder, gather: Operator, gemm: Operator) -> None:
    """A column-parallel GEMM under sequence parallelism: both its collectives hide beneath its two GEMMs.

    The input is gathered again beneath the input gradient; the input gradient is reduce-scattered beneath the weight
    gradient (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2; on in Megatron with one hardware queue).
    """
    entry = builder.tail
    dgrad, wgrad = backward(gemm)
    again = builder.add(gather._replace(name=f"{gather.name}.again"), entry)
    first = builder.add(dgrad, entry)
    (scatter,) = backward(gather)
    scattered = builder.add(scatter, (first,))
    second = builder.add(wgrad, (first, again))
    builder.tail = (scattered, second)
