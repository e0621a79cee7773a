"""What must hold inside a model."""

from simmoe.specs.model import Model
from simmoe.specs.rules import limit, rule

limit("model", "num_layers", 10_000, lambda model: model.num_layers)
limit("model", "hidden_size", 2**24, lambda model: model.hidden_size)
limit("model", "ffn_hidden_size", 2**28, lambda model: model.ffn_hidden_size)
limit("model", "vocab_size", 2**28, lambda model: model.vocab_size)
limit("model", "max_position_embeddings", 2**32, lambda model: model.max_position_embeddings)
limit("model", "mtp_layers", 100, lambda model: model.mtp_layers)
limit("model", "attention.num_heads", 2**20, lambda model: model.attention.num_heads)
limit("model", "attention.head_dim", 2**20, lambda model: model.attention.head_dim)
limit("model", "moe.num_experts", 2**20, lambda model: model.moe.num_experts if model.moe else 0)
limit(
    "model",
    "moe.moe_ffn_hidden_size",
    2**28,
    lambda model: model.moe.moe_ffn_hidden_size if model.moe else 0,
)


@rule("model", "attention.num_kv_heads")
def kv_heads_divide_heads(model: Model) -> str | None:
    """Every key/value head serves the same number of query heads."""
    heads, kv_heads = model.attention.num_heads, model.attention.num_kv_heads
    if heads % kv_heads == 0:
        return None
    return f"{kv_heads} key/value heads do not divide {heads} heads, choose a divisor"


@rule("model", "attention.kv_lora_rank")
def mla_is_complete(model: Model) -> str | None:
    """MLA needs all its widths."""
    attention = model.attention
    if attention.kv_lora_rank == 0:
        return None
    names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    absent = [name for name in names if getattr(attention, name) == 0]
    return f"latent attention also needs {', '.join(absent)}, add them" if absent else None


@rule("model", "encoder_layers")
def decoder_exists(model: Model) -> str | None:
    """An encoder-decoder model has both."""
    if model.encoder_layers < model.num_layers:
        return None
    return f"{model.encoder_layers} of {model.num_layers} layers leave no decoder, write fewer"


@rule("model", "moe.top_k")
def top_k_within_experts(model: Model) -> str | None:
    """A token visits each expert at most once."""
    moe = model.moe
    if moe is None or moe.top_k <= moe.num_experts:
        return None
    return f"top_k {moe.top_k} is more than num_experts {moe.num_experts}, choose at most {moe.num_experts}"


@rule("model", "moe.num_groups")
def groups_divide_experts(model: Model) -> str | None:
    """Expert groups are of equal size."""
    moe = model.moe
    if moe is None or moe.num_experts % moe.num_groups == 0:
        return None
    return f"{moe.num_groups} groups do not divide num_experts {moe.num_experts}, choose a divisor"


@rule("model", "moe.group_limit")
def group_limit_is_possible(model: Model) -> str | None:
    """The groups a token may visit exist and hold top_k experts."""
    moe = model.moe
    if moe is None or moe.group_limit == 0 or moe.num_experts % moe.num_groups:
        return None
    if moe.group_limit > moe.num_groups:
        return f"group_limit {moe.group_limit} is more than num_groups {moe.num_groups}, write less"
    reach = moe.group_limit * (moe.num_experts // moe.num_groups)
    if moe.top_k <= reach:
        return None
    return f"{moe.group_limit} groups hold {reach} experts, fewer than top_k {moe.top_k}, write more"


@rule("model", "moe.first_dense_layers")
def some_layer_is_moe(model: Model) -> str | None:
    """A model with experts has a layer that holds them."""
    moe = model.moe
    if moe is None:
        return None
    stacks = [n for n in (model.encoder_layers, model.num_layers - model.encoder_layers) if n > 0]
    first = moe.first_dense_layers + moe.layer_period - 1
    if any(first < layers for layers in stacks):
        return None
    return (
        f"{moe.first_dense_layers} dense layers and period {moe.layer_period} leave no MoE layer among "
        f"{model.num_layers}, write less or set moe: null"
    )
