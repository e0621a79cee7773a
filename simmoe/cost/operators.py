"""The kinds of work a training step is made of, as plain numbers: no hardware, no time.

An `Operator` names one kernel or collective of a layer; its `work` says how much of what. FLOP counts of the work
types are exact algebra, so the model FLOPs of a step are a sum over the very operators that are timed.
"""

from typing import Literal, NamedTuple

Pass = Literal["forward", "dgrad", "wgrad"]
CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
GroupName = Literal["tp", "cp", "ep", "etp", "dp", "edp", "shard", "replica", "pp"]


class Gemm(NamedTuple):
    """A matrix product (m x k) @ (k x n).

    `pass_` tells the weight-gradient product, which accumulates into fp32, from the others. `high_precision` marks
    the GEMMs that fp8 recipes leave in 16 bits (router, logits).
    """

    m: int
    n: int
    k: int
    pass_: Pass = "forward"
    high_precision: bool = False

    @property
    def flops(self) -> float:
        """Multiplications and additions [FLOP]: 2 m n k."""
        return 2.0 * self.m * self.n * self.k


class GroupedGemm(NamedTuple):
    """One product (tokens x k) @ (k x n) for each of `groups` local experts."""

    groups: int
    tokens: float
    n: int
    k: int
    pass_: Pass = "forward"

    @property
    def flops(self) -> float:
        """Multiplications and additions [FLOP]: 2 groups tokens n k."""
        return 2.0 * self.groups * self.tokens * self.n * self.k


class AttentionCore(NamedTuple):
    """Scores, softmax and weighted values of one micro-batch on one rank.

    `queries` are the local tokens of a sequence (sequence / cp), `keys` all tokens they may see.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    qk_dim: int
    v_dim: int
    causal: bool
    window: int | None = None
    backward: bool = False

    @property
    def pairs(self) -> float:
        """Query-key pairs of one head and sequence: half of the square when causal, less inside a window.

        The half is Megatron-Core's convention (s^2/2, not s(s+1)/2). Inside a causal window of w tokens every
        query sees w keys, save the first w, which see half of it: s w - w^2/2.
        """
        if self.window is not None and self.window < self.keys:
            per_query = self.window - self.window**2 / (2.0 * self.keys)
            return self.queries * (per_query if self.causal else min(2.0 * per_query, float(self.keys)))
        return self.queries * self.keys * (0.5 if self.causal else 1.0)

    @property
    def most_keys(self) -> int:
        """Keys that the last query sees: all, or those inside its window."""
        if self.window is None:
            return self.keys
        return min(self.keys, self.window if self.causal else 2 * self.window)

    @property
    def flops(self) -> float:
        """Forward: 2 products; backward: 5 products of which one recomputes the scores [FLOP].

        The backward factor 2.5 is the work FlashAttention does (Dao 2023, section 3.1); the model-FLOPs convention
        counts 2, see `simmoe.cost.flops`.
        """
        forward = 2.0 * self.batch * self.heads * self.pairs * (self.qk_dim + self.v_dim)
        return forward * 2.5 if self.backward else forward


class MemoryBound(NamedTuple):
    """An operator limited by memory traffic; `gradient_bytes` is that of its backward pass where no rule gives it."""

    operator: Literal["elementwise", "norm", "softmax", "permute", "cross_entropy", "optimizer", "cast"]
    bytes: float
    kernels: int = 1
    gradient_bytes: float | None = None


class Collective(NamedTuple):
    """One collective over a group; `bytes` is the nccl-tests size, the full buffer of one rank.

    `gradient_bytes` is the size of its dual in the backward pass where that differs: under fp8 activations are
    gathered in 8 bits and gradients summed in 16.
    """

    collective: CollectiveName
    group: GroupName
    bytes: float
    gradient_bytes: float | None = None


class TokenExchange(NamedTuple):
    """Expert dispatch or combine: `tokens` of a rank, each `bytes_per_token`, to `top_k` of the experts over ep ranks.

    NCCL sends every one of the top_k copies; a deduplicating dispatcher (DeepEP, HybridEP) sends one per destination
    domain over the network. Under group-limited routing a token visits at most `group_limit` of `num_groups` expert
    groups, each of which stands on one domain or on neighbouring ones; 0 = no limit. `load` and `domain_load` are what
    the busiest rank and the busiest domain receive, relative to the mean. `library` is the one whose numbers the links
    hold.
    """

    tokens: float
    bytes_per_token: float
    top_k: int
    num_experts: int
    deduplicated: bool
    group_limit: int = 0
    num_groups: int = 1
    combine: bool = False
    load: float = 1.0
    domain_load: float = 1.0
    library: str = "deepep"


class BipartiteExchange(NamedTuple):
    """Tokens between attention devices and expert devices of a zebra group, in one direction.

    `tokens` of an attention rank, each `bytes_per_token`, to `top_k` experts, of whose copies the share `moved` goes to
    experts that stand on attention devices. `attention` and `experts` count the devices of the group.
    """

    tokens: float
    bytes_per_token: float
    top_k: int
    attention: int
    experts: int
    moved: float = 0.0

    @property
    def sent(self) -> float:
        """Bytes that cross the port of an attention device [B]: all but the copies for its own moved experts."""
        return self._copies * (1.0 - self.moved / self.attention)

    @property
    def received(self) -> float:
        """Bytes that cross the port of an expert device, for its experts [B]."""
        return self._copies * (1.0 - self.moved) * self.attention / self.experts

    @property
    def taken(self) -> float:
        """Bytes for the moved experts of an attention device, its own tokens among them [B]."""
        return self._copies * self.moved

    @property
    def _copies(self) -> float:
        return self.tokens * self.top_k * self.bytes_per_token


class HostLaunch(NamedTuple):
    """Time the host needs to launch the kernels of a layer pass [s]."""

    seconds: float


class HostUpdate(NamedTuple):
    """Parameters of a device that the host updates, and what each one moves down as gradient and up as weight [B]."""

    parameters: float
    gradient_bytes: float
    weight_bytes: float
    overlapped: bool


Work = (
    Gemm
    | GroupedGemm
    | AttentionCore
    | MemoryBound
    | Collective
    | TokenExchange
    | BipartiteExchange
    | HostLaunch
    | HostUpdate
)


class Operator(NamedTuple):
    """One kernel or collective of a pass.

    Attributes
    ----------
    name : str
        ``attention.qkv``, ``moe.dispatch``, ...
    category : str
        As in `simmoe.graph.task.Operation`.
    work : Work
        What it does.
    stream : str
        The stream it runs on, see `simmoe.graph.template.STREAMS`.
    saved : float
        Bytes that this operator's results keep until the backward pass [B].
    module : str
        The name under which Megatron's ``--recompute-modules`` knows it; ``""`` = only full recomputation.
    """

    name: str
    category: str
    work: Work
    stream: str = "compute"
    saved: float = 0.0
    module: str = ""
