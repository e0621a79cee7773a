"""Expert counts from CSV files and from Megatron's routing trace."""

import json
from pathlib import Path

import pytest

from simmoe.errors import SpecError
from simmoe.specs import routing_trace_file
from simmoe.specs.expert_counts_file import read_expert_counts
from simmoe.specs.reader import load_scenario
from tests.scenarios import SMALL


def as_dict(path: Path) -> dict[int, list[list[int]]]:
    """Layer to its samples."""
    return {layer.layer: [list(row) for row in layer.samples] for layer in read_expert_counts(path).layers}


def complaint(path: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_expert_counts(path)
    return list(caught.value.problems)


def record(layer: int, indices: list[list[int]], step: int = 0, **more: object) -> str:
    """A line as Megatron writes it."""
    about = {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer, "rank": 0}
    sizes = {"num_tokens": len(indices), "topk": len(indices[0])}
    return json.dumps({**about, **sizes, "top_indices": indices, **more}) + "\n"


# ---------------------------------------------------------------- CSV


def test_a_csv_of_counts(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text("# measured on Monday\nlayer,expert,count\n3,0,10\n3,2,30\n1,1,5\n")
    assert as_dict(path) == {1: [[0, 5, 0]], 3: [[10, 0, 30]]}
    assert read_expert_counts(path).source == str(path)


def test_columns_may_stand_in_any_order_and_tell_micro_batches_apart(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text("count,layer,micro_batch,expert\n7,0,1,1\n4,0,0,0\n")
    assert as_dict(path) == {0: [[4, 0], [0, 7]]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("layer,expert\n0,0\n", [":1: the columns layer,expert,count are expected (got 'layer,expert'), name them so"]),
        ("layer,expert,count\n0,0\n", [":2: 3 cells are expected (got 2), write them"]),
        (
            "layer,expert,count\n0,0,1\n\n0,-1,2\n0,1,x\n",
            [
                ":4: expert: a whole number from 0 to 100000 is expected (got '-1'), correct it",
                ":5: count: a whole number from 0 to 1000000000000000 is expected (got 'x'), correct it",
            ],
        ),
        ("layer,expert,count\n0,0,1\n0,0,2\n", [":3: expert 0 of layer 0 is given twice, add its counts up"]),
        ("layer,expert,count\n", [": no counts in it, write lines of layer,expert,count"]),
        ('layer,expert,count\n0,0,"1\n', [": not a CSV file (unexpected end of data), correct it"]),
        ("layer,expert,count\n9999,99999,1\n0,0,1\n", None),
    ],
)
def test_wrong_csv_files_name_the_line(tmp_path, text, expected):
    path = tmp_path / "counts.csv"
    path.write_text(text)
    if expected is None:
        assert sorted(as_dict(path)) == [0, 9999]
    else:
        assert complaint(path) == [f"{path}{line}" for line in expected]


def test_few_lines_cannot_ask_for_much_memory(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text("layer,expert,count\n" + "".join(f"{layer},99999,1\n" for layer in range(41)))
    assert complaint(path) == [
        f"{path}: too many counts (got 4100000, at most 4000000), keep fewer micro-batches",
    ]


def test_only_the_first_problems_of_a_long_file_are_told(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text("layer,expert,count\n" + "0,0,nothing\n" * 1000)
    assert len(complaint(path)) == 20


# ---------------------------------------------------------------- routing trace


def test_a_trace_is_summed_over_ranks_micro_batch_by_micro_batch(tmp_path):
    """Two ranks, two micro-batches of one step and one of the next; each record is one micro-batch."""
    (tmp_path / "router_trace_rank0.jsonl").write_text(
        record(0, [[0, 1], [0, 2]]) + record(0, [[1, 2]]) + record(0, [[3, 0]], step=1)
    )
    (tmp_path / "router_trace_rank1.jsonl").write_text(
        record(0, [[0, 3]]) + record(0, [[1, 3]]) + record(0, [[3, 1]], step=1)
    )
    (tmp_path / "logits_rank0.bin").write_bytes(b"\x00")  # sidecars are left alone
    assert as_dict(tmp_path) == {0: [[3, 1, 1, 1], [0, 2, 1, 1], [1, 1, 0, 2]]}


def test_one_file_of_a_trace(tmp_path):
    path = tmp_path / "router_trace_rank7.jsonl"
    path.write_text(record(2, [[0], [0], [1]]) + "\n")
    assert as_dict(path) == {2: [[2, 1]]}


def test_mtp_layers_follow_the_decoder(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(record(0, [[0]], block="mtp", mtp_idx=0) + record(4, [[1]]))
    assert as_dict(path) == {4: [[0, 1]], 5: [[1, 0]]}


def test_layers_are_numbered_on_over_the_folders_of_the_stages(tmp_path):
    """Megatron names layers inside their stage; the folders are taken in natural order."""
    for stage in (0, 2, 10):
        folder = tmp_path / f"stage{stage}"
        folder.mkdir()
        (folder / "r.jsonl").write_text(record(0, [[stage]]) + record(1, [[0]]))
    found = as_dict(tmp_path)
    assert [(layer, samples[0].index(1)) for layer, samples in found.items()] == [
        *((0, 0), (1, 0)),
        *((2, 2), (3, 0)),
        *((4, 10), (5, 0)),
    ]


def test_padding_of_a_trace_is_no_expert(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(record(0, [[0, -1], [1, -1]]))
    assert as_dict(path) == {0: [[1, 1]]}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "not a JSON record on one line, write one there"),
        ("[" * 100_000, "not a JSON record on one line, write one there"),
        ("[1]", "a record of a routing trace is expected (got a list of 1), name a file of --moe-routing-trace-path"),
        (record(0, [[0]], step=True), "step: a whole number from 0 to 1000000000 is expected (got true), correct it"),
        (record(-1, [[0]]), "layer: a whole number from 0 to 10000 is expected (got -1), correct it"),
        (record(0, [[0.5]]), "top_indices: experts from 0 to 100000 are expected (got 0.5), correct them"),
        (record(0, [[10**9]]), "top_indices: experts from 0 to 100000 are expected (got 1000000000), correct them"),
        (record(0, [["a"]]), "top_indices: experts from 0 to 100000 are expected (got 'a'), correct them"),
        (record(0, [[True]]), "top_indices: experts from 0 to 100000 are expected (got true), correct them"),
        (record(0, [[[0]]]), "top_indices: a list of lists of experts is expected (got a list of 1)"),
        (record(0, [[0]], top_indices=7), "top_indices: a list of lists of experts is expected (got 7)"),
        (record(0, [[0]], top_indices=["ab"]), "top_indices: experts from 0 to 100000 are expected (got 'a')"),
        (record(0, [[0]], top_indices=[1]), "top_indices: a list of lists of experts is expected (got a list of 1)"),
    ],
)
def test_wrong_records_name_the_line(tmp_path, line, sentence):
    path = tmp_path / "trace.jsonl"
    path.write_text(record(0, [[0]]) + line + "\n")
    (found,) = complaint(path)
    assert found.startswith(f"{path}:2: {sentence}")


def test_a_trace_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(routing_trace_file, "LARGEST_TRACE", 100)
    (tmp_path / "a.jsonl").write_text(record(0, [[0]] * 100))
    assert complaint(tmp_path) == [
        f"{tmp_path}: the trace is too large (got 0 MiB, at most 9.53674e-05 MiB), keep fewer ranks or steps of it"
    ]


def test_folders_and_files_that_hold_no_trace(tmp_path):
    assert complaint(tmp_path) == [
        f"{tmp_path}: no .jsonl file in this folder or in a folder inside it, name the folder of a routing trace"
    ]
    assert complaint(tmp_path / "none.jsonl") == [f"{tmp_path}/none.jsonl: there is no such file, check the path"]
    (tmp_path / "empty.jsonl").write_text("")
    assert complaint(tmp_path / "empty.jsonl") == [
        f"{tmp_path}/empty.jsonl: no counts in it, write lines of layer,expert,count"
    ]


# ---------------------------------------------------------------- from a scenario


def scenario_with(folder: Path, routing: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(SMALL.read_text() + routing)
    return path


def test_a_scenario_names_its_counts_relative_to_itself(tmp_path):
    (tmp_path / "counts.csv").write_text("layer,expert,count\n0,0,3\n0,7,1\n")
    scenario = load_scenario(scenario_with(tmp_path, "routing: {kind: counts, counts: counts.csv}\n"))
    assert scenario.routing.counts.of_layer(5).samples == ((3, 0, 0, 0, 0, 0, 0, 1),)
    assert hash(scenario.routing) == hash(scenario.routing.model_copy())


def test_counts_can_be_set_and_taken_back(tmp_path):
    (tmp_path / "counts.csv").write_text("layer,expert,count\n0,0,3\n")
    path = scenario_with(tmp_path, "")
    load = ["routing.kind=counts", "routing.counts=counts.csv"]
    assert load_scenario(path, load).routing.counts is not None
    assert load_scenario(path, [*load, "routing.counts=null", "routing.kind=balanced"]).routing.counts is None


def test_skew_can_be_switched_off(tmp_path):
    path = scenario_with(tmp_path, "routing: {kind: zipf, exponent: 1}\n")
    assert load_scenario(path).routing.skewed
    assert not load_scenario(path, ["routing.kind=balanced"]).routing.skewed


def test_problems_of_counts_are_told_with_those_of_the_scenario(tmp_path):
    path = scenario_with(tmp_path, "routing: {kind: counts, counts: counts.csv, seed: -1}\n")
    (tmp_path / "counts.csv").write_text("layer,expert,count\n0,0,x\n")
    with pytest.raises(SpecError) as caught:
        load_scenario(path)
    assert [line.partition(": ")[2] for line in caught.value.problems] == [
        "count: a whole number from 0 to 1000000000000000 is expected (got 'x'), correct it",
        "routing.seed: must be at least 0 (got -1), write 0 or more",
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("routing.counts=none.csv", "routing.counts: there is no such file (got 'none.csv'), check the path"),
        ("routing.counts=7", "routing.counts: a file of expert counts or the folder of a routing trace is expected"),
    ],
)
def test_what_is_no_file_of_counts(tmp_path, override, expected):
    with pytest.raises(SpecError) as caught:
        load_scenario(scenario_with(tmp_path, ""), ["routing.kind=counts", override])
    assert any(expected in line for line in caught.value.problems)


def test_counts_in_the_scenario_itself_are_validated():
    with pytest.raises(SpecError, match="at least 0"):
        load_scenario(SMALL, ["routing={kind: counts, counts: {layers: [{layer: 0, samples: [[-1]]}]}}"])
