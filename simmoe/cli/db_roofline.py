"""``simmoe db roofline``: what accelerators allow and reach, as a table or a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simmoe.cli.db_parts import write_out
from simmoe.cli.options import JsonFile

if TYPE_CHECKING:
    from simmoe.report.roofline import Roof, Roofline
    from simmoe.specs.hardware import Dtype

_LEAST = 14  # columns of an id, which may be broken
_SHORT = {
    "GEMM small": "GEMM s",
    "GEMM medium": "GEMM m",
    "GEMM large": "GEMM l",
    "attention": "attention",
    "experts, 128 tokens": "exp. 128",
    "experts, 1024 tokens": "exp. 1024",
}


def roofline(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...", help="Accelerators, as simmoe db list accelerator prints them.", show_default=False
        ),
    ],
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="fp32, tf32, fp16, bf16, fp8 or fp4.")] = "bf16",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Draw it: .png, .svg or .pdf. A table is printed if left out.",
            show_default=False,
        ),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Compare accelerators: attainable FLOP/s against arithmetic intensity, nominal and achieved, with kernels."""
    from simmoe.report.roofline import rooflines
    from simmoe.specs import catalog

    arithmetic = _known_dtype(dtype)
    found = rooflines([catalog.accelerator(id) for id in dict.fromkeys(ids)], arithmetic)
    if output is not None:
        from simmoe.report.roofline_plot import write_roofline

        write_roofline(found, arithmetic.value, output, catalog.sources())
    if json is not None:
        _write_json(found, arithmetic, json)
    if output is None and json is None:
        _print(found, arithmetic)
    for file in (output, json):
        if file is not None and json != "-":
            typer.echo(f"Wrote {file}")


def _known_dtype(word: str) -> "Dtype":
    from simmoe.errors import NotFoundError
    from simmoe.specs.hardware import Dtype
    from simmoe.specs.suggest import did_you_mean
    from simmoe.specs.text_file import one_line

    names = [dtype.value for dtype in Dtype]
    if word.lower() not in names:
        raise NotFoundError(f"--dtype {one_line(repr(word), 40)} is not known, {did_you_mean(word, names)}")
    return Dtype(word.lower())


def _write_json(parts: "Sequence[Roofline]", dtype: "Dtype", file: str) -> None:
    import json as json_module

    text = json_module.dumps(
        {"dtype": dtype.value, "parts": [_entry(part) for part in parts]}, indent=2, allow_nan=False
    )
    write_out(text + "\n", file)


def _entry(part: "Roofline") -> dict[str, Any]:
    """One accelerator as plain data [FLOP/s, B/s, FLOP/B, s]."""
    from simmoe.report.numbers import number_entry

    return {
        "id": part.id,
        "name": part.name,
        "nominal": _roof_entry(part.nominal),
        "achieved": None if part.achieved is None else _roof_entry(part.achieved),
        "kernels": [
            {
                "name": dot.name,
                "flops": dot.flops,
                "bytes": dot.bytes,
                "seconds": dot.seconds,
                "intensity_flop_per_byte": dot.intensity,
                "flops_per_s": dot.rate,
            }
            for dot in part.dots
        ],
        "numbers": [number_entry(number) for number in part.numbers],
    }


def _roof_entry(roof: "Roof") -> dict[str, float]:
    return {
        "peak_flops_per_s": roof.peak,
        "memory_bandwidth_bytes_per_s": roof.bandwidth,
        "ridge_flop_per_byte": roof.ridge,
    }


def _print(parts: "Sequence[Roofline]", dtype: "Dtype") -> None:
    """The roofs, then the kernels."""
    from simmoe.cli.screen import console, heading, indented, table
    from simmoe.report.roofline import shapes_of

    screen = console()
    remark = "peak in TFLOP/s, memory in TB/s, ridge in FLOP/B; reached inside a long training step"
    screen.print(heading(f"Rooflines, {dtype.value}", remark))
    columns = ("peak", "reached", "memory", "reached", "ridge", "reached")
    rows = table("accelerator", *columns, right="lrrrrrr", grow="accelerator")
    rows.columns[0].min_width = _LEAST
    for part in parts:
        roof, reached = part.nominal, part.achieved
        cells = [f"{roof.peak / 1e12:.4g}", _against(reached and reached.peak, roof.peak)]
        cells += [f"{roof.bandwidth / 1e12:.4g}", _against(reached and reached.bandwidth, roof.bandwidth)]
        rows.add_row(part.id, *cells, f"{roof.ridge:.0f}", f"{reached.ridge:.0f}" if reached else "")
    screen.print(indented(rows))
    if not all(part.achieved for part in parts):
        screen.print(indented("Nothing reached: the part has no measured rates in this arithmetic."))
    names = list(dict.fromkeys(dot.name for part in parts for dot in part.dots))
    if names:
        screen.print()
        screen.print(heading("Kernels of training size", "TFLOP/s, and share of the nominal peak"))
        rows = table("accelerator", *map(_SHORT.__getitem__, names), right="l" + "r" * len(names), grow="accelerator")
        rows.columns[0].min_width = _LEAST
        for part in parts:
            rates = {dot.name: _against(dot.rate, part.nominal.peak) for dot in part.dots}
            rows.add_row(part.id, *(rates.get(name, "") for name in names))
        screen.print(indented(rows))
        screen.print(indented(shapes_of(parts)))
    guesses = sum(number.quantity.kind == "guess" for part in parts for number in part.numbers)
    total = sum(len(part.numbers) for part in parts)
    screen.print(indented(f"From {total} numbers, {guesses} of them guesses; simmoe db show ID gives their sources."))


def _against(value: float | None, nominal: float) -> str:
    """A figure [1e12] and its share of the nominal one."""
    if value is None:
        return ""
    tera = value / 1e12
    return f"{f'{tera:.0f}' if tera >= 99.95 else f'{tera:.3g}'} {value / nominal:.0%}"
