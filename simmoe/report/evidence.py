"""Which numbers of the hardware database a simulation rested on, each with its place and its source."""

from collections.abc import Iterator

from simmoe.cost.device import (
    UNFUSED,
    Device,
    device_of,
    fused_attention,
    select_attention,
    select_dtype,
    select_experts,
    select_fit,
)
from simmoe.report.result import Result
from simmoe.report.wires import used_wires
from simmoe.specs.base import Spec
from simmoe.specs.hardware import Accelerator, Dtype
from simmoe.specs.numbers import Number, label, numbers_of
from simmoe.specs.scenario import Scenario


def numbers_used(result: Result) -> tuple[Number, ...]:
    """The numbers of the hardware database that a run read.

    Parameters
    ----------
    result : Result

    Returns
    -------
    tuple of Number
        In the order accelerators, nodes, links, software; each once. Of an accelerator only the fits of the
        arithmetic and kernels that ran; of a link only the collectives that ran on it.
    """
    scenario = result.scenario
    found = [number for part in used_accelerators(result) for number in _accelerator_numbers(part, scenario)]
    found += used_wires(result).numbers()
    found += _software_numbers(scenario)
    return tuple({number.path: number for number in found}.values())


def used_accelerators(result: Result) -> tuple[Accelerator, ...]:
    """The accelerators that ranks run on, in the order of the ranks."""
    return tuple({rank.accelerator: result.accelerator(rank) for rank in result.ranks}.values())


def used_fits(accelerator: Accelerator, scenario: Scenario) -> dict[str, tuple[Spec, ...]]:
    """The fits of an accelerator that price the kernels of a scenario.

    Returns
    -------
    dict
        Table of `Efficiency` -> its fits that are used; a table that is not used is left out.
    """
    device, model = device_of(accelerator), scenario.model
    efficiency = accelerator.efficiency
    dtypes = used_dtypes(device, scenario)
    fits: dict[str, tuple[Spec, ...]] = {
        "gemm": tuple(select_fit(device, "gemm", efficiency.gemm, dtype) for dtype in dtypes)
    }
    attention = _attention_fit(device, scenario)
    if attention is not None:
        fits["attention"] = (attention,)
    operators = {"elementwise", "norm", "cross_entropy", "optimizer"}
    if attention is None or getattr(attention, "kernel", UNFUSED) == UNFUSED:
        operators.add("softmax")
    if scenario.training.precision.casts and len(dtypes) > 1:
        operators.add("cast")
    if model.moe is not None:
        fits["grouped_gemm"] = (select_experts(device, scenario.training.software.grouped_gemm, dtypes[0]),)
        operators |= {"permute", "softmax"}
    fits["memory_bound"] = tuple(fit for fit in efficiency.memory_bound if fit.operator in operators)
    return fits


def used_dtypes(device: Device, scenario: Scenario) -> tuple[Dtype, ...]:
    """The arithmetic of weight products, then that of everything else if it is another."""
    precision = scenario.training.precision
    return tuple(dict.fromkeys(select_dtype(device, precision, cast=cast) for cast in (True, False)))


def _attention_fit(device: Device, scenario: Scenario) -> Spec | None:
    width, training = scenario.model.attention.qk_dim, scenario.training
    fit = fused_attention(device, training.software, width, fp8=training.fp8_attention)
    return fit or select_attention(device.efficiency.attention, (UNFUSED,), width)


def _accelerator_numbers(accelerator: Accelerator, scenario: Scenario) -> Iterator[Number]:
    """What a run reads of an accelerator."""
    part = f"accelerator {accelerator.id}"
    for dtype in used_dtypes(device_of(accelerator), scenario):
        peak = getattr(accelerator.peak_flops, dtype)
        yield Number(part, f"peak_flops.{dtype}", peak)
    for name in ("memory", "memory_bandwidth", "sm_count", "tdp", "price_per_hour"):
        quantity = getattr(accelerator, name)
        if quantity is not None:
            yield Number(part, name, quantity)
    unused = set() if scenario.model.attention.sliding_window else {"window_fill"}
    for table, fits in used_fits(accelerator, scenario).items():
        for fit in fits:
            for number in numbers_of(fit, part, f"efficiency.{table}{label(fit)}."):
                if number.name.rpartition(".")[2] not in unused:
                    yield number


def _software_numbers(scenario: Scenario) -> Iterator[Number]:
    """What a run reads of its software stack."""
    software, training = scenario.training.software, scenario.training
    scope, model = scenario.plan.cuda_graph_scope, scenario.model
    unused = {"dense_spread" if model.moe else "moe_spread"}
    if "full_iteration" in scope:
        unused |= {name for name in type(software).model_fields if name.startswith("host_")}
    if not training.precision.casts:
        unused |= {"host_fp8_layer", "host_fp8_experts"}
    if not scenario.plan.overlap_moe_expert_parallel_comm:
        unused.add("host_overlap_factor")
    if model.num_moe_layers == 0:
        unused |= {"host_moe_layer", "host_router", "host_preprocess"}
    if model.num_moe_layers == model.num_layers:
        unused.add("host_dense_layer")
    for number in numbers_of(software, f"software {software.id}"):
        if number.name not in unused:
            yield number
