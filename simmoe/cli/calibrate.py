"""``simmoe calibrate``: fit the numbers that a scenario rests on to traces and benchmarks of one's own machines."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simmoe.cli.options import OverlayFile, Overrides

if TYPE_CHECKING:
    from simmoe.calibration.bench_rows import CollectiveRow, ProductRow
    from simmoe.calibration.calibrate import Calibration, Run
    from simmoe.calibration.kernel_classes import KernelClass
    from simmoe.calibration.observations import MatchedStep
    from simmoe.specs.scenario import Scenario

NOTHING_FITTED = 1

_Traces = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[TRACE...]", help="Traces of the torch profiler of this scenario.", show_default=False),
]
_Scenario = Annotated[
    Path, typer.Option("--scenario", metavar="FILE", help="What was run, on which machines.", show_default=False)
]
_Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="The overlay to write (YAML).", show_default=False)
]
_NcclLog = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Output of nccl-tests on these machines. May repeat.", show_default=False),
]
_GemmCsv = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="Products timed on one accelerator: m,n,k,dtype,seconds. May repeat.", show_default=False
    ),
]
_Runs = Annotated[
    Path | None,
    typer.Option(
        metavar="CSV",
        help="Several runs of the scenario: columns run, traces, held_out and keys to set. Held-out runs are left out.",
        show_default=False,
    ),
]
_Classes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Lines 'class pattern' for kernels of your own.", show_default=False),
]


def calibrate(
    scenario: _Scenario,
    output: _Output,
    traces: _Traces = None,
    overrides: Overrides = None,
    overlay: OverlayFile = None,
    runs: _Runs = None,
    nccl_log: _NcclLog = None,
    gemm_csv: _GemmCsv = None,
    classes: _Classes = None,
) -> None:
    """Fit efficiencies, launches, latencies, bandwidths and host times to what was measured, and write an overlay.

    Each number comes with its 95 % interval; what the measurements cannot tell stays as it is, with the reason. Exit
    status 1 if nothing could be fitted: then nothing is written.
    """
    from simmoe.calibration.calibrate import Run
    from simmoe.calibration.calibrate import calibrate as fitted
    from simmoe.calibration.classes_file import read_classes
    from simmoe.calibration.kernel_classes import TABLE
    from simmoe.cli.calibrate_report import print_calibration
    from simmoe.cli.output_check import check_writable
    from simmoe.errors import SpecError
    from simmoe.pipeline import run as simulate
    from simmoe.specs.overlay_file import load_overlaid

    check_writable(output)
    if not (traces or runs or nccl_log or gemm_csv):
        raise SpecError(
            ["calibrate: nothing that was measured is given, name a TRACE, --runs, --nccl-log or --gemm-csv"]
        )
    table = read_classes(classes) if classes is not None else TABLE
    changes = overrides or []
    loaded = load_overlaid(scenario, changes, overlay)
    benches = _benches(gemm_csv or [], nccl_log or [])
    read = _traced(scenario, changes, overlay, (runs, traces or []), table) or [Run(simulate(loaded), ())]
    found = fitted(read, *benches)
    steps = tuple(step for run in read for step in run.steps)
    print_calibration(found, steps, table)
    if not found.fit.fitted:
        raise typer.Exit(NOTHING_FITTED)
    _write(found, steps, [*(nccl_log or []), *(gemm_csv or [])], _manifest(found, loaded, steps, table), output)
    typer.echo(f"Wrote {output}; use it with: simmoe simulate {scenario} --overlay {output}")


def _traced(
    scenario: Path,
    changes: list[str],
    overlay: Path | None,
    given: tuple[Path | None, list[Path]],
    table: "tuple[KernelClass, ...]",
) -> "list[Run]":
    """The runs that are listed and not held out, and that of traces that are named."""
    from simmoe.calibration.matched_steps import traced_run
    from simmoe.calibration.runs_file import TracedRun, read_runs
    from simmoe.specs.overlay_file import load_overlaid

    runs, traces = given
    listed = [one for one in read_runs(runs) if not one.held_out] if runs is not None else []
    if traces:
        listed.append(TracedRun("", tuple(traces), (), held_out=False))
    settings = [(load_overlaid(scenario, [*changes, *one.overrides], overlay), one.traces) for one in listed]
    return [traced_run(*one, table) for one in settings]


def _benches(gemm_csv: list[Path], nccl_log: list[Path]) -> "tuple[list[ProductRow], list[CollectiveRow]]":
    """Products and collectives that were measured on their own."""
    from simmoe.calibration.gemm_file import read_gemm_csv
    from simmoe.calibration.nccl_file import read_nccl_log

    rows = [row for path in gemm_csv for row in read_gemm_csv(path)]
    return rows, [row for path in nccl_log for row in read_nccl_log(path)]


def _write(
    found: "Calibration",
    steps: "tuple[MatchedStep, ...]",
    benchmarks: list[Path],
    manifest: dict[str, Any],
    output: Path,
) -> None:
    """The overlay with its manifest, which names the files."""
    from simmoe.calibration.digest_file import file_entry
    from simmoe.calibration.overlay_text import overlay_text
    from simmoe.cli.write_texts import write_texts

    counts: dict[Path, int] = {}
    for step in steps:
        counts[step.trace.path] = counts.get(step.trace.path, 0) + 1
    kernels = {step.trace.path: len(step.trace) for step in steps}
    files: list[dict[str, Any]] = [
        {**file_entry(path), "steps": count, "kernels": kernels[path]} for path, count in counts.items()
    ]
    manifest["files"] = files + [dict(file_entry(path)) for path in benchmarks]
    write_texts({str(output): overlay_text(found, manifest)})


def _manifest(
    found: "Calibration", start: "Scenario", steps: "tuple[MatchedStep, ...]", table: "tuple[KernelClass, ...]"
) -> dict[str, Any]:
    """What the numbers were fitted to, without times of day: equal input gives equal bytes."""
    import numpy
    import scipy

    import simmoe
    from simmoe.calibration.coverage import measured_coverage
    from simmoe.calibration.overlay_text import residuals_by_class
    from simmoe.report.manifest import input_hash

    return {
        "scenario": start.name,
        "input_sha256": input_hash(start),
        "versions": {"simmoe": simmoe.__version__, "numpy": numpy.__version__, "scipy": scipy.__version__},
        "matched": {name: round(one.share, 4) for name, one in measured_coverage(steps, table).items()},
        "residuals": residuals_by_class(found),
        "left": {found.numbers[one.number].path: one.reason for one in found.fit.left},
    }
