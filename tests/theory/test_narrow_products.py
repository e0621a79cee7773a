"""A stack whose narrow products are slow: 1 + h0/h on the shorter side of the weight, whatever the pass."""

import pytest

from simmoe.cost.backward import backward
from simmoe.cost.device import KernelWork, device_of, kernel_time
from simmoe.cost.kernels import NARROWEST, narrow_factor
from simmoe.cost.operators import Gemm, GroupedGemm, MemoryBound, Operator
from simmoe.specs import catalog
from simmoe.specs.base import Kind, Quantity
from simmoe.specs.workload import Precision

DEVICE = device_of(catalog.accelerator("h100-sxm5-80gb"))
PLAIN = catalog.software("megatron-core-2025")
FILL = 1024.0


def seconds(work: KernelWork, fill: float | None) -> float:
    number = None if fill is None else Quantity(value=fill, unit="1", text=str(fill), source="test", kind=Kind.GUESS)
    return kernel_time(work, DEVICE, Precision.BF16, PLAIN.model_copy(update={"narrow_gemm_fill": number}))


@pytest.mark.parametrize("side", [512, 1024, 2048, 4096])
@pytest.mark.parametrize("wide", [4096, 14336])
def test_the_shorter_side_of_the_weight_counts_in_every_pass(side: int, wide: int) -> None:
    for product in (Gemm(8192, wide, side), Gemm(8192, side, wide), GroupedGemm(4, 2048, wide, side)):
        for work in (product, *(one.work for one in backward(Operator("x", "gemm", product)))):
            assert isinstance(work, Gemm | GroupedGemm)
            assert seconds(work, FILL) == pytest.approx(seconds(work, None) * (1 + FILL / side), rel=1e-12)


def test_tokens_do_not_count() -> None:
    few, many = Gemm(1024, 4096, 4096, "wgrad"), Gemm(4096, 4096, 1024, "wgrad")
    assert narrow_factor(few, FILL) == 1 + FILL / 1024  # the weight is 1024 x 4096
    assert narrow_factor(many, FILL) == 1 + FILL / 4096  # 1024 tokens


def test_a_router_is_left_alone() -> None:
    router = Gemm(8192, NARROWEST - 1, 4096, high_precision=True)
    for work in (router, *(one.work for one in backward(Operator("moe.router", "gemm", router)))):
        assert isinstance(work, Gemm)
        assert seconds(work, FILL) == seconds(work, None)
    assert narrow_factor(router._replace(n=NARROWEST), FILL) == 1 + FILL / NARROWEST


def test_nothing_else_changes_and_no_fill_is_none() -> None:
    norm = MemoryBound("norm", 1e9)
    assert seconds(norm, FILL) == seconds(norm, None)
    product = Gemm(8192, 4096, 4096)
    assert seconds(product, 0.0) == seconds(product, None)
