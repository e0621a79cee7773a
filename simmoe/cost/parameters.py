"""How many parameters a model has, of what kind, and how many of them one rank holds.

Both counts are sums over the table of `simmoe.cost.tensors`, so they agree by construction.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from simmoe.cost.tensors import Tensor, embedding_tensors, head_tensors, layer_tensors, mtp_tensors
from simmoe.specs.model import Model, MoE
from simmoe.specs.plan import Stage


class ParameterCount(NamedTuple):
    """Parameters of a model by what they belong to; all are exact whole numbers.

    Attributes
    ----------
    attention, dense_mlp, experts, shared_experts, router : int
        Weights of the transformer layers. `router` includes the gate of a shared expert.
    embedding, head : int
        Token embedding, and output projection (0 when tied to the embedding).
    norms, biases : int
        Scales and shifts of norms; biases of projections, and attention sinks.
    mtp : int
        Everything in the multi-token-prediction layers, whose embedding and head are the model's.
    positions : int
        Learned position embeddings.
    active_experts, active_biases, active_mtp : int
        The part of `experts`, `biases` and `mtp` that one token uses.
    """

    attention: int = 0
    dense_mlp: int = 0
    experts: int = 0
    shared_experts: int = 0
    router: int = 0
    embedding: int = 0
    head: int = 0
    norms: int = 0
    biases: int = 0
    mtp: int = 0
    positions: int = 0
    active_experts: int = 0
    active_biases: int = 0
    active_mtp: int = 0

    @property
    def total(self) -> int:
        """Parameters as models are usually named: weights without norms, biases and MTP."""
        layers = self.attention + self.dense_mlp + self.experts + self.shared_experts + self.router
        return layers + self.embedding + self.positions + self.head

    @property
    def active(self) -> int:
        """The part of `total` that one token uses; embedding and head count in full."""
        return self.total - self.experts + self.active_experts

    @property
    def active_exact(self) -> int:
        """`active` with norms and the biases a token meets: the N of 6 N."""
        return self.active + self.norms + self.active_biases

    @property
    def exact(self) -> int:
        """Every trainable number, with norms, biases and MTP."""
        return self.total + self.norms + self.biases + self.mtp


class RankParameters(NamedTuple):
    """Parameters held by one rank of a stage.

    Attributes
    ----------
    sharded : float
        This rank's share of what its tensor-parallel group divides.
    replicated : float
        What every rank of the tensor-parallel group holds whole: norms, router, MLA down
        projections, row-parallel biases.
    copies : float
        Further copies of what another rank counts as its own: key/value heads when there are fewer
        than tensor-parallel ranks, the embedding on a last stage that ties or predicts further
        tokens, expert output biases beyond expert tensor parallel 1.
    expert : float
        Its share of the routed experts.
    """

    sharded: float
    replicated: float
    copies: float
    expert: float

    @property
    def dense(self) -> float:
        """All but the routed experts: reduced over data-parallel ranks."""
        return self.sharded + self.replicated + self.copies

    @property
    def total(self) -> float:
        """All parameters the rank stores."""
        return self.dense + self.expert


def count_parameters(model: Model) -> ParameterCount:
    """Exact parameters of a model by component.

    Parameters
    ----------
    model : Model
        The architecture.

    Returns
    -------
    ParameterCount
        Whole numbers [1].

    Notes
    -----
    With h = hidden size, f = MLP width, n = 3 matrices for a gated MLP or 2, H and K query and
    key/value heads of width d, E experts:

    - attention: h d (2 H + 2 K), or for MLA with ranks q and c, rotary width r, content width u and
      value width v: h q + q H (u + r) [or h H (u + r) when q = 0] + h (c + r) + c H (u + v) + H v h;
    - MLP: n h f; experts E n h f_e; router E h;
    - embedding and head: V h each, once when tied;
    - MTP layer: a whole layer, a 2h x h projection and three norms.

    Not counted: relative position biases (768 numbers in Switch-Base) and the output bias of
    Phi-3.5-MoE.

    References
    ----------
    MLA: DeepSeek-AI 2024, arXiv:2405.04434, equations 9 to 19 and appendix C. MTP: DeepSeek-AI 2024,
    arXiv:2412.19437, equations 21 to 23. Published totals that these counts reproduce: model cards
    named in ``scenarios/models``.

    Examples
    --------
    One layer of width 8, two heads of 4, MLP 16 gated, vocabulary 100: attention 4*8*8 = 256,
    MLP 3*8*16 = 384, embedding and head 2*800.

    >>> from simmoe.specs.model import Attention
    >>> model = Model(
    ...     id="tiny", name="tiny", source="", num_layers=1, hidden_size=8, ffn_hidden_size=16,
    ...     vocab_size=100, max_position_embeddings=32,
    ...     attention=Attention(num_heads=2, num_kv_heads=2, head_dim=4),
    ... )
    >>> count = count_parameters(model)
    >>> count.attention, count.dense_mlp, count.total, count.norms
    (256, 384, 2240, 24)
    """
    kinds = Counter(model.layers)
    tensors = [(tensor, 1) for tensor in (*embedding_tensors(model), *head_tensors(model))]
    tensors += [(tensor, times) for layer, times in kinds.items() for tensor in layer_tensors(model, layer)]
    tensors += [(tensor._replace(component="mtp"), 1) for tensor in _all_mtp_tensors(model)]
    sizes: Counter[str] = Counter()
    for tensor, times in tensors:
        sizes[tensor.component] += tensor.size * times
        if tensor.component in {"experts", "biases", "mtp"}:
            sizes[f"active_{tensor.component}"] += _active_size(tensor, model.moe) * times
    return ParameterCount(**sizes)


def _active_size(tensor: Tensor, moe: MoE | None) -> int:
    """The part of a tensor that one token uses: top_k of the experts."""
    if moe is None or tensor.split not in {"expert", "expert_output"}:
        return tensor.size
    return tensor.size // moe.num_experts * moe.top_k


def rank_parameters(model: Model, stage: Stage, *, pad_vocabulary: bool = False) -> RankParameters:
    """Parameters that one rank of a pipeline stage holds.

    Parameters
    ----------
    model : Model
        The architecture.
    stage : Stage
        A stage of an expanded plan.
    pad_vocabulary : bool
        Round the vocabulary up as Megatron does, see `padded_vocabulary`.

    Returns
    -------
    RankParameters
        Numbers [1]; not whole when a size does not divide.

    Notes
    -----
    Summed over the tensor-parallel group (`sharded` and once `replicated`), over the expert- and
    expert-tensor-parallel ranks (`expert`) and over stages, leaving out data-parallel replicas and
    `copies`, they give ``count_parameters(model).exact``.

    Valid for a decoder. An encoder-decoder model over several stages also copies its embedding to
    the first decoder stage, which is not counted.

    References
    ----------
    Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053, section 3 (row- and column-parallel layers).
    Embedding copies: Narayanan et al. 2021, arXiv:2104.04473, section 3.

    Examples
    --------
    The model of `count_parameters` on two tensor-parallel ranks: half of 2240 weights, 24 norm
    scales whole.

    >>> from simmoe.specs.model import Attention
    >>> from simmoe.specs.plan import Chunk
    >>> model = Model(
    ...     id="tiny", name="tiny", source="", num_layers=1, hidden_size=8, ffn_hidden_size=16,
    ...     vocab_size=100, max_position_embeddings=32,
    ...     attention=Attention(num_heads=2, num_kv_heads=2, head_dim=4),
    ... )
    >>> chunk = Chunk(first_layer=0, layers=1, embedding=True, head=True)
    >>> stage = Stage(first_device=0, devices=2, chunks=(chunk,), tensor_parallel=2, data_parallel=1)
    >>> rank_parameters(model, stage)
    RankParameters(sharded=1120.0, replicated=24.0, copies=0.0, expert=0.0)
    """
    tensor_parallel = stage.tensor_parallel
    rows = padded_vocabulary(model.vocab_size, tensor_parallel) if pad_vocabulary else model.vocab_size
    embedded = any(chunk.embedding for chunk in stage.chunks)
    ends_twice = any((chunk.head and model.tied_embeddings) or chunk.mtp_layers for chunk in stage.chunks)
    held = [_hold(tensor, model, stage) for tensor in _stage_tensors(model, stage, rows)]
    sharded, replicated, copies, expert = (float(sum(column)) for column in zip(*held, strict=True))
    if ends_twice and not embedded:
        copies += rows * model.hidden_size / tensor_parallel
    return RankParameters(sharded, replicated, copies, expert)


def padded_vocabulary(vocab_size: int, tensor_parallel: int, multiple: int = 128) -> int:
    """Rows of the embedding after padding to a multiple that divides over tensor-parallel ranks.

    Parameters
    ----------
    vocab_size, tensor_parallel : int
        Tokens, and ranks that share the embedding.
    multiple : int
        Rows per rank are a multiple of this (Megatron's ``--make-vocab-size-divisible-by``).

    Examples
    --------
    GPT-2's 50257 tokens over 8 ranks: the next multiple of 1024.

    >>> padded_vocabulary(50257, 8)
    51200
    """
    step = multiple * tensor_parallel
    return -(-vocab_size // step) * step


def _stage_tensors(model: Model, stage: Stage, rows: int) -> Iterable[Tensor]:
    """Every tensor the stage holds once per replica; its embedding and head have `rows` rows."""
    padded = model.model_copy(update={"vocab_size": rows})
    for chunk in stage.chunks:
        if chunk.embedding:
            yield from embedding_tensors(padded)
        for index in range(chunk.first_layer, chunk.first_layer + chunk.layers):
            yield from layer_tensors(model, model.layer(index))
        for depth in range(chunk.mtp_layers):
            yield from mtp_tensors(model, depth)
        if chunk.head:
            yield from head_tensors(padded)
    yield Tensor("norms", "whole", 0)  # a stage of nothing but a loss still sums to 0


def _hold(tensor: Tensor, model: Model, stage: Stage) -> tuple[float, float, float, float]:
    """One rank's sharded, replicated, copied and expert parameters of a tensor."""
    size, tensor_parallel = tensor.size, stage.tensor_parallel
    expert_ranks = stage.expert_parallel * stage.expert_tensor_parallel
    match tensor.split:
        case "tensor":
            return size / tensor_parallel, 0.0, 0.0, 0.0
        case "kv":
            share = size / tensor_parallel
            return share, 0.0, max(0.0, size / model.attention.num_kv_heads - share), 0.0
        case "whole":
            return 0.0, size, 0.0, 0.0
        case "expert":
            return 0.0, 0.0, 0.0, size / expert_ranks
        case "expert_output":
            share = size / expert_ranks
            return 0.0, 0.0, size / stage.expert_parallel - share, share


def _all_mtp_tensors(model: Model) -> Iterable[Tensor]:
    for depth in range(model.mtp_layers):
        yield from mtp_tensors(model, depth)
