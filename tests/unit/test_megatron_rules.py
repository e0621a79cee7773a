"""What Megatron-LM refuses beyond the golden cases: checks that it makes later, and single rules.

The cases of `EARLY` were compared with ``validate_args`` and ``TransformerConfig`` of Megatron-Core 0.19.2 on a CPU.
"""

import pytest

from simmoe.errors import SpecError
from simmoe.specs.megatron.arguments import parse_words
from simmoe.specs.megatron.frequency import dense_then_periodic, layer_pattern, runs
from simmoe.specs.megatron.groups import MAPPED_ORDER, orders_agree, rank_groups
from simmoe.specs.megatron.rules import problems
from simmoe.specs.megatron.sums import whole_sum

BASE = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 256 --bf16 --use-distributed-optimizer "
)
MOE = f"{BASE} --num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
PIPELINE = f"{BASE} --pipeline-model-parallel-size 4 "
EARLY = [
    ("distributed activations", f"{BASE} --distribute-saved-activations", 16),
    ("account", f"{PIPELINE} --account-for-loss-in-pipeline-split --num-virtual-stages-per-pipeline-rank 3", 16),
    ("one split", f"{PIPELINE} --num-virtual-stages-per-pipeline-rank 2 --num-layers-per-virtual-pipeline-stage 2", 16),
    ("ends and account", f"{PIPELINE} --decoder-first-pipeline-num-layers 5 --account-for-loss-in-pipeline-split", 16),
    ("ends", f"{PIPELINE} --decoder-first-pipeline-num-layers 0", 16),
    ("layout ends", f"{PIPELINE} --pipeline-model-parallel-layout t*8|t*8E|t*8|t*8L", 16),
    (
        "layout mtp",
        f"{BASE} --position-embedding-type rope --pipeline-model-parallel-size 2 --mtp-num-layers 1 "
        "--pipeline-model-parallel-layout Et*16m|t*16L",
        16,
    ),
    ("torch fsdp", f"{BASE} --use-torch-fsdp2", 16),
    ("megatron fsdp", f"{BASE} --use-megatron-fsdp", 16),
    ("one precision", f"{BASE} --fp16", 16),
    ("sequence", f"{BASE} --max-position-embeddings 1024", 16),
    ("overlap tensor", f"{BASE} --tp-comm-overlap --sequence-parallel", 16),
    ("mtp positions", f"{BASE} --mtp-num-layers 1", 16),
    ("layer list", f"{MOE} --moe-layer-freq exit()", 16),
    ("expert bias", f"{MOE} --tensor-model-parallel-size 2 --sequence-parallel", 16),
    ("latent attention", f"{BASE} --multi-latent-attention --group-query-attention", 16),
    ("expert width", f"{BASE} --moe-ffn-hidden-size 64", 16),
    ("experts divide", f"{BASE} --expert-model-parallel-size 2", 16),
    ("router", f"{MOE} --moe-router-topk 1", 16),
    ("router", f"{MOE} --moe-router-enable-expert-bias", 16),
    ("router groups", f"{MOE} --moe-router-group-topk 2", 16),
    ("capacity", f"{MOE} --moe-pad-expert-input-to-capacity", 16),
    ("dispatcher", f"{MOE} --moe-enable-deepep", 16),
    ("recompute modules", f"{MOE} --recompute-granularity selective --recompute-modules mla_up_proj", 16),
    ("graphs", f"{BASE} --cuda-graph-impl full_iteration", 16),
    ("graphs", f"{MOE} --cuda-graph-impl transformer_engine --cuda-graph-modules moe_preprocess", 16),
    ("overlap experts", f"{MOE} --overlap-moe-expert-parallel-comm", 16),
]
LATE = [
    ("expert groups", f"{MOE} --expert-model-parallel-size 8", 4),
    ("instances", f"{BASE} --num-distributed-optimizer-instances 3", 16),
    ("sequence parallel", f"{MOE} --tensor-model-parallel-size 2 --disable-bias-linear", 16),
    ("rounds", f"{PIPELINE} --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 24", 16),
    (
        "rounds",
        f"{PIPELINE} --num-virtual-stages-per-pipeline-rank 2 --microbatch-group-size-per-virtual-pipeline-stage 2",
        16,
    ),
    ("even virtual stages", f"{PIPELINE} --num-virtual-stages-per-pipeline-rank 3", 16),
    ("layer pattern", f"{MOE} --moe-layer-freq [0]*1+[1]*30", 16),
    ("top k", f"{MOE} --moe-router-topk 9", 16),
]


def rules_of(words: str, world: int, environment: dict[str, str] | None = None) -> list[tuple[str, bool]]:
    return [(found.rule, found.late) for found in problems(parse_words(words.split()), world, environment)]


@pytest.mark.parametrize(("rule", "words", "world"), EARLY)
def test_a_rule_refuses_what_breaks_it(rule: str, words: str, world: int) -> None:
    assert (rule, False) in rules_of(words, world)


@pytest.mark.parametrize(("rule", "words", "world"), LATE)
def test_what_megatron_would_find_late_is_found_at_once(rule: str, words: str, world: int) -> None:
    assert rules_of(words, world) == [(rule, True)]


@pytest.mark.parametrize("words", [BASE, MOE, PIPELINE, f"{MOE} --moe-router-topk 1 --moe-router-pre-softmax"])
def test_nothing_is_wrong_with_the_lists_they_change(words: str) -> None:
    assert rules_of(words, 16) == []


def test_an_interleaved_group_may_be_larger_than_the_pipeline() -> None:
    words = f"{PIPELINE} --num-virtual-stages-per-pipeline-rank 2 --microbatch-group-size-per-virtual-pipeline-stage "
    assert rules_of(f"{words} 12", 16) == []  # 64 micro-batches: 5 groups of 12, and 4 left, as many as stages
    assert rules_of(f"{words} 21", 16) == [("rounds", True)]  # 1 left


def test_connections_are_asked_for_by_tensor_parallelism_and_refused_by_fsdp() -> None:
    tensor = f"{BASE} --tensor-model-parallel-size 2"
    assert rules_of(tensor, 16, {}) == [("connections", False)]
    assert rules_of(tensor, 16, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}) == []
    blackwell = problems(parse_words(tensor.split()), 16, {}, blackwell=True)
    assert blackwell == ()
    fsdp = f"{BASE} --use-megatron-fsdp --ckpt-format fsdp_dtensor"
    assert rules_of(fsdp, 16, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}) == [("connections", False)]


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "[0]*", "([0]*2", "[0]*99999", "[2]", "[0,]", "[]", "1+1", "((((", "[0]*2)", "[0] [1]*x"]
)
def test_lists_of_layers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="lists of 0 and 1"):
        layer_pattern(text)


def test_lists_of_layers_can_be_nested_and_repeated() -> None:
    assert layer_pattern("([0]*1 + ([1]*2)*2)*2") == (0, 1, 1, 1, 1) * 2
    assert layer_pattern(runs((0, 0, 1, 1, 1))) == (0, 0, 1, 1, 1)
    assert dense_then_periodic((0, 0, 0, 1, 0, 1)) == (2, 2)
    assert dense_then_periodic((0, 0, 1)) == (2, 1)
    assert dense_then_periodic((0, 0)) is None


def test_sums_are_computed_and_nothing_else() -> None:
    assert whole_sum("(2 + 3) * 4 - 6 / 2 % 2", lambda _: "") == 19
    assert whole_sum("$A*${B}", {"A": "2", "B": "8"}.__getitem__) == 16
    for text in ("2 **", "1 2", "9" * 12 + "*" + "9" * 12, "(" * 300, "x = 1", "1; 2"):
        assert whole_sum(text, lambda _: "") is None


def test_orders_of_ranks_agree_without_a_pipeline_alone() -> None:
    assert rank_groups({"tp": 2, "dp": 2, "pp": 2}, "dp", MAPPED_ORDER) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert not orders_agree({"dp": 2, "pp": 2}, {"dp": 2, "pp": 2})
    assert orders_agree({"tp": 2, "dp": 4}, {"ep": 8})
