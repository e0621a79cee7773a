"""Peak memory of both sides of a zebra stage, worked by hand."""

import pytest

from simmoe.pipeline import run
from tests.scenarios import zebra

FULL = "plan.recompute=full"
MOVED = "plan.zebra.moved_experts=[0, 1, 0, 1]"
TWO_STAGES = ("plan.pipeline_parallel=2", "plan.zebra.groups=1")


def test_memory_of_both_sides_worked_by_hand():
    """Full recomputation, zero1 over 8 attention devices and 2 copies of the experts; a token takes 8192 B.

    Attention holds embedding and head of 32000 x 4096, and of each of 4 layers qkv 4096 x 6144, output 4096 x 4096,
    router 8 x 4096 and norms 2 x 4096, and the last norm; the experts' side 2 of 8 experts of 3 x 4096 x 14336 a layer.
    """
    attention, experts = run(zebra(FULL)).memory
    dense = 2 * 32000 * 4096 + 4 * (4096 * 6144 + 4096 * 4096 + 8 * 4096 + 2 * 4096) + 4096
    expert = 4 * 2 * 3 * 4096 * 14336
    assert (attention.weights, attention.gradients, attention.optimizer) == (2 * dense, 4 * dense, 12 * dense / 8)
    assert (experts.weights, experts.gradients, experts.optimizer) == (2 * expert, 4 * expert, 12 * expert / 2)
    tokens = 4096 * 8192  # one micro-batch's hidden states [B]
    # Block 0 keeps what enters; four blocks what entered and two results a token; for both micro-batches.
    assert attention.activations == 2 * (1 + 4 * 3) * tokens
    # Input and output of the last norm, logits, gradients of the head's weight, input and output; two buffers.
    logits = 4096 * 32000 * 2
    head = 2 * (32000 * 4096 + 4096 * (32000 + 4096))
    assert attention.working == 2 * tokens + logits + head + 2 * 2 * tokens
    # Two copies of every token arrive, sorted in each of 4 layers.
    assert experts.activations == 2 * 4 * 2 * tokens
    up, activated = 8192 * 28672 * 2, 8192 * 14336 * 2
    gradients = 2 * 2 * (28672 * 4096 + 4096 * (28672 + 4096))  # of 2 experts with 4096 rows each
    assert experts.working == up + activated + gradients + 2 * 2 * tokens


def test_moved_experts_take_their_memory_along():
    """Expectation: what the experts' side gives up, the attention side holds: here one expert a device and layer."""
    before, after = (run(zebra(*overrides)).memory for overrides in ((), (MOVED,)))
    one = 3 * 4096 * 14336
    assert after[0].weights - before[0].weights == 2 * 2 * one
    assert before[1].weights - after[1].weights == 2 * 2 * one
    assert after[0].optimizer - before[0].optimizer == 12 * 2 * one / 2  # shared by two groups, not by 8 devices


def test_logits_of_all_passes_are_kept_where_all_forward_passes_come_first():
    """Expectation: gpipe keeps what the last norm gave, and the logits, of all 4 micro-batches."""
    once, late = (run(zebra(FULL, f"plan.schedule={name}")).memory[0] for name in ("1f1b", "gpipe"))
    tokens, logits = 4096 * 8192, 4096 * 32000 * 2
    assert late.activations == 2 * once.activations + 4 * (tokens + logits)


@pytest.mark.parametrize("overrides", [(FULL, "plan.schedule=gpipe"), TWO_STAGES, (MOVED,)], ids=str)
def test_the_staircase_of_memory_ends_at_the_peak(overrides):
    found = run(zebra(*overrides))
    for staircase, memory in zip(found.memory_timelines, found.memory, strict=True):
        assert staircase.peak == pytest.approx(memory.total, rel=1e-12)


def test_gpipe_with_one_pass_turns_at_once():
    one = "training.global_batch_size=16"
    once, late = (run(zebra(FULL, one, f"plan.schedule={name}")).memory for name in ("1f1b", "gpipe"))
    assert late == once


def test_fewer_attention_devices_take_more_of_what_moved():
    """Expectation: an expert from each of 4 devices is two for each of 2 attention devices, in one layer of four."""
    group = "attention_devices: 2, expert_devices: 4, groups: 2, micro_batches: 2"
    before, after = (
        run(zebra(f"plan.zebra={{{group}, moved_experts: [{moved}, 0, 0, 0]}}")).memory for moved in (0, 1)
    )
    one = 3 * 4096 * 14336
    assert after[0].weights - before[0].weights == 2 * 2 * one
    assert before[1].weights - after[1].weights == 2 * 1 * one


@pytest.mark.parametrize("overrides", [(), (FULL,), (MOVED, FULL)], ids=str)
def test_pieces_keep_as_much_together(overrides):
    whole, cut = (run(zebra(*overrides, f"plan.a2a_ffn_overlap_degree={degree}")).memory for degree in (1, 2))
    for one, other in zip(whole, cut, strict=True):
        assert other.activations == pytest.approx(one.activations, rel=1e-12)


def test_what_shared_experts_gave_is_kept_until_results_come_back():
    """Expectation: the dense layer and what enters, then twice six results, a shared one and the residual a token."""
    shared = ("model={base: deepseek-v2-lite, num_layers: 3}", FULL)
    memory = run(zebra(*shared)).memory[0]
    assert memory.activations == 2 * (1 + 2 * (6 + 1 + 1)) * 4096 * 2048 * 2
