"""What a user gets to read for values of the wrong type and for text that is no YAML.

The file is `SCENARIO` of conftest.py with one thing changed, so a line number below counts its lines.
"""

import pytest

TENSOR = "  tensor_parallel: 1"
PRECISIONS = "fp32, tf32, fp16, bf16, fp8-delayed, fp8-current, fp8-blockwise, mxfp8, nvfp4"

TYPES = [
    (
        "count: 8",
        f"count: {written}",
        [f"6:{column}: cluster.groups.0.count: a whole number is expected (got {shown}), write for example 8"],
    )
    for written, shown, column in [
        ("eight", "'eight'", 14),
        ("'8'", "'8'", 14),
        ("8.0", "8.0", 14),
        ("8e0", "8.0", 14),
        ("1_000", "'1_000'", 14),
        ("true", "true", 14),
        ("", "null", 7),
        ("[8]", "a list of 1", 7),
        ("{a: 8}", "a mapping of 1", 7),
    ]
] + [
    (
        "precision: bf16",
        "precision: bf61",
        [f"12:14: training.precision: not one of {PRECISIONS} (got 'bf61'), did you mean bf16?"],
    ),
    (
        "precision: bf16",
        "precision: 16",
        [f"12:14: training.precision: one of {PRECISIONS} is expected (got 16), write one of them"],
    ),
    (
        TENSOR,
        "  dispatcher: nccl",
        [
            "14:15: plan.dispatcher: not one of alltoall, allgather, deepep, hybridep, uccl (got 'nccl'), "
            "did you mean uccl?"
        ],
    ),
    (
        "precision: bf16",
        "mtp: yes",
        ["12:8: training.mtp: true or false is expected (got 'yes'), write one of the two"],
    ),
    ("precision: bf16", "mtp: 1", ["12:8: training.mtp: true or false is expected (got 1), write one of the two"]),
    ("name: demo", "name: 12", ["1:7: name: text is expected (got 12), put it in quotes"]),
    (
        "link: infiniband-ndr-400",
        "link: infiniband-ndr-400\n    oversubscription: true",
        ["9:23: cluster.fabric.oversubscription: a number is expected (got true), write for example 0.5"],
    ),
    (
        "link: infiniband-ndr-400",
        "link: infiniband-ndr-400\n    oversubscription: '2'",
        ["9:23: cluster.fabric.oversubscription: a number is expected (got '2'), write for example 0.5"],
    ),
    (
        TENSOR,
        "  recompute: {granularity: selective, modules: core_attn}",
        ["14:48: plan.recompute.modules: a list is expected (got 'core_attn'), write [..., ...]"],
    ),
    (
        "model: mixtral-8x7b",
        "model: 8",
        ["2:8: model: an id of a model or a mapping is expected (got 8), write one"],
    ),
    (
        TENSOR,
        "  recompute: 1",
        ["14:14: plan.recompute: none, selective, full or a mapping is expected (got 1), write one"],
    ),
    (
        TENSOR,
        "  recompute: ful",
        ["14:14: plan.recompute.granularity: not one of none, selective, full (got 'ful'), did you mean full?"],
    ),
    (
        "name: demo",
        "name: demo\nrouting: balanced",
        [
            "2:10: routing: a mapping is expected (got 'balanced'), write key: value lines "
            "(kind, capacity_factor, pad_to_capacity, exponent, concentration, counts, ...)"
        ],
    ),
    (
        "model: mixtral-8x7b",
        "model: {num_layers: 2}",
        [
            *(
                f"2:1: model.{key}: is missing, add a whole number"
                for key in ("hidden_size", "ffn_hidden_size", "vocab_size", "max_position_embeddings")
            ),
            "2:1: model.attention: is missing, add it",
        ],
    ),
]

SYNTAX = [
    ("name: demo", "name: demo\nname: demo", ["2:1: name: the key is already given in line 1, remove one of the two"]),
    (TENSOR, "\ttensor_parallel: 1", ["14:1: not valid YAML, a tab stands here, use spaces"]),
    (
        "name: demo",
        "- demo",
        ["2:1: not valid YAML, the line does not fit those above it, check dashes and indentation"],
    ),
    ("name: demo", "name: [demo", ["2:6: not valid YAML, a list is not closed, add ]"]),
    ("name: demo", "name: {a: 3", ["2:6: not valid YAML, a mapping is not closed, add }"]),
    (
        "name: demo",
        "name: de: mo",
        ["1:9: not valid YAML, a second colon or a wrong indentation, quote text or align keys"],
    ),
    (
        "name: demo",
        "name demo",
        ["2:6: not valid YAML, a second colon or a wrong indentation, quote text or align keys"],
    ),
    (
        "name: demo",
        "name: @x",
        ["1:7: not valid YAML (found character '@' that cannot start any token), correct the lines around it"],
    ),
    (
        "name: demo",
        "name: !!python/name:os.system",
        ["1:7: tags are not accepted (got tag:yaml.org,2002:python/name:os.system), write the bare value"],
    ),
    ("name: demo", "name: 'de\x07mo'", ["1:10: character U+0007 cannot stand in YAML, remove it"]),
    ("name: demo", f"name: {'[' * 100}", ["1:29: nested more than 23 deep, write it flatter"]),
    ("name: demo", "? [name]\n: demo", ["1:3: a key must be a word, not a list or mapping; write key: value"]),
    (
        "expert_parallel: 8\n",
        "expert_parallel: 8\n---\nname: again\n",
        ["17:1: a second document starts here, keep one in a file"],
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), [*TYPES, *SYNTAX])
def test_the_message_names_place_value_and_remedy(complaint, old, new, expected):
    assert complaint((old, new)) == [f"s.yaml:{line}" for line in expected]


def test_anchors_are_refused_where_they_start(complaint):
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert complaint(text=bomb) == ["s.yaml:1:4: anchors and aliases are not accepted (got &a), write the value out"]
    assert complaint(("name: demo", "name: *demo")) == [
        "s.yaml:1:7: anchors and aliases are not accepted (got *demo), write the value out"
    ]
