"""What a part without measurements takes from another one: the same values, less certain."""

import math
import os
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from simmoe.errors import SpecError
from simmoe.specs import catalog
from simmoe.specs.base import DEFAULT_SPREAD, Kind, Quantity
from simmoe.specs.hardware import Efficiency, GemmEfficiency, MemoryBoundEfficiency
from simmoe.specs.inheritance import OTHER_ARCHITECTURE, SAME_ARCHITECTURE, inherited, overlaid, slowed


def number(value: float, kind: Kind = Kind.MEASURED, spread: float | None = None, note: str = "") -> Quantity:
    return Quantity(value=value, unit="1", text=str(value), source="test", kind=kind, spread=spread, note=note)


def gemm(dtype: str, compute: Quantity) -> GemmEfficiency:
    other = number(1.0)
    return GemmEfficiency.model_construct(
        dtype=dtype, launch=other, compute=compute, memory=other, k_fill=other, tile_overhead=None, sustained=other
    )


def efficiency(*fits: GemmEfficiency, norm: float = 0.5) -> Efficiency:
    loads = MemoryBoundEfficiency.model_construct(operator="norm", launch=number(0.0), memory=number(norm))
    return Efficiency.model_construct(gemm=fits, attention=(), grouped_gemm=(), memory_bound=(loads,))


@pytest.mark.parametrize(("same", "added"), [(True, SAME_ARCHITECTURE), (False, OTHER_ARCHITECTURE)])
@pytest.mark.parametrize("spread", [None, 0.0, 0.06, 0.3])
def test_the_spread_grows_by_the_transfer(same, added, spread):
    (taken,) = inherited(efficiency(gemm("bf16", number(0.8, spread=spread))), "a40", same_architecture=same).gemm
    own = DEFAULT_SPREAD[Kind.MEASURED] if spread is None else spread
    assert taken.compute.spread == pytest.approx(math.sqrt(own**2 + added**2))
    assert taken.compute.value == 0.8
    assert taken.tile_overhead is None


@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_taken_over_is_derived_or_weaker(kind):
    fits = efficiency(gemm("bf16", number(0.8, kind=kind, note="of a burst")))
    (taken,) = inherited(fits, "a40", same_architecture=True).gemm
    assert taken.compute.kind is (Kind.GUESS if kind is Kind.GUESS else Kind.DERIVED)
    assert taken.compute.note == "taken from a40; of a burst"
    assert taken.compute.source == "test"


def test_another_architecture_is_less_certain_than_the_same():
    assert 0 < SAME_ARCHITECTURE < OTHER_ARCHITECTURE


def test_an_own_fit_replaces_the_whole_of_the_inherited_one():
    base = efficiency(gemm("bf16", number(0.8)), gemm("fp8", number(0.7)), norm=0.5)
    own = efficiency(gemm("fp8", number(0.6)), gemm("fp32", number(0.9)), norm=0.4)
    both = overlaid(base, own)
    assert [(fit.dtype, fit.compute.value) for fit in both.gemm] == [("bf16", 0.8), ("fp8", 0.6), ("fp32", 0.9)]
    assert [fit.memory.value for fit in both.memory_bound] == [0.4]
    assert (both.attention, both.grouped_gemm) == ((), ())


# ---------------------------------------------------------------- through the catalogue


@pytest.fixture
def family(tmp_path, monkeypatch):
    """Write a copy of A100 PCIe under another id, with another parent; returns what to call."""
    monkeypatch.setenv("SIMMOE_HARDWARE_PATH", str(tmp_path))
    (tmp_path / "accelerators").mkdir()
    yaml = YAML(typ="safe", pure=True)
    shipped = Path(os.environ.get("SIMMOE_DATA", Path(__file__).resolve().parents[2])) / "hardware_db/accelerators"
    template = yaml.load((shipped / "a100-pcie-80gb.yaml").read_text(encoding="utf-8"))

    def write(id: str, parent: str, **other: object) -> Path:
        path = tmp_path / "accelerators" / f"{id}.yaml"
        with path.open("w", encoding="utf-8") as file:
            yaml.dump(template | {"id": id, "efficiency_of": parent} | other, file)
        catalog.refresh()
        return path

    yield write
    catalog.refresh()


def bf16(id: str) -> Quantity:
    return next(fit for fit in catalog.accelerator(id).efficiency.gemm if fit.dtype == "bf16").compute


def test_every_step_of_a_line_of_heirs_adds_doubt(family):
    family("child", "a100-sxm4-80gb")
    family("grandchild", "child")
    family("stranger", "child", architecture="Another")
    measured, child, grandchild = bf16("a100-sxm4-80gb"), bf16("child"), bf16("grandchild")
    assert measured.value == child.value == grandchild.value
    assert child.spread == pytest.approx(math.hypot(measured.spread, SAME_ARCHITECTURE))
    assert grandchild.spread == pytest.approx(math.hypot(child.spread, SAME_ARCHITECTURE))
    assert bf16("stranger").spread == pytest.approx(math.hypot(child.spread, OTHER_ARCHITECTURE))
    assert grandchild.note.startswith("taken from child; taken from a100-sxm4-80gb")


def test_a_circle_of_heirs_is_refused(family):
    family("one", "two")
    path = family("two", "one")
    with pytest.raises(SpecError, match="efficiency_of: two inherits from itself, break the circle"):
        catalog.accelerator("two")
    assert path.is_file()


def test_an_unknown_ancestor_is_refused_with_the_nearest_name(family):
    family("child", "a100-sxm4-80bg")
    with pytest.raises(SpecError, match=r"efficiency_of: .*did you mean a100-sxm4-80gb"):
        catalog.accelerator("child")


CLOCK = {"value": 0.5, "kind": "paper", "source": "torchtitan-performance"}


def test_other_clocks_slow_long_steps_alone(family):
    """Half the clock: `sustained` halves in every table, by the source of the clock; the benchmark rates stay."""
    family("one", "a100-sxm4-80gb")
    family("two", "a100-sxm4-80gb", sustained_clock=CLOCK)
    same, slower = catalog.accelerator("one").efficiency, catalog.accelerator("two").efficiency
    for table in ("gemm", "attention", "grouped_gemm"):
        for before, after in zip(getattr(same, table), getattr(slower, table), strict=True):
            assert after.sustained.value == 0.5 * before.sustained.value
            assert after.sustained.source == "torchtitan-performance"
            assert after.compute == before.compute
    assert slower.memory_bound == same.memory_bound


@pytest.mark.parametrize(("own", "clock", "kind"), [("guess", "paper", "guess"), ("measured", "guess", "guess")])
def test_a_guessed_factor_makes_a_guess(own, clock, kind):
    taken = gemm("bf16", number(0.8)).model_copy(update={"sustained": number(0.9, Kind(own))})
    (slower,) = slowed(efficiency(taken), number(0.9, Kind(clock))).gemm
    assert (slower.sustained.kind, slower.compute.kind) == (kind, "measured")


def test_a_clock_without_an_ancestor_is_refused(family):
    family("one", "", sustained_clock=CLOCK)
    with pytest.raises(SpecError, match="sustained_clock: is relative to the accelerator of efficiency_of"):
        catalog.accelerator("one")
