"""Small scenarios on clusters of unlike GPUs, for tests of planners."""

from simmoe.specs.scenario import Scenario
from tests.scenarios import small


def unlike(
    *groups: tuple[str, int],
    layers: int = 3,
    hidden: int = 1024,
    experts: int = 8,
    batch: int = 8,
    length: int = 4096,
    precision: str = "fp16",
    recompute: str = "full",
    more: tuple[str, ...] = (),
) -> Scenario:
    """A small model of Mixtral's proportions on hosts of one 100 Gb/s port, given as (node, count)."""
    written = ", ".join(f"{{node: {node}, count: {count}}}" for node, count in groups)
    moe = f"{{num_experts: {experts}, top_k: 2, moe_ffn_hidden_size: {7 * hidden // 2}}}"
    attention = f"{{num_heads: {hidden // 128}, num_kv_heads: 2, head_dim: 128}}"
    sizes = f"num_layers: {layers}, hidden_size: {hidden}, moe: {moe}, attention: {attention}"
    return small(
        f"model={{base: mixtral-8x7b, {sizes}}}",
        f"cluster={{groups: [{written}], fabric: {{link: roce-100, topology: flat}}}}",
        f"training.global_batch_size={batch}",
        f"training.sequence_length={length}",
        f"training.precision={precision}",
        # a starting point that is valid on any two groups
        f"plan={{recompute: {{granularity: {recompute}}}, zebra: {{attention_devices: 1, expert_devices: 1}}}}",
        *more,
    )
