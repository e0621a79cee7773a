"""What a result was made from: versions, the hash of its input, and the sources of its numbers."""

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

import simmoe
from simmoe.report.evidence import numbers_used
from simmoe.report.numbers import guesses, number_entry, unreviewed
from simmoe.report.result import Result
from simmoe.specs.base import Kind
from simmoe.specs.numbers import Number
from simmoe.specs.scenario import Scenario


def provenance(result: Result) -> dict[str, Any]:
    """Versions, input hash and weak numbers of a run, for the summary.

    Parameters
    ----------
    result : Result

    Returns
    -------
    dict
        ``simmoe``, ``python``, ``numpy``: versions; ``input_sha256``; ``numbers``: how many numbers of the
        hardware database were used; ``unreviewed`` and ``guesses``: which of them are.
    """
    numbers = numbers_used(result)
    return {
        "simmoe": simmoe.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "input_sha256": input_hash(result.scenario),
        "numbers": len(numbers),
        "unreviewed": [number.path for number in unreviewed(numbers)],
        "guesses": [number.path for number in guesses(numbers)],
    }


def input_hash(scenario: Scenario) -> str:
    """SHA-256 of the resolved scenario as canonical JSON: equal inputs, however written, have equal hashes.

    Parameters
    ----------
    scenario : Scenario
        With every part resolved and the plan expanded.
    """
    data = scenario.model_dump(mode="json")
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def citations(result: Result, catalogue: Mapping[str, Any]) -> dict[str, Any]:
    """Every source that a run used, and what for.

    Parameters
    ----------
    result : Result
    catalogue : mapping of str to Source
        `simmoe.specs.catalog.sources`.

    Returns
    -------
    dict
        ``name``; ``model``: where the architecture is from; ``kinds``: kind -> how many numbers; ``sources``: a list
        with id, title, publisher, year, url, accessed and numbers, the source of most numbers first;
        ``published``: the results compared with, and their sources. Guesses have the source they name.
    """
    numbers = numbers_used(result)
    scenario = result.scenario
    by_source: dict[str, list[Number]] = {}
    for number in numbers:
        by_source.setdefault(number.quantity.source, []).append(number)
    order = sorted(by_source, key=lambda name: (-len(by_source[name]), name))
    counts = Counter(number.quantity.kind for number in numbers)
    return {
        "name": scenario.name,
        "model": {"id": scenario.model.id, "source": scenario.model.source},
        "kinds": {kind.value: counts[kind] for kind in Kind},
        "unreviewed": len(unreviewed(numbers)),
        "sources": [_source_entry(name, by_source[name], catalogue) for name in order],
        "published": [{"metric": one.metric, "value": one.value, "source": one.source} for one in scenario.published],
    }


def _source_entry(name: str, numbers: list[Number], catalogue: Mapping[str, Any]) -> dict[str, Any]:
    source = catalogue.get(name)
    fields = ("title", "publisher", "year", "url", "accessed")
    entry = {field: getattr(source, field, None) for field in fields}
    return {"id": name, **entry, "numbers": [number_entry(number) for number in numbers]}
