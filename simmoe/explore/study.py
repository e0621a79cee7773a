"""What the reproduction of any paper offers to the command line."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simmoe.explore.reproduction import Outcome
from simmoe.explore.sweeps import Sensitivity, Setting
from simmoe.report.charts import Chart
from simmoe.specs.paper_rows_reader import PaperRow


class Sheet(NamedTuple):
    """A table of its own, or a few sentences.

    Attributes
    ----------
    title, remark : str
    columns : tuple of str
        None for sentences.
    align : str
        ``l`` or ``r`` for each column.
    lines : tuple of tuple of str
    """

    title: str
    remark: str
    columns: tuple[str, ...]
    align: str
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Study:
    """The reproduction of a paper. Cases, measurements, assumptions and benches are of classes of its own.

    Attributes
    ----------
    paper, title : str
        A folder of ``scenarios/papers``; the paper as a heading.
    as_shipped : NamedTuple
        The assumptions of its tables; the defaults of their class.
    sweeps : tuple
        Groups of settings, each with a name.
    cases_for : callable
        Rows, and whether also figures are wanted -> the runs that they need, each once.
    slowest_first : callable
        Cases -> the order in which they are run, so that none is waited for alone.
    measure : callable
        Case, assumptions -> measurement; a function of a module, for other processes.
    unaffected : callable
        Case, assumptions -> whether it runs as shipped.
    bench : callable
        Measurements by case, assumptions -> what answers the questions of rows.
    outcomes : callable
        Rows, bench -> every row beside its simulated value.
    headlines : callable
        Outcomes -> the claims of the abstract whose rows are among them.
    charts : callable
        Rows, bench -> the figures that show a value of them.
    unsteady : frozenset of int
        Rows whose values differ from run to run, such as times of a planner: for the screen, never for files.
    sheets, swept_sheets : callable
        What measurements by case, and what sweeps say besides rows and scores.
    entries : callable
        Measurements by case -> what they say besides the rows, for a JSON object.
    """

    paper: str
    title: str
    as_shipped: Any
    sweeps: tuple[tuple[str, tuple[Setting, ...]], ...]
    cases_for: Callable[..., tuple[Any, ...]]
    slowest_first: Callable[..., list[Any]]
    measure: Callable[..., Any]
    unaffected: Callable[[Any, Any], bool]
    bench: Callable[[Any, Any], Any]
    outcomes: Callable[[Iterable[PaperRow], Any], tuple[Outcome, ...]]
    headlines: Callable[[Iterable[Outcome]], list[dict[str, Any]]]
    charts: Callable[[Iterable[PaperRow], Any], tuple[Chart, ...]]
    unsteady: frozenset[int] = frozenset()
    sheets: Callable[[Mapping[Any, Any]], tuple[Sheet, ...]] = lambda known: ()
    swept_sheets: Callable[[Sequence[Sensitivity]], tuple[Sheet, ...]] = lambda swept: ()
    entries: Callable[[Mapping[Any, Any]], dict[str, Any]] = lambda known: {}
