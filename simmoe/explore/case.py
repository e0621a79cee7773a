"""Scenarios in notebooks: load one, change it, simulate, compare, sweep; results show themselves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simmoe.explore.comparison import entries, own_plan, record
from simmoe.explore.sensitivity import sensitivities
from simmoe.explore.sweep import OK, figures, simulate_points
from simmoe.pipeline import run
from simmoe.planners.registry import Planner, Request, ask
from simmoe.report.gantt import gantt_figure
from simmoe.report.html_table import html_table
from simmoe.report.result import Result
from simmoe.specs.overlay_file import load_overlaid
from simmoe.specs.scenario import Scenario
from simmoe.specs.sweep import Sweep
from simmoe.specs.sweep_file import as_overrides
from simmoe.specs.sweep_points import points_of
from simmoe.units import format_si

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {
    "step_time_s": "step time",
    "tokens_per_s": "tokens/s",
    "model_tflops_per_gpu": "model TFLOP/s per GPU",
    "mfu": "MFU",
    "bubble_fraction": "bubble",
    "peak_memory_bytes": "peak memory",
    "cost_usd_per_million_tokens": "USD per million tokens",
}
_UNITS = {"step_time_s": "s", "peak_memory_bytes": "B"}
DEFAULT_PLANNERS = ("hapmoe", "uniform", "fsdp-ep")


@dataclass(frozen=True)
class Table:
    """Rows that show themselves in a notebook.

    Attributes
    ----------
    rows : tuple of dict
        All with the same keys.
    title : str
    """

    rows: tuple[dict[str, Any], ...]
    title: str = ""

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`; needs the notebooks extra."""
        import pandas as pd  # noqa: PLC0415 - an optional extra

        return pd.DataFrame(self.rows)

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows)

    def _repr_html_(self) -> str:
        header = list(self.rows[0]) if self.rows else []
        return html_table(header, [list(row.values()) for row in self.rows], self.title)


@dataclass(frozen=True)
class Simulation:
    """A simulated step that shows itself in a notebook; `result` has everything.

    Attributes
    ----------
    result : Result
    """

    result: Result

    @property
    def figures(self) -> dict[str, Any]:
        """Step time [s], throughput, FLOP rates, memory [B], cost: as `simmoe.explore.sweep.figures` names them."""
        return figures(self.result)

    @property
    def step_time_s(self) -> float:
        """Duration of an iteration [s]."""
        return self.result.step_time_s

    def to_pandas(self) -> Any:
        """The ranks, one a row, as a `pandas.DataFrame`; needs the notebooks extra."""
        rows = [
            {
                "stage": rank.stage,
                "accelerator": rank.accelerator,
                "devices": rank.count,
                "compute_s": rank.compute_s,
                "exposed_communication_s": rank.exposed_communication_s,
                "overlapped_s": rank.overlapped_s,
                "bubble_fraction": rank.bubble_fraction,
                "peak_memory_bytes": memory.total,
            }
            for rank, memory in zip(self.result.metrics.ranks, self.result.memory, strict=True)
        ]
        return Table(tuple(rows)).to_pandas()

    def plot_gantt(self) -> "Figure":
        """The step as a picture; needs the plot extra."""
        result = self.result
        return gantt_figure(result.timeline, result.ranks, result.scenario.name)

    def _repr_html_(self) -> str:
        found = self.figures
        rows = [[_NAMES[name], _shown(name, found[name])] for name in _NAMES if found[name] is not None]
        rows.append(["fits into memory", "yes" if self.result.fits else "no"])
        whole = self.result.step_time_s
        path = self.result.critical_path.by_category_s
        parts = [[name, f"{100 * took / whole:.1f} %"] for name, took in path.items()]
        chain = html_table(["", "of the step"], parts, "What it hangs on")
        return html_table(["", ""], rows, self.result.scenario.name) + chain


@dataclass(frozen=True)
class Case:
    """A scenario file with some values replaced.

    Attributes
    ----------
    path : Path
    overrides : tuple of str
        As ``--set`` takes them.
    overlay : Path or None
    """

    path: Path
    overrides: tuple[str, ...] = ()
    overlay: Path | None = None

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario, resolved and checked; `SpecError` with every problem."""
        return load_overlaid(self.path, self.overrides, self.overlay)

    def with_(self, changes: Mapping[str, Any] | None = None, **keys: Any) -> "Case":
        """The same with other values.

        Parameters
        ----------
        changes : mapping of str to Any, optional
            ``{"plan.tensor_parallel": 4}``.
        **keys
            The same with double underscores for dots: ``plan__tensor_parallel=4``.
        """
        new = {**(changes or {}), **{key.replace("__", "."): value for key, value in keys.items()}}
        return Case(self.path, (*self.overrides, *as_overrides(new)), self.overlay)

    def simulate(
        self, engine: Literal["fast", "simpy"] = "fast", network: Literal["analytic", "fluid"] = "analytic"
    ) -> Simulation:
        """One training iteration, see `simmoe.pipeline.run`."""
        return Simulation(run(self.scenario, engine, network))

    def compare(self, planners: Sequence[str] = DEFAULT_PLANNERS) -> Table:
        """The plan of the file and the best one of each planner, all simulated."""
        wanted = [Planner(name) for name in planners]
        answers = entries(self.scenario, wanted, lambda one, about: ask(one, about, Request(top=1)))
        return Table(tuple(map(record, [own_plan(self.scenario), *answers])), self.scenario.name)

    def sensitivity(self) -> Table:
        """What a little more, half and twice as much of every resource do to the step time."""
        found = sensitivities(self.scenario)
        return Table(tuple(one._asdict() for one in found.of), f"a step of {format_si(found.step_s, 's')}")

    def sweep(self, where: Iterable[str] = (), **blocks: Any) -> Table:
        """Every point of a sweep, simulated here; for long ones use ``simmoe sweep``.

        Parameters
        ----------
        where : iterable of str
            Conditions.
        **blocks
            ``grid``, ``zip``, ``list``, ``random``, ``latin_hypercube``, ``derive`` as in a sweep file.
        """
        sweep = Sweep.model_validate({"scenario": str(self.path), "where": tuple(where), **blocks})
        found = simulate_points(self.path, self.overlay, self.overrides, points_of(sweep))
        names = dict.fromkeys(name for entry in found if entry.status == OK for name in entry.figures)
        rows = [
            {**entry.point, "status": entry.status, **{name: entry.figures.get(name) for name in names},
             "reason": entry.reason}
            for entry in found
        ]  # fmt: skip
        return Table(tuple(rows), f"{len(rows)} points of {self.path.name}")

    def _repr_html_(self) -> str:
        rows = [[text.partition("=")[0], text.partition("=")[2]] for text in self.overrides]
        return html_table(["key", "value"], rows, f"{self.scenario.name} ({self.path})")


def load(path: str | Path, overrides: Sequence[str] = (), overlay: str | Path | None = None) -> Case:
    """A scenario for notebooks.

    Parameters
    ----------
    path : str or Path
    overrides : sequence of str
        As ``--set`` takes them.
    overlay : str or Path or None

    Examples
    --------
    ``simmoe.load("mine.yaml").with_(plan__tensor_parallel=4).simulate()``
    """
    return Case(Path(path), tuple(overrides), None if overlay is None else Path(overlay))


def _shown(name: str, value: float) -> str:
    if name in _UNITS:
        return format_si(value, _UNITS[name])
    return f"{100 * value:.1f} %" if name in {"mfu", "bubble_fraction"} else f"{value:,.4g}"
