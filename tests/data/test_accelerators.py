"""The accelerators: all of the reference table, each with a time for every kernel, each review with its reading."""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from simmoe.cost.device import device_of, kernel_time
from simmoe.cost.operators import AttentionCore, Gemm, GroupedGemm, MemoryBound
from simmoe.specs import catalog
from simmoe.specs.base import Kind, Quantity
from simmoe.specs.hardware import Accelerator, Cluster, Dtype, Fabric, Node, NodeGroup, ScaleUp
from simmoe.specs.workload import Precision

HERE = Path(__file__).parent
DATABASE = HERE.parents[1] / "hardware_db"
IDS = sorted(path.stem for path in (DATABASE / "accelerators").glob("*.yaml"))
OTHER_NAME = {"h800-sxm5-80gb": "h800"}  # a row of the reference table -> the part it is
NOMINAL = ("peak", "memory", "memory_bandwidth")
OPERATORS = ("elementwise", "norm", "softmax", "permute", "cross_entropy", "optimizer", "cast")


def test_every_row_of_the_reference_table_is_a_part(shared):
    with (shared / "hardware" / "hardware.csv").open(newline="", encoding="utf-8") as file:
        rows = [row["name"].lower() for row in csv.DictReader(file)]
    assert {OTHER_NAME.get(row, row) for row in rows} <= set(IDS)
    assert len(rows) == 69


# ---------------------------------------------------------------- every part prices every kernel


def one_node(part: Accelerator) -> Cluster:
    """A cluster of one host with eight of a part on PCIe."""
    pcie, network = catalog.link("pcie-4-host"), catalog.link("ethernet-100")
    node = Node(
        id="host",
        name="One host",
        accelerator=part,
        accelerators=8,
        scale_up=ScaleUp(link=pcie, domain=8, topology="host"),
        pcie=pcie,
        network_ports=Quantity(value=1, unit="1", text="1", source="test", kind=Kind.GUESS),
    )
    return Cluster(groups=(NodeGroup(node=node, count=1),), fabric=Fabric(link=network))


def work() -> Iterator[tuple[str, Gemm | GroupedGemm | AttentionCore | MemoryBound]]:
    """One of each kind of kernel, of the size of a small model's."""
    for direction in ("forward", "dgrad", "wgrad"):
        yield f"gemm {direction}", Gemm(4096, 4096, 2048, direction)
        yield f"experts {direction}", GroupedGemm(8, 512.0, 1024, 2048, direction)
    yield "router", Gemm(4096, 64, 2048, "forward", high_precision=True)
    for backward in (False, True):
        for width in (64, 128, 192):
            core = AttentionCore(2, 16, 4, 2048, 2048, width, 128, causal=True, backward=backward)
            yield f"attention {width} {backward}", core
    for operator in OPERATORS:
        yield operator, MemoryBound(operator, 1e8)


def recipes(part: Accelerator) -> list[Precision]:
    """The precision recipes that a part can train in."""
    has = set(part.peak_flops.supported())
    found = [Precision(dtype) for dtype in ("fp16", "bf16") if dtype in has]
    return found + ([Precision.FP8_DELAYED] if {"fp8", "bf16"} <= has else [])


@pytest.mark.parametrize("stack", ["megatron-core-2025", "megatron-lm-2021"])
@pytest.mark.parametrize("id", IDS)
def test_every_kernel_takes_a_finite_time(id, stack):
    cluster, software = one_node(catalog.accelerator(id)), catalog.software(stack)
    assert cluster.devices == 8
    (part,) = cluster.accelerators
    device = device_of(part)
    assert recipes(part)
    for precision in recipes(part):
        for name, kernel in work():
            seconds = kernel_time(kernel, device, precision, software)
            assert math.isfinite(seconds), (precision, name)
            assert 1e-6 < seconds < 1, (precision, name, seconds)


@pytest.mark.parametrize("id", IDS)
def test_no_kernel_beats_the_peak_or_the_memory(id):
    part, software = catalog.accelerator(id), catalog.software("megatron-core-2025")
    device = device_of(part)
    for precision in recipes(part):
        for name, kernel in work():
            seconds = kernel_time(kernel, device, precision, software)
            if isinstance(kernel, MemoryBound):
                assert kernel.bytes / seconds <= device.bandwidth, name
            else:
                assert kernel.flops / seconds <= max(device.peaks.values()), (precision, name)


@pytest.mark.parametrize("id", IDS)
def test_the_numbers_of_a_part_fit_each_other(id):
    part = catalog.accelerator(id)
    peaks = {dtype: peak.value for dtype in Dtype if (peak := part.peak_flops.get(dtype)) is not None}
    order = [dtype for dtype in (Dtype.FP32, Dtype.TF32, Dtype.BF16, Dtype.FP8, Dtype.FP4) if dtype in peaks]
    for slow, fast in pairwise(order):
        assert peaks[slow] <= peaks[fast], (slow, fast)
    half = max(peaks.get(Dtype.FP16, 0.0), peaks.get(Dtype.BF16, 0.0))
    assert 15e12 < half < 5e15
    assert 10 < half / part.memory_bandwidth.value < 1000  # FLOP/B: bits read as bytes would leave this range
    assert 4e9 < part.memory.value < 400e9
    assert 50 <= part.tdp.value <= 2000


# ---------------------------------------------------------------- second readings


class Reading(NamedTuple):
    """One line of ``second_readings.csv``: what a second source says, typed from that source."""

    part: str
    field: str
    value: str
    source: str
    locator: str


def readings() -> list[Reading]:
    with (HERE / "second_readings.csv").open(newline="", encoding="utf-8") as file:
        return [Reading(**row) for row in csv.DictReader(file)]


def fields_of(part: Accelerator) -> Iterator[tuple[str, Quantity]]:
    """The numbers of a part that a datasheet prints, named as in the readings."""
    for dtype in Dtype:
        peak = part.peak_flops.get(dtype)
        if peak is not None:
            yield dtype.value, peak
    for name in ("memory", "memory_bandwidth", "l2_cache", "sm_count", "tdp"):
        number = getattr(part, name)
        if number is not None:
            yield name, number


SCALES = {"TFLOP/s": 1e12, "PFLOP/s": 1e15, "GB/s": 1e9, "TB/s": 1e12, "W": 1.0, "": 1.0}
SIZES = {"GB": 2.0**30, "GiB": 2.0**30, "MB": 2.0**20, "MiB": 2.0**20}  # vendors print GB and mean GiB


def printed(text: str, field: str) -> tuple[float, float]:
    """A printed number and half a unit of its last digit; a round number has two digits."""
    number, unit = re.fullmatch(r"([0-9.]+)\s*(.*)", text).groups()
    digits = number.replace(".", "").lstrip("0") if "." in number else number.rstrip("0")
    scale = (SIZES if field in {"memory", "l2_cache"} else SCALES)[unit]
    step = 10.0 ** (math.floor(math.log10(float(number))) - max(len(digits), 2) + 1)
    return float(number) * scale, 0.5 * step * scale


def agree(ours: str, theirs: str, field: str) -> bool:
    """Whether two printed numbers may be the same one: equal within 0.1 %, or after rounding to the shorter one."""
    (x, half_x), (y, half_y) = printed(ours, field), printed(theirs, field)
    apart = abs(x - y)
    return apart <= 1e-3 * x or (apart <= 1.000001 * max(half_x, half_y) and apart < 0.02 * x)


@pytest.mark.parametrize(
    ("ours", "theirs", "field", "same"),
    [
        ("312 TFLOP/s", "312 TFLOP/s", "bf16", True),
        ("1979 TFLOP/s", "1978 TFLOP/s", "fp8", True),  # twice 989.4
        ("1935 GB/s", "1.94 TB/s", "memory_bandwidth", True),
        ("71.2 TFLOP/s", "71 TFLOP/s", "bf16", True),
        ("3.35 TB/s", "3.36 TB/s", "memory_bandwidth", False),
        ("80 TFLOP/s", "0.075 PFLOP/s", "fp32", False),
        ("1677 TFLOP/s", "1835 TFLOP/s", "bf16", False),
        ("180 GiB", "192 GB", "memory", False),
        ("24 GiB", "24 GB", "memory", True),
        ("58", "60", "sm_count", False),
    ],
)
def test_printed_numbers_are_compared_at_their_precision(ours, theirs, field, same):
    assert agree(ours, theirs, field) is same


# 288 GB of B300 are decimal: nvidia-smi shows 275040 MiB, and a table that prints 288 GB means the same.
DECIMAL = {("b300", "memory")}


def test_every_review_rests_on_a_reading_that_agrees():
    held = {(one.part, one.field, one.source): one.value for one in readings()}
    for id in IDS:
        for field, number in fields_of(catalog.accelerator(id)):
            if number.reviewed:
                value = held.get((id, field, number.reviewed))
                assert value is not None, (id, field, number.reviewed)
                assert (id, field) in DECIMAL or agree(number.text, value, field), (id, field, number.text, value)


def test_a_reading_that_agrees_is_not_left_out():
    parts = {id: dict(fields_of(catalog.accelerator(id))) for id in IDS}
    for one in readings():
        number = parts[one.part].get(one.field)
        assert number is not None, one
        counts = one.source != number.source and number.kind is not Kind.GUESS
        if counts and agree(number.text, one.value, one.field):
            assert number.reviewed, one


def test_readings_are_sorted_and_their_sources_known():
    lines = readings()
    assert lines == sorted(lines)
    assert len({(one.part, one.field, one.source) for one in lines}) == len(lines)
    assert {one.source for one in lines} <= set(catalog.sources())
    assert all(one.locator for one in lines)


def test_most_nominal_numbers_are_confirmed_by_a_second_source():
    confirmed, all_numbers = Counter(), Counter()
    for id in IDS:
        for field, number in fields_of(catalog.accelerator(id)):
            kind = "peak" if field in set(Dtype) else field
            if number.kind is not Kind.GUESS:
                all_numbers[kind] += 1
                confirmed[kind] += bool(number.reviewed)
    share = sum(confirmed[kind] for kind in NOMINAL) / sum(all_numbers[kind] for kind in NOMINAL)
    assert share > 0.88
