"""What a user gets to read for a wrong scenario: whole messages, word by word.

The file is `SCENARIO` of conftest.py with one thing changed, so a line number below counts its lines.
"""

import pytest

LIST = "list them with: simmoe db list"
TENSOR = "  tensor_parallel: 1"
BANDWIDTH = "link: infiniband-ndr-400\n    bandwidth: "
EXAMPLES = "write for example 3.35 TB/s, 900 GB/s, 400 Gb/s"

KEYS_AND_IDS = [
    (TENSOR, "  tensor_paralel: 1", ["14:3: plan.tensor_paralel: unknown key, did you mean tensor_parallel?"]),
    ("name: demo", "nmae: demo", ["1:1: nmae: unknown key, did you mean name?"]),
    (
        "name: demo",
        "banana: demo",
        ["1:1: banana: unknown key, use one of name, model, cluster, training, routing, plan, published"],
    ),
    ("count: 8", "count: 8\n      cuont: 9", ["7:7: cluster.groups.0.cuont: unknown key, did you mean count?"]),
    ("model: mixtral-8x7b", "", ["1:1: model: is missing, add it"]),
    ("  global_batch_size: 256\n", "", ["9:1: training.global_batch_size: is missing, add a whole number"]),
    (
        "model: mixtral-8x7b",
        "model: mixtral-8x7",
        [f"2:8: model: 'mixtral-8x7' is not a model (did you mean mixtral-8x7b, mixtral-8x22b?), {LIST}"],
    ),
    ("model: mixtral-8x7b", "model: banana", [f"2:8: model: 'banana' is not a model, {LIST}"]),
    (
        "node: dgx-h100",
        "node: dgx-h10",
        [f"5:13: cluster.groups.0.node: 'dgx-h10' is not a node (did you mean dgx-h100, dgx-a100-80gb?), {LIST}"],
    ),
    (
        "link: infiniband-ndr-400",
        "link: Infiniband-400",
        [f"8:11: cluster.fabric.link: 'Infiniband-400' is not a link (did you mean infiniband-ndr-400?), {LIST}"],
    ),
    (
        "node: dgx-h100",
        "node: ../nodes/dgx-h100",
        [f"5:13: cluster.groups.0.node: '../nodes/dgx-h100' is not a node (did you mean dgx-h100?), {LIST}"],
    ),
    (
        "  precision: bf16",
        "  software: megatron-core",
        [
            "12:13: training.software: 'megatron-core' is not a software stack "
            f"(did you mean megatron-core-2025, megatron-lm-2021?), {LIST}"
        ],
    ),
    (
        "model: mixtral-8x7b",
        "model: {base: mixtral, num_layers: 10}",
        [f"2:15: model.base: 'mixtral' is not a model (did you mean mixtral-8x22b, mixtral-8x7b?), {LIST}"],
    ),
    (
        "model: mixtral-8x7b",
        "model: {base: mixtral-8x7b, moe: {topk: 2}}",
        ["2:35: model.moe.topk: unknown key, did you mean top_k?"],
    ),
]

SIZES = [
    ("count: 8", "count: 0", ["6:14: cluster.groups.0.count: must be greater than 0 (got 0), write a positive number"]),
    (
        "sequence_length: 4096",
        "sequence_length: -1",
        ["10:20: training.sequence_length: must be greater than 0 (got -1), write a positive number"],
    ),
    (
        "link: infiniband-ndr-400",
        f"{BANDWIDTH}0 GB/s",
        ["9:16: cluster.fabric.bandwidth: must be greater than 0 (got '0 GB/s'), write a positive number"],
    ),
    (
        "link: infiniband-ndr-400",
        "link: infiniband-ndr-400\n    latency: -1 us",
        ["9:14: cluster.fabric.latency: must be at least 0 (got '-1 us'), write 0 or more"],
    ),
    (
        "link: infiniband-ndr-400",
        "link: infiniband-ndr-400\n    oversubscription: 0.5",
        ["9:23: cluster.fabric.oversubscription: must be at least 1 (got 0.5), write 1 or more"],
    ),
    (
        "count: 8",
        "count: 1000000000",
        ["4:3: cluster.groups: 8000000000 accelerators are more than 1048576, write smaller counts"],
    ),
    (
        "count: 8",
        "count: 99999999999999999999",
        [
            "6:14: cluster.groups.0.count: larger than any size SimMoE knows (got '99999999999999999999'), "
            "write at most 2**40"
        ],
    ),
    (
        "model: mixtral-8x7b",
        "model: {base: mixtral-8x7b, num_layers: 100000}",
        ["2:41: model.num_layers: at most 10000 is accepted (got 100000), write less"],
    ),
    ("count: 8", "count: .nan", ["6:14: cluster.groups.0.count: not a finite number (got '.nan'), write a number"]),
    ("count: 8", "count: -.inf", ["6:14: cluster.groups.0.count: not a finite number (got '-.inf'), write a number"]),
    ("count: 8", "count: 1e400", ["6:14: cluster.groups.0.count: too large for a number (got '1e400'), write less"]),
    (
        "name: demo",
        "name: demo\npublished: [{metric: mfu, value: 0, tolerance: 2, source: x}]",
        [
            "2:34: published.0.value: must be greater than 0 (got 0), write a positive number",
            "2:48: published.0.tolerance: must be at most 1 (got 2), write 1 or less",
        ],
    ),
    (
        "    - node: dgx-h100\n      count: 8\n",
        "    []\n",
        ["4:3: cluster.groups: needs entries, at least 1 (got a list of 0), add one"],
    ),
]

UNITS = [
    (
        "link: infiniband-ndr-400",
        f"{BANDWIDTH}400 GB/s",
        [
            "9:16: cluster.fabric.bandwidth: 400 GB/s is more than any network port (200 GB/s), "
            "did you mean 400 Gb/s (50 GB/s)?"
        ],
    ),
    ("link: infiniband-ndr-400", f"{BANDWIDTH}400", [f"9:16: cluster.fabric.bandwidth: '400' has no unit, {EXAMPLES}"]),
    (
        "link: infiniband-ndr-400",
        f"{BANDWIDTH}5e10",
        [f"9:16: cluster.fabric.bandwidth: '50000000000.0' has no unit, {EXAMPLES}"],
    ),
    (
        "link: infiniband-ndr-400",
        f"{BANDWIDTH}400 GB",
        [f"9:16: cluster.fabric.bandwidth: '400 GB' is in GB, {EXAMPLES}"],
    ),
    (
        "link: infiniband-ndr-400",
        f"{BANDWIDTH}400 gb/s",
        ["9:16: cluster.fabric.bandwidth: unknown unit 'gb/s', did you mean GB/s or Gb/s?"],
    ),
]

CONSISTENCY = [
    (
        "node: dgx-h100",
        "node: dgx-1-v100-16gb",
        [
            "12:14: training.precision: bf16 is not supported by v100-sxm2-16gb (fp32, fp16), "
            "set training.precision: fp16"
        ],
    ),
    (
        "count: 8\n  fabric:\n    link: infiniband-ndr-400\ntraining:\n  sequence_length: 4096\n"
        "  global_batch_size: 256\n  precision: bf16",
        "count: 6\n    - node: dgx-a100-80gb\n      count: 2\n  fabric: {link: infiniband-ndr-400}\n"
        "training: {sequence_length: 4096, global_batch_size: 256, precision: fp8-delayed}",
        [
            "10:70: training.precision: fp8-delayed needs fp8, which is not supported by a100-sxm4-80gb "
            "(fp32, tf32, fp16, bf16), set training.precision: bf16"
        ],
    ),
    (
        "tensor_parallel: 1",
        "context_parallel: 3",
        [
            "10:20: training.sequence_length: 4096 is not divisible by 2 x context_parallel 3 = 6, "
            "write a multiple of 6",
            "13:1: plan: 64 accelerators are not divisible by tensor_parallel 1 x pipeline_parallel 4 x "
            "context_parallel 3 = 12, change one of them or the number of nodes",
        ],
    ),
    (
        "count: 8",
        "count: 9",
        [
            "11:22: training.global_batch_size: 256 is not divisible by micro_batch_size 1 x data_parallel 18 = 18, "
            "choose 252 or 270",
            "16:20: plan.expert_parallel: stages of size 18 are not divisible by expert_parallel 8 x "
            "expert_tensor_parallel 1 = 8, choose a divisor of 18",
        ],
    ),
    (
        "expert_parallel: 8",
        "expert_parallel: 3",
        ["16:20: plan.expert_parallel: expert_parallel 3 does not divide num_experts 8, choose 2 or 4"],
    ),
    (
        "model: mixtral-8x7b",
        "model: llama-2-7b",
        ["16:20: plan.expert_parallel: llama-2-7b has no experts (got 8), write 1"],
    ),
    (
        "tensor_parallel: 1",
        "tensor_parallel: 64",
        [
            "13:1: plan: 64 accelerators are not divisible by tensor_parallel 64 x pipeline_parallel 4 x "
            "context_parallel 1 = 256, change one of them or the number of nodes",
            "14:20: plan.tensor_parallel: tensor_parallel 64 is more than the 32 attention heads, choose at most 32",
        ],
    ),
    (
        "  pipeline_parallel: 4\n  expert_parallel: 8",
        "  pipeline_parallel: 64",
        [
            "15:22: plan.pipeline_parallel: 32 layers are fewer than the stages, pipeline_parallel 64 x "
            "virtual_pipeline 1 = 64, choose fewer stages"
        ],
    ),
    (
        "global_batch_size: 256",
        "global_batch_size: 250",
        [
            "11:22: training.global_batch_size: 250 is not divisible by micro_batch_size 1 x data_parallel 16 = 16, "
            "choose 240 or 256"
        ],
    ),
    (
        "sequence_length: 4096",
        "sequence_length: 65536",
        [
            "10:20: training.sequence_length: 65536 is more than the 32768 positions of mixtral-8x7b, "
            "shorten it or --set model.max_position_embeddings=65536"
        ],
    ),
    (
        "model: mixtral-8x7b",
        "model: {base: mixtral-8x7b, moe: {top_k: 9}}",
        ["2:42: model.moe.top_k: top_k 9 is more than num_experts 8, choose at most 8"],
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), [*KEYS_AND_IDS, *SIZES, *UNITS, *CONSISTENCY])
def test_the_message_names_place_value_and_remedy(complaint, old, new, expected):
    assert complaint((old, new)) == [f"s.yaml:{line}" for line in expected]


def test_the_example_itself_is_right(load):
    assert load().cluster.devices == 64


def test_all_problems_are_told_at_once_in_the_order_of_the_file(complaint):
    changes = [
        ("model: mixtral-8x7b", "model: mixtral"),
        ("count: 8", "count: -8"),
        ("link: infiniband-ndr-400", "link: nvlink"),
        ("sequence_length: 4096", "sequence_length: 4k"),
        (TENSOR, "  tensor-parallel: 1"),
    ]
    assert [line.split(": ")[1] for line in complaint(*changes)] == [
        "model",
        "cluster.groups.0.count",
        "cluster.fabric.link",
        "training.sequence_length",
        "plan.tensor-parallel",
    ]


def test_a_missing_model_file_is_a_problem_of_the_key(complaint):
    lines = complaint(("model: mixtral-8x7b", "model: ../x/config.json"))
    assert lines == ["s.yaml:2:8: model: there is no such file (got '../x/config.json'), check the path"]
