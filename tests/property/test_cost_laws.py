"""Laws that every time must obey, whatever the shape, the part or the network.

Costs are never negative, grow with the work, never beat the nominal rate of a unit or a wire, and a group of one
communicates for free.
"""

from hypothesis import given
from hypothesis import strategies as st

from simmoe.cost.attention import attention_time, attention_unfused_time
from simmoe.cost.collectives import collective_time, local_time
from simmoe.cost.exchange import exchange_time, expected_places
from simmoe.cost.groups import GroupShape
from simmoe.cost.kernels import gemm_time, grouped_gemm_time, memory_bound_time, tile_utilisation
from simmoe.cost.network import Fit, Network, Wire
from simmoe.cost.operators import AttentionCore, Collective, Gemm, GroupedGemm, MemoryBound, TokenExchange
from simmoe.specs.base import Quantity
from simmoe.specs.hardware import (
    AttentionEfficiency,
    Dtype,
    GemmEfficiency,
    GroupedGemmEfficiency,
    MemoryBoundEfficiency,
)

ROUNDING = 1 + 1e-9
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")

size = st.integers(1, 1 << 17)
fraction = st.floats(0.05, 1.0)
filling = st.floats(0.0, 2000.0)
launch = st.floats(0.0, 1e-4)
nbytes = st.floats(0.0, 1e12)


def number(value: float) -> Quantity:
    return Quantity(value=value, unit="1", text=str(value), source="test", kind="guess")


def numbers(**parts: st.SearchStrategy[float]) -> st.SearchStrategy[dict[str, Quantity]]:
    return st.fixed_dictionaries({name: part.map(number) for name, part in parts.items()})


gemm_fits = numbers(launch=launch, compute=fraction, memory=fraction, k_fill=filling, sustained=fraction).map(
    lambda values: GemmEfficiency.model_construct(dtype=Dtype.BF16, **values)
)
grouped_fits = numbers(
    launch=launch,
    compute=fraction,
    memory=fraction,
    token_fill=filling,
    width_fill=filling,
    sustained=fraction,
    wgrad=fraction,
    expert_launch=launch,
).map(lambda values: GroupedGemmEfficiency.model_construct(kernel="te", dtype=Dtype.BF16, **values))
attention_fits = numbers(
    launch=launch, compute=fraction, length_fill=filling, block_fill=filling, backward=fraction, sustained=fraction
).map(lambda values: AttentionEfficiency.model_construct(kernel="fa2", head_dim=128, window_fill=None, **values))
memory_fits = numbers(launch=launch, memory=fraction).map(
    lambda values: MemoryBoundEfficiency.model_construct(operator="norm", **values)
)
passes = st.sampled_from(("forward", "dgrad", "wgrad"))

PART = {"peak": 1e15, "bandwidth": 3e12, "element_bytes": 2}


# ---------------------------------------------------------------- kernels


@given(size, size, st.integers(1, 304))
def test_utilisation_is_a_fraction(m: int, n: int, sm_count: int) -> None:
    assert 0 < tile_utilisation(m, n, sm_count) <= 1


@given(size, size, size, passes, gemm_fits, st.sampled_from(("m", "n", "k")), st.integers(1, 5000))
def test_gemm_laws(m: int, n: int, k: int, pass_: str, fit: GemmEfficiency, axis: str, more: int) -> None:
    work = Gemm(m, n, k, pass_)
    seconds = gemm_time(work, **PART, sm_count=132, efficiency=fit)
    assert seconds * ROUNDING >= fit.launch.value + work.flops / PART["peak"]
    larger = work._replace(**{axis: getattr(work, axis) + more})
    assert gemm_time(larger, **PART, sm_count=132, efficiency=fit) * ROUNDING >= seconds


@given(
    st.integers(1, 256),
    st.floats(0.0, 1e5),
    size,
    size,
    passes,
    grouped_fits,
    st.sampled_from(("groups", "tokens", "n", "k")),
)
def test_grouped_gemm_laws(
    groups: int, tokens: float, n: int, k: int, pass_: str, fit: GroupedGemmEfficiency, axis: str
) -> None:
    work = GroupedGemm(groups, tokens, n, k, pass_)
    seconds = grouped_gemm_time(work, **PART, efficiency=fit)
    assert seconds * ROUNDING >= work.flops / PART["peak"]
    larger = work._replace(**{axis: getattr(work, axis) + 1})
    assert grouped_gemm_time(larger, **PART, efficiency=fit) * ROUNDING >= seconds


@st.composite
def cores(draw: st.DrawFn) -> AttentionCore:
    """Shapes of self-attention, with context parallelism and windows."""
    queries = draw(st.integers(1, 32768))
    keys = queries * draw(st.sampled_from((1, 2, 8)))
    heads = draw(st.integers(1, 128))
    width = draw(st.sampled_from((64, 128, 192)))
    window = draw(st.none() | st.integers(1, 65536))
    return AttentionCore(
        draw(st.integers(1, 8)),
        heads,
        heads,
        queries,
        keys,
        width,
        width,
        draw(st.booleans()),
        window,
        draw(st.booleans()),
    )


@given(cores(), attention_fits, st.sampled_from(("batch", "heads", "queries", "keys")))
def test_attention_laws(core: AttentionCore, fit: AttentionEfficiency, axis: str) -> None:
    seconds = attention_time(core, peak=1e15, sm_count=132, efficiency=fit)
    assert seconds * ROUNDING >= fit.launch.value + core.flops / 1e15
    larger = core._replace(**{axis: getattr(core, axis) + 1})
    assert attention_time(larger, peak=1e15, sm_count=132, efficiency=fit) * ROUNDING >= seconds


@given(cores(), attention_fits, memory_fits)
def test_unfused_attention_moves_the_whole_square(
    core: AttentionCore, products: AttentionEfficiency, softmax: MemoryBoundEfficiency
) -> None:
    seconds = attention_unfused_time(core, **PART, products=products, softmax=softmax)
    scores = core.batch * core.heads * core.queries * core.keys
    assert seconds * ROUNDING >= 13 * scores / PART["bandwidth"]


@given(nbytes, nbytes, memory_fits)
def test_memory_bound_laws(few: float, more: float, fit: MemoryBoundEfficiency) -> None:
    one, both = (
        memory_bound_time(MemoryBound("norm", amount), bandwidth=3e12, efficiency=fit) for amount in (few, few + more)
    )
    assert both >= one >= few / 3e12


# ---------------------------------------------------------------- collectives


@st.composite
def fits(draw: st.DrawFn, bandwidth: float) -> tuple[Fit, ...]:
    """Measured collectives of a link, none faster than the link."""
    found = []
    for kind in draw(st.sets(st.sampled_from(KINDS))):
        ranks = 2 if kind == "send_recv" else draw(st.integers(2, 8))
        bus = bandwidth * draw(st.floats(0.1, 1.0))
        found.append(Fit(kind, ranks, draw(st.floats(0, 1e-4)), bus, draw(st.floats(0, 1e-7)), bus))
    return tuple(found)


@st.composite
def networks(draw: st.DrawFn, *, measured: bool = True) -> Network:
    bandwidth = draw(st.floats(1e9, 2e12))
    return Network(
        scale_up_bandwidth=bandwidth,
        scale_up_achievable=draw(fraction),
        scale_up_latency=draw(st.floats(0, 1e-4)),
        topology=draw(st.sampled_from(("switch", "mesh", "pairs", "host"))),
        domain=8,
        fits=draw(fits(bandwidth)) if measured else (),
        port=Wire(draw(st.floats(1e8, 1e11)), draw(st.floats(0, 1e-4))),
        host=Wire(draw(st.floats(1e9, 1e11)), draw(st.floats(0, 1e-4))),
    )


@st.composite
def shapes(draw: st.DrawFn) -> GroupShape:
    """Groups of up to 16384 ranks, equal domains of 1 to 8."""
    per_domain, domains = draw(st.integers(1, 8)), draw(st.integers(1, 2048))
    return GroupShape(per_domain * domains, per_domain, domains)


kinds = st.sampled_from(KINDS)


def seconds_of(kind: str, amount: float, shape: GroupShape, network: Network) -> float:
    return collective_time(Collective(kind, "dp", amount), shape, network)


@given(kinds, nbytes, nbytes, shapes(), networks())
def test_more_bytes_take_longer(kind: str, amount: float, more: float, shape: GroupShape, network: Network) -> None:
    seconds = seconds_of(kind, amount, shape, network)
    assert 0 <= seconds <= seconds_of(kind, amount + more, shape, network) * ROUNDING < float("inf")


@given(kinds, nbytes, st.integers(1, 8), st.integers(2, 2000), networks())
def test_more_domains_take_longer(kind: str, amount: float, per_domain: int, domains: int, network: Network) -> None:
    """The domain's own part stays; only an all-to-all may gain, whose share inside the domain shrinks."""
    if kind == "all_to_all" and per_domain > 1:
        return
    fewer, more = (
        seconds_of(kind, amount, GroupShape(per_domain * count, per_domain, count), network)
        for count in (domains, domains + 1)
    )
    assert fewer <= more * ROUNDING


@given(nbytes, st.integers(2, 64), networks(measured=False))
def test_more_ranks_on_a_switch_take_longer(amount: float, ranks: int, network: Network) -> None:
    switch = network._replace(topology="switch", domain=128)
    for kind in KINDS:
        assert local_time(kind, amount, ranks, switch) <= local_time(kind, amount, ranks + 1, switch) * ROUNDING


@given(nbytes, shapes(), networks(measured=False))
def test_an_all_reduce_is_no_faster_than_its_halves(amount: float, shape: GroupShape, network: Network) -> None:
    """Only where both may take a tree: over several ranks of several domains NCCL gathers round a ring."""
    if not shape.local and shape.per_domain > 1:
        return
    whole = seconds_of("all_reduce", amount, shape, network)
    for half in ("reduce_scatter", "all_gather"):
        assert whole * ROUNDING >= seconds_of(half, amount, shape, network)


@given(kinds, st.floats(1.0, 1e12), shapes(), networks())
def test_no_wire_carries_more_than_it_can(kind: str, amount: float, shape: GroupShape, network: Network) -> None:
    """Every rank receives at least (N-1)/N of the buffer; (D-1)/D of it enters a domain over its rails."""
    if shape.size == 1:
        return
    seconds = seconds_of(kind, amount, shape, network)
    if kind == "send_recv":
        wire = network.scale_up_bandwidth if shape.local else network.port.bandwidth
        assert amount <= wire * seconds * ROUNDING
        return
    received = amount * (shape.size - 1) / shape.size
    widest = network.scale_up_bandwidth + (0.0 if shape.local else network.port.bandwidth)
    assert received <= widest * seconds * ROUNDING
    if not shape.local:
        entering = amount * (shape.domains - 1) / shape.domains
        rails = 1 if kind == "all_to_all" else shape.per_domain
        assert entering <= rails * network.port.bandwidth * seconds * ROUNDING


@given(kinds, nbytes, networks())
def test_a_group_of_one_is_free(kind: str, amount: float, network: Network) -> None:
    assert seconds_of(kind, amount, GroupShape(1, 1, 1), network) == 0.0
    work = TokenExchange(amount, 1.0, 2, 8, deduplicated=True)
    assert exchange_time(work, GroupShape(1, 1, 1), network) == 0.0


# ---------------------------------------------------------------- expert exchange


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 64), st.integers(0, 16))
def test_expected_places_lie_between_one_and_all(places: int, per_place: int, top_k: int, limit: int) -> None:
    experts = places * per_place
    found = expected_places(places, experts, min(top_k, experts), limit)
    reachable = min(places, limit or places)
    assert 1 / ROUNDING <= found <= min(reachable, top_k, experts) * ROUNDING


@given(
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.integers(1, 16),
    st.booleans(),
    st.booleans(),
    shapes(),
    networks(),
)
def test_more_tokens_and_more_experts_a_token_take_longer(
    tokens: float, more: float, top_k: int, dedup: bool, combine: bool, shape: GroupShape, network: Network
) -> None:
    work = TokenExchange(tokens, 8192.0, top_k, max(64, shape.size), dedup, combine=combine)
    seconds = exchange_time(work, shape, network)
    assert 0 <= seconds < float("inf")
    assert seconds <= exchange_time(work._replace(tokens=tokens + more), shape, network) * ROUNDING
    assert seconds <= exchange_time(work._replace(top_k=top_k + 1), shape, network) * ROUNDING


@given(st.floats(1, 1e6), st.integers(1, 16), st.booleans(), shapes(), networks())
def test_the_ports_carry_every_deduplicated_token_once_a_domain(
    tokens: float, top_k: int, limited: bool, shape: GroupShape, network: Network
) -> None:
    if shape.local:
        return
    limit = 1 if limited else 0
    work = TokenExchange(
        tokens, 8192.0, top_k, shape.size, deduplicated=True, group_limit=limit, num_groups=shape.domains
    )
    domains = expected_places(shape.domains, shape.size, min(top_k, shape.size), limit)
    crossing = tokens * 8192.0 * domains * (shape.domains - 1) / shape.domains
    assert crossing <= network.port.bandwidth * exchange_time(work, shape, network) * ROUNDING
