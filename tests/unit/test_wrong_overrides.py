"""What a user gets to read for wrong overrides, unknown ids and wrong plan files."""

from pathlib import Path

import pytest

from simmoe.errors import NotFoundError, SpecError
from simmoe.specs import catalog
from simmoe.specs.reader import load_plan

LIST = "list them with: simmoe db list"
PRECISIONS = "fp32, tf32, fp16, bf16, fp8-delayed, fp8-current, fp8-blockwise, mxfp8, nvfp4"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("plan", "not an override, write --set key.key=value"),
        ("=3", "not an override, write --set key.key=value"),
        ("plan..x=3", "not an override, write --set key.key=value"),
        ("plan.data_parallel=", "no value, write one after the = (null for none)"),
        ("plan.tensor_parallel.x=3", "plan.tensor_parallel: has no keys (got 1), set plan.tensor_parallel itself"),
        ("name.x=3", "name: has no keys (got 'demo'), set name itself"),
        ("cluster.groups.1.count=3", "cluster.groups: not an entry of the list (got '1'), write 0"),
        ("cluster.groups.-1.count=3", "cluster.groups: not an entry of the list (got '-1'), write 0"),
        ("cluster.groups.first.count=3", "cluster.groups: not an entry of the list (got 'first'), write 0"),
        ("plan.tensor_paralel=8", "plan.tensor_paralel: unknown key, did you mean tensor_parallel?"),
        (
            "plan.expert_parallel=3",
            "plan.expert_parallel: expert_parallel 3 does not divide num_experts 8, choose 2 or 4",
        ),
        ("training.precision=int8", f"training.precision: not known (got 'int8'), use one of {PRECISIONS}"),
        ("model.moe.top_k=0", "model.moe.top_k: must be greater than 0 (got 0), write a positive number"),
        ("plan={", "not valid YAML, a value is missing, write one"),
        ("plan=[1, 2", "not valid YAML, a list is not closed, add ]"),
        ("plan={a: 1, a: 2}", "a: the key is already given, remove one of the two"),
        ("name=&x y", "anchors and aliases are not accepted (got &x), write the value out"),
        (f"name={'[' * 99}", "nested more than 23 deep, write it flatter"),
    ],
)  # fmt: skip
def test_a_wrong_override_names_itself(complaint, override, message):
    assert complaint(overrides=[override]) == [f"--set {override}: {message}"]


def test_an_override_too_long_or_too_deep_is_refused(complaint):
    sentence = "longer than 10000 characters or 24 steps, write it into the file"
    assert complaint(overrides=["name=" + "x" * 20_000]) == [f"--set name={'x' * 195}...: {sentence}"]
    deep = ".".join("a" * 30)
    assert complaint(overrides=[f"{deep}=1"]) == [f"--set {deep}=1: {sentence}"]


def test_an_id_in_the_way_of_an_override_must_exist(complaint):
    lines = complaint(("node: dgx-h100", "node: dgx-h1"), overrides=["cluster.groups.0.node.accelerators=4"])
    assert lines == [f"s.yaml:5:13: cluster.groups.0.node: 'dgx-h1' is not a node (did you mean dgx-h100?), {LIST}"]


# ---------------------------------------------------------------- parts and plans


def test_an_unknown_id_is_answered_with_the_nearest(catalogue):
    with pytest.raises(NotFoundError) as caught:
        catalog.accelerator("h100-sxm")
    assert str(caught.value) == (
        f"'h100-sxm' is not an accelerator (did you mean h100-sxm5-80gb, a100-sxm4-80gb, v100-sxm2-16gb?), {LIST}"
    )


@pytest.mark.parametrize("id", ["", "../links/nvlink-4", "a\nb", "x" * 10_000, "\0"])
def test_an_id_that_is_no_id_is_answered_in_one_line(catalogue, id):
    for look_up in (catalog.accelerator, catalog.link, catalog.node, catalog.cluster, catalog.software):
        with pytest.raises(NotFoundError) as caught:
            look_up(id)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300


def test_a_plan_file_is_read_like_a_scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text("tensor_parallel: two\nvirtual_pipline: 2\nrecompute: half\n")
    with pytest.raises(SpecError) as caught:
        load_plan("p.yaml")
    assert caught.value.problems == (
        "p.yaml:1:18: tensor_parallel: a whole number is expected (got 'two'), write for example 8",
        "p.yaml:2:1: virtual_pipline: unknown key, did you mean virtual_pipeline?",
        "p.yaml:3:12: recompute.granularity: not known (got 'half'), use one of none, selective, full",
    )
