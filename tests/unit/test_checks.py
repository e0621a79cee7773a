"""Every consistency rule fires on the mistake it is for, and only there."""

from pathlib import Path

import pytest

from simmoe.errors import SpecError
from simmoe.specs import checks, rules
from simmoe.specs.document import Document, Position
from simmoe.specs.reader import dump_plan
from simmoe.specs.rules import RULES, divides, limit, rule
from tests.routing_mistakes import ROUTING_MISTAKES
from tests.spec_mistakes import MISTAKES, STAGE_MISTAKES, TOO_MANY
from tests.zebra_mistakes import ZEBRA_MISTAKES

KINDS = ("link", "node", "group", "cluster", "model", "recompute", "stage", "plan", "scenario", "expanded")


def assert_single(lines: list[str], expected: str) -> None:
    """One line, made of a position and of what is expected."""
    assert len(lines) == 1, lines
    assert lines[0].endswith(f": {expected}"), lines[0]


@pytest.fixture
def explicit(load) -> list[str]:
    """The overrides that write out the stages of the example."""
    Path("p.yaml").write_text(dump_plan(load().plan))
    return ["plan=p.yaml"]


@pytest.mark.parametrize(("overrides", "expected"), [*MISTAKES, *ROUTING_MISTAKES, *ZEBRA_MISTAKES])
def test_a_mistake_is_answered_by_its_rule_alone(complaint, overrides, expected):
    assert_single(complaint(overrides=overrides), expected)


@pytest.mark.parametrize(("overrides", "expected"), STAGE_MISTAKES)
def test_a_mistake_in_a_stage_is_answered_by_its_rule_alone(complaint, explicit, overrides, expected):
    assert_single(complaint(overrides=[*explicit, *overrides]), expected)


def test_explicit_stages_may_be_unequal(load, explicit):
    """Layers, tp and dp differ from stage to stage; the sizes that no longer hold for all are left out."""
    overrides = [
        *explicit,
        "plan.data_parallel=null",
        "plan.stages.0.tensor_parallel=2",
        "plan.stages.0.data_parallel=8",
        "plan.stages.0.chunks.0.layers=7",
        "plan.stages.1.chunks.0.first_layer=7",
        "plan.stages.1.chunks.0.layers=9",
    ]
    stages = load(overrides=overrides).plan.stages
    assert [stage.layers for stage in stages] == [7, 9, 8, 8]
    assert [stage.tensor_parallel for stage in stages] == [2, 1, 1, 1]


def test_every_rule_is_seen_to_fire(load, explicit, monkeypatch):
    """A rule that no example above sets off may as well not be there."""
    fired = set()

    def spy(kind: str, number: int, one: rules.Rule) -> rules.Rule:
        def check(spec):
            sentence = one.check(spec)
            if sentence is not None:
                fired.add((kind, number))
            return sentence

        return one._replace(check=check)

    for kind in KINDS:
        watched = [spy(kind, number, one) for number, one in enumerate(RULES[kind])]
        monkeypatch.setitem(RULES, kind, watched)
    runs = [overrides for overrides, _ in [*MISTAKES, *ROUTING_MISTAKES, *ZEBRA_MISTAKES]]
    runs += [explicit + overrides for overrides, _ in STAGE_MISTAKES]
    for overrides in [*runs, TOO_MANY]:
        with pytest.raises(SpecError):
            load(overrides=overrides)
    everything = {(kind, number) for kind in KINDS for number in range(len(RULES[kind]))}
    assert sorted(everything - fired) == []


def test_the_kinds_above_are_all_kinds():
    assert {kind for kind in RULES if not kind.startswith(("test", "demo"))} == set(KINDS)


def test_a_new_rule_is_one_function(monkeypatch):
    monkeypatch.setitem(RULES, "test", [])

    @rule("test", "size")
    def size_is_even(size: int) -> str | None:
        return f"{size} is odd, write an even number" if size % 2 else None

    limit("test", "size", 10, lambda size: size)
    document = Document(Position("x.yaml", 1, 1), {"size": 13})
    assert [str(problem) for problem in checks.run("test", 13, document)] == [
        "x.yaml:1:1: size: 13 is odd, write an even number",
        "x.yaml:1:1: size: at most 10 is accepted (got 13), write less",
    ]
    assert checks.run("test", 4, document) == []
    assert size_is_even(3) == "3 is odd, write an even number"  # the function itself is left as it was


@pytest.mark.parametrize("size", [1, 2, 7, 8, 12, 1407, 14336])
@pytest.mark.parametrize("divisor", [1, 2, 3, 5, 8, 64, 2**40])
def test_the_divisors_named_do_divide(divisor, size):
    sentence = divides(divisor, "a", size, "b")
    if size % divisor == 0:
        assert sentence is None
        return
    choices = [int(word) for word in sentence.split("choose ")[1].split(" or ")]
    assert all(size % choice == 0 for choice in choices)
    assert choices[0] < divisor
