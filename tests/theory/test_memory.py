"""Peak memory against closed forms."""

import pytest

from simmoe.cost.layers import layer_operators
from simmoe.cost.memory import rank_memory
from simmoe.cost.parameters import count_parameters
from simmoe.cost.shard import Shard
from simmoe.pipeline import stage_memory
from simmoe.specs.catalog import model
from tests.scenarios import small

GPT = ("model=gpt-3-175b", "model.num_layers=8", "plan.expert_parallel=1", "training.sequence_length=2048")


def saved(shard, name="gpt-3-175b"):
    return sum(operator.saved for operator in layer_operators(model(name), shard, 0))


def test_unfused_attention_keeps_what_korthikanti_counts():
    """ArXiv 2205.05198, equation 1: s b h (34 + 5 a s / h); 2 s b h of it are dropout masks, which are not modelled."""
    sequence, hidden, heads = 2048, 12288, 96
    expected = sequence * hidden * 32 + 5 * heads * sequence**2
    shard = Shard(batch=1, sequence=sequence, fused_attention=False)
    assert saved(shard) == expected


def test_tensor_and_sequence_parallelism_divide_the_activations():
    """Equation 4: everything is divided by t."""
    whole = saved(Shard(batch=1, sequence=2048, fused_attention=False))
    part = saved(Shard(batch=1, sequence=2048, fused_attention=False, tensor=8, sequence_parallel=True))
    assert part == whole / 8


def test_full_recomputation_keeps_the_input_of_each_layer():
    """Table 2: 2 s b h a layer and micro-batch; one stage, so every micro-batch is alone."""
    scenario = small(*GPT, "plan.pipeline_parallel=1", "plan.recompute=full", "training.global_batch_size=16")
    (memory,) = stage_memory(scenario)
    tokens, hidden = 2048, 12288
    logits = tokens * 51200 * 2
    ends = tokens * hidden * 2 * 2 + logits  # embedding output and final norm
    vocabulary = scenario.model.vocab_size
    ends = tokens * hidden * 2 * 2 + tokens * vocabulary * 2
    assert memory.activations == 8 * 2 * tokens * hidden + ends


def test_distributed_optimizer_shards_only_master_weights_and_moments():
    """18 B a parameter with fp32 gradients (2 + 4 + 12); zero1 leaves 6 + 12 / dp (arXiv 1910.02054, section 3.1)."""
    whole = small(*GPT, "plan.pipeline_parallel=1", "plan.sharding=none")
    sharded = small(*GPT, "plan.pipeline_parallel=1", "plan.sharding=zero1")
    parameters = count_parameters(whole.model).exact
    (first,), (second,) = stage_memory(whole), stage_memory(sharded)
    padding = first.weights / 2 - parameters
    assert 0 <= padding < 0.001 * parameters  # the vocabulary is padded
    assert first.weights + first.gradients + first.optimizer == pytest.approx(18 * (parameters + padding))
    assert second.optimizer == pytest.approx(first.optimizer / 16)
    assert second.weights == first.weights


def test_selective_recomputation_saves_what_the_modules_keep():
    plain = small()
    lean = small("plan.recompute={granularity: selective, modules: [moe_act, layernorm]}")
    layer = layer_operators(plain.model, Shard(batch=1, sequence=4096, expert=8), 0)
    dropped = sum(operator.saved for operator in layer if operator.module in {"moe_act", "layernorm"})
    before, after = stage_memory(plain)[0].activations, stage_memory(lean)[0].activations
    assert before - after == pytest.approx(dropped * 4 * 2)  # 4 layers, 2 micro-batches in flight


def test_micro_batches_in_flight_follow_the_schedule():
    """1F1B holds p - s micro-batches, GPipe all 8."""
    one_f_one_b, gpipe = small(), small("plan.schedule=gpipe")
    assert rank_memory(gpipe, gpipe.plan.stages[0], (8,)).activations == stage_memory(gpipe)[0].activations
    assert stage_memory(gpipe)[0].activations == 4 * stage_memory(one_f_one_b)[0].activations
