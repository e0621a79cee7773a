"""Read an overlay and lay it over a scenario."""

from collections.abc import Sequence
from pathlib import Path

from simmoe import units
from simmoe.errors import UnitError
from simmoe.specs.base import Kind, Quantity, Spec
from simmoe.specs.document import Document, Problem, raise_problems
from simmoe.specs.numbers import numbers_of
from simmoe.specs.overlay import Change, Overlay, with_quantities
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario
from simmoe.specs.scenario_parts import parts_of
from simmoe.specs.suggest import did_you_mean
from simmoe.specs.text_file import got, one_line
from simmoe.specs.validation import validate
from simmoe.specs.yaml_file import read_yaml


def load_overlaid(path: Path, overrides: Sequence[str] = (), overlay: Path | None = None) -> Scenario:
    """A scenario file, with an overlay where one is given.

    Parameters
    ----------
    path : Path
    overrides : sequence of str
        As `load_scenario` takes them.
    overlay : Path or None

    Raises
    ------
    SpecError
        As `load_scenario` and `apply_overlay`.
    """
    scenario = load_scenario(path, overrides)
    return scenario if overlay is None else apply_overlay(scenario, overlay)


def apply_overlay(scenario: Scenario, path: Path) -> Scenario:
    """A scenario with the numbers of an overlay in place of those of the hardware database.

    Parameters
    ----------
    scenario : Scenario
    path : Path
        As ``simmoe calibrate`` writes it.

    Returns
    -------
    Scenario
        Nothing else differs; each new number is `measured` and names the file as its source.

    Raises
    ------
    SpecError
        With every problem, each with its place: no overlay; a part that the scenario does not have, such as another
        accelerator; a number that the part does not have; a unit that is not that of the number; a value out of range.
    """
    document = read_yaml(path)
    overlay, problems = validate(Overlay, document.data, document)
    raise_problems(problems)
    if overlay is None:
        raise AssertionError("validate returned neither a spec nor a problem")
    parts = parts_of(scenario)
    new: dict[str, dict[str, Quantity]] = {}
    for index, change in enumerate(overlay.changes):
        problem, quantity = _quantity(change, parts, document, index, path)
        if problem is None and change.number in new.get(change.part, {}):
            problem = document.problem(
                ("changes", index, "number"), "the number is changed twice, remove one of the two"
            )
        if problem is not None:
            problems.append(problem)
        elif quantity is not None:
            new.setdefault(change.part, {})[change.number] = quantity
    raise_problems(problems)
    return with_quantities(scenario, new)


def _quantity(
    change: Change, parts: dict[str, Spec], document: Document, index: int, path: Path
) -> tuple[Problem | None, Quantity | None]:
    """The number that a change puts in its place, or what is wrong with it."""

    def wrong(key: str, sentence: str) -> tuple[Problem, None]:
        return document.problem(("changes", index, key), sentence), None

    part = parts.get(change.part)
    if part is None:
        kind = change.part.partition(" ")[0]
        there = ", ".join(name for name in parts if name.startswith(f"{kind} ")) or ", ".join(parts)
        return wrong("part", f"not in this scenario {got(change.part)}, it has {there}: leave the overlay out")
    known = {number.name: number.quantity for number in numbers_of(part, change.part)}
    old = known.get(change.number)
    if old is None:
        return wrong("number", f"no number of {change.part} {got(change.number)}, {did_you_mean(change.number, known)}")
    try:
        value = units.parse(change.value, old.unit)
    except UnitError as error:
        return wrong("value", str(error))
    if not 0 < value < float("inf"):
        return wrong("value", f"a number above zero is expected {got(change.value)}, correct it")
    name = one_line(path.name)
    return None, old.model_copy(
        update={
            "value": value,
            "text": str(change.value),
            "source": f"overlay {name}",
            "locator": f"changes.{index}",
            "kind": Kind.MEASURED,
            "note": f"instead of {old.text} of {old.source}",
            "spread": change.spread,
            "alternatives": (),
            "reviewed": "",
        }
    )
