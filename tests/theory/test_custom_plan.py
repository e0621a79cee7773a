"""A user's own table of actions runs unchanged, and equals the built-in schedule it writes out."""

import pytest

from simmoe.engine.fast import simulate_fast
from simmoe.errors import SpecError
from simmoe.graph.actions import stage_actions
from simmoe.graph.build import build_step
from simmoe.graph.schedules import Kind
from tests.scenarios import small


def written_out(scenario) -> str:
    """The built-in schedule of a scenario as a table in PyTorch's form."""
    rows = []
    for number, stage in enumerate(scenario.plan.stages):
        cells = [
            f"{stage.chunks[action.chunk].position}{'FBIW'[action.kind]}{action.micro_batch}"
            for action in stage_actions(scenario.plan, number, 8)
        ]
        rows.append(",".join(cells))
    return "\\n".join(rows)


@pytest.mark.parametrize(
    "overrides",
    [
        ("plan.schedule=1f1b",),
        ("plan.schedule=gpipe",),
        ("plan.schedule=zb-h1",),
        ("plan.schedule=zb-v",),
        ("plan.schedule=interleaved", "plan.virtual_pipeline=2"),
    ],
)
def test_a_table_equals_the_schedule_it_writes_out(overrides):
    known = small(*overrides)
    assert any(action.kind is Kind.FORWARD for action in stage_actions(known.plan, 0, 8))
    own = small("plan.schedule=custom", f'plan.schedule_table="{written_out(known)}"')
    expected, found = (simulate_fast(build_step(scenario).graph) for scenario in (known, own))
    assert found.digest() == expected.digest()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("0F0,0B0", "1 rows for 2 pipeline stages"),
        ("0F0,0B0\\n2F0,2B0", "are not numbered from 0 without gaps or repeats"),
    ],
)
def test_a_table_that_does_not_fit_the_plan_is_refused(table, message):
    with pytest.raises(SpecError, match=message):
        small("plan.schedule=custom", f'plan.schedule_table="{table}"')


def test_a_table_with_too_few_micro_batches_is_refused():
    scenario = small("plan.schedule=custom", 'plan.schedule_table="0F0,0B0\\n1F0,1B0"')
    with pytest.raises(SpecError, match=r"plan\.schedule_table"):
        build_step(scenario)
