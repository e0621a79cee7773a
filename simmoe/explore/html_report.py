"""A result as one HTML page that needs nothing else: tables, pictures, where its numbers come from."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from simmoe.explore.sensitivity import Sensitivities
from simmoe.report.evidence import numbers_used
from simmoe.report.figures import svg_text
from simmoe.report.gantt import gantt_figure
from simmoe.report.html_table import html_table
from simmoe.report.manifest import provenance
from simmoe.report.numbers import guesses, unreviewed
from simmoe.report.result import Result
from simmoe.report.tornado import Bar, tornado_figure
from simmoe.report.uncertainty import step_interval
from simmoe.units import format_si

_GIB = 2.0**30
_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1.5em; color: #222 }
h1 { font-size: 1.6em; margin-bottom: 0.2em }
h2 { font-size: 1.15em; margin: 2em 0 0.5em; border-bottom: 2px solid #ddd }
.lead { color: #555 } .bad { color: #b00020; font-weight: bold } svg { max-width: 100%; height: auto }
.cards { display: flex; flex-wrap: wrap; gap: 1em; margin: 1em 0 }
.card { border: 1px solid #ddd; border-radius: 6px; padding: 0.6em 1em; min-width: 9em }
.card b { display: block; font-size: 1.3em } .card span { color: #555; font-size: 0.85em }
@media print { body { margin: 0; max-width: none } h2, .card, svg { break-inside: avoid } h2 { break-after: avoid } }
"""
_PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "framework")


def html_report(
    result: Result, found: Sensitivities, names: dict[str, dict[str, str]], plans: Sequence[dict[str, Any]] = ()
) -> str:
    """The page.

    Parameters
    ----------
    result : Result
    found : Sensitivities
        Of the same scenario.
    names : dict of str to dict
        ``classes`` and ``causes`` of time in front of people.
    plans : sequence of dict, optional
        A comparison of planners, a row each.

    Returns
    -------
    str
        HTML without scripts, links to other files or times of day: equal input gives equal bytes.

    Raises
    ------
    SimmoeError
        If matplotlib is not installed.
    """
    scenario = result.scenario
    sections = [
        ("Cluster and plan", _stages(result)),
        ("The step", _picture(result)),
        ("What sets its time", _shares(result.critical_path.by_category_s, result, names["classes"])),
        ("Why devices idle", _shares(result.bubbles.mean, result, names["causes"])),
        ("Memory", _memory(result)),
        ("What matters", _sensitivities(found, scenario.name)),
        *([("Planners", html_table(list(plans[0]), [list(row.values()) for row in plans]))] if plans else []),
        ("Where the numbers come from", _provenance(result)),
    ]
    body = "".join(f"<section><h2>{escape(title)}</h2>{text}</section>" for title, text in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(scenario.name)}</title><style>{_CSS}</style></head><body>"
        f"<h1>{escape(scenario.name)}</h1>{_lead(result)}{_cards(result)}{body}</body></html>\n"
    )


def _lead(result: Result) -> str:
    scenario, training = result.scenario, result.scenario.training
    machines = " + ".join(f"{group.devices} x {group.node.accelerator.name}" for group in scenario.cluster.groups)
    text = (
        f"{scenario.model.name} on {machines}; {training.global_batch_size} sequences of "
        f"{training.sequence_length:,} tokens a step, {training.precision.value}, {training.software.name}."
    )
    fits = "" if result.fits else '<p class="bad">The plan does not fit into memory.</p>'
    return f'<p class="lead">{escape(text)}</p>{fits}'


def _cards(result: Result) -> str:
    interval, cost = step_interval(result), result.cost_usd_per_million_tokens
    bounds = f"{format_si(interval.low, 's', 3)} to {format_si(interval.high, 's', 3)} ({interval.level:.0%})"
    cards = [
        (format_si(result.step_time_s, "s"), f"a step; {bounds}"),
        (f"{result.tokens_per_s:,.0f}", "tokens a second"),
        (f"{result.model_tflops_per_gpu:.1f}", f"model TFLOP/s per GPU, {result.mfu:.1%} of the peak"),
        (f"{max(memory.total for memory in result.memory) / _GIB:.1f} GiB", "on the fullest GPU"),
    ]
    if cost is not None:
        cards.append((f"{cost:.3f} USD", "per million tokens"))
    inner = "".join(f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in cards)
    return f'<div class="cards">{inner}</div>'


def _stages(result: Result) -> str:
    header = ["stage", "devices", "accelerator", "layers", "tensor", "context", "expert", "data", "compute", "idle"]
    rows = []
    for rank in result.metrics.ranks:
        stage = result.scenario.plan.stages[rank.stage]
        sizes = (stage.tensor_parallel, stage.context_parallel, stage.expert_parallel, stage.data_parallel)
        share, idle = rank.compute_s / result.step_time_s, rank.bubble_fraction
        place = f"{rank.stage} {rank.role}".strip()
        rows.append([place, rank.count, rank.accelerator, stage.layers, *sizes, f"{share:.1%}", f"{idle:.1%}"])
    return html_table(header, rows)


def _picture(result: Result) -> str:
    figure = gantt_figure(result.timeline, result.ranks, "", result.memory_timelines)
    return svg_text(figure, "gantt")


def _shares(seconds: dict[str, float], result: Result, names: dict[str, str]) -> str:
    rows = [
        [names.get(name, name), format_si(took, "s", 3), f"{took / result.step_time_s:.1%}"]
        for name, took in sorted(seconds.items(), key=lambda item: -item[1])
        if took > 0
    ]
    return html_table(["", "time", "of the step"], rows)


def _memory(result: Result) -> str:
    rows = []
    for rank, memory in zip(result.ranks, result.memory, strict=True):
        there = result.accelerator(rank).memory.value
        parts = [f"{size / _GIB:.1f}" for size in memory]
        rows.append([rank.place, *parts, f"{memory.total / _GIB:.1f}", f"{there / _GIB:.1f}"])
    return html_table(["stage", *_PARTS, "all [GiB]", "there is"], rows)


def _sensitivities(found: Sensitivities, name: str) -> str:
    bars = [Bar(one.resource, one.half_s, one.twice_s) for one in found.of]
    return svg_text(tornado_figure(bars, found.step_s, name), "tornado")


def _provenance(result: Result) -> str:
    numbers = numbers_used(result)
    made = provenance(result)
    rows = [[key, str(made[key])] for key in ("simmoe", "python", "numpy", "input_sha256")]
    rows += [["numbers of the hardware database", str(len(numbers))], ["guesses", str(len(guesses(numbers)))]]
    rows += [["with one source only", str(len(unreviewed(numbers)))]]
    weak = [[n.path, n.quantity.text, n.quantity.kind.value, n.quantity.source] for n in _weak(result)]
    return html_table(["", ""], rows) + "<p>The numbers to doubt first:</p>" + html_table(_WEAK, weak)


_WEAK = ["number", "value", "kind", "source"]


def _weak(result: Result) -> Iterator[Any]:
    numbers = numbers_used(result)
    yield from guesses(numbers)
    yield from unreviewed(numbers)
