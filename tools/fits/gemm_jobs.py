"""Which published table each accelerator's GEMM parameters are fitted to, and which ones they are tested on."""

from functools import cache, partial
from typing import NamedTuple

from simmoe.specs.hardware import Dtype
from tools.fits.gemm_tables import (
    Loader,
    Products,
    aiconfigurator,
    llmcompass,
    llmservingsim,
    neusight,
    sailor,
    simumax,
    vidur,
)

SIXTEEN_BIT = ("bf16", "fp16")


class Test(NamedTuple):
    """A table that a part's parameters are tested on and were not fitted to.

    Attributes
    ----------
    name : str
        Told beside the source where a source has several tables.
    load : callable
    counts : bool
        Same GPU and kernels of the same age: its bias goes into the spread of `compute`, and it is also fitted and
        tested on the first table.
    """

    name: str
    load: Loader
    counts: bool = True


class Job(NamedTuple):
    """One fit.

    Attributes
    ----------
    part : str
        Accelerator whose table is written.
    dtype : Dtype
        What runs.
    variants : tuple of str
        Rows that take the parameters.
    load : callable
        The table fitted to, whole; `Products.split` keeps a fifth out.
    tests : tuple of Test
    measured : str
        Accelerator that was measured, where it is not `part`.
    launch_from : str
        Variant whose launch is taken over, where the table's constant is something else (quantisation, eager mode).
    """

    part: str
    dtype: Dtype
    variants: tuple[str, ...]
    load: Loader
    tests: tuple[Test, ...] = ()
    measured: str = ""
    launch_from: str = ""

    @property
    def device(self) -> str:
        """The accelerator that was measured."""
        return self.measured or self.part


def _load(function: Loader) -> Loader:
    """The same table read once."""
    return cache(function)


def _aic(folder: str, dtype: str) -> Loader:
    return _load(partial(aiconfigurator, folder, dtype))


def _blackwell(part: str, folder: str, bf16: tuple[Test, ...] = ()) -> list[Job]:
    """bf16, fp8 and fp4 of one folder."""
    folder = f"{folder}/gemm/trtllm/1.3.0rc20"
    return [
        Job(part, Dtype.BF16, SIXTEEN_BIT, _aic(folder, "bfloat16"), bf16),
        Job(part, Dtype.FP8, ("fp8",), _aic(folder, "fp8"), launch_from="bf16"),
        Job(part, Dtype.FP4, ("fp4",), _aic(folder, "nvfp4"), launch_from="bf16"),
    ]


def _neusight(part: str, device: str, train: str = "", measured: str = "") -> Job:
    """fp32 on the shapes of transformers, tested on random ones."""
    tests = (Test("random shapes", _load(partial(neusight, train, device)), counts=False),) if train else ()
    load = _load(partial(neusight, "test_linear.csv.gz", device))
    return Job(part, Dtype.FP32, ("fp32",), load, tests, measured, launch_from="fp32")


_H100 = "h100_sxm/gemm/trtllm/1.3.0rc20"
_H200 = "h200_sxm/gemm/trtllm/1.3.0rc20"
_SIMUMAX_B200 = (
    Test("forward", _load(partial(simumax, "b200_bf16_ceperm", "forward")), counts=False),
    Test("wgrad", _load(partial(simumax, "b200_bf16_ceperm", "wgrad")), counts=False),
)

JOBS = (
    Job(
        "a100-sxm4-80gb",
        Dtype.BF16,
        SIXTEEN_BIT,
        _aic("a100_sxm/gemm/sglang/0.5.10", "bfloat16"),
        (
            Test("trtllm", _aic("a100_sxm/gemm/trtllm/1.0.0", "bfloat16")),
            Test("", _load(partial(vidur, "vidur/compute/a100/*/*/mlp.csv.gz"))),
            Test("", _load(partial(llmcompass, "A100")), counts=False),
        ),
    ),
    Job("a40", Dtype.FP16, SIXTEEN_BIT, _load(partial(vidur, "vidur/compute/a40/*/*/mlp.csv.gz"))),
    Job(
        "h100-sxm5-80gb",
        Dtype.BF16,
        SIXTEEN_BIT,
        _aic(_H100, "bfloat16"),
        (
            Test("", _load(partial(vidur, "vidur/compute/h100/*/*/mlp.csv.gz"))),
            Test("", _load(partial(llmservingsim, "H100"))),
        ),
    ),
    Job("h100-sxm5-80gb", Dtype.FP8, ("fp8",), _aic(_H100, "fp8"), launch_from="bf16"),
    Job("h200-sxm-141gb", Dtype.BF16, SIXTEEN_BIT, _aic(_H200, "bfloat16")),
    Job("h200-sxm-141gb", Dtype.FP8, ("fp8",), _aic(_H200, "fp8"), launch_from="bf16"),
    *_blackwell("b200", "b200_sxm", _SIMUMAX_B200),
    *_blackwell("b300", "b300_sxm"),
    *_blackwell("gb200", "gb200"),
    *_blackwell("gb300", "gb300"),
    *_blackwell(
        "rtx-pro-6000-blackwell-server",
        "rtx_pro_6000_server",
        (Test("", _load(partial(llmservingsim, "RTXPRO6000"))),),
    ),
    Job("l40s", Dtype.BF16, SIXTEEN_BIT, _aic("l40s/gemm/vllm/0.24.0", "bfloat16")),
    Job("l40s", Dtype.FP8, ("fp8",), _aic("l40s/gemm/vllm/0.24.0", "fp8"), launch_from="bf16"),
    Job("arc-pro-b60", Dtype.BF16, SIXTEEN_BIT, _aic("b60/gemm/vllm/0.20.0", "bfloat16")),
    Job(
        "rtx-3090",
        Dtype.BF16,
        SIXTEEN_BIT,
        _load(partial(llmservingsim, "RTX3090")),
        (Test("", _load(partial(sailor, "RTX-3090"))),),
    ),
    Job("rtx-4090", Dtype.BF16, SIXTEEN_BIT, _load(partial(llmservingsim, "RTX4090"))),
    Job("rtx-a6000", Dtype.BF16, SIXTEEN_BIT, _load(partial(llmservingsim, "A6000"))),
    Job("tpu-v6e", Dtype.BF16, ("bf16",), _load(partial(llmservingsim, "TPU-v6e-1"))),
    Job("v100-sxm2-16gb", Dtype.FP16, ("fp16",), _load(partial(sailor, "V100-16")), launch_from="fp16"),
    Job("titan-rtx", Dtype.FP16, ("fp16",), _load(partial(sailor, "Titan-RTX")), launch_from="fp16"),
    _neusight("p100-pcie-16gb", "Tesla P100-PCIE-16GB", "train_linear_Tesla_P100-PCIE-16GB.csv.gz"),
    _neusight("v100-sxm2-16gb", "Tesla V100-PCIE-32GB", "train_linear_Tesla_V100-PCIE-32GB.csv.gz", "v100-pcie-32gb"),
    _neusight("t4", "Tesla T4", "train_linear_Tesla_T4.csv.gz"),
    _neusight("a100-sxm4-80gb", "NVIDIA A100 80GB PCIe", measured="a100-pcie-80gb"),
    _neusight("h100-sxm5-80gb", "NVIDIA H100 80GB HBM3"),
)


class Check(NamedTuple):
    """A part without a fit of its own, tested with the parameters it inherits."""

    part: str
    dtype: Dtype
    test: Test


CHECKS = (
    Check("a100-sxm4-40gb", Dtype.FP16, Test("", _load(partial(sailor, "A100-40")))),
    Check("a100-pcie-80gb", Dtype.BF16, Test("forward", _load(partial(simumax, "a100_pcie", "forward")))),
    Check("a100-pcie-80gb", Dtype.BF16, Test("wgrad", _load(partial(simumax, "a100_pcie", "wgrad")))),
    Check("a800-sxm4-80gb", Dtype.BF16, Test("", _load(partial(vidur, "frontier/a800/*/*/mlp.csv.xz")))),
    Check("gh200-96gb", Dtype.FP16, Test("", _load(partial(sailor, "GH-96")))),
    Check(
        "h800",
        Dtype.FP8,
        Test("", _load(partial(vidur, "frontier/h800/Llama-3.1-*/linear_op_kernel_only.csv.xz", casts=True))),
    ),
    Check("mi210", Dtype.FP16, Test("", _load(partial(llmcompass, "MI210")))),
)


def rows_of(products: Products) -> int:
    """How many measurements there are in the range of the fit."""
    return len(products.works)
