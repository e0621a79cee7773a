"""Expert exchanges cut into pieces, so that those of one piece run beneath the expert products of another.

Tutel's ``a2a_ffn_overlap_degree`` d: what stands from the dispatch of a MoE layer to its combine is done in d pieces of
1/d of the tokens each. Exchanges sit on one stream in the order D1 .. Dd C1 .. Cd, products on the compute stream in
the order of the pieces; what is hidden follows from the two.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from simmoe.cost.backward import backward
from simmoe.cost.operators import Collective, GroupedGemm, MemoryBound, Operator, TokenExchange
from simmoe.errors import InternalError
from simmoe.specs.plan import Plan, Stage

_FIRST, _LAST = "moe.dispatch", "moe.combine"


class Cut(NamedTuple):
    """The operators of a layer with one of its pieces.

    Attributes
    ----------
    before, after : tuple of Operator
        Whole operators around the pieces.
    out, work, back : tuple of Operator
        Of one piece: what brings its tokens to their experts, what is computed there, what brings the results back.
    """

    before: tuple[Operator, ...]
    out: tuple[Operator, ...]
    work: tuple[Operator, ...]
    back: tuple[Operator, ...]
    after: tuple[Operator, ...]

    @property
    def piece(self) -> tuple[Operator, ...]:
        """The operators of one piece."""
        return (*self.out, *self.work, *self.back)

    def gradients(self) -> "Cut":
        """The backward operators: gradients of results go out, gradients of tokens come back."""
        before, out, work, back, after = (
            tuple(gradient for operator in reversed(part) for gradient in backward(operator)) for part in self
        )
        return Cut(after, back, work, out, before)


class Issuer(Protocol):
    """What collects the steps of a pass; see `simmoe.graph.passes`."""

    tail: tuple[int, ...]


def pieces_of(plan: Plan, stage: Stage) -> int:
    """Pieces of the expert exchanges inside a pass of a stage.

    Without expert parallelism there is nothing to cut; in zebra stages pieces are blocks of their own.
    """
    return plan.a2a_ffn_overlap_degree if stage.expert_parallel > 1 and stage.experts is None else 1


def share_of(operator: Operator, share: float) -> Operator:
    """The operator for a share of its tokens.

    Parameters
    ----------
    operator : Operator
        Whose work grows with its tokens.
    share : float
        [1]

    Returns
    -------
    Operator
        Bytes, rows and tokens are multiplied by the share; kernels, experts and latencies stay what they are.

    Raises
    ------
    InternalError
        If the work is of a kind that cannot be shared.

    Examples
    --------
    Half the rows of two experts:

    >>> share_of(Operator("moe.expert_up", "grouped_gemm", GroupedGemm(2, 100.0, 8, 4)), 0.5).work.tokens
    50.0
    """
    work = operator.work
    saved = operator.saved * share
    if isinstance(work, GroupedGemm | TokenExchange):
        return operator._replace(work=work._replace(tokens=work.tokens * share), saved=saved)
    if isinstance(work, MemoryBound | Collective):
        gradient = None if work.gradient_bytes is None else work.gradient_bytes * share
        return operator._replace(work=work._replace(bytes=work.bytes * share, gradient_bytes=gradient), saved=saved)
    raise InternalError(f"{operator.name}: no share of a {type(work).__name__}")


def cut(operators: Sequence[Operator], pieces: int) -> Cut | None:
    """Cut what stands between the exchanges of a MoE layer into pieces.

    Parameters
    ----------
    operators : sequence of Operator
        Forward operators of a layer, or of a part of it.
    pieces : int

    Returns
    -------
    Cut or None
        None if there is one piece, or no exchange to cut.

    Notes
    -----
    Every piece has an even share of the tokens. All pieces have the same experts: weights are read once for each, and
    each adds its weight gradient to the main gradient, as the kernels' own costs say. Copying tokens for their experts
    before the dispatch, and adding up their results behind the combine, stay whole.

    References
    ----------
    Hwang et al., "Tutel", arXiv 2206.03382 (adaptive pipelining); microsoft/tutel@db87754, ``tutel/impls/overlap.py``,
    and @2c0cad3, ``tutel/custom/custom_kernel.cpp``, ``nccl_all_to_all_scatter_async`` and ``.._gather_async``: one
    stream takes all dispatches and then, each behind the event of its experts, all combines; the backward pass does
    the same from the last piece to the first.

    Examples
    --------
    >>> exchange = TokenExchange(4096, 8192.0, 2, 8, deduplicated=False)
    >>> names = ("moe.permute", "moe.dispatch", "moe.expert_up", "moe.combine")
    >>> works = (MemoryBound("permute", 1e6), exchange, GroupedGemm(1, 8192.0, 64, 64), exchange._replace(combine=True))
    >>> streams = ("compute", "ep", "compute", "ep")
    >>> layer = [Operator(n, "", w, s) for n, w, s in zip(names, works, streams, strict=True)]
    >>> found = cut(layer, 4)
    >>> [operator.name for operator in found.before], [operator.work.tokens for operator in found.piece]
    (['moe.permute'], [1024.0, 2048.0, 1024.0])
    """
    names = [operator.name for operator in operators]
    if pieces == 1 or _FIRST not in names or _LAST not in names:
        return None
    first, last = names.index(_FIRST), names.index(_LAST) + 1
    inside = tuple(share_of(operator, 1.0 / pieces) for operator in operators[first:last])
    computing = [number for number, operator in enumerate(inside) if operator.stream == "compute"]
    start, end = computing[0], computing[-1] + 1
    return Cut(tuple(operators[:first]), inside[:start], inside[start:end], inside[end:], tuple(operators[last:]))


def one_piece(operators: Sequence[Operator], pieces: int) -> list[Operator]:
    """The operators of a layer as they are issued: those that are cut are those of one piece."""
    found = cut(operators, pieces)
    return list(operators) if found is None else [*found.before, *found.piece, *found.after]


def issued(operators: Sequence[Operator], pieces: int) -> int:
    """How many operators are issued, those of every piece counted."""
    found = cut(operators, pieces)
    return len(operators) + (0 if found is None else (pieces - 1) * len(found.piece))


def repeated_in_pieces(some: Sequence[Operator], layer: Sequence[Operator], pieces: int) -> list[Operator]:
    """Some operators of a layer without its exchanges, those that are cut once for each piece.

    Recomputing the activation alone needs no exchange, but the activation is that of pieces.
    """
    found = None if cut(some, pieces) else cut(layer, pieces)
    parts = {operator.name: operator for operator in found.piece} if found else {}
    return [one for each in some for one in ([parts[each.name]] * pieces if each.name in parts else [each])]


def issue(builder: Issuer, layer: Cut, pieces: int, add: Callable[[Operator], object]) -> None:
    """Issue the pieces of a layer: all that goes out first, then piece by piece what is computed and what comes back.

    Parameters
    ----------
    builder : Issuer
        Each step that is added waits for its tail, and becomes the tail.
    layer : Cut
        Forward, or its gradients.
    pieces : int
    add : callable
        Adds an operator to the builder.

    Notes
    -----
    With d and c the seconds of the exchanges of a piece and w those of its work, n pieces take, on streams that do
    nothing else::

        max(n d + n c,  max over i <= j of i d + (j - i + 1) w + (n - j + 1) c)

    If the work of a piece takes longer than either exchange, that is d + n w + c: one piece of each is exposed. If it
    takes less than both, it is n (d + c) for n > 1: all of the work is hidden. Work beside an exchange keeps its rate
    here; a fluid network takes the multiprocessors of the exchange from it.

    Examples
    --------
    Both dispatches wait for nothing; products and combines follow piece by piece.

    >>> from types import SimpleNamespace
    >>> builder, steps = SimpleNamespace(tail=()), []
    >>> def add(operator):
    ...     steps.append((operator, builder.tail))
    ...     builder.tail = (len(steps) - 1,)
    >>> issue(builder, Cut((), ("D",), ("E",), ("C",), ()), 2, add)
    >>> steps, builder.tail
    ([('D', ()), ('D', ()), ('E', (0,)), ('C', (2,)), ('E', (1,)), ('C', (4,))], (3, 5))
    """
    entry, arrived = builder.tail, []
    for _ in range(pieces):
        builder.tail = entry
        for operator in layer.out:
            add(operator)
        arrived.append(builder.tail)
    ended: tuple[int, ...] = ()
    for tail in arrived:
        builder.tail = tail
        for operator in (*layer.work, *layer.back):
            add(operator)
        ended += builder.tail
    builder.tail = ended
