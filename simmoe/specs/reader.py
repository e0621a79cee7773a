"""Read a scenario: file, overrides, parts, checks, stages; and plans of their own."""

import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML

from simmoe.errors import SpecError
from simmoe.specs import checks
from simmoe.specs.catalog import read_part
from simmoe.specs.document import Document, Problem, raise_problems, told_before
from simmoe.specs.expand import expand
from simmoe.specs.overrides import apply_override
from simmoe.specs.plan import Plan
from simmoe.specs.scenario import Scenario
from simmoe.specs.shrink import shrunk
from simmoe.specs.text_file import one_line
from simmoe.specs.yaml_file import parse_value, read_yaml

_KEY = re.compile(r"([a-z_]+(?:\.[a-z0-9_]+)*): ")
DEFAULT_SOFTWARE = "megatron-core-2025"


def load_scenario(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario file as one frozen, checked description with its plan expanded.

    Parameters
    ----------
    path : str or Path
        A YAML file with the keys name, model, cluster, training, routing, plan and published.
        ``model`` is an id, the file of a model or of a Hugging Face config, or a mapping, with
        ``base`` if it changes another model; ``cluster`` is an id or a mapping; ``plan`` a mapping or
        the file of a plan.
    overrides : sequence of str
        ``key.key=value``, applied in order.

    Returns
    -------
    Scenario
        Every id resolved, `plan.stages` filled in.

    Raises
    ------
    SpecError
        With every problem found, each with its place in the file.
    """
    return _resolved(read_yaml(Path(path)), Path(path), overrides)


def scenario_of(text: str, path: str | Path) -> Scenario:
    """A scenario as `load_scenario` would read it from a file with this text; the file need not exist.

    Parameters
    ----------
    text : str
        YAML.
    path : str or Path
        Named in messages; what the text names is relative to it.
    """
    document = parse_value(text, one_line(str(path), 4096))
    document.folder = Path(path).parent
    return _resolved(document, Path(path), ())


def _resolved(document: Document, path: Path, overrides: Sequence[str]) -> Scenario:
    """The scenario of a document, its overrides applied and its plan expanded."""
    problems: list[Problem] = []
    _fill_in(document, path)  # so that an override can open what is filled in
    for override in overrides:
        try:
            apply_override(document, override)
        except SpecError as error:
            problems += told_before(error)
    raise_problems(problems)
    _fill_in(document, path)  # an override may have replaced a whole mapping
    part, problems = read_part("scenario", document)
    raise_problems(problems)
    scenario = _without_lost_nodes(cast("Scenario", part), document)
    scenario = scenario.model_copy(update={"plan": _expanded(scenario, document)})
    raise_problems(checks.run("expanded", scenario, document))
    return scenario


def _fill_in(document: Document, path: Path) -> None:
    document.data.setdefault("name", path.stem)
    training = document.data.get("training")
    if isinstance(training, dict):
        training.setdefault("software", DEFAULT_SOFTWARE)


def _expanded(scenario: Scenario, document: Document) -> Plan:
    """The plan with its stages; what `expand` finds wrong gets the position of the plan."""
    try:
        return expand(scenario.plan, scenario.model, scenario.cluster, scenario.training)
    except SpecError as error:
        raise_problems([_placed(text, document) for text in error.problems])
        raise


def _without_lost_nodes(scenario: Scenario, document: Document) -> Scenario:
    """What failed nodes leave of the job; what is wrong with that gets the position of the faults."""
    try:
        return shrunk(scenario)
    except SpecError as error:
        raise_problems([_placed(text, document) for text in error.problems])
        raise


def _placed(text: str, document: Document) -> Problem:
    """A sentence that begins with the key of the plan it is about, with the position of that key."""
    match = _KEY.match(text)
    key = match[1] if match else "plan"
    path = tuple(key.split("."))
    if path[0] not in Scenario.model_fields:
        path = ("plan", *path)
    return document.problem(path, text[match.end() :] if match else text)


def load_plan(path: str | Path) -> Plan:
    """A plan from a file of its own, as `dump_plan` writes it.

    Raises
    ------
    SpecError
        With every problem found, each with its place in the file.
    """
    plan, problems = read_part("plan", read_yaml(Path(path)))
    raise_problems(problems)
    return cast("Plan", plan)


def dump_plan(plan: Plan) -> str:
    """A plan as the YAML text that `load_plan` reads back to an equal plan.

    Parameters
    ----------
    plan : Plan
        Values that equal the default are left out.

    Examples
    --------
    >>> print(dump_plan(Plan(tensor_parallel=8, schedule="gpipe")), end="")
    tensor_parallel: 8
    schedule: gpipe
    """
    data = plan.model_dump(mode="json", exclude_defaults=True)
    if not data:
        return "tensor_parallel: 1\n"  # an empty file is no plan
    writer: Any = YAML(typ="safe", pure=True)  # its attributes are annotated None
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False
    text = StringIO()
    writer.dump(data, text)
    return text.getvalue()
