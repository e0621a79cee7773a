"""Every shipped example and a zebra plan to the last digit.

Rewrite `timelines.json` with ``pytest --update-golden`` and review it.
"""

import json
from pathlib import Path

import pytest

from simmoe.engine.simulate import simulate
from simmoe.graph.build import build_step
from simmoe.specs.reader import load_scenario
from tests.scenarios import ZEBRA

RECORD = Path(__file__).with_name("timelines.json")
EXAMPLES = Path(__file__).parents[2] / "scenarios" / "examples"
RECORDED = {path.stem: path for path in (*sorted(EXAMPLES.glob("*.yaml")), ZEBRA)}
LIMIT = 120_000  # tasks; larger examples are simulated elsewhere


def observed(name: str) -> dict[str, object]:
    """What is recorded of an example: its size, its time and the digest of every start and end."""
    graph = build_step(load_scenario(RECORDED[name])).graph
    if len(graph) > LIMIT:
        return {"tasks": len(graph)}
    timeline = simulate(graph)
    return {"tasks": len(graph), "step_time_s": timeline.makespan, "digest": timeline.digest()}


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_timeline_is_the_recorded_one(name: str, request: pytest.FixtureRequest) -> None:
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found = observed(name)
    if request.config.getoption("--update-golden"):
        RECORD.write_text(json.dumps({**recorded, name: found}, indent=1, sort_keys=True) + "\n")
        return
    assert found == recorded[name]


def test_nothing_is_recorded_that_is_not_there() -> None:
    assert set(json.loads(RECORD.read_text())) == set(RECORDED)
