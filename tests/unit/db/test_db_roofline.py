"""``simmoe db roofline``."""

import json
from pathlib import Path

import pytest

from simmoe.report.roofline import ATTENTION, EXPERTS, GEMMS, Roof, rooflines
from simmoe.report.roofline_plot import MARKERS
from simmoe.specs import catalog
from simmoe.specs.hardware import Dtype
from tests.command_line import Simmoe, files


def test_the_roofline_is_that_of_the_data_sheet_and_of_the_fit() -> None:
    (found,) = rooflines([catalog.accelerator("a100-sxm4-80gb")], Dtype.BF16)
    part = catalog.accelerator("a100-sxm4-80gb")
    fit = next(one for one in part.efficiency.gemm if one.dtype is Dtype.BF16)
    assert found.nominal == Roof(312e12, 2.039e12)
    assert round(found.nominal.ridge) == 153
    assert found.achieved is not None
    assert found.achieved.peak == pytest.approx(312e12 * fit.compute.value * fit.sustained.value)
    assert found.achieved.bandwidth < found.nominal.bandwidth
    assert {dot.name for dot in found.dots} == {*GEMMS, *EXPERTS, "attention"} == set(MARKERS)
    for dot in found.dots:
        assert dot.rate < found.nominal.at(dot.intensity), dot.name
    medium = next(dot for dot in found.dots if dot.name == "GEMM medium")
    assert medium.intensity == pytest.approx(4096 / 3)  # 2 n^3 over three matrices of n^2 elements of 2 B
    attention = next(dot for dot in found.dots if dot.name == "attention")
    assert attention.flops == ATTENTION.flops
    few, many = (next(d for d in found.dots if d.name == name) for name in EXPERTS)
    assert few.rate < many.rate
    assert all(number.part == "accelerator a100-sxm4-80gb" for number in found.numbers)


def test_every_accelerator_has_a_roofline_in_every_arithmetic_of_its_own() -> None:
    for id in catalog.list_ids("accelerator"):
        part = catalog.accelerator(id)
        for dtype in part.peak_flops.supported():
            (found,) = rooflines([part], Dtype(dtype))
            assert found.achieved is None or found.achieved.ridge > 0
            assert all(dot.rate > 0 for dot in found.dots), (id, dtype)


def test_roofline_names_the_part_that_lacks_the_arithmetic(simmoe: Simmoe) -> None:
    found = simmoe("db", "roofline", "h100-sxm5-80gb", "v100-sxm2-16gb")
    sentence = "accelerator v100-sxm2-16gb: no bf16 (it has fp32, fp16), say --dtype fp16\n"
    assert found == (2, "", sentence)
    assert simmoe("db", "roofline", "h100-sxm5-80gb", "v100-sxm2-16gb", "--dtype", "fp16").status == 0
    assert simmoe("db", "roofline", "t4", "--dtype", "bf17") == (
        2,
        "",
        "--dtype 'bf17' is not known, did you mean bf16?\n",
    )
    assert simmoe("db", "roofline", "h100").err.startswith("'h100' is not an accelerator (did you mean h100-")


@pytest.mark.parametrize("width", ["80", "120"])
def test_roofline_prints_a_table(simmoe: Simmoe, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    out = simmoe("db", "roofline", "a100-sxm4-80gb", "b200", "a100-sxm4-80gb").out
    first = [line.split() for line in out.splitlines() if line.split()[:1] == ["a100-sxm4-80gb"]]
    assert len(first) == 2
    assert first[0][:2] == ["a100-sxm4-80gb", "312"]
    assert all(len(line) <= int(width) for line in out.splitlines())
    assert "…" not in out


def test_roofline_as_json(simmoe: Simmoe) -> None:
    found = json.loads(simmoe("db", "roofline", "a100-sxm4-80gb", "--json", "-").out)
    (part,) = found["parts"]
    assert found["dtype"] == "bf16"
    assert part["nominal"]["ridge_flop_per_byte"] == pytest.approx(312e12 / 2.039e12)
    assert {kernel["name"] for kernel in part["kernels"]} == set(MARKERS)
    assert {number["name"] for number in part["numbers"]} >= {"peak_flops.bf16", "memory_bandwidth"}
    assert simmoe("db", "roofline", "b200", "--json", "x.json").out == "Wrote x.json\n"
    assert json.loads(Path("x.json").read_text())["parts"][0]["id"] == "b200"


@pytest.mark.parametrize("name", ["roof.svg", "roof.png"])
def test_roofline_as_a_picture(simmoe: Simmoe, name: str) -> None:
    pytest.importorskip("matplotlib")
    ids = ("h100-sxm5-80gb", "a100-sxm4-80gb")
    assert simmoe("db", "roofline", *ids, "--output", name).out == f"Wrote {name}\n"
    first = Path(name).read_bytes()
    assert len(first) > 5000
    if name.endswith(".svg"):
        text = first.decode()
        for words in (
            "NVIDIA H100 SXM5 80 GB",
            "[FLOP/B]",
            "[TFLOP/s]",
            "nominal",
            "achieved",
            "attention",
            "Sources: ",
        ):
            assert words in text, words
        simmoe("db", "roofline", *ids, "--output", name)
        assert Path(name).read_bytes() == first


def test_roofline_refuses_what_it_cannot_draw(simmoe: Simmoe) -> None:
    pytest.importorskip("matplotlib")
    found = simmoe("db", "roofline", "b200", "--output", "roof.jpg")
    assert found == (2, "", "cannot draw roof.jpg: its suffix is none of .svg, .pdf, .png; use one\n")
    many = [id for id in catalog.list_ids("accelerator") if catalog.accelerator(id).peak_flops.bf16][:9]
    assert simmoe("db", "roofline", *many, "-o", "roof.svg").err == (
        "9 accelerators are too many for one picture, name at most 8\n"
    )
    assert simmoe("db", "roofline", *many).status == 0
    assert files() == []
