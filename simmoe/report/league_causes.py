"""What the error of a published run most likely comes from: what was assumed, what the source says, what binds."""

import re
from collections.abc import Iterable, Iterator

from simmoe.report.metrics import COLLECTIVES
from simmoe.report.result import Result

_MOST = 2

# Flags of a table that cast doubt on the measurement itself.
_DOUBTS = {
    "source-inconsistent": "source contradicts itself",
    "time-from-flops": "time computed from FLOP/s",
    "from-chart": "read off a chart",
    "secondary-source": "second-hand figure",
    "accelerator-inferred": "part not stated exactly",
}
# What a row assumed or left out that changes a step by tens of percent, by the words of the assumption.
_TELLING = (
    (r"natural routing", "natural routing"),
    (r"offload", "offloading not modelled"),
    (r"rematerialisation", "rematerialisation not modelled"),
    (r"overlap.* not modelled", "overlap not modelled"),
    (r"recomputation not stated|recomputed modules", "recomputation not stated"),
    (r"micro-batch not stated", "micro-batch not stated"),
    (r"virtual stages not stated", "virtual stages not stated"),
    (r"division of layers", "division of layers not stated"),
    (r"dispatcher not stated|UCCL", "dispatcher assumed"),
    (r"fp8 recipe|precision", "precision assumed"),
    (r"CUDA graph", "partial CUDA graph"),
)
# Shares of the critical path from which something counts as what binds.
_BINDING = 0.25
_BUBBLE = 0.15


def likely_cause(result: Result, notes: Iterable[str], flags: Iterable[str]) -> str:
    """A few words on where an error would come from, the strongest suspicion first; at most two.

    Parameters
    ----------
    result : Result
        Of the row's scenario.
    notes, flags : iterable of str
        What was assumed or left out, and the flags of the row.

    Notes
    -----
    Looks at the input and at the simulated step only, never at the measured time: first a source that contradicts
    itself, then what was assumed, then what the step is bound by (host, exposed communication, bubble, kernels), then
    lesser doubts about the figure.
    """
    text, marks = "; ".join(notes), set(flags)
    first = ["source contradicts itself"] if "source-inconsistent" in marks else []
    told = [words for pattern, words in _TELLING if re.search(pattern, text)]
    doubts = [words for flag, words in _DOUBTS.items() if flag in marks]
    found = dict.fromkeys([*first, *told[:1], *_binding(result), *doubts])
    return ", ".join(list(found)[:_MOST])


def _binding(result: Result) -> Iterator[str]:
    """What takes most of the critical path, the largest share first."""
    step = result.step_time_s
    shares = {name: seconds / step for name, seconds in result.critical_path.by_category_s.items()}
    efa = result.scenario.cluster.fabric.link.id.startswith("efa-")
    for name, share in shares.items():  # the largest first
        if share < _BINDING:
            break
        if name in COLLECTIVES:
            words = name.replace("_", "-")
            yield f"exposed {words}{' over EFA' if efa else ''} ({share:.0%})"
        else:
            yield f"host-bound ({share:.0%})" if name == "host" else f"{name.replace('_', ' ')}-bound ({share:.0%})"
    bubble = result.metrics.bubble_fraction
    if bubble > _BUBBLE:
        yield f"idle ({bubble:.0%})"
