"""Kernel times against closed forms and limits, and how a device chooses its kernels."""

import pytest

from simmoe.cost.attention import attention_time, attention_unfused_time
from simmoe.cost.device import Device, device_of, kernel_time, select_attention, select_dtype
from simmoe.cost.kernels import gemm_time, grouped_gemm_time, memory_bound_time, tile_utilisation
from simmoe.cost.operators import AttentionCore, Gemm, GroupedGemm, MemoryBound
from simmoe.errors import SpecError
from simmoe.specs import catalog
from simmoe.specs.base import Quantity
from simmoe.specs.hardware import (
    AttentionEfficiency,
    Dtype,
    Efficiency,
    GemmEfficiency,
    GroupedGemmEfficiency,
    MemoryBoundEfficiency,
)
from simmoe.specs.software import SoftwareStack
from simmoe.specs.workload import Precision


def number(value: float) -> Quantity:
    return Quantity(value=value, unit="1", text=str(value), source="test", kind="guess")


def gemm_fit(**changes: float) -> GemmEfficiency:
    values = {"launch": 0.0, "compute": 1.0, "memory": 1.0, "k_fill": 0.0, "sustained": 1.0} | changes
    return GemmEfficiency.model_construct(dtype=Dtype.BF16, **{key: number(value) for key, value in values.items()})


def grouped_fit(**changes: float) -> GroupedGemmEfficiency:
    values = {"launch": 0.0, "compute": 1.0, "memory": 1.0, "token_fill": 0.0, "width_fill": 0.0}
    values |= {"sustained": 1.0, "wgrad": 1.0} | changes
    return GroupedGemmEfficiency.model_construct(
        kernel="te", expert_launch=None, dtype=Dtype.BF16, **{key: number(value) for key, value in values.items()}
    )


def attention_fit(kernel: str = "fa2", head_dim: int = 128, **changes: float) -> AttentionEfficiency:
    values = {"launch": 0.0, "compute": 1.0, "length_fill": 0.0, "block_fill": 0.0, "backward": 1.0, "sustained": 1.0}
    return AttentionEfficiency.model_construct(
        kernel=kernel, head_dim=head_dim, **{key: number(value) for key, value in (values | changes).items()}
    )


def memory_fit(operator: str = "norm", launch: float = 0.0, memory: float = 1.0) -> MemoryBoundEfficiency:
    return MemoryBoundEfficiency.model_construct(operator=operator, launch=number(launch), memory=number(memory))


def core(**changes: object) -> AttentionCore:
    shape = AttentionCore(batch=2, heads=16, kv_heads=16, queries=2048, keys=2048, qk_dim=128, v_dim=128, causal=True)
    return shape._replace(**changes)


# 108 x 128 x 256 outputs: one full wave of the largest tile on 108 multiprocessors
FULL = {"peak": 1e14, "bandwidth": 1e15, "sm_count": 108, "element_bytes": 2}
GROUPED = {"peak": 1e14, "bandwidth": 1e15, "element_bytes": 2}


# ---------------------------------------------------------------- GEMM


@pytest.mark.parametrize(
    ("m", "n", "sm_count", "expected"),
    [
        (128 * 108, 256, 108, 1.0),  # one full wave
        (128 * 109, 256, 108, 872 / (0.35 * 972 + 0.65 * 872)),  # 64 x 64 tiles: 872 in 9 waves of 108
        (64, 64, 108, 1 / 108),  # one tile on one multiprocessor
        (1, 64, 108, 1 / 64 / 108),
    ],
)
def test_tile_utilisation(m: int, n: int, sm_count: int, expected: float) -> None:
    assert tile_utilisation(m, n, sm_count) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("m", "n", "expected"),
    [
        (128 * 108, 256, 1.0),  # one full wave of the largest tile pays no overhead
        (64, 64, 1 / 108 / (2.0 / 1.375)),  # one 64 x 64 tile: (1 + 0.5 x 2) / (1 + 0.5 x 0.75)
        # One 128 x 128 tile, (1 + 0.5 x 1) / 1.375 times the largest one's time, not four of 64 x 64.
        (128, 128, 4 / 108 / (2.0 / 1.375)),
    ],
)
def test_small_tiles_cost_more(m: int, n: int, expected: float) -> None:
    assert tile_utilisation(m, n, 108, 0.5) == pytest.approx(expected, rel=1e-12)


def test_a_gemm_of_full_waves_runs_at_the_peak() -> None:
    """Expectation: 2 m n k / P."""
    work = Gemm(128 * 108, 256, 4096)
    assert gemm_time(work, **FULL, efficiency=gemm_fit()) == pytest.approx(work.flops / 1e14, rel=1e-12)


def test_the_parts_of_a_gemm_time() -> None:
    """Expectation: t0 + F / (P e s) (1 + K0/k)."""
    work = Gemm(128 * 108, 256, 1000)
    fit = gemm_fit(launch=1e-6, compute=0.5, sustained=0.8, k_fill=100.0)
    expected = 1e-6 + work.flops / (1e14 * 0.4) * 1.1
    assert gemm_time(work, **FULL, efficiency=fit) == pytest.approx(expected, rel=1e-12)


def test_a_thin_gemm_is_bound_by_its_weights() -> None:
    """Expectation: b (m k + k n) + 2 m n over the bandwidth."""
    slow = FULL | {"bandwidth": 1e9}
    moved = 2 * (8 * 4096 + 4096 * 4096 + 8 * 4096)
    actual = gemm_time(Gemm(8, 4096, 4096), **slow, efficiency=gemm_fit(memory=0.5))
    assert actual == pytest.approx(moved / 0.5e9, rel=1e-12)


def test_fp8_halves_the_input_traffic_but_not_the_output() -> None:
    slow = FULL | {"bandwidth": 1e9, "element_bytes": 1}
    actual = gemm_time(Gemm(8, 4096, 4096), **slow, efficiency=gemm_fit())
    assert actual == pytest.approx((8 * 4096 + 4096 * 4096 + 2 * 8 * 4096) / 1e9, rel=1e-12)


def test_a_weight_gradient_is_slower_and_accumulates_in_fp32() -> None:
    forward, wgrad = Gemm(128 * 108, 256, 4096), Gemm(128 * 108, 256, 4096, pass_="wgrad")
    ratio = gemm_time(wgrad, **FULL, efficiency=gemm_fit()) / gemm_time(forward, **FULL, efficiency=gemm_fit())
    assert ratio == pytest.approx(1 / 0.95, rel=1e-12)
    slow = FULL | {"bandwidth": 1e9}
    m, n, k = 4096, 4096, 8
    expected = (2 * (m * k + k * n) + 8 * m * n) / 1e9
    assert gemm_time(Gemm(m, n, k, pass_="wgrad"), **slow, efficiency=gemm_fit()) == pytest.approx(expected)


def test_no_work_takes_no_time() -> None:
    assert gemm_time(Gemm(0, 8, 8), **FULL, efficiency=gemm_fit(launch=1.0)) == 0
    assert grouped_gemm_time(GroupedGemm(4, 0.0, 8, 8), **GROUPED, efficiency=grouped_fit(launch=1.0)) == 0
    assert attention_time(core(queries=0), peak=1e14, sm_count=108, efficiency=attention_fit(launch=1.0)) == 0
    assert memory_bound_time(MemoryBound("norm", 0.0), bandwidth=1e12, efficiency=memory_fit(launch=1.0)) == 0


# ---------------------------------------------------------------- experts


def test_the_parts_of_a_grouped_gemm_time() -> None:
    """Expectation: t0 + F / (P e s) (1 + T0/T) (1 + I0/k)."""
    work = GroupedGemm(8, 512.0, 2048, 1000)
    fit = grouped_fit(launch=2e-5, compute=0.5, sustained=0.8, token_fill=64.0, width_fill=100.0)
    expected = 2e-5 + work.flops / (1e14 * 0.4) * (1 + 64 / 512) * 1.1
    assert grouped_gemm_time(work, **GROUPED, efficiency=fit) == pytest.approx(expected, rel=1e-12)


def test_few_tokens_cost_the_weights_of_every_expert() -> None:
    slow = GROUPED | {"bandwidth": 1e9}
    expected = 2 * (8 * 1024 + 8 * 1024 * 2048 + 8 * 2048) / 1e9
    actual = grouped_gemm_time(GroupedGemm(8, 1.0, 2048, 1024), **slow, efficiency=grouped_fit())
    assert actual == pytest.approx(expected, rel=1e-12)


def test_a_grouped_weight_gradient() -> None:
    work = GroupedGemm(8, 512.0, 2048, 1024, pass_="wgrad")
    fast = grouped_gemm_time(work, **GROUPED, efficiency=grouped_fit(wgrad=0.8))
    assert fast == pytest.approx(work.flops / 0.8e14, rel=1e-12)
    slow = grouped_gemm_time(work, **(GROUPED | {"bandwidth": 1e9}), efficiency=grouped_fit())
    assert slow == pytest.approx((2 * 8 * 512 * (1024 + 2048) + 8 * 8 * 1024 * 2048) / 1e9, rel=1e-12)


# ---------------------------------------------------------------- attention


def test_attention_runs_at_its_rate_when_the_gpu_is_full() -> None:
    """Expectation: F / (P e s) (1 + K/L), F = 2 b h (L^2/2) (d_qk + d_v)."""
    flops = 2 * 2 * 16 * (2048**2 / 2) * 256
    fit = attention_fit(compute=0.5, length_fill=512.0, sustained=0.8)
    actual = attention_time(core(), peak=1e14, sm_count=100, efficiency=fit)
    assert actual == pytest.approx(flops / 0.4e14 * 1.25, rel=1e-12)


def test_backward_attention_does_five_products_for_two() -> None:
    forward = attention_time(core(), peak=1e14, sm_count=100, efficiency=attention_fit(backward=0.8))
    backward = attention_time(core(backward=True), peak=1e14, sm_count=100, efficiency=attention_fit(backward=0.8))
    assert backward / forward == pytest.approx(2.5 / 0.8, rel=1e-12)


def test_the_longest_block_comes_on_top_of_the_mean_load() -> None:
    """Expectation: 512 blocks of 100 multiprocessors; the longest sees 2048 keys, the mean 1024, of which 256 fill."""
    full = attention_time(core(), peak=1e14, sm_count=100, efficiency=attention_fit())
    fit = attention_fit(length_fill=512.0, block_fill=0.6)
    walk = (1024 + 256) + 0.6 * (2048 + 256) * 100 / 512
    assert attention_time(core(), peak=1e14, sm_count=100, efficiency=fit) == pytest.approx(
        full * walk / 1024, rel=1e-12
    )
    both = core(backward=True)
    walk = (1024 + 256) + 0.3 * (2048 + 256) * 100 / 512  # half of it in backward
    assert attention_time(both, peak=1e14, sm_count=100, efficiency=fit) == pytest.approx(
        2.5 * full * walk / 1024, rel=1e-12
    )


def test_one_block_runs_no_faster_on_more_multiprocessors() -> None:
    """Expectation: with w = 1 a single head of 128 queries takes what one multiprocessor needs, and its mean load."""
    one = core(batch=1, heads=1, queries=128, keys=128, causal=False)
    for count in (100, 200):
        actual = attention_time(one, peak=1e12 * count, sm_count=count, efficiency=attention_fit(block_fill=1.0))
        assert actual == pytest.approx(one.flops / 1e12 * (1 + 1 / count), rel=1e-12)


def test_a_window_caps_the_cost_of_long_sequences() -> None:
    def seconds(length: int) -> float:
        work = core(queries=length, keys=length, window=1024)
        return attention_time(work, peak=1e14, sm_count=100, efficiency=attention_fit(block_fill=0.5))

    assert seconds(65536) / seconds(32768) == pytest.approx(2.0, rel=0.01)


def test_a_window_has_a_fill_of_its_own_and_no_longest_block() -> None:
    """Expectation: every query but the first 1024 sees 1024 keys; 1024 - 1024^2 / (2 x 8192) = 960 on average."""
    work = core(batch=1, queries=8192, keys=8192, window=1024)
    assert work.most_keys == 1024
    fit = attention_fit(length_fill=512.0, window_fill=960.0, block_fill=1.0)
    walk = (960 + 480) + (1024 + 480) * 100 / 1024
    actual = attention_time(work, peak=1e14, sm_count=100, efficiency=fit)
    assert actual == pytest.approx(work.flops / 1e14 * walk / 960, rel=1e-12)
    unwindowed = attention_time(work._replace(window=8192), peak=1e14, sm_count=100, efficiency=fit)
    assert unwindowed == attention_time(work._replace(window=None), peak=1e14, sm_count=100, efficiency=fit)


def test_unfused_attention_is_products_plus_traffic() -> None:
    scores = 2 * 16 * 2048**2
    fits = {
        "products": attention_fit("math", compute=0.5),
        "softmax": memory_fit("softmax", memory=0.75),
    }
    actual = attention_unfused_time(core(), peak=1e14, bandwidth=1e12, element_bytes=2, **fits)
    assert actual == pytest.approx(4 * scores * 128 / 0.5e14 + 13 * scores / 0.75e12, rel=1e-12)
    backward = attention_unfused_time(core(backward=True), peak=1e14, bandwidth=1e12, element_bytes=2, **fits)
    assert backward == pytest.approx(8 * scores * 128 / 0.5e14 + 18 * scores / 0.75e12, rel=1e-12)


# ---------------------------------------------------------------- choosing


def test_the_fastest_available_kernel_at_the_nearest_width_is_chosen() -> None:
    rows = [
        attention_fit("math", compute=0.9),
        attention_fit("fa2", 64, compute=0.3),
        attention_fit("fa2", compute=0.4),
        attention_fit("fa3", compute=0.6),
    ]
    chosen = {
        available: select_attention(rows, available, width)
        for available, width in ((("fa2",), 80), (("fa3", "fa2"), 192), (("fa3",), 128))
    }
    assert [(fit.kernel, fit.head_dim) for fit in chosen.values() if fit] == [
        ("fa2", 64),
        ("fa3", 128),
        ("fa3", 128),
    ]
    assert select_attention(rows, ("cudnn",), 128) is None
    assert select_attention(rows, (), 128) is None
    preferred = select_attention(rows, ("fa3", "fa2"), 128, preferred=("triton-fa1", "fa2"))
    assert preferred is not None
    assert preferred.kernel == "fa2"


def device(peaks: dict[Dtype, float], **tables: tuple[object, ...]) -> Device:
    empty = {"gemm": (), "attention": (), "grouped_gemm": (), "memory_bound": ()}
    return Device("x1", peaks, 1e12, 100, ("fa2",), Efficiency.model_construct(**(empty | tables)))


def stack(attention: str = "fused", kernels: tuple[str, ...] = ()) -> SoftwareStack:
    return SoftwareStack.model_construct(
        attention=attention, attention_kernels=kernels, elementwise_traffic=number(1), grouped_gemm="te"
    )


def test_an_fp8_recipe_falls_back_to_bf16_where_there_is_no_fp8() -> None:
    old, new = device({Dtype.BF16: 1e14}), device({Dtype.BF16: 1e14, Dtype.FP8: 2e14})
    assert select_dtype(old, Precision.FP8_BLOCKWISE, cast=True) is Dtype.BF16
    assert select_dtype(new, Precision.FP8_BLOCKWISE, cast=True) is Dtype.FP8
    assert select_dtype(new, Precision.FP8_BLOCKWISE, cast=False) is Dtype.BF16


def test_router_and_logits_stay_in_sixteen_bits() -> None:
    part = device(
        {Dtype.BF16: 1e14, Dtype.FP8: 2e14},
        gemm=(gemm_fit(), gemm_fit(compute=0.5).model_copy(update={"dtype": Dtype.FP8})),
    )
    work = Gemm(12800, 256, 8192)
    plain = kernel_time(work._replace(high_precision=True), part, Precision.MXFP8, stack())
    assert plain == pytest.approx(work.flops / 1e14, rel=1e-12)
    assert kernel_time(work, part, Precision.MXFP8, stack()) == pytest.approx(plain, rel=1e-12)


def test_missing_arithmetic_and_tables_are_named() -> None:
    volta = device({Dtype.FP16: 1e14})
    with pytest.raises(SpecError, match=r"x1: peak_flops: no bf16 \(it has fp16\), set training.precision"):
        kernel_time(Gemm(8, 8, 8), volta, Precision.BF16, stack())
    for work, sentence in (
        (Gemm(8, 8, 8), "the gemm table lacks a row with dtype fp16"),
        (GroupedGemm(8, 8, 8, 8), "the grouped_gemm table lacks a row with dtype fp16"),
        (core(), "the attention table lacks a row with kernel fa2 or math"),
        (MemoryBound("cast", 8.0), "the memory_bound table lacks a row with operator cast"),
    ):
        with pytest.raises(SpecError, match=sentence):
            kernel_time(work, volta, Precision.FP16, stack())


def test_the_stack_decides_whether_scores_go_through_memory() -> None:
    part = device(
        {Dtype.BF16: 1e14},
        attention=(attention_fit("fa2"), attention_fit("math")),
        memory_bound=(memory_fit("softmax"),),
    )
    unfused = kernel_time(core(), part, Precision.BF16, stack("unfused"))
    assert unfused > 2 * kernel_time(core(), part, Precision.BF16, stack())
    no_fused = part._replace(fused_attention=())
    assert kernel_time(core(), no_fused, Precision.BF16, stack()) == unfused


def test_the_stack_says_which_kernel_of_several_runs() -> None:
    part = device({Dtype.BF16: 1e14}, attention=(attention_fit("fa2"), attention_fit("triton-fa1", compute=0.5)))
    part = part._replace(fused_attention=("fa2", "triton-fa1"))
    fast = kernel_time(core(), part, Precision.BF16, stack())
    assert kernel_time(core(), part, Precision.BF16, stack(kernels=("cudnn", "triton-fa1"))) == 2 * fast
    assert kernel_time(core(), part, Precision.BF16, stack(kernels=("cudnn",))) == fast  # none of its own: the fastest


def test_attention_takes_eight_bits_only_where_asked_and_possible() -> None:
    rows = (attention_fit("fa2"), attention_fit("fa2-fp8", compute=0.75))
    part = device({Dtype.BF16: 1e14, Dtype.FP8: 2e14}, attention=rows)._replace(fused_attention=("fa2", "fa2-fp8"))
    sixteen = kernel_time(core(), part, Precision.MXFP8, stack())
    eight = kernel_time(core(), part, Precision.MXFP8, stack(kernels=("fa2",)), fp8_attention=True)
    assert sixteen / eight == pytest.approx(1.5, rel=1e-12)
    old = part._replace(fused_attention=("fa2",))
    assert kernel_time(core(), old, Precision.MXFP8, stack(), fp8_attention=True) == sixteen


def test_a_short_run_keeps_the_rates_of_benchmarks() -> None:
    part = catalog.accelerator("h100-sxm5-80gb")
    for table in ("gemm", "attention", "grouped_gemm"):
        assert any(fit.sustained.value < 1 for fit in getattr(device_of(part).efficiency, table))
        short = getattr(device_of(part, sustained=False).efficiency, table)
        assert {fit.sustained.value for fit in short} == {1.0}


@pytest.mark.parametrize("name", catalog.list_ids("accelerator"))
def test_every_shipped_accelerator_can_time_every_kernel(name: str) -> None:
    part = device_of(catalog.accelerator(name))
    precision = Precision.BF16 if Dtype.BF16 in part.peaks else Precision.FP16
    works = [Gemm(4096, 4096, 4096), GroupedGemm(8, 512.0, 2048, 4096), core(), core(backward=True)]
    works += [
        MemoryBound(operator, 1e8)
        for operator in ("elementwise", "norm", "softmax", "permute", "cross_entropy", "optimizer", "cast")
    ]
    for work in works:
        for attention in ("fused", "unfused"):
            assert 1e-6 < kernel_time(work, part, precision, stack(attention)) < 0.1
