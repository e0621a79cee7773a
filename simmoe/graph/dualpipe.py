"""DeepSeek's bidirectional pipelines: forwards and backwards that meet on a stage hide each other's communication."""

from simmoe.errors import InternalError
from simmoe.graph.schedules import Action
from simmoe.graph.zero_bubble import numbered


def dualpipe(stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """Two copies of the model, entered from both ends of the pipeline.

    Parameters
    ----------
    stage, stages : int
        Pipeline stage, of how many (p, even). Chunk 0 is virtual stage s of copy 0, chunk 1 is virtual stage
        p - 1 - s of copy 1.
    micro_batches : int
        m, even and at least 2p. The first half goes through copy 0, the second through copy 1.

    Returns
    -------
    tuple of Action
        A forward that is joined with the whole backward pass of the other direction carries `with_next`. Backward
        passes are split only where the pipeline fills and drains.

    Raises
    ------
    InternalError
        If p or m is none of these.

    Notes
    -----
    With F, B and W the times of a forward pass, a whole backward pass and a weight gradient, F&B that of a joined pair
    whose halves end together, F = B - W >= W and no communication, the two stages where the directions meet idle for ::

        (p / 2 - 1)(F&B + B - 3W)

    and no stage longer. Where nothing hides, a pair is a forward and then a backward pass: (p / 2 - 1)(F + B - 2W). A
    stage holds the parameters of two chunks, and up to p + 1 micro-batches.

    References
    ----------
    DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1, figure 5 and table 2; steps 1 to 8 of ``DualPipe.step`` in
    github.com/deepseek-ai/DualPipe.

    Examples
    --------
    >>> from simmoe.graph.schedules import written
    >>> written(dualpipe(0, 2, 4))
    'F0.0 F2.1 F1.0 B2.1 F3.1+ B0.0 B3.1 I1.0 W1.0'
    """
    if stages % 2 or micro_batches % 2 or micro_batches < 2 * stages:
        raise InternalError(
            f"DualPipe: {stages} stages and {micro_batches} micro-batches; it needs an even number of both, and 2 "
            "micro-batches a stage"
        )
    half = micro_batches // 2
    depth = min(stage, stages - 1 - stage)
    entered, other = ("0", "1") if stage < stages // 2 else ("1", "0")
    return numbered(_words(depth, stages // 2, half, entered, other), (0, half))


def dualpipe_v(stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """DualPipe cut in half: one copy of the model in the shape of a V takes the place of the two.

    Parameters
    ----------
    stage, stages : int
        Pipeline stage, of how many (p); chunk 0 is virtual stage s, chunk 1 virtual stage 2p - 1 - s.
    micro_batches : int
        m, at least 2p.

    Returns
    -------
    tuple of Action

    Raises
    ------
    InternalError
        If there are too few micro-batches.

    Notes
    -----
    Stage s works in the order of stage s of a DualPipe of 2p stages and 2m micro-batches. So the last stage idles for
    (p - 1)(F&B + B - 3W), the times being those of a chunk, and a stage holds up to 2p + 1 micro-batches of a chunk.

    References
    ----------
    Steps 1 to 8 of ``DualPipeV.step`` in github.com/deepseek-ai/DualPipe; the cut is Sea AI Lab's,
    huggingface.co/blog/ufotalent/cut-in-half. ``ScheduleDualPipeV`` in torch.distributed.pipelining has the same order.

    Examples
    --------
    >>> from simmoe.graph.schedules import written
    >>> written(dualpipe_v(0, 1, 2))
    'F0.0 F0.1 F1.0 B0.1 F1.1+ B0.0 B1.1 I1.0 W1.0'
    """
    if micro_batches < 2 * stages:
        raise InternalError(f"DualPipeV: {micro_batches} micro-batches; {stages} stages need at least {2 * stages}")
    return numbered(_words(stage, stages, micro_batches, "0", "1"), (0, 0))


def _words(depth: int, meeting: int, each: int, near: str, far: str) -> list[str]:
    """The eight steps of a stage `depth` stages from where chunk `near` is entered, `each` micro-batches a chunk.

    Chunks `near` and `far` meet on the stage of depth `meeting` - 1.
    """
    rest = meeting - 1 - depth
    pairs = [f"F{near}+", f"B{far}", f"F{far}+", f"B{near}"] * (each - 2 * meeting + depth + 1)
    if not rest:
        pairs[0] = f"F{near}"  # where the directions meet, the first pair is not joined: that shortens the bubble
    drain = [f"B{far}", f"B{near}"] * (depth + 1)
    return [
        *[f"F{near}"] * (2 * rest),
        *[f"F{near}", f"F{far}"] * (depth + 1),
        *[f"I{far}", "W", f"F{far}"] * rest,
        *pairs,
        *[f"B{far}", f"F{far}+", f"B{near}"] * rest,
        *drain[: depth + 1],
        *[word.replace("B", "I") for word in drain[depth + 1 :]],
        *["W", f"I{near}"] * rest,
        *["W"] * (depth + 1),
    ]
