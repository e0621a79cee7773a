"""A user's table of actions: what it reads as, what is wrong with it, and that a good one runs as its function does."""

import pytest

from simmoe.engine.simulate import simulate
from simmoe.errors import SpecError
from simmoe.graph.custom_schedule import check_schedule, parse_schedule
from simmoe.graph.dualpipe import dualpipe, dualpipe_v
from simmoe.graph.schedules import Action, Kind, gpipe, interleaved, one_f_one_b, written
from simmoe.graph.zero_bubble import zb_h1, zb_v
from tests.pipelines import Times, bare, looped, two_ways, v_shape

ONE_STAGE = [[(0, 0)]]
TWO_STAGES = [[(0, 0)], [(0, 1)]]


def as_table(schedule, placement, stages, micro_batches):
    """A schedule in PyTorch's form."""
    rows = []
    for stage in range(stages):
        places, cells, actions = placement(stage, stages), [], list(schedule(stage, stages, micro_batches))
        while actions:
            words = [
                f"{places[a.chunk][1]}{'FBIW'[a.kind]}{a.micro_batch}" for a in actions[: 1 + actions[0].with_next]
            ]
            cells += ["", words[0] if len(words) == 1 else f"({';'.join(words)})OVERLAP_F_B"]
            del actions[: len(words)]
        rows.append(",".join(cells))
    return "\n".join(rows) + "\n"


def problems_of(actions, places, micro_batches):
    with pytest.raises(SpecError) as caught:
        check_schedule(actions, places, micro_batches, "mine")
    return list(caught.value.problems)


def problems_of_text(text):
    with pytest.raises(SpecError) as caught:
        parse_schedule(text, "mine.csv")
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("schedule", "placement"),
    [
        (gpipe, looped(1)),
        (one_f_one_b, looped(1)),
        (zb_h1, looped(1)),
        (lambda s, p, m: interleaved(s, p, m, 3), looped(3)),
        (zb_v, v_shape),
        (dualpipe_v, v_shape),
    ],
)
def test_a_table_runs_as_the_schedule_it_lists(schedule, placement):
    stages, micro_batches = 4, 8
    table = parse_schedule(as_table(schedule, placement, stages, micro_batches))
    check_schedule(table.actions, table.places, micro_batches)
    assert table.places == tuple(placement(stage, stages) for stage in range(stages))
    assert table.actions == tuple(schedule(stage, stages, micro_batches) for stage in range(stages))
    times = [Times(1.0, 1.5, 0.5 + stage) for stage in range(stages)]
    own, read = (
        simulate(bare(order, placement, times, micro_batches, 0.25)).end.tolist()
        for order in (schedule, lambda stage, stages, micro_batches: table.actions[stage])
    )
    assert own == read


def test_chunks_are_the_virtual_stages_of_a_row_in_ascending_order():
    table = parse_schedule("3F0, 0F0 ,\n1F0,,2F0\n")
    assert table.places == (((0, 0), (0, 3)), ((0, 1), (0, 2)))
    assert [written(own) for own in table.actions] == ["F0.1 F0.0", "F0.0 F0.1"]


def test_joined_passes():
    table = parse_schedule("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0I1,0W1,0B2")
    assert written(table.actions[0]) == "F0.0 F1.0 F2.0+ B0.0 I1.0 W1.0 B2.0"


@pytest.mark.parametrize(
    "cell", ["0X1", "F1", "0F", "0F-1", "0f1", "0F1x", "\u0660F1", '"0F1"', "1234567F0", "0F1;0B0", "(0F1;0B0)"]
)
def test_a_cell_that_is_no_action(cell):
    assert problems_of_text(f"0F0,0B0\n1F0,,{cell}") == [
        "mine.csv: row 2, cell 3: not an action, write virtual stage, F, B, I or W, and micro-batch, as 0F0 "
        f"(got {cell!r})"
    ]


def test_all_wrong_cells_are_named_at_once():
    assert len(problems_of_text("0F0,?\n!,1F0")) == 2
    many = problems_of_text(",".join(["?"] * 100))
    assert len(many) == 11
    assert many[-1] == "mine.csv: and 90 more"


@pytest.mark.parametrize("cell", ["0SEND_F1", "1RECV_B0", "0UNSHARD", "0RESHARD", "0REDUCE_GRAD"])
def test_transfers_have_a_sentence_of_their_own(cell):
    assert "leave them out" in problems_of_text(f"0F0,{cell}")[0]


def test_a_long_cell_is_cut():
    assert len(problems_of_text("F" * 1_000_000)[0]) < 200


def test_rows_without_actions_and_shared_virtual_stages():
    assert problems_of_text("") == ["mine.csv: is empty, write one row a rank"]
    assert problems_of_text("0F0\n,,\n2F0") == ["mine.csv: row 2 has no action: every rank needs some"]
    assert problems_of_text("0F0\n1F0,0B0") == ["mine.csv: row 2 works on virtual stage 0, which row 1 holds; keep one"]


def test_a_good_schedule_of_two_copies():
    check_schedule([dualpipe(stage, 4, 8) for stage in range(4)], [two_ways(stage, 4) for stage in range(4)], 8)


def actions(words):
    """Actions of chunk 0 from words such as F0."""
    return [Action(Kind("FBIW".index(word[0])), int(word[1]), 0, word.endswith("+")) for word in words.split()]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("F0", "stage 0 never runs 0B0, add it (or 0I0 and 0W0)"),
        ("F0 I0", "stage 0 never runs 0W0, add it"),
        ("F0 B0 B0", "stage 0 runs 0B0 again, or before what it follows"),
        ("F0 F0 B0", "stage 0 runs 0F0 again, or before what it follows"),
        ("B0 F0", "stage 0 runs 0B0 again, or before what it follows"),
        ("F0 B0 W0", "stage 0 runs 0W0 again, or before what it follows"),
        ("F0 W0 I0", "stage 0 runs 0W0 again, or before what it follows"),
        ("F0 B0 F1 B1", "micro-batch 1 does not exist: the plan has 1, from 0"),
        ("F1 B1", "micro-batch 0 of 1 goes through 0 copies of the model instead of one"),
    ],
)
def test_a_stage_that_does_not_do_its_work_once(words, problem):
    assert f"mine: {problem}" in problems_of([actions(words)], ONE_STAGE, 1)


@pytest.mark.parametrize("words", ["F0+ F1 B0 B1", "F0 F1 B0+ B1", "F0 F1+ B0+ B1", "F0 F1 B0 B1+", "F0 I0 F1+ W0 B1"])
def test_what_cannot_be_joined(words):
    assert any("with the next" in problem for problem in problems_of([actions(words)], ONE_STAGE, 2))


def test_a_pair_of_one_micro_batch_waits_for_itself():
    found = problems_of([actions("F0+ B0")], ONE_STAGE, 1)
    assert found == ["mine: stages wait for each other in a circle: stage 0 before 0F0"]


def test_orders_that_wait_for_each_other():
    """Stage 0 wants the gradient of 0 before it sends 1; stage 1 wants 1 first."""
    found = problems_of([actions("F0 B0 F1 B1"), actions("F1 F0 B0 B1")], TWO_STAGES, 2)
    assert found == ["mine: stages wait for each other in a circle: stage 0 before 0B0, stage 1 before 1F1"]


def test_micro_batches_that_skip_a_virtual_stage():
    found = problems_of([actions("F0 B0 F1 B1"), actions("F0 B0")], TWO_STAGES, 2)
    assert found == ["mine: virtual stage 1 of copy 0 never sees micro-batch 1, which others do"]


def test_micro_batches_of_two_copies():
    copies = [[(0, 0), (1, 0)]]
    both = [Action(kind, 0, chunk) for chunk in (0, 1) for kind in (Kind.FORWARD, Kind.BACKWARD)]
    assert problems_of([both], copies, 1) == [
        "mine: micro-batch 0 of 1 goes through 2 copies of the model instead of one"
    ]


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ([[(0, 0)]], "has 2 stages, the plan has 1"),
        ([[(0, 0)], [(0, 0)]], "virtual stage 0 of copy 0 has more than one place"),
        ([[(0, 0)], [(0, 2)]], "virtual stage 1 of copy 0 has no stage, though 2 has"),
        ([[(0, 0)], []], "stage 1 runs F0.0, but has no chunk"),
        ([[(0, 0)], [(0, 1)]], "stage 1 runs F0.1, but its last chunk is 0"),
    ],
)
def test_places(places, problem):
    chunk = int(problem.endswith("is 0"))
    own = [Action(Kind.FORWARD, 0), Action(Kind.BACKWARD, 0)]
    other = [action._replace(chunk=chunk) for action in own]
    assert problems_of([own, other], places, 1) == [f"mine: {problem}"]
