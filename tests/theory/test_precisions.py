"""What a precision recipe runs in, casts and keeps."""

import pytest

from simmoe.cost.blocks import gemm, mlp_block
from simmoe.cost.device import device_of, kernel_time, select_dtype, select_fit
from simmoe.cost.operators import Gemm, MemoryBound
from simmoe.cost.shard import Shard, shard_of
from simmoe.errors import SpecError
from simmoe.specs import catalog
from simmoe.specs.base import Quantity
from simmoe.specs.hardware import Dtype
from simmoe.specs.software import SoftwareStack
from simmoe.specs.workload import Precision
from tests.scenarios import small

ONE = Quantity(value=1.0, unit="1", text="1", source="test", kind="guess")
FUSED = SoftwareStack.model_construct(attention="fused", elementwise_traffic=ONE)


@pytest.mark.parametrize(
    ("precision", "dtype", "element", "cast"),
    [
        ("bf16", Dtype.BF16, 2.0, 0.0),
        ("fp8-delayed", Dtype.FP8, 1.0, 4.0),  # read 2, write rows 1 and columns 1
        ("fp8-current", Dtype.FP8, 1.0, 6.0),  # and read 2 for the maximum
        ("fp8-blockwise", Dtype.FP8, 1.0, 4.0625),  # and 4 B for every 128, twice
        ("mxfp8", Dtype.FP8, 1.0, 4.1875),  # and 1 B for every 32, twice, written, read and written again
        ("nvfp4", Dtype.FP4, 0.5625, 7.375),  # read 2 three times, write 0.5 and 3/16 twice
    ],
)
def test_what_a_recipe_casts(precision: str, dtype: Dtype, element: float, cast: float) -> None:
    recipe = Precision(precision)
    assert (recipe.gemm_dtype, recipe.activation_dtype) == (dtype, Dtype.BF16)
    assert recipe.gemm_bytes == pytest.approx(element, rel=1e-12)
    assert recipe.cast_bytes == pytest.approx(cast, rel=1e-12)


def test_a_cast_moves_the_bytes_of_the_recipe() -> None:
    """Expectation: forward m k elements, backward m n, 7.375 B each under nvfp4."""
    shard = Shard(batch=1, sequence=128, fp8=True, cast_bytes=7.375, cast_size=0.5625)
    cast, product = gemm("up", 128, 512, 256, shard)
    assert isinstance(cast.work, MemoryBound)
    assert cast.work.bytes == pytest.approx(7.375 * 128 * 256)
    assert cast.work.gradient_bytes == pytest.approx(7.375 * 128 * 512)
    assert product.work == Gemm(128, 512, 256)


def test_what_is_kept_for_a_weight_gradient_is_kept_as_it_was_cast() -> None:
    """The activation's output stays as the down product's input: 2 B in bf16, 9/16 B under nvfp4."""

    def kept(precision: str) -> float:
        scenario = small(f"training.precision={precision}")
        shard = shard_of(scenario.plan.stages[0], scenario.plan, scenario.training, scenario.routing)
        block = mlp_block(scenario.model, shard, 4096)
        return next(operator.saved for operator in block if operator.name == "mlp.activation")

    bf16 = kept("bf16")
    assert kept("mxfp8") == pytest.approx(bf16 / 2)


def test_blackwell_runs_weight_gemms_in_fp4_and_the_router_in_bf16() -> None:
    part = device_of(catalog.accelerator("b200"))
    assert select_dtype(part, Precision.NVFP4, cast=True) is Dtype.FP4
    assert select_dtype(part, Precision.NVFP4, cast=False) is Dtype.BF16
    work = Gemm(8192, 8192, 8192)
    times = [kernel_time(work, part, precision, FUSED) for precision in Precision if precision in FASTER]
    assert times == sorted(times, reverse=True)
    router = work._replace(high_precision=True)
    assert kernel_time(router, part, Precision.NVFP4, FUSED) == kernel_time(router, part, Precision.BF16, FUSED)


@pytest.mark.parametrize(("part", "factor"), [("h100-sxm5-80gb", 0.82), ("b200", 1.0)])
def test_scales_of_blocks_slow_hopper_and_not_blackwell(part: str, factor: float) -> None:
    """Expectation: the time above the launch is divided by the factor of the part."""
    device, work = device_of(catalog.accelerator(part)), Gemm(8192, 8192, 8192)
    tensor, block = (
        kernel_time(work, device, precision, FUSED) for precision in (Precision.FP8_CURRENT, Precision.FP8_BLOCKWISE)
    )
    launch = select_fit(device, "gemm", device.efficiency.gemm, Dtype.FP8).launch.value
    assert (tensor - launch) / (block - launch) == pytest.approx(factor, rel=1e-9)


FASTER = (Precision.BF16, Precision.MXFP8, Precision.NVFP4)  # in the order of the enumeration


def test_a_scenario_on_hopper_refuses_fp4() -> None:
    with pytest.raises(SpecError, match="nvfp4 needs fp4"):
        small("training.precision=nvfp4")
