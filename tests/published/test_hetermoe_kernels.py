"""What HeterMoE (arXiv 2504.03871) prints about single modules, the inputs of its reproduction.

The stack ``deepspeed-moe-2024`` is fitted to these figures, so they say that the fit is kept, not that it predicts.
"""

import pytest

from simmoe.cost.device import device_of, fused_attention
from simmoe.specs import catalog
from tools.fits.hetermoe import (
    A40,
    A100,
    L40S,
    ROWS,
    STACK,
    T4,
    V100,
    K,
    Setting,
    attention_module,
    balance,
    busy_ratio,
    crossover,
    expert_module,
    misses,
    ratio,
    shipped,
)

FITTED = 0.05  # of a ratio of two GPUs


@pytest.fixture(scope="module")
def setting() -> Setting:
    return shipped()


@pytest.mark.parametrize(("slow", "fast", "printed"), [(V100, A40, 1 / 0.80), (T4, L40S, 7.0)])
def test_experts_run_at_the_ratios_of_figure_2(setting: Setting, slow: str, fast: str, printed: float) -> None:
    assert ratio(expert_module(), slow, fast, setting) == pytest.approx(printed, rel=FITTED)


@pytest.mark.parametrize(
    ("slow", "fast", "length", "printed"), [(V100, A40, 64, 3.7), (T4, L40S, 4, 9.9), (T4, L40S, 64, 13.6)]
)
def test_attention_runs_at_the_ratios_of_figure_2(
    setting: Setting, slow: str, fast: str, length: int, printed: float
) -> None:
    assert ratio(attention_module(length * K), slow, fast, setting) == pytest.approx(printed, rel=FITTED)


def test_the_older_gpu_falls_behind_with_length_in_attention_alone(setting: Setting) -> None:
    ratios = [ratio(attention_module(length * K), V100, A40, setting) for length in (4, 8, 16, 32, 64)]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 1.4 * ratios[0]


@pytest.mark.parametrize(("model", "low", "high"), [("d1", 20, 24), ("w1", 28, 32)])
def test_attention_takes_as_long_as_experts_between_two_tested_lengths(
    setting: Setting, model: str, low: int, high: int
) -> None:
    assert balance(model, low * K, setting) < 1 < balance(model, high * K, setting)
    assert low < crossover(model, setting) < high


def test_both_kinds_of_gpu_are_busy_in_the_printed_proportion(setting: Setting) -> None:
    assert busy_ratio(8 * K, setting) == pytest.approx(0.55 / 0.89, rel=0.03)


def test_kernels_alone_do_not_meet_the_lengths(setting: Setting) -> None:
    """The narrow products of the stack are needed: without them width doubles the length of equal time."""
    fast = Setting(setting.software.model_copy(update={"narrow_gemm_fill": None}))
    assert crossover("w1", fast) > 1.7 * crossover("d1", fast)
    assert crossover("w1", setting) < 1.5 * crossover("d1", setting)
    assert len(misses(ROWS, fast)) >= 2


def test_the_check_of_the_fit_agrees(setting: Setting) -> None:
    assert not misses(ROWS, setting)


def test_an_a100_is_two_a40(setting: Setting) -> None:
    assert ratio(attention_module(16 * K), A40, A100, setting) == pytest.approx(2.1, rel=FITTED)
    assert ratio(expert_module(), A40, A100, setting) == pytest.approx(2.1, rel=FITTED)


@pytest.mark.parametrize("id", [id for id in catalog.list_ids("software") if id != STACK])
def test_no_other_stack_takes_part(id: str) -> None:
    stack = catalog.software(id)
    assert stack.narrow_gemm_fill is None
    for part in (A40, V100, L40S, T4, A100):
        kernel = fused_attention(device_of(catalog.accelerator(part)), stack, 128)
        assert kernel is None or kernel.kernel != "deepspeed"
