"""Accelerators, links, nodes and clusters, each number with its source."""

from collections.abc import Callable
from enum import StrEnum
from typing import Literal

from pydantic import Field

from simmoe.specs.base import (
    Bandwidth,
    Count,
    Quantity,
    Seconds,
    SourcedBandwidth,
    SourcedBytes,
    SourcedFlops,
    SourcedNumber,
    SourcedPrice,
    SourcedSeconds,
    SourcedSqrt,
    SourcedWatts,
    Spec,
)
from simmoe.specs.faults import Fault


class Dtype(StrEnum):
    """Arithmetic of a matrix unit."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"


class PeakFlops(Spec):
    """Dense peak rate per dtype, without structured sparsity; absent = not supported."""

    fp32: SourcedFlops | None = None
    tf32: SourcedFlops | None = None
    fp16: SourcedFlops | None = None
    bf16: SourcedFlops | None = None
    fp8: SourcedFlops | None = None
    fp4: SourcedFlops | None = None

    def get(self, dtype: Dtype) -> Quantity | None:
        """The peak of a dtype, or None where the part has none."""
        value: Quantity | None = getattr(self, dtype.value)
        return value

    def supported(self) -> tuple[str, ...]:
        """The dtypes this part has."""
        return tuple(dtype.value for dtype in Dtype if self.get(dtype) is not None)


class GemmEfficiency(Spec):
    """Parameters of the dense GEMM model (see `simmoe.cost.kernels.gemm_time`).

    Attributes
    ----------
    launch : Quantity
        Launch and prologue of one kernel, t0 [s].
    compute : Quantity
        Asymptotic fraction of the peak FLOP/s, with full waves of the largest tile [1].
    memory : Quantity
        Fraction of the memory bandwidth [1].
    k_fill : Quantity
        K0, the cost of filling the k loop in units of k [1].
    tile_overhead : Quantity or None
        Extra time of a small output tile (`simmoe.cost.kernels.tile_utilisation`), None = none [1].
    blockwise : Quantity or None
        Rate with a scale for every block of 128 (precision ``fp8-blockwise``) relative to one scale for a tensor,
        where the matrix unit does not apply the scales itself; None = 1 [1].
    sustained : Quantity
        Rate inside a long training step relative to the microbenchmark [1].
    """

    dtype: Dtype
    launch: SourcedSeconds
    compute: SourcedNumber
    memory: SourcedNumber
    k_fill: SourcedNumber
    tile_overhead: SourcedNumber | None = None
    blockwise: SourcedNumber | None = None
    sustained: SourcedNumber


class AttentionEfficiency(Spec):
    """Parameters of a fused attention kernel (see `simmoe.cost.attention.attention_time`).

    Attributes
    ----------
    kernel : str
        ``fa2``, ``fa3``, ``cudnn``, ``triton-fa1``, ``memory-efficient``, ``math``; with ``-fp8`` behind it the same
        with 8-bit inputs.
    head_dim : int
        Head width the fit was made for; the nearest one is used.
    launch : Quantity
        t0 [s].
    compute : Quantity
        Asymptotic fraction of the peak FLOP/s of its arithmetic, forward [1].
    length_fill : Quantity
        K, start and end of a block's walk along its keys, twice in units of keys [1].
    window_fill : Quantity or None
        The same under a sliding window, where it differs [1].
    block_fill : Quantity
        w, how much of its longest block the kernel waits for [1].
    backward : Quantity
        Backward efficiency relative to forward [1].
    sustained : Quantity
        Rate inside a long training step relative to the microbenchmark [1].
    """

    kernel: str
    head_dim: Count
    launch: SourcedSeconds
    compute: SourcedNumber
    length_fill: SourcedNumber
    window_fill: SourcedNumber | None = None
    block_fill: SourcedNumber
    backward: SourcedNumber
    sustained: SourcedNumber


class GroupedGemmEfficiency(Spec):
    """Parameters of the expert (grouped) GEMM (see `simmoe.cost.kernels.grouped_gemm_time`).

    Attributes
    ----------
    kernel : str
        ``te``: Transformer Engine's loop of cuBLAS products over the experts, which training stacks run. Kernels of
        inference servers that take all experts at once: ``trtllm``, ``deepgemm``, ``triton``, ``flashinfer``.
    launch : Quantity
        Launch and prologue of one call, t0 [s].
    expert_launch : Quantity or None
        What each expert adds to it; absent = nothing [s].
    compute : Quantity
        Asymptotic fraction of the peak FLOP/s [1].
    memory : Quantity
        Fraction of the memory bandwidth [1].
    token_fill, width_fill : Quantity
        Tokens of an expert, and length of the inner product, at which half of the rate is lost [1].
    blockwise : Quantity or None
        As in `GemmEfficiency`; None = 1 [1].
    sustained : Quantity
        Rate inside a long training step relative to the microbenchmark [1].
    wgrad : Quantity
        Rate of the weight gradient relative to forward [1].
    """

    kernel: str = "te"
    dtype: Dtype
    launch: SourcedSeconds
    expert_launch: SourcedSeconds | None = None
    compute: SourcedNumber
    memory: SourcedNumber
    token_fill: SourcedNumber
    width_fill: SourcedNumber
    blockwise: SourcedNumber | None = None
    sustained: SourcedNumber
    wgrad: SourcedNumber


class MemoryBoundEfficiency(Spec):
    """Parameters of operators limited by memory bandwidth: t0 + bytes / (BW * fraction)."""

    operator: Literal["elementwise", "norm", "softmax", "permute", "cross_entropy", "optimizer", "cast"]
    launch: SourcedSeconds
    memory: SourcedNumber


class Efficiency(Spec):
    """What an accelerator really reaches, from measurements."""

    gemm: tuple[GemmEfficiency, ...]
    attention: tuple[AttentionEfficiency, ...]
    grouped_gemm: tuple[GroupedGemmEfficiency, ...]
    memory_bound: tuple[MemoryBoundEfficiency, ...]

    def with_sustained(self, change: Callable[[Quantity], Quantity]) -> "Efficiency":
        """The fits with every ``sustained`` factor changed; operators limited by memory have none."""

        def changed(fit: Spec) -> Spec:
            factor: Quantity | None = getattr(fit, "sustained", None)
            return fit if factor is None else fit.model_copy(update={"sustained": change(factor)})

        tables = type(self).model_fields
        return self.model_copy(update={table: tuple(map(changed, getattr(self, table))) for table in tables})


class Accelerator(Spec):
    """One GPU or NPU as software sees it (MI250X is two of these).

    `efficiency_of` names the accelerator whose kernel tables it takes where it has none. `sustained_clock` is
    the clock it holds in a long step over that one's, where a power limit sets it [1].
    """

    id: str
    name: str
    vendor: str
    architecture: str
    compute_capability: str = ""
    release_year: Count
    peak_flops: PeakFlops
    memory: SourcedBytes
    memory_bandwidth: SourcedBandwidth
    l2_cache: SourcedBytes | None = None
    sm_count: SourcedNumber
    tdp: SourcedWatts
    attention_kernels: tuple[str, ...] = ()
    price_per_hour: SourcedPrice | None = None
    efficiency_of: str = ""
    sustained_clock: SourcedNumber | None = None
    efficiency: Efficiency


class SmallMessages(Spec):
    """The same for messages below a size, where NCCL takes a protocol of less latency and less bandwidth."""

    below: SourcedBytes
    latency: SourcedSeconds
    bus_bandwidth: SourcedBandwidth
    sqrt_term: SourcedSqrt | None = None


class CollectiveFit(Spec):
    """Time of one collective: t = a + n/B + c*sqrt(n), busbw capped (see `simmoe.cost.collectives.fitted_time`).

    n is the nccl-tests size (the full buffer); B follows from the bus bandwidth by the factor of the collective. On a
    scale-up link `ranks` of one domain take part. On a network link `ranks` counts domains, and the bandwidth is what
    one port carries.
    """

    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    ranks: Count
    latency: SourcedSeconds
    bus_bandwidth: SourcedBandwidth
    sqrt_term: SourcedSqrt | None = None
    peak_bus_bandwidth: SourcedBandwidth | None = None
    small: SmallMessages | None = None


class ExchangeFit(Spec):
    """Time of an expert dispatch or combine by a library that sends a token once to each place.

    Attributes
    ----------
    library : str
        ``deepep``, ``hybridep`` or ``uccl``.
    dispatch, combine : Quantity
        Fraction of the link's bandwidth that it reaches [1].
    dispatch_latency, combine_latency : Quantity
        Of an empty exchange [s].
    dispatch_message, combine_message : Quantity or None
        Time that each copy of a token takes besides its bytes, on this link of one accelerator [s].
    forward : Quantity or None
        Share of the rates of a scale-up link that is left while tokens also pass to and from the network [1].
    """

    library: Literal["deepep", "hybridep", "uccl"]
    dispatch: SourcedNumber
    combine: SourcedNumber
    dispatch_latency: SourcedSeconds
    combine_latency: SourcedSeconds
    dispatch_message: SourcedSeconds | None = None
    combine_message: SourcedSeconds | None = None
    forward: SourcedNumber | None = None


class Link(Spec):
    """A wire with its protocol: bandwidth per direction, of one accelerator (scale-up) or one port (network)."""

    id: str
    name: str
    kind: Literal["scale_up", "network", "pcie"]
    bandwidth: SourcedBandwidth
    latency: SourcedSeconds
    achievable: SourcedNumber
    collectives: tuple[CollectiveFit, ...] = ()
    exchanges: tuple[ExchangeFit, ...] = ()


class ScaleUp(Spec):
    """The fast network inside a node or rack.

    Attributes
    ----------
    domain : int
        Accelerators that reach each other at this speed (8 in a DGX, 72 in an NVL72 rack).
    topology : str
        ``switch`` (every pair at full rate), ``mesh``, ``pairs`` or ``host`` (through the CPU's PCIe root).
    """

    link: Link
    domain: Count
    topology: Literal["switch", "mesh", "pairs", "host"]


class Node(Spec):
    """One host: its accelerators, their scale-up network, its network ports."""

    id: str
    name: str
    accelerator: Accelerator
    accelerators: Count
    scale_up: ScaleUp
    pcie: Link
    network_ports: SourcedNumber


class NodeGroup(Spec):
    """Equal nodes that stand together; ranks fill groups in the order written."""

    node: Node
    count: Count
    nodes_per_domain: Count | None = None

    @property
    def devices(self) -> int:
        """Accelerators of the group."""
        return self.count * self.node.accelerators

    @property
    def domain_devices(self) -> int:
        """Accelerators that share one scale-up domain as the job is placed."""
        per_node = self.node.accelerators
        fitting = max(1, self.node.scale_up.domain // per_node)
        nodes = min(self.nodes_per_domain or fitting, fitting, self.count)
        return nodes * per_node if fitting > 1 else min(per_node, self.node.scale_up.domain)


class Fabric(Spec):
    """The network between nodes.

    Attributes
    ----------
    link : Link
        What one port is.
    topology : str
        ``rail`` (rail-optimised, full bisection), ``fat_tree`` or ``flat``.
    oversubscription : float
        Bandwidth below a leaf switch over bandwidth above it; 1 = none [1].
    bandwidth, latency : float or None
        What-if overrides of the link's own numbers [B/s, s].
    """

    link: Link
    topology: Literal["rail", "fat_tree", "flat"] = "rail"
    oversubscription: float = Field(default=1.0, ge=1)
    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None

    @property
    def port_bandwidth(self) -> float:
        """Nominal bandwidth of one port and direction [B/s]."""
        return self.bandwidth if self.bandwidth is not None else self.link.bandwidth.value

    @property
    def port_latency(self) -> float:
        """Latency of one message [s]."""
        return self.latency if self.latency is not None else self.link.latency.value


class Cluster(Spec):
    """Ordered groups of nodes, unlike ones allowed, what joins them, and what is wrong with some."""

    name: str = ""
    groups: tuple[NodeGroup, ...] = Field(min_length=1)
    fabric: Fabric
    cross_group: Fabric | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def devices(self) -> int:
        """All accelerators."""
        return sum(group.devices for group in self.groups)

    @property
    def nodes(self) -> int:
        """All nodes."""
        return sum(group.count for group in self.groups)

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """The distinct accelerators, in order of appearance."""
        return tuple({group.node.accelerator.id: group.node.accelerator for group in self.groups}.values())
