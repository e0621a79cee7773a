"""The model that an argument list of Megatron-LM describes."""

from collections.abc import Callable
from typing import Any

from simmoe.errors import SpecError
from simmoe.specs.megatron.frequency import dense_then_periodic, layer_pattern
from simmoe.specs.megatron.settings import Settings

# In Megatron's order of sizes: what a run cannot do without.
REQUIRED = ("num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size")
_USUAL_VOCABULARY = 128_000
Tell = Callable[[str], None]


def model_of(s: Settings, tell: Tell) -> dict[str, Any]:
    """A model as a scenario file writes it, without what equals the default.

    Parameters
    ----------
    s : Settings
    tell : callable
        Takes a sentence for each assumption.

    Raises
    ------
    SpecError
        If Megatron-LM would build something that is not known here.
    """
    given = s.given
    biases = not given.values.get("disable-bias-linear", False)
    model: dict[str, Any] = {
        "num_layers": s.layers,
        "hidden_size": given.size("hidden-size"),
        "ffn_hidden_size": _width(s),
        "vocab_size": _vocabulary(s, tell),
        "max_position_embeddings": given.number("max-position-embeddings") or given.size("seq-length"),
        "attention": _attention(s, biases),
        "gated_mlp": given.on("swiglu") or given.on("quick-geglu"),
        "tied_embeddings": not given.on("untie-embeddings-and-output-weights"),
        "mtp_layers": given.size("mtp-num-layers"),
        "learned_positions": _learned(s),
        "mlp_bias": biases,
        "norm_bias": given.text("normalization") == "LayerNorm",
    }
    if s.experts:
        model["moe"] = _moe(s, biases)
    return model


def _width(s: Settings) -> int:
    """Width of a dense MLP; Megatron's own default, so that a gated MLP has as many parameters as another."""
    given, hidden = s.given, s.given.size("hidden-size")
    usual = hidden * 8 // 3 // 64 * 64 if given.on("swiglu") else 4 * hidden
    return given.number("ffn-hidden-size") or usual


def _vocabulary(s: Settings, tell: Tell) -> int:
    found = s.given.number("vocab-size") or s.given.number("padded-vocab-size")
    if found is None:
        tell(f"--vocab-size is not given (the tokenizer has it): {_USUAL_VOCABULARY} assumed, correct model.vocab_size")
    return found or _USUAL_VOCABULARY


def _learned(s: Settings) -> bool:
    rotary = s.given.on("use-rotary-position-embeddings") or s.given.on("no-position-embedding")
    return s.given.text("position-embedding-type") == "learned_absolute" and not rotary


def _attention(s: Settings, biases: bool) -> dict[str, Any]:
    given = s.given
    heads = given.size("num-attention-heads")
    grouped = given.on("group-query-attention")
    found: dict[str, Any] = {
        "num_heads": heads,
        "num_kv_heads": given.size("num-query-groups") if grouped else heads,
        "head_dim": given.number("kv-channels") or max(1, given.size("hidden-size") // max(1, heads)),
        "bias": biases or given.on("add-qkv-bias"),
        "output_bias": biases,
        "qk_norm": "head" if given.on("qk-layernorm") else "none",
        "sinks": given.text("softmax-type") == "learnable",
    }
    if given.on("multi-latent-attention"):
        content, position = given.size("qk-head-dim"), given.size("qk-pos-emb-head-dim")
        found |= {
            "head_dim": content + position,
            "q_lora_rank": given.size("q-lora-rank"),
            "kv_lora_rank": given.size("kv-lora-rank"),
            "qk_nope_head_dim": content,
            "qk_rope_head_dim": position,
            "v_head_dim": given.size("v-head-dim"),
            "qk_norm": "none",  # the norms of the low-rank projections are part of latent attention
        }
    return found | _window(s)


def _window(s: Settings) -> dict[str, Any]:
    text = s.given.text("window-size")
    if not text:
        return {}
    numbers = text.replace("(", "").replace(")", "").replace(" ", "").split(",")
    if len(numbers) != 2 or not numbers[0].isdigit() or len(numbers[0]) > 9:
        raise SpecError([f"--window-size: two whole numbers are expected (got {text!r}), write 127,0"])
    # Keys to the left of the query; the query itself is one more.
    found = {"sliding_window": int(numbers[0]) + 1}
    skip = s.given.text("window-attn-skip-freq")
    if not skip:
        return found
    period = layer_pattern(skip)
    if not isinstance(period, int):
        repeated = dense_then_periodic(tuple(1 - item for item in period))
        if repeated is None or repeated[0]:
            raise SpecError(
                ["--window-attn-skip-freq: windows that do not repeat regularly are not known, write a number"]
            )
        period = repeated[1]
    return found | {"window_period": period}


def _moe(s: Settings, biases: bool) -> dict[str, Any]:
    given = s.given
    pattern = dense_then_periodic(s.moe_pattern)
    if pattern is None:
        raise SpecError(
            ["--moe-layer-freq: dense layers first, then every n-th layer with experts is what is known, write another"]
        )
    return {
        "num_experts": s.experts,
        "top_k": given.size("moe-router-topk"),
        "moe_ffn_hidden_size": given.number("moe-ffn-hidden-size") or _width(s),
        "shared_expert_ffn_hidden_size": given.size("moe-shared-expert-intermediate-size"),
        "shared_expert_gate": given.on("moe-shared-expert-gate"),
        "first_dense_layers": pattern[0],
        "layer_period": pattern[1],
        "group_limit": given.size("moe-router-group-topk"),
        "num_groups": given.number("moe-router-num-groups") or 1,
        "router_bias": given.on("moe-router-enable-expert-bias") or biases,
        "clamped": given.given("activation-func-clamp-value"),
    }
